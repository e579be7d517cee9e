"""Snapshots: which rows of bronze are a table's copy, and how quickly a copy goes."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pyarrow as pa

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.row_history import replay_rows
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.model import Snapshot
from cdc_lake.connectors.snapshot_copy import RateLimiter, chunk_rows
from cdc_lake.control.snapshots import (
    COMPLETE,
    STARTED,
    CopiedTable,
    copies_in_force,
    finished_tables,
    in_whole_copy,
    tables_json,
    whole_copies,
)
from cdc_lake.control.streams import record_copy
from cdc_lake.model.change import Change, Delete, Insert, OldKind, Transaction, Update
from cdc_lake.model.relation import TableName
from cdc_lake.runtime.apply.span_planning import rebuild_plan
from cdc_lake.tables.control_schema import SnapshotRow, utc_now
from cdc_lake.tables.control_tables import control_tables
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.pipeline_file import make_project

A, B = TableName("public", "a"), TableName("Odd.", "b\\")


T = table("public.t", id="int4", amount="int4")


def row(state: str, *tables: CopiedTable, name: str = "initial-1", epoch: int = 1) -> SnapshotRow:
    return SnapshotRow(name, f"s{epoch}", epoch, 100, tables_json(tables), state, utc_now())


def copied(table: TableName, position: int) -> CopiedTable:
    return CopiedTable(table, 7, 3, 1, position)


def test_what_is_told_reads_back_and_older_versions_have_one_position() -> None:
    tables = [copied(A, 100), copied(B, 150)]
    assert finished_tables([row(STARTED, *tables)], "s1", 1) == tables
    old = json.dumps([{"relation": "public.a", "layout": 7, "rows": 3, "chunks": 1}])
    assert finished_tables([SnapshotRow("initial-1", "s1", 1, 100, old, STARTED, utc_now())], "s1", 1) == [
        copied(A, 100)
    ]


def test_nothing_is_in_force_before_the_copy_is_whole_and_of_two_copies_the_newest_is() -> None:
    begun = row(STARTED, copied(A, 100))
    assert copies_in_force([begun], "s1", 1000) is None
    whole = row(COMPLETE, copied(A, 100), copied(B, 150))
    assert copies_in_force([whole], "s2", 1000) is None
    assert copies_in_force([whole], "s1", 1000) == {"public.a": copied(A, 100), str(B): copied(B, 150)}
    again = row(COMPLETE, copied(A, 200), name="again")
    assert copies_in_force([whole, again], "s1", 1000) == {"public.a": copied(A, 200), str(B): copied(B, 150)}


def test_rows_of_a_copy_that_broke_off_are_told_apart() -> None:
    whole = whole_copies([row(STARTED, copied(A, 90), epoch=2), row(COMPLETE, copied(A, 150))], A)
    assert whole == {1: frozenset({150})}
    assert in_whole_copy(whole, 1, 150, 0, "S")
    assert not in_whole_copy(whole, 1, 100, 0, "S")
    assert in_whole_copy(whole, 1, 100, -5, "S"), "a row that was read again is of no copy"
    assert in_whole_copy(whole, 1, 100, 1, "U")
    assert in_whole_copy(whole, 2, 90, 0, "S"), "nobody can say yet"


def test_a_table_is_folded_and_rebuilt_from_its_own_copy_on(tmp_path: Path) -> None:
    """What is in the copy already is not applied to it, also where a transaction ends right at its position."""
    project = make_project(tmp_path)
    bronze = DeltaBronze(project.bronze, durability="os")
    state = bronze.begin_stream("s1", 10)

    def land(position: int, *changes: Change) -> None:
        bronze.append([raw_transaction(Transaction(boundaries(position), changes))])

    def copy(name: str, position: int, *rows: list[str]) -> None:
        bronze.append_snapshot(name, 0, T, pa.array(list(rows), pa.list_(pa.string())), 0, position)

    copy("initial-1", 10, ["1", "1"])  # and then it broke off
    land(20, Update(T, ("1", "2")), Insert(T, ("2", "2")))
    land(30, Delete(T, ("1", None), OldKind.KEY))
    copy("initial-1-30", 30, ["2", "2"])
    land(40, Update(T, ("2", "4")))
    record_copy(control_tables(project), state, COMPLETE, [CopiedTable(T.table, T.layout, 1, 1, 30)])
    reader = bronze_reader(project)
    assert replay_rows(reader, 1, {"public.t": ("id",)}, {"public.t": 30}) == {"public.t": [{"id": "2", "amount": "4"}]}
    now_there = reader.state()
    assert now_there is not None
    plan = rebuild_plan(project, reader, now_there, T.table, 40)
    assert (plan.begins, plan.layout, [part.span.after for part in plan.parts]) == (30, T.layout, [30])


class Clock(threading.Event):
    """Time that passes only while somebody waits."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now += timeout
        return False


def test_whichever_limit_is_reached_first_holds_it_back() -> None:
    clock = Clock()
    pace = RateLimiter(rows=100, size=1_000, clock=clock)
    pace.took(50, 200, clock)
    assert round(clock.now, 6) == 100.5
    pace.took(50, 3_000, clock)
    assert round(clock.now, 6) == 103.5


def test_time_that_passed_otherwise_counts_only_once() -> None:
    clock = Clock()
    pace = RateLimiter(rows=100, clock=clock)
    pace.took(100, 0, clock)
    clock.now += 60
    pace.took(100, 0, clock)
    assert round(clock.now, 6) == 162


def test_without_limits_nothing_waits_and_stopping_ends_the_wait() -> None:
    clock, stop = Clock(), threading.Event()
    RateLimiter(clock=clock).took(1_000_000, 1 << 30, clock)
    assert clock.now == 100.0
    stop.set()
    RateLimiter(rows=1).took(1_000, 0, stop)


def test_chunks_of_a_copy_that_is_held_back_are_of_a_second() -> None:
    assert chunk_rows(Snapshot()) == 100_000
    assert chunk_rows(Snapshot(max_rows_per_second=500)) == 500
    assert chunk_rows(Snapshot(chunk_rows=10, max_rows_per_second=500)) == 10
