"""The stream of a PostgreSQL slot: the output of its plugin, over the replication protocol or SQL functions.

It follows the PostgreSQL documentation, chapter "Streaming Replication Protocol": inside CopyBoth, `w` has WAL data and
`k` is a keepalive; the answer is `r`, the standby status. The server flushes every message: `source.socket_io` waits
for more than one. Nothing is read after a warning that changes were omitted (`source.postgres.publication`).

By SQL functions, bytes (pgoutput) are peeked at by the binary function, lines (test_decoding) by the text function,
whose output the server converts to UTF-8. Decoding reaches only flushed WAL, so the WAL is flushed before.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain

import psycopg

from cdc_lake.errors import SlotActive, SlotMissing, StreamProtocol
from cdc_lake.model.position import Lsn
from cdc_lake.source.postgres import connection
from cdc_lake.source.postgres.plugins import PGOUTPUT
from cdc_lake.source.postgres.publication import PublicationWarnings
from cdc_lake.source.postgres.server import wal_position
from cdc_lake.source.socket_io import LONGEST, ReplicationStream
from cdc_lake.source.sql_text import start_command

_STATUS = struct.Struct(">cQQQqB")  # 'r', written, flushed, applied, clock, reply requested
_KEEPALIVE = struct.Struct(">QqB")  # WAL end, clock, reply requested
_START = struct.Struct(">Q")  # of 'w': start LSN, then WAL end and clock
_DATA_HEADER = 25
_DATA, _ALIVE = ord("w"), ord("k")
_EPOCH_2000 = 946_684_800  # seconds from 1970 to PostgreSQL's epoch


class PostgresStream(ReplicationStream):
    """An open `START_REPLICATION` (implements `source.base.FrameSource`)."""

    def __init__(
        self,
        session: connection.Session,
        slot: str,
        options: Mapping[str, str],
        start: int,
        *,
        status_interval: float,
        silence: float = LONGEST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start streaming after `start` (not before the slot's confirmed position: see `source.postgres.slot`).

        `options`: the output plugin's (`source.postgres.plugins`). `silence`: timeout in seconds for a silent server
        (`source.socket_io`). `session` is a replication connection; if starting fails (SlotActive), it can be used for
        a retry.
        """
        super().__init__(start, status_interval, clock)
        self._session = session
        self._pgconn = session.pgconn
        self._left_out = PublicationWarnings(session)
        connection.send_as_stored(self._pgconn)
        connection.command(
            self._pgconn, start_command(slot, start, options), f"starting replication from slot `{slot}`"
        )
        self._pgconn.nonblocking = 1
        self._read_from(self._pgconn.socket, silence)

    def poll(self, timeout: float) -> list[tuple[int, bytes]]:
        """Frames, waiting up to `timeout` seconds. Raises PublicationMissing after the frames before it."""
        self._left_out.check()
        return self._gathering.poll(timeout, self._take, self._due)

    def close(self) -> None:
        """Close the connection; the slot stays."""
        self._gathering.close()
        self._session.close()

    def _take(self, frames: list[tuple[int, bytes]], limit: int) -> int:
        """Take everything available, up to about `limit` bytes; returns the size."""
        size = self._drain(frames, limit)
        while size < limit and self._left_out.error is None:
            try:
                self._pgconn.consume_input()
            except psycopg.OperationalError as broken:
                raise connection.connection_lost_error(self._pgconn, "reading the stream") from broken
            more = self._drain(frames, limit - size)
            if not more:
                break
            size += more
        return size

    def _drain(self, frames: list[tuple[int, bytes]], limit: int) -> int:
        """Take the messages in libpq's buffer, up to about `limit` bytes; returns their size."""
        take, start_of, left_out = self._pgconn.get_copy_data, _START.unpack_from, self._left_out
        size = 0
        while size < limit:
            try:
                length, view = take(1)
            except psycopg.OperationalError as broken:
                raise connection.connection_lost_error(self._pgconn, "reading the stream") from broken
            if length == 0 or left_out.error is not None:
                return size
            if length < 0:
                connection.raise_end(self._pgconn, "reading the stream")
            kind = view[0]
            if kind == _DATA and length >= _DATA_HEADER:
                size += length
                # copied: a view would keep libpq's whole message in memory
                frames.append((start_of(view, 1)[0], bytes(view[_DATA_HEADER:])))
            elif kind == _ALIVE and length == 1 + _KEEPALIVE.size:
                end, _, wanted = _KEEPALIVE.unpack_from(view, 1)
                self.keepalive_end = max(self.keepalive_end, end)
                self._silence.record_activity()
                if wanted:
                    self._asked = True
                    self._send_status()
            else:
                raise StreamProtocol(f"a replication message of kind {kind} and {length} bytes")
        if frames:
            self._received = max(self._received, frames[-1][0])
        return size

    def _send_status(self, *, ping: bool = False) -> None:
        """The standby status: the received position, and the confirmed one (flushed = applied = confirmed)."""
        written = max(self._received, self._confirmed)
        now = int((time.time() - _EPOCH_2000) * 1_000_000)
        status = _STATUS.pack(b"r", written, self._confirmed, self._confirmed, now, ping)
        try:
            self._pgconn.put_copy_data(status)
            # What the socket does not accept now is sent with the next status; this never waits.
            self._pgconn.flush()
        except psycopg.OperationalError as broken:
            raise connection.connection_lost_error(self._pgconn, "acknowledging a position") from broken
        self._status_sent_at = self._clock()


_PATIENCE = 15.0  # seconds for which another process, such as a comparison, may use the slot
PIECE = 4 << 20
"""Bytes of changes returned at once, equal to the spool's default memory."""
_FRAME = 128  # memory overhead of a change in bytes
_LOOK = 0.1  # seconds between two attempts to move the slot


class PostgresSlotFunctions:
    """The SQL functions of `slot`, through ordinary sessions in autocommit; `settling`: see SlotFunctions.

    Changes are read by `reading`, row by row while the server still sends; `session` does everything else meanwhile.
    """

    settling = 0.0

    def __init__(
        self,
        reading: connection.Session,
        session: connection.Session,
        slot: str,
        plugin: str,
        options: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`options`: the plugin's. Raises SourceError."""
        self._reading = reading
        self._session = session
        self._slot = slot
        self._clock = clock
        self._pause = pause
        kind = "_binary" if plugin == PGOUTPUT else ""
        # a message without a transaction cannot be confirmed, and would be sent forever
        only = "" if plugin == PGOUTPUT else " WHERE NOT starts_with(data, 'message: ')"
        function = f"pg_logical_slot_peek{kind}_changes"
        self._peek = f"SELECT lsn::text, data FROM {function}(%s, NULL, %s, VARIADIC %s::text[]){only}"
        self._options = [word for pair in options.items() for word in pair]
        self._busy_since: float | None = None
        self._left_out = PublicationWarnings(reading)
        connection.send_as_stored(reading.pgconn)

    def end(self) -> int:
        """The current end of the server's WAL."""
        return wal_position(self._session).value

    def peek(self, least: int) -> Iterator[list[tuple[int, bytes]]] | None:
        """Changes after the slot's position.

        Raises SlotActive if others have used the slot for long, PublicationMissing if the server omitted changes.
        """
        pieces = self._pieces(least)
        try:
            # the server decodes the whole answer and releases the slot before it sends any of it
            first = next(pieces, None)
        except SlotActive:
            now = self._clock()
            self._busy_since = now if self._busy_since is None else self._busy_since
            if now - self._busy_since > _PATIENCE:
                raise
            return None
        self._busy_since = None
        return pieces if first is None else chain([first], pieces)

    def _pieces(self, least: int) -> Iterator[list[tuple[int, bytes]]]:
        piece: list[tuple[int, bytes]] = []
        held, arguments = 0, [self._slot, least, self._options]
        with connection.translate_errors(f"reading slot `{self._slot}`"):
            for lsn, data in self._reading.cursor().stream(self._peek.encode(), arguments, binary=True):
                piece.append((Lsn.parse(connection.as_bytes(lsn).decode()).value, connection.as_bytes(data)))
                held += len(piece[-1][1]) + _FRAME
                if held >= PIECE:
                    self._left_out.check()
                    yield piece
                    piece, held = [], 0
        self._left_out.check()
        if piece:
            yield piece

    def advance(self, position: int) -> None:
        """Move the slot to a position. Raises SlotActive if others have used the slot for long."""
        until = self._clock() + _PATIENCE
        while True:
            try:
                sql = "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)"
                connection.fetch(self._session, f"advancing slot `{self._slot}`", sql, self._slot, str(Lsn(position)))
            except SlotActive:
                if self._clock() > until:
                    raise
                self._pause(_LOOK)
            else:
                return

    def load_flush_lsn(self) -> int:
        """The slot's confirmed position. Raises SlotMissing."""
        sql = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
        rows = connection.fetch(self._session, f"looking up slot `{self._slot}`", sql, self._slot)
        if not rows or rows[0][0] is None:
            raise SlotMissing(f"slot `{self._slot}` no longer exists")
        return Lsn.parse(connection.as_bytes(rows[0][0]).decode()).value

    def close(self) -> None:
        """Close the session that peeks; the owner closes `session`."""
        self._reading.close()
