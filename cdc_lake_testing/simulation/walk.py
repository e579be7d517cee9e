"""A simulated run of apply: processes apply a growing bronze, and die, until silver has reached bronze."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from unittest import mock

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.reader import CommitRow
from cdc_lake.config.project import Project
from cdc_lake.control.cuts import ACTIVE, table_states
from cdc_lake.errors import LakeError, RuleStopped
from cdc_lake.model.change import Message, Transaction, Undecoded
from cdc_lake.model.relation import Relation
from cdc_lake.observability import failpoints
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply import span_loop, span_planning, table_integrity, table_planner
from cdc_lake.tables.control_schema import CutRow, PauseRow
from cdc_lake_testing.oracle import Oracle
from cdc_lake_testing.simulation.silver import Alone, MemoryBronze, MemoryControl, Nothing, Silver
from cdc_lake_testing.simulation.world import Died, World

STREAM = "pg:1:d:s:0/0"
POINTS = (
    failpoints.PREPARED, failpoints.QUARANTINE_RECORDED, failpoints.TABLE_MERGED, failpoints.ALL_MERGED,
    failpoints.CUT_WRITTEN,
)  # fmt: skip
MOST_WALKS = 200
_BEFORE = datetime.min.replace(tzinfo=UTC)
_UNREAD = Undecoded(1, "DEC300", "unreadable", "", (), "0")


@dataclass(frozen=True)
class Walked:
    """What a run came to. `spans`: where the cuts that were written stand; `met`: what went wrong, and how often."""

    spans: Sequence[int]
    met: Counter[str]


def walk(project: Project, transactions: Sequence[Transaction], seed: int) -> Walked:
    """Apply what bronze has come to hold. Raises AssertionError where silver is not what was committed."""
    dice = random.Random(f"{seed} silver")
    world = World(dice, stormy=dice.choice((0.0, 0.1, 0.2, 0.4)))
    relations = {one.layout: one for one in _relations(transactions)}
    commits = list(_commits(transactions, dice))
    control, silver = MemoryControl(world), Silver(transactions, world)
    bronze = MemoryBronze(commits, relations, StreamCheckpoint(STREAM, 1, 0, 0, b""), world)
    if dice.random() < world.stormy and commits:
        silver.rule = dice.choice(commits).position
    last = transactions[-1].bounds.position if transactions else 0
    with _in_memory(silver, bronze, control):
        for _ in range(MOST_WALKS):
            quiet = bronze.state.upto >= last and dice.random() < 0.2
            if quiet:  # nobody pauses, and nothing goes wrong any more
                world.stormy = 0.0
            over = _process(project, silver, bronze, control, last, calm=quiet)
            assert not silver.wrong, silver.wrong
            if over:
                break
        else:
            msg = f"no end after {MOST_WALKS} processes: {world.met}"
            raise AssertionError(msg)
    assert silver.rule is None, "a rule was to stop the walk, and did not"
    check(silver, control, last)
    return Walked([cut.position for cut in control.written], world.met)


def _relations(transactions: Sequence[Transaction]) -> Iterator[Relation]:
    for one in transactions:
        yield from (change.relation for change in one.changes if not isinstance(change, Message))


def _commits(transactions: Sequence[Transaction], dice: random.Random) -> Iterator[CommitRow]:
    """Their COMMIT rows; the source's clock goes back now and then."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    for one in transactions:
        now += timedelta(seconds=dice.choice((1, 1, 1, -3_600, 86_400)))
        tables = Counter(str(change.relation.table) for change in one.changes if not isinstance(change, Message))
        counts = {table: {"I": many} for table, many in tables.items()}
        yield CommitRow(1, one.bounds.position, now, None, counts, dice.randrange(1, 500), b"", b"")


@contextmanager
def _in_memory(silver: Silver, bronze: MemoryBronze, control: MemoryControl) -> Iterator[None]:
    """The walk over these instead of over files and Spark."""
    reads = {"bronze_reader": lambda _: bronze, "control_tables": lambda _: control}
    no_cluster = lambda _: None  # noqa: E731
    of_silver = {name: getattr(silver, name) for name in ("table_log", "outline", "prepare", "merge")}
    with ExitStack() as patched:
        for module, given in (
            (
                span_loop,
                {
                    **reads,
                    "ResyncSwapper": Nothing,
                    "Keeper": Nothing,
                    "JudgingClock": Nothing,
                    "cluster_cores": no_cluster,
                },
            ),
            (
                table_planner,
                {**reads, **of_silver, "span_partitioner": Nothing, "Sessions": Alone},
            ),
            (span_planning, {"outline": silver.outline}),
            (table_integrity, {"table_log": silver.table_log}),
        ):
            patched.enter_context(mock.patch.multiple(module, **given))
        yield


def _process(
    project: Project, silver: Silver, bronze: MemoryBronze, control: MemoryControl, last: int, *, calm: bool
) -> bool:
    """One process from its start to its end; True where neither it nor the next one has anything to do any more."""
    world, dice = silver.world, silver.world.dice
    if world.chance("cuts lost", 0.2):
        control.lose_cuts(dice.randrange(len(control.written) + 1))
    dies = dice.random() < world.stormy * 0.5
    failpoints.arm(f"{dice.choice(POINTS)}:{dice.randint(1, 6)}" if dies else "", partial(_die, world))
    try:
        with span_loop.SpanLoop(_bounded(project, dice), None, silent, waits=True) as walking:
            for _ in range(dice.randint(1, 6)):
                bronze.grow(dice.choice((0, 1, 3, 20, 100)))
                _paused(control, world, bronze.relations.values(), calm=calm)
                with _unread(bronze, control, world) as unread:
                    walking.run(None, threading.Event())
                    reached = walking.totals.upto or 0
                    assert unread is None or reached < unread, "it went past what cannot be read"
                taken = silver.take(len(control.written))
    except RuleStopped:
        _check_stop(silver, bronze, control.last_cut(STREAM))
        world.met["rule stopped"] += 1
        silver.rule = None  # somebody mends it
        return False
    except (Died, LakeError):
        return False
    finally:
        failpoints.arm("")
    return calm and silver.world.stormy == 0.0 and reached == last and not walking.totals.failed and not taken


def _bounded(project: Project, dice: random.Random) -> Project:
    """A pipeline without copies, with spans by chance."""
    given = project.pipeline
    bounds = {"span_rows": dice.choice((1, 7, 100, 10_000)), "span_bytes": dice.choice((600, 1 << 20, 1 << 30))}
    apply = given.apply.model_copy(update=bounds)
    snapshot = given.snapshot.model_copy(update={"mode": "none"})
    return replace(project, pipeline=given.model_copy(update={"apply": apply, "snapshot": snapshot}))


def _paused(control: MemoryControl, world: World, relations: Iterable[Relation], *, calm: bool) -> None:
    """Somebody pauses tables, and lets them go on."""
    for one in sorted({str(relation.table) for relation in relations}):
        if calm or world.chance("paused", 0.1):
            paused = not calm and world.dice.random() < 0.5
            control.record(PauseRow(one, paused, control.tick()))


@contextmanager
def _unread(bronze: MemoryBronze, control: MemoryControl, world: World) -> Iterator[int | None]:
    """Now and then a transaction behind all cuts that this version cannot read, as the next one can; its position."""
    whole, cut = bronze.commits, max((cut.position for cut in control.written), default=0)
    ahead = [at for at, one in enumerate(whole) if one.position > cut]
    if not ahead or not world.chance("unreadable", 0.7):
        yield None
        return
    at = world.dice.choice(ahead)
    stuck = replace(whole[at], undecoded=_UNREAD, counts={})
    bronze.commits = [*whole[:at], stuck, *whole[at + 1 :]]
    try:
        yield stuck.position
    finally:
        bronze.commits = whole


def _die(world: World) -> None:
    world.met["process died"] += 1
    raise Died


def _check_stop(silver: Silver, bronze: MemoryBronze, cut: CutRow | None) -> None:
    """No table has what a rule stops; those that it does not touch may be past it, where another one waits."""
    there = {} if cut is None else table_states(cut.tables)
    for one in (one for one in bronze.commits if one.position == silver.rule):
        past = [name for name in one.counts if name in there and there[name].position >= one.position]
        assert not past, f"{past} are past what a rule stops"


def check(silver: Silver, control: MemoryControl, last: int) -> None:
    """Each table went from one position to a later one and is what was committed, at its end and in every cut."""
    for name, table in silver.tables.items():
        markers = [marker.position or 0 for marker, _ in table.versions]
        assert markers == sorted(markers), f"{name} went back"
    model, transactions = Oracle(), iter([*silver.transactions, None])
    ahead = next(transactions)
    for nth, cut in sorted(enumerate(control.written), key=lambda one: one[1].position):
        while ahead is not None and ahead.bounds.position <= cut.position:
            model.apply(ahead)
            ahead = next(transactions)
        _check_cut(silver, nth, cut, model)
    times = [(row["position"], row["commit_ts"]) for row in control.read("cuts").sort_by("recorded_at").to_pylist()]
    assert times == sorted(times, key=lambda one: (one[0], one[1] or _BEFORE)), "a cut, or its time, went back"
    newest = control.last_cut(STREAM)
    assert not silver.transactions or (newest is not None and newest.position == last), "silver is not where bronze is"
    assert ahead is None
    for name, table in silver.tables.items():
        rows = table.versions[-1][1] if table.versions else {}
        assert rows == model.tables.get(name, {}), f"{name} is not what was committed, at the end"


def _check_cut(silver: Silver, nth: int, cut: CutRow, model: Oracle) -> None:
    """A cut names versions that are the source's state at its position, unless another program took one since."""
    there = table_states(cut.tables)
    for name, table in silver.tables.items():
        listed, rows = there.get(str(name)), model.tables.get(name, {})
        if listed is None:
            assert not rows, f"the cut {cut.position} does not list {name}"
        elif listed.state == ACTIVE:
            found = {} if listed.version is None else table.versions[listed.version][1]
            taken = nth < table.taken.get(listed.version, 0)
            assert found == rows or taken, f"{name} is not what was committed, in the cut {cut.position}"
