"""Applies bronze to silver in spans, from the position of the tables to the end of bronze.

A span ends at a transaction and at a limited number of changes. Each touched table takes `(its own watermark, upto]`;
all of them are prepared before any is merged, so a `stop` rule ends the span before its transaction for every table.
Then quarantined rows are recorded, tables merged, and a row is added to `cuts`.

The watermark of a table is the later of its own marker and the last cut that lists it as in: a table without changes
costs nothing, and its marker need not move. If cuts were lost, tables may be beyond the end of a span; the next cut is
written when all of them have the same position again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.reader import CommitRow
from cdc_lake.config.model import Apply
from cdc_lake.config.project import Project
from cdc_lake.connectors.open_stream import backlog
from cdc_lake.control.cuts import (
    ACTIVE,
    FAILED,
    NOT_ADVANCING,
    PAUSED,
    RESYNCING,
    Cut,
    TableState,
    last_cut,
    state_from_marker,
    write_cut,
)
from cdc_lake.control.quarantine import quarantine_log
from cdc_lake.control.snapshots import beginning, initial_copies, refetched_tables
from cdc_lake.control.streams import undecoded_error
from cdc_lake.control.table_pauses import apply_pause_state, stopped_tables
from cdc_lake.errors import SilverNotOwned, SnapshotIncomplete
from cdc_lake.model.position import Span
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import ProgressEvent, ProgressReporter, of_run
from cdc_lake.observability.failpoints import ALL_MERGED, CUT_WRITTEN, failpoint
from cdc_lake.runtime.apply.merge import ApplyTotals
from cdc_lake.runtime.apply.resync_swap import ResyncSwapper
from cdc_lake.runtime.apply.span_planning import SpanPlan, TableTask, next_span, parts_of, span_limits
from cdc_lake.runtime.apply.spark_sessions import SparkLives
from cdc_lake.runtime.apply.table_planner import Load, TablePlanner
from cdc_lake.runtime.apply.table_span import stopped_by_rule
from cdc_lake.runtime.cut_retention import JudgingClock, Keeper
from cdc_lake.source.base import domain_of, format_stream_position
from cdc_lake.tables.control_schema import new_run
from cdc_lake.tables.control_tables import ControlTables, control_tables
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.spark_session import cluster_cores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def first_content(
    project: Project, control: ControlTables, planner: TablePlanner, state: StreamCheckpoint, paused: Container[str]
) -> Cut:
    """Load the snapshot of each table; returns the first cut of the stream, which the caller writes.

    A table that was copied at another position starts there, and is in the cuts from there on. A table that has its
    content already is left as it is; a paused one stays before its copy, and loads it when it is resumed.
    Raises SnapshotIncomplete, RuleStopped.
    """
    copies = initial_copies(control.snapshots(), state.stream)
    if copies is None:
        raise SnapshotIncomplete("the initial copy is not complete yet: there is nothing to apply")
    tables: dict[str, TableState] = {}
    tasks, quarantine = [], quarantine_log(control)
    shared = planner.shared_names(copies)
    for relation, copy in copies.items():
        target = project.target(copy.relation)
        if (error := shared.get(copy.relation)) is not None:  # the marker belongs to another table's rows
            tables[relation] = planner.set_aside(target, copy.position - 1, error, None)
            continue
        marker = table_log(project, target).marker(state.stream)
        adopts = planner.adopts(target)
        if adopts is True:
            marker = replace(marker, position=None, version=None)  # its content is not a base to continue from
        position = marker.position or copy.position
        layout = planner.layout_at(state, target, copy.position, position, copy.layout)
        if isinstance(adopts, SilverNotOwned):
            tables[relation] = planner.set_aside(target, copy.position - 1, adopts, None)
            continue
        tables[relation] = replace(state_from_marker(target, state, marker, position, quarantine), layout=layout)
        if marker.position is None and relation in paused:
            tables[relation] = replace(tables[relation], state=PAUSED, position=copy.position - 1)  # before its copy
        elif marker.position is None:
            first = replace(planner.first(state, target, copy.position, copy.layout, marker), adopts=adopts)
            tasks.append(planner.follow_earlier_stream(state, first))
    prepared = planner.prepare(SpanPlan(tables, tasks))
    for merge_plan in prepared.merges:
        if merge_plan.stop is not None:
            planner.totals.count(merge_plan)
            raise stopped_by_rule([merge_plan])
    tables = planner.merge(prepared)
    for relation, table in tables.items():
        if table.version is None and table.state == ACTIVE:
            version = table_log(project, project.target(TableName.parse(relation))).marker(state.stream).version
            tables[relation] = replace(table, version=version)
    return Cut(beginning(control, state), tables)


class SpanLoop:
    """Applies spans up to the end of bronze. One at a time in a process; the tables fence other processes.

    `waits`: stop quietly before an undecodable transaction, and check again in the next call. `allowed`: approved
    destructive operations on silver tables. `gives_way`: whether to stop at the end of a span and leave the rest to a
    later call; `lives`: earlier crashes of Spark in this run.
    """

    def __init__(
        self,
        project: Project,
        spark: SparkSession,
        report: ProgressReporter,
        *,
        waits: bool = False,
        allowed: Container[str] = frozenset(),
        gives_way: Callable[[], bool] = bool,
        lives: SparkLives | None = None,
    ) -> None:
        self._waits = waits
        self._gives_way = gives_way
        self._waiting: str | None = None
        self._verified = False
        self._project = project
        self._spark = spark
        self._run = new_run()
        self._report = report = of_run(self._run, report)
        self._bronze = bronze_reader(project)
        self._control = control_tables(project)
        self._planner = TablePlanner(project, spark, report, allowed, lives)
        self._planner.totals.run = self._run
        self._renewing = ResyncSwapper(project, self._control, spark, report)
        self._keeper = Keeper(project, self._control, self._planner.sql, report)
        self._clock = JudgingClock(project, self._control, report)
        self._began = datetime.now(UTC)

    def __enter__(self) -> Self:
        self._renewing.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._renewing.__exit__(kind)
        self._planner.__exit__(kind)

    @property
    def totals(self) -> ApplyTotals:
        """What was done so far."""
        return self._planner.totals

    def run(self, goal: int | None, stop: threading.Event) -> None:
        """Apply everything in bronze now, at most up to `goal`. Returns at the end of a span if `stop` is set."""
        state = self._bronze.proven()
        if state is None:
            return
        self.totals.stream = state.stream
        self._renewing.refresh(state)
        self._keeper.keep()
        cut = last_cut(self._control, state.stream)
        self._planner.read_trim(state, loaded=cut is not None)
        cut = cut or self._begin(state)
        position, listed = cut.position, self._apply_pauses(state, cut.tables, cut.position)
        if not self._verified:
            self._verified = True
            tables = self._planner.verify_all_tables(state, listed, position)
        else:
            tables = self._planner.recheck_recent_commits(state, listed)
        tables = self._planner.set_aside_trimmed(state, tables)
        self._cut_again(state, position, listed, tables)
        self.totals.upto = begins = position
        top = self.totals.top = state.upto if goal is None else min(goal, state.upto)
        tables = self._take_renewed_tables(state, tables, position, stop)
        while position < top and not stop.is_set() and not self._gives_way():
            mark = self._renewing.next_boundary(position, top)
            ahead = Span(state.epoch, position, top if mark is None else mark)
            commits = self._next_transactions(state, ahead)
            if not commits and not self._has_other_work(state, ahead, marked=mark is not None):
                break
            upto = commits[-1].position if commits else ahead.upto
            position, tables = self._apply_span(state, tables, position, commits, upto)
            self.totals.upto = position
            self._report(backlog("applied", position, begins, top, domain_of(state.stream)))
            if position < top or position == mark:
                listed = self._apply_pauses(state, tables, position)
                tables = self._planner.recheck_recent_commits(state, listed)
                self._cut_again(state, position, listed, tables)
                tables = self._take_renewed_tables(state, tables, position, stop)
        while not self._waits and self._renewing.outcome(stop):
            tables = self._take_renewed_tables(state, tables, position, stop)
        self.totals.failed.update(self._renewing.errors)
        if not stop.is_set():
            self._clock.tick(state.stream)

    def record(self, seconds: float, outcome: str) -> None:
        """Write the row of this run into `runs`."""
        self._control.record(self.totals.run_row(self._began, datetime.now(UTC), outcome, seconds))

    def _begin(self, state: StreamCheckpoint) -> Cut:
        """The first cut of a stream."""
        if self._project.pipeline.snapshot.mode == "none":
            rows = [row for row in self._control.streams() if row.stream == state.stream]
            return Cut(rows[-1].start if rows else 0, {})
        paused = stopped_tables(self._project, self._control)
        cut = first_content(self._project, self._control, self._planner, state, paused)
        self._cut(state, cut.position, None, cut.tables)
        return cut

    def _next_transactions(self, state: StreamCheckpoint, ahead: Span) -> list[CommitRow]:
        """The transactions of the next span, empty if there are none. Raises TransactionUndecoded."""
        commits = self._bronze.commits_in_turn(ahead)
        span_commits, stuck = next_span(commits, self._limits)
        if stuck is not None:
            error = undecoded_error(state.stream, stuck)
            if not self._waits:
                raise error
            if self._waiting != error.message:
                self._report(ProgressEvent("apply", f"silver waits: {error.message}", facts={"code": error.code}))
            self._waiting = error.message
        return span_commits

    @property
    def _limits(self) -> Apply:
        """Limits of a span on the cores that the cluster has now."""
        return span_limits(self._project.pipeline.apply, cluster_cores(self._spark))

    def _has_other_work(self, state: StreamCheckpoint, ahead: Span, *, marked: bool) -> bool:
        """Whether a span without transactions has repaired rows or decisions on quarantined changes, or ends where a
        table is copied or excluded.
        """
        again = marked or refetched_tables(self._control.snapshots(), state.stream, ahead)
        if not again and not quarantine_log(self._control).decided_tables(ahead):
            return False
        return next(iter(self._bronze.commits_in_turn(ahead)), None) is None

    def _apply_span(
        self,
        state: StreamCheckpoint,
        tables: Mapping[str, TableState],
        after: int,
        commits: Sequence[CommitRow],
        upto: int,
    ) -> tuple[int, dict[str, TableState]]:
        """Apply one span, up to where a table needs another layout; returns the position reached and the tables there.

        A table that waits takes no part: it catches up alone, when it can or when it is resumed.
        """
        touched = {relation for commit in commits for relation in commit.counts}
        touched -= {relation for relation, table in tables.items() if table.state in NOT_ADVANCING}
        touched -= (unfollowed := self._renewing.unfollowed_tables(tables, after))
        load = Load(sum(commit.changes for commit in commits), sum(commit.size for commit in commits))
        plan = self._planner.plan_span(state, tables, touched, Span(state.epoch, after, upto), load, without=unfollowed)
        if (next_layout := plan.next_layout) is not None:
            fewer = [commit for commit in commits if commit.position < next_layout]
            return self._apply_span(state, plan.tables, after, fewer, fewer[-1].position if fewer else next_layout - 1)
        prepared = self._planner.prepare(plan)
        if (stop := prepared.stop) is not None:
            before = [commit for commit in commits if commit.position < stop]
            if before:
                self._apply_span(state, prepared.tables, after, before, before[-1].position)
            else:
                for merge_plan in prepared.merges:
                    self.totals.count(merge_plan)
            raise stopped_by_rule(prepared.merges)
        reached = self._planner.merge(prepared)
        for relation, table in reached.items():
            if table.state == ACTIVE and table.position < upto:
                reached[relation] = replace(table, position=upto)
        self._cut(state, upto, max((c.commit_ts for c in commits if c.commit_ts is not None), default=None), reached)
        self.totals.spans += 1
        self.totals.transactions += len(commits)
        self.totals.changes += sum(c.changes for c in commits)
        return upto, reached

    def _apply_pauses(
        self, state: StreamCheckpoint, tables: dict[str, TableState], position: int
    ) -> dict[str, TableState]:
        """The tables with current pauses; changes of these are reported."""
        paused = stopped_tables(self._project, self._control)
        result = apply_pause_state(self._project, tables, paused, position)
        now = {
            result[relation].table: format_stream_position(state.stream, result[relation].position)
            for relation in paused
        }
        for table in sorted(now.keys() - self.totals.paused):
            facts = {"table": table, "position": now[table]}
            self._report(ProgressEvent("paused", f"{table} is paused: it stays at {now[table]}", facts=facts))
            self.totals.failed.pop(table, None)
        for table in sorted(self.totals.paused - now.keys()):
            self._report(ProgressEvent("paused", f"{table} continues", facts={"table": table}))
        self.totals.paused = frozenset(now)
        return result

    def _take_renewed_tables(
        self, state: StreamCheckpoint, tables: dict[str, TableState], position: int, stop: threading.Event
    ) -> dict[str, TableState]:
        """The tables with finished rebuilds; those behind are brought to the position of the others."""
        now = self._renewing.step(state, tables, position, stop)
        new = {name for name, table in now.items() if name not in tables or tables[name].generation < table.generation}
        if new:  # before it catches up, so that a crash does not repeat the rebuild
            for name in new:  # the replaced content caused the error
                self.totals.failed.pop(now[name].table, None)
            stays = {name: replace(now[name], state=RESYNCING) for name in new if now[name].state == FAILED}
            self._cut(state, position, None, now | stays)
        reached = self._catch_up(state, now, position, stop)
        if self._renewing.can_retry(reached):
            return self._take_renewed_tables(state, reached, position, stop)
        return reached

    def _cut_again(
        self, state: StreamCheckpoint, position: int, listed: dict[str, TableState], tables: dict[str, TableState]
    ) -> None:
        """Write the last cut again if its tables changed; if one went back, readers get this cut from now on."""
        if tables == listed:
            return
        reached = {name: (table.generation, table.position) for name, table in listed.items()}
        back = any(name in reached and (t.generation, t.position) < reached[name] for name, t in tables.items())
        last = self._control.last_cut(state.stream) if back else None
        self._cut(state, position, None if last is None else last.commit_ts, tables)

    def _within_a_span(self, task: TableTask) -> TableTask:
        """Limit a table's catching up to what one span takes."""
        if task.snapshot:
            return task
        relation = str(task.target.source)
        commits = (commit for commit in self._bronze.commits_in_turn(task.span) if relation in commit.counts)
        parts = parts_of(commits, relation, task.span, self._limits)
        first = next(parts, None)
        return task if first is None or next(parts, None) is None else task.end_before(first.span.upto + 1)

    def _catch_up(
        self, state: StreamCheckpoint, before: dict[str, TableState], position: int, stop: threading.Event
    ) -> dict[str, TableState]:
        """Retry the tables that could not continue: the cause may be repaired, and the others need not move.

        Each continues layout by layout, one span at a time, up to the position of the others.
        """
        waiting, tables = {relation for relation, table in before.items() if table.state == FAILED}, before
        while waiting and not stop.is_set():
            plan = self._planner.plan_span(state, tables, waiting, Span(state.epoch, position, position), Load(0, 0))
            parts = [
                task if task.next_layout is None else task.end_before(task.next_layout)
                for task in map(self._within_a_span, plan.tasks)
            ]
            tasks = self._planner.groups.align_jobs(parts)
            prepared = self._planner.prepare(SpanPlan(plan.tables, tasks))
            if prepared.stop is not None:
                raise stopped_by_rule(prepared.merges)
            tables = self._planner.merge(prepared)
            for task in tasks:  # also a task without anything to merge
                if (table := tables[str(task.target.source)]).state == ACTIVE:
                    upto = max(table.position, task.span.upto)
                    tables[str(task.target.source)] = replace(table, position=upto)
            later = {str(task.target.source) for task in parts} - {str(task.target.source) for task in tasks}
            waiting = {r for r in waiting if tables[r].state == ACTIVE and tables[r].position < position} | later
        tables = tables | {relation: replace(tables[relation], state=FAILED) for relation in waiting}
        if tables != before:
            self._cut(state, position, None, tables)
        return tables

    def _cut(
        self, state: StreamCheckpoint, position: int, commit_ts: datetime | None, tables: dict[str, TableState]
    ) -> None:
        if any(table.position > position for table in tables.values()):
            return  # cuts were lost: the next one is written when all tables are back
        failpoint(ALL_MERGED)
        cut = write_cut(self._control, state, Cut(position, tables), commit_ts, self._report)
        failpoint(CUT_WRITTEN)
        self._keeper.cut(cut)
