"""A channel: a connected socket and the bytes received over it, from which whole messages are cut.

Bytes arrive in whatever pieces the network likes. They are received into one buffer, which grows with the message that
needs it, only as its bytes arrive, and goes back to its size afterwards.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time

from cdc_lake.errors import ServerUnreachable, StreamProtocol
from cdc_lake.source.wire.protocol import HEAD

_START_SIZE = 64 << 10
_STARTUP_LIMIT = 64 << 10  # no message of the start-up is near to it; what is longer comes from no database
_LIMIT = (1 << 31) - 1  # lengths are signed in the protocol

WANTS_MORE = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""What a socket that does not block says where it would have to wait; TLS also where no whole record is there."""


class Channel:
    """Messages over a socket. Every method raises ServerUnreachable where the connection is over."""

    def __init__(self, sock: socket.socket, place: str, deadline: float) -> None:
        """`deadline` is when the start-up has to be over, by `time.monotonic`."""
        self.socket = sock
        self.place = place
        self._deadline: float | None = deadline
        self._limit = _STARTUP_LIMIT
        self._size = _START_SIZE
        self._buffer = bytearray(self._size)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._unsent: OSError | None = None

    @property
    def is_open(self) -> bool:
        """False after `close`."""
        return self.socket.fileno() >= 0

    @property
    def holds_some(self) -> bool:
        """Whether bytes were received that nobody has taken."""
        return self._end > self._start

    def settle(self) -> None:
        """The start-up is over: messages of any length, and they may take their time."""
        self._limit = _LIMIT
        self.wait_until(None)

    def wait_until(self, deadline: float | None) -> None:
        """From here on reading and sending wait until this time, by `time.monotonic`; None: as long as it takes."""
        self._deadline = deadline
        self.socket.settimeout(self._left())

    def enlarge(self, size: int) -> None:
        """Use a buffer of this many bytes from here on, for a stream."""
        self._size = size
        self._move_to(bytearray(max(size, self._end - self._start)))

    def send(self, data: bytes) -> None:
        """Send all of it. A server that hung up may have said why: that is found when reading."""
        self._arm()
        try:
            self.socket.sendall(data)
        except OSError as broken:
            self._unsent = broken

    def send_now(self, data: bytes) -> bytes:
        """Send without waiting; returns what the socket did not take. For a socket that does not block."""
        try:
            while data and self._unsent is None:
                data = data[self.socket.send(data) :]
        except WANTS_MORE:
            return data
        except OSError as broken:
            self._unsent = broken
        return b"" if self._unsent else data

    def read(self, doing: str) -> tuple[int, bytes]:
        """The next message as `(letter, body)`, waiting for it."""
        while (found := self.next()) is None:
            self._arm()
            self.receive(doing)
        return found

    def next(self) -> tuple[int, bytes] | None:
        """The next message, if it is there whole."""
        length = self.pending()
        if length is None or self._end - self._start < 1 + length:
            return None
        at = self._start
        self._start = at + 1 + length
        return self._buffer[at], bytes(self._view[at + HEAD.size : self._start])

    def pending(self) -> int | None:
        """The length of the message that comes next, as it says itself. Raises StreamProtocol for an absurd one."""
        if self._end - self._start < HEAD.size:
            return None
        letter, length = HEAD.unpack_from(self._buffer, self._start)
        if not 4 <= length <= self._limit:
            raise StreamProtocol(
                f"a message of kind {letter} and {length} bytes",
                where=self.place,
                hint="is a database listening there?",
            )
        return int(length)

    def receive(self, doing: str) -> int:
        """Receive what is there, once, waiting as the socket's timeout says; 0 where nothing is, without blocking."""
        self._make_room()
        try:
            size = self.socket.recv_into(self._view[self._end :])
        except TimeoutError as late:
            raise ServerUnreachable(f"no answer in time while {doing}", where=self.place) from late
        except OSError as broken:
            if isinstance(broken, WANTS_MORE):
                return 0
            raise self.lost(doing, broken) from broken
        if size == 0:
            raise self.lost(doing, self._unsent) from self._unsent
        self._end += size
        return size

    def held(self) -> tuple[bytearray, memoryview, int, int]:
        """The buffer, a view of it, and where in it the received bytes begin and end. Valid until `receive`."""
        return self._buffer, self._view, self._start, self._end

    def consume(self, upto: int) -> None:
        """The bytes before this place of the buffer were taken."""
        self._start = upto

    def lost(self, doing: str, cause: OSError | None = None) -> ServerUnreachable:
        """The error for a connection that broke off."""
        why = "the server closed the connection" if cause is None else str(cause.strerror or cause)
        return ServerUnreachable(f"the connection broke off while {doing}: {why}", where=self.place)

    def close(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError):  # the other side may be gone already, and then nothing is left to say
            self.socket.close()

    def _arm(self) -> None:
        if self._deadline is not None:
            self.socket.settimeout(self._left())

    def _left(self) -> float | None:
        if self._deadline is None:
            return None
        # a timeout of 0 would mean not to wait at all
        return max(0.001, self._deadline - time.monotonic())

    def _make_room(self) -> None:
        held, capacity = self._end - self._start, len(self._buffer)
        if held == 0:
            self._start = self._end = 0
            if capacity > self._size:
                self._move_to(bytearray(self._size))
            return
        length = self.pending()
        needed = HEAD.size if length is None else 1 + length
        if held == capacity:
            self._move_to(bytearray(max(min(2 * capacity, needed), capacity + _START_SIZE)))
        elif needed > capacity - self._start or capacity - self._end < capacity // 8:
            self._view[:held] = self._view[self._start : self._end]
            self._start, self._end = 0, held

    def _move_to(self, buffer: bytearray) -> None:
        held = self._end - self._start
        view = memoryview(buffer)
        view[:held] = self._view[self._start : self._end]
        self._buffer, self._view = buffer, view
        self._start, self._end = 0, held
