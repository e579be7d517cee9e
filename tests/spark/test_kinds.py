"""The kinds of silver tables, on Delta and on Iceberg: soft deletes, history, append, lineage."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lake.bronze.delta_table import DeltaBronzeTable
from cdc_lake.bronze.writer import BesideBronze, DeltaBronze
from cdc_lake.control.snapshots import CopiedTable, copy_name, record_recopied
from cdc_lake.errors import BaseRowMissing, ColumnNotTracked, KeylessDelete, KindChanged, NameTaken
from cdc_lake.model.change import UNCHANGED, Delete, Insert, OldKind, Transaction, Truncate, Update
from cdc_lake.model.relation import ReplicaIdentity
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.tables.control_schema import SnapshotRow, utc_now
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.delta_storage import LocalDeltaStorage
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.pipeline_file import make_project

from .formats import FORMATS, drawn, either
from .test_apply_cases import Lake, T, insert

pytestmark = pytest.mark.spark


def lake_of(root: Path, spark: Any, name: str, fmt: str, **defaults: Any) -> Lake:
    return Lake(root, spark, name, fmt, defaults=defaults)


def rows_of(lake: Lake, *columns: str) -> list[tuple[Any, ...]]:
    found = [tuple(row[name] for name in columns) for row in table_log(lake.project, lake.target()).read().to_pylist()]
    return sorted(found, key=lambda row: [(value is None, value) for value in row])


def update(id_: str, amount: str | None, body: Any = "b") -> Update:
    return Update(T, (id_, amount, body))


def delete(id_: str) -> Delete:
    return Delete(T, (id_, None, None), OldKind.KEY)


def move(old: str, new: str, amount: str) -> Update:
    return Update(T, (new, amount, UNCHANGED), (old, None, None), OldKind.KEY)


@FORMATS
def test_soft_deletes_keep_the_row_and_a_key_that_comes_back_is_a_row_again(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    lake = lake_of(lake_root, spark, "soft", fmt, deletes="soft", lineage=True)
    lake.land(insert("1", "1"), insert("2", "2"), insert("3", "3"))
    lake.advance()
    gone = lake.land(delete("1"), move("2", "20", "5"))
    lake.advance()
    columns = ("id", "amount", "body", "_is_deleted", "_lsn")
    assert [row[:4] for row in rows_of(lake, *columns)] == [
        (1, 1, "b", True), (2, 2, "b", True), (3, 3, "b", False), (20, 5, "b", False),
    ]  # fmt: skip
    assert {row[4] <= gone for row in rows_of(lake, *columns)} == {True}
    lake.land(insert("1", "7", "new"), Truncate(T), insert("3", "8"))
    lake.advance()
    assert rows_of(lake, *columns[:4]) == [
        (1, 1, "b", True), (2, 2, "b", True), (3, 8, "b", False), (20, 5, "b", True),
    ]  # fmt: skip


@either("iceberg")
def test_rows_that_came_and_went_in_one_span_are_deleted_rows_as_in_many(spark: Any, lake_root: Path, fmt: str) -> None:
    lake = lake_of(lake_root, spark, "soft_span", fmt, deletes="soft", lineage=True)
    lake.land(insert("1", "1"), insert("2", "2"), insert("3", "3"), delete("3"))
    lake.land(update("1", "5"), insert("4", "4"))
    one = lake.land(delete("1"), insert("1", "6"), delete("1"))
    two = lake.land(update("4", "9"), Truncate(T), insert("5", "5"), delete("5"))
    lake.land(Truncate(T))
    lake.advance()
    assert rows_of(lake, "id", "amount", "_is_deleted", "_xid", "_ordinal") == [
        (1, 5, True, one, 1), (2, 2, True, two, 2), (4, 4, True, two, 2),
    ]  # fmt: skip


@FORMATS
def test_history_has_a_version_for_each_transaction_and_says_from_when_until_when(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    lake = lake_of(lake_root, spark, "history", fmt, kind="history")
    one = lake.land(insert("1", "1", "large"), insert("2", "2"))
    lake.advance()
    two = lake.land(update("1", "2", UNCHANGED), update("1", "3", UNCHANGED))
    three = lake.land(move("1", "10", "4"))
    lake.advance()
    four = lake.land(delete("2"), insert("2", "9"))
    five = lake.land(Truncate(T), insert("2", "11"))
    lake.advance()
    assert rows_of(lake, "id", "amount", "body", "valid_from", "valid_to", "is_current") == sorted([
        (1, 1, "large", one, two, False),
        (1, 3, "large", two, three, False),
        (10, 4, "large", three, five, False),
        (2, 2, "b", one, four, False),
        (2, 9, "b", four, five, False),
        (2, 11, "b", five, None, True),
    ], key=lambda row: (row[0], row[0], row[1]))  # fmt: skip
    times = table_log(lake.project, lake.target()).read(
        columns=["valid_from_epoch", "valid_from_ts", "valid_to_ts", "is_current"]
    )
    assert set(times["valid_from_epoch"].to_pylist()) == {1}
    assert times["valid_from_ts"].null_count == 0
    assert times["valid_to_ts"].null_count == 1


@FORMATS
def test_append_has_every_change_at_its_place_and_needs_no_key(spark: Any, lake_root: Path, fmt: str) -> None:
    lake = lake_of(lake_root, spark, "appends", fmt, kind="append")
    one = lake.land(insert("1", "1"), insert("1", "1"))
    two = lake.land(update("1", "2", UNCHANGED), delete("1"), Truncate(T))
    lake.advance()
    assert rows_of(lake, "_position", "_ordinal", "_op", "id", "amount", "body") == [
        (one, 1, "I", 1, 1, "b"),
        (one, 2, "I", 1, 1, "b"),
        (two, 1, "U", 1, 2, None),
        (two, 2, "D", 1, None, None),
        (two, 3, "T", None, None, None),
    ]


@either("delta")
def test_append_leaves_out_what_a_rule_holds_and_nothing_waits_behind_it(spark: Any, lake_root: Path, fmt: str) -> None:
    rule = {"rule": "between", "column": "amount", "max": 9, "on_fail": "quarantine"}
    lake = Lake(lake_root, spark, "appends_held", fmt, [rule], table={"kind": "append"})
    lake.land(insert("1", "1"), update("1", "10"), update("1", "2"))
    lake.advance()
    assert rows_of(lake, "_ordinal", "amount") == [(1, 1), (3, 2)]
    assert lake.quarantined() == [("failed", ["between_amount"])]


def test_a_source_column_with_a_name_of_our_own_stops_the_table(spark: Any, lake_root: Path) -> None:
    lake = lake_of(lake_root, spark, "taken", "delta", kind="history")
    odd = table("public.t", id="int4", is_current="bool")
    lake.land(Insert(odd, ("1", "t")))
    with pytest.raises(NameTaken, match="is_current"):
        lake.advance()


@drawn
def test_a_table_stays_of_the_kind_it_was_made_as(spark: Any, lake_root: Path, fmt: str) -> None:
    lake = lake_of(lake_root, spark, "made", fmt)
    lake.land(insert("1", "1"))
    lake.advance()
    made, silver = lake.project, lake.project.pipeline.silver
    other = silver.model_copy(update={"defaults": silver.defaults.model_copy(update={"kind": "history"})})
    lake.project = replace(made, pipeline=made.pipeline.model_copy(update={"silver": other}))
    lake.land(insert("2", "2"))
    with pytest.raises(KindChanged, match=r"kind: current.*now is `kind: history"):
        lake.advance()
    lake.project = made
    lake.advance()
    assert rows_of(lake, "id") == [(1,), (2,)]


@either("iceberg")
def test_lineage_says_which_change_made_a_row(spark: Any, lake_root: Path, fmt: str) -> None:
    lake = lake_of(lake_root, spark, "lineage", fmt, lineage=True)
    lake.land(insert("1", "1"), insert("2", "2"))
    lake.land(update("1", "3"))
    lake.advance()
    found = rows_of(lake, "id", "_ordinal", "_lsn", "_xid", "_commit_ts")
    assert [row[:2] for row in found] == [(1, 1), (2, 2)]
    assert found[0][2] > found[1][2], "the update came later"
    assert all(value is not None for row in found for value in row)


@drawn
@pytest.mark.parametrize("defaults", [{"kind": "history"}, {"kind": "append"}, {"deletes": "soft"}], ids=str)
def test_the_rows_of_an_initial_copy_are_where_each_kind_begins(
    spark: Any, lake_root: Path, fmt: str, defaults: dict[str, Any]
) -> None:
    name = f"copied_{'_'.join(defaults.values())}_{fmt}"
    silver = {"defaults": {"format": fmt, "namespace": name, **defaults}}
    project = make_project(lake_root, name, silver=silver)
    bronze, control = DeltaBronze(project.bronze, durability="os"), ControlTables(project.control)
    state = bronze.begin_stream("test", 100)
    bronze.append_snapshot("initial-1", 0, T, pa.array([["1", "10", "a"], ["2", None, None]]), 0, 100)
    copied = [{"relation": "public.t", "layout": T.layout, "rows": 2, "chunks": 1}]
    control.record(SnapshotRow("initial-1", state.stream, 1, 100, json.dumps(copied), "complete", utc_now()))
    bronze.append([raw_transaction(Transaction(boundaries(110), (delete("1"),)))])
    with SpanLoop(project, spark, silent) as advance:
        advance.run(None, threading.Event())
        assert not advance.totals.failed
    rows = table_log(project, project.target(T.table)).read().to_pylist()
    own = {"history": ("valid_from", "valid_to"), "append": ("_op", "_position"), "soft": ("_is_deleted",)}
    found = sorted(tuple(row[n] for n in ("id", *own[next(iter(defaults.values()))])) for row in rows)
    assert (
        found
        == {
            "history": [(1, 100, 110), (2, 100, None)],
            "append": [(1, "D", 110), (1, "S", 100), (2, "S", 100)],
            "soft": [(1, True), (2, False)],
        }[next(iter(defaults.values()))]
    )


@FORMATS
def test_rows_without_a_key_come_and_go_one_by_one(spark: Any, lake_root: Path, fmt: str) -> None:
    bare = table("public.t", key=[], identity=ReplicaIdentity.FULL, position="int4", ordinal="float8", body="text")
    lake = lake_of(lake_root, spark, "bare", fmt, lineage=True)
    one, two = ("1", "NaN", None), ("1", "0.5", "large")
    lake.land(*(Insert(bare, row) for row in (one, one, one, two)))
    lake.advance()
    lake.land(Delete(bare, one, OldKind.FULL), Update(bare, ("2", "0.5", UNCHANGED), two, OldKind.FULL))
    lake.land(Update(bare, two, one, OldKind.FULL), Insert(bare, two))
    lake.advance()
    found = table_log(lake.project, lake.target()).read().to_pylist()
    rows = sorted((r["position"], str(r["ordinal"]), r["body"], r["_copy"], r["_ordinal"]) for r in found)
    assert rows == [
        (1, "0.5", "large", 1, 1), (1, "0.5", "large", 2, 2), (1, "nan", None, 1, 1), (2, "0.5", "large", 1, 2),
    ]  # fmt: skip
    lake.land(Delete(bare, ("7", None, None), OldKind.FULL))
    with pytest.raises(BaseRowMissing):
        lake.advance()


@pytest.mark.obeys("STA644")
def test_a_change_of_rows_without_a_key_must_say_all_of_the_row_and_a_copy_mends_one_that_does_not(
    spark: Any, lake_root: Path
) -> None:
    bare = table("public.t", key=[], identity=ReplicaIdentity.FULL, id="int4", body="text")
    lake = lake_of(lake_root, spark, "half", "delta")
    lake.land(Insert(bare, ("1", "b")), Update(bare, ("2", "b")))
    with pytest.raises(KeylessDelete, match="does not contain all values") as refused:
        lake.advance()
    assert "then run `cdc-lake resync public.t`" in refused.value.remedy
    state, at = lake.bronze.state(), lake.position + 5
    assert state is not None
    beside = BesideBronze(DeltaBronzeTable(LocalDeltaStorage(lake.project.bronze, durable=False)))
    beside.append_snapshot(copy_name(state, at), 1, bare, pa.array([["2", "b"]]), 0, at)
    copy = CopiedTable(bare.table, bare.layout, 1, 1, at)
    record_recopied(ControlTables(lake.project.control), state, copy_name(state, at), [copy])
    lake.land(Insert(bare, ("3", "c")), Update(bare, ("4", "b"), ("2", "b"), OldKind.FULL))
    lake.advance()
    assert rows_of(lake, "id", "body") == [(3, "c"), (4, "b")]


@drawn
def test_one_row_may_have_null_in_its_key_and_a_second_one_is_held(spark: Any, lake_root: Path, fmt: str) -> None:
    odd = table("public.t", key=[], identity=ReplicaIdentity.FULL, code="int4", amount="int4")
    lake = Lake(lake_root, spark, "nulls", fmt, table={"keys": ["code"]})
    lake.land(Insert(odd, (None, "1")), Insert(odd, ("5", "5")))
    lake.advance()
    lake.land(Update(odd, (None, "2"), (None, "1"), OldKind.FULL), Insert(odd, (None, "3")), Insert(odd, ("6", "6")))
    lake.advance()
    assert rows_of(lake, "code", "amount") == [(5, 5), (6, 6), (None, 2)]
    assert lake.quarantined() == [("failed", ["key_taken"])]
    lake.land(Delete(odd, (None, "2"), OldKind.FULL), Truncate(odd), Insert(odd, (None, "4")))
    lake.land(Delete(odd, (None, "4"), OldKind.FULL))
    lake.advance()
    assert rows_of(lake, "code", "amount") == []


@drawn
@pytest.mark.parametrize("kind", ["current", "history"])
def test_an_update_of_a_row_that_is_not_there_stops_its_table_or_is_held(
    spark: Any, lake_root: Path, fmt: str, kind: str
) -> None:
    stops = lake_of(lake_root, spark, f"stops_{kind}", fmt, kind=kind)
    lake = lake_of(lake_root, spark, f"waits_{kind}", fmt, kind=kind, missing_row="hold")
    for one in (stops, lake):
        one.land(insert("1", "1", "large"))
        one.advance()
        one.land(update("1", "2", UNCHANGED), update("9", "9", UNCHANGED), update("8", "8", "all"), delete("7"))
    with pytest.raises(BaseRowMissing) as refused:
        stops.advance()
    assert ("`missing_row: hold`" in refused.value.remedy) == (kind == "history")
    assert ("`cdc-lake resync" in refused.value.remedy) == (kind == "current")
    lake.land(update("9", "10", "all"))
    lake.advance()
    rows = [row for row in table_log(lake.project, lake.target()).read().to_pylist() if row.get("is_current", True)]
    assert sorted((row["id"], row["amount"], row["body"]) for row in rows) == [(1, 2, "large"), (8, 8, "all")]
    assert lake.quarantined() == [("failed", ["missing_row"]), ("waiting", [])]


@drawn
def test_only_tracked_columns_make_versions(spark: Any, lake_root: Path, fmt: str) -> None:
    lake = Lake(lake_root, spark, "tracks", fmt, table={"kind": "history", "track": ["amount"]})
    one = lake.land(insert("1", "1", "a"), insert("2", "2", "b"))
    lake.advance()
    lake.land(update("1", "1", "c"))
    two = lake.land(update("1", "5", UNCHANGED))
    lake.land(update("1", "5", "d"), delete("2"), insert("2", "2", "e"))
    lake.advance()
    three = lake.land(update("2", "2", "f"), Truncate(T), insert("2", "2", "g"))
    lake.advance()
    assert rows_of(lake, "id", "amount", "body", "valid_from", "valid_to") == [
        (1, 1, "c", one, two), (1, 5, "d", two, three), (2, 2, "e", one, three), (2, 2, "g", three, None),
    ]  # fmt: skip


def test_a_column_that_is_not_there_cannot_be_tracked(spark: Any, lake_root: Path) -> None:
    lake = Lake(lake_root, spark, "nowhere", "delta", table={"kind": "history", "track": ["amuont"]})
    lake.land(insert("1", "1"))
    with pytest.raises(ColumnNotTracked, match="amuont"):
        lake.advance()


@drawn
def test_append_keeps_what_the_server_said_of_old_rows(spark: Any, lake_root: Path, fmt: str) -> None:
    lake = lake_of(lake_root, spark, "olds", fmt, kind="append", old_values=True)
    lake.land(insert("1", "1"), move("1", "2", "5"), update("2", "6"), delete("2"))
    lake.advance()
    assert rows_of(lake, "_ordinal", "_op", "id", "amount", "_old_id", "_old_amount") == [
        (1, "I", 1, 1, None, None), (2, "U", 2, 5, 1, None), (3, "U", 2, 6, None, None), (4, "D", 2, None, 2, None),
    ]  # fmt: skip
