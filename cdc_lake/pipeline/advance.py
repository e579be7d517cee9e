"""Advancing: from where the tables are to the top of bronze, in spans.

A span ends at a transaction and at a bounded number of changes. Each touched table takes `(its own watermark, upto]`;
all of them are prepared before any is merged, so a `stop` rule ends the span before its transaction for every table.
Then held rows are recorded, tables merged, and one row goes to `cuts`.

The watermark of a table is the later of its own marker and the last cut that lists it as in: a table without changes
costs nothing, and its marker need not move. Where cuts were lost, tables may be beyond the end of a span; the next cut
is written where all of them are again.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from cdc_lake.bronze.nearby import Nearby
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.port import BronzeState
from cdc_lake.bronze.reader import CommitRow
from cdc_lake.config.project import Project, Target
from cdc_lake.errors import (
    ApplyFailed,
    CdcLakeError,
    MergeRefused,
    RuleStopped,
    SilverLost,
    SnapshotIncomplete,
    SparkDied,
    TransactionUndecoded,
)
from cdc_lake.lake.control import ControlTables, RunRow, SnapshotRow
from cdc_lake.lake.marker import read_marker
from cdc_lake.lake.session import death, derive
from cdc_lake.model.relation import TableName
from cdc_lake.model.span import Span
from cdc_lake.observe.failpoint import (
    ALL_MERGED,
    CUT_WRITTEN,
    HELD_RECORDED,
    PREPARED,
    TABLE_MERGED,
    failpoint,
)
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.cuts import BROKEN, IN, Cut, TableState, check_kept, found, last_cut, write_cut
from cdc_lake.pipeline.holds import open_holds, record
from cdc_lake.pipeline.table_span import Prepared, TableJob, merge, prepare
from cdc_lake.pipeline.waiting import undecoded
from cdc_lake.silver.complete import MISSING_BASE
from cdc_lake.silver.merge import MISSING_ROW
from cdc_lake.source.stream import shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass
class Applied:
    """What was done so far; `broken`: silver table → why it waits."""

    stream: str | None = None
    upto: int | None = None
    spans: int = 0
    transactions: int = 0
    changes: int = 0
    merges: int = 0
    held: int = 0
    rules: dict[tuple[str, str, str], list[int]] = field(default_factory=dict)
    broken: dict[str, CdcLakeError] = field(default_factory=dict)

    def count(self, prepared: Prepared) -> None:
        """Add how the rules of a table fared."""
        for one in prepared.counts:
            total = self.rules.setdefault((one.table, one.rule, one.on_fail), [0, 0])
            total[0] += one.evaluated
            total[1] += one.failed

    def rule_facts(self) -> list[dict[str, object]]:
        """The rules as the control table `runs` has them."""
        return [
            {"table": table, "rule": rule, "on_fail": on_fail, "evaluated": judged, "failed": failed}
            for (table, rule, on_fail), (judged, failed) in sorted(self.rules.items())
        ]


class Advance:
    """Walks silver to the top of bronze. One at a time in a process; another process is fenced by the tables.

    `waits`: stop quietly before a transaction that could not be decoded, and look again in the next call.
    """

    def __init__(self, project: Project, spark: SparkSession, tell: Tell, *, waits: bool = False) -> None:
        self._waits = waits
        self._waiting: str | None = None
        self._project = project
        self._spark = spark
        self._tell = tell
        self._bronze = bronze_reader(project)
        self._nearby = Nearby(project.scratch)
        self._control = ControlTables(project.control)
        self._sessions: dict[str, SparkSession] = {}
        self._pool = ThreadPoolExecutor(project.pipeline.apply.parallelism, "merge")
        self._run = uuid.uuid4().hex[:12]
        self._began = datetime.now(UTC)
        self.done = Applied()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        now = kind is not None and not issubclass(kind, Exception)  # asked twice to stop
        self._pool.shutdown(wait=not now, cancel_futures=True)
        self._nearby.close()

    def run(self, goal: int | None, stop: threading.Event) -> None:
        """Apply everything bronze holds now, at most to `goal`. Returns at a span's end when `stop` is set."""
        state = self._bronze.state()
        if state is None:
            return
        self.done.stream = state.stream
        cut = last_cut(self._control, state.stream)
        check_kept(self._bronze.trimmed(), state, cut, self._bronze.place)
        cut = cut or self._load(state)
        position, tables = cut.position, cut.tables
        self.done.upto = position
        top = state.upto if goal is None else min(goal, state.upto)
        waiting = [relation for relation, table in tables.items() if table.state == BROKEN]
        if waiting:
            tables = self._catch_up(state, tables, position, waiting)
        while position < top and not stop.is_set():
            commits = self._next(state, Span(state.epoch, position, top))
            if not commits:
                break
            position, tables = self._span(state, tables, position, commits)
            self.done.upto = position

    def record(self, seconds: float, outcome: str) -> None:
        """Write the row of this run into `runs`."""
        done = self.done
        facts = {
            "rules": done.rule_facts(),
            "transactions": done.transactions,
            "changes": done.changes,
            "merges": done.merges,
            "spans": done.spans,
            "held": done.held,
            "upto": done.upto,
            "seconds": round(seconds, 3),
            "broken": {label: error.code for label, error in done.broken.items()},
        }
        self._control.record(RunRow(self._run, "apply", self._began, datetime.now(UTC), outcome, json.dumps(facts)))

    # ── spans ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _next(self, state: BronzeState, ahead: Span) -> list[CommitRow]:
        """The transactions of the next span; none where there are no more. Raises TransactionUndecoded."""
        bound = self._project.pipeline.apply.span_rows
        taken: list[CommitRow] = []
        rows = 0
        for commit in self._bronze.commits(ahead):
            if taken and (commit.undecoded is not None or rows + commit.changes > bound):
                break
            if commit.undecoded is not None:
                self._stop_before(undecoded(state.stream, commit))
                break
            taken.append(commit)
            rows += commit.changes
        return taken

    def _stop_before(self, error: TransactionUndecoded) -> None:
        if not self._waits:
            raise error
        if self._waiting != error.message:
            self._tell(Progress("apply", f"silver waits: {error.message}", facts={"code": error.code}))
        self._waiting = error.message

    def _span(
        self, state: BronzeState, tables: dict[str, TableState], after: int, commits: Sequence[CommitRow]
    ) -> tuple[int, dict[str, TableState]]:
        """Apply one span; the position reached and the tables there."""
        upto = commits[-1].position
        touched = {relation for commit in commits for relation in commit.counts}
        touched |= {relation for relation, table in tables.items() if table.state == BROKEN}
        jobs = self._jobs(state, tables, touched, after, upto)
        prepared = self._prepare(jobs, tables)
        stops = sorted(p.stop for p in prepared if p.stop is not None)
        if stops:
            position, rule = stops[0]
            before = [c for c in commits if c.position < position]
            if before:
                self._span(state, tables, after, before)
            for one in prepared:
                if not before:
                    self.done.count(one)
            at = shown(state.stream, position)
            raise RuleStopped(f"rule `{rule}` stops the run: a change of the transaction at {at} breaks it")
        reached = dict(tables)
        self._merge(prepared, reached, upto)
        for relation, table in reached.items():
            if table.state == IN and table.position < upto:
                reached[relation] = replace(table, position=upto)
        self._cut(state, upto, commits[-1].commit_ts, reached)
        self.done.spans += 1
        self.done.transactions += len(commits)
        self.done.changes += sum(c.changes for c in commits)
        return upto, reached

    def _catch_up(
        self, state: BronzeState, tables: dict[str, TableState], position: int, waiting: Sequence[str]
    ) -> dict[str, TableState]:
        """Try again the tables that could not go on: what kept them may be mended, and the others need not move."""
        prepared = self._prepare(self._jobs(state, tables, waiting, position, position), tables)
        for one in prepared:
            if one.stop is not None:
                at = shown(state.stream, one.stop[0])
                raise RuleStopped(f"rule `{one.stop[1]}` stops the run: a change at {at} breaks it")
        if prepared:
            tables = dict(tables)
            self._merge(prepared, tables, position)
            self._cut(state, position, None, tables)
        return tables

    def _jobs(
        self, state: BronzeState, tables: dict[str, TableState], touched: Iterable[str], after: int, upto: int
    ) -> list[TableJob]:
        files, held = self._bronze.applied(), self._control.read("held")
        jobs = []
        for relation in sorted(touched):
            target = self._project.target(TableName.parse(relation))
            listed = tables.get(relation)
            marker = read_marker(self._project, target, state.stream)
            known = after if listed is None else listed.position
            watermark = max(known, marker.position if marker.position is not None else known)
            if watermark > known:
                tables[relation] = found(target, state, marker, watermark, held)
            if watermark >= upto:
                continue
            span = Span(state.epoch, watermark, upto)
            if listed is not None and listed.version is not None and marker.version is None:
                lost = SilverLost(f"the last cut lists {target.label}, and the table is gone")
                self._break(target, watermark, lost, tables)
                continue
            keys = open_holds(held, relation, state.epoch, watermark).keys
            layouts = self._bronze.layouts([target.source], span)
            near = self._nearby.of
            jobs.append(TableJob(self._project, target, state.stream, span, files, layouts, keys, near=near))
        return jobs

    def _prepare(self, jobs: Sequence[TableJob], tables: dict[str, TableState]) -> list[Prepared]:
        """Prepare tables side by side; those that cannot go on are noted as broken."""

        def one(job: TableJob) -> Prepared | CdcLakeError | None:
            return _guarded(lambda: prepare(self._session(job.target), job), job.target)

        out = []
        for job, result in zip(jobs, self._parallel(one, jobs), strict=True):
            if isinstance(result, CdcLakeError):
                self._break(job.target, job.span.after, result, tables)
            elif result is not None:
                self.done.broken.pop(job.target.label, None)
                out.append(result)
        return out

    def _merge(self, prepared: Sequence[Prepared], tables: dict[str, TableState], upto: int) -> None:
        failpoint(PREPARED)
        for one in prepared:
            folded = one.folded
            record(self._control, one.job.target, one.job.stream, one.job.span, folded.held, folded.closings)
        failpoint(HELD_RECORDED)

        def write(one: Prepared) -> int | CdcLakeError:
            version = _guarded(lambda: merge(self._session(one.job.target), one), one.job.target)
            failpoint(TABLE_MERGED)
            return version

        held = self._control.read("held")
        for one, version in zip(prepared, self._parallel(write, prepared), strict=True):
            target = one.job.target
            if isinstance(version, CdcLakeError):
                self._break(target, one.job.span.after, version, tables)
                continue
            keys = open_holds(held, str(target.source), one.job.span.epoch, upto).keys
            tables[str(target.source)] = TableState(target.label, target.format, version, upto, IN, len(keys))
            self.done.count(one)
            self.done.merges += 1
            self.done.held += 0 if one.folded.held is None else one.folded.held.num_rows
            self._tell(Progress("merge", target.label, one.seen.rows, unit="changes"))
        self._nearby.release()

    def _break(self, target: Target, position: int, error: CdcLakeError, tables: dict[str, TableState]) -> None:
        relation = str(target.source)
        before = tables.get(relation)
        version = before.version if before else None
        held = before.held if before else 0
        tables[relation] = TableState(target.label, target.format, version, position, BROKEN, held)
        if target.label not in self.done.broken:
            self._tell(Progress("broken", f"{target.label} waits: {error.message}", facts={"code": error.code}))
        self.done.broken[target.label] = error

    # ── the first content ────────────────────────────────────────────────────────────────────────────────────────

    def _start(self, state: BronzeState) -> int:
        rows = [row for row in self._control.streams() if row.stream == state.stream]
        return rows[-1].start if rows else 0

    def _load(self, state: BronzeState) -> Cut:
        """Give each table of the snapshot its first content, and write the first cut."""
        if self._project.pipeline.snapshot.mode == "none":
            return Cut(self._start(state), {})
        done = [r for r in self._control.snapshots() if r.stream == state.stream and r.state == "complete"]
        if not done:
            raise SnapshotIncomplete("the initial snapshot is not complete yet: there is nothing to apply")
        position = done[-1].position
        tables: dict[str, TableState] = {}
        jobs, held = [], self._control.read("held")
        for relation, layout in self._copied(done[-1]):
            target = self._project.target(TableName.parse(relation))
            marker = read_marker(self._project, target, state.stream)
            tables[relation] = found(target, state, marker, marker.position or position, held)
            if marker.position is None:
                jobs.append(self._first(state, target, position, layout))
        prepared = self._prepare(jobs, tables)
        for one in prepared:
            if one.stop is not None:
                self.done.count(one)
                raise RuleStopped(f"rule `{one.stop[1]}` stops the run: a row of the snapshot breaks it")
        self._merge(prepared, tables, position)
        for relation, table in tables.items():
            if table.version is None:
                version = read_marker(
                    self._project, self._project.target(TableName.parse(relation)), state.stream
                ).version
                tables[relation] = replace(table, version=version)
        self._cut(state, position, None, tables)
        return Cut(position, tables)

    def _copied(self, snapshot: SnapshotRow) -> list[tuple[str, int]]:
        return [(str(entry["relation"]), int(entry["layout"])) for entry in json.loads(snapshot.tables)]

    def _first(self, state: BronzeState, target: Target, position: int, layout: int) -> TableJob:
        span = Span(state.epoch, position - 1, position)
        files, layouts = self._bronze.files(), self._bronze.layouts([target.source], span)
        near = self._nearby.of
        return TableJob(self._project, target, state.stream, span, files, layouts, frozenset(), layout, near)

    def _cut(
        self, state: BronzeState, position: int, commit_ts: datetime | None, tables: dict[str, TableState]
    ) -> None:
        if any(table.position > position for table in tables.values()):
            return  # cuts were lost: the next one is where all tables are again
        failpoint(ALL_MERGED)
        write_cut(self._control, state, Cut(position, tables), commit_ts, self._tell)
        failpoint(CUT_WRITTEN)

    # ── threads ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _session(self, target: Target) -> SparkSession:
        """A session a table: commit settings are session-wide and would leak between tables otherwise."""
        if target.label not in self._sessions:
            self._sessions[target.label] = derive(self._spark)
        return self._sessions[target.label]

    def _parallel(self, work: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
        results = list(self._pool.map(work, items))
        if how := death(self._spark):
            raise SparkDied(how)
        return results


def _guarded(work: Callable[[], _R], target: Target) -> _R | CdcLakeError:
    """The result, or the error in the terms of this package; a table's failure must not stop the others."""
    try:
        return work()
    except CdcLakeError as failure:
        return failure
    except Exception as cause:  # noqa: BLE001 - whatever Spark raises is this table's failure and is kept as the cause
        return _explained(cause, target)


def _explained(cause: Exception, target: Target) -> CdcLakeError:
    text = str(cause)
    error: CdcLakeError
    if MISSING_ROW in text or MISSING_BASE in text:
        error = MergeRefused(f"a change refers to a row that {target.label} does not have")
    else:
        error = ApplyFailed(f"{target.label} could not be merged: {type(cause).__name__}")
    error.__cause__ = cause
    return error
