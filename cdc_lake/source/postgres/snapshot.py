"""The initial copy: reads every published table as of the slot's consistent point by `COPY … TO STDOUT`.

It reads inside the slot's exported snapshot, so values have the same text as in the stream, and no row is duplicated or
lost between the two. It uses libpq directly: psycopg's copy costs more per row than the row itself. The server sends
one row per message.

Several readers copy a stored table in ranges of its blocks by TID range scans (PostgreSQL 14 and newer): each row of
the snapshot is in exactly one, because rows do not move. The readers lock out and detect rewrites, which would move
them. The last range has no end, for blocks added after the first were counted. A partitioned table is read partition by
partition, if privileges allow; otherwise, and for tables without blocks (foreign tables), it is one part.

SQL functions export no snapshot. Instead a temporary slot is advanced past what a snapshot shows, so that it sends
exactly what the snapshot does not show (decision 0037).
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg import pq

from cdc_lake.decode.encoding import Codec
from cdc_lake.errors import TableRewritten
from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.source.copy_format import chunks_of
from cdc_lake.source.postgres.connection import (
    Session,
    as_stored,
    connection_lost_error,
    fetch,
    next_result,
    result_error,
    translate_errors,
)
from cdc_lake.source.postgres.server import LOCK_WAIT, goal, wal_position
from cdc_lake.source.postgres.slot import ExportedSlot, advance_slot, temporary_name
from cdc_lake.source.postgres.snapshot_visibility import SnapshotPredicate, has_rows_itself, visible
from cdc_lake.source.sql_text import identifier, literal, quote_table

_RANGE_CHUNKS = 4
"""Chunks per range: the last chunk is smaller than the others, so ranges must not be too short."""
_ROWS_A_BLOCK = 60  # if the planner has no estimate
_BLOCKS_AT_MOST = 131_072  # 1 GiB in blocks of 8 KiB


@dataclass(frozen=True, slots=True)
class Range:
    """Blocks of a stored table: from `first` to before `until`, None: to its end."""

    stored: TableName
    first: int = 0
    until: int | None = None

    @property
    def condition(self) -> str | None:
        """The SQL condition of its rows; None for all rows."""
        bounds = [f"ctid >= '({self.first},0)'::tid"] if self.first else []
        bounds += [f"ctid < '({self.until},0)'::tid"] if self.until is not None else []
        return " AND ".join(bounds) or None


@dataclass(frozen=True, slots=True)
class _Stored:
    """A table with rows of its own: an ordinary one, a partition, a foreign table. `rows`: the planner's estimate."""

    name: TableName
    kind: str
    blocks: int
    rows: float
    pages: int
    readable: bool


def ranges_of(session: Session, relation: Relation, chunk_rows: int) -> Sequence[Range]:
    """The parts of a table in the session's snapshot; none if it must be read as a whole. Raises SourceError."""
    tables = _stored_tables(session, relation.table)
    if not all(table.readable for table in tables) and [table.name for table in tables] != [relation.table]:
        return ()
    ranges = [part for table in tables for part in _cut(table, chunk_rows)]
    return ranges if len(ranges) > 1 else ()


def _cut(stored: _Stored, chunk_rows: int) -> Iterator[Range]:
    if stored.kind != "r":
        yield Range(stored.name)
        return
    density = stored.rows / stored.pages if stored.rows > 0 and stored.pages > 0 else _ROWS_A_BLOCK
    size = min(max(round(_RANGE_CHUNKS * chunk_rows / density), 1), _BLOCKS_AT_MOST)
    borders = range(size, stored.blocks, size)
    for first, until in zip((0, *borders), (*borders, None), strict=True):
        yield Range(stored.name, first, until)


def _stored_tables(session: Session, table: TableName) -> list[_Stored]:
    """The table itself, or the partitions with its rows, in the session's snapshot."""
    rows = fetch(
        session,
        f"looking up the parts of {table}",
        "WITH RECURSIVE tree AS ("
        "  SELECT c.oid, c.relkind FROM pg_class AS c WHERE c.oid = %s::regclass"
        "  UNION ALL SELECT c.oid, c.relkind FROM tree JOIN pg_inherits AS i ON i.inhparent = tree.oid"
        "  JOIN pg_class AS c ON c.oid = i.inhrelid WHERE tree.relkind = 'p') "
        "SELECT n.nspname, c.relname, c.relkind::text, coalesce("
        "CASE c.relkind WHEN 'r' THEN pg_relation_size(c.oid) / current_setting('block_size')::int END, 0), "
        "c.reltuples::float8, c.relpages, "
        "has_table_privilege(c.oid, 'SELECT') "
        "AND NOT row_security_active(c.oid) AND NOT row_security_active(%s::regclass) "
        "FROM tree JOIN pg_class AS c USING (oid) JOIN pg_namespace AS n ON n.oid = c.relnamespace "
        "WHERE c.relkind <> 'p' ORDER BY c.oid",
        quote_table(table),
        quote_table(table),
    )
    return [_Stored(TableName(schema, name), *values) for schema, name, *values in rows]


def copy_out(session: Session, statement: str, doing: str) -> Iterator[Any]:
    """The rows of a COPY as the server sends them, views of bytes with their line feed. Raises SourceError.

    If not read to the end, the session is closed.
    """
    pgconn = session.pgconn
    begun = pgconn.exec_(statement.encode())
    if begun.status != pq.ExecStatus.COPY_OUT:
        raise result_error(begun, pgconn, doing)
    complete = False
    take = pgconn.get_copy_data
    readable = select.poll()
    readable.register(pgconn.socket, select.POLLIN)
    try:
        while True:
            length, row = take(1)
            if length > 0:
                yield row
            elif length == 0:
                readable.poll()
                pgconn.consume_input()
            else:
                break
        while (result := next_result(pgconn)) is not None:
            if result.status != pq.ExecStatus.COMMAND_OK:
                raise result_error(result, pgconn, doing)
        complete = True
    except psycopg.OperationalError as broken:
        raise connection_lost_error(pgconn, doing) from broken
    finally:
        if not complete:
            session.close()


_UTF8: Final = Codec()
# A table and its current partitions in the snapshot: not rewritten since, and with the same identity.
_STILL: Final = (
    "SELECT NOT bool_or(NULLIF(c.relfilenode, 0) IS DISTINCT FROM pg_relation_filenode(c.oid)), "
    "bool_or((n.nspname, c.relname) = (%s, %s) AND c.oid = %s::regclass), bool_or((n.nspname, c.relname) = (%s, %s)) "
    "FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
    "WHERE c.oid = %s::regclass OR c.oid IN (SELECT relid FROM pg_partition_tree(%s::regclass))"
)


@contextmanager
def import_snapshot(session: Session, snapshot: str, *, others: bool = False) -> Iterator[Session]:
    """A transaction in which `session` sees exactly the exported snapshot; raises SourceError if it does not exist.

    `others`: other sessions read the same tables, and an ALTER may wait for those; alone it waits for locks without a
    limit.
    """
    with translate_errors("importing the slot's snapshot"):
        session.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        session.execute(f"SET TRANSACTION SNAPSHOT {literal(snapshot)}".encode())
        wait = LOCK_WAIT if others else "0"
        session.execute(f"SET LOCAL lock_timeout = {literal(wait)}".encode())
    try:
        yield session
    finally:
        if not session.broken and not session.closed:
            with translate_errors("ending the snapshot"):  # an idle session does not know yet that its peer is gone
                session.execute("ROLLBACK")


def read_chunks(
    session: Session,
    relation: Relation,
    *,
    row_filter: str | None,
    chunk_rows: int,
    codec: Codec = _UTF8,
    within: Range | None = None,
) -> Iterator[pa.ChunkedArray]:
    """The rows of a table or a part of it, as arrays of text by position in the layout; nothing if it is empty.

    `session` is inside a transaction (`exported`); raises SourceError, TableRewritten if the snapshot is too old,
    TextNotInEncoding.
    """
    stored = relation.table if within is None else within.stored
    _hold_still(session, relation, stored)
    columns = ", ".join(identifier(name) for name in relation.names)
    # COPY of a partitioned table needs a query; inheritance children are separate tables in a publication.
    only = "ONLY " if within is not None or has_rows_itself(session, relation.table) else ""
    conditions = [f"({row_filter})"] if row_filter else []
    conditions += [within.condition] if within is not None and within.condition is not None else []
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    statement = f"COPY (SELECT {columns} FROM {only}{quote_table(stored)}{where}) TO STDOUT"
    doing = f"copying {relation.table}"
    with as_stored(session):
        yield from chunks_of(copy_out(session, statement, doing), relation, chunk_rows, codec)


def _hold_still(session: Session, relation: Relation, stored: TableName) -> None:
    """Lock out rewrites of a table, then check for one before the lock: a rewritten table looks empty to older
    snapshots. Nor may another table have its name now, or that of `stored`, the part to be read.

    The catalog as of the snapshot is compared with the server's current caches (`pg_relation_filenode`, `regclass`).
    """
    name = quote_table(relation.table)
    with translate_errors(f"locking {relation.table} against rewrites"):
        session.execute(f"LOCK TABLE {name} IN ACCESS SHARE MODE".encode())
        names = [relation.table.schema, relation.table.name, name, stored.schema, stored.name, name, name]
        row = session.execute(_STILL, names).fetchone()
    if row != (True, True, True):
        raise TableRewritten(f"table {relation.table} was rewritten, truncated or replaced just before it was copied")


# the COMMIT messages of both plugins begin with C
_COMMITS = (
    "SELECT lsn::text, xid::text::bigint FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, VARIADIC %s::text[]) "
    "WHERE get_byte(data, 0) = 67"
)


@contextmanager
def create_slot_with_snapshot(
    holder: Session,
    reading: Session,
    slot: str,
    plugin: str,
    options: Mapping[str, str],
    tables: Sequence[TableName],
    *,
    pause: Callable[[], None],
) -> Iterator[ExportedSlot]:
    """A temporary slot of `holder`, and a snapshot of what was committed up to its position, exported by `reading`.

    Other sessions can import it inside the block. `pause` is called between two attempts, and may raise. Raises
    SourceError.
    """
    name = temporary_name(slot)
    sql = "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, %s, true)"
    [(begin,)] = fetch(holder, f"creating slot `{name}`", sql, name, plugin)
    begins = Lsn.parse(begin)
    _wait_for_running(holder, pause)
    option_words = [word for pair in options.items() for word in pair]
    while True:
        with visible(reading, tables) as shown:
            upto = _visible_end(begins, shown, _commits(holder, name, option_words, shown, pause))
            if upto is not None:
                advance_slot(holder, name, upto)
                [(exported_as,)] = fetch(reading, "exporting the snapshot", "SELECT pg_export_snapshot()")
                yield ExportedSlot(name, upto, exported_as)
                return
        pause()


def _wait_for_running(session: Session, pause: Callable[[], None]) -> None:
    """Wait until every transaction that currently has an id has ended."""
    doing = "waiting for running transactions"
    [(xid,)] = fetch(session, doing, "SELECT pg_current_xact_id()::text")
    ended = "SELECT pg_snapshot_xmin(pg_current_snapshot()) > %s::xid8"
    while fetch(session, doing, ended, xid) != [(True,)]:
        pause()


def _commits(
    session: Session, slot: str, options: list[str], shown: SnapshotPredicate, pause: Callable[[], None]
) -> list[tuple[Lsn, int]]:
    """Position and id of every transaction that the slot has up to a snapshot's position, and maybe beyond."""
    goal(session)  # our own commit flushes the snapshot's transactions, and decoding reaches it
    while wal_position(session).value < shown.position:
        pause()
    rows = fetch(session, f"peeking into slot `{slot}`", _COMMITS, slot, options)
    return [(Lsn.parse(lsn), xid) for lsn, xid in rows]


def _visible_end(begins: Lsn, shown: SnapshotPredicate, commits: list[tuple[Lsn, int]]) -> Lsn | None:
    """The end of the transactions visible in the snapshot; None if invisible ones are among them."""
    shown_flags = [shown.shows(xid, position.value) for position, xid in commits]
    count = sum(shown_flags)
    if not all(shown_flags[:count]):
        return None
    return commits[count - 1][0] if count else begins
