"""Gathering: reading a stream whose server flushes every message, without waking up for each.

Waking costs more than reading. So everything that is there is taken, and then there is a short pause until about
`_ENOUGH` bytes are, by the socket's low-water mark: TCP wakes us early once they are (SO_RCVLOWAT, tcp(7)).
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable

from cdc_lake.source.silence import Silence

Frames = list[tuple[int, bytes]]

DRAIN_BYTES = 1 << 20
"""One call of `poll` returns after about this much."""

_ENOUGH = 128 << 10  # bytes worth waking up for
_PAUSE = 0.003  # seconds: the longest pause
_PAUSES = 8


class Gathering:
    """Waits at a socket (by its descriptor, which stays the caller's) until there are frames."""

    def __init__(self, descriptor: int, clock: Callable[[], float], silence: Silence, ask: Callable[[], None]) -> None:
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
                self._silence.heard()
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
                self._silence.heard()

    def close(self) -> None:
        """Give the copy of the descriptor back."""
        self._socket.close()

    def _listen(self) -> None:
        """After a long silence: look whether it has ended while nobody read, or else have the server asked."""
        if not self._silence.long:
            return
        self._set(1)
        if self._poller.poll(0):
            self._silence.heard()
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
