"""Unsent: prepared transactions whose COMMIT PREPARED comes alone, and whether they changed anything.

PostgreSQL 15 to 17 send no PREPARE of a transaction that only locked rows. Of any other one it was sent on a connection
before, and what was kept of it is lost. The server can tell: it keeps the log of a prepared transaction until its end
is confirmed, and a copy of the slot, which has no two-phase decoding, has it whole at that end.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Final, TypeAlias

import psycopg

from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import TableName
from cdc_lake.source.connection import Session, as_stored, named
from cdc_lake.source.line_heads import HEAD, PEEKED, as_bytes, changed_by
from cdc_lake.source.server import wal_position
from cdc_lake.source.slot import whole_copy

WINDOW: Final = 64 << 20
"""Bytes of log behind the end that was asked for which are looked through with it: more ends may lie there."""
_XIDS: Final = 1 << 32
_LOOK: Final = 0.2  # seconds
_PATIENCE: Final = 2.0  # seconds that a server gets to end a look

Changed: TypeAlias = Callable[[Session, str, str, str], set[int]]
"""By a session, of a slot without two-phase decoding: ids of the transactions that end up to one position and changed
what is captured before another one. Raises SourceError.
"""

_PEEK: Final = (
    "SELECT DISTINCT xid::text::bigint FROM pg_logical_slot_peek_binary_changes(%s, %s::pg_lsn, NULL, "
    "VARIADIC %s::text[]) WHERE lsn < %s::pg_lsn AND get_byte(data, 0) IN (68, 73, 77, 84, 85)"  # D I M T U
)
_PEEK_LINES: Final = (
    f"SELECT DISTINCT xid::text::bigint, {HEAD} FROM {PEEKED} WHERE lsn < %s::pg_lsn AND starts_with(data, 'table ')"
)


def by_messages(options: Mapping[str, str]) -> Changed:
    """Of pgoutput, which is asked for `options`: by version 1 and without two-phase decoding."""
    words = [word for pair in options.items() for word in pair]

    def changed(session: Session, slot: str, upto: str, before: str) -> set[int]:
        found = session.execute(_PEEK, [slot, upto, words, before]).fetchall()
        return {int(str(xid)) for (xid,) in found}

    return changed


def by_lines(takes: Callable[[TableName], bool]) -> Changed:
    """Of test_decoding, whose lines are of all tables: of those that `takes` takes."""

    def changed(session: Session, slot: str, upto: str, before: str) -> set[int]:
        with as_stored(session):
            found = session.execute(_PEEK_LINES.encode(), [slot, upto, before]).fetchall()
        heads = [(int(str(xid)), head) for xid, head in found]
        return {xid for xid, head in heads if head is None or any(map(takes, changed_by(as_bytes(head))))}

    return changed


class UnsentPrepares:
    """Those of one connection, which starts at `start`, by a session that is used for nothing else meanwhile.

    `changes`: how its plugin tells. `tick` is called now and then while the server looks; what it raises breaks the
    look off.
    """

    def __init__(self, session: Session, slot: str, changes: Changed, start: int, tick: Callable[[], object]) -> None:
        """Raises SourceError."""
        self._session = session
        self._slot = slot
        self._changes = changes
        self._start = start
        self._tick = tick
        with named("asking for the transactions that are under way"):
            row = session.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text").fetchone()
        assert row is not None
        self._next = int(str(row[0]))
        self._looked = 0
        self._found: set[int] = set()

    def changed(self, xid: int, end_lsn: int) -> bool:
        """Whether `xid`, committed by a record that ends at `end_lsn`, changed what is published.

        The server is asked about those only that may have been prepared before this connection's start: of a younger
        one that changed something it would have sent the PREPARE on it. Raises SourceError.
        """
        if (self._next - 1 - xid) % _XIDS >= _XIDS // 2:
            return False
        if end_lsn > self._looked:
            with ThreadPoolExecutor(1) as beside:
                looking = beside.submit(self._look, end_lsn)
                try:
                    while not wait([looking], _LOOK).done:
                        self._tick()
                except BaseException:
                    self._break_off(looking)
                    raise
                looking.result()
        return xid in self._found

    def _break_off(self, looking: Future[None]) -> None:
        """End a look that may take hours, also where the server does not answer. The session is of no more use."""
        with suppress(psycopg.Error):  # what `tick` raised is told, and may be why nothing can be cancelled
            self._session.cancel_safe(timeout=_PATIENCE)
        if not wait([looking], _PATIENCE).done:
            with socket.socket(fileno=os.dup(self._session.fileno())) as connection:
                connection.shutdown(socket.SHUT_RDWR)

    def _look(self, end_lsn: int) -> None:
        """What was prepared before this connection's start has all its changes there."""
        upto = max(end_lsn, min(end_lsn + WINDOW, wal_position(self._session).value))
        with whole_copy(self._session, self._slot) as copy, named(f"looking ahead in slot `{self._slot}`"):
            self._found |= self._changes(self._session, copy, str(Lsn(upto)), str(Lsn(self._start)))
        self._looked = upto
