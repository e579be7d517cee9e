"""Simulated silver: tables with a version per commit, and what apply reads and writes besides them.

Tables are merged with the oracle's result for the span: the net change itself is computed by Spark, and has its own
test. Everything that decides which spans there are, and which tables take part from which position, is the real code.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, Self

import pyarrow as pa

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.reader import CommitRow
from cdc_lake.bronze.span_index import RelationVersionRun, SpanSummary
from cdc_lake.config.project import Project, Target
from cdc_lake.errors import ApplyFailed, ConcurrentModification, ControlNotWritten
from cdc_lake.model.change import Transaction
from cdc_lake.model.position import Span
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.runtime.apply.merge import MergeResult, WriteStrategy
from cdc_lake.runtime.apply.span_planning import TableTask
from cdc_lake.tables.control_schema import CONTROL_VERSION, NAMES, ControlRow, CutRow, PauseRow, schema_of
from cdc_lake.tables.silver_table import CommitMetrics, Marker
from cdc_lake_testing.expected import of_table
from cdc_lake_testing.oracle import Oracle, Row
from cdc_lake_testing.simulation.world import World

NO_VERSION = Marker(None, None)


@dataclass
class SilverTable:
    """`versions`: of each the marker and the rows; `oracle` stands where the last one does. `before`: where the one
    before it stood, while another program is about to take its place; `taken`: the versions of which one did, and how
    many cuts there were then.
    """

    versions: list[tuple[Marker, Mapping[tuple[str | None, ...], Row]]] = field(default_factory=list)
    oracle: Oracle = field(default_factory=Oracle)
    before: Oracle | None = None
    taken: dict[int | None, int] = field(default_factory=dict)

    @property
    def newest(self) -> Marker:
        """The marker of the newest version."""
        return self.versions[-1][0] if self.versions else NO_VERSION

    def marker(self, stream: str) -> Marker:
        """See `tables.silver_table`, as the next ones."""
        del stream
        return self.newest

    def is_latest(self, version: int) -> bool:
        """Whether the newest version is this one."""
        return self.newest.version == version

    def is_replaced(self, stream: str, version: int, position: int) -> bool:
        """Whether another program took the version."""
        del stream
        return self.versions[version][0].position != position

    def foreign_commit(self, *_: object) -> None:
        """None: nobody else writes rows."""

    def add(self, position: int, name: TableName) -> None:
        """A version more, at a position."""
        rows = dict(self.oracle.tables.get(name, {}))
        self.versions.append((Marker(position, len(self.versions)), rows))

    def take(self, cuts: int) -> bool:
        """Another program's commit, which changes no rows, takes the last version's place; False where none is to."""
        if self.before is None:
            return False
        (marker, rows), gone = self.versions[-2], self.versions[-1][0]
        self.versions[-1] = (replace(marker, version=gone.version), rows)
        self.oracle, self.before = self.before, None
        self.taken[gone.version] = cuts
        return True


class MemoryControl:
    """The control tables that a walk uses (`tables.control_tables.ControlTables`).

    `written`: every cut there ever was.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._now = datetime.fromtimestamp(0).astimezone()
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self.written: list[CutRow] = []

    def read(self, name: str, *_: object, **__: object) -> pa.Table:
        """See ControlTables."""
        rows = self._rows.get(name)
        schema = schema_of(name)  # type: ignore[arg-type]
        return pa.Table.from_pylist(rows, schema=schema) if rows else schema.empty_table()

    def version(self, _: str) -> int:
        """See ControlTables."""
        return CONTROL_VERSION

    def record(self, row: ControlRow) -> None:
        """See ControlTables."""
        self._rows.setdefault(NAMES[type(row)], []).append(asdict(row))

    def tick(self) -> datetime:
        """A time that only goes on."""
        self._now += timedelta(seconds=1)
        return self._now

    def record_in_turn(self, row: CutRow | PauseRow) -> datetime:
        """See ControlTables; what failed may be written."""
        if self._world.chance("control not written", 0.2):
            raise ControlNotWritten("the disk is full", where="memory")
        self.record(replace(row, recorded_at=self.tick()))
        if isinstance(row, CutRow):
            self.written.append(row)
        if self._world.chance("control written and failed", 0.2):
            raise ControlNotWritten("no answer", where="memory")
        return self._now

    def last_cut(self, stream: str) -> CutRow | None:
        """See ControlTables."""
        mine = [CutRow(**row) for row in self._rows.get("cuts", ()) if row["stream"] == stream]
        return max(mine, key=lambda cut: (cut.position, cut.recorded_at), default=None)

    def lose_cuts(self, left: int) -> None:
        """Only the oldest ones are there any more."""
        del self._rows.get("cuts", [])[left:]

    def delete(self, name: str, wanted: object) -> int:
        """See ControlTables: nothing is held."""
        del name, wanted
        return 0

    def compact(self, name: str, more_than: int) -> bool:
        """See ControlTables: there are no files."""
        del name, more_than
        return False

    def snapshots(self) -> list[Any]:
        """See ControlTables: nothing was copied."""
        return []

    def streams(self) -> list[Any]:
        """See ControlTables: where it began nobody knows."""
        return []


@dataclass
class MemoryBronze:
    """What apply reads of bronze (`bronze.reader.BronzeReader`): of the commits so many as have `landed`."""

    commits: Sequence[CommitRow]
    relations: Mapping[int, Relation]
    state: StreamCheckpoint
    world: World
    landed: int = 0
    place: str = "memory"

    def proven(self) -> StreamCheckpoint:
        """See BronzeReader; a stale listing shows less than there is."""
        return self._at(self.landed - (self.world.dice.randint(1, 9) if self.world.chance("stale listing", 0.3) else 0))

    def grow(self, transactions: int) -> None:
        """So many more have landed."""
        self.landed = min(self.landed + transactions, len(self.commits))
        self.state = self._at(self.landed)

    def _at(self, landed: int) -> StreamCheckpoint:
        return replace(self.state, upto=self.commits[landed - 1].position if landed > 0 else 0)

    def last_trimmed(self) -> Mapping[int, tuple[int, bytes]]:
        """See BronzeReader: nothing leaves."""
        return {}

    def commits_in_turn(self, span: Span) -> Iterator[CommitRow]:
        """See BronzeReader."""
        return (one for one in self.commits if one.position in span)

    def layouts(self, relations: Iterable[TableName] | None = None, span: Span | None = None) -> dict[int, Relation]:
        """See BronzeReader."""
        del span
        wanted = None if relations is None else set(relations)
        return {n: one for n, one in self.relations.items() if wanted is None or one.table in wanted}

    def applied_files(self) -> None:
        """See BronzeReader: there are no files."""


@dataclass
class Silver:
    """All tables, and what is done to them; `transactions`: those of bronze. `rule`: the position of a transaction that
    a rule stops before, until somebody mends it. `wrong`: spans that cannot be merged with the table as it is.
    """

    transactions: Sequence[Transaction]
    world: World
    tables: dict[TableName, SilverTable] = field(default_factory=dict)
    rule: int | None = None
    wrong: list[str] = field(default_factory=list)

    def table(self, name: TableName) -> SilverTable:
        """The table, which may be empty yet."""
        return self.tables.setdefault(name, SilverTable())

    def take(self, cuts: int) -> bool:
        """Other programs take the versions that they were about to take; False where there is none."""
        return sum(table.take(cuts) for table in self.tables.values()) > 0

    def table_log(self, project: Project, target: Target) -> SilverTable:
        """See `tables.open_silver_table`."""
        del project
        return self.table(target.source)

    def outline(self, files: None, table: TableName, span: Span, **_: object) -> SpanSummary:
        """See `bronze.span_index`: one layout."""
        del files
        own = [(one, c) for one in self._within(span) for c in one.changes if c.relation.table == table]  # type: ignore[union-attr]
        runs = (RelationVersionRun(own[0][1].relation.layout, own[0][0].bounds.position, 1),) if own else ()  # type: ignore[union-attr]
        return SpanSummary(len(own), runs, (), {}, 0)

    def _within(self, span: Span) -> Iterator[Transaction]:
        return (one for one in self.transactions if one.bounds.position in span)

    def prepare(self, spark: None, task: TableTask) -> Any:
        """See `runtime.apply.table_span`; somebody may put files of the table together meanwhile."""
        del spark
        table, seen = self.table(task.target.source), task.summary
        assert seen is not None
        if seen.rows == 0:
            return None
        base, rule = table.newest, self.rule
        if base.version is not None and self.world.chance("put together beside", 0.1):
            table.versions.append((replace(base, version=base.version + 1), table.versions[-1][1]))
            table.before = None  # what is about to be taken is the newest version
        touched = [one.bounds.position for one in self._within(task.span) if one.bounds.position == rule]
        layout = SimpleNamespace(layout=seen.runs[0].layout)
        return SimpleNamespace(
            task=task, base=base, summary=seen, projection=None, counts=(),
            stop=(touched[0], "rule") if touched else None,
            kind=SimpleNamespace(columns=lambda _: ()), shape=SimpleNamespace(relation=layout),
            silver=table,
            folded=SimpleNamespace(quarantined=None, closings=()),
        )  # fmt: skip

    def merge(self, prepared: Any) -> MergeResult:
        """See `runtime.apply.merge`; whether it landed may stay unknown."""
        task, name = prepared.task, prepared.task.target.source
        table = self.table(name)
        if table.newest.version != prepared.base.version:
            raise ConcurrentModification(f"{name} has another version")
        if self.world.chance("merge failed", 0.3):
            raise ApplyFailed("the merge was refused")
        going = table.newest.position is not None and self.world.chance("commit taken by another", 0.9)
        before = deepcopy(table.oracle) if going else None
        try:
            for one in self._within(task.span):
                table.oracle.apply(of_table(one, name))
        except ValueError as cause:  # of a row that is not there: what the walk makes of it is a table that waits
            self.wrong.append(f"{name} at {table.newest.position} cannot be merged with {task.span}: {cause}")
            raise
        table.before = before
        table.add(task.span.upto, name)
        if going and self.world.dice.random() < 0.5:
            table.take(0)
            raise ConcurrentModification(f"another writer committed to {name}")
        if self.world.chance("merge landed and failed", 0.3):
            raise ApplyFailed("no answer")
        version = table.newest.version
        assert version is not None
        return MergeResult(version, WriteStrategy("merge", sent=False), CommitMetrics(1, 1, 0, 0, 0), 0.0)


class Alone:
    """Sessions without Spark, one table after the other (`runtime.apply.spark_sessions.Sessions`)."""

    def __init__(self, *_: object) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def session_for(self, target: Target) -> None:
        """See Sessions."""

    def run_each(self, work: Callable[[Any], Any], items: Sequence[Any], _label: Callable[[Any], str]) -> list[Any]:
        """See Sessions."""
        return [work(item) for item in items]


class Nothing:
    """What has nothing to do here: upkeep, tables made anew, files that are put near, spans that are split."""

    errors: Mapping[str, Any] = {}

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None

    def step(self, _state: StreamCheckpoint, tables: Mapping[str, Any], *_: object) -> Mapping[str, Any]:
        """See `runtime.apply.resync_swap.ResyncSwapper`."""
        return tables

    def unfollowed_tables(self, *_: object) -> Container[str]:
        """See `runtime.apply.resync_swap.ResyncSwapper`."""
        return frozenset()
