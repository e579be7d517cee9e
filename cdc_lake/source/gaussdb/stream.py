"""The stream of a GaussDB family slot: its messages, read through START_REPLICATION or SQL functions.

`w`, data: 24 bytes big-endian (start, end, time), then the payload. `k`, keepalive: the memory image of a server
structure, little-endian on x86 and ARM, whose last bytes are padding with arbitrary content. `r`, the reply: also a
memory image, of 64 bytes; a shorter one ends the stream. PostgreSQL's messages of these letters differ.

Reading is limited by the caller: if it does not poll, the socket fills up and the server waits. The SQL functions
decode serially, to lines in UTF-8; their columns are read by position: LSN, transaction id, line.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from cdc_lake.errors import ServerUnreachable, SlotMissing, SourceError, StreamProtocol
from cdc_lake.model.position import Lsn
from cdc_lake.observability.failpoints import FRAME_PART, failpoint
from cdc_lake.source.gaussdb.server import current_lsn
from cdc_lake.source.gaussdb.slot import advance_slot, find_slot
from cdc_lake.source.gaussdb.wire import protocol
from cdc_lake.source.gaussdb.wire.session import WireSession
from cdc_lake.source.socket_io import LONGEST, Frames, ReplicationStream
from cdc_lake.source.sql_text import literal, start_command

DATA, KEEPALIVE = b"wk"
DATA_HEADER = 25
"""Letter, start, end (the same), time."""

KEEPALIVE_SIZE = 33

_KEEPALIVE = struct.Struct("<QiiqBB")  # end, role, state, time, reply requested, catching up; then 6 bytes of padding
_REPLY = struct.Struct("<cQQQQQiiqB3xI")  # receive, write, flush, apply, applyRead, role, state, time, requested, flags
_EPOCH_2000 = 946_684_800  # seconds from 1970 to PostgreSQL's epoch


@dataclass(frozen=True, slots=True)
class Keepalive:
    """A keepalive: how far the server has read, in its own numbers, and whether it requests a reply."""

    end: int
    role: int
    state: int
    reply_wanted: bool
    catching_up: bool


def read_keepalive(body: bytes | memoryview) -> Keepalive:
    """Parse a keepalive including its letter. Raises StreamProtocol if its size is wrong."""
    if len(body) != KEEPALIVE_SIZE or body[0] != KEEPALIVE:
        text = f"a keepalive of {len(body)} bytes; the GaussDB family sends {KEEPALIVE_SIZE}"
        raise StreamProtocol(text, hint="if the server is PostgreSQL, set `source.type: postgres`")
    end, role, state, _, wanted, catching_up = _KEEPALIVE.unpack_from(body, 1)
    return Keepalive(end, role, state, wanted != 0, catching_up != 0)


def reply(received: int, confirmed: int, seconds: float, *, wanted: bool = False) -> bytes:
    """The reply: the received and the confirmed position; only the latter moves the slot.

    `seconds` is the time since 1970; with `wanted` the server answers with a keepalive.
    """
    clock = int((seconds - _EPOCH_2000) * 1_000_000)
    return _REPLY.pack(b"r", received, received, confirmed, confirmed, confirmed, 0, 0, clock, wanted, 0)


_FRAME = struct.Struct(">BIBQ")  # CopyData, its length, the letter inside, the start in a data header
_HEAD = 5  # of CopyData: letter and length
_PAYLOAD = _HEAD + DATA_HEADER
_SHORTEST = 4 + DATA_HEADER  # as a length, which counts itself
_PASSING = frozenset({protocol.COPY_DATA, protocol.NOTICE, protocol.PARAMETER})
_UNSENT = 64 << 10  # bytes of replies: nothing more is sent to a server that does not read
_DOING = "reading the stream"


class GaussDbStream(ReplicationStream):
    """An open `START_REPLICATION` (implements `source.base.FrameSource`).

    Frames are `(number in the header, payload)`. The numbers, of frames and of `confirm`, are LSNs, or CSNs on a
    CSN-ordered slot: the stream does not interpret them.
    """

    def __init__(
        self,
        session: WireSession,
        slot: str,
        start: int,
        options: Mapping[str, str],
        *,
        keepalives_confirm: bool,
        status_interval: float,
        silence: float = LONGEST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start streaming after `start`; 0 is the slot's own confirmed position.

        `session` is a replication connection; it is closed if starting fails (SlotActive: retry on a new one).
        `keepalives_confirm`: everything before a keepalive's position was sent, so the position counts as reached. True
        only for serial decoding in LSN order; otherwise `keepalive_end` stays at `start`. `status_interval` is in
        seconds, and so is `silence`, the timeout for a silent server (`source.socket_io`). Options that the server
        refuses raise OptionUnknown or OptionRefused here or, in serial decoding, in the first `poll`.
        """
        super().__init__(start, status_interval, clock)
        self._session = session
        self._channel = session.channel
        self._keepalives_confirm = keepalives_confirm
        self._outgoing = b""
        self._broken: SourceError | None = None
        command = start_command(slot, start, options)
        try:
            session.start_copy_both(command, doing=f"starting replication from slot `{slot}`")
        except SourceError:
            session.close()
            raise
        self._channel.enlarge(2 << 20)  # bytes: two batches of the server's
        self._channel.socket.setblocking(False)
        self._read_from(self._channel.socket.fileno(), silence)

    def poll(self, timeout: float) -> Frames:
        """Frames as `(lsn, payload)`, waiting up to `timeout` seconds for the first; also answers keepalives."""
        return self._gathering.poll(timeout, self._take, self._due)

    def tick(self, *, ping: bool = False) -> None:
        """The same, and send what the socket did not accept before."""
        if self._outgoing:
            self._outgoing = self._channel.send_now(self._outgoing)
        super().tick(ping=ping)

    def close(self) -> None:
        """Close the connection; the slot stays."""
        self._gathering.close()
        self._session.close()

    def _take(self, frames: Frames, limit: int) -> int:
        """Take everything available, up to about `limit` bytes; returns the size."""
        size = 0
        while True:
            size += self._drain(frames, limit - size)
            if size >= limit:
                return size
            if not self._receive(has_frames=bool(frames)):
                if self._channel.holds_some:
                    failpoint(FRAME_PART)
                return size

    def _receive(self, *, has_frames: bool) -> bool:
        """Receive more; False if nothing is available. An end is reported after the frames before it."""
        if self._broken is None:
            try:
                return self._channel.receive(_DOING) > 0
            except ServerUnreachable as broken:
                self._broken = broken
        if has_frames:
            return False
        raise self._broken

    def _drain(self, frames: Frames, limit: int) -> int:
        """Take the complete messages from the buffer, up to about `limit` bytes; returns their size."""
        size = 0
        while size < limit:
            message_size = self._data(frames, limit - size) or self._take_control_message(has_frames=bool(frames))
            if not message_size:
                break
            size += message_size
        return size

    def _data(self, frames: Frames, limit: int) -> int:
        """Take the next data messages; returns their size."""
        buffer, view, first, end = self._channel.received_buffer()
        unpack, append, offset = _FRAME.unpack_from, frames.append, first
        upto, received = min(end - _FRAME.size, first + limit - 1), self._received
        while offset <= upto:
            kind, length, letter, start = unpack(buffer, offset)
            following = offset + 1 + length
            if following > end or letter != DATA or kind != protocol.COPY_DATA or length < _SHORTEST:
                break
            append((start, bytes(view[offset + _PAYLOAD : following])))
            received = max(received, start)
            offset = following
        self._received = received
        self._channel.consume(offset)
        return offset - first

    def _take_control_message(self, *, has_frames: bool) -> int:
        """Take one complete message other than data; its size. An end is reported after the frames before it."""
        length = self._channel.pending()
        buffer, _, offset, end = self._channel.received_buffer()
        if length is None or end - offset < 1 + length:
            return 0
        kind = buffer[offset]
        if has_frames and kind not in _PASSING:
            return 0
        body = bytes(buffer[offset + _HEAD : offset + 1 + length])
        self._channel.consume(offset + 1 + length)
        match kind:
            case protocol.COPY_DATA if body[:1] == b"k":
                alive = read_keepalive(body)
                self._silence.record_activity()
                if self._keepalives_confirm:
                    self.keepalive_end = max(self.keepalive_end, alive.end)
                if alive.reply_wanted:
                    self._asked = True
                    self._send_status()
            case protocol.NOTICE | protocol.PARAMETER:
                pass
            case protocol.ERROR:
                raise self._session.error(body, _DOING)
            case protocol.COPY_DONE | protocol.COMMAND_COMPLETE | protocol.READY:
                raise self._channel.connection_lost_error(_DOING)
            case _:
                raise StreamProtocol(f"a replication message of kind {kind} and {len(body)} bytes")
        return 1 + length

    def _send_status(self, *, ping: bool = False) -> None:
        """Send the reply; what the socket does not accept now is sent with the next call."""
        if len(self._outgoing) < _UNSENT:
            words = reply(max(self._received, self._confirmed), self._confirmed, time.time(), wanted=ping)
            self._outgoing += protocol.copy_data(words)
        self._outgoing = self._channel.send_now(self._outgoing)
        self._status_sent_at = self._clock()


_UNFLUSHED = 10.0
"""Multiple of `wal_writer_delay` after which an asynchronous commit is certainly decoded."""
_LEAST = 2.0  # seconds


class GaussDbSlotFunctions:
    """The SQL functions of `slot`, through an ordinary session."""

    def __init__(self, session: WireSession, slot: str, options: Mapping[str, str]) -> None:
        """Queries a setting of the server. Raises SourceError."""
        self._session = session
        self._slot = slot
        self._options = "".join(f", {literal(name)}, {literal(value)}" for name, value in options.items())
        sql = "SELECT setting FROM pg_settings WHERE name = 'wal_writer_delay'"
        rows = session.query(sql, doing="reading the server's settings").rows
        delay = int(rows[0][0]) / 1000 if rows and rows[0][0] else 0.0
        self.settling = max(_UNFLUSHED * delay, _LEAST)

    def end(self) -> int:
        """The current end of the server's WAL."""
        return current_lsn(self._session).value

    def peek(self, least: int) -> Iterator[list[tuple[int, bytes]]]:
        """Changes of complete transactions after the slot's position, in one piece; None while the slot is in use."""
        sql = f"SELECT * FROM pg_logical_slot_peek_changes({literal(self._slot)}, NULL, {least}{self._options})"
        rows = self._session.query(sql, doing=f"reading slot `{self._slot}`").rows
        return iter([[_frame(row) for row in rows]] if rows else [])

    def advance(self, position: int) -> None:
        """Let the server discard everything up to a position."""
        advance_slot(self._session, self._slot, Lsn(position))

    def load_flush_lsn(self) -> int:
        """The slot's confirmed position, or an earlier one if the server does not show it. Raises SlotMissing."""
        slot_facts = find_slot(self._session, self._slot)
        if slot_facts is None:
            raise SlotMissing(f"slot `{self._slot}` no longer exists")
        return slot_facts.confirmed or 0

    def close(self) -> None:
        """Close the session."""
        self._session.close()


def _frame(row: tuple[str | None, ...]) -> tuple[int, bytes]:
    if len(row) != 3 or row[0] is None or row[2] is None:
        raise StreamProtocol(f"a change of {len(row)} columns: expected position, transaction id, line")
    return Lsn.parse(row[0]).value, row[2].encode()
