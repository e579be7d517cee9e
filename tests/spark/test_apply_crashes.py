"""Apply broken off at every step between two that last, in this process: the next start ends at the oracle's state.

What readers may see is looked at after each break, by the checker of the invariants. `CDC_LAKE_BUDGET` 10 takes every
crash point with ten seeds, those that have several steps one step after the other; by default one in each format, by
the seed that is printed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.observability import failpoints as at
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.rebuild import rebuild
from cdc_lake.runtime.maintain import maintain_silver
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.silver_table import table_ref
from cdc_lake.tables.spark_session import derive
from cdc_lake_testing.broken_off import broken_off
from cdc_lake_testing.histories import with_column
from cdc_lake_testing.messages import TYPE_OIDS
from tests.seeds import seeds
from tests.silver_commits import silver_files
from tests.tally import tally

from .formats import FORMATS
from .interrupted_pipeline import TABLES, TRIES, World, world
from .two_tables import PLAIN

pytestmark = pytest.mark.spark

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))


@dataclass(frozen=True)
class Point:
    """Somewhere to break off: how that is brought about, and at which failpoints, of which one is taken."""

    crash: Callable[[World, tuple[str, ...]], None]
    failpoints: tuple[str, ...] = ()
    streamed: bool = False
    """Whether it is Spark's checkpoint that the next start finds."""


def at_failpoint(there: World, names: tuple[str, ...]) -> None:
    """An advance ends there."""
    there.broken_at([there.dice.choice(names)] * TRIES)


def twice(there: World, names: tuple[str, ...]) -> None:
    """24: the next start dies at the same point, over the same transactions or over more."""
    names = (there.dice.choice(names),)
    at_failpoint(there, names)
    if there.dice.random() < 0.5:
        there.land(2)
    at_failpoint(there, names)


def in_the_stream(there: World, names: tuple[str, ...]) -> None:
    """12: the stream on bronze has called; the same run then calls again, from a checkpoint of its own. 17: all is done,
    and the stream was not told.
    """
    there.broken_at([*names] * TRIES, in_stream=True)


def half_written(there: World, names: tuple[str, ...]) -> None:
    """14: a merge died after its first file: rows that no commit names. On Iceberg a branch, too."""
    branch, merged = names
    at_failpoint(there, (branch if there.fmt == "iceberg" else merged,))
    left = 0
    for name in TABLES:
        files, filesystem = silver_files(there.project, name)
        for file in files[:1]:
            dead = f"{file.rpartition('/')[0]}/part-dead-{there.dice.randrange(1 << 30)}.parquet"
            filesystem.copy_file(file, dead)
            left += 1
    assert left, "no table has a file"


def offset_not_written(there: World, names: tuple[str, ...]) -> None:
    """16: Spark had not written that it was going to call."""
    at_failpoint(there, names)
    forget(there, "commits", "offsets")


def not_committed(there: World, _: tuple[str, ...]) -> None:
    """17: the batch ran to its end, and Spark had not written that it did."""
    there.apply()
    forget(there, "commits")
    there.breaks += 1


def forget(there: World, *logs: str) -> None:
    for log in logs:
        files = (there.project.checkpoint / log).glob("[0-9]*")
        for file in sorted(files, key=lambda f: int(f.name))[-1:]:
            file.unlink()
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def put_together(there: World, names: tuple[str, ...]) -> None:
    """18: somebody compacts the tables, and apply dies on what that left."""
    for name in TABLES:
        target = there.project.target(name)
        if table_log(there.project, target).marker("test").version is None:
            continue
        session = derive(there.spark)  # the others have the table as it was up to 30 s ago
        if target.format == "delta":
            session.sql(f"OPTIMIZE {table_ref(there.project, target).sql}")
        else:
            options = "map('min-input-files', '1', 'rewrite-all', 'true')"
            table = f"{target.namespace}.{target.name}"
            session.sql(f"CALL lake.system.rewrite_data_files(table => '{table}', options => {options})")
    there.broken_at([f"{names[0]}:{passage}" for passage in (there.dice.randint(1, 2), *[1] * TRIES)])


def kept_up(there: World, names: tuple[str, ...]) -> None:
    """18: upkeep of silver dies between two of its steps, of versions that are all old."""
    state = there.bronze.state()
    assert state is not None
    late = datetime.now(UTC) + timedelta(days=30)
    there.apply()
    with broken_off(f"{names[0]}:{there.dice.randint(1, len(TABLES))}") as reached:
        maintain_silver(there.project, state, dry_run=False, now=late, report=silent, spark=derive(there.spark))
    assert reached, f"{names[0]} was not passed"
    there.breaks += 1
    there.upkept = True


def schema_changed(there: World, names: tuple[str, ...]) -> None:
    """19: the table has its new column, the rows that need it are not merged."""
    there.becomes(with_column(there.plain, f"note{there.position}", "text", TYPE_OIDS["text"]))
    there.change_plain(4)
    at_failpoint(there, names)


def type_changed(there: World, names: tuple[str, ...]) -> None:
    """19: a column is of another type, in as many commits as that takes; some of them are made."""
    name = f"n{there.position}"
    there.becomes(with_column(there.plain, name, "int4", TYPE_OIDS["int4"]))
    there.change_plain(4)
    there.advance()
    other = with_column(there.plain, name, "text", TYPE_OIDS["text"]).columns[-1]
    columns = tuple(other if column.name == name else column for column in there.plain.columns)
    there.becomes(replace(there.plain, columns=columns))
    there.change_plain(6)
    there.broken_at([*names] * TRIES)


def rebuilding(there: World, names: tuple[str, ...]) -> None:
    """A rebuild dies, and now and then the next one is what comes after it."""
    there.advance()
    with broken_off(names[0]) as reached:
        rebuild(there.project, str(PLAIN.table), spark=there.spark)
    assert reached, f"{names[0]} was not passed"
    there.breaks += 1
    if there.dice.random() < 0.5:
        there.judge()
        rebuild(there.project, str(PLAIN.table), spark=there.spark)


POINTS = {
    "12 batch entered": Point(in_the_stream, (at.BATCH_ENTERED,), streamed=True),
    "13 prepared": Point(at_failpoint, (at.PREPARED,)),
    "13 held recorded": Point(at_failpoint, (at.QUARANTINE_RECORDED,)),
    "14 half written": Point(half_written, (at.BRANCH_WRITTEN, at.TABLE_MERGED)),
    "15 one table merged": Point(at_failpoint, (at.TABLE_MERGED,)),
    "16 all merged": Point(at_failpoint, (at.ALL_MERGED,)),
    "16 offset not written": Point(offset_not_written, (at.CUT_WRITTEN,), streamed=True),
    "17 batch left": Point(in_the_stream, (at.BATCH_LEFT,), streamed=True),
    "17 not committed": Point(not_committed, streamed=True),
    "18 put together": Point(put_together, (at.TABLE_MERGED,)),
    "18 compacted": Point(kept_up, (at.SILVER_COMPACTED,)),
    "19 schema changed": Point(schema_changed, (at.PREPARED,)),
    "19 layout done": Point(type_changed, (at.LAYOUT_DONE,)),
    "24 twice": Point(twice, (at.PREPARED, at.QUARANTINE_RECORDED, at.TABLE_MERGED, at.ALL_MERGED)),
    "rebuilt": Point(rebuilding, (at.REBUILT,)),
    "replaced": Point(rebuilding, (at.REPLACED,)),
}
OF_ICEBERG = {
    "18 expired": Point(kept_up, (at.SILVER_EXPIRED,)),
    "19 layout begun": Point(type_changed, (at.LAYOUT_BEGUN,)),
    "19 layout filled": Point(type_changed, (at.LAYOUT_FILLED,)),
    "rebuilt on a branch": Point(rebuilding, (at.BRANCH_WRITTEN,)),
}
"""Those of several commits where Delta has one."""


def of_a_seed(names: Iterable[str], nth: int) -> list[str]:
    """Of each crash point, which the first word names, the step that it is this seed's turn to break at."""
    steps: dict[str, list[str]] = {}
    for name in names:
        steps.setdefault(name.split()[0], []).append(name)
    return [some[nth % len(some)] for some in steps.values()]


@FORMATS
def test_a_start_after_any_break_ends_at_the_oracles_state(spark: Any, lake_root: Path, fmt: str) -> None:
    possible = POINTS | (OF_ICEBERG if fmt == "iceberg" else {})
    if "CDC_LAKE_TEST_LAKE" in os.environ:  # Spark streams bronze only from a folder
        possible = {name: point for name, point in possible.items() if not point.streamed}
    for nth, seed in enumerate(seeds(1 if BUDGET == 1 else 10)):
        dice = random.Random(seed)
        names = [*possible] if BUDGET == 1 else of_a_seed(possible, nth)
        chosen = dice.sample(names, 1 if BUDGET == 1 else len(names))
        print(f"seed {seed}, {fmt}: {', '.join(chosen)}")
        there = world(lake_root, spark, fmt, seed, dice)
        there.change_plain(6)
        for name in chosen:
            point = possible[name]
            there.land(dice.randint(3, 5))
            point.crash(there, point.failpoints)
            there.judge()
            if dice.random() < 0.5:
                there.land(dice.randint(1, 2))
            (there.apply if point.streamed else there.advance)()
            there.watch.look()
        there.judge(applied=True)
        tally("R3", chosen, breaks=there.breaks)
