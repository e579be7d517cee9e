"""One table stopped while others flow: it stays, they go on, and it ends equal to what happened at the source."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.control.cuts import last_cut
from cdc_lake.control.table_pauses import pause, resume
from cdc_lake.model.change import Change, Delete, Insert, OldKind, Transaction
from cdc_lake.model.relation import Relation
from cdc_lake.ops.status import status
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.runtime.quarantine import Choice, decide, list_quarantine
from cdc_lake.tables.control_schema import SnapshotRow, utc_now
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.pipeline_file import make_project

STAYS, FLOWS, LATER = (table(f"public.{name}", id="int4") for name in ("stays", "flows", "later"))


@pytest.mark.spark
def test_a_paused_table_stays_while_others_flow_and_catches_up_when_it_is_resumed(lake_root: Path, spark: Any) -> None:
    project = make_project(
        lake_root,
        "pauses",
        silver={
            "defaults": {"format": "delta", "namespace": "pauses"},
            "tables": [{"from": "public.flows", "format": "iceberg"}],
        },
        snapshot={"mode": "none"},
        apply={"span_rows": 2},
    )
    bronze = DeltaBronze(project.bronze, durability="os")
    bronze.begin_stream("test", 10)
    told: list[str] = []

    def land(position: int, *changes: Change) -> None:
        bronze.append([raw_transaction(Transaction(boundaries(position), changes))])

    def rows(relation: Relation) -> list[int]:
        return sorted(table_log(project, project.target(relation.table)).read()["id"].to_pylist())

    def states() -> dict[str, tuple[str, int]]:
        cut = last_cut(ControlTables(project.control), "test")
        assert cut is not None
        return {relation.split(".")[1]: (table.state, table.position) for relation, table in cut.tables.items()}

    def heard(progress: Any) -> None:
        told.append(progress.text)
        if progress.stage == "cut" and progress.facts["upto"] == 300:
            pause(project, "later")  # while apply runs: from its next span on

    def advance() -> frozenset[str]:
        with SpanLoop(project, spark, heard) as one:
            one.run(None, threading.Event())
            assert one.totals.failed == {}
            return one.totals.paused

    land(100, Insert(STAYS, ("1",)), Insert(FLOWS, ("1",)))
    assert advance() == frozenset()
    pause(project, "stays")
    land(200, Insert(STAYS, ("2",)), Insert(FLOWS, ("2",)))
    land(300, Insert(STAYS, ("3",)), Insert(FLOWS, ("3",)))
    land(400, Delete(STAYS, ("1",), OldKind.KEY), Insert(LATER, ("4",)))
    assert advance() == {"pauses.stays", "pauses.later"}
    assert "pauses.stays is paused: it stays at 0/64" in told
    assert (rows(STAYS), rows(FLOWS)) == ([1], [1, 2, 3])
    assert states()["stays"] == ("paused", 100)
    assert states()["flows"] == ("active", 400)
    assert states()["later"] == ("paused", 300), "the run saw it at its next span"

    resume(project, "stays")
    told.clear()
    assert advance() == {"pauses.later"}
    assert (rows(STAYS), rows(FLOWS)) == ([2, 3], [1, 2, 3])
    assert states()["stays"] == ("active", 400)
    resume(project, "later")
    advance()
    assert rows(LATER) == [4]
    assert states() == dict.fromkeys(["stays", "flows", "later"], ("active", 400))


@pytest.mark.spark
def test_what_was_copied_and_decided_while_a_table_is_paused_comes_with_the_first_run_behind_resume(
    lake_root: Path, spark: Any
) -> None:
    early, other = table("public.early", id="int4", amount="int4"), table("public.other", id="int4")
    rule = {"rule": "between", "column": "amount", "max": 10, "on_fail": "quarantine"}
    project = make_project(
        lake_root,
        "paused_early",
        silver={"defaults": {"namespace": "paused_early"}, "tables": [{"from": "public.early", "rules": [rule]}]},
    )
    bronze, control = DeltaBronze(project.bronze, durability="os"), ControlTables(project.control, durability="os")
    bronze.begin_stream("test", 10)
    copied = []
    for layout, rows in ((early, [["1", "5"], ["2", "99"], ["3", "98"]]), (other, [["1"]])):
        bronze.append_snapshot("initial-1", len(copied), layout, pa.array(rows), 0, 100)
        copied.append({"relation": str(layout.table), "layout": layout.layout, "rows": len(rows), "chunks": 1})
    control.record(SnapshotRow("initial-1", "test", 1, 100, json.dumps(copied), "complete", utc_now()))

    def advance() -> None:
        with SpanLoop(project, spark, lambda _: None) as one:
            one.run(None, threading.Event())
            assert one.totals.failed == {}

    def rows(relation: Relation) -> list[int]:
        return sorted(table_log(project, project.target(relation.table)).read()["id"].to_pylist())

    pause(project, "early")
    advance()
    assert rows(other) == [1]
    assert not table_log(project, project.target(early.table)).exists()
    (found,) = (one for one in status(project).tables if one.source == "public.early")
    assert (found.state, found.version) == ("paused", None)
    assert ", not in silver yet, 0 transactions wait: " in found.reason

    resume(project, "early")
    advance()  # bronze has nothing new: nothing but the copy is missing
    assert rows(early) == [1]
    assert [one.key for one in list_quarantine(project).changes] == [("2",), ("3",)]

    pause(project, "early")
    for verb, key in (("release", "2"), ("discard", "3")):
        assert decide(project, verb, "early", Choice((key,)), "looked at", yes=True).paused  # type: ignore[arg-type]
    bronze.append([raw_transaction(Transaction(boundaries(200), (Insert(other, ("2",)), Insert(early, ("4", "4")))))])
    advance()
    assert (rows(other), rows(early)) == ([1, 2], [1])
    assert [one.decided for one in list_quarantine(project).changes] == ["release", "discard"]

    resume(project, "early")
    advance()
    assert rows(early) == [1, 2, 4]
    assert list_quarantine(project).changes == ()
    cut = last_cut(control, "test")
    assert cut is not None
    assert {one.state for one in cut.tables.values()} == {"active"}
