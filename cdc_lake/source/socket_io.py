"""Reads a replication stream from a socket with few wake-ups, detects lost peers, and can be interrupted by threads.

Waking up costs more than reading, and the server flushes every message. So everything available is read, followed by a
short pause until about `_ENOUGH` bytes have arrived, by the socket's low-water mark: TCP wakes us early once they are
available (SO_RCVLOWAT, tcp(7)).

TCP reports a silently lost peer late or, if something in between still acknowledges, never. So a stream's server that
has sent nothing for half of the timeout is asked for a reply, and given up if none arrives in the other half. The
answer to a statement may take any time, so there only TCP checks, after the same time, whether the peer's machine is
still reachable (`probes`).
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
"""Seconds, PostgreSQL's default `wal_receiver_timeout`."""
_TCP_TAKES = 2 * 32_767.0
"""Seconds: Linux waits at most half of it before a probe (MAX_TCP_KEEPIDLE)."""


def probes(longest: float) -> Mapping[str, int]:
    """TCP keepalive options, by their names (tcp(7)): in seconds, the last one in milliseconds. The first probe is sent
    after half of `longest`; after `longest` the peer is given up, also one that owes an acknowledgement. TCP limits it
    to some hours.
    """
    longest = min(longest, _TCP_TAKES)
    return {
        "TCP_KEEPIDLE": max(1, round(longest / 2)),
        "TCP_KEEPINTVL": max(1, round(longest / 6)),
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": round(1000 * longest),
    }


def of_postgres(asked: float, sender_timeout: float) -> float:
    """How long a PostgreSQL server may be silent if the pipeline file says `asked`; all in seconds.

    A server busy with changes it does not send answers only after half of its own timeout.
    """
    return max(asked, 1.5 * sender_timeout)


class IdleTimeout:
    """How long a server has been silent, by what was read from it; `longest` in seconds."""

    def __init__(self, longest: float, clock: Callable[[], float]) -> None:
        self._half = longest / 2
        self._clock = clock
        self._since = clock()
        self._asked: float | None = None

    @property
    def long(self) -> bool:
        """Whether it has been silent long enough to call `to_ask`, if nothing can be read."""
        return self._clock() - self._since >= self._half

    def record_activity(self) -> None:
        """Record that the server sent something."""
        self._since = self._clock()
        self._asked = None

    def to_ask(self) -> bool:
        """If nothing can be read: True once, to ask the server. Raises ServerUnreachable if it did not answer."""
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
        """`ask` makes the server send a reply, when `silence` requires it."""
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

        `take` appends available frames, up to about so many bytes, and returns their size; `due` does periodic work and
        returns the seconds until its next call. Raises ServerUnreachable if nothing has arrived for too long.
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
            self._set(1)  # from here on any byte wakes us
            if self._poller.poll(max(0.0, min(wait, left)) * 1000):
                self._silence.record_activity()

    def close(self) -> None:
        """Close the copy of the descriptor."""
        self._socket.close()

    def _listen(self) -> None:
        """After a long silence: check whether it ended while nobody read; otherwise ask the server."""
        if not self._silence.long:
            return
        self._set(1)
        if self._poller.poll(0):
            self._silence.record_activity()
        elif self._silence.to_ask():
            self._ask()

    def _pause(self) -> None:
        if not self._tcp:  # poll(2) of a Unix socket ignores the mark
            time.sleep(_PAUSE / 2)
            return
        self._set(_ENOUGH)
        self._poller.poll(_PAUSE * 1000)

    def _set(self, mark: int) -> None:
        if self._tcp and mark != self._mark:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark)
            self._mark = mark


class ReplicationStream:
    """What the streams of both families share (`source.base.FrameSource`): positions, and when a status is due."""

    def __init__(self, start: int, status_interval: float, clock: Callable[[], float]) -> None:
        self.keepalive_end = start
        self._confirmed = self._received = start
        self._interval = status_interval
        self._clock = clock
        self._asked = False
        self._status_sent_at = clock()

    def _read_from(self, descriptor: int, silence: float) -> None:
        """Prepare reading from a started stream; `silence`: see `IdleTimeout`."""
        self._silence = IdleTimeout(silence, self._clock)
        self._gathering = BatchingReader(descriptor, self._clock, self._silence, lambda: self._send_status(ping=True))

    @property
    def reply_requested(self) -> bool:
        """True once after the server asked for a reply; reading it clears it."""
        asked, self._asked = self._asked, False
        return asked

    def confirm(self, position: int) -> None:
        """Everything up to the slot position `position` is durable: tell the server so now. It ignores 0, and a slot
        never moves backwards.
        """
        self._confirmed = max(self._confirmed, position)
        self._send_status()

    def tick(self, *, ping: bool = False) -> None:
        """Send the status if it is due, without reading; with `ping`, now, and ask for a keepalive."""
        if ping or self._clock() - self._status_sent_at >= self._interval:
            self._send_status(ping=ping)

    def _due(self) -> float:
        """Send the status if it is due; returns the seconds until the next one."""
        self.tick()
        return self._status_sent_at + self._interval - self._clock()

    def _send_status(self, *, ping: bool = False) -> None:
        raise NotImplementedError


Opened = Callable[[int], object]
"""Called with the descriptor of a newly opened connection."""


def ignore_open(descriptor: int) -> None:
    """Does nothing: the connection need not be interruptible."""


class ConnectionRegistry:
    """Connections that any thread can end all at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._copies: list[socket.socket] = []
        self._over = False

    def add(self, descriptor: int) -> None:
        """Add a connection by its descriptor, which stays the caller's; after `end` it is ended at once."""
        copy = socket.socket(fileno=os.dup(descriptor))
        with self._lock:
            self._copies.append(copy)
            if self._over:
                _end(copy)

    def end(self) -> None:
        """End all connections, existing and future ones."""
        with self._lock:
            self._over = True
            for connection in self._copies:
                _end(connection)

    def forget(self) -> None:
        """Close the copies of the descriptors of connections that are not used any more."""
        with self._lock:
            for connection in self._copies:
                connection.close()
            self._copies.clear()


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is closed already
        connection.shutdown(socket.SHUT_RDWR)
