"""What a new layout asks of a silver table, with the table's transforms: columns that silver takes, by its names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from cdc_lake.config.project import Target
from cdc_lake.errors import ShapeForeign, TransformChanged
from cdc_lake.lake.evolution import (
    AddColumn,
    AssumeColumn,
    AssumeKey,
    ChangeType,
    DropColumn,
    KeepColumn,
    RenameColumn,
    SchemaChange,
    operations,
    unlike,
)
from cdc_lake.lake.store import SilverColumn
from cdc_lake.lake.typed_columns import typed_columns
from cdc_lake.lake.types import is_numeric
from cdc_lake.model.relation import Relation
from cdc_lake.silver.kinds import own_names
from cdc_lake.silver.own_columns import old_column
from cdc_lake.silver.projection import taken_columns

_HELD = {"smallint": "int", "tinyint": "int"}  # Iceberg has no smaller integers


def layout_changes(
    target: Target,
    follows: Relation | None,
    relation: Relation,
    have: Sequence[SilverColumn],
    among: Iterable[Relation] = (),
) -> tuple[SchemaChange, ...]:
    """The operations that turn a table into that of `relation`. `have`: its columns without those of our own;
    `follows`: the layout that its rows have, None: nobody knows; `among`: all layouts of the changes, if more.
    """
    after = silver_names_of(relation, target)
    before = after if follows is None else silver_names_of(follows, target)
    plain = {final: name for name, final in (after | before).items()}
    computed = {name for name, _ in target.transforms.compute}
    given = [SilverColumn(plain.get(c.name, c.name), c.type) for c in have if c.name not in computed]
    if follows is None:
        found = unlike(given, relation, target.on_drop, target.types)
    else:
        found = operations(follows, relation, given, target.on_drop, target.types)
    changes = [changed for one in found if (changed := _in_silver(one, before, after)) is not None]
    return (*_assumed_key(target, follows, among or [relation]), *changes)


def _assumed_key(target: Target, follows: Relation | None, layouts: Iterable[Relation]) -> list[AssumeKey]:
    """By what updates are matched, where nobody can tell and nothing was decided before."""
    doubted = next((one for one in layouts if one.ambiguous), None)
    if doubted is None or target.kind == "append" or (follows is not None and follows.ambiguous):
        return []
    names = silver_names_of(doubted, target)
    return [AssumeKey(tuple(names.get(column.name, column.name) for column in doubted.columns if column.key))]


def of_old_values(changes: Sequence[SchemaChange], there: Mapping[str, str]) -> list[SchemaChange]:
    """What operations ask of the columns that old values stand in. `there`: name → type of those that the table has."""
    dropped = {one.column.name for one in changes if isinstance(one, DropColumn)}
    moved = {one.name: one.to for one in changes if isinstance(one, RenameColumn) and _old(one.name) in there}
    former = {to: name for name, to in moved.items() if _old(to) not in there or to in dropped or to in moved}
    out: list[SchemaChange] = []
    for change in changes:
        match change:
            case DropColumn(column) if (kind := there.get(_old(column.name))) is not None:
                out.append(DropColumn(SilverColumn(_old(column.name), kind)))
            case RenameColumn(name, to) if former.get(to) == name:
                out.append(RenameColumn(_old(name), _old(to)))
            case ChangeType(name, _, new) if (kind := there.get(_old(former.get(name, name)))) is not None:
                followed = replace(change, name=_old(name), old_sql=kind)
                if followed.convertible and (kind != new or followed.rewriting is not None):
                    out.append(followed)
            case _:
                pass
    return out


def _old(name: str) -> str:
    return old_column(SilverColumn(name, "")).name


def silver_names_of(relation: Relation, target: Target) -> dict[str, str]:
    """The columns that silver takes of a layout: their names without a `rename` → what they are called."""
    made = typed_columns(relation, target.types)
    return {made[at].name: name for at, name in taken_columns(made, target.transforms).items()}


def held_as(type_: str) -> str:
    """The type that a column of a type may have in a silver table."""
    return _HELD.get(type_, type_)


def check_computed(target: Target, have: Sequence[SilverColumn], wanted: Sequence[SilverColumn]) -> None:
    """Raise TransformChanged where a computed column would be of another type now: its inputs are."""
    there, computed = {c.name: c.type for c in have}, {name for name, _ in target.transforms.compute}
    for column in wanted:
        kind = there.get(column.name, column.type)
        if column.name in computed and kind != column.type and held_as(column.type) != kind:
            text = f"computed column `{column.name}` of {target.label} would be {column.type}, and is {kind}"
            raise TransformChanged(text)


def check_columns(target: Target, have: Iterable[str], relation: Relation, known: Iterable[Relation]) -> None:
    """Raise ShapeForeign where a silver table has a column that its source's never had and that no setting adds.

    `have`: the table's columns; `relation`: the newest layout; `known`: all others.
    """
    names = {name for layout in (relation, *known) for name in silver_names_of(layout, target).values()}
    names |= {name for name, _ in target.transforms.compute}
    names |= own_names(replace(target, lineage=True, old_values=target.kind == "append"), relation, names)
    beside = {f"{one.name}_decimal" for one in typed_columns(relation, target.types) if is_numeric(one.source)}
    for name in have:
        if name in beside - names:
            text = f"`{name}` of {target.label} stands beside a numeric that is not declared `both` any more"
            hint = f"put `both` back into `types`, or let `cdc-lake rebuild {target.source}` make the table without it"
            raise ShapeForeign(text, hint=hint)
        if name not in names:
            raise ShapeForeign(f"column `{name}` of {target.label} was never one of {target.source}")


def _in_silver(change: SchemaChange, before: dict[str, str], after: dict[str, str]) -> SchemaChange | None:
    """The operation by silver's names; None where silver does not take the column."""
    match change:
        case AddColumn(column):
            return replace(change, column=_named(column, after)) if column.name in after else None
        case KeepColumn(column) | DropColumn(column):
            return replace(change, column=_named(column, before))
        case AssumeColumn(name, former):
            old = None if former is None else before.get(former, former)
            return AssumeColumn(after[name], old) if name in after else None
        case RenameColumn(name, to):
            return RenameColumn(before.get(name, name), after.get(to, to))
        case ChangeType(name):
            return replace(change, name=after.get(name, name))
        case _:
            return change


def _named(column: SilverColumn, names: dict[str, str]) -> SilverColumn:
    return SilverColumn(names.get(column.name, column.name), column.type)
