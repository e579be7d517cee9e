"""Reading a replication stream from a socket: few wake-ups, lost peers noticed, waits that another thread can end.

Waking costs more than reading, and the server flushes every message. So everything that is there is taken, and then
there is a short pause until about `_ENOUGH` bytes are, by the socket's low-water mark: TCP wakes us early once they
are (SO_RCVLOWAT, tcp(7)).

TCP tells late of a peer that has gone without a word or, if somebody in between still acknowledges, never. So the
server of a stream that has said nothing for half of a time is asked for a sign, and given up if none has come in the
other half. The answer to a statement may take any time, so there only TCP is asked, after the same time: whether the
machine on the other side is still there (`probes`).
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping

from cdc_lake.errors import ServerUnreachable

LONGEST = 60.0
"""Seconds, as `wal_receiver_timeout` of PostgreSQL has them."""
_TCP_TAKES = 2 * 32_767.0
"""Seconds: Linux waits at most half of it before a probe (MAX_TCP_KEEPIDLE)."""


def probes(longest: float) -> Mapping[str, int]:
    """How TCP looks whether a peer that says nothing is there, as it calls them (tcp(7)): seconds, the last one
    milliseconds. The first probe is sent after half of the time; when it is over, the peer is given up, also one that
    owes an acknowledgement. TCP takes no more than some hours.
    """
    longest = min(longest, _TCP_TAKES)
    return {
        "TCP_KEEPIDLE": max(1, round(longest / 2)),
        "TCP_KEEPINTVL": max(1, round(longest / 6)),
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": round(1000 * longest),
    }


def of_postgres(asked: float, sender_timeout: float) -> float:
    """How long a PostgreSQL may be silent, where the pipeline says `asked`; all in seconds.

    One that is busy with what it does not send answers as late as half of its own time-out.
    """
    return max(asked, 1.5 * sender_timeout)


class IdleTimeout:
    """How long a server has been silent, by what was read of it; `longest` in seconds."""

    def __init__(self, longest: float, clock: Callable[[], float]) -> None:
        self._half = longest / 2
        self._clock = clock
        self._since = clock()
        self._asked: float | None = None

    @property
    def long(self) -> bool:
        """Whether it lasts so long that `to_ask` has something to say, if nothing is there to be read."""
        return self._clock() - self._since >= self._half

    def record_activity(self) -> None:
        """The server sent something, however little."""
        self._since = self._clock()
        self._asked = None

    def to_ask(self) -> bool:
        """Nothing is there: True once, if the server is to be asked. Raises ServerUnreachable if it did not answer."""
        now = self._clock()
        if self._asked is None:
            self._asked = now
            return True
        if now - self._asked >= self._half:
            text = f"the server has sent nothing for {now - self._since:.0f} s, not even the requested reply"
            raise ServerUnreachable(text)
        return False


Frames = list[tuple[int, bytes]]

DRAIN_BYTES = 1 << 20
"""One call of `poll` returns after about this much."""

_ENOUGH = 128 << 10  # bytes worth waking up for
_PAUSE = 0.003  # seconds: the longest pause
_PAUSES = 8


class BatchingReader:
    """Waits at a socket (by its descriptor, which stays the caller's) until there are frames."""

    def __init__(
        self, descriptor: int, clock: Callable[[], float], silence: IdleTimeout, ask: Callable[[], None]
    ) -> None:
        """`ask` has the server send a sign of itself, which is asked for where `silence` says so."""
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._tcp = self._socket.family != socket.AF_UNIX
        self._clock = clock
        self._silence = silence
        self._ask = ask
        self._mark = 1
        self._poller = select.poll()
        self._poller.register(self._socket, select.POLLIN)

    def poll(self, timeout: float, take: Callable[[Frames, int], int], due: Callable[[], float]) -> Frames:
        """Frames, waiting up to `timeout` seconds for the first.

        `take` appends what is there to the frames, up to about that many bytes, and returns their size; `due` does
        what is due by the clock and returns the seconds until it wants to be called again. Raises ServerUnreachable
        where nothing is there, and has not been for too long.
        """
        frames: Frames = []
        deadline = self._clock() + timeout
        size = pauses = 0
        self._listen()
        while True:
            size, before = size + take(frames, DRAIN_BYTES - size), size
            left = due()
            if size >= DRAIN_BYTES or pauses == _PAUSES or (frames and size == before):
                self._silence.record_activity()
                return frames
            if frames:
                pauses += 1
                self._pause()
                continue
            wait = deadline - self._clock()
            if wait <= 0:
                return frames
            self._set(1)  # from here on any byte wakes
            if self._poller.poll(max(0.0, min(wait, left)) * 1000):
                self._silence.record_activity()

    def close(self) -> None:
        """Give the copy of the descriptor back."""
        self._socket.close()

    def _listen(self) -> None:
        """After a long silence: look whether it has ended while nobody read, or else have the server asked."""
        if not self._silence.long:
            return
        self._set(1)
        if self._poller.poll(0):
            self._silence.record_activity()
        elif self._silence.to_ask():
            self._ask()

    def _pause(self) -> None:
        if not self._tcp:  # poll(2) of a Unix socket does not look at the mark
            time.sleep(_PAUSE / 2)
            return
        self._set(_ENOUGH)
        self._poller.poll(_PAUSE * 1000)

    def _set(self, mark: int) -> None:
        if self._tcp and mark != self._mark:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark)
            self._mark = mark


Opened = Callable[[int], object]
"""Is told of a connection that was opened, by its descriptor."""


def ignore_open(descriptor: int) -> None:
    """Nobody wants to end it."""


class ConnectionRegistry:
    """Connections that can be ended all at once, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._copies: list[socket.socket] = []
        self._over = False

    def add(self, descriptor: int) -> None:
        """A connection by its descriptor, which stays the caller's; behind `end` it is ended at once."""
        copy = socket.socket(fileno=os.dup(descriptor))
        with self._lock:
            self._copies.append(copy)
            if self._over:
                _end(copy)

    def end(self) -> None:
        """End all there are, and all that come."""
        with self._lock:
            self._over = True
            for connection in self._copies:
                _end(connection)

    def forget(self) -> None:
        """Nobody uses those there are any more: give the copies of their descriptors back."""
        with self._lock:
            for connection in self._copies:
                connection.close()
            self._copies.clear()


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is over already
        connection.shutdown(socket.SHUT_RDWR)
