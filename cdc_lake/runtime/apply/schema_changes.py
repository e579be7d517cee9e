"""Adapts silver tables to new layouts of their source tables, and checks settings against layouts.

Schema changes are derived from layouts, not from the silver table: from the layout of its rows and that of its next
changes. They are applied once, directly before the first change of the new layout, whenever a process is killed;
destructive ones only if the run approves them by name.

Checks before the first row of a table: its transforms and partitioning against the existing table and the source's
layout; its rules against its columns, each problem with its location in the pipeline file; and that no two source
tables have the same silver name. A silver name is the source's in lower case with `_` for everything that is not an
ASCII letter or digit, so `orders` and `Orders` may collide (`config.project.default_name`).
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from cdc_lake import errors
from cdc_lake.bronze.span_index import SpanSummary
from cdc_lake.config.project import Project, Target
from cdc_lake.config.rules import Expression, RowRule
from cdc_lake.config.silver_tables import Partition
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.observability.failpoints import LAYOUT_DONE, failpoint
from cdc_lake.quality.rules import check_rule
from cdc_lake.runtime.apply.rule_gate import reads
from cdc_lake.silver.kind import WORKING, Kind, RowIdentity, old_column, with_own
from cdc_lake.silver.kinds import check_kind, own_names
from cdc_lake.silver.layout_mapping import RelationMapping, key_moved
from cdc_lake.silver.transforms import (
    Projection,
    analyze_expression,
    plain,
    silver_names_of,
    silver_shape,
    taken_columns,
)
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.schema_evolution import (
    KINDS,
    AddColumn,
    AssumeColumn,
    AssumeKey,
    ChangeType,
    DropColumn,
    KeepColumn,
    RenameColumn,
    SchemaChange,
    columns_after,
    for_the_table,
    operations,
    unlike,
)
from cdc_lake.tables.silver_table import SilverStore, TableLayout, declared_layout, table_ref
from cdc_lake.tables.types import SilverColumn, is_numeric, quote_identifier, typed_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_HELD = {"smallint": "int", "tinyint": "int"}  # Iceberg's smallest integer is int


def layout_changes(
    target: Target,
    follows: Relation | None,
    relation: Relation,
    have: Sequence[SilverColumn],
    among: Iterable[Relation] = (),
) -> tuple[SchemaChange, ...]:
    """The schema changes that adapt a table to `relation`. `have`: its columns without metadata columns; `follows`: the
    layout of its rows, None if unknown; `among`: all layouts of the changes, if there are more.
    """
    after = silver_names_of(relation, target)
    before = after if follows is None else silver_names_of(follows, target)
    plain = {final: name for name, final in (after | before).items()}
    computed = {name for name, _ in target.transforms.compute}
    plain_columns = [SilverColumn(plain.get(c.name, c.name), c.type) for c in have if c.name not in computed]
    if follows is None:
        differences = unlike(plain_columns, relation, target.on_drop, target.types)
    else:
        differences = operations(follows, relation, plain_columns, target.on_drop, target.types)
    changes = [changed for change in differences if (changed := _in_silver(change, before, after)) is not None]
    return (*_assumed_key(target, follows, among or [relation]), *changes)


def _assumed_key(target: Target, follows: Relation | None, layouts: Iterable[Relation]) -> list[AssumeKey]:
    """The key by which updates are matched, if it is unknown and nothing was decided before."""
    doubted = next((layout for layout in layouts if layout.ambiguous), None)
    if doubted is None or target.kind == "append" or (follows is not None and follows.ambiguous):
        return []
    names = silver_names_of(doubted, target)
    return [AssumeKey(tuple(names.get(column.name, column.name) for column in doubted.columns if column.key))]


def of_old_values(changes: Sequence[SchemaChange], present: Mapping[str, str]) -> list[SchemaChange]:
    """The schema changes of columns that contain old values. `present`: name → type of the table's columns."""
    dropped = {operation.column.name for operation in changes if isinstance(operation, DropColumn)}
    moved = {
        operation.name: operation.to
        for operation in changes
        if isinstance(operation, RenameColumn) and _old(operation.name) in present
    }
    former = {to: name for name, to in moved.items() if _old(to) not in present or to in dropped or to in moved}
    result: list[SchemaChange] = []
    for change in changes:
        match change:
            case DropColumn(column) if (kind := present.get(_old(column.name))) is not None:
                result.append(DropColumn(SilverColumn(_old(column.name), kind)))
            case RenameColumn(name, to) if former.get(to) == name:
                result.append(RenameColumn(_old(name), _old(to)))
            case ChangeType(name, _, new) if (kind := present.get(_old(former.get(name, name)))) is not None:
                followed = replace(change, name=_old(name), old_sql=kind)
                if followed.convertible and (kind != new or followed.rewriting is not None):
                    result.append(followed)
            case _:
                pass
    return result


def _old(name: str) -> str:
    return old_column(SilverColumn(name, "")).name


def held_as(type_: str) -> str:
    """The type of a silver column for a type."""
    return _HELD.get(type_, type_)


def check_computed(target: Target, have: Sequence[SilverColumn], wanted: Sequence[SilverColumn]) -> None:
    """Raise TransformChanged if a computed column would have another type now, because its inputs have."""
    types, computed = {c.name: c.type for c in have}, {name for name, _ in target.transforms.compute}
    for column in wanted:
        kind = types.get(column.name, column.type)
        if column.name in computed and kind != column.type and held_as(column.type) != kind:
            text = f"computed column `{column.name}` of {target.label} would be {column.type}, but is {kind}"
            raise errors.TransformChanged(text)


def check_columns(target: Target, have: Iterable[str], relation: Relation, earlier: Iterable[Relation]) -> None:
    """Raise UnexpectedColumn if a silver table has a column that its source never had and that no setting adds.

    `have`: the table's columns; `relation`: the newest layout; `earlier`: all others.
    """
    names = {name for layout in (relation, *earlier) for name in silver_names_of(layout, target).values()}
    names |= {name for name, _ in target.transforms.compute}
    names |= own_names(replace(target, lineage=True, old_values=target.kind == "append"), relation, names)
    decimals = {
        f"{column.name}_decimal" for column in typed_columns(relation, target.types) if is_numeric(column.source)
    }
    for name in have:
        if name in decimals - names:
            text = f"`{name}` of {target.label} is the second column of a numeric that is no longer declared `both`"
            hint = (
                f"restore `both` in `types`, or run `cdc-lake rebuild {target.source}` to recreate the table without it"
            )
            raise errors.UnexpectedColumn(text, hint=hint)
        if name not in names:
            raise errors.UnexpectedColumn(f"{target.source} never had the column `{name}` of {target.label}")


def _in_silver(change: SchemaChange, before: dict[str, str], after: dict[str, str]) -> SchemaChange | None:
    """The schema change in silver's names; None if silver does not have the column."""
    match change:
        case AddColumn(column):
            return replace(change, column=_rename_column(column, after)) if column.name in after else None
        case KeepColumn(column) | DropColumn(column):
            return replace(change, column=_rename_column(column, before))
        case AssumeColumn(name, former):
            old = None if former is None else before.get(former, former)
            return AssumeColumn(after[name], old) if name in after else None
        case RenameColumn(name, to):
            return RenameColumn(before.get(name, name), after.get(to, to))
        case ChangeType(name):
            return replace(change, name=after.get(name, name))
        case _:
            return change


def _rename_column(column: SilverColumn, names: dict[str, str]) -> SilverColumn:
    return SilverColumn(names.get(column.name, column.name), column.type)


def evolve(
    silver: SilverStore,
    target: Target,
    kind: Kind,
    shape: RelationMapping,
    *,
    stream: str,
    position: int,
    follows: Relation | None,
    allowed: Container[str],
    all_relations: Callable[[], Iterable[Relation]],
    report: ProgressReporter,
    begins: bool = False,
) -> RelationMapping:
    """Create the silver table, or apply the changes to the layout of `shape`; returns the shape with kept columns.

    `position`: of the first change; `follows`: the layout of the table's rows, None if unknown; `allowed`: approved
    destructive operations; `all_relations`: all layouts of the source table; `begins`: a copy is about to replace all
    rows and the columns (`runtime.apply.merge`). Raises DestructiveChange, KindChanged, UnexpectedColumn,
    TransformChanged, Unconvertible, ConcurrentModification.
    """
    have, wanted = silver.columns(), kind.columns(shape)
    if have is None:
        silver.create(wanted, stream)
        return shape
    check_kind([c.name for c in have], [c.name for c in wanted], target.label, target.source)
    if begins:
        have = tuple(c for c in have if target.on_drop == "keep" and not c.name.startswith(WORKING))
    else:
        check_computed(target, have, wanted)
    ambiguous = any(layout.ambiguous for layout in shape.layouts.values())
    other = follows != shape.relation or ambiguous or not set(wanted) <= set(have)  # another layout, or other settings
    if not begins and other:
        base = silver.marker(stream)
        reached = silver.laid_out(stream, base)
        if reached is None or reached < position:
            own = own_names(target, shape.relation, {column.name for column in (*have, *wanted)})
            source_columns = [column for column in have if column.name not in own]
            changes = layout_changes(target, follows, shape.relation, source_columns, shape.layouts.values())
            refuse(changes, target, allowed)
            if to_do := for_the_table((*changes, *_of_own(changes, have, wanted, own))):
                silver.reshape(stream, base, position, to_do, _live(kind))
                failpoint(LAYOUT_DONE)
                for change in to_do:
                    facts = {"table": target.label, "kind": KINDS[type(change)]}
                    report(ProgressEvent("layout", change.text(target.label), facts=facts))
                have = silver.columns() or ()
    kept_columns = {column.name: column for column in have if column.name not in {c.name for c in wanted}}
    if kept_columns:
        check_columns(target, kept_columns, shape.relation, all_relations())
    return replace(shape, carried={**shape.carried, **{c: f"CAST(NULL AS {c.type})" for c in kept_columns.values()}})


def refuse(changes: Sequence[SchemaChange], target: Target, allowed: Container[str]) -> None:
    """Raise DestructiveChange if operations would lose data and are not approved, Unconvertible if only the source
    knows the resulting values.
    """
    if words := [change.text(target.label) for change in changes if unconvertible(change)]:
        raise errors.Unconvertible(f"{target.source} was altered: {'; '.join(words)}", hint=copied_again(target))
    needed = [change.text(target.label) for change in changes if change.destructive]
    if missing := [words for words in needed if words not in allowed]:
        options = " ".join(f"--allow {shlex.quote(words)}" for words in missing)
        hint = f"to apply the change run `cdc-lake run {options}`; until then the table waits"
        if any(
            isinstance(operation, AssumeColumn | AssumeKey) or (isinstance(operation, AddColumn) and operation.unknown)
            for operation in changes
        ):
            hint += (
                f"; if that is wrong, or if you are not sure, `cdc-lake resync {target.source}` copies the table again"
            )
        raise errors.DestructiveChange(f"{target.source} was altered: {'; '.join(missing)}", hint=hint)


def unconvertible(change: SchemaChange) -> bool:
    """Whether only the source knows the values after an operation."""
    return isinstance(change, ChangeType) and not change.convertible


def copied_again(target: Target) -> str:
    """The hint for such an operation: copy the table again. History cannot be recreated this way, nor can a copy of a
    new stream continue history whose column has the old type.
    """
    if target.keeps_past:
        words = f"give {target.source} another silver table in the pipeline file (`to`), then run `cdc-lake restart`"
        text = f"{words}, which copies every table: {target.label} keeps its past and is not changed any more"
    else:
        text = f"`cdc-lake resync {target.source}` copies the table again while the other tables continue"
    return f"{text}; until then the table waits"


def next_layout(summary: SpanSummary, layouts: Mapping[int, Relation], target: Target) -> int | None:
    """The position of the first transaction whose layout requires a schema change that earlier ones do not; None if one
    state of the table fits the whole span.
    """
    if not summary.runs:
        return None
    first = summary.runs[0].position
    for run, following in pairwise(summary.runs):
        before, after = layouts[run.layout], layouts[following.layout]
        if following.position > first and (
            operations(before, after, on_drop=target.on_drop, types=target.types)
            or (after.ambiguous and not before.ambiguous)
            or (by_source_key(target) and key_moved(before, after))
        ):
            return following.position
    return None


def by_source_key(target: Target) -> bool:
    """Whether the source's own key identifies the rows of a silver table."""
    return not target.keys and target.kind != "append"


def _of_own(
    changes: Sequence[SchemaChange], have: Sequence[SilverColumn], wanted: Iterable[SilverColumn], own: Container[str]
) -> list[SchemaChange]:
    """Changes of metadata columns: those for old values follow their columns, others are added when required."""
    result = of_old_values(changes, {column.name: column.type for column in have if column.name in own})
    present = {column.name for column in columns_after(have, result)}
    return [*result, *(AddColumn(column) for column in wanted if column.name in own and column.name not in present)]


def _live(kind: Kind) -> str:
    """SQL for whether a row of the silver table exists in the source table."""
    if kind.identity is RowIdentity.PLACE:
        return "false"  # logged changes stay as they were
    flag = kind.flag
    return "true" if flag is None else f"{'' if flag.value else 'NOT '}{quote_identifier(flag.column.name)}"


_PARTITIONS: Final = re.compile(r"smallint|int|bigint|float|double|decimal\(.*\)|boolean|date|timestamp|timestamp_ntz")
"""Types by whose values Delta can partition without loss."""


def check_made(project: Project, target: Target) -> TableLayout | None:
    """How the table was created, None if it does not exist. Raises TransformChanged, DivisionChanged."""
    actual, declared = table_log(project, target).layout(), declared_layout(target)
    if actual is None:
        return None
    if actual.transforms != declared.transforms:
        keys = "`columns`, `exclude`, `rename`, `compute` or `where`"
        text = f"{target.label} was created with other {keys} than the pipeline has now"
        raise errors.TransformChanged(text, where=project.key_location(target, "from"))
    if actual.partition_by != declared.partition_by:
        have = ", ".join(actual.partition_by) or "nothing"
        text = (
            f"{target.label} is partitioned by {have}, but the pipeline says "
            f"{', '.join(declared.partition_by) or 'nothing'}"
        )
        raise errors.DivisionChanged(text, where=project.key_location(target, "partition_by"))
    return actual


def divide(project: Project, target: Target, silver: SilverStore, columns: Sequence[SilverColumn]) -> None:
    """Check the existing table, or the one to be created with `columns`, and apply the current clustering.

    Raises TransformUnfit, TransformChanged, DivisionChanged.
    """
    actual = check_made(project, target)
    check_divided(project, target, columns)
    if actual is not None and actual.cluster_by != target.cluster_by:
        silver.cluster()


def check_divisible(project: Project, target: Target) -> None:
    """Raise DivisionChanged if the existing table can never be partitioned as the pipeline file says now."""
    if target.partition_by and table_log(project, target).was_clustered():
        text = f"{target.label} was clustered, and Delta cannot partition a table that was"
        address = table_ref(project, target).address
        hint = (
            f"remove `partition_by`, or move {address} away and rebuild the table: its older versions are lost with "
            "the folder"
        )
        raise errors.DivisionChanged(text, where=project.key_location(target, "partition_by"), hint=hint)


def check_divided(project: Project, target: Target, columns: Sequence[SilverColumn]) -> None:
    """Raise TransformUnfit if the table lacks a column by which it is to be partitioned or sorted."""
    names = {column.name for column in columns}
    partition_columns = [("partition_by", Partition.parse(text).column) for text in target.partition_by]
    for key, name in [*partition_columns, *(("cluster_by", name) for name in target.cluster_by)]:
        if name not in names:
            text = f"`{key}` names `{name}`, but {target.label} has no such column"
            raise errors.TransformUnfit(text, where=project.key_location(target, key))
    check_partition_types(project, target, columns)


def check_partition_types(project: Project, target: Target, columns: Sequence[SilverColumn]) -> None:
    """Raise TransformUnfit if Delta cannot store all values of a partition column.

    Delta stores the value of a partition column as text and reads an empty one as NULL. An existing table with such a
    partitioning stays: values that would become NULL are held (`silver.layout_mapping`).
    """
    divided = [Partition.parse(text).column for text in target.partition_by] if target.format == "delta" else []
    for column in columns:
        if column.name not in divided or _PARTITIONS.fullmatch(column.type):
            continue
        actual = table_log(project, target).layout() if column.type == "string" else None
        if actual is not None and column.name in actual.partition_by:
            continue
        why = "an empty text would be stored as NULL" if column.type == "string" else "Delta cannot"
        text = f"`partition_by` names `{column.name}` of {target.label}, of type {column.type}: {why}"
        hint = (
            f"use `cluster_by: [{column.name}]`, or `format: iceberg` for the table; or partition it by a numeric, "
            "boolean or date column"
        )
        raise errors.TransformUnfit(text, where=project.key_location(target, "partition_by"), hint=hint)


def check_layout_divisible(project: Project, target: Target, relation: Relation) -> None:
    """The same for a layout of the source table, without Spark; types of computed columns are unknown."""
    columns = typed_columns(relation, target.types)
    names = taken_columns(columns, target.transforms)
    silver_columns = [SilverColumn(name, columns[index].type.sql) for index, name in names.items()]
    check_partition_types(project, target, silver_columns)


def check_fit(project: Project, target: Target, shape: RelationMapping) -> None:
    """Raise QualityError for the first rule that cannot evaluate rows of `shape`. Expressions need Spark."""
    for problem in misfits(project, target, shape, expressions=True):
        raise problem


def misfits(
    project: Project, target: Target, shape: RelationMapping, *, expressions: bool
) -> Iterator[errors.QualityError]:
    """The problems of row rules that cannot evaluate rows of `shape`."""
    for index, rule in enumerate(target.rules):
        if not isinstance(rule, RowRule) or (isinstance(rule, Expression) and not expressions):
            continue
        key = "expression" if isinstance(rule, Expression) else "column"
        try:
            _fits(rule, shape, place := project.place(target, f"rules[{index}].{key}"))
        except errors.QualityError as problem:
            problem.where = place
            yield problem


def _fits(rule: RowRule, shape: RelationMapping, place: str) -> None:
    if isinstance(rule, Expression):
        reads(rule, shape, place)
        return
    column = shape.position(rule.column)
    if column is None:
        raise errors.RuleColumnMissing(f"there is no column `{rule.column}` in {shape.relation.table}", where=place)
    check_rule(rule, shape.columns[column].type)


def check_possible(project: Project, target: Target, kind: Kind) -> None:
    """Raise TransformUnfit for transforms of a table whose rows are identified by all their values."""
    if target.transforms.any and kind.identity is RowIdentity.CONTENT:
        where = project.key_location(target, "from")
        raise errors.TransformUnfit(
            f"{target.source} has no key, and transforms need one, or `kind: append`", where=where
        )


def projection_of(spark: SparkSession, project: Project, target: Target, shape: RelationMapping) -> Projection:
    """The projection of `shape` to silver. Raises TransformUnfit with the location in the pipeline file, NameTaken."""
    transforms = target.transforms
    if not transforms.any:
        return plain(shape)
    place = partial(project.key_location, target)
    computed = {
        name: analyze_expression(spark, shape.columns, sql, place(f"compute.{name}"))
        for name, sql in transforms.compute
    }
    where = (
        None if transforms.where is None else analyze_expression(spark, shape.columns, transforms.where, place("where"))
    )
    if where is not None and where.type != "boolean":
        raise errors.TransformUnfit(f"`where` must be boolean, but is of type {where.type}", where=place("where"))
    types = {name: expression.type for name, expression in computed.items()}
    silver = silver_shape(shape, transforms, types, target.label, place)
    with_own(silver.source)  # the source's columns exist next to working columns meanwhile
    return Projection(silver.source, silver, transforms, where, tuple(computed.values()))


def named_columns(target: Target) -> frozenset[str]:
    """The source columns that a table's settings name, besides those that expressions and rules read."""
    transforms = target.transforms
    renamed, typed = (source for source, _ in transforms.rename), (name for name, _ in target.types.columns)
    return frozenset((*(transforms.columns or ()), *transforms.exclude, *renamed, *typed))


def words_read(target: Target) -> frozenset[str]:
    """All words of a table's expressions and the columns of its rules, in lower case: other columns are not read.
    Spark's analyzer determines which words are columns.
    """
    transforms = target.transforms
    texts = [transforms.where or "", *(sql for _, sql in transforms.compute)]
    texts += [rule.expression for rule in target.row_rules if isinstance(rule, Expression)]
    judged = {rule.column.casefold() for rule in target.row_rules if not isinstance(rule, Expression)}
    return frozenset(re.findall(r"\w+", " ".join(texts).casefold())) | judged


def shared_names(project: Project, tables: Iterable[TableName]) -> dict[TableName, errors.SilverNameShared]:
    """Why tables cannot have a silver table of their own, by table."""
    by_name: defaultdict[str, list[TableName]] = defaultdict(list)
    for table in sorted(set(tables)):
        by_name[project.target(table).label.casefold()].append(table)
    result: dict[TableName, errors.SilverNameShared] = {}
    for several in by_name.values():
        if len(several) > 1:
            listed = ", ".join(f"`{table}`" for table in several[:-1])
            label = project.target(several[0]).label
            text = f"{listed} and `{several[-1]}` would both be written to {label}"
            result |= {
                table: errors.SilverNameShared(text, where=project.key_location(project.target(table), "to"))
                for table in several
            }
    return result


def refused_names(project: Project, tables: Iterable[TableName]) -> dict[TableName, errors.SilverNameShared]:
    """The same, without the table for which the silver table was created: it is merged nevertheless."""
    shared = shared_names(project, tables)
    return {table: error for table, error in shared.items() if not _is_of(project, table)}


def _is_of(project: Project, table: TableName) -> bool:
    owner = table_log(project, project.target(table)).owner()
    return owner is not None and owner.source == str(table)


def check_names(project: Project, tables: Iterable[TableName]) -> None:
    """Raise SilverNameShared for the first of them."""
    for error in shared_names(project, tables).values():
        raise error
