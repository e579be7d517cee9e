"""Rows: a whole source table for comparing it with silver, as columns of text (`source.copy_csv`) or summed up."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from cdc_lake.decode.mppdb.codec import Codec
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.source.connection import Session, as_stored, named
from cdc_lake.source.copy_csv import csv_statement, csv_tables
from cdc_lake.source.hash_sql import HashSql
from cdc_lake.source.quoting import identifier, quoted


def read_blocks(
    session: Session, relation: Relation, codec: Codec, row_filter: str | None = None
) -> Iterator[pa.Table]:
    """All rows of a table that the stream would carry, one large_string column a column of the relation, by its name,
    a block of about 16 MB at a time.

    Reads in the transaction `session` is in. Raises SourceError.
    """
    columns = ", ".join(identifier(name) for name in relation.names)
    statement = csv_statement(f"SELECT {columns} FROM {_rows_of(session, relation.table, row_filter)}")
    doing = f"reading {relation.table}"
    with named(doing), as_stored(session), session.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        yield from csv_tables(map(bytes, copy), relation, codec)


def sum_rows(
    session: Session, table: TableName, hashed: HashSql, row_filter: str | None = None
) -> Iterator[tuple[int, int, int]]:
    """The same rows summed up by the server: bucket, number of rows, sum of their hashes. Raises SourceError.

    The planner thinks that there are as many buckets as keys, and would sort the whole table by them.
    """
    statement = hashed.sums(_rows_of(session, table, row_filter))
    with named(f"summing up {table}"), session.cursor() as cursor:
        cursor.execute("SET LOCAL enable_sort = off")
        found = cursor.execute(statement.encode()).fetchall()
        cursor.execute("SET LOCAL enable_sort TO DEFAULT")
    for bucket, count, total in found:
        yield int(str(bucket)), int(str(count)), int(str(total))


def _rows_of(session: Session, table: TableName, row_filter: str | None) -> str:
    only = "ONLY " if _has_rows_itself(session, table) else ""
    return f"{only}{quoted(table)}" + (f" WHERE {row_filter}" if row_filter else "")


def _has_rows_itself(session: Session, table: TableName) -> bool:
    """A partitioned table has its rows in its partitions; children by inheritance are tables of their own."""
    with named(f"looking up {table}"):
        row = session.execute("SELECT relkind = 'r' FROM pg_class WHERE oid = %s::regclass", [quoted(table)]).fetchone()
    return row is not None and bool(row[0])
