"""Single cases of apply that random histories meet too rarely, on Delta and on Iceberg."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.project import Project
from cdc_lake.errors import DestructiveChange, NoKey, RuleStopped, SilverLost, SilverMissing, SnapshotIncomplete
from cdc_lake.model.change import UNCHANGED, Change, Delete, Insert, OldKind, Transaction, Truncate, Update
from cdc_lake.model.relation import Relation, ReplicaIdentity, TableName
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.applier import apply, watching
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.source.base import format_stream_position
from cdc_lake.tables.control_schema import SnapshotRow, utc_now
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.pipeline_file import make_project

from .conftest import new_name
from .formats import FORMATS, drawn, either

pytestmark = pytest.mark.spark
T = table("public.t", id="int4", amount="int4", body="text")


class Lake:
    """A pipeline of one table, fed transaction by transaction."""

    def __init__(
        self,
        root: Path,
        spark: Any,
        name: str,
        fmt: str,
        rules: list[dict[str, Any]] | None = None,
        defaults: dict[str, Any] | None = None,
        table: dict[str, Any] | None = None,
        **sections: Any,
    ) -> None:
        self.spark = spark
        name = new_name(name, fmt)
        self.project: Project = make_project(
            root,
            name,
            silver={
                "defaults": {"format": fmt, "namespace": name, **(defaults or {})},
                "tables": [{"from": "public.t", "rules": rules or [], **(table or {})}],
            },
            snapshot={"mode": "none"},
            **sections,
        )
        self.bronze = DeltaBronze(self.project.bronze, durability="os")
        self.bronze.begin_stream("test", 10)
        self.position = 100

    def land(self, *changes: Change) -> int:
        self.position += 10
        self.bronze.append([raw_transaction(Transaction(boundaries(self.position), changes))])
        return self.position

    def apply(self) -> Any:
        return apply(self.project, once=True, stop=threading.Event(), report=silent, spark=self.spark)

    def advance(self, *allowed: str) -> None:
        """What `apply` does between two beats of its clock; the clock itself has tests of its own."""
        watcher = watching(self.project, silent)
        with watcher, SpanLoop(self.project, self.spark, watcher.on_progress, allowed=allowed) as advance:
            watcher.follow(advance.totals)
            advance.run(None, threading.Event())
            watcher.on_pass_end()
            for error in advance.totals.failed.values():
                raise error

    def shown(self) -> dict[str, float]:
        """What the file of metrics says, by name and labels."""
        assert self.project.textfile is not None
        families = text_string_to_metric_families(self.project.textfile.read_text())
        return {" ".join([s.name, *sorted(s.labels.values())]): s.value for f in families for s in f.samples}

    def rows(self, relation: Relation = T) -> list[dict[str, Any]]:
        return sorted(table_log(self.project, self.target(relation)).read().to_pylist(), key=lambda row: row["id"])

    def target(self, relation: Relation = T) -> Any:
        return self.project.target(relation.table)

    def marker(self) -> Any:
        return table_log(self.project, self.target()).marker("test")

    def quarantined(self) -> list[tuple[str, list[str]]]:
        rows = (
            ControlTables(self.project.control)
            .read("quarantine")
            .sort_by([("position", "ascending"), ("ordinal", "ascending")])
        )
        return [(row["reason"], row["rules"]) for row in rows.to_pylist()]


def insert(id_: str, amount: str | None, body: str | None = "b") -> Insert:
    return Insert(T, (id_, amount, body))


def row(id_: int, amount: int | None, body: str | None = "b") -> dict[str, Any]:
    return {"id": id_, "amount": amount, "body": body}


@drawn
def test_a_row_that_comes_to_a_key_before_the_one_that_has_it_goes_stays(spark: Any, lake_root: Path, fmt: str) -> None:
    full = table("public.t", key=["id"], identity=ReplicaIdentity.FULL, id="int4", amount="int4", body="text")

    def gone(*row: str) -> Delete:
        return Delete(full, row, OldKind.FULL)

    lake = Lake(lake_root, spark, "deferred", fmt, table={"keys": ["id"]})
    lake.land(*(Insert(full, (id_, "1", "old")) for id_ in "123"))
    lake.advance()
    lake.land(Insert(full, ("1", "2", "new")), gone("1", "1", "old"), gone("2", "1", "old"))
    lake.land(Insert(full, ("4", "1", "old")), Insert(full, ("5", "1", "brief")), gone("5", "1", "brief"))
    lake.land(Insert(full, ("4", "1", "old")), gone("4", "1", "old"), Insert(full, ("2", "3", "back")))
    lake.land(Insert(full, ("1", "3", "newer")), gone("1", "2", "new"))
    lake.advance()
    assert lake.rows() == [row(1, 3, "newer"), row(2, 3, "back"), row(3, 1, "old"), row(4, 1, "old")]
    younger, changed, moved = ("1", "4", "brief"), ("1", "5", "newer"), ("9", "2", None)
    lake.land(
        Insert(full, younger), Update(full, changed, ("1", "3", "newer"), OldKind.FULL), gone(*younger),
        Insert(full, ("3", "2", None)), Update(full, moved, ("3", "2", None), OldKind.FULL),
        Insert(full, ("4", "1", "old")), gone("4", "1", "old"),
    )  # fmt: skip
    lake.advance()
    assert lake.rows() == [row(1, 5, "newer"), row(2, 3, "back"), row(3, 1, "old"), row(4, 1, "old"), row(9, 2, None)]


@drawn
def test_a_key_that_moves_leaves_nothing_behind_and_takes_its_large_value_along(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    lake = Lake(lake_root, spark, "moves", fmt)
    lake.land(insert("1", "1", "large"), insert("9", "9"))
    lake.advance()
    lake.land(Update(T, ("500", "2", UNCHANGED), ("1", None, None), OldKind.KEY))
    lake.advance()
    assert lake.rows() == [row(9, 9), row(500, 2, "large")]


@drawn
def test_keys_swapped_in_a_later_span_keep_their_own_large_values(spark: Any, lake_root: Path, fmt: str) -> None:
    lake = Lake(lake_root, spark, "swaps", fmt)
    lake.land(insert("1", "1", "one"), insert("2", "2", "two"))
    lake.advance()
    lake.land(
        Update(T, ("2", "1", UNCHANGED), ("1", None, None), OldKind.KEY),
        Update(T, ("1", "2", UNCHANGED), ("2", None, None), OldKind.KEY),
    )
    lake.advance()
    assert lake.rows() == [row(1, 2, "two"), row(2, 1, "one")]


@FORMATS
def test_truncate_between_changes_is_a_barrier_and_ends_holds(spark: Any, lake_root: Path, fmt: str) -> None:
    rule = {"rule": "between", "column": "amount", "max": 10, "on_fail": "quarantine"}
    lake = Lake(lake_root, spark, "truncates", fmt, [rule])
    lake.land(insert("1", "1"), insert("2", "99"))
    lake.advance()
    assert lake.rows() == [row(1, 1)]
    lake.land(Update(T, ("2", "3", "b")), Truncate(T), insert("2", "5"))
    lake.advance()
    assert lake.rows() == [row(2, 5)]
    assert lake.quarantined() == [("failed", ["between_amount"]), ("waiting", []), ("closed", None)]


@drawn
def test_what_follows_a_held_change_of_its_key_waits_and_other_keys_flow(spark: Any, lake_root: Path, fmt: str) -> None:
    rule = {"rule": "between", "column": "amount", "max": 10, "on_fail": "quarantine"}
    lake = Lake(lake_root, spark, "holds", fmt, [rule], observe={"textfile": f"holds_{fmt}.prom"})
    lake.land(insert("1", "1"), insert("2", "2"))
    lake.advance()
    lake.land(Update(T, ("1", "99", UNCHANGED)))
    lake.advance()
    lake.land(
        Update(T, ("1", "5", UNCHANGED)), Update(T, ("2", "7", UNCHANGED)), Delete(T, ("1", None, None), OldKind.KEY)
    )
    lake.advance()
    assert lake.rows() == [row(1, 1), row(2, 7)]
    assert [reason for reason, _ in lake.quarantined()] == ["failed", "waiting", "waiting"]
    said, label = lake.shown(), f"holds_{fmt}"
    assert said[f"cdc_lake_quarantined_rows_total {label} {label}.t waiting"] == 2
    assert said[f"cdc_lake_quarantined_keys {label} {label}.t"] == 1
    assert said[f"cdc_lake_table_failed {label} {label}.t"] == 0
    assert said[f"cdc_lake_merge_duration_seconds_count {label} {label}.t"] == 1
    assert said[f"cdc_lake_applied_changes_total {label}"] == 3
    assert said[f"cdc_lake_applied_lag_seconds {label}"] == 0
    assert f"cdc_lake_last_success_timestamp_seconds apply {label}" in said


@drawn
def test_a_stop_rule_ends_before_its_transaction_and_everything_before_is_applied(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    lake = Lake(lake_root, spark, "stops", fmt, [{"rule": "not_null", "column": "amount", "on_fail": "stop"}])
    lake.land(insert("1", "1"))
    before = lake.land(insert("2", "2"))
    lake.land(insert("3", "3"), insert("4", None))
    lake.land(insert("5", "5"))
    with pytest.raises(RuleStopped):
        lake.advance()
    assert lake.rows() == [row(1, 1), row(2, 2)]
    assert lake.marker().position == before
    with pytest.raises(RuleStopped):
        lake.advance()
    assert lake.rows() == [row(1, 1), row(2, 2)]


@FORMATS
def test_a_replayed_span_changes_nothing(spark: Any, lake_root: Path, fmt: str) -> None:
    lake = Lake(lake_root, spark, "replays", fmt)
    lake.land(insert("1", "1"), insert("2", "2"))
    lake.advance()
    before = lake.marker()
    ControlTables(lake.project.control).delete("cuts", pc.field("position") > 0)
    lake.advance()
    assert lake.marker() == before
    assert lake.rows() == [row(1, 1), row(2, 2)]


@drawn
def test_a_column_that_changes_its_type_makes_the_table_wait(spark: Any, lake_root: Path, fmt: str) -> None:
    lake = Lake(lake_root, spark, "types", fmt)
    lake.land(insert("1", "1"))
    lake.advance()
    other = table("public.t", id="int4", amount="text", body="text")
    lake.land(Insert(other, ("2", "two", "b")))
    with pytest.raises(DestructiveChange):
        lake.advance()
    assert lake.rows() == [row(1, 1)]
    assert TableName.parse("public.t") == lake.target().source


@drawn
def test_a_value_without_a_silver_value_is_held_with_its_text(spark: Any, lake_root: Path, fmt: str) -> None:
    dated = table("public.t", id="int4", day="date")
    lake = Lake(lake_root, spark, "misfits", fmt)
    lake.land(Insert(dated, ("1", "2026-01-01")), Insert(dated, ("2", "infinity")))
    lake.advance()
    assert [r["id"] for r in lake.rows(dated)] == [1]
    assert lake.quarantined() == [("failed", ["type_day"])]


def test_a_silver_table_that_is_gone_is_not_begun_again_empty(spark: Any, lake_root: Path) -> None:
    lake = Lake(lake_root, spark, "lost", "delta")
    lake.land(insert("1", "1"), insert("2", "2"))
    lake.advance()
    folder = lake.project.silver_path(lake.target())
    folder.rename(folder.with_name("away"))
    lake.land(insert("3", "3"))
    with pytest.raises(SilverLost):
        lake.advance()
    assert not folder.exists()
    folder.with_name("away").rename(folder)
    lake.advance()
    assert [r["id"] for r in lake.rows()] == [1, 2, 3]


@FORMATS
@pytest.mark.obeys("STA611", "LAK424")
def test_tables_of_the_snapshot_get_their_rows_and_empty_ones_are_there(spark: Any, lake_root: Path, fmt: str) -> None:
    name = f"copies_{fmt}"
    project = make_project(lake_root, name, silver={"defaults": {"format": fmt, "namespace": name}})
    bronze, control = DeltaBronze(project.bronze, durability="os"), ControlTables(project.control)
    empty = table("public.empty", id="int4", day="date")
    state = bronze.begin_stream("test", 100)
    rows = pa.array([["1", "10", None], ["2", None, "x"]], pa.list_(pa.string()))
    bronze.append_snapshot("initial-1", 0, T, rows, 0, 100)
    bronze.append_snapshot("initial-1", 1, empty, pa.array([], pa.list_(pa.string())), 2, 100)
    with pytest.raises(SnapshotIncomplete):
        apply(project, once=True, stop=threading.Event(), report=silent, spark=spark)
    with pytest.raises(SilverMissing):
        table_log(project, project.target(T.table)).read()
    copied = [{"relation": str(r.table), "layout": r.layout, "rows": n, "chunks": 1} for r, n in ((T, 2), (empty, 0))]
    control.record(SnapshotRow("initial-1", state.stream, 1, 100, json.dumps(copied), "complete", utc_now()))
    apply(project, once=True, stop=threading.Event(), report=silent, spark=spark)
    found = sorted(table_log(project, project.target(T.table)).read().to_pylist(), key=lambda r: r["id"])
    assert found == [row(1, 10, None), row(2, None, "x")]
    assert table_log(project, project.target(empty.table)).read().num_rows == 0
    assert table_log(project, project.target(T.table)).marker("test").position == 100


@either("iceberg")
def test_a_table_that_could_not_take_its_copy_takes_it_once_it_can(spark: Any, lake_root: Path, fmt: str) -> None:
    """It was begun without, by the first changes behind the copy."""
    name = f"copied_late_{fmt}"
    tables: list[dict[str, Any]] = [{"from": "public.t", "keys": ["nothing"]}]
    project = make_project(lake_root, name, silver={"defaults": {"namespace": name, "format": fmt}, "tables": tables})
    bronze, control = DeltaBronze(project.bronze, durability="os"), ControlTables(project.control)
    state = bronze.begin_stream("test", 100)
    rows = pa.array([["1", "10", None], ["2", None, "x"]], pa.list_(pa.string()))
    bronze.append_snapshot("initial-1", 0, T, rows, 0, 100)
    copied = [{"relation": str(T.table), "layout": T.layout, "rows": 2, "chunks": 1}]
    control.record(SnapshotRow("initial-1", state.stream, 1, 100, json.dumps(copied), "complete", utc_now()))
    bronze.append([raw_transaction(Transaction(boundaries(110), (insert("3", "3"),)))])
    with pytest.raises(NoKey):
        apply(project, once=True, stop=threading.Event(), report=silent, spark=spark)
    mended = make_project(lake_root, name, silver={"defaults": {"namespace": name, "format": fmt}})
    apply(mended, once=True, stop=threading.Event(), report=silent, spark=spark)
    found = sorted(table_log(mended, mended.target(T.table)).read().to_pylist(), key=lambda r: r["id"])
    assert found == [row(1, 10, None), row(2, None, "x"), row(3, 3)]
    last = control.last_cut("test")
    assert last is not None
    assert json.loads(last.tables)["public.t"]["state"] == "active"


@either("iceberg")
def test_a_value_that_does_not_fit_stops_the_run_before_its_transaction_until_the_pipeline_lets_it_be_held(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    priced = table("public.t", id="int4", price="numeric")

    def prices(**given: str | None) -> list[Insert]:
        return [Insert(priced, (name[1:], price)) for name, price in given.items()]

    policy = {"numeric": "decimal(5,2)", "misfit": "stop"}
    observe = {"textfile": f"misfit_stops_{fmt}.prom"}
    lake = Lake(lake_root, spark, "misfit_stops", fmt, table={"types": policy}, observe=observe)
    label = lake.project.name
    first = lake.land(*prices(_1="1.50", _2="2"))
    odd = lake.land(*prices(_3="3"), Update(priced, ("1", "123.456")))
    lake.land(*prices(_4="4"))
    for _ in range(2):
        with pytest.raises(RuleStopped, match=rf"`type_price` .* at {format_stream_position('test', odd)} ") as stopped:
            lake.apply()
        assert (stopped.value.code, stopped.value.exit_code) == ("QUA501", 5)
        assert ([r["id"] for r in lake.rows()], lake.marker().position, lake.quarantined()) == ([1, 2], first, [])
        said = lake.shown()
        assert said[f"cdc_lake_errors_total QUA501 apply {label}"] == 1
        assert f"cdc_lake_last_success_timestamp_seconds apply {label}" not in said
    given = {"from": "public.t", "types": {**policy, "misfit": "quarantine"}}
    silver = {"defaults": {"namespace": label, "format": fmt}, "tables": [given]}
    lake.project = make_project(lake_root, lake.project.name, silver=silver, snapshot={"mode": "none"}, observe=observe)
    lake.apply()
    said = lake.shown()
    assert said[f"cdc_lake_quarantined_rows_total {label} {label}.t type_price"] == 1
    assert said[f"cdc_lake_rule_failures_total {label} {label}.t type_price"] == 1
    assert f"cdc_lake_last_success_timestamp_seconds apply {label}" in said
    assert [(r["id"], str(r["price"])) for r in lake.rows()] == [(1, "1.50"), (2, "2.00"), (3, "3.00"), (4, "4.00")]
    assert lake.quarantined() == [("failed", ["type_price"])]
