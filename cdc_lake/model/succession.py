"""Succession: which column of a later layout is which column of an earlier one.

A column is known by its number in the source's catalog where both layouts have it: then a renamed column is the same
one, and one that was dropped and made again under its name is another. Where a layout came without numbers, a column is
known by its name, and nobody can tell a rename from a drop and an add.
"""

from __future__ import annotations

from cdc_lake.model.relation import Relation


def predecessors(before: Relation, after: Relation) -> tuple[int | None, ...]:
    """For each column of `after` its position in `before`, None where it is new."""
    if numbered(before, after):
        places = {column.number: at for at, column in enumerate(before.columns)}
        return tuple(places.get(column.number) for column in after.columns)
    names = {name: at for at, name in enumerate(before.names)}
    return tuple(names.get(name) for name in after.names)


def numbered(before: Relation, after: Relation) -> bool:
    """Whether the columns of both are known by number: of the same table, as numbers of two tables mean nothing."""
    every = (*before.columns, *after.columns)
    return before.oid == after.oid and before.oid is not None and all(c.number is not None for c in every)


def made_again(before: Relation, after: Relation) -> bool:
    """Whether the later layout is of another table of the same name: the first one was dropped."""
    return before.oid is not None and after.oid is not None and before.oid != after.oid
