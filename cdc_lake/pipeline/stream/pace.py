"""Pace: how quickly the initial copy may go, so that it leaves the source room for its own work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_LOOK = 0.2  # seconds between looks at whether to give up


class Pace:
    """Holds a copy back to so many rows and bytes a second."""

    def __init__(
        self, rows: int | None = None, size: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """None: as quickly as it can."""
        self._limits = rows, size
        self._clock = clock
        self._due = 0.0

    def took(self, rows: int, size: int, stop: threading.Event) -> None:
        """A chunk was taken: wait until the next one may be, or until `stop` is set."""
        seconds = [took / limit for took, limit in zip((rows, size), self._limits, strict=True) if limit is not None]
        self._due = max(self._due, self._clock()) + max(seconds, default=0.0)
        while not stop.is_set() and (left := self._due - self._clock()) > 0:
            stop.wait(min(left, _LOOK))
