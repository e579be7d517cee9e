"""Advancing: from where the tables are to the top of bronze, in spans.

A span ends at a transaction and at a bounded number of changes. Each touched table takes `(its own watermark, upto]`;
all of them are prepared before any is merged, so a `stop` rule ends the span before its transaction for every table.
Then held rows are recorded, tables merged, and one row goes to `cuts`.

The watermark of a table is the later of its own marker and the last cut that lists it as in: a table without changes
costs nothing, and its marker need not move. Where cuts were lost, tables may be beyond the end of a span; the next cut
is written where all of them are again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.port import BronzeState
from cdc_lake.bronze.reader import CommitRow
from cdc_lake.config.project import Project
from cdc_lake.errors import TransactionUndecoded
from cdc_lake.lake.control import control_tables
from cdc_lake.lake.control_rows import new_run
from cdc_lake.model.span import Span
from cdc_lake.observe.failpoint import ALL_MERGED, CUT_WRITTEN, failpoint
from cdc_lake.observe.progress import Progress, Tell, of_run
from cdc_lake.pipeline.applying.applied import Applied
from cdc_lake.pipeline.applying.first_content import first_content
from cdc_lake.pipeline.applying.next_span import next_span
from cdc_lake.pipeline.applying.rebuild_plan import parts_of
from cdc_lake.pipeline.applying.renewing import Renewing
from cdc_lake.pipeline.applying.reread import Rereader, reread_tables
from cdc_lake.pipeline.applying.sessions import SparkLives
from cdc_lake.pipeline.applying.table_job import TableJob
from cdc_lake.pipeline.applying.table_span import stopped_by_rule
from cdc_lake.pipeline.applying.table_steps import Load, TableSteps
from cdc_lake.pipeline.judging.clock import JudgingClock
from cdc_lake.pipeline.judging.keeping import Keeper
from cdc_lake.pipeline.state.cuts import BROKEN, IN, RENEWING, STAYS, Cut, TableState, last_cut, write_cut
from cdc_lake.pipeline.state.holds import hold_log
from cdc_lake.pipeline.state.pauses import settled, stopped_tables
from cdc_lake.pipeline.state.waiting import undecoded
from cdc_lake.pipeline.stream.backlog import backlog
from cdc_lake.pipeline.wal.note import never
from cdc_lake.source.stream import domain_of, shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Advance:
    """Walks silver to the top of bronze. One at a time in a process; another process is fenced by the tables.

    `waits`: stop quietly before a transaction that could not be decoded, and look again in the next call. `allowed`:
    destructive operations on silver tables that may be done, in words. `gives_way`: whether to stop at a span's end and
    leave the rest to a later call; `lives`: how Spark fared before in this run.
    """

    def __init__(
        self,
        project: Project,
        spark: SparkSession,
        tell: Tell,
        *,
        waits: bool = False,
        allowed: Container[str] = frozenset(),
        gives_way: Callable[[], bool] = never,
        lives: SparkLives | None = None,
    ) -> None:
        self._waits = waits
        self._gives_way = gives_way
        self._waiting: str | None = None
        self._verified = False
        self._project = project
        self._run = new_run()
        self._tell = tell = of_run(self._run, tell)
        self._bronze = bronze_reader(project)
        self._control = control_tables(project)
        self._steps = TableSteps(project, spark, tell, allowed, lives)
        self._steps.done.run = self._run
        silver = project.pipeline.silver
        rereads = "reread" in {silver.defaults.missing_row, *(table.missing_row for table in silver.tables)}
        self._rereader = Rereader(project, self._bronze, self._control, tell) if rereads else None
        self._renewing = Renewing(project, self._control, spark, tell)
        self._keeper = Keeper(project, self._control, self._steps.sql, tell)
        self._clock = JudgingClock(project, self._control, tell)
        self._began = datetime.now(UTC)

    def __enter__(self) -> Self:
        self._renewing.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._renewing.__exit__(kind, value, trace)
        self._steps.__exit__(kind, value, trace)

    @property
    def done(self) -> Applied:
        """What was done so far."""
        return self._steps.done

    def run(self, goal: int | None, stop: threading.Event) -> None:
        """Apply everything bronze holds now, at most to `goal`. Returns at a span's end when `stop` is set."""
        state = self._bronze.proven()
        if state is None:
            return
        self.done.stream = state.stream
        self._renewing.look(state)
        self._keeper.keep()
        cut = last_cut(self._control, state.stream)
        self._steps.read_trim(state, loaded=cut is not None)
        cut = cut or self._begin(state)
        position, known = cut.position, self._paused(state, cut.tables, cut.position)
        if not self._verified:
            self._verified = True
            tables = self._steps.verified(state, known, position)
        else:
            tables = self._steps.looked_again(state, known)
        tables = self._steps.set_aside_trimmed(state, tables)
        self._cut_again(state, position, known, tables)
        self.done.upto = begins = position
        top = self.done.top = state.upto if goal is None else min(goal, state.upto)
        tables = self._renewed(state, tables, position, stop)
        while position < top and not stop.is_set() and not self._gives_way():
            mark = self._renewing.next(position, top)
            ahead = Span(state.epoch, position, top if mark is None else mark)
            commits = self._next(state, ahead)
            if not commits and not self._beside(state, ahead, marked=mark is not None):
                break
            upto = commits[-1].position if commits else ahead.upto
            position, tables = self._span(state, tables, position, commits, upto)
            self.done.upto = position
            self._tell(backlog("applied", position, begins, top, domain_of(state.stream)))
            if position < top or position == mark:
                tables = self._looked_again(state, self._paused(state, tables, position), position)
                tables = self._renewed(state, tables, position, stop)
        while not self._waits and self._renewing.outcome(stop):
            tables = self._renewed(state, tables, position, stop)
        self.done.broken.update(self._renewing.errors)
        if self._rereader is not None and not stop.is_set():
            self._rereader.step(state, tables)
        if not stop.is_set():
            self._clock.tick(state.stream)

    def record(self, seconds: float, outcome: str) -> None:
        """Write the row of this run into `runs`."""
        ended = datetime.now(UTC)
        self._control.record(self.done.run_row(self._began, ended, outcome, seconds))

    def _begin(self, state: BronzeState) -> Cut:
        """The first cut of a stream."""
        if self._project.pipeline.snapshot.mode == "none":
            rows = [row for row in self._control.streams() if row.stream == state.stream]
            return Cut(rows[-1].start if rows else 0, {})
        paused = stopped_tables(self._project, self._control)
        cut = first_content(self._project, self._control, self._steps, state, paused)
        self._cut(state, cut.position, None, cut.tables)
        return cut

    def _next(self, state: BronzeState, ahead: Span) -> list[CommitRow]:
        """The transactions of the next span; none where there are no more. Raises TransactionUndecoded."""
        commits = self._bronze.commits_in_turn(ahead)
        taken, stuck = next_span(commits, self._project.pipeline.apply)
        if stuck is not None:
            self._stop_before(undecoded(state.stream, stuck))
        return taken

    def _stop_before(self, error: TransactionUndecoded) -> None:
        if not self._waits:
            raise error
        if self._waiting != error.message:
            self._tell(Progress("apply", f"silver waits: {error.message}", facts={"code": error.code}))
        self._waiting = error.message

    def _beside(self, state: BronzeState, ahead: Span, *, marked: bool) -> bool:
        """Whether a span without transactions has rows that were read again, or decisions on what is held, or ends
        where a table is copied or left.
        """
        again = marked or reread_tables(self._control.snapshots(), state.stream, ahead)
        if not again and not hold_log(self._control).decided_tables(ahead):
            return False
        return next(iter(self._bronze.commits_in_turn(ahead)), None) is None

    def _span(
        self, state: BronzeState, tables: dict[str, TableState], after: int, commits: Sequence[CommitRow], upto: int
    ) -> tuple[int, dict[str, TableState]]:
        """Apply one span, up to where a table needs another layout; the position reached and the tables there.

        A table that waits is not of it: it catches up alone, when it can or when it is not paused any more.
        """
        touched = {relation for commit in commits for relation in commit.counts}
        touched -= {relation for relation, table in tables.items() if table.state in STAYS}
        touched -= (unfollowed := self._renewing.unfollowed(tables, after))
        load = Load(sum(commit.changes for commit in commits), sum(commit.size for commit in commits))
        jobs = self._steps.jobs(state, tables, touched, Span(state.epoch, after, upto), load, without=unfollowed)
        layouts = [job.next_layout for job in jobs if job.next_layout is not None]
        if layouts:
            fewer = [c for c in commits if c.position < min(layouts)]
            return self._span(state, tables, after, fewer, fewer[-1].position if fewer else min(layouts) - 1)
        prepared = self._steps.prepare(jobs, tables)
        stops = sorted(p.stop for p in prepared if p.stop is not None)
        if stops:
            position, _ = stops[0]
            before = [c for c in commits if c.position < position]
            if before:
                self._span(state, tables, after, before, before[-1].position)
            for one in prepared:
                if not before:
                    self.done.count(one)
            raise stopped_by_rule(prepared)
        reached = dict(tables)
        self._steps.merge(prepared, reached)
        for relation, table in reached.items():
            if table.state == IN and table.position < upto:
                reached[relation] = replace(table, position=upto)
        self._cut(state, upto, max((c.commit_ts for c in commits if c.commit_ts is not None), default=None), reached)
        self.done.spans += 1
        self.done.transactions += len(commits)
        self.done.changes += sum(c.changes for c in commits)
        return upto, reached

    def _paused(self, state: BronzeState, tables: dict[str, TableState], position: int) -> dict[str, TableState]:
        """The tables as pauses have it now; told when that changes."""
        paused = stopped_tables(self._project, self._control)
        out = settled(self._project, tables, paused, position)
        now = {out[relation].table: shown(state.stream, out[relation].position) for relation in paused}
        for table in sorted(now.keys() - self.done.paused):
            facts = {"table": table, "position": now[table]}
            self._tell(Progress("paused", f"{table} is paused: it stays at {now[table]}", facts=facts))
            self.done.broken.pop(table, None)
        for table in sorted(self.done.paused - now.keys()):
            self._tell(Progress("paused", f"{table} goes on", facts={"table": table}))
        self.done.paused = frozenset(now)
        return out

    def _renewed(
        self, state: BronzeState, tables: dict[str, TableState], position: int, stop: threading.Event
    ) -> dict[str, TableState]:
        """The tables with what was made anew since; what stayed behind is brought to where the others are."""
        now = self._renewing.step(state, tables, position, stop)
        new = {name for name, one in now.items() if name not in tables or tables[name].generation < one.generation}
        if new:  # before it catches up: a process that dies on the way does not make it once more
            for name in new:  # what kept its content from going on was of the old one
                self.done.broken.pop(now[name].table, None)
            stays = {name: replace(now[name], state=RENEWING) for name in new if now[name].state == BROKEN}
            self._cut(state, position, None, now | stays)
        there = self._catch_up(state, now, position, stop)
        return self._renewed(state, there, position, stop) if self._renewing.freed(there) else there

    def _looked_again(self, state: BronzeState, tables: dict[str, TableState], position: int) -> dict[str, TableState]:
        """The tables as they are, of which those wait to catch up whose commits another program took the place of."""
        now = self._steps.looked_again(state, tables)
        self._cut_again(state, position, tables, now)
        return now

    def _cut_again(
        self, state: BronzeState, position: int, known: dict[str, TableState], tables: dict[str, TableState]
    ) -> None:
        """The last cut once more, where its tables are not as it has them; where one went back, readers as of its time
        have this one from now on.
        """
        if tables == known:
            return
        reached = {name: (table.generation, table.position) for name, table in known.items()}
        back = any(name in reached and (t.generation, t.position) < reached[name] for name, t in tables.items())
        last = self._control.last_cut(state.stream) if back else None
        self._cut(state, position, None if last is None else last.commit_ts, tables)

    def _within_a_span(self, job: TableJob) -> TableJob:
        """As much of what a table catches up with as one span takes."""
        if job.snapshot:
            return job
        bounds, relation = self._project.pipeline.apply, str(job.target.source)
        commits = (commit for commit in self._bronze.commits_in_turn(job.span) if relation in commit.counts)
        parts = parts_of(commits, relation, job.span, bounds)
        first = next(parts, None)
        return job if first is None or next(parts, None) is None else job.until(first.span.upto + 1)

    def _catch_up(
        self, state: BronzeState, tables: dict[str, TableState], position: int, stop: threading.Event
    ) -> dict[str, TableState]:
        """Try again the tables that could not go on: what kept them may be mended, and the others need not move.

        Each goes layout by layout, as much as a span takes at a time, to where the others are.
        """
        waiting = {relation for relation, table in tables.items() if table.state == BROKEN}
        before, tables = tables, dict(tables)
        while waiting and not stop.is_set():
            jobs = self._steps.jobs(state, tables, waiting, Span(state.epoch, position, position), Load(0, 0))
            whole = map(self._within_a_span, jobs)
            parts = [job if job.next_layout is None else job.until(job.next_layout) for job in whole]
            now = self._steps.groups.aligned(parts)
            prepared = self._steps.prepare(now, tables)
            if any(one.stop is not None for one in prepared):
                raise stopped_by_rule(prepared)
            self._steps.merge(prepared, tables)
            for job in now:  # also one that found nothing to merge
                if (table := tables[str(job.target.source)]).state == IN:
                    upto = max(table.position, job.span.upto)
                    tables[str(job.target.source)] = replace(table, position=upto)
            later = {str(job.target.source) for job in parts} - {str(job.target.source) for job in now}
            waiting = {r for r in waiting if tables[r].state == IN and tables[r].position < position} | later
        for relation in waiting:
            tables[relation] = replace(tables[relation], state=BROKEN)  # it goes on from there at the next start
        if tables != before:
            self._cut(state, position, None, tables)
        return tables

    def _cut(
        self, state: BronzeState, position: int, commit_ts: datetime | None, tables: dict[str, TableState]
    ) -> None:
        if any(table.position > position for table in tables.values()):
            return  # cuts were lost: the next one is where all tables are again
        failpoint(ALL_MERGED)
        cut = write_cut(self._control, state, Cut(position, tables), commit_ts, self._tell)
        failpoint(CUT_WRITTEN)
        self._keeper.cut(cut)
