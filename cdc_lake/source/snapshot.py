"""The initial copy: every published table as of the slot's consistent point.

Read by `COPY … TO STDOUT` in text format (PostgreSQL docs, COPY: File Formats) inside the slot's exported snapshot, so
that values have the very text the stream will have for them, and no row is seen twice or not at all between the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa

from cdc_lake.decode.mppdb.codec import Codec
from cdc_lake.errors import TableRewritten
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.source.connection import Session, as_stored, named
from cdc_lake.source.copy_out import copy_out
from cdc_lake.source.copy_text import chunks_of
from cdc_lake.source.locks import LOCK_WAIT
from cdc_lake.source.quoting import identifier, literal, quoted
from cdc_lake.source.ranges import Range

_UTF8: Final = Codec()
# A table and its partitions of now, as the snapshot knows them: none was rewritten since, and neither the table nor the
# part of it is another one.
_STILL: Final = (
    "SELECT NOT bool_or(NULLIF(c.relfilenode, 0) IS DISTINCT FROM pg_relation_filenode(c.oid)), "
    "bool_or((n.nspname, c.relname) = (%s, %s) AND c.oid = %s::regclass), bool_or((n.nspname, c.relname) = (%s, %s)) "
    "FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
    "WHERE c.oid = %s::regclass OR c.oid IN (SELECT relid FROM pg_partition_tree(%s::regclass))"
)


@contextmanager
def exported(session: Session, snapshot: str, *, others: bool = False) -> Iterator[Session]:
    """A transaction in which `session` sees exactly the exported snapshot; raises SourceError where it is gone.

    `others`: sessions beside it read the same tables, and who wants to alter one may wait for those; alone it waits
    for a lock as long as it takes.
    """
    with named("taking over the slot's snapshot"):
        session.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        session.execute(f"SET TRANSACTION SNAPSHOT {literal(snapshot)}".encode())
        wait = LOCK_WAIT if others else "0"
        session.execute(f"SET LOCAL lock_timeout = {literal(wait)}".encode())
    try:
        yield session
    finally:
        if not session.broken and not session.closed:
            with named("ending the snapshot"):  # a session that rested does not know yet that its peer is gone
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
    """The rows of a table, or of a part of it, as arrays of text by position in the layout; nothing where it is empty.

    `session` is inside a transaction (`exported`); raises SourceError, TableRewritten where the snapshot is too old,
    TextNotInEncoding.
    """
    stored = relation.table if within is None else within.stored
    _hold_still(session, relation, stored)
    columns = ", ".join(identifier(name) for name in relation.names)
    # A partitioned table copies only by a query; inheritance children are tables of their own in a publication.
    only = "ONLY " if within is not None or _has_rows_itself(session, relation) else ""
    conditions = [f"({row_filter})"] if row_filter else []
    conditions += [within.condition] if within is not None and within.condition is not None else []
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    statement = f"COPY (SELECT {columns} FROM {only}{quoted(stored)}{where}) TO STDOUT"
    doing = f"copying {relation.table}"
    with as_stored(session):
        yield from chunks_of(copy_out(session, statement, doing), relation, chunk_rows, codec)


def _hold_still(session: Session, relation: Relation, stored: TableName) -> None:
    """Lock out rewrites of a table, then see whether one came before the lock: a rewritten table looks empty to older
    snapshots. Nor may another table have its name now, or that of `stored`, the part of it that is to be read.

    The catalog as of the snapshot is compared with what the server's caches say now (`pg_relation_filenode`,
    `regclass`).
    """
    name = quoted(relation.table)
    with named(f"locking {relation.table} against rewrites"):
        session.execute(f"LOCK TABLE {name} IN ACCESS SHARE MODE".encode())
        row = session.execute(_STILL, [*_split(relation.table), name, *_split(stored), name, name]).fetchone()
    if row != (True, True, True):
        raise TableRewritten(
            f"table {relation.table} was rewritten, truncated or replaced while it was about to be copied"
        )


def _split(table: TableName) -> tuple[str, str]:
    return table.schema, table.name


def _has_rows_itself(session: Session, relation: Relation) -> bool:
    with named(f"looking up {relation.table}"):
        row = session.execute("SELECT relkind = 'r' FROM pg_class WHERE oid = %s::regclass", [quoted(relation.table)])
        found = row.fetchone()
    return found is not None and bool(found[0])
