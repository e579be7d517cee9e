"""What there is to do of one table in a span: its changes, or the rows of a copy of it.

The shape of a table's span: its columns over all its layouts, and whether its changes say which rows they are of.

One table's part of a span: read, judged, folded.

`prepare` does all that can be done without writing rows and says what it found; `runtime.apply.merge` writes.
Between them the caller knows of every table whether a `stop` rule failed, so a span ends before that transaction for
all of them.

The common span has no failing change, no hold and no moving key, and is folded by key in one pass. Otherwise the few
changes that touch such keys are followed one by one (`silver.row_tracing`) and the rest still is folded by key.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, assert_never

import pyarrow as pa

from cdc_lake.bronze.data_files import Files
from cdc_lake.bronze.span_index import RelationVersionRun, SpanSummary, as_they_are, cleared_before, outline, span_files
from cdc_lake.config.project import Project, Target
from cdc_lake.connectors.redaction import check_unchanged
from cdc_lake.control.snapshots import courses
from cdc_lake.errors import CdcLakeError, KeylessDelete, NoKey, RuleStopped, TableChangedMeanwhile
from cdc_lake.model.change import Truncated
from cdc_lake.model.position import Span
from cdc_lake.model.quarantine import NOTHING_DECIDED, Decided, RefetchedRows, rereads_in
from cdc_lake.model.relation import Relation, ReplicaIdentity, made_again, predecessors
from cdc_lake.observability.events import ProgressReporter, silent
from cdc_lake.quality.rules import RuleCount
from cdc_lake.runtime.apply.key_following import (
    FollowedChanges,
    TableChanges,
    check_few,
    follow,
    follow_content,
    missing_keys,
    taken_keys,
    without_failing,
)
from cdc_lake.runtime.apply.rule_gate import KeyPart, SpanProfile, conditions, key_parts, survey
from cdc_lake.runtime.apply.schema_changes import (
    by_source_key,
    check_fit,
    check_possible,
    copied_again,
    divide,
    evolve,
    named_columns,
    next_layout,
    projection_of,
    words_read,
)
from cdc_lake.silver.changes import cast_rows, read_changes
from cdc_lake.silver.kind import LINEAGE, Kind, RowIdentity, TablePart
from cdc_lake.silver.kinds import kind_of, live_rows
from cdc_lake.silver.layout_mapping import (
    MINUS_ZERO,
    STORED_AS_NULL,
    RelationMapping,
    comparable,
    key_moved,
    make_shape,
)
from cdc_lake.silver.row_tracing import HoldRelease, Key, QuarantineState, Unit
from cdc_lake.silver.transforms import (
    Projection,
    concerning,
    filter_changes,
    old_values,
    plain,
    project_columns,
    projected_changes,
    taken_columns,
)
from cdc_lake.source.base import format_stream_position
from cdc_lake.tables.control_tables import ControlTables, control_tables
from cdc_lake.tables.open_silver_table import store
from cdc_lake.tables.silver_table import Marker, Owner, SilverStore, read_owner
from cdc_lake.tables.table_stats import mark_when_large

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Copied:
    """Of a table that was copied again: when the last transaction that the copy has was committed, None: not known."""

    commit_ts: datetime | None


@dataclass(frozen=True)
class TableTask:
    """What to prepare: a table's changes in `span`, or the rows of its snapshot at the span's end, then with the layout
    they follow. `held`: what waits; `stood`: the table's marker when the span was chosen. `size`: bytes that
    the changes took as they were received, at most; None where nobody knows. `near`: where Spark reads data files.
    `follows`: the layout that silver's rows have, None: nobody knows; `allowed`: destructive operations in words;
    `all_relations`: all layouts of the table. `summary`: the outline, where it was read. `rereads`: what of the table
    was read again and comes into force in the span, `decided` what was decided of it. `held_units`: transactions that
    are held whole. `copied`: the snapshot's rows end all that silver has, None where nothing is there. `adopts`: the
    table is somebody else's, and its content is replaced on purpose. `form`: the table's last layout, where it is built
    from the beginning (`span_shape.looking_ahead`).
    """

    project: Project
    target: Target
    stream: str
    span: Span
    files: Files
    layouts: Mapping[int, Relation]
    held: QuarantineState
    stood: Marker
    layout: int | None = None
    size: int | None = None
    near: Callable[[Files, Sequence[str]], list[str]] = as_they_are
    follows: Relation | None = None
    allowed: Container[str] = frozenset()
    all_relations: Callable[[], Iterable[Relation]] = tuple
    summary: SpanSummary | None = None
    rereads: tuple[RefetchedRows, ...] = ()
    decided: Decided = NOTHING_DECIDED
    held_units: frozenset[Unit] = frozenset()
    report: ProgressReporter = silent
    copied: Copied | None = None
    adopts: bool = False
    form: Relation | None = None

    @property
    def snapshot(self) -> bool:
        """Whether this is rows of a copy."""
        return self.layout is not None

    @property
    def first(self) -> bool:
        """Whether this is the table's first content."""
        return self.snapshot and self.copied is None

    @property
    def next_layout(self) -> int | None:
        """The position of the first transaction of the span that needs another silver table than those before it."""
        try:
            return None if self.summary is None else next_layout(self.summary, self.layouts, self.target)
        except CdcLakeError:  # a layout that cannot be had: `prepare` says why, and only this table waits
            return None

    def end_before(self, position: int) -> TableTask:
        """The same up to before a position."""
        span = Span(self.span.epoch, self.span.after, position - 1)
        rereads, decided = rereads_in(self.rereads, span), self.decided.select_span(span)
        return replace(self, span=span, summary=None, rereads=rereads, decided=decided).with_summary()

    def with_summary(self) -> TableTask:
        """The same, with the outline read."""
        summary = outline(
            self.files,
            self.target.source,
            self.span,
            snapshot=self.snapshot,
            rereads=self.rereads,
            released=self.decided.released_rows,
            follows=None if self.follows is None else self.follows.layout,
        )
        return replace(self, summary=summary)


def shape_of(
    numbers: Sequence[int],
    layouts: Mapping[int, Relation],
    target: Target,
    kind: Kind,
    form: Relation | None = None,
) -> RelationMapping:
    """The shape of a table's span, with the columns that its kind and its lineage take from changes; `form` as
    `looking_ahead` has it.
    """
    by_content, relation = kind.identity is RowIdentity.CONTENT, looking_ahead(layouts[numbers[-1]], target, form)
    keys, keyed = relation.names if by_content else target.keys, kind.identity is not RowIdentity.PLACE
    try:
        shape = make_shape(numbers, layouts, keys, keyed=keyed, types=target.types, relation=relation)
    except NoKey as missing:
        if target.keeps_past:
            remedy = f"{NoKey.identity_hint}; if changes landed without one, then {copied_again(target)}"
            missing.remedy = missing.remedy.replace(NoKey.hint, remedy)
        raise
    for column in shape.columns if by_content else ():
        if not comparable(column):
            raise NoKey(f"{target.source} has no key, and column `{column.name}` has no order to find equal rows by")
    lineage = LINEAGE if target.lineage else {}
    return replace(
        shape,
        carried={**kind.passthrough_columns(shape), **lineage},
        old_values=target.old_values,
        unkept=_unkept(shape, target),
    )


def looking_ahead(relation: Relation, target: Target, form: Relation | None) -> Relation:
    """A layout with the columns of a later one, `form`, that settings of the table name, as they are called there: what
    is built from the beginning goes through changes that know nothing of them. Their rows have what old rows got.
    """
    if form is None or made_again(relation, form):
        return relation
    listed, words = named_columns(target), words_read(target)
    columns = list(relation.columns)
    for column, place in zip(form.columns, predecessors(relation, form), strict=True):
        named = column.name in listed or column.name.casefold() in words
        if not named or column.name in relation.names:
            continue
        if place is None:
            columns.append(replace(column, key=relation.identity is ReplicaIdentity.FULL))
        else:
            columns[place] = replace(columns[place], name=column.name)
    names = dict(zip(relation.names, (column.name for column in columns), strict=False))
    key = tuple(names[name] for name in relation.primary_key)
    return replace(relation, columns=tuple(columns), primary_key=key)


def _unkept(shape: RelationMapping, target: Target) -> dict[int, tuple[str, ...]]:
    """Texts with a value that a table cannot keep: of what a Delta table is divided by, and of floats in a key."""
    floats = {"float", "double"}
    result: dict[int, tuple[str, ...]] = {
        index: MINUS_ZERO for index in shape.keys if shape.typed_columns[index].type.sql in floats
    }
    divided = target.partition_by if target.format == "delta" else ()
    for index, name in taken_columns(shape.typed_columns, target.transforms).items() if divided else ():
        if name in divided and shape.typed_columns[index].type.sql == "string":
            result[index] = STORED_AS_NULL
    return result


def unsent_columns(summary: SpanSummary, shape: RelationMapping) -> frozenset[int]:
    """The positions, in the newest layout, of columns that some change did not send."""
    unsent = {(layout, place) for layout, places in summary.unchanged.items() for place in places}
    return frozenset(
        index
        for layout, places in shape.places.items()
        for index, place in enumerate(places)
        if (layout, place) in unsent
    )


def check_named(summary: SpanSummary, shape: RelationMapping, target: Target, kind: Kind, stream: str) -> None:
    """Raise KeylessDelete or NoKey where a change does not say which row it is of."""
    table = shape.relation.table
    match kind.identity:
        case RowIdentity.KEY:
            if summary.nameless is not None:
                position = format_stream_position(stream, summary.nameless)
                hint = (
                    f"give the table a primary key or REPLICA IDENTITY FULL at the source; then {copied_again(target)}"
                )
                raise KeylessDelete(f"a delete of {table} at {position} does not say which row went", hint=hint)
            partly = {number for number in summary.by_whole if shape.layouts[number].mixed}
            for number in summary.by_key | partly:
                if not made_again(shape.layouts[number], shape.relation):  # rows of another table are gone by then
                    _check_logged(shape, target, number)
        case RowIdentity.CONTENT:
            if summary.bare is not None:
                position = format_stream_position(stream, summary.bare)
                raise KeylessDelete(f"a change of {table} at {position} does not say all values that its row had")
        case RowIdentity.PLACE:
            pass
        case other:
            assert_never(other)


def check_key(
    summary: SpanSummary,
    shape: RelationMapping,
    target: Target,
    held: QuarantineState,
    follows: Relation | None,
    stream: str,
) -> None:
    """Raise NoKey where one key cannot tell all rows apart: a transaction has changes by two keys, each of which is
    unique at its own place only, or changes are held by a key that the table does not have any more.
    """
    table = shape.relation.table
    for run in summary.runs:
        if _has_key_moved(shape.layouts[run.layout], shape.relation):
            raise NoKey(
                f"the primary key of {table} moves inside of the transaction at "
                f"{format_stream_position(stream, run.position)}",
                hint=copied_again(target),
            )
    if held and follows is not None and _has_key_moved(follows, shape.relation):
        raise NoKey(
            f"the primary key of {table} moved, and changes are held by the former one",
            hint=f"decide them (`cdc-lake held list`); or else {copied_again(target)}",
        )


def _has_key_moved(before: Relation, after: Relation) -> bool:
    return not made_again(before, after) and key_moved(before, after)


def _check_logged(shape: RelationMapping, target: Target, number: int) -> None:
    """Raise NoKey where changes of an older layout do not tell the key of their rows."""
    places, columns = shape.places[number], shape.layouts[number].columns
    for index in shape.keys:
        place = places[index]
        if place is None or not columns[place].key:
            name = shape.relation.columns[index].name
            table = shape.relation.table
            raise NoKey(
                f"the server did not log column `{name}` of {table} for deletes: it is no key",
                hint=f"once the server logs it (primary key, replica identity), {copied_again(target)}",
            )


ONE_TASK = 20_000
"""Up to this many changes are read, judged and folded in one task: what follows needs no exchange and fewer stages."""
_ONE_TASK_FILES = 32  # opening one takes some milliseconds


@dataclass(frozen=True)
class FoldedSpan:
    """What a table's span amounts to.

    `net` as the table's kind describes it, `part` what it was folded from; `held` the changes to be recorded as held,
    None where there are none; `closings` the truncates that ended holds. `changes`: what was folded, in the source's
    columns.
    """

    changes: DataFrame
    net: DataFrame
    part: TablePart
    survey: SpanProfile
    held: pa.Table | None
    closings: tuple[HoldRelease, ...]


@dataclass(frozen=True)
class PreparedMerge:
    """A table's span, ready to be merged."""

    job: TableTask
    kind: Kind
    shape: RelationMapping
    store: SilverStore
    base: Marker
    summary: SpanSummary
    folded: FoldedSpan
    projection: Projection

    @property
    def counts(self) -> tuple[RuleCount, ...]:
        """How the rules fared."""
        return self.folded.survey.counts

    @property
    def stop(self) -> tuple[int, str] | None:
        """Position of the first transaction that fails a `stop` rule, and the rule's name."""
        return self.folded.survey.stop


def stopped_by_rule(stops: Sequence[PreparedMerge], verb: str = "run") -> RuleStopped:
    """The error for the first change of some tables' spans that a `stop` rule refuses: which rule of which table, and
    how to look at the change.
    """
    first = min(
        (first for first in stops if first.stop is not None), key=lambda first: (first.stop, first.job.target.label)
    )
    assert first.stop is not None, "it is one that stops"
    (position, rule), table, label = first.stop, first.job.target.source, first.job.target.label
    position_text = format_stream_position(first.job.stream, position)
    if first.job.snapshot:
        what, advice = f"a row of the copy of {table}", f"look for the rows in {table}: {RuleStopped.hint}"
    else:
        what = f"a change of {table} in the transaction at {position_text}"
        advice = f"`cdc-lake inspect tx {position_text}` shows it, with its key; then {RuleStopped.hint}"
    return RuleStopped(f"rule `{rule}` of {label} stops the {verb}: {what} breaks it", where=label, hint=advice)


def prepare(spark: SparkSession, job: TableTask) -> PreparedMerge | None:
    """Read and judge a table's span; None where nothing of it is there. `spark` is used for nothing else meanwhile."""
    table, span, snapshot = job.target.source, job.span, job.snapshot
    summary = job.summary or job.with_summary().summary
    assert summary is not None, "it was just read"
    if job.copied is not None:
        summary = _truncate_before_copy(summary, job, job.copied)
    elif summary.rows == 0:
        if job.layout is None:
            return None
        if job.stood.version is None or job.adopts:
            # The source's table was empty: so is silver, but it is there.
            kind = kind_of(job.target, job.layouts[job.layout])
            projection = _projection(spark, job, (job.layout,), kind)
            _evolve_projection(store(spark, job.project, job.target), job, kind, projection, span.upto)
            return None
        summary = replace(
            summary, runs=(RelationVersionRun(job.layout, span.upto, 0),)
        )  # what an earlier stream left there goes
    kind = kind_of(job.target, job.layouts[summary.layouts[-1]])
    projection = _projection(spark, job, summary.layouts, kind)
    control = control_tables(job.project)
    check_unchanged(control.configurations(), job.target, span, lambda: _copied_at(control, job))
    check_named(summary, projection.source, job.target, kind, job.stream)
    if kind.identity is RowIdentity.KEY and by_source_key(job.target):
        check_key(summary, projection.source, job.target, job.held, job.follows, job.stream)
    silver = store(spark, job.project, job.target)
    projection = _evolve_projection(silver, job, kind, projection, summary.runs[0].position)
    shape = projection.silver
    if job.copied is None and job.follows is not None and made_again(job.follows, shape.relation):
        summary = _begun_again(summary, job, shape.relation)
    if not snapshot:
        mark_when_large(spark, silver, job.project, job.target)
    base = _base(silver, job)
    chosen = span_files(job.files, table, span, snapshot=snapshot)
    paths, inside = job.near(job.files, chosen), job.files.is_within_span(chosen, span)
    by_place = kind.identity is RowIdentity.PLACE
    released = job.decided.released_rows
    rows = read_changes(
        spark,
        paths,
        table,
        span,
        snapshot=snapshot,
        inside=inside,
        truncates=by_place,
        rereads=job.rereads,
        released=released,
    )
    if summary.rows <= ONE_TASK and len(paths) <= _ONE_TASK_FILES:
        rows = rows.coalesce(1)
    # A copy of the source's table is a content of its own: what silver had before has no part in it.
    target = None if base.version is None or job.first else live_rows(kind, spark.table(silver.name))
    parts = key_parts(job.project, job.target, projection.source)
    source, held, decided = projection.source, job.held, job.decided
    folded = fold(
        rows, target, job.target, kind, source, summary, span, held, projection, parts, decided, job.held_units
    )
    return PreparedMerge(job, kind, shape, silver, base, summary, folded, projection)


def _copied_at(control: ControlTables, job: TableTask) -> int:
    """The position of the copy that the rows before a job's begin with, -1 for none that came later than the first."""
    course = courses(control.snapshots(), job.stream).get(str(job.target.source))
    reached = job.span.upto if job.snapshot else job.span.after
    begins = [] if course is None else [stretch.begins for stretch in course.stretches if stretch.later]
    return max((position for position in begins if position <= reached), default=-1)


def _truncate_before_copy(summary: SpanSummary, job: TableTask, copied: Copied) -> SpanSummary:
    """The outline of a copy that ends all rows before it."""
    assert job.layout is not None, "it is one of a copy"
    position = job.span.upto
    ends = Truncated(position, -1, csn=None, lsn=None, xid=None, commit_ts=copied.commit_ts)
    return replace(summary, truncated=(ends,), runs=summary.runs or (RelationVersionRun(job.layout, position, 0),))


def _base(silver: SilverStore, job: TableTask) -> Marker:
    """The marker that the merge is made on: it fences from here on, so nothing may have gone by since the span was
    chosen. Upkeep may: it changes no rows.
    """
    base = silver.marker(job.stream)
    if not job.adopts and replace(base, version=None) != replace(job.stood, version=None):
        raise TableChangedMeanwhile(f"another writer committed to {job.target.label}")
    return base


def _evolve_projection(
    silver: SilverStore, job: TableTask, kind: Kind, projection: Projection, position: int
) -> Projection:
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
        all_relations=job.all_relations,
        report=job.report,
        begins=job.first,
    )
    return projection.carrying(shape.carried)


def _begun_again(summary: SpanSummary, job: TableTask, newest: Relation) -> SpanSummary:
    """The outline of a span in which another table takes the place of the one that silver has rows of: no row of that
    one is left when the first change of the other comes.
    """
    first = next(run for run in summary.runs if not made_again(job.layouts[run.layout], newest))
    cleared = cleared_before(job.files, job.target.source, job.span, first)
    truncated = sorted((cleared, *summary.truncated), key=lambda truncate: (truncate.position, truncate.ordinal))
    return replace(summary, truncated=tuple(truncated))


def fold(
    rows: DataFrame,
    target: DataFrame | None,
    table: Target,
    kind: Kind,
    shape: RelationMapping,
    summary: SpanSummary,
    span: Span,
    held: QuarantineState,
    projection: Projection | None = None,
    parts: Sequence[KeyPart] = (),
    decided: Decided = NOTHING_DECIDED,
    held_units: frozenset[Unit] = frozenset(),
) -> FoldedSpan:
    """What bronze's rows of a table amount to. `target`: silver's live rows before or None; `held`: what waits.

    `projection`: from `shape` to silver's columns, None where they are the same; `parts`: how the table is divided;
    `decided`: the decisions that come into force, what they let through is among `rows`; `held_units`: what is held as
    a whole.
    """
    projection = projection or plain(shape)
    recorded = {key: shape.recorded_key(key) for key in held.keys | held.apart} if shape.keys else {}
    held, decided = held.rename_keys(recorded), decided.rename_keys(shape.recorded_key) if shape.keys else decided
    unsent = unsent_columns(summary, shape)
    part = TablePart(shape, unsent, summary.truncated, span, released=decided.released_rows is not None)
    source = cast_rows(rows, shape, unsent, old_values(projection))
    changes = (
        concerning(source, projection) if kind.identity is RowIdentity.PLACE else filter_changes(source, projection)
    )
    back = None if target is None else projection.to_source_columns(target)
    table_changes = TableChanges(
        rows, changes, source, back, table, part, summary, held, projection, decided, held_units
    )
    traced = False
    match kind.identity:
        case RowIdentity.KEY:
            profile = survey(changes, table, part, conditions(table, part, projection), summary, parts)
            others = missing_keys(table_changes) | taken_keys(table_changes)
            traced = not profile.plain or bool(held) or bool(others) or bool(decided) or bool(held_units)
            check_few(profile.moved + profile.nulls + profile.failing + len(others), table)
            followed = follow(table_changes, profile, others) if traced else FollowedChanges(changes, None, (), profile)
        case RowIdentity.CONTENT:
            followed = follow_content(table_changes)
        case RowIdentity.PLACE:
            followed = without_failing(table_changes)
        case other:
            assert_never(other)
    if kind.identity is RowIdentity.PLACE:
        free, lacking = projected_changes(followed.free, projection, unsent), unsent
    else:
        free, lacking = project_columns(followed.free, projection, unsent)
    part = TablePart(projection.silver, lacking, summary.truncated, span)
    net = kind.net(free, target, part, traced=traced)
    return FoldedSpan(changes, net, part, followed.survey, followed.held, _as_recorded(followed.closings, recorded))


def _as_recorded(closings: Sequence[HoldRelease], recorded: Mapping[Key, Key]) -> tuple[HoldRelease, ...]:
    """What ends holds also by the texts that keys were recorded with, of which a value may have several."""
    others = [
        replace(closing, key=before)
        for closing in closings
        for before, now in recorded.items()
        if before != now == closing.key
    ]
    return (*closings, *others)


def _projection(spark: SparkSession, job: TableTask, numbers: Sequence[int], kind: Kind) -> Projection:
    check_possible(job.project, job.target, kind)
    projection = projection_of(
        spark, job.project, job.target, shape_of(numbers, job.layouts, job.target, kind, job.form)
    )
    check_fit(job.project, job.target, projection.source)
    return projection
