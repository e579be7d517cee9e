"""What a rebuild is made of, and what is said of it; without Spark."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lake.bronze.delta_table import DeltaBronzeTable
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.writer import BesideBronze, DeltaBronze
from cdc_lake.cli.commands.maintenance import rebuilt_text
from cdc_lake.control.snapshots import CopiedTable, copy_name, record_recopied
from cdc_lake.errors import NothingToRebuild, PastTrimmed, PositionUnavailable, RebuildNeedsPlace, SnapshotIncomplete
from cdc_lake.model.change import Change, Insert, Transaction
from cdc_lake.model.position import Span
from cdc_lake.model.relation import TableName
from cdc_lake.runtime.apply.rebuild import Rebuilt, rebuild
from cdc_lake.runtime.apply.span_planning import RebuildPlan, rebuild_plan
from cdc_lake.runtime.maintain import maintain
from cdc_lake.silver.kinds import Columns, Difference
from cdc_lake.tables.control_schema import SnapshotRow, utc_now
from cdc_lake.tables.control_tables import ControlTables, control_tables
from cdc_lake.tables.delta_storage import LocalDeltaStorage
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.pipeline_file import make_project

T = table("public.t", id="int4", amount="int4")
WIDE = table("public.t", id="int4", amount="int4", note="text")
OTHER = table("public.other", id="int4")


class Bronze:
    """A stream that begins at 10, with what the test lands."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.project = make_project(root, **{"snapshot": {"mode": "none"}, **settings})
        self.writer = DeltaBronze(self.project.bronze, durability="os")
        self.writer.begin_stream("test", 10)

    def land(self, position: int, *changes: Change) -> None:
        self.writer.append([raw_transaction(Transaction(boundaries(position), changes))])

    def plan(self, upto: int, name: TableName = T.table) -> RebuildPlan:
        reader = bronze_reader(self.project)
        state = reader.state()
        assert state is not None
        return rebuild_plan(self.project, reader, state, name, upto)


def rows(count: int, relation: Any = T) -> list[Insert]:
    return [Insert(relation, tuple(str(n) for _ in relation.columns)) for n in range(count)]


def spans(plan: RebuildPlan) -> list[Span]:
    return [part.span for part in plan.parts]


def test_parts_end_at_transactions_of_the_table_and_hold_so_many_of_its_changes(tmp_path: Path) -> None:
    bronze = Bronze(tmp_path, apply={"span_rows": 5})
    for position, count in ((100, 3), (110, 2), (120, 9), (130, 1)):
        bronze.land(position, *rows(count), *rows(20, OTHER))
    bronze.land(140, *rows(2, OTHER))
    assert spans(bronze.plan(140)) == [Span(1, 0, 110), Span(1, 110, 120), Span(1, 120, 130)]
    assert spans(bronze.plan(125)) == [Span(1, 0, 110), Span(1, 110, 120)]
    assert spans(bronze.plan(99)) == []
    assert all(part.size > 0 for part in bronze.plan(140).parts)


def test_parts_hold_so_many_bytes(tmp_path: Path) -> None:
    bronze = Bronze(tmp_path, apply={"span_bytes": 300})
    for position in (100, 110, 120):
        bronze.land(position, *rows(8))
    assert [span.upto for span in spans(bronze.plan(120))] == [100, 110, 120]


def test_the_form_is_the_layout_of_the_last_change_up_to_the_position(tmp_path: Path) -> None:
    bronze = Bronze(tmp_path)
    bronze.land(100, *rows(1))
    bronze.land(110, *rows(1, WIDE))
    bronze.land(120, *rows(1))
    assert [bronze.plan(upto).form.names for upto in (50, 100, 110, 120)] == [
        ("id", "amount"),
        ("id", "amount"),
        ("id", "amount", "note"),
        ("id", "amount"),
    ]
    assert {bronze.plan(50).form.names for _ in range(30)} == {("id", "amount")}, "once in twelve it was the other one"


def test_a_table_begins_with_its_copy(tmp_path: Path) -> None:
    bronze = Bronze(tmp_path, snapshot={"mode": "initial"})
    with pytest.raises(SnapshotIncomplete):
        bronze.plan(10)
    bronze.writer.append_snapshot("initial-1", 0, T, pa.array([["1", "2"]]), 0, 10)
    copied = [{"relation": "public.t", "layout": T.layout, "rows": 1, "chunks": 1}]
    control = ControlTables(bronze.project.control)
    control.record(SnapshotRow("initial-1", "test", 1, 10, json.dumps(copied), "complete", utc_now()))
    bronze.land(100, *rows(1), *rows(1, OTHER))
    plan = bronze.plan(100)
    assert (plan.begins, plan.layout, spans(plan)) == (10, T.layout, [Span(1, 10, 100)])
    assert bronze.plan(100, OTHER.table).layout is None, "it came into the stream later"
    for outside in (9, 101):
        with pytest.raises(PositionUnavailable, match="from 0/A to 0/64"):
            bronze.plan(outside)


def test_what_bronze_does_not_have_is_not_made_up(tmp_path: Path) -> None:
    bronze = Bronze(tmp_path)
    bronze.land(100, *rows(1))
    with pytest.raises(NothingToRebuild):
        bronze.plan(100, TableName("public", "nothing"))
    with pytest.raises(RebuildNeedsPlace):
        rebuild(bronze.project, "t", to=100)
    with pytest.raises(NothingToRebuild, match="no content"):
        rebuild(bronze.project, "t")


@pytest.mark.obeys("STA670")
def test_a_past_that_was_trimmed_is_refused_with_where_bronze_begins_and_a_new_copy_is_another_beginning(
    tmp_path: Path,
) -> None:
    bronze = Bronze(tmp_path, bronze={"retention": {"min_age": "1 d", "rebuilds": False}})
    bronze.land(100, *rows(1))
    bronze.land(110, *rows(1))
    maintain(bronze.project, force=True, started_at=utc_now() + timedelta(days=2))
    with pytest.raises(PastTrimmed, match="bronze begins after 0/6") as refused:
        bronze.plan(110)
    assert refused.value.remedy.startswith("run `cdc-lake resync TABLE`")
    state = bronze.writer.state()
    assert state is not None
    beside = BesideBronze(DeltaBronzeTable(LocalDeltaStorage(bronze.project.bronze, durable=False)))
    beside.append_snapshot(copy_name(state, 115), 1, T, pa.array([["1", "2"]]), 0, 115)
    copy = CopiedTable(T.table, T.layout, 1, 1, 115)
    record_recopied(control_tables(bronze.project), state, copy_name(state, 115), [copy])
    bronze.land(120, *rows(1))
    plan = bronze.plan(120)
    assert (plan.begins, plan.copied, spans(plan)) == (115, 115, [Span(1, 115, 120)])


def test_what_a_rebuild_says() -> None:
    columns = Columns(added=("note",), changed=("amount",))
    keys: dict[str, list[tuple[str | None, ...]]] = {"changed": [("1", None)]}
    found = Difference(10, 12, 3, 1, 1_000, columns, keys)
    done = Rebuilt("shop", "public.t", "silver.t", "0/64", 2, 7, 2, ("drop column body of silver.t",), found, 1.0)
    assert rebuilt_text(done) == (
        "silver.t at 0/64 from public.t: generation 2, version 7\n"
        "12 rows, 10 before: 3 added, 1 removed, 1,000 changed\n"
        "columns new: note\n"
        "columns of another type: amount\n"
        "changed: (1, NULL)\n"
        "also done: drop column body of silver.t\n"
        "what the server did to rows with them without sending it is not in bronze: "
        "`cdc-lake compare public.t` shows it\n"
        "2 changes held by rules: `cdc-lake quarantine list`"
    )
