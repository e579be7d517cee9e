"""Shape: how the text arrays of bronze become the typed columns of one silver table.

A transaction may hold several layouts of a table (a column was added in between); the newest one gives the columns, and
each column knows where it stands in every layout. All expressions here are Spark SQL text over bronze's columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from cdc_lake.config.type_policy import UNDECLARED, TypePolicy
from cdc_lake.errors import NoKey
from cdc_lake.lake.casts import cast_sql, fits_sql, key_sql, key_text
from cdc_lake.lake.conversion import Rewriting, converted, rewriting
from cdc_lake.lake.store import SilverColumn, literal
from cdc_lake.lake.typed_columns import TypedColumn, check_declared, typed_columns
from cdc_lake.lake.types import ColumnType, Family, column_type
from cdc_lake.model.relation import Relation, ReplicaIdentity
from cdc_lake.model.succession import predecessors

STORED_AS_NULL: Final = ("", "__HIVE_DEFAULT_PARTITION__")
"""Texts of a partition column that a Delta table has as NULL: the protocol says so of the first, Spark's writer of the
other one, which is its name of the folder of NULL.
"""

MINUS_ZERO: Final = ("-0",)
"""A float that no comparison tells from 0: rows that a column of floats identifies have the one or the other."""


@dataclass(frozen=True)
class Shape:
    """One table's columns in a span: the newest layout, all that occur by number, and the positions of its key.

    `carried`: columns of silver that come with the change and not in a tuple, by SQL over bronze's row. A table
    whose rows nothing identifies has no key. `types`: what the pipeline declares; a position may be that of a companion
    (`lake.typed_columns`), which stands behind the layout's own. `old_values`: what the server said of the old row is
    kept too. `unkept`: by position, texts that have a silver value which this table cannot keep.
    """

    relation: Relation
    layouts: Mapping[int, Relation]
    keys: tuple[int, ...]
    carried: Mapping[SilverColumn, str] = field(default_factory=dict)
    types: TypePolicy = UNDECLARED
    old_values: bool = False
    unkept: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def made(self) -> tuple[TypedColumn, ...]:
        """What each silver column is made of, by position in the newest layout, companions behind."""
        return typed_columns(self.relation, self.types)

    @cached_property
    def columns(self) -> tuple[SilverColumn, ...]:
        """The silver columns, by position."""
        return tuple(SilverColumn(one.name, one.type.sql) for one in self.made)

    @cached_property
    def places(self) -> Mapping[int, tuple[int | None, ...]]:
        """Layout → for each silver column the position of its source there, None where the layout does not have it."""
        sources = [self.relation.names.index(one.source.name) for one in self.made]
        found = {number: predecessors(layout, self.relation) for number, layout in self.layouts.items()}
        return {number: tuple(places[at] for at in sources) for number, places in found.items()}

    @property
    def key_columns(self) -> tuple[SilverColumn, ...]:
        """The silver columns that identify a row."""
        return tuple(self.columns[at] for at in self.keys)

    @cached_property
    def nullable(self) -> frozenset[int]:
        """Which parts of the key, by their place in it, some row may have as NULL."""
        names = [self.relation.columns[at].name for at in self.keys]
        layouts = self.layouts.values()
        return frozenset(n for n, name in enumerate(names) if not all(_never_null(one, name) for one in layouts))

    def position(self, name: str) -> int | None:
        """The position of a source column, or of a companion by its own name; None where there is none."""
        names = [one.name if one.companion else one.source.name for one in self.made]
        return names.index(name) if name in names else None

    def text(self, at: int, array: str) -> str:
        """The text of column `at` in the array column `array`; in layouts without the column, what old rows hold."""
        missing = self.made[at].source.missing
        without = "CAST(NULL AS STRING)" if missing is None or missing.text is None else literal(missing.text)
        return self._by_layout(at, lambda index: f"{array}[{index}]", without)

    def sent(self, at: int) -> str:
        """A boolean, never NULL: column `at` was sent in `new`."""
        return self._by_layout(at, lambda index: f"NOT coalesce(array_contains(unchanged, {index}), false)", "true")

    @cached_property
    def whole_old(self) -> str:
        """A boolean, never NULL: the old tuple has all values of the row before. What is called a whole row of a
        partitioned table may come from a partition that logs the key alone.
        """
        mixed = [f"{number}L" for number, layout in self.layouts.items() if layout.mixed]
        whole = "coalesce(old_kind = 'full', false)"
        return f"({whole} AND layout NOT IN ({', '.join(mixed)}))" if mixed else whole

    def unsent_names(self) -> str:
        """The names of the silver columns that a row did not send, as an array; NULL where it sent all."""
        cases = []
        for number, places in self.places.items():
            names: list[list[str]] = [[] for _ in self.layouts[number].columns]
            for place, one in zip(places, self.made, strict=True):
                if place is not None:
                    names[place].append(literal(one.name))
            listed = ", ".join(f"CAST(array({', '.join(some)}) AS ARRAY<STRING>)" for some in names)
            found = f"flatten(transform(unchanged, place -> element_at(array({listed}), place + 1)))"
            cases.append(f"WHEN {number}L THEN {found}")
        return f"CASE layout {' '.join(cases)} END"

    def typed(self, at: int, text: str) -> str:
        """The silver value of a text of column `at` as the newest layout has it."""
        return cast_sql(text, self.made[at].type)

    def value(self, at: int, text: str) -> str:
        """The silver value of a text of column `at` in a row of bronze, by the type that the row's layout has."""
        return self._by_type(at, lambda kind, values: self._from(kind, values, at, text), self.typed(at, text))

    def fits(self, at: int, text: str) -> str:
        """A boolean, never NULL: the text of column `at` in a row of bronze has a silver value."""
        fitting = self._by_type(at, lambda of, _: fits_sql(text, of), fits_sql(text, self.made[at].type))
        if at not in self.unkept:
            return fitting
        kept = f"coalesce({text} NOT IN ({', '.join(map(literal, self.unkept[at]))}), true)"
        return kept if fitting == "true" else f"({fitting} AND {kept})"

    def may_misfit(self, at: int) -> bool:
        """Whether some text of column `at` may have no silver value."""
        return self.fits(at, "x") != "true"

    def key_texts(self, array: str) -> str:
        """The key as an array of texts, from an array column; where a key part was not sent, from the old tuple.

        Texts of one value are one text, that of the newest layout's type: by the value rows are merged.
        """
        if array == "old":
            texts = [self.text(at, "old") for at in self.keys]
        else:
            texts = [
                f"CASE WHEN {self.sent(at)} THEN {self.text(at, 'new')} ELSE {self.text(at, 'old')} END"
                for at in self.keys
            ]
        parts = [self.key_part(at, f"({text})") for at, text in zip(self.keys, texts, strict=True)]
        # Of no parts Spark makes an array of no type, which Arrow does not take.
        return f"array({', '.join(parts)})" if parts else "CAST(array() AS ARRAY<STRING>)"

    def key_part(self, at: int, text: str) -> str:
        """The text that all texts of one value of column `at` share, of a text in a row of bronze."""

        def from_other(kind: ColumnType, values: Rewriting | None) -> str:
            value, sql = self._from(kind, values, at, text), self.columns[at].type
            if sql in {"float", "double"} or sql.startswith("array"):
                return text  # Spark prints these otherwise
            if sql == "boolean":
                return f"CASE {value} WHEN true THEN 't' WHEN false THEN 'f' END"
            printed = f"CAST({value} AS STRING)"
            return {"timestamp": f"concat({printed}, '+00')", "binary": text}.get(sql, printed)

        return self._by_type(at, from_other, key_sql(text, self.made[at].type))

    def row_key(self, index: int, value: str) -> str:
        """SQL of the value that a part of the key, by its place in it, has in a row of silver: versions before this one
        kept numbers as they were printed.
        """
        kind = self.made[self.keys[index]].type
        return key_sql(value, kind) if kind.family is Family.NUMBER_TEXT else value

    def recorded_key(self, key: tuple[str | None, ...]) -> tuple[str | None, ...]:
        """The same of a key that was recorded, by whatever version."""
        return tuple(key_text(text, self.made[at].type) for at, text in zip(self.keys, key, strict=True))

    def _from(self, kind: ColumnType, values: Rewriting | None, at: int, text: str) -> str:
        """The silver value of a text that has another type in its layout than in the newest one."""
        column = self.columns[at]
        printed = column.type == "string" and kind.family is not Family.BOOLEAN
        # What the server prints is what it makes of a value as text, but for few types.
        value = self.typed(at, text) if printed else converted(cast_sql(text, kind), column.name, kind.sql, column.type)
        return value if values is None else values.of(value, column.name)

    def _by_layout(self, at: int, expression: Callable[[int], str], missing: str) -> str:
        places = {number: of_layout[at] for number, of_layout in self.places.items()}
        if len(set(places.values())) == 1:
            return _or(next(iter(places.values())), expression, missing)
        cases = " ".join(f"WHEN {number}L THEN {_or(index, expression, missing)}" for number, index in places.items())
        return f"CASE layout {cases} END"

    def _by_type(self, at: int, expression: Callable[[ColumnType, Rewriting | None], str], newest: str) -> str:
        """`newest`, where all layouts have the column with one silver type and the same values; otherwise by the row's
        layout.

        A companion is read from its text by the newest type alone.
        """
        others = {}
        for number, layout in self.layouts.items():
            place = None if self.made[at].companion else self.places[number][at]
            if place is None:
                continue
            column, type_ = layout.columns[place], self.columns[at].type
            kind = column_type(column, self.types)
            values = rewriting(column, self.made[at].source, kind.sql, type_)
            if kind.sql != type_ or values is not None:
                others[number] = expression(kind, values)
        if not others:
            return newest
        cases = " ".join(f"WHEN {number}L THEN {sql}" for number, sql in others.items())
        return f"CASE layout {cases} ELSE {newest} END"


def make_shape(
    numbers: Sequence[int],
    known: Mapping[int, Relation],
    keys: Sequence[str] | None,
    *,
    keyed: bool = True,
    types: TypePolicy = UNDECLARED,
    relation: Relation | None = None,
) -> Shape:
    """The shape of a table whose span uses the layouts `numbers`, oldest first. `keys`: None for the source's own.

    `keyed`: a key is needed; `relation`: the layout that gives the columns, None: the newest. Raises NoKey where then
    nothing identifies a row, TypeRefused where a declared type is not one of its column.
    """
    layouts = {number: known[number] for number in numbers}
    relation = relation or layouts[numbers[-1]]
    check_declared(relation, types)
    if not keyed:
        return Shape(relation, layouts, (), types=types)
    wanted = tuple(keys) if keys else default_keys(relation)
    missing = [name for name in wanted if name not in relation.names]
    if missing:
        raise NoKey(f"{relation.table} has no column `{missing[0]}` to use as key")
    _logged(relation, wanted)
    return Shape(relation, layouts, tuple(relation.names.index(name) for name in wanted), types=types)


def without_key(relation: Relation) -> bool:
    """Whether only all values of a row together identify it, and the server logs them."""
    return relation.identity is ReplicaIdentity.FULL and not relation.primary_key


def default_keys(relation: Relation) -> tuple[str, ...]:
    """The columns that identify a row: the primary key where the server logs it, otherwise the replica identity."""
    identity = tuple(c.name for c in relation.columns if c.key)
    if relation.primary_key and (
        relation.identity is ReplicaIdentity.FULL or set(relation.primary_key) <= set(identity)
    ):
        return relation.primary_key
    if identity and relation.identity is ReplicaIdentity.INDEX:
        return identity
    # of a table that was gone, or had this name for a while, when its changes were read, nobody can have known the key
    gone = f"; a table that the database has no more is set aside with `cdc-lake pause {relation.table}`"
    hint = NoKey.hint + gone if relation.oid is None else None
    raise NoKey(f"{relation.table} has no primary key that the server logs", hint=hint)


def key_moved(before: Relation, after: Relation) -> bool:
    """Whether rows of a later layout of the same table are identified by other columns than those of an earlier one.

    A layout without a key that the server logs has none of its own: rows can only be inserted then, and the next key
    is unique among them too.
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


_INCOMPARABLE = re.compile(r"\b(map|variant)\b")


def comparable(column: SilverColumn) -> bool:
    """Whether two values of a column can be told equal."""
    return _INCOMPARABLE.search(column.type) is None


def _never_null(layout: Relation, name: str) -> bool:
    """A primary key has no NULL, nor has an index that is a replica identity."""
    by_index = layout.identity is ReplicaIdentity.INDEX and any(c.key and c.name == name for c in layout.columns)
    return name in layout.primary_key or by_index


def _logged(relation: Relation, keys: Sequence[str]) -> None:
    if relation.identity is ReplicaIdentity.FULL:
        return
    logged = {c.name for c in relation.columns if c.key}
    for name in keys:
        if name not in logged:
            raise NoKey(f"the server does not log column `{name}` of {relation.table} for deletes: it is no key")


def _or(index: int | None, expression: Callable[[int], str], missing: str) -> str:
    return missing if index is None else expression(index)
