"""Rebuild: recreates the content of a silver table from bronze alone, with the code that applies spans.

Rows are built in a separate table, span by span, with the current settings and rules. They then replace the content of
the silver table in one commit that begins a new generation, at the position of the last cut; earlier versions stay
readable. A process that dies before that commit leaves the table unchanged; one that dies after it leaves a table that
the next run detects. A second rebuild starts again.

`into` writes the content to a table of another name instead, which nothing merges into afterwards; with `to`, this
recreates an earlier state.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project, Target
from cdc_lake.connectors.snapshot_copy import Stopped
from cdc_lake.control.coordination import apply_lease
from cdc_lake.control.cuts import ACTIVE, FAILED, Cut, TableState, last_cut, write_cut
from cdc_lake.control.ownership import Ownership
from cdc_lake.control.quarantine import forget, open_quarantine, quarantine_log, record
from cdc_lake.control.snapshots import courses, refetched_rows
from cdc_lake.control.streams import source_table
from cdc_lake.errors import CdcLakeError, NothingToRebuild, RebuildNeedsPlace, RebuildPlaceTaken, SparkDied
from cdc_lake.model.position import Span
from cdc_lake.model.quarantine import NOTHING_DECIDED
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.observability.events import ProgressEvent, ProgressReporter, silent
from cdc_lake.observability.failpoints import REBUILT, REPLACED, failpoint
from cdc_lake.runtime.apply.merge import merge
from cdc_lake.runtime.apply.schema_changes import check_divided, check_divisible, projection_of, refused_names
from cdc_lake.runtime.apply.span_planning import Copied, Part, TableTask, rebuild_plan
from cdc_lake.runtime.apply.spark_sessions import translate_errors
from cdc_lake.runtime.apply.table_schema import shape_of
from cdc_lake.runtime.apply.table_span import MergePlan, prepare, stopped_by_rule
from cdc_lake.runtime.apply.transaction_groups import hold_whole, passed_by, together_at
from cdc_lake.silver.kinds import Difference, difference, kind_of
from cdc_lake.silver.layout_mapping import RelationMapping
from cdc_lake.silver.row_tracing import NOTHING_WAITS, QuarantineState
from cdc_lake.source.base import format_stream_position
from cdc_lake.tables.control_schema import RunRow, new_run
from cdc_lake.tables.control_tables import control_tables
from cdc_lake.tables.delta_table_log import remove_drafts
from cdc_lake.tables.open_silver_table import store, table_log
from cdc_lake.tables.silver_table import FIRST, Marker
from cdc_lake.tables.spark_session import death, derive, start
from cdc_lake.tables.types import quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """Result of a rebuild. `version`: version of the table that has the content now, None if it was only compared;
    `quarantined`: changes that rules hold; `operations`: schema changes on the way for which a run would have needed
    approval.
    """

    pipeline: str
    source: str
    table: str
    position: str
    generation: int
    version: int | None
    quarantined: int
    operations: tuple[str, ...]
    difference: Difference
    seconds: float


def rebuild(
    project: Project,
    table: str,
    *,
    to: int | None = None,
    into: str | None = None,
    dry_run: bool = False,
    keys: int = 0,
    adopt: bool = False,
    report: ProgressReporter = silent,
    spark: SparkSession | None = None,
) -> Rebuilt:
    """Rebuild a table, named by its source, up to silver's position; with `into` up to `to` into a new table.

    `dry_run`: report what would change, and change nothing. `keys`: how many keys of differing rows are reported.
    `adopt`: also if the table belongs to another pipeline or was not written by cdc_lake. A table of a group holds the
    transactions that the other tables hold, and goes no further than these.
    Raises TableNotKnown, RebuildNeedsPlace, RebuildPlaceTaken, PastTrimmed, PositionUnavailable, NothingToRebuild,
    DivisionChanged, RuleStopped, AnotherApply, SilverNotOwned, SparkDied, LakeError; GroupDisagrees if it would hold
    other transactions than the group, QuarantineLost if the group's holds are lost, GroupWaits if one of its tables is
    behind.
    """
    began = time.monotonic()
    if to is not None and into is None:
        raise RebuildNeedsPlace("a live table continues from its watermark; it cannot be kept in a past state")
    name = source_table(table)
    with apply_lease(project):
        work = Rebuilding(project, name, to, into, report, adopt=adopt)
        if spark is None:
            report(ProgressEvent("rebuild", "starting Spark"))
        spark = start(project, spark)
        try:
            return work.run(derive(spark), began, dry_run=dry_run, keys=keys)
        except Exception as cause:
            if (how := death(spark)) is not None:
                raise SparkDied(how) from cause
            if isinstance(cause, CdcLakeError):
                cause.for_table(str(name))
            raise


class Rebuilding:
    """One rebuild, planned before Spark is needed. Raises what `rebuild` does. The caller holds the lease."""

    def __init__(
        self,
        project: Project,
        name: TableName,
        to: int | None = None,
        into: str | None = None,
        report: ProgressReporter = silent,
        *,
        adopt: bool = False,
    ) -> None:
        self._project = project
        self._report = report
        self._reader = bronze_reader(project)
        self._control = control_tables(project)
        state = self._reader.proven()
        if state is None:
            text = f"bronze contains nothing of {name}: no stream was started"
            raise NothingToRebuild(text, where=self._reader.place)
        self._state = state
        self._log = quarantine_log(self._control, for_new_content=True)
        self._target = project.target(name)
        if into is None and not adopt:
            Ownership(project).check(self._target)
        self._cut = last_cut(self._control, self._state.stream)
        self._listed = self._cut.tables.get(str(name)) if self._cut is not None else None
        if into is None:
            copied = courses(self._control.snapshots(), self._state.stream)
            candidates = {name, *map(TableName.parse, {*copied, *(self._cut.tables if self._cut else ())})}
            if (shared := refused_names(project, candidates).get(name)) is not None:
                raise shared
        if into is None and self._cut is None:
            if not self._reader.layouts([name]):
                raise NothingToRebuild(f"bronze contains nothing of {name}", where=self._reader.place)
            raise NothingToRebuild(f"silver has no content of {name} yet: `cdc-lake run` creates it")
        if to is not None or self._cut is None:
            upto = self._state.upto if to is None else to
        else:
            upto = self._cut.position if into else together_at(project, self._state.stream, self._cut, name)
        self._plan = rebuild_plan(project, self._reader, self._state, name, upto)
        self._grouped = project.group(name) is not None
        self._others = passed_by(project, self._log, self._state, self._cut, self._target, self._plan)
        self._marker = table_log(project, self._target).marker(self._state.stream)
        before = [self._listed.generation] if self._listed is not None else []
        before += [self._marker.generation] if self._marker.position is not None else []
        self._generation = max(before, default=FIRST - 1) + 1
        self._place = self._target if into is None else self._free(into)
        check_divisible(project, self._place)
        self._into = into is not None
        self._allowing = _Allowing()
        self._stop = threading.Event()

    def run(self, spark: SparkSession, began: float, *, dry_run: bool, keys: int) -> Rebuilt:
        """Build, compare, and replace the content."""
        started_at = datetime.now(UTC)
        with self._draft_content(spark) as (draft, quarantined):
            differences = self._difference(spark, draft, keys)
            failpoint(REBUILT)
            version = None if dry_run else self._put(spark, draft)
            if version is not None and not self._into and self._cut is not None:
                tables = {**self._cut.tables, str(self._target.source): self._listing(version, quarantined)}
                write_cut(self._control, self._state, Cut(self._cut.position, tables), None, self._report)
        self._forget(replaced=version is not None and not self._into)
        rebuilt = Rebuilt(
            pipeline=self._project.name,
            source=str(self._target.source),
            table=self._place.label,
            position=format_stream_position(self._state.stream, self._plan.upto),
            generation=FIRST if self._into else self._generation,
            version=version,
            quarantined=quarantined.changes,
            operations=tuple(words.replace(draft.label, self._place.label) for words in self._allowing.words),
            difference=differences,
            seconds=round(time.monotonic() - began, 3),
        )
        facts = {**asdict(rebuilt), "difference": asdict(replace(differences, keys={}))}
        words = json.dumps(facts, default=str)
        self._control.record(RunRow(new_run(), "rebuild", started_at, datetime.now(UTC), "done", words))
        return rebuilt

    def renew(self, spark: SparkSession, stop: threading.Event) -> TableState:
        """Build and replace the content; returns the state for the next cut. Raises Stopped, with nothing changed."""
        self._stop = stop
        with self._draft_content(spark) as (draft, quarantined):
            failpoint(REBUILT)
            if stop.is_set():
                raise Stopped
            listing = self._listing(self._put(spark, draft), quarantined)
        self._forget(replaced=True)
        return listing

    @contextmanager
    def _draft_content(self, spark: SparkSession) -> Iterator[tuple[Target, _Held]]:
        """The content in a temporary table, dropped at the end, and its quarantined changes."""
        namespace = f"scratch/{self._project.name}.rebuild"
        remove_drafts(self._project, namespace)  # left by a killed process
        self._forget()
        name = f"{self._target.label}.{uuid.uuid4().hex[:8]}"
        # Only the final table is partitioned: the draft is read once, and its format may not support the partitioning.
        undivided = replace(self._target, format="delta", partition_by=(), cluster_by=())
        draft = replace(undivided, namespace=namespace, name=name)
        try:
            quarantined = self._build(spark, draft)
            check_divided(self._project, self._place, store(spark, self._project, draft).columns() or ())
            yield draft, quarantined
        finally:
            remove_drafts(self._project, namespace)

    def _free(self, into: str) -> Target:
        """The target for another name. Raises RebuildPlaceTaken."""
        place = replace(self._target, name=into)
        taken_labels = {self._target.label}
        if self._cut is not None:
            taken_labels |= {self._project.target(TableName.parse(relation)).label for relation in self._cut.tables}
        if place.label in taken_labels:
            raise RebuildPlaceTaken(f"{place.label} is a table of the pipeline itself")
        # A rebuild that died between creating and filling an Iceberg table leaves one without a version.
        unfinished = place.format == "iceberg" and table_log(self._project, place).version() is None
        if table_log(self._project, place).exists() and not unfinished:
            raise RebuildPlaceTaken(f"{place.label} already exists")
        return place

    def _forget(self, *, replaced: bool = False) -> None:
        """Delete quarantined rows that do not count: of a generation that was never published, or of a replaced one."""
        current = self._generation if replaced else self._generation - 1
        forget(self._control, self._target, self._state.epoch, current, replaced=replaced)

    def _build(self, spark: SparkSession, draft: Target) -> _Held:
        """Fill the draft, layout by layout as a run does; returns its quarantined changes at the end."""
        plan, silver = self._plan, store(spark, self._project, draft)
        reached = _At(None, _Held(0, NOTHING_WAITS))
        if plan.layout is not None:
            first = Span(self._state.epoch, plan.begins - 1, plan.begins)
            reached = self._step(spark, self._task(draft, first, reached, layout=plan.layout), reached)
        for number, part in enumerate(plan.parts, 1):
            if self._stop.is_set():
                raise Stopped
            reached = self._part(spark, draft, part, reached)
            self._report(ProgressEvent("rebuild", self._target.label, number, len(plan.parts), unit="spans"))
        if silver.columns() is None:  # no rows so far
            silver.create(kind_of(draft, self._plan.form).columns(self._shape(spark, draft)), self._state.stream)
        return reached.quarantined

    def _part(self, spark: SparkSession, draft: Target, part: Part, reached: _At) -> _At:
        if part.copy is not None:
            task = self._task(draft, part.span, reached, layout=part.copy.layout)
            return self._step(spark, replace(task, copied=Copied(part.commit_ts)), reached)
        span: Span | None = part.span
        while span is not None:
            full_task = replace(self._task(draft, span, reached), size=part.size)
            next_task = full_task if full_task.next_layout is None else full_task.end_before(full_task.next_layout)
            reached = self._step(spark, next_task, reached)
            span = None if next_task is full_task else replace(span, after=next_task.span.upto)
        return reached

    def _task(self, draft: Target, span: Span, reached: _At, layout: int | None = None) -> TableTask:
        files = self._reader.applied_files() if layout is None else self._reader.files()
        decided = self._log.decisions_on(str(draft.source), span) if layout is None else NOTHING_DECIDED
        task = TableTask(
            self._project,
            draft,
            self._state.stream,
            span,
            files,
            self._reader.layouts([draft.source], None if decided else span),
            reached.quarantined.waiting,
            table_log(self._project, draft).marker(self._state.stream),
            layout=layout,
            follows=reached.follows,
            allowed=self._allowing,
            all_relations=lambda: self._reader.layouts([draft.source]).values(),
            form=self._plan.form,
        )
        if layout is not None:
            return task
        rereads = refetched_rows(self._control.snapshots(), self._state.stream, str(draft.source), span)
        return replace(task, rereads=rereads, decided=decided).with_summary()

    def _step(self, spark: SparkSession, task: TableTask, reached: _At) -> _At:
        """Apply one part to the draft; returns its state after it."""
        with translate_errors(self._target):
            prepared = self._prepare_task(spark, task)
        if prepared is None:
            copied = None if task.layout is None else task.layouts[task.layout]
            return _At(copied or reached.follows, self._read_holds(task.span) if task.decided else reached.quarantined)
        if prepared.stop is not None:
            raise stopped_by_rule([prepared], "rebuild")
        folded, span, generation = prepared.folded, task.span, self._generation
        record(self._control, self._target, task.stream, span, generation, folded.quarantined, folded.closings)
        with translate_errors(self._target):
            merge(prepared)
        return _At(task.layouts[prepared.summary.layouts[-1]], self._read_holds(span))

    def _prepare_task(self, spark: SparkSession, task: TableTask) -> MergePlan | None:
        prepared = prepare(spark, task)
        if prepared is None or task.snapshot or not self._grouped:
            return prepared
        (settled,) = hold_whole([prepared], self._others, self._reader, lambda task: prepare(spark, task))
        return settled

    def _read_holds(self, span: Span) -> _Held:
        """The quarantined changes of the draft after a span."""
        log, relation = quarantine_log(self._control), str(self._target.source)
        holds = open_quarantine(log, relation, span.epoch, self._generation, span.upto)
        return _Held(holds.rows.num_rows, holds.waiting)

    def _shape(self, spark: SparkSession, draft: Target) -> RelationMapping:
        """The mapping from the table's last layout to silver."""
        form = self._plan.form
        shape = shape_of((form.layout,), {form.layout: form}, draft, kind_of(draft, form))
        return projection_of(spark, self._project, draft, shape).silver

    def _difference(self, spark: SparkSession, draft: Target, keys: int) -> Difference:
        shape = self._shape(spark, draft)
        exists = not self._into and self._marker.version is not None
        before = spark.table(store(spark, self._project, self._target).name) if exists else None
        after = spark.table(store(spark, self._project, draft).name)
        return difference(before, after, self._target, shape, keys)

    def _put(self, spark: SparkSession, draft: Target) -> int:
        """Replace the content of the table with the draft; returns the version."""
        silver, stream, upto = store(spark, self._project, draft), self._state.stream, self._plan.upto
        columns = silver.columns()
        assert columns is not None, "the draft was created"
        query = f"SELECT {', '.join(quote_identifier(c.name) for c in columns)} FROM {silver.name}"
        place = store(spark, self._project, self._place)
        base, generation = self._marker, self._generation
        if self._into:
            base, generation = Marker(None, None), FIRST
        with translate_errors(self._place):
            version = place.replace(stream, base, generation, upto, columns, query)
        failpoint(REPLACED)
        return version

    def _listing(self, version: int, quarantined: _Held) -> TableState:
        """The rebuilt table as a cut lists it; if its group is behind the cut, so is the table."""
        label, form, plan = self._target.label, self._target.format, self._plan
        keys, is_behind = len(quarantined.waiting.keys), self._cut is not None and plan.upto < self._cut.position
        state = FAILED if is_behind else ACTIVE
        upto, layout = plan.upto, plan.form.layout
        return TableState(label, form, version, upto, state, keys, self._generation, layout, plan.copied, upto)


@dataclass(frozen=True, slots=True)
class _Held:
    """The quarantined changes of what was built so far."""

    changes: int
    waiting: QuarantineState


@dataclass(frozen=True, slots=True)
class _At:
    """Progress of the draft. `follows`: the layout of its rows, None if it has none yet."""

    follows: Relation | None
    quarantined: _Held


class _Allowing:
    """Approves every schema change, as a request for a rebuild does, and records them."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def __contains__(self, words: object) -> bool:
        self.words.append(str(words))
        return True
