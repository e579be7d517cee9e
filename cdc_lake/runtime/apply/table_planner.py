"""What a span does to the tables it touches: which of them, from where, prepared side by side, merged, or waiting.

A table that cannot go on is noted in the cut as it is, with its error in `done.broken`; the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.data_files import Files
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.span_index import SPLIT_FROM, DataFileCache, SpanPartitioner, as_they_are, outline
from cdc_lake.config.project import Project, Target
from cdc_lake.control.cuts import BROKEN, IN, PAUSED, STAYS, TableState, content_before, state_from_marker
from cdc_lake.control.ownership import Ownership, adoption
from cdc_lake.control.quarantine import QuarantineLog, hold_log, open_holds, record
from cdc_lake.control.snapshots import initial_copies, refetched_rows, refetched_tables
from cdc_lake.errors import (
    CdcLakeError,
    SilverNameShared,
    SilverNotOwned,
    SpanTrimmed,
    TableChangedMeanwhile,
)
from cdc_lake.model.position import Span
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.observability.failpoints import HELD_RECORDED, PREPARED, TABLE_MERGED, failpoint
from cdc_lake.runtime.apply.merge import ApplyTotals, MergeResult, merge
from cdc_lake.runtime.apply.schema_changes import refused_names
from cdc_lake.runtime.apply.spark_sessions import Sessions, SparkLives, capture_errors
from cdc_lake.runtime.apply.table_integrity import (
    damage,
    may_go_on,
    merge_may_be_lost,
    merge_was_lost,
    missing_quarantine_rows,
)
from cdc_lake.runtime.apply.table_span import Copied, PreparedMerge, TableTask, prepare
from cdc_lake.runtime.apply.transaction_groups import GroupSteps
from cdc_lake.silver.row_tracing import NOTHING_WAITS
from cdc_lake.source.base import format_stream_position
from cdc_lake.tables.commit_audit import is_latest_version
from cdc_lake.tables.control_tables import control_tables
from cdc_lake.tables.silver_table import Marker, read_marker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SECOND_LOOK = 30.0
"""Seconds after a merge, or after one may have been made that nobody heard of, for which its commit is looked at
again, and once more when they are over.
"""

_UPKEEPS = 2  # commits of upkeep that a merge gives way to, one after the other


@dataclass(frozen=True, slots=True)
class Load:
    """What a span holds: changes, and their bytes as they were received."""

    rows: int
    size: int


class TablePlanner:
    """The steps of one run, which counts in `totals` what they did."""

    def __init__(
        self,
        project: Project,
        spark: SparkSession,
        report: ProgressReporter,
        allowed: Container[str] = frozenset(),
        lives: SparkLives | None = None,
    ) -> None:
        """`allowed`: destructive operations on silver tables, in words; `lives`: how Spark fared before."""
        lives = lives or SparkLives()
        self._lives = lives
        self._shared_relations = frozenset[str]()
        self._shared: Mapping[TableName, SilverNameShared] = {}
        self._project = project
        self._allowed = allowed
        self._report = report
        self._bronze = bronze_reader(project)
        self._nearby = DataFileCache(project.scratch)
        self._splitter = SpanPartitioner(project.scratch.with_name(f"{project.name}.spans"))
        self._control = control_tables(project)
        self._sessions = Sessions(spark, 1 if lives.suspects else project.pipeline.apply.parallelism, lives)
        self._ownership = Ownership(project)
        self._trimmed_to = -1
        self._fresh_since: dict[str, float] = {}  # of tables whose last merge may be a short time ago
        self.totals = ApplyTotals()
        self.groups = GroupSteps(project, self._control, self._bronze, self._sessions, self.totals, self.set_aside)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sessions.__exit__(kind, value, trace)
        self._nearby.close()
        self._splitter.close()

    def sql(self, target: Target, statement: str) -> None:
        """Run a statement that changes no rows, in the session of a table. Raises LakeError."""
        failed = capture_errors(lambda: self._sessions.session_for(target).sql(statement), target)
        if isinstance(failed, CdcLakeError):
            raise failed

    def read_trim(self, state: StreamCheckpoint, *, loaded: bool) -> None:
        """Note where bronze begins. Raises SpanTrimmed where that is too late for silver, which was never `loaded`."""
        left = self._bronze.last_trimmed().get(state.epoch)
        self._trimmed_to = -1 if left is None else left[0]
        if left is not None and not loaded:
            raise SpanTrimmed(
                f"bronze begins behind {format_stream_position(state.stream, left[0])}, and silver "
                "was never loaded from this stream",
                where=self._bronze.place,
            )

    def set_aside_trimmed(self, state: StreamCheckpoint, tables: Mapping[str, TableState]) -> dict[str, TableState]:
        """The tables of the last cut, of which those wait whose next transactions left bronze."""
        result = dict(tables)
        for relation, table in tables.items():
            target = self._project.target(TableName.parse(relation))
            if table.state not in STAYS and (error := self._span_trimmed(state, target, table)) is not None:
                self.set_aside(target, table.position, error, result)
        return result

    def _span_trimmed(self, state: StreamCheckpoint, target: Target, listed: TableState) -> SpanTrimmed | None:
        """Why a table cannot go on if bronze let go of transactions that it does not have."""
        if listed.position >= self._trimmed_to:
            return None
        marker = read_marker(self._project, target, state.stream)
        copy = self._copy(state, str(target.source)) if marker.position is None else None
        position = max(
            listed.position, -1 if marker.position is None else marker.position, -1 if copy is None else copy[0]
        )
        if position >= self._trimmed_to:
            return None
        begins, stands = (
            format_stream_position(state.stream, self._trimmed_to),
            format_stream_position(state.stream, position),
        )
        words = f"bronze begins behind {begins}, and {target.source} stands at {stands}"
        hint = None if target.keeps_past else f"`cdc-lake resync {target.source}` copies it again, the others go on"
        return SpanTrimmed(words, where=self._bronze.place, hint=hint)

    def verify_all_tables(
        self, state: StreamCheckpoint, tables: Mapping[str, TableState], position: int
    ) -> dict[str, TableState]:
        """The tables of the last cut, at `position`, as they are: those that something else put back or wrote to wait.

        Asked once a start, of all tables, also of those that no span touches; not of those that are paused.
        """
        self._fresh_since = dict.fromkeys(tables, time.monotonic())  # who was there before may have merged just now
        result = dict(tables)
        held = hold_log(self._control)
        for relation, table in tables.items():
            target = self._project.target(TableName.parse(relation))
            if table.version is None or table.state == PAUSED:
                continue
            if not self._remembers(state, target, table, held, result):
                continue
            quiet = table.state == IN and is_latest_version(self._project, target, table.version)
            if quiet and not merge_may_be_lost(self._project, target, state.stream, table):
                continue
            marker = read_marker(self._project, target, state.stream)
            if not self._intact(state.stream, target, table, marker, result) or marker.position is None:
                continue
            if merge_was_lost(table, marker):
                result[relation] = replace(self._rewound(state, target, table, marker), state=BROKEN)
                continue
            if marker.generation > table.generation:
                standing = self._standing(state, target, marker, marker.position, held)
                result[relation] = standing if marker.position >= position else replace(standing, state=BROKEN)
        return result

    def recheck_recent_commits(
        self, state: StreamCheckpoint, tables: Mapping[str, TableState]
    ) -> dict[str, TableState]:
        """The tables of the last cut; one waits where another program's commit has taken the place of our last one.

        Asked of tables that were or may have been merged a short time ago: whoever took the version had looked for it
        before.
        """
        result, now = dict(tables), time.monotonic()
        for relation, since in [*self._fresh_since.items()]:
            if now - since > SECOND_LOOK:
                del self._fresh_since[relation]
            listed, target = tables.get(relation), self._project.target(TableName.parse(relation))
            if (
                listed is None
                or listed.state != IN
                or not merge_may_be_lost(self._project, target, state.stream, listed)
            ):
                continue
            marker = read_marker(self._project, target, state.stream)
            if self._intact(state.stream, target, listed, marker, result) and merge_was_lost(listed, marker):
                result[relation] = replace(self._rewound(state, target, listed, marker), state=BROKEN)
        return result

    def _standing(
        self, state: StreamCheckpoint, target: Target, marker: Marker, position: int, held: QuarantineLog
    ) -> TableState:
        """A table at its marker's position, whatever a cut says of it."""
        layout = self.layout_at(state, target, -1, position, None)
        return replace(state_from_marker(target, state, marker, position, held), layout=layout)

    def _rewound(self, state: StreamCheckpoint, target: Target, listed: TableState, marker: Marker) -> TableState:
        """A table of which a commit is gone, as it stands; told."""
        assert marker.position is not None, "otherwise it is not intact"
        text = (
            f"{target.label} is at {format_stream_position(state.stream, marker.position)} again: another program's "
            "commit took the version of ours at the same time; what it had merged is merged again"
        )
        self._report(ProgressEvent("warning", text, facts={"table": target.label, "upto": marker.position}))
        standing = self._standing(state, target, marker, marker.position, hold_log(self._control))
        return replace(standing, copied=listed.copied)

    def jobs(
        self,
        state: StreamCheckpoint,
        tables: dict[str, TableState],
        touched: Iterable[str],
        span: Span,
        load: Load,
        *,
        without: Container[str] = (),
    ) -> list[TableTask]:
        """The jobs that bring the touched tables to the end of `span`; `tables`, as the last cut has them, is made
        current.

        Tables that were read again or decided on come with the touched ones, unless they wait or are among `without`.
        A table that no cut lists yet stands at the span's beginning.
        """
        files, held, rereads = self._bronze.applied_files(), hold_log(self._control), self._control.snapshots()
        again = refetched_tables(rereads, state.stream, span) | held.decided_tables(span)
        waiting = {relation for relation, table in tables.items() if table.state in STAYS}
        after, upto = span.after, span.upto
        names = sorted({*touched, *(name for name in again - waiting if name not in without)})
        large = load.rows * (len(names) - 1) >= SPLIT_FROM
        parts = self._splitter.split(files, span) if large else None
        jobs = []
        for relation in self._able(state, names, after, tables):
            target = self._project.target(TableName.parse(relation))
            listed = tables.get(relation)
            marker = read_marker(self._project, target, state.stream)
            listed_position = after if listed is None else listed.position
            adopts = self.adopts(target) if listed is None or marker.position is None else False
            if isinstance(adopts, SilverNotOwned):
                self.set_aside(target, listed_position, adopts, tables)
                continue
            marker = replace(marker, position=None) if adopts else marker
            watermark = max(listed_position, marker.position if marker.position is not None else listed_position)
            layout = None if listed is None else listed.layout
            if listed is not None and not (
                self._intact(state.stream, target, listed, marker, tables)
                and self._remembers(state, target, listed, held, tables)
            ):
                continue
            if listed is not None and marker.position is not None and merge_was_lost(listed, marker):
                tables[relation] = self._rewound(state, target, listed, marker)
                watermark = listed_position = marker.position
                layout = tables[relation].layout
            if listed is not None and marker.position is not None and marker.generation > listed.generation:
                watermark = listed_position = marker.position  # what the cut says is of a content that was replaced
                tables[relation], layout = state_from_marker(target, state, marker, watermark, held), None
            if watermark > listed_position:
                layout = self.layout_at(state, target, listed_position, watermark, layout)
                copied = None if listed is None or marker.generation > listed.generation else listed.copied
                self._fresh_since[relation] = time.monotonic()  # by who did not live to say so, or got no answer
                tables[relation] = replace(
                    state_from_marker(target, state, marker, watermark, held), layout=layout, copied=copied
                )
            if watermark >= upto:
                if listed is not None and listed.state == BROKEN:  # what kept it is mended, and nothing is to be done
                    tables[relation] = replace(tables[relation], state=IN)
                    self.totals.broken.pop(target.label, None)
                continue
            own_span = Span(state.epoch, watermark, upto)
            begins = listed is not None and listed.state == BROKEN and marker.position is None
            if begins and (copy := self._copy(state, relation)) is not None:  # what kept it from that may be mended
                jobs.append(
                    self.follow_earlier_stream(state, replace(self.first(state, target, *copy, marker), adopts=adopts))
                )
                continue
            part = parts.get(relation, Files.empty()) if parts is not None and watermark >= after else None
            job = replace(
                self._job(state, target, own_span, files if part is None else part, marker, layout, held),
                size=load.size if watermark >= after else None,
                near=self._nearby.local_paths if part is None else as_they_are,
                rereads=refetched_rows(rereads, state.stream, relation, own_span),
                adopts=adopts,
            )
            jobs.append(job.with_summary())
        return jobs

    def _job(
        self,
        state: StreamCheckpoint,
        target: Target,
        span: Span,
        files: Files,
        marker: Marker,
        layout: int | None,
        held: QuarantineLog,
    ) -> TableTask:
        """The job of a table at `marker`, whose rows follow `layout`, for its changes in `span`."""
        relation = str(target.source)
        decided = held.decisions_on(relation, span)
        layouts = self._bronze.layouts([target.source], None if decided else span)  # what was held may be old
        return TableTask(
            self._project,
            target,
            state.stream,
            span,
            files,
            layouts,
            open_holds(held, relation, state.epoch, marker.generation, span.after).waiting,
            marker,
            follows=self._follows(target, layout, layouts),
            allowed=self._allowed,
            all_relations=partial(self._all_layouts, target),
            decided=decided,
            report=self._report,
        )

    def shared_names(self, relations: Collection[str]) -> Mapping[TableName, SilverNameShared]:
        """Of source tables those that wait because the silver table that they would have is another one's, too."""
        if (names := frozenset(relations)) != self._shared_relations:
            self._shared_relations, self._shared = names, refused_names(self._project, map(TableName.parse, names))
        return self._shared

    def _able(
        self, state: StreamCheckpoint, relations: Sequence[str], after: int, tables: dict[str, TableState]
    ) -> list[str]:
        """The tables that have a silver table to themselves (else the marker there is of another's rows) and whose
        transactions bronze has; the others wait.
        """
        shared, able = self.shared_names({*tables, *relations}), []
        for relation in relations:
            target, listed = self._project.target(TableName.parse(relation)), tables.get(relation)
            error = shared.get(target.source) or (None if listed is None else self._span_trimmed(state, target, listed))
            if error is None:
                able.append(relation)
            else:
                self.set_aside(target, after if listed is None else listed.position, error, tables)
        return able

    def adopts(self, target: Target) -> bool | SilverNotOwned:
        """Whether a table without content of this stream is somebody else's that the run adopts; the refusal where it
        is somebody else's and the run does not.
        """
        refusal = self._ownership.refusal(target)
        if refusal is None:
            return False
        return True if adoption(target.label) in self._allowed else refusal

    def layout_at(
        self, state: StreamCheckpoint, target: Target, after: int, position: int, layout: int | None
    ) -> int | None:
        """The layout that a table's rows follow at `position`, where it was `layout` after `after`."""
        span = Span(state.epoch, after, position)
        runs = (
            outline(self._bronze.applied_files(), target.source, span, snapshot=False).runs if position > after else ()
        )
        return runs[-1].layout if runs else layout

    def _follows(self, target: Target, layout: int | None, near: Mapping[int, Relation]) -> Relation | None:
        if layout is None:
            return None
        return near.get(layout) or self._bronze.layouts([target.source]).get(layout)

    def _all_layouts(self, target: Target) -> Iterable[Relation]:
        return self._bronze.layouts([target.source]).values()

    def _copy(self, state: StreamCheckpoint, relation: str) -> tuple[int, int] | None:
        """The position that a table was copied at at first, and its layout there; None where it was not copied."""
        copy = (initial_copies(self._control.snapshots(), state.stream) or {}).get(relation)
        return None if copy is None else (copy.position, copy.layout)

    def _intact(
        self, stream: str, target: Target, listed: TableState, marker: Marker, tables: dict[str, TableState]
    ) -> bool:
        """Whether a table at `marker` goes on, as far as others are concerned; told, or noted as broken."""
        error = damage(self._project, target, stream, listed, marker)
        if error is not None and marker.version is not None:
            error = self._ownership.refusal(target) or error
        if not may_go_on(self._project, error):
            assert error is not None
            self.set_aside(target, listed.position, error, tables)
            return False
        if error is not None:
            tables[str(target.source)] = replace(listed, version=marker.version)
            self._report(ProgressEvent("warning", error.message, facts={"code": error.code}))
        return True

    def _remembers(
        self,
        state: StreamCheckpoint,
        target: Target,
        listed: TableState,
        held: QuarantineLog,
        tables: dict[str, TableState],
    ) -> bool:
        """Whether what the last cut counts as held is recorded; noted as broken where it is not."""
        error = missing_quarantine_rows(held, target, state.epoch, listed)
        if error is None or read_marker(self._project, target, state.stream).generation > listed.generation:
            return True  # what is recorded of a content that was replaced is gone
        self.set_aside(target, listed.position, error, tables)
        return False

    def first(self, state: StreamCheckpoint, target: Target, position: int, layout: int, marker: Marker) -> TableTask:
        """The job that gives a table at `marker` its first content: its rows of the snapshot, with the layout they
        follow.
        """
        span = Span(state.epoch, position - 1, position)
        files, layouts = self._bronze.files(), self._bronze.layouts([target.source], span)
        job = TableTask(self._project, target, state.stream, span, files, layouts, NOTHING_WAITS, marker, layout)
        return replace(job, all_relations=partial(self._all_layouts, target), near=self._nearby.local_paths)

    def follow_earlier_stream(self, state: StreamCheckpoint, first: TableTask) -> TableTask:
        """The job of a table's first content in a stream behind another one: of a table that keeps what its rows were
        the copied rows end those of that stream, and take no place of theirs.
        """
        relation = str(first.target.source)
        if first.stood.version is None or first.adopts or not first.target.keeps_past:
            return first
        before = content_before(self._control, state, relation)
        if before is None:
            return first
        follows = None if before.layout is None else self._bronze.layouts([first.target.source]).get(before.layout)
        return replace(first, copied=Copied(None), follows=follows, allowed=self._allowed)

    def prepare(self, jobs: Sequence[TableTask], tables: dict[str, TableState]) -> list[PreparedMerge]:
        """Prepare tables side by side; those that cannot go on are noted as broken."""

        def prepare_table(job: TableTask) -> PreparedMerge | CdcLakeError | None:
            if (error := self._lives.given_up.get(job.target.label)) is not None:
                return error  # it ended Spark
            return capture_errors(lambda: prepare(self._sessions.session_for(job.target), job), job.target)

        prepared, idle, failed = [], [], list[tuple[TableTask, CdcLakeError]]()
        for job, result in zip(
            jobs, self._sessions.run_each(prepare_table, jobs, lambda job: job.target.label), strict=True
        ):
            if isinstance(result, CdcLakeError):
                failed.append((job, result))
                continue
            self.totals.broken.pop(job.target.label, None)
            if result is not None:
                prepared.append(result)
            else:
                idle.append(job)
        for job, error in failed:
            self.set_aside(job.target, job.span.after, error, tables)
        for table, error in self._shared.items():  # behind what goes on: it may have the label of one that waits
            if str(table) in tables:
                self.totals.broken.setdefault(self._project.target(table).label, error)
        prepared = self.groups.hold_whole_transactions(prepared, tables)
        for job in idle:
            waits = tables.get(relation := str(job.target.source))
            if waits is not None and waits.state == BROKEN and not self.groups.waits(job.target):
                layout = job.layout if job.snapshot else waits.layout
                tables[relation] = replace(waits, position=job.span.upto, state=IN, layout=layout)
        return prepared

    def merge(self, prepared: Sequence[PreparedMerge], tables: dict[str, TableState]) -> None:
        """Record what is held, then merge tables side by side; `tables` says afterwards where they stand."""
        failpoint(PREPARED)
        for prepared_table in prepared:
            folded = prepared_table.folded
            job, generation = prepared_table.job, prepared_table.base.generation
            record(self._control, job.target, job.stream, job.span, generation, folded.held, folded.closings)
        failpoint(HELD_RECORDED)

        def write(prepared_table: PreparedMerge) -> MergeResult | CdcLakeError:
            merged = capture_errors(lambda: self._merge_table(prepared_table), prepared_table.job.target)
            failpoint(TABLE_MERGED)
            return merged

        held = hold_log(self._control)
        for prepared_table, merged in zip(
            prepared,
            self._sessions.run_each(write, prepared, lambda prepared_table: prepared_table.job.target.label),
            strict=True,
        ):
            target = prepared_table.job.target
            if isinstance(merged, CdcLakeError):
                self.set_aside(target, prepared_table.job.span.after, merged, tables)
                continue
            self._lives.record_merge(target.label)
            relation, generation = str(target.source), prepared_table.base.generation
            upto, layout = prepared_table.job.span.upto, prepared_table.shape.relation.layout
            listed = tables.get(relation)
            between = listed is not None and _may_have_foreign_commit(
                target, listed, prepared_table.base.version, merged.version
            )
            reached = Marker(upto, merged.version, generation)
            if (
                listed is not None
                and between
                and not self._intact(prepared_table.job.stream, target, listed, reached, tables)
            ):
                continue
            keys = open_holds(held, relation, prepared_table.job.span.epoch, generation, upto).keys
            copied = None if listed is None else listed.copied
            tables[relation] = TableState(
                target.label, target.format, merged.version, upto, IN, len(keys), generation, layout, copied, upto
            )
            self._fresh_since[relation] = time.monotonic()
            self.totals.count(prepared_table)
            self.totals.count_merge(prepared_table, merged)
            self.totals.count_held(prepared_table)
            facts = {"table": target.label, **merged.strategy.facts, **merged.written.facts}
            facts["seconds"] = round(merged.seconds, 3)
            self._report(ProgressEvent("merge", target.label, prepared_table.summary.rows, unit="changes", facts=facts))
        self.groups.bind(tables)
        self._nearby.release()

    def _merge_table(self, prepared_table: PreparedMerge) -> MergeResult:
        """Merge; once more where another commit came first that took the table no further: upkeep, whose rows are the
        same.
        """
        spark = self._sessions.session_for(prepared_table.job.target)
        for _ in range(_UPKEEPS):
            try:
                return merge(spark, prepared_table)
            except TableChangedMeanwhile:
                now = prepared_table.store.marker(prepared_table.job.stream)
                if (
                    now.version == prepared_table.base.version
                    or replace(now, version=prepared_table.base.version) != prepared_table.base
                ):
                    raise
                again = prepare(spark, prepared_table.job)
                assert again is not None  # the span is the same
                prepared_table = again
        return merge(spark, prepared_table)

    def set_aside(self, target: Target, position: int, error: CdcLakeError, tables: dict[str, TableState]) -> None:
        """Note that a table, which is at `position`, cannot go on and waits."""
        relation = str(target.source)
        before = tables.get(relation)
        empty = TableState(target.label, target.format, None, position, BROKEN, 0)
        why = (error.code, error.message, error.for_table(relation).remedy)
        tables[relation] = replace(before or empty, position=position, state=BROKEN, error=why)
        if target.label not in self.totals.broken:
            facts = {"table": target.label, "code": error.code}
            self._report(ProgressEvent("broken", f"{target.label} waits: {error.message}", facts=facts))
        self.totals.broken[target.label] = error


def _may_have_foreign_commit(target: Target, listed: TableState, base: int | None, version: int) -> bool:
    """Whether there may be a commit of somebody else among ours since the last cut: none was looked for since.

    On Iceberg nothing comes between the version a merge was made on and its own.
    """
    if listed.version is None:
        return False
    return base != listed.version or (target.format == "delta" and version != listed.version + 1)
