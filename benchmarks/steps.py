"""Where time goes: named functions are timed while a benchmark runs, each without what others of them take.

A thread's own processor time unless another clock is given, so threads that run at the same time do not count each
other's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self
from unittest import mock

Place = tuple[Any, str, str]
"""Whose attribute, its name, and what the step is called; several places may be one step."""


class Steps:
    """Times the functions at these places as a context manager; `seconds` by step adds up."""

    def __init__(self, places: Sequence[Place], clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self.seconds: dict[str, float] = {step: 0.0 for _, _, step in places}
        self._places = places
        self._inner = threading.local()
        self._lock = threading.Lock()
        self._patches = ExitStack()

    def __enter__(self) -> Self:
        for owner, name, step in self._places:
            self._patches.enter_context(mock.patch.object(owner, name, self._timed(getattr(owner, name), step)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patches.close()

    def _timed(self, function: Callable[..., Any], step: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            outside = getattr(self._inner, "seconds", 0.0)
            self._inner.seconds = 0.0
            before = self._clock()
            try:
                return function(*args, **kwargs)
            finally:
                took = self._clock() - before
                with self._lock:
                    self.seconds[step] += took - self._inner.seconds
                self._inner.seconds = outside + took

        return timed
