"""The stream of a GaussDB, openGauss or MogDB slot: payloads of logical decoding as the server sends them.

START_REPLICATION with the server's own options, then `messages` inside a two-way copy. What is read is limited by what
the caller takes: where it does not poll, the socket fills up and the server waits. Waiting is `source.gathering`'s.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping

from cdc_lake.errors import ServerUnreachable, SourceError, StreamProtocol
from cdc_lake.observe.failpoint import FRAME_PART, failpoint
from cdc_lake.source.gathering import Frames, Gathering
from cdc_lake.source.gaussdb.messages import DATA, DATA_HEADER, read_keepalive, reply
from cdc_lake.source.silence import LONGEST, Silence
from cdc_lake.source.start_command import start_command
from cdc_lake.source.wire import protocol
from cdc_lake.source.wire.session import WireSession

_FRAME = struct.Struct(">BIBQ")  # CopyData, its length, the letter inside, the start in a data header
_HEAD = 5  # of CopyData: letter and length
_PAYLOAD = _HEAD + DATA_HEADER
_SHORTEST = 4 + DATA_HEADER  # as a length, which counts itself
_PASSING = frozenset({protocol.COPY_DATA, protocol.NOTICE, protocol.PARAMETER})
_UNSENT = 64 << 10  # bytes of replies: a server that does not read is sent no more
_BUFFER = 2 << 20  # bytes: two batches of the server's
_DOING = "reading the stream"


class GaussStream:
    """An open `START_REPLICATION` (implements `source.stream.FrameSource`).

    Frames are `(number in the header, payload)`. The numbers, of frames as of `confirm`, are LSNs, or CSNs on a
    CSN-ordered slot: the stream does not look at them.
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

        `session` is a replication connection; it is closed where starting fails (SlotActive: try again on a new one).
        `keepalives_confirm`: everything before a keepalive's position was sent, so it may be taken for reached. True of
        serial decoding in LSN order only; otherwise `keepalive_end` stays at `start`. `status_interval` is in
        seconds, and so is `silence`, after which a server that says nothing is given up (`source.silence`). Options the
        server refuses are OptionUnknown or OptionRefused, from here or, in serial decoding, from the first `poll`.
        """
        self._session = session
        self._channel = session.channel
        self._interval = status_interval
        self._clock = clock
        self._confirmed = self._received = self._keepalive_end = start
        self._keepalives_confirm = keepalives_confirm
        self._asked = False
        self._outgoing = b""
        self._broken: SourceError | None = None
        self._told_at = clock()
        command = start_command(slot, start, options)
        try:
            session.start_copy_both(command, doing=f"starting replication from slot `{slot}`")
        except SourceError:
            session.close()
            raise
        self._channel.enlarge(_BUFFER)
        self._channel.socket.setblocking(False)
        self._silence = Silence(silence, clock)
        self._gathering = Gathering(self._channel.socket.fileno(), clock, self._silence, self._ask)

    @property
    def keepalive_end(self) -> int:
        """See FrameSource; stays at the start where keepalives run ahead of what was sent."""
        return self._keepalive_end

    @property
    def asked(self) -> bool:
        """See FrameSource."""
        asked, self._asked = self._asked, False
        return asked

    def poll(self, timeout: float) -> Frames:
        """See FrameSource."""
        return self._gathering.poll(timeout, self._take, self._due)

    def confirm(self, position: int) -> None:
        """See FrameSource. 0 is ignored by the server, and a slot never moves backwards."""
        self._confirmed = max(self._confirmed, position)
        self._tell()

    def tick(self, *, ping: bool = False) -> None:
        """See FrameSource."""
        if self._outgoing:
            self._outgoing = self._channel.send_now(self._outgoing)
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
        """Reply if it is time; the seconds until it is again."""
        self.tick()
        return self._told_at + self._interval - self._clock()

    def _take(self, frames: Frames, limit: int) -> int:
        """Take everything that is there, until about `limit` bytes; returns their size."""
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
        """Receive more; False where nothing is there. An end waits until the frames before it were taken."""
        if self._broken is None:
            try:
                return self._channel.receive(_DOING) > 0
            except ServerUnreachable as broken:
                self._broken = broken
        if has_frames:
            return False
        raise self._broken

    def _drain(self, frames: Frames, limit: int) -> int:
        """Cut the whole messages out of what was received, until about `limit` bytes; returns their size."""
        size = 0
        while size < limit:
            taken = self._data(frames, limit - size) or self._other(has_frames=bool(frames))
            if not taken:
                break
            size += taken
        return size

    def _data(self, frames: Frames, limit: int) -> int:
        """Take the data messages that come next; returns their size."""
        buffer, view, first, end = self._channel.held()
        unpack, append, at = _FRAME.unpack_from, frames.append, first
        upto, received = min(end - _FRAME.size, first + limit - 1), self._received
        while at <= upto:
            kind, length, letter, start = unpack(buffer, at)
            following = at + 1 + length
            if following > end or letter != DATA or kind != protocol.COPY_DATA or length < _SHORTEST:
                break
            append((start, bytes(view[at + _PAYLOAD : following])))
            received = max(received, start)
            at = following
        self._received = received
        self._channel.consume(at)
        return at - first

    def _other(self, *, has_frames: bool) -> int:
        """Take one message that is not data, if there is one whole; its size. An end waits behind frames."""
        length = self._channel.pending()
        buffer, _, at, end = self._channel.held()
        if length is None or end - at < 1 + length:
            return 0
        kind = buffer[at]
        if has_frames and kind not in _PASSING:
            return 0
        body = bytes(buffer[at + _HEAD : at + 1 + length])
        self._channel.consume(at + 1 + length)
        self._control(kind, body)
        return 1 + length

    def _control(self, kind: int, body: bytes) -> None:
        match kind:
            case protocol.COPY_DATA if body[:1] == b"k":
                self._keepalive(body)
            case protocol.NOTICE | protocol.PARAMETER:
                pass
            case protocol.ERROR:
                raise self._session.error(body, _DOING)
            case protocol.COPY_DONE | protocol.COMMAND_COMPLETE | protocol.READY:
                raise self._channel.lost(_DOING)
            case _:
                raise StreamProtocol(f"a replication message of kind {kind} and {len(body)} bytes")

    def _keepalive(self, body: bytes) -> None:
        alive = read_keepalive(body)
        self._silence.heard()
        if self._keepalives_confirm:
            self._keepalive_end = max(self._keepalive_end, alive.end)
        if alive.reply_wanted:
            self._asked = True
            self._tell()

    def _tell(self, *, ping: bool = False) -> None:
        """Send the reply; what the socket does not take now goes out with the next call."""
        if len(self._outgoing) < _UNSENT:
            words = reply(max(self._received, self._confirmed), self._confirmed, time.time(), wanted=ping)
            self._outgoing += protocol.copy_data(words)
        self._outgoing = self._channel.send_now(self._outgoing)
        self._told_at = self._clock()
