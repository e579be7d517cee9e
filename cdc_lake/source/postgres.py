"""The stream of a PostgreSQL slot: what its plugin sends, over the streaming replication protocol.

Follows the PostgreSQL documentation, chapter "Streaming Replication Protocol": inside CopyBoth, `w` carries WAL data
and `k` a keepalive; the answer is `r`, the standby status.

The server flushes every message: `source.gathering` waits for more than one.

What comes behind a warning that changes were left out is not read (`source.left_out`).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping

import psycopg

from cdc_lake.errors import StreamProtocol
from cdc_lake.source.connection import Session, command, lost, raise_end, send_as_stored
from cdc_lake.source.gathering import Gathering
from cdc_lake.source.left_out import LeftOut
from cdc_lake.source.silence import LONGEST, Silence
from cdc_lake.source.start_command import start_command

_STATUS = struct.Struct(">cQQQqB")  # 'r', written, flushed, applied, clock, reply wanted
_KEEPALIVE = struct.Struct(">QqB")  # WAL end, clock, reply wanted
_START = struct.Struct(">Q")  # of 'w': start LSN, then WAL end and clock
_DATA_HEADER = 25
_DATA, _ALIVE = ord("w"), ord("k")
_EPOCH_2000 = 946_684_800  # seconds from 1970 to PostgreSQL's own epoch


class PostgresStream:
    """An open `START_REPLICATION` (implements `source.stream.FrameSource`)."""

    def __init__(
        self,
        session: Session,
        slot: str,
        options: Mapping[str, str],
        start: int,
        *,
        status_interval: float,
        silence: float = LONGEST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start streaming after `start` (which must not lie before the slot's confirmed position: see `source.slot`).

        `options`: the output plugin's (`source.plugins`). `silence`: seconds after which a server that says nothing is
        given up (`source.silence`).
        `session` is a replication connection; where starting fails (SlotActive), it may be tried again on it.
        """
        self._session = session
        self._pgconn = session.pgconn
        self._interval = status_interval
        self._clock = clock
        self._confirmed = start
        self._received = start
        self._keepalive_end = start
        self._asked = False
        self._told_at = clock()
        self._left_out = LeftOut(session)
        send_as_stored(self._pgconn)
        command(self._pgconn, start_command(slot, start, options), f"starting replication from slot `{slot}`")
        self._pgconn.nonblocking = 1
        self._silence = Silence(silence, clock)
        self._gathering = Gathering(self._pgconn.socket, clock, self._silence, self._ask)

    @property
    def keepalive_end(self) -> int:
        """See FrameSource."""
        return self._keepalive_end

    @property
    def asked(self) -> bool:
        """See FrameSource."""
        asked, self._asked = self._asked, False
        return asked

    def poll(self, timeout: float) -> list[tuple[int, bytes]]:
        """See FrameSource. Raises PublicationMissing once everything before that was given."""
        self._left_out.check()
        return self._gathering.poll(timeout, self._take, self._due)

    def confirm(self, position: int) -> None:
        """See FrameSource."""
        self._confirmed = max(self._confirmed, position)
        self._tell()

    def tick(self, *, ping: bool = False) -> None:
        """See FrameSource."""
        if ping or self._clock() - self._told_at >= self._interval:
            self._tell(ping=ping)

    def close(self) -> None:
        """See FrameSource."""
        self._gathering.close()
        self._session.close()

    def _ask(self) -> None:
        """Ask the server for a keepalive."""
        self._tell(ping=True)

    def _due(self) -> float:
        """Tell the server where we are if it is time; the seconds until it is again."""
        self.tick()
        return self._told_at + self._interval - self._clock()

    def _take(self, frames: list[tuple[int, bytes]], limit: int) -> int:
        """Take everything that is there, until about `limit` bytes; returns their size."""
        size = self._drain(frames, limit)
        while size < limit and self._left_out.error is None:
            self._consume()
            more = self._drain(frames, limit - size)
            if not more:
                break
            size += more
        return size

    def _drain(self, frames: list[tuple[int, bytes]], limit: int) -> int:
        """Take the messages libpq holds, until about `limit` bytes; returns their size."""
        take, start_of, left_out = self._pgconn.get_copy_data, _START.unpack_from, self._left_out
        size = 0
        while size < limit:
            try:
                length, view = take(1)
            except psycopg.OperationalError as broken:
                raise lost(self._pgconn, "reading the stream") from broken
            if length == 0 or left_out.error is not None:
                return size
            if length < 0:
                raise_end(self._pgconn, "reading the stream")
            kind = view[0]
            if kind == _DATA and length >= _DATA_HEADER:
                size += length
                # copied: a view would keep libpq's whole message alive
                frames.append((start_of(view, 1)[0], bytes(view[_DATA_HEADER:])))
            elif kind == _ALIVE and length == 1 + _KEEPALIVE.size:
                end, _, wanted = _KEEPALIVE.unpack_from(view, 1)
                self._keepalive_end = max(self._keepalive_end, end)
                self._silence.heard()
                if wanted:
                    self._asked = True
                    self._tell()
            else:
                raise StreamProtocol(f"a replication message of kind {kind} and {length} bytes")
        if frames:
            self._received = max(self._received, frames[-1][0])
        return size

    def _consume(self) -> None:
        try:
            self._pgconn.consume_input()
        except psycopg.OperationalError as broken:
            raise lost(self._pgconn, "reading the stream") from broken

    def _tell(self, *, ping: bool = False) -> None:
        """The standby status: what was received, and what may be forgotten (flushed = applied = confirmed)."""
        written = max(self._received, self._confirmed)
        now = int((time.time() - _EPOCH_2000) * 1_000_000)
        status = _STATUS.pack(b"r", written, self._confirmed, self._confirmed, now, ping)
        try:
            self._pgconn.put_copy_data(status)
            # What does not fit into the socket now goes out with the next status; we never wait here.
            self._pgconn.flush()
        except psycopg.OperationalError as broken:
            raise lost(self._pgconn, "confirming a position") from broken
        self._told_at = self._clock()
