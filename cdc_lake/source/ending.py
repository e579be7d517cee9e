"""Connections of one thread that another one ends: who waits at one for an answer finds it broken, and goes on."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable

Opened = Callable[[int], object]
"""Is told of a connection that was opened, by its descriptor."""


def nobody(descriptor: int) -> None:
    """Nobody wants to end it."""


class Ending:
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
            for one in self._copies:
                _end(one)

    def forget(self) -> None:
        """Nobody uses those there are any more: give the copies of their descriptors back."""
        with self._lock:
            for one in self._copies:
                one.close()
            self._copies.clear()


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is over already
        one.shutdown(socket.SHUT_RDWR)
