"""Runs a loop in a thread next to a test, and waits for its effects and events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from cdc_lake.observability.events import ProgressEvent

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


def until(condition: Callable[[], Value], what: str = "it did not happen in time", seconds: float = 240) -> Value:
    """Wait until something is true, and return it. Raises AssertionError, which says `what` did not come."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(what)
        time.sleep(0.02)
    return found


def streams(told: Iterable[ProgressEvent]) -> int:
    """How many times the receiver has begun to stream, by what it told."""
    return sum(one.stage == "connect" and "streams" in one.text for one in told)
