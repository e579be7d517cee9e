"""Tables that come, go, and are copied again at random moments, against a dictionary: no server, no Spark.

A dictionary stands for silver: it walks to the top of bronze in spans, follows what `ResyncSwapper` says is followed, and
begins again with a copy where one comes into force, by the parts of a rebuild. At every step each table that it lists
is what the source had there. `CDC_LAKE_BUDGET` n takes 3 n histories, 1 takes one.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.delta_table import DeltaBronzeTable
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.writer import BesideBronze, DeltaBronze
from cdc_lake.connectors.table_sync import changes_of, newcomers
from cdc_lake.control.snapshots import (
    COMPLETE,
    CopiedTable,
    TableTimeline,
    copy_name,
    courses,
    record_left,
    record_recopied,
)
from cdc_lake.control.streams import record_copy
from cdc_lake.errors import PositionUnavailable
from cdc_lake.model.change import Transaction
from cdc_lake.model.position import Span
from cdc_lake.model.relation import Relation, ReplicaIdentity, TableName
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.resync_swap import ResyncSwapper
from cdc_lake.runtime.apply.span_planning import rebuild_plan
from cdc_lake.tables.control_tables import control_tables
from cdc_lake.tables.delta_storage import LocalDeltaStorage
from cdc_lake_testing.histories import History
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from cdc_lake_testing.oracle import Oracle
from tests.bronze_replay import change_of
from tests.pipeline_file import make_project
from tests.seeds import seeds

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
HISTORIES = 1 if BUDGET == 1 else 3 * BUDGET
TABLES = [
    table("public.plain", id="int4", amount="int4", body="text"),
    table("public.whole", key=["a", "b"], identity=ReplicaIdentity.FULL, a="int4", b="text", amount="int4"),
    table("public.third", id="int4", amount="int4"),
]
RELATIONS = {relation.table: relation for relation in TABLES}
Tables = dict[TableName, dict[Any, Any]]


class World:
    """A source, what its stream carries, and what `source.tables` chooses."""

    def __init__(self, root: Path, dice: random.Random) -> None:
        kinds = [{"from": str(name), "kind": dice.choice(("current", "history"))} for name in RELATIONS]
        self.project = make_project(root, silver={"tables": kinds})
        self.dice = dice
        self.control = control_tables(self.project, "os")
        self.bronze = DeltaBronze(self.project.bronze, durability="os")
        self.beside = BesideBronze(DeltaBronzeTable(LocalDeltaStorage(self.project.bronze, durable=False)))
        self.history = History(dice.getrandbits(32), TABLES, truncates=20)
        self.oracle = Oracle()
        self.position, self.chunk, self.waiting = 1000, 0, list[TableName]()
        self.copies: set[int] = set()
        self.backlog: list[Transaction] = []
        self.states: dict[int, Tables] = {}
        self.published = dice.random() < 0.5
        self.carried = self.chosen = set(dice.sample(list(RELATIONS), 2))
        self.lost: dict[TableName, int] = {}
        self.unsure: list[tuple[TableName, int, int]] = []
        self._happens(5)
        self.copies.add(self.position)
        state = self.bronze.begin_stream("test", self.position)
        record_copy(self.control, state, COMPLETE, [self._copied(one, "initial-1") for one in sorted(self.chosen)])

    @property
    def state(self) -> StreamCheckpoint:
        found = self.bronze.state()
        assert found is not None
        return found

    def start(self) -> None:
        """A receiver starts: it looks what came and went, and dies at any step."""
        state, rows = self.state, self.control.snapshots()
        known = courses(rows, state.stream)
        new = {one for one in self.chosen & self.carried if str(one) not in known}
        came = newcomers(new, bronze_reader(self.project).layouts().values())
        found = changes_of(self.chosen, self.carried, RELATIONS, known, came, published=self.published)
        leaves = [*found.gone, *found.lacking, *found.waiting]
        if leaves := [one for one in leaves if not known.get(str(one), TableTimeline()).waits]:
            record_left(self.control, state, leaves)
        if self.dice.random() < 0.2:
            return
        self.carried = set(self.chosen)
        self.waiting = [*found.lacking, *found.waiting]

    def copy(self, tables: Iterable[TableName], *, breaks_off: bool = False) -> None:
        """Tables are copied, beside the stream or where it ends just now; one that breaks off is in no record."""
        tables = [one for one in tables if one in self.carried]
        if not tables:
            return
        if self.dice.random() < 0.7 or self.position in self.copies:
            self._pass(5)  # no two copies of a stream stand at one position
        self.copies.add(self.position)
        name = copy_name(self.state, self.position)
        copied = [self._copied(one, name) for one in tables]
        if breaks_off:
            return
        record_recopied(self.control, self.state, name, copied)
        for one in tables:
            if (since := self.lost.pop(one, None)) is not None:
                self.unsure.append((one, since, self.position))
        self.waiting = [one for one in self.waiting if one not in tables]

    def happen(self, count: int) -> None:
        """Transactions end, and no receiver has read them yet."""
        self.backlog += self._happens(count)

    def land(self) -> None:
        """What the stream carries of the transactions that ended lands."""
        batch = []
        for whole in self.backlog:
            at = whole.bounds.position
            kept = [one for one in whole.changes if self._arrives(one.relation.table, at)]  # type: ignore[union-attr]
            if kept:
                batch.append(raw_transaction(Transaction(whole.bounds, tuple(kept), whole.lsns[: len(kept)])))
        self.backlog.clear()
        if batch:
            self.bronze.append(batch)
        self.bronze.advance(self.position, self.position)

    def lose(self, name: TableName) -> None:
        """From now on the stream lacks a table's changes, and nobody is told."""
        self.lost.setdefault(name, self.position)

    def is_sure(self, name: TableName, position: int) -> bool:
        """Whether bronze has all that happened to a table up to a position."""
        spans = [*self.unsure, *((one, since, self.position + 1) for one, since in self.lost.items())]
        return not any(one == name and since < position < until for one, since, until in spans)

    def _arrives(self, name: TableName, position: int) -> bool:
        """What is lost is so up to the copy that ends it, with the transaction that this stands at."""
        ends = {until for one, _, until in self.unsure if one == name}
        return name in self.carried and position not in ends and self.is_sure(name, position)

    def _happens(self, count: int) -> list[Transaction]:
        out = []
        for _ in range(count):
            self._pass(10)
            out.append(self.history.transaction(self.position))
            self.oracle.run(out[-1:])
            self._note()
        return out

    def _pass(self, steps: int) -> None:
        self.position += steps
        self._note()

    def _note(self) -> None:
        self.states[self.position] = {name: dict(self.oracle.tables.get(name, {})) for name in RELATIONS}

    def _copied(self, name: TableName, snapshot: str) -> CopiedTable:
        relation, rows = RELATIONS[name], list(self.oracle.tables.get(name, {}).values())
        values = pa.array([[row[column] for column in relation.names] for row in rows], pa.list_(pa.string()))
        self.chunk += 1
        self.beside.append_snapshot(snapshot, self.chunk, relation, values, 1000 * self.chunk, self.position)
        return CopiedTable(name, relation.layout, len(rows), 1, self.position)


class Silver:
    """The dictionary: tables with the copy that their content began with."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.position = world.position
        self.content = Oracle()
        self.copied: dict[TableName, int | None] = dict.fromkeys(sorted(world.chosen))
        self.renewed = self.left = 0
        self.renewing = ResyncSwapper(world.project, world.control, None, silent)  # type: ignore[arg-type]
        for name in self.copied:
            self.content.tables[name] = self._built(name)

    def walk(self) -> None:
        """To the top of bronze, each step checked."""
        world, state = self.world, self.world.state
        self.renewing.refresh(state)
        known = courses(world.control.snapshots(), state.stream)
        self._step(known)
        while self.position < state.upto:
            ends = [at for at in world.states if self.position < at <= state.upto]
            mark = self.renewing.next_boundary(self.position, state.upto)
            upto = world.dice.choice([at for at in ends if mark is None or at <= mark])
            skipped = self.renewing.unfollowed_tables({str(one) for one in self.copied}, self.position)
            for name in self.copied:
                if str(name) not in skipped:
                    self._run(self.content, name, Span(state.epoch, self.position, upto))
            self.position = upto
            self._step(known)

    def _step(self, known: dict[str, TableTimeline]) -> None:
        """What `Renewing.step` does, by dictionaries."""
        courses_of = {TableName.parse(name): course for name, course in known.items()}
        for name, course in sorted(courses_of.items()):
            if name in self.copied and not course.follows(self.position):
                del self.copied[name]
                self.left += 1
            if (copy := course.renewal(self.position, self.copied.get(name))) is not None:
                self.content.tables[name] = self._built(name)
                self.copied[name] = copy.position
                self.renewed += 1
        listed = {name for name, course in courses_of.items() if course.follows(self.position)}
        begun = {name for name in listed if 0 <= courses_of[name].stretch_at(self.position).begins <= self.position}
        assert begun == set(self.copied)
        for name in self.copied:
            if self.world.is_sure(name, self.position):
                assert self._rows(self.content, name) == self._there(name), f"{name} at {self.position}"
        for name, course in courses_of.items():
            if not course.follows(self.position) and course.stretch_at(self.position).left != self.position:
                with pytest.raises(PositionUnavailable):
                    self._plan(name)

    def _built(self, name: TableName) -> dict[Any, Any]:
        """A table's content by the parts of a rebuild."""
        plan, oracle, epoch = self._plan(name), Oracle(), self.world.state.epoch
        if plan.layout is not None:
            self._run(oracle, name, Span(epoch, plan.begins - 1, plan.begins), copied=True)
        for part in plan.parts:
            if part.copy is not None:
                oracle.tables[name] = {}
            self._run(oracle, name, part.span, copied=part.copy is not None)
        return oracle.tables.get(name, {})

    def _plan(self, name: TableName) -> Any:
        project = self.world.project
        return rebuild_plan(project, bronze_reader(project), self.world.state, name, self.position)

    def _run(self, oracle: Oracle, name: TableName, span: Span, *, copied: bool = False) -> None:
        reader = bronze_reader(self.world.project)
        layouts: dict[int, Relation] = reader.layouts([name])
        wanted = ("S",) if copied else ("I", "U", "D", "T")
        rows = [one for one in reader.history_rows(name).to_pylist() if one["op"] in wanted and one["position"] in span]
        for position, some in itertools.groupby(rows, key=lambda one: one["position"]):
            changes = tuple(change_of(one, layouts[one["layout"]]) for one in some)
            oracle.apply(Transaction(boundaries(position), changes))

    def _rows(self, oracle: Oracle, name: TableName) -> list[str]:
        return sorted(str(sorted(row.items())) for row in oracle.tables.get(name, {}).values())

    def _there(self, name: TableName) -> list[str]:
        return sorted(str(sorted(row.items())) for row in self.world.states[self.position][name].values())


@pytest.mark.parametrize("seed", seeds(HISTORIES))
def test_what_is_listed_at_any_position_is_what_the_source_had_there(tmp_path: Path, seed: int) -> None:
    walked(tmp_path, seed)


def test_in_a_known_history_copies_come_into_force_and_tables_are_left(tmp_path: Path) -> None:
    silver = walked(tmp_path, 1)
    assert silver.renewed > 1
    assert silver.left > 0


def walked(root: Path, seed: int) -> Silver:
    """Silver at the end of a history; every step of it was checked."""
    print(f"seed {seed}")
    dice = random.Random(seed)
    world = World(root, dice)
    silver = Silver(world)
    for _ in range(8):
        for _ in range(dice.randint(1, 3)):
            happens(world, silver)
        for most in (4, 3):
            world.happen(dice.randint(0, most))
            if dice.random() < 0.4:
                world.land()
            world.copy(world.waiting, breaks_off=dice.random() < 0.3)
    world.start()
    world.happen(1)
    world.land()
    silver.walk()
    return silver


def happens(world: World, silver: Silver) -> None:
    """One thing that somebody does, or that befalls."""
    dice = world.dice
    match dice.choice(("choose", "choose", "publish", "copy", "copy", "lose", "walk")):
        case "choose":
            world.chosen = set(dice.sample(list(RELATIONS), dice.randint(1, 3)))
            world.start()
        case "publish" if world.published:
            world.carried = world.carried | {dice.choice(list(RELATIONS))}
            world.start()
        case "lose":
            world.lose(dice.choice(sorted(world.carried)))
        case "copy":
            world.copy(dice.sample(sorted(world.carried), 1), breaks_off=dice.random() < 0.3)
        case _:
            silver.walk()
