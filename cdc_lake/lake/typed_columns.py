"""Typed columns: all columns of a silver table that come from its source's, with name, type and where they come from.

By position first the source's columns in their order, then the companions: decimals that stand beside a column of text
(`both(p,s)` in `types`), under its name with `_decimal` behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

from cdc_lake.config.type_policy import TypePolicy
from cdc_lake.errors import NameTaken, TypeRefused
from cdc_lake.lake.names import silver_names
from cdc_lake.lake.types import ColumnType, column_type, companion_type
from cdc_lake.model.relation import Column, Relation


@dataclass(frozen=True, slots=True)
class TypedColumn:
    """A silver column: the source's column, its name in silver, its type. `companion`: the source's is in another."""

    source: Column
    name: str
    type: ColumnType
    companion: bool = False


def typed_columns(relation: Relation, policy: TypePolicy) -> tuple[TypedColumn, ...]:
    """The silver columns of a layout. Raises TypeRefused, and NameTaken where a companion has the name of another."""
    own = [
        TypedColumn(column, name, column_type(column, policy))
        for column, name in zip(relation.columns, silver_names(relation), strict=True)
    ]
    taken = {one.name.casefold() for one in own}
    beside = []
    for one in own:
        kind = companion_type(one.source, policy)
        if kind is not None:
            name = f"{one.name}_decimal"
            if name.casefold() in taken:
                raise NameTaken(
                    f"{relation.table} has a column `{name}`, which is one of silver's own here",
                    hint=f"declare `{one.source.name}` otherwise than `both` (`types`), then `cdc-lake rebuild TABLE`",
                )
            beside.append(TypedColumn(one.source, name, kind, companion=True))
    return (*own, *beside)


def check_declared(relation: Relation, policy: TypePolicy) -> None:
    """Raise TypeRefused where a type is declared for a column that is not there."""
    for name, _ in policy.columns:
        if name not in relation.names:
            raise TypeRefused(f"`types.columns` names `{name}`, and {relation.table} has no such column")
