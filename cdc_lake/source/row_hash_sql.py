"""Computes row hashes in PostgreSQL by SQL, equal to those that `tables.row_hash` computes for silver.

It uses the server's own hash functions (those of hash partitions, PostgreSQL 11 and newer), for numbers and instants as
stored and for everything else as text. Text is used only if the text of a type in `concat`, that of COPY, is the
canonical one, or an expression makes it so (`canonical_sql`). If a server hashes differently
(`source.postgres.server`), and for all other types, rows are streamed and hashed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

import pyarrow as pa

from cdc_lake.model.relation import Column, Relation, numeric_modifier
from cdc_lake.source.sql_text import identifier
from cdc_lake.tables.row_hash import BUCKETS, DIGEST, FIRST, FLAGS, LONG, HashStrategy, RowForm

_INTEGERS = frozenset({20, 21, 23, 26})
_INSTANTS = {1114: "timestamp", 1184: "timestamptz"}
_BOOL, _BYTEA, _FLOAT4, _FLOAT8, _NUMERIC, _DATE, _TIMESTAMP, _TIMESTAMPTZ = 16, 17, 700, 701, 1700, 1082, 1114, 1184
_VARYING = frozenset({25, 1043})
"""Types whose octet_length is that of their printed text."""

_SHORT = frozenset({_FLOAT4, _FLOAT8, _DATE, _TIMESTAMP, _TIMESTAMPTZ, *_INTEGERS, _BOOL, 1083, 1186, 1266, 2950})
"""Types whose text is never longer than `LONG`; time, interval, timetz and uuid are among them."""

_C: Final = 'COLLATE "C"'  # with other collations a server may hash sort keys instead


@dataclass(frozen=True, slots=True)
class HashSql:
    """Expressions over a table's columns: the hash of a row, and its bucket. `ways`: each column's hash strategy."""

    number: str
    bucket: str
    ways: Mapping[str, HashStrategy]

    def sums(self, table: str) -> str:
        """The query for bucket, number of rows and sum of their hashes, from `table` (with its WHERE)."""
        return f"SELECT {self.bucket}, count(*), sum({self.number}) FROM {table} GROUP BY 1"

    def among(self, buckets: Iterable[int]) -> str:
        """The condition that a row is in one of these buckets."""
        return f"{self.bucket} IN ({', '.join(map(str, buckets))})"


_AS_STORED: Final[Mapping[int, Callable[[pa.DataType], bool]]] = {
    **dict.fromkeys(_INTEGERS, pa.types.is_integer),
    **dict.fromkeys((_FLOAT4, _FLOAT8), pa.types.is_floating),
    **dict.fromkeys((_TIMESTAMP, _TIMESTAMPTZ), pa.types.is_timestamp),
    _NUMERIC: pa.types.is_decimal,
    _BOOL: pa.types.is_boolean,
    _DATE: pa.types.is_date32,
}
"""By a column's type: whether silver's type has the same kind of values."""


def is_numbered(column: Column, kind: pa.DataType) -> bool:
    """Whether a key of this one column is an integer on both sides."""
    return column.type_oid in _INTEGERS and bool(pa.types.is_integer(kind))


def canonical_sql(column: Column, kind: pa.DataType) -> str | None:
    """The expression whose text in `concat` is canonical for silver's type; None if there is none."""
    name = identifier(column.name)
    as_it_is = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if column.type_oid == _BYTEA:
        as_it_is = as_it_is or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    elif (is_alike := _AS_STORED.get(column.type_oid)) is not None and is_alike(kind):
        if pa.types.is_floating(kind):
            return _bits(name, column, kind)
        modifier = numeric_modifier(column.modifier) if column.type_oid == _NUMERIC else None
        as_it_is = column.type_oid != _NUMERIC or (modifier is not None and modifier[1] == kind.scale)
    return name if as_it_is else None


def hash_sql(relation: Relation, form: RowForm, types: Mapping[str, pa.DataType]) -> HashSql | str:
    """The hash expressions of a table's rows in `form`, or the name of a column without one."""
    columns = {column.name: column for column in relation.columns}
    parts: dict[str, _Part] = {}
    for name in form.columns:
        text = canonical_sql(columns[name], types[name])
        if text is None:
            return name
        parts[name] = _Part(columns[name], types[name], text)
    ways = {name: HashStrategy.TEXT if form.is_key_only else part.way for name, part in parts.items()}
    number = _chain([(parts[name], way) for name, way in ways.items()])
    if form.numbered:
        return HashSql(number, f"(coalesce({identifier(form.keys[0])}, 0)::bigint & {BUCKETS - 1})::integer", ways)
    key = _chain([(parts[name], HashStrategy.TEXT) for name in form.keys])
    return HashSql(number, f"({key} & {BUCKETS - 1})::integer", ways)


@dataclass(frozen=True, slots=True)
class _Part:
    """A column and silver's type; `text`: the expression of its canonical text."""

    column: Column
    kind: pa.DataType
    text: str

    @property
    def name(self) -> str:
        """Its name in SQL."""
        return identifier(self.column.name)

    @property
    def short(self) -> bool:
        """Whether no text of it is longer than `LONG`."""
        return self.column.type_oid in _SHORT or pa.types.is_decimal(self.kind)

    @property
    def way(self) -> HashStrategy:
        """Its hash strategy."""
        if is_numbered(self.column, self.kind):
            is_small = self.column.type_oid in (21, 23) and self.kind.bit_width <= 32
            return HashStrategy.INT4 if is_small else HashStrategy.INT8
        if self.column.type_oid == _BOOL and pa.types.is_boolean(self.kind):
            return HashStrategy.BOOL
        if self.column.type_oid in _INSTANTS and pa.types.is_timestamp(self.kind):
            zoned = (self.column.type_oid == _TIMESTAMPTZ, self.kind.tz is not None)
            return HashStrategy.INSTANT if zoned[0] == zoned[1] else HashStrategy.TEXT
        return HashStrategy.TEXT if self.short or self.column.type_oid in _VARYING else HashStrategy.DIGEST

    def shortened_text(self) -> str:
        """The text, or the digest of a long one."""
        if self.short:
            return f"concat({self.text})"
        text = f"coalesce({self.text}, '')" if self.column.type_oid in _VARYING else f"concat({self.text})"
        return f"CASE WHEN octet_length({text}) > {LONG} THEN '{DIGEST}' || md5({text}) ELSE {text} END"

    def far(self) -> str:
        """For an instant: 0, or a hash of the text if seconds in a float are not exact (`row_hash.EXACT`)."""
        kind = _INSTANTS[self.column.type_oid]
        near = f"{self.name} > {kind} '1840-01-01 00:00:00+00' AND {self.name} < {kind} '2100-01-01 00:00:00+00'"
        text = f"hashtextextended(concat({self.name}) {_C}, {FIRST})"
        return f"CASE WHEN {near} OR {self.name} IS NULL THEN 0 ELSE {text} END"


def _chain(parts: Sequence[tuple[_Part, HashStrategy]]) -> str:
    """The hash of some columns: first the NULL flags, then their values (`tables.row_hash`)."""
    sql, names = f"{FIRST}::bigint", [part.name for part, _ in parts]
    for begin in range(0, len(names), FLAGS):
        sql = f"hashint4extended({_flags(names[begin : begin + FLAGS])}, {sql})"
    for part, way in parts:
        sql = _hash_sql(part, way, sql)
    return sql


def _flags(names: Sequence[str]) -> str:
    """The NULL flags, a bit each; most rows have none."""
    flags = " | ".join(f"CASE WHEN {name} IS NULL THEN {1 << n} ELSE 0 END" for n, name in enumerate(names))
    return f"CASE WHEN num_nulls({', '.join(names)}) = 0 THEN 0 ELSE {flags} END"


def _hash_sql(part: _Part, way: HashStrategy, seed: str) -> str:
    """The hash of a column's value, seeded with the previous one."""
    match way:
        case HashStrategy.INT4:
            return f"hashint4extended(coalesce({part.name}, 0)::integer, {seed})"
        case HashStrategy.BOOL:
            return f"hashint4extended(coalesce({part.name}, false)::integer, {seed})"
        case HashStrategy.INT8:
            value = f"coalesce({part.name}::bigint, 0)"
            return f"hashint8extended({value}, {seed} # ({value} >> 32))"
        case HashStrategy.INSTANT:
            return f"hashfloat8extended(coalesce(date_part('epoch', {part.name}), 0), {seed} # {part.far()})"
        case HashStrategy.TEXT:
            return f"hashtextextended({part.shortened_text()} {_C}, {seed})"
        case HashStrategy.DIGEST:
            return f"hashtextextended(md5(concat({part.text})) {_C}, {seed})"
        case _:
            assert_never(way)


def _bits(name: str, column: Column, kind: pa.DataType) -> str | None:
    """The bits of a float as a signed integer, and one text for NaN; None if silver's float has another size."""
    if column.type_oid == _FLOAT8 and pa.types.is_float64(kind):
        send, number = "float8send", "bit(64)::bigint"
    elif column.type_oid == _FLOAT4 and pa.types.is_float32(kind):
        send, number = "float4send", "bit(32)::integer"
    else:
        return None
    return f"CASE WHEN {name} = 'NaN' THEN 'NaN' ELSE (('x' || encode({send}({name}), 'hex'))::{number})::text END"
