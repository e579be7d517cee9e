"""The initial copy of the GaussDB family: reads tables in a snapshot with a known CSN.

`pg_export_snapshot_and_csn()` returns a snapshot that contains exactly the transactions with a CSN below its own; other
sessions import it while the exporting session stays in its transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pyarrow as pa

from cdc_lake.decode.encoding import Codec
from cdc_lake.errors import QueryRefused, TextNotInEncoding
from cdc_lake.model.position import Csn, Lsn
from cdc_lake.model.relation import Relation
from cdc_lake.source.copy_format import chunks_of, csv_chunks, csv_statement
from cdc_lake.source.gaussdb.server import CsnSnapshot, snapshot_and_csn
from cdc_lake.source.gaussdb.slot import CreatedSlot, check_name
from cdc_lake.source.gaussdb.wire.session import WireSession
from cdc_lake.source.sql_text import identifier, literal, quote_table


@dataclass(frozen=True, slots=True)
class GaussDbReader:
    """Reads tables in the snapshot of its session; not thread-safe."""

    session: WireSession
    chunk_rows: int
    codec: Codec

    def read(self, relation: Relation) -> Iterator[pa.ChunkedArray]:
        """The table's rows, list<string> by position in the layout; nothing for an empty table.

        Raises SourceError, TextNotInEncoding.
        """
        doing = f"copying {relation.table}"
        columns = ", ".join(identifier(name) for name in relation.names)
        query = f"SELECT {columns} FROM {quote_table(relation.table)}"
        if self.codec.python == "utf-8":
            blocks = self.session.copy_out(f"COPY ({query}) TO STDOUT", doing=doing)
            yield from chunks_of(blocks, relation, self.chunk_rows, self.codec)
            return
        # in the database's encoding: the server would refuse text that it cannot convert to UTF-8
        with own_encoding(self.session, self.codec.encoding, query):
            yield from csv_chunks(self.session.copy_out(csv_statement(query), doing=doing), relation, self.codec)


@contextmanager
def own_encoding(session: WireSession, encoding: str, query: str) -> Iterator[None]:
    """Receive answers in the database's encoding. Raises SourceError, TextNotInEncoding for a non-ASCII query."""
    if not query.isascii():  # the server would decode the query in that encoding, too
        raise TextNotInEncoding(encoding, offset=0)
    session.query(f"SET client_encoding TO {literal(encoding)}", doing="asking for the database's own encoding")
    yield
    session.query("SET client_encoding TO 'UTF8'", doing="asking for UTF-8 again")


def create_slot_with_snapshot(replication: WireSession, name: str, plugin: str) -> tuple[CreatedSlot, Csn | None]:
    """Create a slot inside a transaction that sees its consistent point, and export that snapshot.

    Returns the slot and the snapshot's CSN, None if the server does not report it. The snapshot is valid until the
    transaction of `replication`, a replication connection, ends. Raises SourceError.
    """
    check_name(name)
    doing = f"creating slot `{name}`"
    replication.query("BEGIN ISOLATION LEVEL REPEATABLE READ", doing=doing)
    command = f"CREATE_REPLICATION_SLOT {identifier(name)} LOGICAL {identifier(plugin)} USE_SNAPSHOT"
    row = replication.query(command, doing=doing).records()[0]
    csn = row.get("snapshot_csn")
    exported_as = replication.query("SELECT pg_export_snapshot()", doing="exporting the slot's snapshot").rows[0][0]
    return CreatedSlot(name, Lsn.parse(row["consistent_point"] or ""), exported_as), Csn(int(csn)) if csn else None


@contextmanager
def export_snapshot(session: WireSession, locked: Sequence[str] = ()) -> Iterator[CsnSnapshot]:
    """A transaction of `session` that exports a snapshot with its CSN until the block ends. Raises SourceError.

    `locked`: see `snapshot_and_csn`.
    """
    try:
        yield snapshot_and_csn(session, locked)
    finally:
        if not session.is_closed:
            session.query("ROLLBACK", doing="ending the snapshot")


def csn_now(session: WireSession) -> Csn:
    """The CSN of a current snapshot that is not kept. Raises SourceError."""
    with export_snapshot(session) as snapshot:
        return snapshot.csn


def exports_csn(session: WireSession) -> bool:
    """Whether the server can export a snapshot with its CSN; every open release since 3.0.0 can."""
    try:
        csn_now(session)
    except QueryRefused as refused:
        if "(42883)" not in refused.message:  # undefined_function
            raise
        return False
    return True


@contextmanager
def readers(
    dial: Callable[[], WireSession], snapshot: str, count: int, chunk_rows: int, codec: Codec
) -> Iterator[list[GaussDbReader]]:
    """Sessions that all see the exported snapshot, opened by `dial` and closed at the end. Raises SourceError."""
    with ExitStack() as opened:
        snapshot_readers = []
        for _ in range(count):
            session = dial()
            opened.callback(session.close)
            doing = "importing the snapshot"
            session.query("BEGIN ISOLATION LEVEL REPEATABLE READ", doing=doing)
            session.query(f"SET TRANSACTION SNAPSHOT {literal(snapshot)}", doing=doing)
            snapshot_readers.append(GaussDbReader(session, chunk_rows, codec))
        yield snapshot_readers
