"""Rows: a whole source table as columns of text, for comparing it with silver.

On purpose not the reader of the initial copy: CSV parsed by Arrow, where that one takes COPY's text format apart
itself. A mistake in either shows as a difference. In CSV with every value quoted, an unquoted empty field is NULL and
`""` the empty string (PostgreSQL docs, COPY: CSV Format).
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyarrow import csv

from cdc_lake.model.relation import Relation, TableName
from cdc_lake.source.catalog import quoted
from cdc_lake.source.connection import Session, named
from cdc_lake.source.quoting import identifier

_BLOCK_BYTES = 16 << 20


def read_rows(session: Session, relation: Relation, row_filter: str | None = None) -> pa.Table:
    """All rows of a table that the stream would carry, one large_string column a column of the relation, by its name.

    Reads in the transaction `session` is in. Raises SourceError.
    """
    schema = pa.schema([pa.field(name, pa.large_string()) for name in relation.names])
    columns = ", ".join(identifier(name) for name in relation.names)
    only = "ONLY " if _has_rows_itself(session, relation.table) else ""
    where = f" WHERE {row_filter}" if row_filter else ""
    query = f"SELECT {columns} FROM {only}{quoted(relation.table)}{where}"
    statement = f"COPY ({query}) TO STDOUT (FORMAT csv, FORCE_QUOTE *, NULL '')"
    with named(f"reading {relation.table}"), session.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        tables = [_parsed(block, schema) for block in _blocks(copy)]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def _blocks(copy: object) -> Iterator[bytes]:
    """Whole rows in blocks of about 16 MB: the server sends one row a message."""
    rows: list[bytes] = []
    size = 0
    for row in copy:  # type: ignore[attr-defined]
        rows.append(bytes(row))
        size += len(row)
        if size >= _BLOCK_BYTES:
            yield b"".join(rows)
            rows, size = [], 0
    if rows:
        yield b"".join(rows)


def _parsed(block: bytes, schema: pa.Schema) -> pa.Table:
    # one Arrow block for the whole: a row must not straddle two, and a row can be as large as it likes
    read = csv.ReadOptions(column_names=schema.names, block_size=len(block) + 1)
    parse = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
    convert = csv.ConvertOptions(
        column_types=schema,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        check_utf8=False,
    )
    return csv.read_csv(pa.BufferReader(block), read_options=read, parse_options=parse, convert_options=convert)


def _has_rows_itself(session: Session, table: TableName) -> bool:
    """A partitioned table has its rows in its partitions; children by inheritance are tables of their own."""
    with named(f"looking up {table}"):
        row = session.execute("SELECT relkind = 'r' FROM pg_class WHERE oid = %s::regclass", [quoted(table)]).fetchone()
    return row is not None and bool(row[0])
