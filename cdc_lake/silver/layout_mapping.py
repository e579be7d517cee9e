"""Maps the text arrays of bronze, in any layout of a table, to the typed columns of one silver table.

A span may contain several layouts of a table, for example if a column was added; the newest one defines the columns,
and each column knows its index in every layout. All expressions here are Spark SQL text over bronze's columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final

from cdc_lake.config.silver_tables import UNDECLARED, TypePolicy
from cdc_lake.errors import NoKey
from cdc_lake.model.relation import Relation, ReplicaIdentity, predecessors
from cdc_lake.tables.casts import TypeRewrite, cast_sql, fits_sql, key_sql, key_text, require_conversion, rewriting
from cdc_lake.tables.types import (
    ColumnType,
    Family,
    SilverColumn,
    TypedColumn,
    check_declared,
    column_type,
    literal,
    typed_columns,
)

STORED_AS_NULL: Final = ("", "__HIVE_DEFAULT_PARTITION__")
"""Texts of a partition column that a Delta table stores as NULL: the first by the protocol, the other because Spark's
writer uses it as the folder name of NULL.
"""

MINUS_ZERO: Final = ("-0",)
"""A float that equals 0 in comparisons: rows identified by a float column may have either."""


@dataclass(frozen=True)
class RelationMapping:
    """One table's columns in a span: the newest layout, all layouts by number, and the positions of its key.

    `carried`: silver columns that come with the change and not in a tuple, by SQL over bronze's row. A table whose rows
    nothing identifies has no key. `types`: declared types; a position may be that of a companion column
    (`tables.types`), which follows the layout's own. `old_values`: the old row is stored too. `unkept`: by position,
    texts with a silver value that this table cannot store.
    """

    relation: Relation
    layouts: Mapping[int, Relation]
    keys: tuple[int, ...]
    carried: Mapping[SilverColumn, str] = field(default_factory=dict)
    types: TypePolicy = UNDECLARED
    old_values: bool = False
    unkept: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def typed_columns(self) -> tuple[TypedColumn, ...]:
        """The source of each silver column, by position in the newest layout, followed by companion columns."""
        return typed_columns(self.relation, self.types)

    @cached_property
    def columns(self) -> tuple[SilverColumn, ...]:
        """The silver columns, by position."""
        return tuple(SilverColumn(column.name, column.type.sql) for column in self.typed_columns)

    @cached_property
    def places(self) -> Mapping[int, tuple[int | None, ...]]:
        """Layout → for each silver column its source's index there, None if the layout does not have it."""
        sources = [self.relation.names.index(column.source.name) for column in self.typed_columns]
        layout_places = {number: predecessors(layout, self.relation) for number, layout in self.layouts.items()}
        return {number: tuple(places[source] for source in sources) for number, places in layout_places.items()}

    @property
    def key_columns(self) -> tuple[SilverColumn, ...]:
        """The silver columns that identify a row."""
        return tuple(self.columns[index] for index in self.keys)

    @cached_property
    def nullable(self) -> frozenset[int]:
        """The parts of the key, by index, that may be NULL in some row."""
        names = [self.relation.columns[index].name for index in self.keys]
        layouts = self.layouts.values()
        return frozenset(n for n, name in enumerate(names) if not all(_never_null(layout, name) for layout in layouts))

    def position(self, name: str) -> int | None:
        """The position of a source column, or of a companion column by its own name; None if it does not exist."""
        names = [column.name if column.companion else column.source.name for column in self.typed_columns]
        return names.index(name) if name in names else None

    def text(self, column_index: int, array: str) -> str:
        """The text of column `column_index` in the array column `array`; in layouts without it, the value of old
        rows.
        """
        missing = self.typed_columns[column_index].source.missing
        without = "CAST(NULL AS STRING)" if missing is None or missing.text is None else literal(missing.text)
        return self._by_layout(column_index, lambda index: f"{array}[{index}]", without)

    def sent_sql(self, column_index: int) -> str:
        """A boolean, never NULL: column `column_index` was sent in `new`."""
        return self._by_layout(
            column_index, lambda index: f"NOT coalesce(array_contains(unchanged, {index}), false)", "true"
        )

    @cached_property
    def whole_old(self) -> str:
        """A boolean, never NULL: the old tuple has all values. A supposedly whole row of a partitioned table may come
        from a partition that logs only the key.
        """
        mixed = [f"{number}L" for number, layout in self.layouts.items() if layout.mixed]
        is_full = "coalesce(old_kind = 'full', false)"
        return f"({is_full} AND layout NOT IN ({', '.join(mixed)}))" if mixed else is_full

    def unsent_names(self) -> str:
        """The names of the silver columns that a row did not send, as an array; NULL if it sent all."""
        cases = []
        for number, places in self.places.items():
            names: list[list[str]] = [[] for _ in self.layouts[number].columns]
            for place, column in zip(places, self.typed_columns, strict=True):
                if place is not None:
                    names[place].append(literal(column.name))
            listed = ", ".join(f"CAST(array({', '.join(column_names)}) AS ARRAY<STRING>)" for column_names in names)
            unsent = f"flatten(transform(unchanged, place -> element_at(array({listed}), place + 1)))"
            cases.append(f"WHEN {number}L THEN {unsent}")
        return f"CASE layout {' '.join(cases)} END"

    def typed_sql(self, column_index: int, text: str) -> str:
        """The silver value of a text of column `column_index` in the newest layout."""
        return cast_sql(text, self.typed_columns[column_index].type)

    def value(self, column_index: int, text: str) -> str:
        """The silver value of a text of column `column_index` in a row of bronze, by the type in the row's layout."""
        conversion = partial(self._conversion_sql, column_index, text)
        return self._by_type(column_index, conversion, self.typed_sql(column_index, text))

    def fits(self, column_index: int, text: str) -> str:
        """A boolean, never NULL: the text of column `column_index` in a row of bronze converts to a silver value."""
        newest = fits_sql(text, self.typed_columns[column_index].type)
        fitting = self._by_type(column_index, lambda of, _: fits_sql(text, of), newest)
        if column_index not in self.unkept:
            return fitting
        is_kept = f"coalesce({text} NOT IN ({', '.join(map(literal, self.unkept[column_index]))}), true)"
        return is_kept if fitting == "true" else f"({fitting} AND {is_kept})"

    def may_misfit(self, column_index: int) -> bool:
        """Whether some text of column `column_index` may not convert."""
        return self.fits(column_index, "x") != "true"

    def key_texts(self, array: str) -> str:
        """The key as an array of texts, from an array column; unchanged key parts come from the old tuple.

        Different texts of one value become one, that of the newest layout's type, because rows are merged by value.
        """
        if array == "old":
            texts = [self.text(index, "old") for index in self.keys]
        else:
            texts = [
                f"CASE WHEN {self.sent_sql(index)} THEN {self.text(index, 'new')} ELSE {self.text(index, 'old')} END"
                for index in self.keys
            ]
        parts = [self.key_part(index, f"({text})") for index, text in zip(self.keys, texts, strict=True)]
        # An array without elements has the type void in Spark, which Arrow does not accept.
        return f"array({', '.join(parts)})" if parts else "CAST(array() AS ARRAY<STRING>)"

    def key_part(self, column_index: int, text: str) -> str:
        """The common text for all texts of one value of column `column_index`, for a text in a row of bronze."""

        def from_other(kind: ColumnType, values: TypeRewrite | None) -> str:
            value, sql = self._conversion_sql(column_index, text, kind, values), self.columns[column_index].type
            if sql in {"float", "double"} or sql.startswith("array"):
                return text  # Spark prints these differently
            if sql == "boolean":
                return f"CASE {value} WHEN true THEN 't' WHEN false THEN 'f' END"
            printed = f"CAST({value} AS STRING)"
            return {"timestamp": f"concat({printed}, '+00')", "binary": text}.get(sql, printed)

        return self._by_type(column_index, from_other, key_sql(text, self.typed_columns[column_index].type))

    def row_key(self, index: int, value: str) -> str:
        """SQL of a part of the key, by its index, in a row of silver; earlier versions stored numbers as printed."""
        kind = self.typed_columns[self.keys[index]].type
        return key_sql(value, kind) if kind.family is Family.NUMBER_TEXT else value

    def recorded_key(self, key: tuple[str | None, ...]) -> tuple[str | None, ...]:
        """The same for a recorded key of any version."""
        return tuple(key_text(text, self.typed_columns[index].type) for index, text in zip(self.keys, key, strict=True))

    def _conversion_sql(self, column_index: int, text: str, kind: ColumnType, values: TypeRewrite | None) -> str:
        """The silver value of a text whose type in its layout differs from the newest one."""
        column = self.columns[column_index]
        # Except for few types, the server prints a value like its conversion to text.
        if column.type == "string" and kind.family is not Family.BOOLEAN:
            value = self.typed_sql(column_index, text)
        else:
            value = require_conversion(cast_sql(text, kind), column.name, kind.sql, column.type)
        return value if values is None else values.rewrite_sql(value, column.name)

    def _by_layout(self, column_index: int, expression: Callable[[int], str], missing: str) -> str:
        places = {number: of_layout[column_index] for number, of_layout in self.places.items()}
        if len(set(places.values())) == 1:
            return _or(next(iter(places.values())), expression, missing)
        cases = " ".join(f"WHEN {number}L THEN {_or(index, expression, missing)}" for number, index in places.items())
        return f"CASE layout {cases} END"

    def _by_type(
        self, column_index: int, expression: Callable[[ColumnType, TypeRewrite | None], str], newest: str
    ) -> str:
        """`newest`, if all layouts have the column with one silver type and the same values; otherwise depending on the
        row's layout. A companion column is always read by the newest type.
        """
        others = {}
        for number, layout in self.layouts.items():
            place = None if self.typed_columns[column_index].companion else self.places[number][column_index]
            if place is None:
                continue
            column, type_ = layout.columns[place], self.columns[column_index].type
            kind = column_type(column, self.types)
            values = rewriting(column, self.typed_columns[column_index].source, kind.sql, type_)
            if kind.sql != type_ or values is not None:
                others[number] = expression(kind, values)
        if not others:
            return newest
        cases = " ".join(f"WHEN {number}L THEN {sql}" for number, sql in others.items())
        return f"CASE layout {cases} ELSE {newest} END"


def make_shape(
    numbers: Sequence[int],
    known_layouts: Mapping[int, Relation],
    keys: Sequence[str] | None,
    *,
    keyed: bool = True,
    types: TypePolicy = UNDECLARED,
    relation: Relation | None = None,
) -> RelationMapping:
    """The mapping of a table whose span uses the layouts `numbers`, oldest first. `keys`: None for the source's own.

    `keyed`: a key is needed; `relation`: the layout that defines the columns, None: the newest. Raises NoKey if then
    nothing identifies a row, TypeRefused if a declared type does not suit its column.
    """
    layouts = {number: known_layouts[number] for number in numbers}
    relation = relation or layouts[numbers[-1]]
    check_declared(relation, types)
    if not keyed:
        return RelationMapping(relation, layouts, (), types=types)
    wanted = tuple(keys) if keys else default_keys(relation)
    missing = [name for name in wanted if name not in relation.names]
    if missing:
        raise NoKey(f"{relation.table} has no column `{missing[0]}` to use as key")
    logged = {c.name for c in relation.columns if c.key or relation.identity is ReplicaIdentity.FULL}
    for name in wanted:
        if name not in logged:
            text = f"the server does not log column `{name}` of {relation.table} for deletes"
            raise NoKey(f"{text}, so it cannot be part of the key")
    return RelationMapping(relation, layouts, tuple(relation.names.index(name) for name in wanted), types=types)


def without_key(relation: Relation) -> bool:
    """Whether only all values of a row together identify it, and the server logs them."""
    return relation.identity is ReplicaIdentity.FULL and not relation.primary_key


def default_keys(relation: Relation) -> tuple[str, ...]:
    """The columns that identify a row: the primary key if the server logs it, otherwise the replica identity."""
    identity = tuple(c.name for c in relation.columns if c.key)
    if relation.primary_key and (
        relation.identity is ReplicaIdentity.FULL or set(relation.primary_key) <= set(identity)
    ):
        return relation.primary_key
    if identity and relation.identity is ReplicaIdentity.INDEX:
        return identity
    # if a table was dropped or renamed before its changes were read, its key is unknown
    gone = f"; if the table no longer exists in the database, set it aside with `cdc-lake pause {relation.table}`"
    hint = NoKey.hint + gone if relation.oid is None else None
    raise NoKey(f"{relation.table} has no primary key that the server logs", hint=hint)


def key_moved(before: Relation, after: Relation) -> bool:
    """Whether rows of a later layout are identified by other columns than those of an earlier one of the same table.

    A layout without a logged key has none of its own: rows can only be inserted then, and the next key is unique among
    them too.
    """
    if without_key(before) != without_key(after):
        return True
    old, new = _key(before), _key(after)
    if old is None or new is None:
        return old is not None
    places = predecessors(before, after)
    return [places[after.names.index(name)] for name in new] != [before.names.index(name) for name in old]


def _key(relation: Relation) -> tuple[str, ...] | None:
    try:
        return relation.names if without_key(relation) else default_keys(relation)
    except NoKey:
        return None


def comparable(column: SilverColumn) -> bool:
    """Whether values of a column can be compared for equality."""
    return re.search(r"\b(map|variant)\b", column.type) is None


def _never_null(layout: Relation, name: str) -> bool:
    """A primary key has no NULL, nor has an index that is a replica identity."""
    by_index = layout.identity is ReplicaIdentity.INDEX and any(c.key and c.name == name for c in layout.columns)
    return name in layout.primary_key or by_index


def _or(index: int | None, expression: Callable[[int], str], missing: str) -> str:
    return missing if index is None else expression(index)
