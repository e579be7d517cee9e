"""Rows: a whole source table as columns of text, for comparing it with silver (`source.copy_csv`)."""

from __future__ import annotations

import pyarrow as pa

from cdc_lake.decode.mppdb.codec import Codec
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.source.connection import Session, as_stored, named
from cdc_lake.source.copy_csv import csv_statement, table_of
from cdc_lake.source.quoting import identifier, quoted


def read_rows(session: Session, relation: Relation, codec: Codec, row_filter: str | None = None) -> pa.Table:
    """All rows of a table that the stream would carry, one large_string column a column of the relation, by its name.

    Reads in the transaction `session` is in. Raises SourceError.
    """
    columns = ", ".join(identifier(name) for name in relation.names)
    only = "ONLY " if _has_rows_itself(session, relation.table) else ""
    where = f" WHERE {row_filter}" if row_filter else ""
    query = f"SELECT {columns} FROM {only}{quoted(relation.table)}{where}"
    statement = csv_statement(query)
    doing = f"reading {relation.table}"
    with named(doing), as_stored(session), session.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        return table_of(map(bytes, copy), relation, codec)


def _has_rows_itself(session: Session, table: TableName) -> bool:
    """A partitioned table has its rows in its partitions; children by inheritance are tables of their own."""
    with named(f"looking up {table}"):
        row = session.execute("SELECT relkind = 'r' FROM pg_class WHERE oid = %s::regclass", [quoted(table)]).fetchone()
    return row is not None and bool(row[0])
