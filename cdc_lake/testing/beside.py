"""A loop that runs beside a test in a thread, and waiting for what it does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Value = TypeVar("Value")


@contextmanager
def beside(loop: Callable[[threading.Event], Value]) -> Iterator[Future[Value]]:
    """Run `loop` until the block ends, which sets the event it is given; what it raises is raised then."""
    stop = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(loop, stop)
        try:
            yield running
        finally:
            stop.set()
    running.result()


def until(condition: Callable[[], Value], what: str = "it did not happen in time", seconds: float = 120) -> Value:
    """Wait until something is true, and return it. Raises AssertionError, which says `what` did not come."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(what)
        time.sleep(0.02)
    return found
