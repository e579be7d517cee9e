"""Tables that are copied again, left and taken up again at random moments: silver is what the source has, each time.

The source goes on beside the stream: of a table that is left, or of which something is lost unseen, it has what bronze
does not. Appliers die on the way. `CDC_LAKE_BUDGET` n takes n histories.
"""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lake.bronze.delta_table import DeltaBronzeTable
from cdc_lake.bronze.writer import BesideBronze, DeltaBronze
from cdc_lake.control.cuts import ACTIVE, RESYNCING, Cut, last_cut
from cdc_lake.control.snapshots import COMPLETE, CopiedTable, copy_name, record_left, record_recopied
from cdc_lake.control.streams import record_copy
from cdc_lake.model.change import Insert, Transaction, Truncate
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.observability import failpoints as at
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply import resync_swap
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.tables.control_tables import control_tables
from cdc_lake.tables.delta_storage import LocalDeltaStorage
from cdc_lake_testing.beside import until
from cdc_lake_testing.broken_off import broken_off
from cdc_lake_testing.expected import CurrentRows, Expected, HistoryRows, of_table
from cdc_lake_testing.faults import assert_cuts_are_true
from cdc_lake_testing.histories import History
from cdc_lake_testing.messages import raw_transaction, transaction_at
from cdc_lake_testing.messages import table as layout_of
from cdc_lake_testing.oracle import Oracle, Versions
from tests.pipeline_file import make_project
from tests.seeds import seeds
from tests.silver_rows import silver_rows

from .formats import BESIDE
from .two_tables import PLAIN, WHOLE

pytestmark = pytest.mark.spark

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
KINDS: dict[str, dict[str, str]] = {
    "current": {},
    "soft": {"deletes": "soft"},
    "history": {"kind": "history"},
}
DEATHS = (at.PREPARED, at.REBUILT, at.REPLACED, at.BRANCH_WRITTEN, at.TABLE_MERGED, at.ALL_MERGED, at.CUT_WRITTEN)
GROUP = {"name": "both", "tables": [str(PLAIN.table), str(WHOLE.table)], "hold": "transaction"}
ALONE = layout_of("public.alone", id="int4", body="text")


class World:
    """A source, a stream of it, and silver of two tables; `grouped`: which are a group, with a third one beside."""

    def __init__(self, root: Path, spark: Any, seed: int, name: str = "", *, grouped: bool = False) -> None:
        self.dice = random.Random(seed)
        self.spark = spark
        name = name or f"renewed{seed}"
        formats = self.dice.sample(("delta", "iceberg"), 2)
        self.ways = {PLAIN.table: "current", WHOLE.table: self.dice.choice(("soft", "history"))}
        relations = {PLAIN.table: PLAIN, WHOLE.table: WHOLE}
        if grouped:
            self.ways[ALONE.table], relations[ALONE.table] = "current", ALONE
        tables = [
            {"from": str(table), "format": fmt, **KINDS[self.ways[table]]}
            for table, fmt in zip(self.ways, [*formats, BESIDE], strict=False)
        ]
        print(f"seed {seed}: {tables}")
        silver = {"defaults": {"namespace": name}, "tables": tables, "groups": [GROUP] * grouped}
        self.project = make_project(root, name, silver=silver, apply={"span_rows": 40})
        self.relations: dict[TableName, Relation] = relations
        self.history = History(seed, list(relations.values()), truncates=10)
        self.source = Oracle()
        self.control = control_tables(self.project)
        self.bronze = DeltaBronze(self.project.bronze, durability="os")
        self.beside = BesideBronze(DeltaBronzeTable(LocalDeltaStorage(self.project.bronze, durable=False)))
        self.position, self.chunk = 1000, 0
        self.copied_at = self.position
        self.carried = set(relations)
        self.lost: set[TableName] = set()
        self.script: dict[TableName, list[Transaction]] = {table: [] for table in relations}
        self.waiting: list[CopiedTable] = []
        for _ in range(10):
            self._happens()
        state = self.bronze.begin_stream("test", self.position)
        copied = [self._copied(table, "initial-1", self.position) for table in relations]
        record_copy(self.control, state, COMPLETE, copied)

    def land(self, count: int) -> None:
        """Transactions end at the source, and what the stream carries of them lands."""
        for _ in range(count):
            whole = self._happens()
            kept = tuple(one for one in whole.changes if one.relation.table in self.carried - self.lost)  # type: ignore[union-attr]
            if kept:
                self.bronze.append([raw_transaction(Transaction(whole.bounds, kept, whole.lsns[: len(kept)]))])
            for table in self.carried - self.lost:
                self.script[table].append(of_table(whole, table))

    def copy(self, table: TableName) -> None:
        """A copy of a table is in bronze, and not in force yet. No two stand at one position, as at a server."""
        at_end = self.dice.random() < 0.3 and self.position != self.copied_at
        self.position += 0 if at_end else 5
        self.copied_at = self.position
        self.waiting.append(self._copied(table, copy_name(self._state, self.position), self.position))
        self.carried.add(table)
        self.lost.discard(table)

    def record(self) -> None:
        """What is copied comes into force."""
        for one in self.waiting:
            record_recopied(self.control, self._state, copy_name(self._state, one.position), [one])
        self.waiting.clear()

    def leave(self, table: TableName) -> None:
        """The stream goes on without a table."""
        self.bronze.advance(self.position, self.position)
        record_left(self.control, self._state, [table])
        self.carried.discard(table)

    def apply(self, death: str = "") -> None:
        with broken_off(death) as reached, SpanLoop(self.project, self.spark, silent) as walk:
            walk.run(None, threading.Event())
            for error in walk.totals.failed.values():
                raise error
        if death and reached:
            print("died at", death)

    def check(self) -> None:
        """Everything is copied, landed and applied: silver is the source."""
        for table in sorted(set(self.relations) - self.carried | self.lost):
            self.copy(table)
        self.record()
        self.land(3)
        self.bronze.advance(self.position + 1, self.position + 1)
        self.apply()
        for table in self.relations:
            expected = self._expected(table)
            for one in self.script[table]:
                expected.run(one)
            found = silver_rows(self.project, self.project.target(table))
            columns = {column for row in expected.rows for column in row}
            mine = [{name: row[name] for name in columns & row.keys()} for row in found]
            assert sorted(map(_text, mine)) == sorted(map(_text, expected.rows)), f"{table} ({self.ways[table]})"
        assert self.states() == {str(table): ACTIVE for table in self.relations}
        assert_cuts_are_true(self.project)

    @property
    def cut(self) -> Cut:
        cut = last_cut(self.control, "test")
        assert cut is not None
        return cut

    def states(self) -> dict[str, str]:
        return {relation: table.state for relation, table in self.cut.tables.items()}

    def walked(self, walk: SpanLoop, stop: threading.Event) -> bool:
        """Walk to the top of bronze; whether every table is there."""
        walk.run(None, stop)
        return set(self.states().values()) == {ACTIVE}

    def _expected(self, table: TableName) -> Expected:
        if self.ways[table] == "history":
            return HistoryRows(table, Versions(Oracle(), {}))
        return CurrentRows(table, Oracle(), soft=self.ways[table] == "soft")

    @property
    def _state(self) -> Any:
        state = self.bronze.state()
        assert state is not None
        return state

    def _happens(self) -> Transaction:
        self.position += 10
        one = self.history.transaction(self.position)
        self.source.run([one])
        return one

    def _copied(self, table: TableName, name: str, position: int) -> CopiedTable:
        relation, rows = self.relations[table], list(self.source.tables.get(table, {}).values())
        values = pa.array([[row[column] for column in relation.names] for row in rows], pa.list_(pa.string()))
        self.chunk += 1
        self.beside.append_snapshot(name, self.chunk, relation, values, 1000 * self.chunk, position)
        inserts = [Insert(relation, tuple(row[column] for column in relation.names)) for row in rows]
        whole = (Truncate(relation), *inserts)
        self.script[table] = [one for one in self.script[table] if one.bounds.position < position]
        self.script[table].append(transaction_at(position, whole))
        if self.ways[table] == "current":
            del self.script[table][:-1]
        return CopiedTable(table, relation.layout, len(rows), 1, position)


def _text(row: dict[str, str | None]) -> str:
    return str(sorted(row.items()))


@pytest.mark.parametrize("seed", seeds(BUDGET))
def test_tables_copied_again_left_and_taken_up_are_what_the_source_has(spark: Any, lake_root: Path, seed: int) -> None:
    world = World(lake_root, spark, seed)
    dice, tables = world.dice, list(world.relations)
    world.land(5)
    world.apply()
    deaths = dice.sample(DEATHS, len(DEATHS) if BUDGET > 1 else 2)
    for turn in range(len(deaths)):
        table = dice.choice(tables)
        event = dice.choice(("copy", "copy", "leave", "lose"))
        if event == "leave" and table in world.carried and table not in world.lost:
            world.leave(table)
            world.land(dice.randint(1, 6))
            if dice.random() < 0.5:
                world.apply()
            world.copy(table)
        elif event == "lose" and table in world.carried:
            world.lost.add(table)
            world.land(dice.randint(1, 6))
            world.copy(table)
        else:
            world.copy(table)
        world.land(dice.randint(0, 6))
        if dice.random() < 0.5:
            world.apply()
        world.record()
        world.apply(deaths[turn])
    world.check()


@pytest.mark.parametrize("seed", seeds(1))
def test_the_others_flow_while_one_is_made_anew(spark: Any, lake_root: Path, seed: int) -> None:
    world, goes_on, stop = World(lake_root, spark, seed, "flowing"), threading.Event(), threading.Event()
    world.land(3)
    world.apply()
    world.copy(PLAIN.table)
    world.record()
    world.land(3)

    at.arm(at.REBUILT, goes_on.wait)
    try:
        with SpanLoop(world.project, spark, silent, waits=True) as walk:
            assert not world.walked(walk, stop)
            world.land(3)
            assert not world.walked(walk, stop)
            assert world.cut.position == world._state.upto
            assert world.states() == {str(PLAIN.table): RESYNCING, str(WHOLE.table): ACTIVE}
            goes_on.set()
            until(lambda: world.walked(walk, stop))
    finally:
        goes_on.set()
        at.arm("")
    world.check()


@pytest.mark.parametrize("seed", seeds(1))
def test_everything_waits_for_tables_of_a_group_but_not_beyond_a_stop(
    spark: Any, lake_root: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(lake_root, spark, seed, "asgroup", grouped=True)
    goes_on, stop = threading.Event(), threading.Event()
    world.land(3)
    world.apply()

    def copied_anew() -> None:
        for table in (PLAIN.table, WHOLE.table):
            world.copy(table)
        world.record()
        world.land(3)

    def asks_to_stop() -> None:
        stop.set()
        goes_on.wait()

    try:
        copied_anew()
        at.arm(at.REBUILT, asks_to_stop)
        with SpanLoop(world.project, spark, silent) as walk:
            walk.run(None, stop)
            assert world.cut.position < world._state.upto
            goes_on.set()
        stop.clear()
        with monkeypatch.context() as patched:  # as where cuts were lost, so that none can begin
            patched.setattr(resync_swap, "last_cut", lambda *_: None)
            world.apply()
        assert set(world.states().values()) == {ACTIVE}
        world.apply()
        world.copy(ALONE.table)
        world.record()
        world.land(3)
        goes_on.clear()
        at.arm(at.REBUILT, goes_on.wait)
        with SpanLoop(world.project, spark, silent, waits=True) as walk:
            assert not world.walked(walk, stop)
            copied_anew()
            goes_on.set()
            until(lambda: world.walked(walk, stop))
            assert walk.totals.failed == {}
    finally:
        goes_on.set()
        at.arm("")
    world.check()
