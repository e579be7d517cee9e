"""Peeks at the changes of a slot that bronze does not have, without row values and without confirming anything.

The server returns only the kind and relation of each change; for test_decoding the beginning of each line.

PostgreSQL 15 to 17 send no PREPARE of a transaction that only locked rows. Any other PREPARE was sent on an earlier
connection, and its stored changes were lost. The server can distinguish them: it keeps the WAL of a prepared
transaction until its end is confirmed, and a copy of the slot, without two-phase decoding, sends it completely at that
end.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Final, TypeAlias

import psycopg

from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.test_decoding import TABLE, tables_of
from cdc_lake.errors import SlotActive, StreamProtocol
from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import TableName
from cdc_lake.source.base import PendingTransaction
from cdc_lake.source.postgres.connection import Session, as_bytes, as_stored, fetch, translate_errors
from cdc_lake.source.postgres.plugins import LINE_OPTIONS
from cdc_lake.source.postgres.server import wal_position
from cdc_lake.source.postgres.slot import find_slot, whole_copy
from cdc_lake.source.sql_text import identifier, literal

_NAME: Final = '(?:"(?:[^"]|"")*"|[^".:, ]+)'
_UTF8: Final = Codec()

HEAD: Final = (
    "CASE WHEN data ~ ': TRUNCATE:[a-z_() -]*$' THEN data "
    f"ELSE substring(data FROM '^table {_NAME}[.]{_NAME}: [A-Z]+:') END"
)
"""The beginning of a row's line, the whole line of a TRUNCATE, otherwise NULL."""
PEEKED: Final = (
    "pg_logical_slot_peek_changes("
    f"%s, %s::pg_lsn, NULL, {', '.join(literal(word) for pair in LINE_OPTIONS.items() for word in pair)})"
)
"""The output of a slot without two-phase decoding, up to a position."""


def changed_by(head: bytes) -> tuple[TableName, ...]:
    """The tables changed by a line with this beginning. Raises DecodeError."""
    return tables_of(head, _UTF8) or ()


_OID = struct.Struct(">I")
_COMMIT = struct.Struct(">BQQq")  # flags, commit LSN, end LSN, time
_CHANGES = b"IUD"

_PEEK = (
    "SELECT xid::text::bigint, CASE WHEN get_byte(data, 0) IN (73, 85, 68) THEN substr(data, 1, 5) ELSE data END "
    "FROM pg_logical_slot_peek_binary_changes(%s, %s::pg_lsn, NULL, 'proto_version', '1', 'publication_names', %s) "
    "WHERE get_byte(data, 0) IN (67, 68, 73, 82, 84, 85)"  # C D I R T U
)

_PEEK_LINES = (
    f"SELECT lsn::text, xid::text::bigint, CASE WHEN data ~ '^COMMIT' THEN 'COMMIT' ELSE {HEAD} END FROM {PEEKED} "
    "WHERE data ~ '^(COMMIT|table )'"
)


def peek_pending(
    session: Session, slot: str, publication: str, after: int, upto: int, *, two_phase: bool = False
) -> list[PendingTransaction]:
    """Transactions after `after` that change published tables, up to at least `upto`.

    A slot with `two_phase` decoding is read through a copy. `session` must not be in a transaction. Raises SlotActive
    while a receiver uses the slot.
    """
    with _peekable_slot(session, slot, two_phase=two_phase) as name, as_stored(session):
        rows = fetch(session, f"peeking into slot `{slot}`", _PEEK, name, str(Lsn(upto)), identifier(publication))
    return transactions(rows, after)


def unlanded_lines(
    session: Session, slot: str, takes: Callable[[TableName], bool], after: int, upto: int, *, two_phase: bool = False
) -> list[PendingTransaction]:
    """The same for test_decoding, whose lines cover all tables: transactions that change one selected by `takes`."""
    with _peekable_slot(session, slot, two_phase=two_phase) as name, as_stored(session):
        rows = fetch(session, f"peeking into slot `{slot}`", _PEEK_LINES, name, str(Lsn(upto)))
    pending: list[PendingTransaction] = []
    touched: set[TableName] = set()
    for lsn, xid, text in rows:
        line = as_bytes(text)
        if line.startswith(TABLE):
            touched.update(filter(takes, changed_by(line)))
            continue
        end = Lsn.parse(as_bytes(lsn).decode()).value
        if end > after and touched:
            pending.append(PendingTransaction(end, xid, frozenset(touched)))
        touched.clear()
    return pending


@contextmanager
def _peekable_slot(session: Session, slot: str, *, two_phase: bool) -> Iterator[str]:
    """A slot that sends prepared transactions completely: `slot`, or a copy of it. Raises SlotActive."""
    if not two_phase:
        yield slot
        return
    if (slot_facts := find_slot(session, slot)) is not None and slot_facts.active_pid is not None:
        raise SlotActive(f"peeking into slot `{slot}`: a receiver is reading it")
    with whole_copy(session, slot) as name:
        yield name


def transactions(messages: Iterable[tuple[int, bytes]], after: int) -> list[PendingTransaction]:
    """The transactions in pgoutput messages `(xid, bytes)` of kinds C D I R T U that end after `after`."""
    names: dict[int, TableName] = {}
    touched: set[TableName] = set()
    pending: list[PendingTransaction] = []
    for xid, data in messages:
        kind = data[:1]
        if kind == b"C":
            end = _COMMIT.unpack_from(data, 1)[2]
            if end > after and touched:
                pending.append(PendingTransaction(end, xid, frozenset(touched)))
            touched.clear()
        elif kind == b"R":
            schema, name = data[5:].split(b"\0", 2)[:2]
            names[_OID.unpack_from(data, 1)[0]] = TableName(schema.decode() or "pg_catalog", name.decode())
        elif kind == b"T":
            count = _OID.unpack_from(data, 1)[0]
            touched.update(_require_table(names, oid) for (oid,) in _OID.iter_unpack(data[6 : 6 + 4 * count]))
        elif kind in _CHANGES:
            touched.add(_require_table(names, _OID.unpack_from(data, 1)[0]))
    return pending


def _require_table(names: dict[int, TableName], oid: int) -> TableName:
    if oid not in names:
        raise StreamProtocol(f"a change of relation {oid}, which was not announced")
    return names[oid]


WINDOW: Final = 64 << 20
"""Bytes of WAL after the requested end that are examined together with it: more ends may be there."""
_XIDS: Final = 1 << 32
_LOOK: Final = 0.2  # seconds
_PATIENCE: Final = 2.0  # seconds that a server gets to end a query

Changed: TypeAlias = Callable[[Session, str, str, str], set[int]]
"""Given a session, a slot without two-phase decoding and positions: ids of the transactions that end up to one position
and changed captured tables before another one. Raises SourceError.
"""

_CHANGED_BEFORE: Final = (
    "SELECT DISTINCT xid::text::bigint FROM pg_logical_slot_peek_binary_changes(%s, %s::pg_lsn, NULL, "
    "VARIADIC %s::text[]) WHERE lsn < %s::pg_lsn AND get_byte(data, 0) IN (68, 73, 77, 84, 85)"  # D I M T U
)
_CHANGED_BEFORE_LINES: Final = (
    f"SELECT DISTINCT xid::text::bigint, {HEAD} FROM {PEEKED} WHERE lsn < %s::pg_lsn AND starts_with(data, 'table ')"
)


def by_messages(options: Mapping[str, str]) -> Changed:
    """For pgoutput with `options`: protocol version 1, without two-phase decoding."""
    words = [word for pair in options.items() for word in pair]

    def find_changed(session: Session, slot: str, upto: str, before: str) -> set[int]:
        rows = session.execute(_CHANGED_BEFORE, [slot, upto, words, before]).fetchall()
        return {int(str(xid)) for (xid,) in rows}

    return find_changed


def by_lines(takes: Callable[[TableName], bool]) -> Changed:
    """For test_decoding, whose lines cover all tables: those selected by `takes`."""

    def find_changed(session: Session, slot: str, upto: str, before: str) -> set[int]:
        with as_stored(session):
            rows = session.execute(_CHANGED_BEFORE_LINES.encode(), [slot, upto, before]).fetchall()
        return {int(str(xid)) for xid, head in rows if head is None or any(map(takes, changed_by(as_bytes(head))))}

    return find_changed


class MissingPrepareProbe:
    """Finds missing PREPAREs of a connection that begins at `start`, through a dedicated session.

    `changes`: the query of its plugin. `tick` is called periodically while the server works; its exceptions abort the
    query.
    """

    def __init__(self, session: Session, slot: str, changes: Changed, start: int, tick: Callable[[], object]) -> None:
        """Raises SourceError."""
        self._session = session
        self._slot = slot
        self._changes = changes
        self._start = start
        self._tick = tick
        sql = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"
        [(next_xid,)] = fetch(session, "asking for the transactions in progress", sql)
        self._next = int(next_xid)
        self._looked = 0
        self._changed_xids: set[int] = set()

    def has_changes(self, xid: int, end_lsn: int) -> bool:
        """Whether `xid`, committed by a record that ends at `end_lsn`, changed published tables.

        The server is queried only for transactions that may have been prepared before this connection's start: it would
        have sent the PREPARE of a later one that changed something. Raises SourceError.
        """
        if (self._next - 1 - xid) % _XIDS >= _XIDS // 2:
            return False
        if end_lsn > self._looked:
            with ThreadPoolExecutor(1) as executor:
                looking = executor.submit(self._peek_changes, end_lsn)
                try:
                    while not wait([looking], _LOOK).done:
                        self._tick()
                except BaseException:
                    self._break_off(looking)
                    raise
                looking.result()
        return xid in self._changed_xids

    def _break_off(self, looking: Future[None]) -> None:
        """Abort a query that may take hours, even if the server does not answer. The session is unusable then."""
        with suppress(psycopg.Error):  # the exception of `tick` is raised, and may be why cancelling fails
            self._session.cancel_safe(timeout=_PATIENCE)
        if not wait([looking], _PATIENCE).done:
            with socket.socket(fileno=os.dup(self._session.fileno())) as connection:
                connection.shutdown(socket.SHUT_RDWR)

    def _peek_changes(self, end_lsn: int) -> None:
        """Transactions prepared before this connection's start have all their changes there."""
        upto = max(end_lsn, min(end_lsn + WINDOW, wal_position(self._session).value))
        with whole_copy(self._session, self._slot) as copy, translate_errors(f"peeking into slot `{self._slot}`"):
            self._changed_xids |= self._changes(self._session, copy, str(Lsn(upto)), str(Lsn(self._start)))
        self._looked = upto
