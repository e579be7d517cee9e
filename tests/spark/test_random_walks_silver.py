"""The random walks of tests/live/test_random_walks.py into silver that apply writes, on Delta and on Iceberg.

All tables of a round are one pipeline's, so that each run merges them side by side. While the walks go on, apply runs
now and then, and does what some of the tables that wait print; at the end it does so for all of them. Between the runs
other programs write to the tables: what changes no rows stops nothing, all else is named, and what is printed mends it.
The pipeline gets another name in its file: it is refused with both names, and goes on in each of the ways that are told.
So is a second pipeline of the lake, until its table has another name in silver. Some tables keep every version of a row,
others every change: what holds now, and what their changes amount to, are the source's rows.
"""

from __future__ import annotations

import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.config.model import SilverTable
from cdc_lake.config.project import Project, Target
from cdc_lake.control.ownership import adoption
from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.errors import (
    CdcLakeError,
    OtherWriter,
    PastTrimmed,
    SilverLost,
    SilverNotOwned,
    SilverRestored,
    SlotForeign,
    UnexpectedColumn,
)
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import silent
from cdc_lake.ops.check.runner import check
from cdc_lake.ops.plan import plan
from cdc_lake.runtime.apply.applier import watching
from cdc_lake.runtime.apply.rebuild import rebuild
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.runtime.restart import restart
from cdc_lake.runtime.resync import resync
from cdc_lake.runtime.run import run
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake_testing.altered import SETUP, Altered
from cdc_lake_testing.folded import Row
from tests.conftest import Database
from tests.live.test_gaussdb_receive import project_of as family_project
from tests.live.test_gaussdb_workload import stand_in
from tests.live.test_random_walks import ONLY, WAITS, Round, allowed, printing
from tests.live.test_random_walks_without_relations import KINDS, LEFT_OUT
from tests.live.test_receive_loop import once, project_of
from tests.postgres_with_test_decoding import server  # noqa: F401 - a fixture
from tests.seeds import one_seed, seeds
from tests.silver_rows import silver_rows

from .conftest import BUDGET
from .foreign_writers import Stranger
from .formats import BOTH, drawn

pytestmark = [
    pytest.mark.spark,
    pytest.mark.live,
    # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"),
]

__all__ = ["stand_in"]

UNSURE = r"rows before it unknown$|^take column|^match updates"
"""Operations of a rebuild that bronze does not have all of: `compare` shows it, and a copy has it."""
PLUGINS = ("pgoutput", "test_decoding", "family")
TABLES = 10 if BUDGET > 1 else 2
NAMED = (OtherWriter, UnexpectedColumn, SilverLost, SilverNotOwned, SilverRestored)
"""What a table waits for that something else was done to."""
RETYPED_PAST = "another silver table in the pipeline file (`to`)"
"""What is said of a past that has texts which are no values of the new type."""
TABLE_KINDS: dict[str, dict[str, Any]] = {
    "current": {},
    "soft deletes": {"deletes": "soft"},
    "history": {"kind": "history"},
    "append": {"kind": "append", "old_values": True},
}
UNFOLDED = frozenset({"rekeys", "nothing"})
"""What is not drawn of a table whose changes are folded by `id`."""


@dataclass
class Lake:
    """Silver of all tables of a pipeline. `words`: what a run allows; `fresh`: whether a run saw all there is; `hurt`:
    what others did to tables, by their label, until it is mended; `beside`: the other pipeline of the lake.
    """

    project: Project
    spark: Any
    seed: int
    words: set[str] = field(default_factory=set)
    broken: dict[str, CdcLakeError] = field(default_factory=dict)
    fresh: bool = False
    hurt: dict[str, Stranger] = field(default_factory=dict)
    beside: Project | None = None
    asked: Counter[str] = field(default_factory=Counter)
    walks: Round = field(init=False)

    def _dice(self, what: str) -> random.Random:
        """For one walk of a round alone they fall as for all of them."""
        self.asked[what] += 1
        return random.Random(f"{self.seed} {what} {self.asked[what]}")

    def receive(self) -> None:
        """The receiver, and now and then others and apply, whose questions are answered at times."""
        if table_log(self.project, self.targets[0]).exists():
            self.neighbour()
            self.renamed()
        once(self.project)
        self.fresh = False
        while self._dice("run").random() < 0.5:
            self.visited()
            self.run()
            for label, failed in self.broken.items():
                if isinstance(failed, NAMED) or "resync" in failed.remedy or self._dice(label).random() >= 0.5:
                    continue
                self.words |= allowed(failed) or set()
            for label in self.waiting:
                if self._dice(label).random() < 0.5:
                    self.mend(label)

    def neighbour(self) -> None:
        """The other pipeline of the lake has what its source has, whatever becomes of this one."""
        if self._dice("beside").random() >= 0.15:
            return
        table, conn = TableName("beside", self.targets[0].name), self.walks.conn
        if self.beside is None:
            conn.execute("CREATE SCHEMA beside")
            conn.execute(f"CREATE TABLE {table} (id int PRIMARY KEY GENERATED ALWAYS AS IDENTITY, n int)")
            there = self.named(f"{self.name}_beside", slot={"name": None}, tables=[f"{table.schema}.*"])
            taken = SilverTable(from_=str(table), to=table.name)
            silver = there.pipeline.silver.model_copy(update={"tables": [taken]})
            pipeline = there.pipeline.model_copy(update={"silver": silver})
            self.refused(replace(there, pipeline=pipeline), self.project.name)
            self.beside = there
        self.walks.outcomes["the other pipeline"] += 1
        conn.execute(f"INSERT INTO {table} (n) SELECT 1 FROM generate_series(1, 3)")
        conn.execute(f"UPDATE {table} SET n = n + 1 WHERE id % 2 = 0")
        run_once(self.beside, self.spark)
        rows = {(row["id"], row["n"]) for row in silver_rows(self.beside, self.beside.target(table))}
        assert rows == {(str(number), str(n)) for number, n in conn.execute(f"SELECT id, n FROM {table}")}

    def renamed(self) -> None:
        """Another name in the pipeline's file: refused, and then it has its old one again, or it takes along what stands
        under that, or it takes the tables.
        """
        dice, old = self._dice("name"), self.project
        if dice.random() >= 0.1 or self.hurt:
            return
        name = f"{self.name}_{self.asked['name']}"
        carries: dict[str, str | None] = {"name": old.slot}
        kept, new = self.named(name, slot=carries), self.named(name, slot={"name": None})
        self.refused(dice.choice((kept, new)), old.name)
        if self.beside is not None:
            self.refused(self.named(self.beside.name, slot=carries), old.name)
            self.walks.outcomes["named as the other pipeline"] += 1
        way = dice.choice(("renamed back", "renamed with its folders", "renamed, and the tables adopted"))
        self.walks.outcomes[way] += 1
        match way:
            case "renamed with its folders":
                for place in (old.bronze, old.control):
                    place.rename(place.with_name(name))
                self.take(kept)
                self.refused(old, name)
            case "renamed, and the tables adopted":
                self.walks.identified(lambda: once(new))
                before = self.versions()
                self.take(new)
                self.apply()
                assert self.versions() == before
                for failed in self.broken.values():
                    assert isinstance(failed, SilverNotOwned)
                    assert_both_named(failed, name, old.name)
                    self.words |= {adoption(re.findall(r"`cdc-lake run --adopt (\S+)`", failed.remedy)[0])}
                self.run()
                before = self.versions()
                self.refused(old, name)
                assert self.versions() == before

    @property
    def name(self) -> str:
        """What the pipeline is called at first; its namespace."""
        return self.targets[0].namespace

    @property
    def targets(self) -> list[Target]:
        """The silver tables of the walks."""
        return [self.project.target(TableName("public", walk.name)) for walk in self.walks.walks]

    def named(self, name: str, *, slot: dict[str, str | None], **source: Any) -> Project:
        """The project of a file with another name and slot."""
        pipeline, now = self.project.pipeline, self.project.pipeline.source
        now = now.model_copy(update={"slot": now.slot.model_copy(update=slot), **source})
        return replace(self.project, pipeline=pipeline.model_copy(update={"pipeline": name, "source": now}))

    def take(self, project: Project) -> None:
        """Go on as another pipeline."""
        self.project = self.walks.project = project
        self.fresh = False

    def refused(self, project: Project, owner: str) -> None:
        """A pipeline is refused what is another one's before anything is done."""
        before = self.versions()
        asked: tuple[Callable[[], object], ...] = (lambda: plan(project), lambda: run_once(project, self.spark))
        for ask in asked:
            with pytest.raises((SilverNotOwned, SlotForeign)) as failed:
                self.walks.identified(ask)
            assert_both_named(failed.value, project.name, owner)
        assert any(f"pipeline `{owner}`" in line.text for line in check(project) if line.ok is False)
        assert self.versions() == before

    def versions(self) -> list[int | None]:
        """Of the silver tables of the walks."""
        return [table_log(self.project, target).version() for target in self.targets]

    def visited(self) -> None:
        """Others do something to some of the tables."""
        for target in self.targets:
            dice = self._dice(f"stranger {target.label}")
            if dice.random() < 0.15 and target.label not in self.hurt:
                self.visit(Stranger.drawn(dice, self.spark, self.project, target))

    def visit(self, stranger: Stranger) -> None:
        """A stranger does what it does."""
        if stranger.acts():
            self.told(stranger.target, f"a stranger: {stranger.what}")
            self.hurt[stranger.target.label] = stranger

    def told(self, target: Target, what: str) -> None:
        """What was done to a silver table, in the script of its walk."""
        self.walks.outcomes[what] += 1
        self.walk(target).script.append(f"-- {what}")

    def run(self) -> None:
        """Apply what bronze has. What others did is named, if rows are others for it; nothing else is."""
        self.apply()
        named = {label: failed for label, failed in self.broken.items() if isinstance(failed, NAMED)}
        for label, stranger in [*self.hurt.items()]:
            with self.walks.told(self.walk(stranger.target)):
                assert label not in named or not stranger.harmless, named[label]
                now = stranger.standing()
                if label in self.broken or now is None or (now == stranger.content and stranger.latent):
                    continue  # where the table waits for something else, its rows are not looked at
                assert now != stranger.content or not stranger.changed, f"nobody saw: {stranger.what}"
                del self.hurt[label]
        assert named.keys() <= self.hurt.keys(), named

    def apply(self) -> None:
        """One run of apply."""
        watcher = watching(self.project, silent)
        with watcher, SpanLoop(self.project, self.spark, watcher.on_progress, allowed=self.words) as advance:
            advance.run(None, threading.Event())
        self.broken, self.fresh = advance.totals.failed, True

    def mend(self, label: str) -> None:
        """Do what a table prints that others did something to."""
        stranger, remedy = self.hurt[label], self.broken[label].remedy
        self.fresh = False
        if "--adopt" not in remedy and self._dice(label).random() < 0.5 and stranger.takes_back():
            self.told(stranger.target, "taken back")
            stranger.changed = False
            return
        command = re.search(r"`cdc-lake rebuild \S+( --adopt)?`", remedy)
        if command is None:
            raise self.broken[label]
        source = str(stranger.target.source)
        try:
            done = rebuild(self.project, source, adopt=command[1] is not None, spark=self.spark)
        except WAITS as failed:  # as a run would that merges the same
            assert re.search("`cdc-lake (resync|restart)", failed.remedy), failed.remedy  # noqa: PT017 - whatever it raises
            self.broken[label] = failed
            self.copy(stranger.target)
            return
        except PastTrimmed as failed:
            self.anew(failed)
            return
        self.told(stranger.target, f"rebuilt{''.join(f', {one}' for one in done.operations)}")
        if any(re.search(UNSURE, one) for one in done.operations):
            self.copy(stranger.target)

    def copy(self, *targets: Target) -> None:
        """Copy tables again, up to where the receiver has them; into other ones where a past cannot go on so."""
        self.fresh = False
        waits = {one.label: self.broken.get(one.label) for one in targets}
        past = [one for one in targets if (failed := waits[one.label]) is not None and RETYPED_PAST in failed.remedy]
        if again := [str(one.source) for one in targets if one not in past]:
            try:
                resync(self.project, again)
                once(self.project)
            except PastTrimmed as failed:
                self.anew(failed)
        for one in targets:
            if one not in past:
                self.told(one, "copied again")
        if past:
            self.elsewhere(past)
            self.anew()

    def elsewhere(self, past: Sequence[Target]) -> None:
        """Give tables other ones in silver."""
        for one in past:
            self.told(one, "another table")
            self.hurt.pop(one.label, None)
        silver, names = self.project.pipeline.silver, {str(one.source): f"{one.name}_anew" for one in past}
        tables = [one.model_copy(update={"to": names.get(one.from_, one.to)}) for one in silver.tables]
        changed = silver.model_copy(update={"tables": tables})
        self.take(replace(self.project, pipeline=self.project.pipeline.model_copy(update={"silver": changed})))

    def anew(self, failed: CdcLakeError | None = None) -> None:
        """Begin a new stream, as what failed says."""
        assert failed is None or "`cdc-lake restart`" in failed.remedy, failed
        damaged = [self.hurt[label] for label in self.waiting if self.hurt[label].target.keeps_past]
        for stranger in damaged:
            with pytest.raises(OtherWriter, match="make the damage to the past of"):
                restart(self.project)
            if stranger.takes_back():
                self.told(stranger.target, "taken back")
                stranger.changed = False
            else:
                self.elsewhere([stranger.target])
        if any(not stranger.changed for stranger in damaged):
            self.apply()
        self.walks.outcomes["restarted for a past"] += 1
        restart(self.project, yes=True)
        self.walks.identified(lambda: once(self.project))
        self.fresh = False

    def copies(self, walks: list[Altered]) -> None:
        """Copy the tables of walks again."""
        self.copy(*(self.project.target(TableName("public", walk.name)) for walk in walks))

    @property
    def waiting(self) -> list[str]:
        """The tables that wait for what others did to them to be mended."""
        return [label for label in self.hurt if isinstance(self.broken.get(label), NAMED)]

    def walk(self, target: Target) -> Altered:
        """The walk whose rows a silver table holds."""
        return next(one for one in self.walks.walks if TableName("public", one.name) == target.source)

    def table(self, walk: Altered) -> WalkedTable:
        """The table of a walk."""
        return WalkedTable(self, TableName("public", walk.name))


@dataclass
class WalkedTable:
    """A table as a round asks it: a run brings all of them forward, if there is something that no run knew of."""

    lake: Lake
    source: TableName
    allowed: set[str] = field(default_factory=set)

    @property
    def target(self) -> Target:
        return self.lake.project.target(self.source)

    @property
    def whole(self) -> bool:
        return self.target.kind != "append"

    @property
    def rows(self) -> list[Row]:
        rows = silver_rows(self.lake.project, self.target)
        match self.target.kind:
            case "history":
                return holding(rows)
            case "append":
                return amounting_to(rows)
            case _ if self.target.deletes == "soft":
                return [row for row in rows if row["_is_deleted"] == "f"]
            case _:
                return rows

    @property
    def columns(self) -> dict[str, str]:
        schema = table_log(self.lake.project, self.target).read().schema
        return {name: str(kind) for name, kind in zip(schema.names, schema.types, strict=True)}

    def advance(self) -> CdcLakeError | None:
        if not self.lake.fresh or not self.allowed <= self.lake.words:
            self.lake.words |= self.allowed
            self.lake.run()
        while self.lake.waiting:
            for label in self.lake.waiting:
                self.lake.mend(label)
            self.lake.run()
        return self.lake.broken.get(self.target.label)


def holding(versions: list[Row]) -> list[Row]:
    """The versions that hold now; of no row two hold at once."""
    of_row: dict[str | None, list[Row]] = {}
    for one in sorted(versions, key=lambda one: place(one, "valid_from_epoch", "valid_from")):
        of_row.setdefault(one["id"], []).append(one)
        assert (one["is_current"] == "t") == (one["valid_to"] is None), one
    for rows in of_row.values():
        for one, following in zip(rows, [*rows[1:], None], strict=True):
            if one["valid_to"] is not None:
                ended = place(one, "valid_to_epoch", "valid_to")
                assert place(one, "valid_from_epoch", "valid_from") < ended, one
                assert following is None or ended <= place(following, "valid_from_epoch", "valid_from"), (
                    one,
                    following,
                )
            else:
                assert following is None, (one, following)
    return [one for one in versions if one["is_current"] == "t"]


def amounting_to(changes: list[Row]) -> list[Row]:
    """The rows that there are behind all changes, each with what its last one sent. A copy takes the place of all."""
    rows: dict[str | None, Row] = {}
    copied: tuple[int, ...] = ()
    for one in sorted(changes, key=lambda one: place(one, "_epoch", "_position", "_ordinal")):
        match one["_op"]:
            case "T":
                rows.clear()
            case "D":
                del rows[one["id"]]
            case "U":
                del rows[one["_old_id"] or one["id"]]
                rows[one["id"]] = one
            case insert:
                if insert == "S" and copied != (at := place(one, "_epoch", "_position")):
                    copied = at
                    rows.clear()
                assert one["id"] not in rows, one
                rows[one["id"]] = one
    return [*rows.values()]


def place(row: Row, *columns: str) -> tuple[int, ...]:
    """Where in a stream something was."""
    return tuple(int(row[column] or 0) for column in columns)


def run_once(project: Project, spark: Any) -> None:
    """As `cdc-lake run --once`."""
    run(project, once=True, only=None, stop=threading.Event(), report=silent, spark=spark)


def assert_both_named(failed: CdcLakeError, name: str, owner: str) -> None:
    """A refusal says whose something is, and who asks."""
    assert f"`{name}`" in failed.message, failed
    assert f"`{owner}`" in failed.message, failed


def cases() -> Iterable[Any]:
    """All plugins into all formats; in CI one of them, by the seed."""
    every = [(plugin, fmt) for plugin in PLUGINS for fmt in BOTH]
    return every if BUDGET > 1 else [random.Random(one_seed()).choice(every)]


@pytest.mark.parametrize("seed", seeds(20 if BUDGET > 1 else 1))
@pytest.mark.parametrize(("plugin", "fmt"), cases())
def test_walks_into_silver_end_equal_or_wait_for_what_mends_them(
    spark: Any, lake_root: Path, request: pytest.FixtureRequest, plugin: str, fmt: str, seed: int
) -> None:
    name = f"walks_{plugin}_{fmt}_{seed}"
    numbers = range(TABLES) if ONLY is None else (int(ONLY),)
    kinds = {number: random.Random(f"{seed} kind {number}").choice([*TABLE_KINDS]) for number in numbers}
    told = [{"from": f"public.t{number}", **TABLE_KINDS[kind]} for number, kind in kinds.items()]
    silver = {"defaults": {"format": fmt, "namespace": name}, "tables": told}
    without = LEFT_OUT if plugin != "pgoutput" else frozenset()
    if plugin == "family":
        source = request.getfixturevalue("stand_in")
        database, kind = source.database, KINDS[seed % len(KINDS)]
        project = family_project(source, kind, lake_root, silver=silver)
        without |= frozenset() if kind.style is Style.SERIAL else {"truncates"}
    else:
        database = request.getfixturevalue("database")
        project = project_of(database, lake_root, source={"slot": {"plugin": plugin}}, silver=silver)
    project = replace(project, pipeline=project.pipeline.model_copy(update={"pipeline": name}))
    lake = Lake(project, spark, seed)
    with printing(database) as conn:
        lake.walks = walks = Round(conn, lake.project, seed, numbers, silver=lake.table, copies=lake.copies)
        walks.spared = {number: UNFOLDED for number, kind in kinds.items() if kind == "append"}
        walks.run(lake.receive, without)
    print(walks.outcomes)


def a_stranger_appends(lake: Lake) -> None:
    lake.visit(Stranger(lake.spark, lake.project, lake.targets[0], "append"))
    lake.run()


def another_name_is_refused(lake: Lake) -> None:
    lake.refused(lake.named("another", slot={"name": None}), lake.project.name)


def a_stranger_widens(lake: Lake) -> None:
    lake.visit(Stranger(lake.spark, lake.project, lake.targets[0], "column"))
    lake.walks.conn.execute("INSERT INTO t0 (id, k) VALUES (90, 90)")
    once(lake.project)
    lake.run()
    assert lake.waiting, "nobody saw: column"


PLANTED: dict[str, tuple[str, Callable[[Lake], None], str]] = {
    "no commit is a stranger's": (
        "cdc_lake.tables.{fmt}_table_log.{Fmt}TableLog.foreign_commit", a_stranger_appends, "nobody saw: append"
    ),
    "no column is a stranger's": (
        "cdc_lake.runtime.apply.schema_changes.check_columns", a_stranger_widens, "nobody saw: column"
    ),
    "every table is one's own": (
        "cdc_lake.control.ownership.Ownership.refusal", another_name_is_refused, "DID NOT RAISE"
    ),
}  # fmt: skip
"""Bugs that are planted on purpose: what has it, what is done then, and what a walk says of it."""


@pytest.mark.parametrize("planted", PLANTED if BUDGET > 1 else [random.Random(one_seed()).choice([*PLANTED])])
@drawn
def test_a_walk_finds_a_planted_bug(
    database: Database, spark: Any, lake_root: Path, fmt: str, planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, done, said = PLANTED[planted]
    project = project_of(database, lake_root, silver={"defaults": {"format": fmt, "namespace": database.name}})
    lake = Lake(project, spark, one_seed())
    with printing(database) as conn:
        lake.walks = Round(conn, project, lake.seed)
        conn.execute(SETUP)
        lake.walks.walks = [Altered(conn, "t0", lake.seed, form="plain")]
        once(project)
        lake.run()
        monkeypatch.setattr(place.format(fmt=fmt, Fmt=fmt.title()), lambda *_: None)
        with pytest.raises((AssertionError, pytest.fail.Exception), match=said):
            done(lake)
