"""The shape of a table's span: its columns over all its layouts, and whether its changes say which rows they are of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import assert_never

from cdc_lake.bronze.outline import Outline
from cdc_lake.config.project import Target
from cdc_lake.errors import KeylessDelete, NoKey
from cdc_lake.model.relation import Relation, ReplicaIdentity
from cdc_lake.model.succession import made_again, predecessors
from cdc_lake.pipeline.applying.evolve import copied_again
from cdc_lake.pipeline.target.transforms import named_columns, words_read
from cdc_lake.silver.holding import Waiting
from cdc_lake.silver.kind import Kind, RowIdentity
from cdc_lake.silver.own_columns import LINEAGE
from cdc_lake.silver.projection import taken_columns
from cdc_lake.silver.shape import MINUS_ZERO, STORED_AS_NULL, Shape, comparable, key_moved, make_shape
from cdc_lake.source.stream import shown


def shape_of(
    numbers: Sequence[int],
    layouts: Mapping[int, Relation],
    target: Target,
    kind: Kind,
    form: Relation | None = None,
) -> Shape:
    """The shape of a table's span, with the columns that its kind and its lineage take from changes; `form` as
    `looking_ahead` has it.
    """
    by_content, relation = kind.identity is RowIdentity.CONTENT, looking_ahead(layouts[numbers[-1]], target, form)
    keys, keyed = relation.names if by_content else target.keys, kind.identity is not RowIdentity.PLACE
    try:
        shape = make_shape(numbers, layouts, keys, keyed=keyed, types=target.types, relation=relation)
    except NoKey as missing:
        if target.keeps_past:
            anew = f"{NoKey.given}; if changes landed without one, then {copied_again(target)}"
            missing.remedy = missing.remedy.replace(NoKey.hint, anew)
        raise
    for column in shape.columns if by_content else ():
        if not comparable(column):
            raise NoKey(f"{target.source} has no key, and column `{column.name}` has no order to find equal rows by")
    lineage = LINEAGE if target.lineage else {}
    return replace(
        shape,
        carried={**kind.carried(shape), **lineage},
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


def _unkept(shape: Shape, target: Target) -> dict[int, tuple[str, ...]]:
    """Texts with a value that a table cannot keep: of what a Delta table is divided by, and of floats in a key."""
    floats = {"float", "double"}
    found: dict[int, tuple[str, ...]] = {at: MINUS_ZERO for at in shape.keys if shape.made[at].type.sql in floats}
    divided = target.partition_by if target.format == "delta" else ()
    for at, name in taken_columns(shape.made, target.transforms).items() if divided else ():
        if name in divided and shape.made[at].type.sql == "string":
            found[at] = STORED_AS_NULL
    return found


def unsent_columns(seen: Outline, shape: Shape) -> frozenset[int]:
    """The positions, in the newest layout, of columns that some change did not send."""
    unsent = {(layout, place) for layout, places in seen.unchanged.items() for place in places}
    return frozenset(
        at for layout, places in shape.places.items() for at, place in enumerate(places) if (layout, place) in unsent
    )


def check_named(seen: Outline, shape: Shape, target: Target, kind: Kind, stream: str) -> None:
    """Raise KeylessDelete or NoKey where a change does not say which row it is of."""
    table = shape.relation.table
    match kind.identity:
        case RowIdentity.KEY:
            if seen.nameless is not None:
                at = shown(stream, seen.nameless)
                hint = (
                    f"give the table a primary key or REPLICA IDENTITY FULL at the source; then {copied_again(target)}"
                )
                raise KeylessDelete(f"a delete of {table} at {at} does not say which row went", hint=hint)
            partly = {number for number in seen.by_whole if shape.layouts[number].mixed}
            for number in seen.by_key | partly:
                if not made_again(shape.layouts[number], shape.relation):  # rows of another table are gone by then
                    _check_logged(shape, target, number)
        case RowIdentity.CONTENT:
            if seen.bare is not None:
                at = shown(stream, seen.bare)
                raise KeylessDelete(f"a change of {table} at {at} does not say all values that its row had")
        case RowIdentity.PLACE:
            pass
        case other:
            assert_never(other)


def check_key(
    seen: Outline, shape: Shape, target: Target, held: Waiting, follows: Relation | None, stream: str
) -> None:
    """Raise NoKey where one key cannot tell all rows apart: a transaction has changes by two keys, each of which is
    unique at its own place only, or changes are held by a key that the table does not have any more.
    """
    table = shape.relation.table
    for one in seen.runs:
        if _moved(shape.layouts[one.layout], shape.relation):
            raise NoKey(
                f"the primary key of {table} moves inside of the transaction at {shown(stream, one.position)}",
                hint=copied_again(target),
            )
    if held and follows is not None and _moved(follows, shape.relation):
        raise NoKey(
            f"the primary key of {table} moved, and changes are held by the former one",
            hint=f"decide them (`cdc-lake held list`); or else {copied_again(target)}",
        )


def _moved(before: Relation, after: Relation) -> bool:
    return not made_again(before, after) and key_moved(before, after)


def _check_logged(shape: Shape, target: Target, number: int) -> None:
    """Raise NoKey where changes of an older layout do not tell the key of their rows."""
    places, columns = shape.places[number], shape.layouts[number].columns
    for at in shape.keys:
        place = places[at]
        if place is None or not columns[place].key:
            name = shape.relation.columns[at].name
            table = shape.relation.table
            raise NoKey(
                f"the server did not log column `{name}` of {table} for deletes: it is no key",
                hint=f"once the server logs it (primary key, replica identity), {copied_again(target)}",
            )
