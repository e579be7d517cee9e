"""Row hashes by SQL: what PostgreSQL works out of its rows as `lake.row_hash` does of canonical text.

A type is taken only where its text in `concat`, which is that of COPY, is the canonical one, or an expression makes it
so; `canonical_sql` says of which. Everything else is streamed and hashed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from cdc_lake.lake.row_hash import BUCKETS, RowForm
from cdc_lake.lake.types import numeric_modifier
from cdc_lake.model.relation import Column, Relation
from cdc_lake.source.quoting import identifier

_INTEGERS = frozenset({20, 21, 23, 26})
_BOOL, _BYTEA, _FLOAT4, _FLOAT8, _NUMERIC, _DATE, _TIMESTAMP, _TIMESTAMPTZ = 16, 17, 700, 701, 1700, 1082, 1114, 1184
_VARYING = frozenset({25, 1043})
"""Types whose octet_length is that of the text they print."""


@dataclass(frozen=True, slots=True)
class HashSql:
    """Expressions over a table's columns: the text of a row, and its bucket."""

    text: str
    bucket: str

    def sums(self, table: str) -> str:
        """The query of bucket, number of rows and sum of their hashes, from `table` (with its WHERE)."""
        number = f"('x' || left(md5({self.text}), 16))::bit(64)::bigint"
        return f"SELECT {self.bucket}, count(*), sum({number}) FROM {table} GROUP BY 1"

    def among(self, buckets: Iterable[int]) -> str:
        """The condition that a row is in one of these buckets."""
        return f"{self.bucket} IN ({', '.join(map(str, buckets))})"


def is_plain(column: Column, kind: pa.DataType) -> bool:
    """Whether canonical text of a column beside silver's type never holds `|`, on either side."""
    if column.type_oid in _INTEGERS:
        return bool(pa.types.is_integer(kind))
    if column.type_oid in (_FLOAT4, _FLOAT8):
        return bool(pa.types.is_floating(kind))
    if column.type_oid in (_TIMESTAMP, _TIMESTAMPTZ):
        return bool(pa.types.is_timestamp(kind))
    if column.type_oid == _NUMERIC:
        return bool(pa.types.is_decimal(kind))
    return bool(
        (column.type_oid == _BOOL and pa.types.is_boolean(kind))
        or (column.type_oid == _DATE and pa.types.is_date32(kind))
    )


def is_numbered(column: Column, kind: pa.DataType) -> bool:
    """Whether a key of this one column is an integer on both sides."""
    return column.type_oid in _INTEGERS and bool(pa.types.is_integer(kind))


def canonical_sql(column: Column, kind: pa.DataType) -> str | None:
    """The expression whose text in `concat` is the canonical one of a column beside silver's type; None: none is."""
    name = identifier(column.name)
    as_it_is = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if column.type_oid == _BYTEA:
        as_it_is = as_it_is or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    elif is_plain(column, kind):
        if pa.types.is_floating(kind):
            return _bits(name, column, kind)
        given = numeric_modifier(column.modifier) if column.type_oid == _NUMERIC else None
        as_it_is = column.type_oid != _NUMERIC or (given is not None and given[1] == kind.scale)
    return name if as_it_is else None


def hash_sql(relation: Relation, form: RowForm, types: Mapping[str, pa.DataType]) -> HashSql | str:
    """The expressions of a table's rows in `form`, or the column (its name) that there is none for."""
    given: dict[str, tuple[str, ...]] = {}
    for column in relation.columns:
        if column.name not in form.columns:
            continue
        sql = canonical_sql(column, types[column.name])
        if sql is None:
            return column.name
        given[column.name] = (sql, "'|'") if column.name in form.plain else (_size(column, sql), "':'", sql)
    text = _text(given[name] for name in form.columns)
    if form.numbered:
        return HashSql(text, f"(coalesce({identifier(form.keys[0])}, 0)::bigint & {BUCKETS - 1})::integer")
    key = _text(given[name] for name in form.keys)
    return HashSql(text, f"(('x' || left(md5({key}), 4))::bit(16)::integer & {BUCKETS - 1})")


def _text(columns: Iterable[tuple[str, ...]]) -> str:
    """All texts joined; a function takes 100 arguments."""
    parts = [part for column in columns for part in column]
    return " || ".join(f"concat({', '.join(parts[at : at + 99])})" for at in range(0, len(parts), 99))


def _bits(name: str, column: Column, kind: pa.DataType) -> str | None:
    """The bits of a float as a signed integer, and one text for NaN; None where silver's is of another size."""
    if column.type_oid == _FLOAT8 and pa.types.is_float64(kind):
        send, number = "float8send", "bit(64)::bigint"
    elif column.type_oid == _FLOAT4 and pa.types.is_float32(kind):
        send, number = "float4send", "bit(32)::integer"
    else:
        return None
    return f"CASE WHEN {name} = 'NaN' THEN 'NaN' ELSE (('x' || encode({send}({name}), 'hex'))::{number})::text END"


def _size(column: Column, sql: str) -> str:
    if column.type_oid in _VARYING:
        return f"octet_length({sql})"
    return f"CASE WHEN {sql} IS NULL THEN NULL ELSE octet_length(concat({sql})) END"
