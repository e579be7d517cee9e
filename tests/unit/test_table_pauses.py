"""A table that is paused: what is recorded, shown and kept of it; `tests/spark/test_table_pauses.py` applies."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

import cdc_lake
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.control.cuts import ACTIVE, FAILED, PAUSED, last_cut
from cdc_lake.control.table_pauses import apply_pause_state, pause, paused_tables, resume, stopped_tables
from cdc_lake.errors import NoStream, TableBehind, TableNotKnown
from cdc_lake.model.change import Insert, Transaction
from cdc_lake.model.position import Span
from cdc_lake.observability.events import silent
from cdc_lake.ops.status import status
from cdc_lake.runtime.apply import spark_sessions, table_planner
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.runtime.cut_retention import list_cuts
from cdc_lake.runtime.maintain import maintain
from cdc_lake.tables.control_schema import PauseRow, SnapshotRow, utc_now
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.cut_lake import CutLake, at, ids
from tests.pipeline_file import make_project
from tests.shell import output_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

YAML = """\
version: 1
pipeline: shop
source: {type: postgres, host: 127.0.0.1, port: 1, database: d, user: u, tables: ["public.*"]}
bronze: {retention: {min_age: 1 d, rebuilds: false}}
"""


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CutLake:
    """Tables t, which has all transactions, and b; cuts at 200 and 300."""
    (tmp_path / "shop.yaml").write_text(YAML)
    monkeypatch.chdir(tmp_path)
    lake = CutLake(tmp_path)
    lake.control.record(SnapshotRow("initial-1", lake.stream, 1, 100, "[]", "complete", at(0)))
    for position in (200, 300):
        lake.land(position, minutes=position / 100)
        versions = {name: lake.write(name, ids(position)) for name in ("t", "b")}
        lake.cut(position, position / 100, **{n: lake.state(n, v, position) for n, v in versions.items()})
    return lake


def test_pause_and_resume_say_what_stands_and_do_nothing_twice(lake: CutLake, capsys: Any) -> None:
    assert "silver.t is paused: a run stops it at its next span" in output_of(capsys, "pause", "t")
    document = json.loads(output_of(capsys, "pause", "public.t", "--json"))
    assert document["schema"] == "cdc-lake/pause/1"
    assert (document["source"], document["paused"], document["changed"]) == ("public.t", True, False)
    assert "is already paused, since" in output_of(capsys, "pause", "t")
    assert list(paused_tables(lake.control)) == ["public.t"]
    assert "silver.t continues with the next span" in output_of(capsys, "resume", "t")
    assert "silver.t is not paused" in output_of(capsys, "resume", "t")
    assert "silver.b is not paused" in output_of(capsys, "resume", "b")
    assert paused_tables(lake.control) == {}
    assert lake.control.read("pauses").num_rows == 2


def test_the_tables_of_a_group_stop_and_go_on_together(tmp_path: Path) -> None:
    group = {"name": "g", "tables": ["public.t", "public.b"], "hold": "transaction"}
    lake = CutLake(tmp_path, silver={"groups": [group]})
    lake.land(200)
    assert pause(lake.project, "t").changed
    assert sorted(paused_tables(lake.control)) == ["public.b", "public.t"]
    assert resume(lake.project, "public.t").changed
    assert not resume(lake.project, "public.t").changed
    assert paused_tables(lake.control) == {}
    now = datetime.now(UTC)
    lake.control.record(PauseRow("public.b", paused=True, recorded_at=now))  # before there was the group
    assert stopped_tables(lake.project, lake.control) == {"public.b": now, "public.t": now}
    assert resume(lake.project, "public.t").changed
    assert stopped_tables(lake.project, lake.control) == {}


def test_a_table_that_bronze_does_not_know_is_refused(lake: CutLake, capsys: Any, tmp_path: Path) -> None:
    assert "error[STA690]: bronze has no table `orders`; it has public.b, public.t" in output_of(
        capsys, "pause", "orders", code=1
    )
    with pytest.raises(TableNotKnown):
        resume(lake.project, "silver.t")
    with pytest.raises(NoStream):
        pause(make_project(tmp_path / "new"), "t")
    assert lake.control.read("pauses").num_rows == 0


def test_status_says_paused_since_when_and_how_many_transactions_wait(lake: CutLake) -> None:
    pause(lake.project, "t")
    lake.land(400)
    lake.cut(400, 4, t=lake.state("t", 1, 300, state=PAUSED), b=lake.state("b", 1, 400))
    lake.land(500)
    found = {one.source: one for one in status(cdc_lake.Pipeline.load("shop.yaml").project).tables}
    assert (found["public.t"].state, found["public.t"].position) == ("paused", "0/12C")
    assert ", 2 transactions wait: `cdc-lake resume public.t`" in found["public.t"].reason
    resume(lake.project, "t")
    found = {one.source: one for one in status(cdc_lake.Pipeline.load("shop.yaml").project).tables}
    assert (found["public.t"].state, found["public.t"].reason) == (
        "catching-up",
        "it was paused, and continues with the next run",
    )


def test_cuts_list_it_as_behind_and_readers_are_told(lake: CutLake) -> None:
    lake.land(400)
    lake.cut(400, 4, t=lake.state("t", 1, 300, state=PAUSED), b=lake.state("b", 1, 400))
    assert list_cuts(lake.project, 1).cuts[0].behind == ("silver.t",)
    with pytest.raises(TableBehind, match="is still at 0/12C"):
        cdc_lake.Pipeline(lake.project).cut().read("t")


def test_retention_keeps_what_a_paused_table_does_not_have(lake: CutLake) -> None:
    for position in (400, 500):
        lake.land(position)
    lake.cut(500, 5, t=lake.state("t", 1, 300, state=PAUSED), b=lake.state("b", 1, 500))
    project = cdc_lake.Pipeline.load("shop.yaml").project
    later = at(0) + timedelta(days=3650)
    done = maintain(project, started_at=later, only="bronze")
    assert done.kept == "public.t is at 0/12C"
    reader = bronze_reader(project)
    assert reader.last_trimmed()[1][0] <= 300
    assert [one.position for one in reader.commits(Span(1, 300, 500))] == [400, 500]
    forced = maintain(project, started_at=later, only="bronze", force=True)
    assert "changes of public.t from 0/12C on that silver.t (paused) does not contain" in forced.lost


def test_what_pauses_make_of_the_tables_of_a_cut(lake: CutLake) -> None:
    here, there = lake.state("t", 1, 300), lake.state("b", 1, 200, state=FAILED)
    tables = {"public.t": here, "public.b": there}
    assert apply_pause_state(lake.project, tables, (), 300) == tables
    stopped = apply_pause_state(lake.project, tables, ["public.t", "public.b", "public.new"], 300)
    assert stopped["public.t"] == replace(here, state=PAUSED)
    assert stopped["public.b"] == replace(there, state=PAUSED)
    new = stopped["public.new"]
    assert (new.table, new.version, new.position, new.state) == ("silver.new", None, 300, PAUSED)
    gone_on = apply_pause_state(lake.project, stopped, ["public.b"], 300)
    assert [gone_on[f"public.{name}"].state for name in ("t", "b", "new")] == [FAILED, PAUSED, FAILED]
    assert ACTIVE not in {table.state for table in gone_on.values()}


def test_a_table_that_is_paused_stays_before_its_copy_which_it_is_asked_for_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables without rows: what Spark would say of a span of them is known."""
    asked: list[tuple[str, bool, int, int]] = []

    def nothing(_: object, job: Any) -> None:
        asked.append((str(job.target.source), job.snapshot, job.span.after, job.span.upto))

    monkeypatch.setattr(table_planner, "prepare", nothing)
    monkeypatch.setattr(spark_sessions, "death", lambda _: None)
    monkeypatch.setattr(spark_sessions, "derive", lambda spark: spark)
    monkeypatch.setattr(spark_sessions, "on_cluster", lambda _: False)
    project = make_project(tmp_path / "p")
    early, other = (table(f"public.{name}", id="int4") for name in ("early", "other"))
    bronze, control = DeltaBronze(project.bronze, durability="os"), ControlTables(project.control, durability="os")
    bronze.begin_stream("test", 10)
    copied = []
    for number, layout in enumerate((early, other)):
        bronze.append_snapshot("initial-1", number, layout, pa.array([], pa.list_(pa.string())), 0, 100)
        copied.append({"relation": str(layout.table), "layout": layout.layout, "rows": 0, "chunks": 1})
    control.record(SnapshotRow("initial-1", "test", 1, 100, json.dumps(copied), "complete", utc_now()))

    local = cast("SparkSession", SimpleNamespace(conf={"spark.master": "local"}))  # all else of Spark is stood in for

    def advance() -> dict[str, tuple[str, int]]:
        asked.clear()
        with SpanLoop(project, local, silent) as one:
            one.run(None, threading.Event())
        cut = last_cut(control, "test")
        assert cut is not None
        return {relation.split(".")[1]: (table.state, table.position) for relation, table in cut.tables.items()}

    pause(project, "early")
    assert advance() == {"early": ("paused", 99), "other": ("active", 100)}
    assert asked == [("public.other", True, 99, 100)]
    resume(project, "early")
    assert advance() == dict.fromkeys(["early", "other"], ("active", 100)), "nothing else came in"
    assert asked == [("public.early", True, 99, 100)]
    pause(project, "early")
    bronze.append([raw_transaction(Transaction(boundaries(200), (Insert(other, ("1",)),)))])
    assert advance() == {"early": ("paused", 100), "other": ("active", 200)}
    resume(project, "early")
    assert advance() == dict.fromkeys(["early", "other"], ("active", 200)), "and the run ends"
