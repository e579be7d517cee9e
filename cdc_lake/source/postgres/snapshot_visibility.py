"""Reads a source table for a comparison, with a predicate for the transactions visible in its snapshot.

`pg_current_snapshot()` prints `xmin:xmax:xip,…` in 64-bit transaction ids (PostgreSQL docs, "Transaction ID and
Snapshot Information"): ids below xmin are visible, and those below xmax that are not in the list. The stream has the
lower 32 bits. A transaction that committed before the snapshot's position had its id by then, so it is the newest such
id with these bits; bronze may contain transactions older than the range of 32-bit ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cdc_lake.decode.encoding import Codec
from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.source.copy_format import csv_statement, csv_tables
from cdc_lake.source.postgres.connection import Session, as_stored, fetch, translate_errors
from cdc_lake.source.row_hash_sql import HashSql
from cdc_lake.source.sql_text import identifier, quote_table


def read_blocks(
    session: Session, relation: Relation, codec: Codec, row_filter: str | None = None
) -> Iterator[pa.Table]:
    """All rows of a table that the stream would contain, one large_string column for each column of the relation, in
    blocks of about 16 MB.

    Reads in the current transaction of `session`. Raises SourceError.
    """
    columns = ", ".join(identifier(name) for name in relation.names)
    statement = csv_statement(f"SELECT {columns} FROM {_rows_of(session, relation.table, row_filter)}")
    doing = f"reading {relation.table}"
    with (
        translate_errors(doing),
        as_stored(session),
        session.cursor() as cursor,
        cursor.copy(statement.encode()) as copy,
    ):
        yield from csv_tables(map(bytes, copy), relation, codec)


def sum_rows(
    session: Session, table: TableName, hashed: HashSql, row_filter: str | None = None
) -> Iterator[tuple[int, int, int]]:
    """The same rows summed by the server: bucket, number of rows, sum of their hashes. Raises SourceError.

    The planner assumes as many buckets as keys, and would sort the whole table by them.
    """
    statement = hashed.sums(_rows_of(session, table, row_filter))
    with translate_errors(f"hashing {table}"), session.cursor() as cursor:
        cursor.execute("SET LOCAL enable_sort = off")
        rows = cursor.execute(statement.encode()).fetchall()
        cursor.execute("SET LOCAL enable_sort TO DEFAULT")
    for bucket, count, total in rows:
        yield int(str(bucket)), int(str(count)), int(str(total))


def _rows_of(session: Session, table: TableName, row_filter: str | None) -> str:
    only = "ONLY " if has_rows_itself(session, table) else ""
    return f"{only}{quote_table(table)}" + (f" WHERE {row_filter}" if row_filter else "")


def has_rows_itself(session: Session, table: TableName) -> bool:
    """Whether a table has its own rows: a partitioned one does not; inheritance children are separate tables."""
    sql = "SELECT relkind = 'r' FROM pg_class WHERE oid = %s::regclass"
    return fetch(session, f"looking up {table}", sql, quote_table(table)) == [(True,)]


_WHOLE = 1 << 32


@dataclass(frozen=True, slots=True)
class SnapshotPredicate:
    """A snapshot as a predicate, and a position that no visible transaction exceeds."""

    xmin: int
    xmax: int
    in_progress: frozenset[int]
    position: int
    newest: int
    """No higher id was assigned when the position was read."""

    @classmethod
    def parse(cls, snapshot: str, position: int, given_out: int = 0) -> SnapshotPredicate:
        """Parse the server's text; `given_out`: number of assigned ids from xmax on. Raises ValueError if malformed."""
        xmin, xmax, running = snapshot.split(":")
        in_progress = frozenset(int(x) for x in running.split(",") if x)
        return cls(int(xmin), int(xmax), in_progress, position, int(xmax) + given_out)

    def shows(self, xid: int, position: int) -> bool:
        """Whether the transaction that committed at a position is visible, by its id in the stream."""
        return position <= self.position and self.shows_whole(self.full_xid(xid))

    def shows_whole(self, full_xid: int) -> bool:
        """Whether the transaction of a 64-bit id is visible."""
        return full_xid < self.xmin or (full_xid < self.xmax and full_xid not in self.in_progress)

    @property
    def column(self) -> str:
        """The column of bronze's COMMIT rows with the number: xid or csn."""
        return "xid"

    def may_be_hidden(self, numbers: Any, positions: Any) -> Any:
        """For int64 ndarrays of numbers and positions a bool ndarray: False if the transaction is certainly visible."""
        return (positions > self.position) | (self.full_xid(numbers) >= self.xmin)

    def full_xid(self, xid: Any) -> Any:
        """The 64-bit id of a 32-bit one, or of an array of them, assigned before the position was read."""
        return self.newest - (self.newest - xid) % _WHOLE


@contextmanager
def visible(session: Session, tables: Sequence[TableName] = ()) -> Iterator[SnapshotPredicate]:
    """A read-only transaction with one snapshot of `tables` throughout, and that snapshot as a predicate.

    The tables are locked against TRUNCATE and rewriting ALTER TABLE before the snapshot is taken: these are not
    MVCC-safe, and the snapshot would see an empty table (PostgreSQL docs, "Caveats" of concurrency control). Rows can
    change meanwhile. The position is taken after the snapshot and is the insert position, not the flush position: a
    transaction may be visible before its commit record is on disk.
    """
    with translate_errors("taking a snapshot of the source"):
        session.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        if tables:
            listed = ", ".join(quote_table(table) for table in tables)
            session.execute(f"LOCK TABLE {listed} IN ACCESS SHARE MODE".encode())
        [(snapshot,)] = session.execute("SELECT pg_current_snapshot()::text")
        [(end,)] = session.execute("SELECT pg_current_wal_insert_lsn()::text")
        xmax = int(str(snapshot).split(":")[1]) % _WHOLE
        # the distance to the next id (xid_age in PostgreSQL's xid.c); assigns no id, for which slot creation would wait
        [(later,)] = session.execute("SELECT age(%s::text::xid)", [xmax])
    try:
        yield SnapshotPredicate.parse(str(snapshot), Lsn.parse(str(end)).value, int(str(later)))
    finally:
        if not session.broken and not session.closed:
            session.execute("ROLLBACK")
