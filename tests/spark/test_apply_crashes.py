"""Apply broken off at every step between two that last, in this process: the next start ends at the oracle's state.

What readers may see at any time is looked at after each break: the last cut's versions hold the oracle's state at the
cut, whole. `CDC_LAKE_BUDGET` 10 takes every point with ten seeds; by default a few of them, by the seed that is printed.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.project import Project
from cdc_lake.lake.control import ControlTables
from cdc_lake.lake.marker import Marker, read_marker
from cdc_lake.lake.read import read_silver
from cdc_lake.lake.session import derive
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.model.transaction import Transaction
from cdc_lake.observe import failpoint as at
from cdc_lake.observe.progress import silent
from cdc_lake.pipeline.advance import Advance
from cdc_lake.pipeline.apply import apply
from cdc_lake.pipeline.cuts import last_cut
from cdc_lake.pipeline.maintain_silver import maintain_silver
from cdc_lake.testing.broken_off import BrokenOff, Failed, broken_off
from cdc_lake.testing.faults import assert_cuts_are_true, assert_nothing_is_held_twice
from cdc_lake.testing.histories import History, interleave, with_column
from cdc_lake.testing.messages import TYPE_OIDS, raw_transaction
from cdc_lake.testing.oracle import Oracle, Row
from tests.seeds import seeds
from tests.tally import tally

from .test_apply_cases import FORMATS
from .two_tables import PLAIN, WHOLE, breaks
from .two_tables import lake as make_lake

pytestmark = pytest.mark.spark

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
TABLES = (PLAIN.table, WHOLE.table)
TRIES = 4
"""Advances until a point came about: not every span has something to hold."""


@dataclass
class World:
    """A pipeline of two tables, what landed of it, and the oracle's state after each transaction."""

    project: Project
    spark: Any
    bronze: DeltaBronze
    history: History
    dice: random.Random
    oracle: Oracle = field(default_factory=lambda: Oracle(fails=breaks))
    position: int = 1000
    states: dict[int, dict[TableName, list[Row]]] = field(default_factory=dict)
    markers: dict[TableName, Marker] = field(default_factory=dict)
    plain: Relation = PLAIN
    breaks: int = 0

    def land(self, count: int) -> None:
        """Transactions arrive."""
        made: list[Transaction] = interleave(self.dice.randrange(1 << 20), [self.history], count, first=self.position)
        self.position += 10 * count
        for transaction in made:
            self.oracle.apply(transaction)
            rows = {name: [dict(row) for row in self.oracle.tables.get(name, {}).values()] for name in TABLES}
            self.states[transaction.bounds.position] = rows
        self.bronze.append([raw_transaction(one) for one in made])

    def advance(self) -> None:
        with Advance(self.project, self.spark, silent) as advance:
            advance.run(None, threading.Event())
            assert not advance.done.broken

    def apply(self) -> None:
        apply(self.project, once=True, stop=threading.Event(), tell=silent, spark=self.spark)

    def broken_at(self, settings: Sequence[str], *, in_stream: bool = False) -> None:
        """Break off at a failpoint, by the first setting that is reached; more lands before the next one is tried."""
        for setting in settings:
            with broken_off(setting, Failed if in_stream else BrokenOff) as reached:
                (self.apply if in_stream else self.advance)()
            if reached:
                self.breaks += 1
                return
            self.land(4)
        pytest.fail(f"none of {', '.join(settings)} was passed")

    def check_readers(self) -> None:
        """I3, I5: the last cut is whole, and no watermark went back."""
        cut = last_cut(ControlTables(self.project.control), "test")
        for name in TABLES:
            target = self.project.target(name)
            listed = None if cut is None else cut.tables.get(str(name))
            if cut is not None and listed is not None and listed.version is not None:
                rows = read_silver(self.project, target, listed.version).to_pylist()
                assert same(rows, self.states[cut.position][name]), f"{name} in the cut at {cut.position}"
            marker = read_marker(self.project, target, "test")
            before = self.markers.get(name, Marker(None, None))
            assert (marker.position or 0) >= (before.position or 0)
            self.markers[name] = marker

    def check_end(self) -> None:
        """I4: silver is the fold of bronze, and so is what is held; the cuts are true."""
        last = self.states[max(self.states)]
        for name in TABLES:
            target = self.project.target(name)
            found = (
                read_silver(self.project, target).to_pylist()
                if read_marker(self.project, target, "test").version
                else []
            )
            assert same(found, last[name]), name
        held = ControlTables(self.project.control).read("held").to_pylist()
        assert sorted((r["position"], r["ordinal"]) for r in held if r["reason"] != "closed") == sorted(
            self.oracle.held
        )
        assert_nothing_is_held_twice(self.project)
        assert_cuts_are_true(self.project)


def same(found: list[dict[str, Any]], expected: list[Row]) -> bool:
    """Whether silver's rows are the oracle's, whose columns may be fewer or more by one that was just added."""
    columns = {c for row in (*found, *expected) for c in row}
    said = [{c: None if row.get(c) is None else str(row[c]) for c in columns} for row in found]
    return sorted(map(_text, said)) == sorted(_text({c: row.get(c) for c in columns}) for row in expected)


def _text(row: dict[str, str | None]) -> str:
    return str(sorted(row.items()))


def at_failpoint(name: str, passages: int = 1) -> Callable[[World], None]:
    def crash(world: World) -> None:
        world.broken_at([f"{name}:{passage}" for passage in (world.dice.randint(1, passages), *[1] * TRIES)])

    return crash


def twice(world: World) -> None:
    """24: the next start dies at the same point, over the same transactions or over more."""
    crash = at_failpoint(world.dice.choice([at.PREPARED, at.HELD_RECORDED, at.TABLE_MERGED, at.ALL_MERGED]))
    crash(world)
    if world.dice.random() < 0.5:
        world.land(2)
    crash(world)


def in_the_stream(name: str) -> Callable[[World], None]:
    """12: the stream on bronze has called; the same run then calls again, from a checkpoint of its own. 17: all is done,
    and the stream was not told.
    """

    def crash(world: World) -> None:
        world.broken_at([name] * TRIES, in_stream=True)

    return crash


def half_written(world: World) -> None:
    """14: a merge died after its first file: rows that no commit names. On Iceberg a branch, too."""
    own = world.project.target(PLAIN.table).format == "iceberg"
    at_failpoint(at.BRANCH_WRITTEN if own else at.TABLE_MERGED)(world)
    left = 0
    for name in TABLES:
        target = world.project.target(name)
        folder = world.project.silver_path(target)
        if target.format == "iceberg":
            folder = Path(str(world.project.iceberg_warehouse).removeprefix("file://")) / target.namespace / target.name
        data = (file for file in sorted(folder.rglob("*.parquet")) if file.parent.name != "_delta_log")
        for file in [*data][:1]:
            shutil.copy(file, file.with_name(f"part-dead-{world.dice.randrange(1 << 30)}.parquet"))
            left += 1
    assert left, "no table has a file"


def offset_not_written(world: World) -> None:
    """16: Spark had not written that it was going to call."""
    at_failpoint(at.CUT_WRITTEN)(world)
    forget(world, "commits", "offsets")


def not_committed(world: World) -> None:
    """17: the batch ran to its end, and Spark had not written that it did."""
    world.apply()
    forget(world, "commits")
    world.breaks += 1


def forget(world: World, *logs: str) -> None:
    for log in logs:
        files = (world.project.checkpoint / log).glob("[0-9]*")
        for file in sorted(files, key=lambda f: int(f.name))[-1:]:
            file.unlink()
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def put_together(world: World) -> None:
    """18: somebody compacts the tables, and apply dies on what that left."""
    for name in TABLES:
        target = world.project.target(name)
        if read_marker(world.project, target, "test").version is None:
            continue
        session = derive(world.spark)  # the others have the table as it was up to 30 s ago
        if target.format == "delta":
            session.sql(f"OPTIMIZE delta.`{world.project.silver_path(target)}`")
        else:
            options = "map('min-input-files', '1', 'rewrite-all', 'true')"
            table = f"{target.namespace}.{target.name}"
            session.sql(f"CALL lake.system.rewrite_data_files(table => '{table}', options => {options})")
    at_failpoint(at.TABLE_MERGED, 2)(world)


def kept_up(world: World) -> None:
    """18: upkeep of silver dies between two of its steps, of versions that are all old."""
    state = world.bronze.state()
    assert state is not None
    own = world.project.target(PLAIN.table).format == "iceberg"
    name = world.dice.choice([at.SILVER_COMPACTED, at.SILVER_EXPIRED]) if own else at.SILVER_COMPACTED
    late = datetime.now(UTC) + timedelta(days=30)
    world.apply()
    with broken_off(f"{name}:{world.dice.randint(1, len(TABLES))}") as reached:
        maintain_silver(world.project, state, dry_run=False, now=late, tell=silent, spark=derive(world.spark))
    assert reached, f"{name} was not passed"
    world.breaks += 1


def schema_changed(world: World) -> None:
    """19: the table has its new column, the rows that need it are not merged."""
    world.plain = with_column(world.plain, f"note{world.position}", "text", TYPE_OIDS["text"])
    world.history.add_column(world.plain)
    world.land(4)
    at_failpoint(at.PREPARED)(world)


POINTS: dict[str, Callable[[World], None]] = {
    "12 batch entered": in_the_stream(at.BATCH_ENTERED),
    "13 prepared": at_failpoint(at.PREPARED),
    "13 held recorded": at_failpoint(at.HELD_RECORDED),
    "14 half written": half_written,
    "15 one table merged": at_failpoint(at.TABLE_MERGED),
    "16 all merged": at_failpoint(at.ALL_MERGED),
    "16 offset not written": offset_not_written,
    "17 batch left": in_the_stream(at.BATCH_LEFT),
    "17 not committed": not_committed,
    "18 put together": put_together,
    "18 kept up": kept_up,
    "19 schema changed": schema_changed,
    "24 twice": twice,
}

STREAMED = {"12 batch entered", "16 offset not written", "17 batch left", "17 not committed"}
"""Where it is Spark's checkpoint that the next start finds."""


@FORMATS
def test_a_start_after_any_break_ends_at_the_oracles_state(spark: Any, lake_root: Path, fmt: str) -> None:
    for seed in seeds(1 if BUDGET == 1 else 10):
        dice = random.Random(seed)
        points = dice.sample([*POINTS], 2 if BUDGET == 1 else len(POINTS))
        print(f"seed {seed}, {fmt}: {', '.join(points)}")
        project = make_lake(lake_root, fmt, seed)
        # One table at a time, so that what dies between two is the same each time; spans are not what is tried here.
        settings = project.pipeline.apply.model_copy(update={"parallelism": 1, "span_rows": 1000})
        project = replace(project, pipeline=project.pipeline.model_copy(update={"apply": settings}))
        bronze = DeltaBronze(project.bronze, durability="os")
        bronze.begin_stream("test", 10)
        world = World(project, spark, bronze, History(seed, [PLAIN, WHOLE], truncates=30), dice)
        world.land(6)
        for point in points:
            world.land(dice.randint(3, 5))
            POINTS[point](world)
            world.check_readers()
            if dice.random() < 0.5:
                world.land(dice.randint(1, 2))
            (world.apply if point in STREAMED else world.advance)()
            world.check_readers()
        world.check_end()
        tally("R3", points, breaks=world.breaks)
