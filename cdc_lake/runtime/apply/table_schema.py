"""Determines the silver table of a span: its kind, its columns over all layouts, and what identifies rows.

`resolve_table` does this once per span, and adapts the silver table's columns; all later steps use its result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, assert_never

from cdc_lake.bronze.span_index import RelationVersionRun, SpanSummary, cleared_before
from cdc_lake.config.project import Target
from cdc_lake.connectors.redaction import check_unchanged
from cdc_lake.control.snapshots import courses
from cdc_lake.errors import ConcurrentModification, KeylessDelete, NoKey
from cdc_lake.model.change import Truncated
from cdc_lake.model.relation import Relation, ReplicaIdentity, made_again, predecessors
from cdc_lake.runtime.apply import schema_changes
from cdc_lake.runtime.apply.span_planning import TableTask
from cdc_lake.silver.kind import LINEAGE, Kind, RowIdentity
from cdc_lake.silver.kinds import kind_of
from cdc_lake.silver.layout_mapping import (
    MINUS_ZERO,
    STORED_AS_NULL,
    RelationMapping,
    comparable,
    key_moved,
    make_shape,
)
from cdc_lake.silver.row_tracing import QuarantineState
from cdc_lake.silver.transforms import Projection, taken_columns
from cdc_lake.source.base import format_stream_position
from cdc_lake.tables.control_tables import ControlTables, control_tables
from cdc_lake.tables.open_silver_table import mark_when_large, store, table_log
from cdc_lake.tables.silver_table import Marker, Owner, SilverStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class ResolvedTable:
    """A task and its silver table.

    Attributes:
        task: What to do.
        summary: Summary of the span.
        kind: Kind of the silver table.
        projection: From the source's columns, over all layouts of the span, to silver's.
        silver: The silver table, with the columns that the span needs.
        base: The marker on which the merge is based.
    """

    task: TableTask
    summary: SpanSummary
    kind: Kind
    projection: Projection
    silver: SilverStore
    base: Marker


def resolve_table(spark: SparkSession, task: TableTask) -> ResolvedTable | None:
    """Determine the silver table of a task, and adapt its columns to the span.

    Returns:
        None if there is nothing to merge: no change, or a copy without rows of a table that exists.

    Raises:
        CdcLakeError: The table cannot continue: a change without a key, a refused layout, another writer.
    """
    summary = _summary(task)
    if summary is None:
        return None
    kind = kind_of(task.target, task.layouts[summary.layouts[-1]])
    schema_changes.check_possible(task.project, task.target, kind)
    source = shape_of(summary.layouts, task.layouts, task.target, kind, task.form)
    projection = schema_changes.projection_of(spark, task.project, task.target, source)
    schema_changes.check_fit(task.project, task.target, projection.source)
    control = control_tables(task.project)
    check_unchanged(control.configurations(), task.target, task.span, lambda: _copied_at(control, task))
    check_named(summary, projection.source, task.target, kind, task.stream)
    if kind.identity is RowIdentity.KEY and schema_changes.by_source_key(task.target):
        check_key(summary, projection.source, task.target, task.quarantine, task.follows, task.stream)
    silver = store(spark, task.project, task.target)
    projection = _evolve_projection(silver, task, kind, projection, summary.runs[0].position)
    if task.first and summary.rows == 0 and (task.stood.version is None or task.adopts):
        return None  # the source table was empty, and so is silver, which now exists
    if task.copied is None and task.follows is not None and made_again(task.follows, projection.silver.relation):
        summary = _begun_again(summary, task, projection.silver.relation)
    if not task.snapshot:
        mark_when_large(spark, task.project, task.target)
    return ResolvedTable(task, summary, kind, projection, silver, _base(silver, task))


def _summary(task: TableTask) -> SpanSummary | None:
    """The summary of what a task merges, None for nothing. A copy without rows ends existing rows."""
    summary = task.summary or task.with_summary().summary
    assert summary is not None, "it was just read"
    if task.layout is None:
        return summary if summary.rows else None
    summary = replace(summary, runs=summary.runs or (RelationVersionRun(task.layout, task.span.upto, 0),))
    if task.copied is None:
        return summary
    ends = Truncated(task.span.upto, -1, csn=None, lsn=None, xid=None, commit_ts=task.copied.commit_ts)
    return replace(summary, truncated=(ends,))


def _copied_at(control: ControlTables, task: TableTask) -> int:
    """The position of the copy with which the rows before a task began, -1 if it is the first one."""
    course = courses(control.snapshots(), task.stream).get(str(task.target.source))
    reached = task.span.upto if task.snapshot else task.span.after
    begins = [] if course is None else [stretch.begins for stretch in course.stretches if stretch.later]
    return max((position for position in begins if position <= reached), default=-1)


def _base(silver: SilverStore, task: TableTask) -> Marker:
    """The marker on which the merge is based. It is the fence from here on, so only maintenance, which changes no rows,
    may have committed since the span was chosen.
    """
    base = silver.marker(task.stream)
    if not task.adopts and replace(base, version=None) != replace(task.stood, version=None):
        raise ConcurrentModification(f"another writer committed to {task.target.label}")
    return base


def _evolve_projection(
    silver: SilverStore, task: TableTask, kind: Kind, projection: Projection, position: int
) -> Projection:
    columns = kind.columns(projection.silver)
    if task.adopts and table_log(task.project, task.target).owner() != Owner(task.project.name, task.stream):
        silver.take_over(columns, task.stream)
    schema_changes.divide(task.project, task.target, silver, columns)
    shape = schema_changes.evolve(
        silver,
        task.target,
        kind,
        projection.silver,
        stream=task.stream,
        position=position,
        follows=None if task.follows is None else looking_ahead(task.follows, task.target, task.form),
        allowed=task.allowed,
        all_relations=task.all_relations,
        report=task.report,
        begins=task.first,
    )
    return projection.carrying(shape.carried)


def _begun_again(summary: SpanSummary, task: TableTask, newest: Relation) -> SpanSummary:
    """The summary of a span in which another table replaces the one of silver's rows: none of these rows exist any more
    at the first change of the other table.
    """
    first = next(run for run in summary.runs if not made_again(task.layouts[run.layout], newest))
    cleared = cleared_before(task.files, task.target.source, task.span, first)
    truncated = sorted((cleared, *summary.truncated), key=lambda truncate: (truncate.position, truncate.ordinal))
    return replace(summary, truncated=tuple(truncated))


def shape_of(
    numbers: Sequence[int], layouts: Mapping[int, Relation], target: Target, kind: Kind, form: Relation | None = None
) -> RelationMapping:
    """The mapping of a table's span, with the columns that its kind and lineage add; `form`: see `looking_ahead`."""
    by_content, relation = kind.identity is RowIdentity.CONTENT, looking_ahead(layouts[numbers[-1]], target, form)
    keys, keyed = relation.names if by_content else target.keys, kind.identity is not RowIdentity.PLACE
    try:
        shape = make_shape(numbers, layouts, keys, keyed=keyed, types=target.types, relation=relation)
    except NoKey as missing:
        if target.keeps_past:
            remedy = f"{NoKey.identity_hint}; if changes landed without one, then {schema_changes.copied_again(target)}"
            missing.remedy = missing.remedy.replace(NoKey.hint, remedy)
        raise
    for column in shape.columns if by_content else ():
        if not comparable(column):
            raise NoKey(
                f"{target.source} has no key, and values of column `{column.name}` have no order by which equal "
                "rows could be found"
            )
    lineage = LINEAGE if target.lineage else {}
    return replace(
        shape,
        carried={**kind.passthrough_columns(shape), **lineage},
        old_values=target.old_values,
        unkept=_unkept(shape, target),
    )


def looking_ahead(relation: Relation, target: Target, form: Relation | None) -> Relation:
    """Add to a layout the columns of a later one, `form`, that settings of the table name: a table that is built from
    the beginning passes changes that do not have them yet. Their rows get the values that old rows got.
    """
    if form is None or made_again(relation, form):
        return relation
    listed, words = schema_changes.named_columns(target), schema_changes.words_read(target)
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
    """Texts with a value that a table cannot store: in Delta's partition columns, and of floats in a key."""
    floats = {"float", "double"}
    result: dict[int, tuple[str, ...]] = {
        index: MINUS_ZERO for index in shape.keys if shape.typed_columns[index].type.sql in floats
    }
    divided = target.partition_by if target.format == "delta" else ()
    for index, name in taken_columns(shape.typed_columns, target.transforms).items() if divided else ():
        if name in divided and shape.typed_columns[index].type.sql == "string":
            result[index] = STORED_AS_NULL
    return result


def check_named(summary: SpanSummary, shape: RelationMapping, target: Target, kind: Kind, stream: str) -> None:
    """Raise KeylessDelete or NoKey if a change does not identify its row."""
    table = shape.relation.table
    match kind.identity:
        case RowIdentity.KEY:
            if summary.nameless is not None:
                position = format_stream_position(stream, summary.nameless)
                again = schema_changes.copied_again(target)
                hint = f"give the table a primary key or REPLICA IDENTITY FULL at the source; then {again}"
                raise KeylessDelete(f"a delete of {table} at {position} does not identify the deleted row", hint=hint)
            partly = {number for number in summary.by_whole if shape.layouts[number].mixed}
            for number in summary.by_key | partly:
                if not made_again(shape.layouts[number], shape.relation):  # rows of another table are gone by then
                    _check_logged(shape, target, number)
        case RowIdentity.CONTENT:
            if summary.bare is not None:
                position = format_stream_position(stream, summary.bare)
                raise KeylessDelete(f"a change of {table} at {position} does not contain all values of the old row")
        case RowIdentity.PLACE:
            pass
        case other:
            assert_never(other)


def check_key(
    summary: SpanSummary,
    shape: RelationMapping,
    target: Target,
    quarantine: QuarantineState,
    follows: Relation | None,
    stream: str,
) -> None:
    """Raise NoKey if one key cannot identify all rows: a transaction has changes by two keys, each unique only in its
    part, or changes are held by a key that the table no longer has.
    """
    table = shape.relation.table
    for run in summary.runs:
        if _has_key_moved(shape.layouts[run.layout], shape.relation):
            position = format_stream_position(stream, run.position)
            text = f"the primary key of {table} changes within the transaction at {position}"
            raise NoKey(text, hint=schema_changes.copied_again(target))
    if quarantine and follows is not None and _has_key_moved(follows, shape.relation):
        again = schema_changes.copied_again(target)
        raise NoKey(
            f"the primary key of {table} was changed, and changes are held by the former one",
            hint=f"release or discard them (`cdc-lake quarantine list`); otherwise {again}",
        )


def _has_key_moved(before: Relation, after: Relation) -> bool:
    return not made_again(before, after) and key_moved(before, after)


def _check_logged(shape: RelationMapping, target: Target, number: int) -> None:
    """Raise NoKey if changes of an older layout do not contain the key."""
    places, columns = shape.places[number], shape.layouts[number].columns
    for index in shape.keys:
        place = places[index]
        if place is None or not columns[place].key:
            name = shape.relation.columns[index].name
            table = shape.relation.table
            raise NoKey(
                f"the server did not log column `{name}` of {table} for deletes, so it cannot be part of the key",
                hint=f"when the server logs it (primary key, replica identity), {schema_changes.copied_again(target)}",
            )
