"""One table's part of a span: read, judged, folded.

`prepare` does all that can be done without writing rows and says what it found; `pipeline.applying.merging` writes.
Between them the caller knows of every table whether a `stop` rule failed, so a span ends before that transaction for
all of them.

The common span has no failing change, no hold and no moving key, and is folded by key in one pass. Otherwise the few
changes that touch such keys are followed one by one (`silver.lineage`) and the rest still is folded by key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, assert_never

import pyarrow as pa

from cdc_lake.bronze.outline import Outline, Run, cleared_before, span_files
from cdc_lake.config.project import Target
from cdc_lake.errors import RuleStopped, TableChangedMeanwhile
from cdc_lake.lake.control import ControlTables, control_tables
from cdc_lake.lake.marker import Marker
from cdc_lake.lake.owner import Owner, read_owner
from cdc_lake.lake.row_marks import mark_when_large
from cdc_lake.lake.store import SilverStore, store
from cdc_lake.model.decision import NOTHING_DECIDED, Decided
from cdc_lake.model.relation import Relation
from cdc_lake.model.span import Span
from cdc_lake.model.succession import made_again
from cdc_lake.model.truncated import Truncated
from cdc_lake.pipeline.applying.evolve import by_source_key, evolve
from cdc_lake.pipeline.applying.follow import (
    Followed,
    TableChanges,
    check_few,
    follow,
    follow_content,
    missing_keys,
    taken_keys,
    without_failing,
)
from cdc_lake.pipeline.applying.judge import Survey, conditions, survey
from cdc_lake.pipeline.applying.key_parts import KeyPart, key_parts
from cdc_lake.pipeline.applying.span_shape import check_key, check_named, looking_ahead, shape_of, unsent_columns
from cdc_lake.pipeline.applying.table_job import Copied, TableJob
from cdc_lake.pipeline.state.copies import courses
from cdc_lake.pipeline.stream.redaction_change import check_unchanged
from cdc_lake.pipeline.target.division import divide
from cdc_lake.pipeline.target.fitting_rules import check_fit
from cdc_lake.pipeline.target.transforms import check_possible, projection_of
from cdc_lake.quality.gate import RuleCount
from cdc_lake.silver.changes import read_changes, typed
from cdc_lake.silver.holding import Waiting
from cdc_lake.silver.kind import Kind, RowIdentity, TablePart
from cdc_lake.silver.kinds import kind_of, live_rows
from cdc_lake.silver.projecting import concerning, filtered, old_values, projected, projected_changes
from cdc_lake.silver.projection import Projection, plain
from cdc_lake.silver.row_events import Closing, Key, Unit
from cdc_lake.silver.shape import Shape
from cdc_lake.source.stream import shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


ONE_TASK = 20_000
"""Up to this many changes are read, judged and folded in one task: what follows needs no exchange and fewer stages."""
_ONE_TASK_FILES = 32  # opening one takes some milliseconds


@dataclass(frozen=True)
class Folded:
    """What a table's span amounts to.

    `net` as the table's kind describes it, `part` what it was folded from; `held` the changes to be recorded as held,
    None where there are none; `closings` the truncates that ended holds. `changes`: what was folded, in the source's
    columns.
    """

    changes: DataFrame
    net: DataFrame
    part: TablePart
    survey: Survey
    held: pa.Table | None
    closings: tuple[Closing, ...]


@dataclass(frozen=True)
class Prepared:
    """A table's span, ready to be merged."""

    job: TableJob
    kind: Kind
    shape: Shape
    store: SilverStore
    base: Marker
    seen: Outline
    folded: Folded
    projection: Projection

    @property
    def counts(self) -> tuple[RuleCount, ...]:
        """How the rules fared."""
        return self.folded.survey.counts

    @property
    def stop(self) -> tuple[int, str] | None:
        """Position of the first transaction that fails a `stop` rule, and the rule's name."""
        return self.folded.survey.stop


def stopped_by_rule(stops: Sequence[Prepared], verb: str = "run") -> RuleStopped:
    """The error for the first change of some tables' spans that a `stop` rule refuses: which rule of which table, and
    how to look at the change.
    """
    one = min((one for one in stops if one.stop is not None), key=lambda one: (one.stop, one.job.target.label))
    assert one.stop is not None, "it is one that stops"
    (position, rule), table, label = one.stop, one.job.target.source, one.job.target.label
    at = shown(one.job.stream, position)
    if one.job.snapshot:
        what, look = f"a row of the copy of {table}", f"look for the rows in {table}: {RuleStopped.hint}"
    else:
        what = f"a change of {table} in the transaction at {at}"
        look = f"`cdc-lake inspect tx {at}` shows it, with its key; then {RuleStopped.hint}"
    return RuleStopped(f"rule `{rule}` of {label} stops the {verb}: {what} breaks it", where=label, hint=look)


def prepare(spark: SparkSession, job: TableJob) -> Prepared | None:
    """Read and judge a table's span; None where nothing of it is there. `spark` is used for nothing else meanwhile."""
    table, span, snapshot = job.target.source, job.span, job.snapshot
    seen = job.seen or job.outlined().seen
    assert seen is not None, "it was just read"
    if job.copied is not None:
        seen = _ended(seen, job, job.copied)
    elif seen.rows == 0:
        if job.layout is None:
            return None
        if job.stood.version is None or job.adopts:
            # The source's table was empty: so is silver, but it is there.
            kind = kind_of(job.target, job.layouts[job.layout])
            projection = _projection(spark, job, (job.layout,), kind)
            _evolved(store(spark, job.project, job.target), job, kind, projection, span.upto)
            return None
        seen = replace(seen, runs=(Run(job.layout, span.upto, 0),))  # what an earlier stream left there goes
    kind = kind_of(job.target, job.layouts[seen.layouts[-1]])
    projection = _projection(spark, job, seen.layouts, kind)
    control = control_tables(job.project)
    check_unchanged(control.configurations(), job.target, span, lambda: _copied_at(control, job))
    check_named(seen, projection.source, job.target, kind, job.stream)
    if kind.identity is RowIdentity.KEY and by_source_key(job.target):
        check_key(seen, projection.source, job.target, job.held, job.follows, job.stream)
    silver = store(spark, job.project, job.target)
    projection = _evolved(silver, job, kind, projection, seen.runs[0].position)
    shape = projection.silver
    if job.copied is None and job.follows is not None and made_again(job.follows, shape.relation):
        seen = _begun_again(seen, job, shape.relation)
    if not snapshot:
        mark_when_large(spark, silver, job.project, job.target)
    base = _base(silver, job)
    chosen = span_files(job.files, table, span, snapshot=snapshot)
    paths, inside = job.near(job.files, chosen), job.files.inside(chosen, span)
    whole = kind.identity is RowIdentity.PLACE
    released = job.decided.released
    rows = read_changes(
        spark,
        paths,
        table,
        span,
        snapshot=snapshot,
        inside=inside,
        truncates=whole,
        rereads=job.rereads,
        released=released,
    )
    if seen.rows <= ONE_TASK and len(paths) <= _ONE_TASK_FILES:
        rows = rows.coalesce(1)
    # A copy of the source's table is a content of its own: what silver had before has no part in it.
    target = None if base.version is None or job.first else live_rows(kind, spark.table(silver.name))
    parts = key_parts(job.project, job.target, projection.source)
    source, held, decided = projection.source, job.held, job.decided
    folded = fold(rows, target, job.target, kind, source, seen, span, held, projection, parts, decided, job.whole)
    return Prepared(job, kind, shape, silver, base, seen, folded, projection)


def _copied_at(control: ControlTables, job: TableJob) -> int:
    """The position of the copy that the rows before a job's begin with, -1 for none that came later than the first."""
    course = courses(control.snapshots(), job.stream).get(str(job.target.source))
    known = job.span.upto if job.snapshot else job.span.after
    begins = [] if course is None else [one.begins for one in course.stretches if one.later]
    return max((at for at in begins if at <= known), default=-1)


def _ended(seen: Outline, job: TableJob, copied: Copied) -> Outline:
    """The outline of a copy that ends all rows before it."""
    assert job.layout is not None, "it is one of a copy"
    position = job.span.upto
    ends = Truncated(position, -1, csn=None, lsn=None, xid=None, commit_ts=copied.commit_ts)
    return replace(seen, truncated=(ends,), runs=seen.runs or (Run(job.layout, position, 0),))


def _base(silver: SilverStore, job: TableJob) -> Marker:
    """The marker that the merge is made on: it fences from here on, so nothing may have gone by since the span was
    chosen. Upkeep may: it changes no rows.
    """
    base = silver.marker(job.stream)
    if not job.adopts and replace(base, version=None) != replace(job.stood, version=None):
        raise TableChangedMeanwhile(f"another writer committed to {job.target.label}")
    return base


def _evolved(silver: SilverStore, job: TableJob, kind: Kind, projection: Projection, position: int) -> Projection:
    columns = kind.columns(projection.silver)
    if job.adopts and read_owner(job.project, job.target) != Owner(job.project.name, job.stream):
        silver.take_over(columns, job.stream)
    divide(job.project, job.target, silver, columns)
    shape = evolve(
        silver,
        job.target,
        kind,
        projection.silver,
        stream=job.stream,
        position=position,
        follows=None if job.follows is None else looking_ahead(job.follows, job.target, job.form),
        allowed=job.allowed,
        known=job.known,
        tell=job.tell,
        begins=job.first,
    )
    return projection.carrying(shape.carried)


def _begun_again(seen: Outline, job: TableJob, newest: Relation) -> Outline:
    """The outline of a span in which another table takes the place of the one that silver has rows of: no row of that
    one is left when the first change of the other comes.
    """
    first = next(run for run in seen.runs if not made_again(job.layouts[run.layout], newest))
    cleared = cleared_before(job.files, job.target.source, job.span, first)
    truncated = sorted((cleared, *seen.truncated), key=lambda one: (one.position, one.ordinal))
    return replace(seen, truncated=tuple(truncated))


def fold(
    rows: DataFrame,
    target: DataFrame | None,
    table: Target,
    kind: Kind,
    shape: Shape,
    seen: Outline,
    span: Span,
    held: Waiting,
    projection: Projection | None = None,
    parts: Sequence[KeyPart] = (),
    decided: Decided = NOTHING_DECIDED,
    whole: frozenset[Unit] = frozenset(),
) -> Folded:
    """What bronze's rows of a table amount to. `target`: silver's live rows before or None; `held`: what waits.

    `projection`: from `shape` to silver's columns, None where they are the same; `parts`: how the table is divided;
    `decided`: the decisions that come into force, what they let through is among `rows`; `whole`: what is held as
    a whole.
    """
    projection = projection or plain(shape)
    recorded = {key: shape.recorded_key(key) for key in held.keys | held.apart} if shape.keys else {}
    held, decided = held.renamed(recorded), decided.renamed(shape.recorded_key) if shape.keys else decided
    unsent = unsent_columns(seen, shape)
    part = TablePart(shape, unsent, seen.truncated, span, released=decided.released is not None)
    source = typed(rows, shape, unsent, old_values(projection))
    changes = concerning(source, projection) if kind.identity is RowIdentity.PLACE else filtered(source, projection)
    back = None if target is None else projection.back(target)
    mine = TableChanges(rows, changes, source, back, table, part, seen, held, projection, decided, whole)
    traced = False
    match kind.identity:
        case RowIdentity.KEY:
            found = survey(changes, table, part, conditions(table, part, projection), seen, parts)
            others = missing_keys(mine) | taken_keys(mine)
            traced = not found.plain or bool(held) or bool(others) or bool(decided) or bool(whole)
            check_few(found.moved + found.nulls + found.failing + len(others), table)
            followed = follow(mine, found, others) if traced else Followed(changes, None, (), found)
        case RowIdentity.CONTENT:
            followed = follow_content(mine)
        case RowIdentity.PLACE:
            followed = without_failing(mine)
        case other:
            assert_never(other)
    if kind.identity is RowIdentity.PLACE:
        free, lacking = projected_changes(followed.free, projection, unsent), unsent
    else:
        free, lacking = projected(followed.free, projection, unsent)
    part = TablePart(projection.silver, lacking, seen.truncated, span)
    net = kind.net(free, target, part, traced=traced)
    return Folded(changes, net, part, followed.survey, followed.held, _as_recorded(followed.closings, recorded))


def _as_recorded(closings: Sequence[Closing], recorded: Mapping[Key, Key]) -> tuple[Closing, ...]:
    """What ends holds also by the texts that keys were recorded with, of which a value may have several."""
    others = [
        replace(closing, key=before)
        for closing in closings
        for before, now in recorded.items()
        if before != now == closing.key
    ]
    return (*closings, *others)


def _projection(spark: SparkSession, job: TableJob, numbers: Sequence[int], kind: Kind) -> Projection:
    check_possible(job.project, job.target, kind)
    projection = projection_of(
        spark, job.project, job.target, shape_of(numbers, job.layouts, job.target, kind, job.form)
    )
    check_fit(job.project, job.target, projection.source)
    return projection
