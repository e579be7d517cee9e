"""Ctrl-C and SIGTERM: once asks for a clean stop, a second Ctrl-C stops now.

Both are safe: bronze and silver move by whole commits, and nothing is confirmed to the server before it is durable.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

FIRST = "stopping: the batch in flight is finished or dropped, nothing is lost; Ctrl-C again stops now"


class StopOnSignal:
    """While it is entered, signals set `event`. `by` is the signal that did, None where none came."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.event = threading.Event()
        self.by: signal.Signals | None = None
        self._tell = tell
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.event.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.by = self.by or signal.Signals(number)
        self.event.set()
        # A handler may run while the main thread holds the view's lock: speak from a thread of its own.
        threading.Thread(target=self._tell, args=(FIRST,), daemon=True).start()


def stop_when_input_ends(event: threading.Event) -> None:
    """Set `event` when standard input ends: the parent process that held its other end is gone."""

    def watch() -> None:
        # Not sys.stdin: a thread that waits inside it aborts the interpreter's end.
        while os.read(0, 4096):
            pass
        event.set()

    threading.Thread(target=watch, name="parent", daemon=True).start()
