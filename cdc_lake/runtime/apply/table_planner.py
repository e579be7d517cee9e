"""Plans the effect of a span on each table: from which watermark it is merged; prepares and merges tables in parallel.

Each step takes the tables as the last cut has them and returns them as they are afterwards; it changes none of its
arguments. A table that cannot continue is returned as failed, with its error in `totals.failed`; the others continue.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.data_files import Files
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.span_index import SPLIT_FROM, outline, span_partitioner
from cdc_lake.config.project import Project, Target
from cdc_lake.control.cuts import ACTIVE, FAILED, NOT_ADVANCING, PAUSED, TableState, content_before, state_from_marker
from cdc_lake.control.ownership import Ownership, adoption
from cdc_lake.control.quarantine import QuarantineLog, open_quarantine, quarantine_log, record
from cdc_lake.control.snapshots import initial_copies, refetched_rows, refetched_tables
from cdc_lake.errors import CdcLakeError, ConcurrentModification, SilverNameShared, SilverNotOwned, SpanTrimmed
from cdc_lake.errors.base import without_table_copies
from cdc_lake.model.position import Span
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.observability.failpoints import PREPARED, QUARANTINE_RECORDED, TABLE_MERGED, failpoint
from cdc_lake.runtime.apply.merge import ApplyTotals, MergeResult, merge
from cdc_lake.runtime.apply.schema_changes import refused_names
from cdc_lake.runtime.apply.span_planning import Copied, SpanPlan, TableTask
from cdc_lake.runtime.apply.spark_sessions import Sessions, SparkLives, capture_errors, translate_errors
from cdc_lake.runtime.apply.table_integrity import (
    CommitLost,
    CommitUnrecorded,
    GenerationReplaced,
    InSync,
    Violated,
    find_violation,
    is_tolerated,
    is_untouched,
    merge_may_be_lost,
    missing_quarantine_rows,
    reconcile,
    was_merged_again,
)
from cdc_lake.runtime.apply.table_span import MergePlan, prepare
from cdc_lake.runtime.apply.transaction_groups import GroupSteps
from cdc_lake.silver.row_tracing import NOTHING_WAITS
from cdc_lake.source.base import format_stream_position, takes_table_copies
from cdc_lake.tables.control_schema import SnapshotRow
from cdc_lake.tables.control_tables import control_tables
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.silver_table import Marker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


RECHECK_SECONDS: Final = 30.0
"""Seconds after a merge, or a possible merge of another process, for which its commit is checked again, and once more
when they are over.
"""
_MAINTENANCE_COMMITS: Final = 2
"""Consecutive commits of maintenance for which a merge is retried."""


@dataclass(frozen=True, slots=True)
class Load:
    """The changes of a span, and their bytes as received."""

    rows: int
    size: int


@dataclass(frozen=True, slots=True)
class PreparedSpan:
    """Tables that are ready to be merged, and the state of all tables before that.

    Attributes:
        tables: Source table → its state for the next cut.
        merges: What to merge; a table without changes is not included.
    """

    tables: dict[str, TableState]
    merges: list[MergePlan]

    @property
    def stop(self) -> int | None:
        """The position of the first transaction that violates a `stop` rule."""
        return min((merge_plan.stop[0] for merge_plan in self.merges if merge_plan.stop is not None), default=None)


@dataclass(frozen=True, slots=True)
class _SpanInputs:
    """What is read once for all tables of a span. `parts`: their files, if the span was partitioned."""

    span: Span
    load: Load
    files: Files
    parts: Mapping[str, Files] | None
    quarantine: QuarantineLog
    refetched: Sequence[SnapshotRow]


class TablePlanner:
    """Plans, prepares and merges the tables of one run, and counts it in `totals`."""

    def __init__(
        self,
        project: Project,
        spark: SparkSession,
        report: ProgressReporter,
        allowed: Container[str] = frozenset(),
        lives: SparkLives | None = None,
    ) -> None:
        """`allowed`: approved destructive operations; `lives`: earlier crashes of Spark."""
        lives = lives or SparkLives()
        self._lives = lives
        self._shared_relations = frozenset[str]()
        self._shared: Mapping[TableName, SilverNameShared] = {}
        self._project = project
        self._allowed = allowed
        self._report = report
        self._bronze = bronze_reader(project)
        self._splitter = span_partitioner(project, spark)
        self._control = control_tables(project)
        self._sessions = Sessions(spark, 1 if lives.suspects else project.pipeline.apply.parallelism, lives)
        self._ownership = Ownership(project)
        self._trimmed_to = -1
        self._takes_table_copies = True
        self._fresh_since: dict[str, float] = {}  # of tables that may have been merged a short time ago
        self.totals = ApplyTotals()
        self.groups = GroupSteps(project, self._control, self._bronze, self._sessions, self.totals, self.set_aside)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._sessions.__exit__(kind)
        self._splitter.close()

    def sql(self, target: Target, statement: str) -> None:
        """Run a statement that changes no rows, in the session of a table. Raises LakeError."""
        with translate_errors(target):
            self._sessions.session_for(target).sql(statement)

    def read_trim(self, state: StreamCheckpoint, *, loaded: bool) -> None:
        """Read where bronze begins. Raises SpanTrimmed if that is too late for silver, which was never `loaded`."""
        self._takes_table_copies = takes_table_copies(state.stream)
        left = self._bronze.last_trimmed().get(state.epoch)
        self._trimmed_to = -1 if left is None else left[0]
        if left is not None and not loaded:
            raise SpanTrimmed(
                f"bronze begins after {format_stream_position(state.stream, left[0])}, and silver was never loaded "
                "from this stream",
                where=self._bronze.place,
            )

    def set_aside_trimmed(self, state: StreamCheckpoint, tables: Mapping[str, TableState]) -> dict[str, TableState]:
        """The tables of the last cut; those whose next transactions were trimmed from bronze wait."""
        result = dict(tables)
        for relation, table in tables.items():
            target = self._project.target(TableName.parse(relation))
            if table.state not in NOT_ADVANCING and (error := self._span_trimmed(state, target, table)) is not None:
                result[relation] = self.set_aside(target, table.position, error, table)
        return result

    def _span_trimmed(self, state: StreamCheckpoint, target: Target, listed: TableState) -> SpanTrimmed | None:
        """The error if bronze removed transactions that the table lacks."""
        if listed.position >= self._trimmed_to:
            return None
        marker = table_log(self._project, target).marker(state.stream)
        copy = self._copy(state, str(target.source)) if marker.position is None else None
        position = max(
            listed.position, -1 if marker.position is None else marker.position, -1 if copy is None else copy[0]
        )
        if position >= self._trimmed_to:
            return None
        begins, stands = (format_stream_position(state.stream, place) for place in (self._trimmed_to, position))
        words = f"bronze begins after {begins}, but {target.source} is applied only up to {stands}"
        again = f"`cdc-lake resync {target.source}` copies it again, the other tables continue"
        return SpanTrimmed(words, where=self._bronze.place, hint=None if target.keeps_past else again)

    def verify_all_tables(
        self, state: StreamCheckpoint, tables: Mapping[str, TableState], position: int
    ) -> dict[str, TableState]:
        """Reconcile every table of the last cut with its own commits; those that others changed wait.

        Called once at the start of a run, also for tables that no span touches; not for paused ones.

        Args:
            state: Where bronze is.
            tables: As the last cut has them.
            position: Of the last cut.
        """
        self._fresh_since = dict.fromkeys(tables, time.monotonic())  # the previous run may have merged just now
        result, quarantine = dict(tables), quarantine_log(self._control)
        for relation, table in tables.items():
            if table.version is None or table.state == PAUSED:
                continue
            target = self._project.target(TableName.parse(relation))
            if is_untouched(self._project, target, state, table, quarantine):
                continue
            committed = table_log(self._project, target).marker(state.stream)
            recorded, violation = self._audit_with_quarantine(state, target, table, committed, quarantine)
            match reconcile(recorded, committed, violation, table.position):
                case Violated(error):
                    result[relation] = self.set_aside(target, table.position, error, table)
                case CommitLost():
                    result[relation] = replace(self._rewound(state, target, table, committed), state=FAILED)
                case GenerationReplaced(reached):
                    replaced = self._state_at_marker(state, target, committed, reached, quarantine)
                    result[relation] = replaced if reached >= position else replace(replaced, state=FAILED)
                case InSync() | CommitUnrecorded():  # the next span that touches it takes its position
                    result[relation] = recorded
        return result

    def recheck_recent_commits(
        self, state: StreamCheckpoint, tables: Mapping[str, TableState]
    ) -> dict[str, TableState]:
        """The tables of the last cut; one waits if another program's commit replaced our last one.

        Checked for tables that were or may have been merged a short time ago: the other program chose its version
        before our commit.
        """
        result, now = dict(tables), time.monotonic()
        for relation, since in [*self._fresh_since.items()]:
            if now - since > RECHECK_SECONDS:
                del self._fresh_since[relation]
            table, target = tables.get(relation), self._project.target(TableName.parse(relation))
            if (
                table is None
                or table.state != ACTIVE
                or not merge_may_be_lost(self._project, target, state.stream, table)
            ):
                continue
            committed = table_log(self._project, target).marker(state.stream)
            recorded, violation = self._audit(state.stream, target, table, committed)
            match reconcile(recorded, committed, violation, table.position):
                case Violated(error):
                    result[relation] = self.set_aside(target, table.position, error, table)
                case CommitLost():
                    result[relation] = replace(self._rewound(state, target, table, committed), state=FAILED)
                case InSync() | CommitUnrecorded() | GenerationReplaced():
                    result[relation] = recorded
        return result

    def _audit(
        self, stream: str, target: Target, recorded: TableState, committed: Marker
    ) -> tuple[TableState, CdcLakeError | None]:
        """What a table has to wait for because of its commits, None if nothing; and its state, with the version that
        has its rows: that of a tolerated foreign commit, or of a merge that was repeated.
        """
        error = find_violation(self._project, target, stream, recorded, committed)
        if error is not None and committed.version is not None:
            error = self._ownership.refusal(target) or error
        if error is None and was_merged_again(self._project, target, stream, recorded, committed):
            return replace(recorded, version=committed.version), None
        if error is None or not is_tolerated(self._project, error):
            return recorded, error
        self._report(ProgressEvent("warning", error.message, facts={"code": error.code}))
        return replace(recorded, version=committed.version), None

    def _audit_with_quarantine(
        self,
        state: StreamCheckpoint,
        target: Target,
        recorded: TableState,
        committed: Marker,
        quarantine: QuarantineLog,
    ) -> tuple[TableState, CdcLakeError | None]:
        """The same, with its quarantine rows; those of replaced content were deleted, and are not missed."""
        recorded, error = self._audit(state.stream, target, recorded, committed)
        if error is None and committed.generation <= recorded.generation:
            error = missing_quarantine_rows(quarantine, target, state.epoch, recorded)
        return recorded, error

    def _state_at_marker(
        self, state: StreamCheckpoint, target: Target, marker: Marker, position: int, quarantine: QuarantineLog
    ) -> TableState:
        """The state of a table at its marker's position, regardless of cuts."""
        layout = self.layout_at(state, target, -1, position, None)
        return replace(state_from_marker(target, state, marker, position, quarantine), layout=layout)

    def _rewound(self, state: StreamCheckpoint, target: Target, recorded: TableState, marker: Marker) -> TableState:
        """The state of a table that lost a commit; reports it."""
        assert marker.position is not None, "without a position it has lost its first merge, which is a violation"
        text = (
            f"{target.label} is at {format_stream_position(state.stream, marker.position)} again: at the same time, "
            "another program's commit replaced the version of this pipeline's merge, which is repeated"
        )
        self._report(ProgressEvent("warning", text, facts={"table": target.label, "upto": marker.position}))
        rewound = self._state_at_marker(state, target, marker, marker.position, quarantine_log(self._control))
        return replace(rewound, copied=recorded.copied)

    def plan_span(
        self,
        state: StreamCheckpoint,
        tables: Mapping[str, TableState],
        touched: Iterable[str],
        span: Span,
        load: Load,
        *,
        without: Container[str] = (),
    ) -> SpanPlan:
        """Decide for each table of a span from which watermark it is merged.

        Args:
            state: Where bronze is.
            tables: As the last cut has them.
            touched: Source tables with changes in the span. Tables with repaired rows or decisions that take effect in
                it are added, unless they wait or are among `without`.
            span: A table that no cut lists yet begins at its start.
            load: What the span holds.
            without: Source tables that are left out.

        Returns:
            The tasks that bring the tables to the end of the span, and the tables as they stand before these.
        """
        files, quarantine = self._bronze.applied_files(), quarantine_log(self._control)
        refetched = self._control.snapshots()
        waiting = {relation for relation, table in tables.items() if table.state in NOT_ADVANCING}
        others = (refetched_tables(refetched, state.stream, span) | quarantine.decided_tables(span)) - waiting
        names = sorted({*touched, *(name for name in others if name not in without)})
        large = load.rows * (len(names) - 1) >= SPLIT_FROM
        parts = self._splitter.split(files, span) if large else None
        inputs = _SpanInputs(span, load, files, parts, quarantine, refetched)
        plan = SpanPlan(dict(tables), [])
        for relation in names:
            target = self._project.target(TableName.parse(relation))
            error = self._unmergeable(state, target, tables, names)
            if error is None:
                self._plan_table(state, target, plan, inputs)
            else:
                recorded = tables.get(relation)
                expected = span.after if recorded is None else recorded.position
                plan.tables[relation] = self.set_aside(target, expected, error, recorded)
        return plan

    def _plan_table(self, state: StreamCheckpoint, target: Target, plan: SpanPlan, inputs: _SpanInputs) -> None:
        """Add to `plan` how a table stands, and the task that takes it to the end of the span, if there is one."""
        relation, span, quarantine = str(target.source), inputs.span, inputs.quarantine
        recorded, committed = plan.tables.get(relation), table_log(self._project, target).marker(state.stream)
        expected = span.after if recorded is None else recorded.position
        adopts = self.adopts(target) if recorded is None or committed.position is None else False
        if isinstance(adopts, SilverNotOwned):
            plan.tables[relation] = self.set_aside(target, expected, adopts, recorded)
            return
        committed = replace(committed, position=None) if adopts else committed
        current, violation = recorded, None
        if recorded is not None:
            current, violation = self._audit_with_quarantine(state, target, recorded, committed, quarantine)
        match reconcile(current, committed, violation, expected):
            case Violated(error):
                plan.tables[relation] = self.set_aside(target, expected, error, recorded)
                return
            case CommitLost():
                assert current is not None, "only a recorded merge can be lost"
                current = self._rewound(state, target, current, committed)
            case GenerationReplaced(position):
                current = self._state_at_marker(state, target, committed, position, quarantine)
            case CommitUnrecorded(position):  # the previous run was killed, or got no answer
                self._fresh_since[relation] = time.monotonic()
                reached = state_from_marker(target, state, committed, position, quarantine)
                layout, copied = (None, None) if current is None else (current.layout, current.copied)
                layout = self.layout_at(state, target, expected, position, layout)
                current = replace(reached, layout=layout, copied=copied)
            case InSync():
                pass
        if current is not None:
            plan.tables[relation] = current
        watermark = expected if current is None else current.position
        if watermark >= span.upto:
            if recorded is not None and recorded.state == FAILED and current is not None:
                plan.tables[relation] = replace(current, state=ACTIVE)  # the cause is gone, and nothing is to be done
                self.totals.failed.pop(target.label, None)
            return
        never_merged = recorded is not None and recorded.state == FAILED and committed.position is None
        if never_merged and (copy := self._copy(state, relation)) is not None:
            first = replace(self.first(state, target, *copy, committed), adopts=adopts)
            plan.tasks.append(self.follow_earlier_stream(state, first))
            return
        task = self._task(state, target, watermark, None if current is None else current.layout, committed, inputs)
        plan.tasks.append(replace(task, adopts=adopts).with_summary())

    def _task(
        self,
        state: StreamCheckpoint,
        target: Target,
        watermark: int,
        layout: int | None,
        marker: Marker,
        inputs: _SpanInputs,
    ) -> TableTask:
        """The task of a table at `marker`, whose rows have `layout`, for its changes after `watermark`."""
        relation, span = str(target.source), Span(state.epoch, watermark, inputs.span.upto)
        decided = inputs.quarantine.decisions_on(relation, span)
        layouts = self._bronze.layouts([target.source], None if decided else span)  # quarantined changes may be old
        own = watermark >= inputs.span.after  # otherwise it catches up, and the counts of the span do not apply
        part = inputs.parts.get(relation, Files.empty()) if inputs.parts is not None and own else None
        return TableTask(
            self._project,
            target,
            state.stream,
            span,
            inputs.files if part is None else part,
            layouts,
            open_quarantine(inputs.quarantine, relation, state.epoch, marker.generation, span.after).waiting,
            marker,
            size=inputs.load.size if own else None,
            follows=self._follows(target, layout, layouts),
            allowed=self._allowed,
            all_relations=partial(self._all_layouts, target),
            rereads=refetched_rows(inputs.refetched, state.stream, relation, span),
            decided=decided,
            report=self._report,
        )

    def shared_names(self, relations: Collection[str]) -> Mapping[TableName, SilverNameShared]:
        """Source tables that wait because their silver table would be that of another one, too."""
        if (names := frozenset(relations)) != self._shared_relations:
            self._shared_relations, self._shared = names, refused_names(self._project, map(TableName.parse, names))
        return self._shared

    def _unmergeable(
        self, state: StreamCheckpoint, target: Target, tables: Mapping[str, TableState], names: Sequence[str]
    ) -> CdcLakeError | None:
        """Why a table is not planned at all: its silver table belongs to another source table too, or bronze trimmed
        transactions that it lacks.
        """
        recorded = tables.get(str(target.source))
        shared = self.shared_names({*tables, *names}).get(target.source)
        return shared or (None if recorded is None else self._span_trimmed(state, target, recorded))

    def adopts(self, target: Target) -> bool | SilverNotOwned:
        """Whether the run adopts a table that has no content of this stream and belongs to somebody else; an error if
        it belongs to somebody else and the run does not adopt it.
        """
        refusal = self._ownership.refusal(target)
        if refusal is None:
            return False
        return True if adoption(target.label) in self._allowed else refusal

    def layout_at(
        self, state: StreamCheckpoint, target: Target, after: int, position: int, layout: int | None
    ) -> int | None:
        """The layout of a table's rows at `position`, if it was `layout` after `after`."""
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
        """The position of a table's initial copy, and its layout there; None if it was not copied."""
        copy = (initial_copies(self._control.snapshots(), state.stream) or {}).get(relation)
        return None if copy is None else (copy.position, copy.layout)

    def first(self, state: StreamCheckpoint, target: Target, position: int, layout: int, marker: Marker) -> TableTask:
        """The task that loads the snapshot of a table at `marker`, with the layout of its rows."""
        span = Span(state.epoch, position - 1, position)
        files, layouts = self._bronze.files(), self._bronze.layouts([target.source], span)
        task = TableTask(self._project, target, state.stream, span, files, layouts, NOTHING_WAITS, marker, layout)
        return replace(task, all_relations=partial(self._all_layouts, target))

    def follow_earlier_stream(self, state: StreamCheckpoint, first: TableTask) -> TableTask:
        """The task of a table's first content in a stream after another one: in a table that keeps history, the copied
        rows end those of the earlier stream instead of replacing them.
        """
        relation = str(first.target.source)
        if first.stood.version is None or first.adopts or not first.target.keeps_past:
            return first
        before = content_before(self._control, state, relation)
        if before is None:
            return first
        follows = None if before.layout is None else self._bronze.layouts([first.target.source]).get(before.layout)
        return replace(first, copied=Copied(None), follows=follows, allowed=self._allowed)

    def prepare(self, plan: SpanPlan) -> PreparedSpan:
        """Prepare the tables of a plan in parallel; those that cannot continue are returned as failed."""

        def prepare_table(task: TableTask) -> MergePlan | CdcLakeError | None:
            if (error := self._lives.given_up.get(task.target.label)) is not None:
                return error  # it crashed Spark
            return capture_errors(lambda: prepare(self._sessions.session_for(task.target), task), task.target)

        tables, merges, idle, failed = dict(plan.tables), [], [], list[tuple[TableTask, CdcLakeError]]()
        outcomes = self._sessions.run_each(prepare_table, plan.tasks, lambda task: task.target.label)
        for task, outcome in zip(plan.tasks, outcomes, strict=True):
            if isinstance(outcome, CdcLakeError):
                failed.append((task, outcome))
                continue
            self.totals.failed.pop(task.target.label, None)
            if outcome is not None:
                merges.append(outcome)
            else:
                idle.append(task)
        for task, error in failed:
            relation = str(task.target.source)
            tables[relation] = self.set_aside(task.target, task.span.after, error, tables.get(relation))
        for table, shared in self._shared.items():
            if str(table) in tables:  # after those that continue: one may have the label of one that waits
                self.totals.failed.setdefault(self._project.target(table).label, shared)
        merges, tables = self.groups.hold_whole_transactions(merges, tables)
        for task in idle:
            waits = tables.get(relation := str(task.target.source))
            if waits is not None and waits.state == FAILED and not self.groups.waits(task.target):
                layout = task.layout if task.snapshot else waits.layout
                tables[relation] = replace(waits, position=task.span.upto, state=ACTIVE, layout=layout)
        return PreparedSpan(tables, merges)

    def merge(self, prepared: PreparedSpan) -> dict[str, TableState]:
        """Record what is quarantined, then merge tables in parallel; returns the tables as they are afterwards."""
        failpoint(PREPARED)
        for merge_plan in prepared.merges:
            task, generation = merge_plan.task, merge_plan.base.generation
            quarantined, closings = merge_plan.folded.quarantined, merge_plan.folded.closings
            record(self._control, task.target, task.stream, task.span, generation, quarantined, closings)
        failpoint(QUARANTINE_RECORDED)
        tables, quarantine = dict(prepared.tables), quarantine_log(self._control)
        outcomes = self._sessions.run_each(
            self._merge_table, prepared.merges, lambda merge_plan: merge_plan.task.target.label
        )
        for merge_plan, merged in zip(prepared.merges, outcomes, strict=True):
            target, relation = merge_plan.task.target, str(merge_plan.task.target.source)
            if isinstance(merged, CdcLakeError):
                tables[relation] = self.set_aside(target, merge_plan.task.span.after, merged, tables.get(relation))
                continue
            self._lives.record_merge(target.label)
            if (error := self._violation_beside(merge_plan, merged, tables.get(relation))) is not None:
                recorded = tables[relation]
                tables[relation] = self.set_aside(target, recorded.position, error, recorded)
                continue
            tables[relation] = self._merged_state(merge_plan, merged, tables.get(relation), quarantine)
            self._fresh_since[relation] = time.monotonic()
            self.totals.count(merge_plan)
            self.totals.count_merge(merge_plan, merged)
            self.totals.count_quarantined(merge_plan)
            facts = {"table": target.label, **merged.strategy.facts, **merged.written.facts}
            facts["seconds"] = round(merged.seconds, 3)
            self._report(ProgressEvent("merge", target.label, merge_plan.summary.rows, unit="changes", facts=facts))
        return self.groups.bind(tables)

    def _merge_table(self, merge_plan: MergePlan) -> MergeResult | CdcLakeError:
        """Merge, and retry after a commit that did not advance the table: maintenance, which changes no rows."""
        task, remaining = merge_plan.task, _MAINTENANCE_COMMITS
        spark = self._sessions.session_for(task.target)
        try:
            with translate_errors(task.target):
                while True:
                    try:
                        return merge(merge_plan)
                    except ConcurrentModification:
                        base, now = merge_plan.base, merge_plan.silver.marker(task.stream)
                        if not remaining or now.version == base.version or replace(now, version=base.version) != base:
                            raise
                        again = prepare(spark, task)
                        assert again is not None  # the span is the same
                        merge_plan, remaining = again, remaining - 1
        except CdcLakeError as error:
            return error
        finally:
            failpoint(TABLE_MERGED)

    def _violation_beside(
        self, merge_plan: MergePlan, merged: MergeResult, recorded: TableState | None
    ) -> CdcLakeError | None:
        """What another writer did to a table between the last cut and our merge, None if nothing.

        On Iceberg a merge directly follows the version on which it is based.
        """
        task, base = merge_plan.task, merge_plan.base
        if recorded is None or recorded.version is None:
            return None
        beside = base.version != recorded.version
        beside = beside or (task.target.format == "delta" and merged.version != recorded.version + 1)
        reached = Marker(task.span.upto, merged.version, base.generation)
        return self._audit(task.stream, task.target, recorded, reached)[1] if beside else None

    def _merged_state(
        self, merge_plan: MergePlan, merged: MergeResult, recorded: TableState | None, quarantine: QuarantineLog
    ) -> TableState:
        """The state of a table that was just merged."""
        target, span, generation = merge_plan.task.target, merge_plan.task.span, merge_plan.base.generation
        keys = open_quarantine(quarantine, str(target.source), span.epoch, generation, span.upto).keys
        copied, layout = None if recorded is None else recorded.copied, merge_plan.shape.relation.layout
        label, form, upto = target.label, target.format, span.upto
        return TableState(label, form, merged.version, upto, ACTIVE, len(keys), generation, layout, copied, upto)

    def set_aside(self, target: Target, position: int, error: CdcLakeError, recorded: TableState | None) -> TableState:
        """The state of a table that cannot continue from `position`; reports it the first time."""
        error = error.for_table(str(target.source))
        if not self._takes_table_copies:
            error.remedy = without_table_copies(error.remedy)
        if target.label not in self.totals.failed:
            facts = {"table": target.label, "code": error.code}
            self._report(ProgressEvent("failed", f"{target.label} waits: {error.message}", facts=facts))
        self.totals.failed[target.label] = error
        why = (error.code, error.message, error.remedy)
        empty = TableState(target.label, target.format, None, position, FAILED, 0)
        return replace(recorded or empty, position=position, state=FAILED, error=why)
