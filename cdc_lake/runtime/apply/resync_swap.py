"""Makes silver adopt tables that were copied again: each is rebuilt from its new copy on.

When silver reaches the position of a copy, the table is rebuilt (`runtime.apply.rebuild`) in a separate thread, one
table at a time, and its content is replaced in one commit that begins a new generation. Meanwhile the other tables
continue; the table stays at its position like a paused one, and catches up afterwards. Tables of groups come first, and
everything waits for them, because their group could not continue without them.

A process that dies on the way leaves the table as it was, or a cut that does not record with which copy the content
began: then the rebuild is repeated. A table that was excluded is in no cut after that position, until a copy of it is
adopted.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.config.project import Project
from cdc_lake.control.cuts import FAILED, PAUSED, RESYNCING, TableState, last_cut
from cdc_lake.control.snapshots import CopiedTable, TableTimeline, courses
from cdc_lake.errors import CdcLakeError, GroupWaits, RuleStopped
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.runtime.apply.rebuild import Rebuilding
from cdc_lake.runtime.apply.spark_sessions import MERGING, capture_errors
from cdc_lake.runtime.apply.transaction_groups import renewed_to
from cdc_lake.source.base import format_stream_position
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.spark_session import derive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_LOOK: Final = 0.2  # seconds between two checks whether to stop


@dataclass(frozen=True, slots=True)
class _Running:
    """A rebuild that is running, or finished but not in a cut yet. `relation`: its source table; `others`: positions of
    the other tables of its group when it began.
    """

    relation: str
    copy: CopiedTable
    others: dict[str, int]
    future: Future[TableState | CdcLakeError]


class ResyncSwapper:
    """Tracks which tables of a stream are followed from where, and rebuilds those that were copied again.

    Rebuilds run only inside its context; leaving it on an interrupt does not wait for them.
    """

    def __init__(self, project: Project, control: ControlTables, spark: SparkSession, report: ProgressReporter) -> None:
        """`errors`: why a rebuild failed, by silver table. The next process tries again."""
        self._project = project
        self._control = control
        self._spark = spark
        self._report = report
        self._courses: Mapping[str, TableTimeline] = {}
        self._failed: dict[str, int] = {}
        self.errors: dict[str, CdcLakeError] = {}
        self._waits: dict[str, dict[str, int]] = {}
        """Positions of the tables of a group, by table whose rebuild waits for them."""
        self._reported_tables: set[str] = set()
        self._running: _Running | None = None
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(1, f"{MERGING}-renewed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over.set()
        self._pool.shutdown(wait=kind is None or issubclass(kind, Exception), cancel_futures=True)

    def refresh(self, state: StreamCheckpoint) -> None:
        """Read copies and exclusions, after `state` was read: bronze's changes of an excluded table follow the row that
        excludes it.
        """
        self._courses = courses(self._control.snapshots(), state.stream)

    def next_boundary(self, position: int, top: int) -> int | None:
        """The first position in `(position, top]` at which a table is excluded or copied: a span ends there, even
        without transactions.
        """
        every = [interval for course in self._courses.values() for interval in course.stretches]
        marks = {interval.left for interval in every if interval.left is not None} | {
            interval.begins for interval in every if interval.later
        }
        return min((boundary for boundary in marks if position < boundary <= top), default=None)

    def unfollowed_tables(self, tables: Collection[str], position: int) -> frozenset[str]:
        """Tables whose changes directly after a position are not part of silver; `tables`: those of the cut there.
        Includes tables that wait for their first content.
        """
        return frozenset(
            name
            for name, course in self._courses.items()
            if not course.follows(position) or (name not in tables and course.stretches[-1].later)
        )

    def outcome(self, stop: threading.Event) -> bool:
        """Wait for the running rebuild, at most until `stop`; whether there is an outcome to take."""
        running = self._running
        while running is not None and not running.future.done() and not stop.is_set():
            wait([running.future], _LOOK)
        return running is not None and running.future.done()

    def step(
        self, state: StreamCheckpoint, tables: dict[str, TableState], position: int, stop: threading.Event
    ) -> dict[str, TableState]:
        """The tables of the cut at `position`, without those that are not followed there, and with rebuilt ones, which
        still have to catch up. Waits for tables of groups, at most until `stop`. Raises RuleStopped.
        """
        for name in [name for name in self._waits if self._has_group_moved(name, tables)]:
            del self._waits[name], self._failed[name]
        gone = [name for name in tables if name in self._courses and not self._courses[name].follows(position)]
        for name in sorted(gone):
            self._say(name, tables[name].table, format_stream_position(state.stream, tables[name].position))
        result = self._take_outcome({name: table for name, table in tables.items() if name not in gone}, position)
        for name in sorted(self._courses, key=lambda name: (not self._is_grouped(name), name)):
            copy = self._due(name, result, position)
            if copy is None:
                continue
            if self._is_grouped(name) and self.outcome(stop):
                result = self._take_outcome(result, position)
            if self._running is None:
                self._running = self._start_renewal(state, name, copy, self._places(name, result), position)
                if self._is_grouped(name) and self.outcome(stop):
                    result = self._take_outcome(result, position)
        return {name: self._table_state(name, result, position) for name in result}

    def can_retry(self, tables: Mapping[str, TableState]) -> bool:
        """Whether a rebuild that waited for its group may be tried again."""
        return any(self._has_group_moved(name, tables) for name in self._waits)

    def _has_group_moved(self, name: str, tables: Mapping[str, TableState]) -> bool:
        return self._waits[name] != self._places(name, tables)

    def _places(self, name: str, tables: Mapping[str, TableState]) -> dict[str, int]:
        """Positions of the other tables of a table's group."""
        group = self._project.group(TableName.parse(name))
        others = () if group is None else (str(other) for other in group.tables if str(other) != name)
        return {other: tables[other].position for other in others if other in tables}

    def _is_grouped(self, name: str) -> bool:
        return self._project.group(TableName.parse(name)) is not None

    def _due(self, name: str, tables: Mapping[str, TableState], position: int) -> CopiedTable | None:
        """The copy that a table is to be rebuilt from, if its content began with another one."""
        listed = tables.get(name)
        if listed is not None and listed.state == PAUSED:
            return None
        copy = self._courses[name].renewal(position, None if listed is None else listed.copied)
        return None if copy is None or self._failed.get(name) == copy.position else copy

    def _table_state(self, name: str, tables: Mapping[str, TableState], position: int) -> TableState:
        """A table keeps its position while it is rebuilt or waits for that; afterwards it catches up."""
        table = tables[name]
        if table.state == PAUSED:
            return table
        flows = self._running is None and self._is_grouped(name)  # not begun: the group continues with its content
        if not flows and name in self._courses and self._due(name, tables, position) is not None:
            return replace(table, state=RESYNCING)
        return replace(table, state=FAILED) if table.state == RESYNCING else table

    def _start_renewal(
        self, state: StreamCheckpoint, name: str, copy: CopiedTable, others: dict[str, int], position: int
    ) -> _Running | None:
        """Start the rebuild of a table; None if it has to wait."""
        cut, target = last_cut(self._control, state.stream), self._project.target(copy.relation)
        if cut is None or cut.position != position:
            return None  # cuts were lost: the next one is written when all tables are back
        begins = format_stream_position(state.stream, copy.position)
        facts = {"table": target.label, "position": begins}
        self._report(ProgressEvent("renew", f"{target.label} starts again with the copy at {begins}", facts=facts))
        upto = renewed_to(self._project, state.stream, cut, self._courses, copy)
        work = capture_errors(lambda: Rebuilding(self._project, copy.relation, upto, report=self._report), target)

        def build() -> TableState | CdcLakeError:
            if isinstance(work, CdcLakeError):
                return work
            return capture_errors(lambda: work.renew(derive(self._spark), self._over), target)

        return _Running(name, copy, others, self._pool.submit(build))

    def _take_outcome(self, tables: dict[str, TableState], position: int) -> dict[str, TableState]:
        """The tables with finished rebuilds; those that failed are unchanged and reported."""
        running = self._running
        if running is None or not running.future.done():
            return tables
        self._running = None
        outcome, name, target = running.future.result(), running.relation, self._project.target(running.copy.relation)
        if isinstance(outcome, RuleStopped):
            raise outcome
        if isinstance(outcome, CdcLakeError):
            self._failed[name] = running.copy.position
            self.errors[target.label] = outcome
            if isinstance(outcome, GroupWaits):
                self._waits[name] = running.others
            facts = {"table": target.label, "code": outcome.code}
            self._report(ProgressEvent("failed", f"{target.label} keeps its content: {outcome.message}", facts=facts))
            listed = tables.get(name)
            if listed is None or listed.state not in {FAILED, RESYNCING} or isinstance(outcome, GroupWaits):
                return tables
            # the copy was to repair what it waited for before
            error = (outcome.code, outcome.message, outcome.for_table(name).remedy)
            return {**tables, name: replace(listed, error=error)}
        self.errors.pop(target.label, None)
        course, listed = self._courses[name], tables.get(name)
        if not course.follows(position) or (listed is None and course.renewal(position, outcome.copied) is not None):
            return tables  # it was excluded meanwhile: its content is in no cut
        paused = listed is not None and listed.state == PAUSED
        state = PAUSED if paused else RESYNCING if outcome.position < position else outcome.state
        return {**tables, name: replace(outcome, state=state)}

    def _say(self, name: str, table: str, position: str) -> None:
        if name not in self._reported_tables:
            self._reported_tables.add(name)
            text = f"{table} stays at {position}: {name} is no longer captured"
            self._report(ProgressEvent("left", text, facts={"table": table, "position": position}))
