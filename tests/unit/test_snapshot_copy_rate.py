"""A copy that is held back goes as quickly as it may, and no quicker; it gives up when it is told to."""

from __future__ import annotations

import threading

from cdc_lake.config.model import Snapshot
from cdc_lake.connectors.snapshot_copy import RateLimiter, chunk_rows


class Clock(threading.Event):
    """Time that passes only while somebody waits."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now += timeout
        return False


def test_whichever_limit_is_reached_first_holds_it_back() -> None:
    clock = Clock()
    pace = RateLimiter(rows=100, size=1_000, clock=clock)
    pace.took(50, 200, clock)
    assert round(clock.now, 6) == 100.5
    pace.took(50, 3_000, clock)
    assert round(clock.now, 6) == 103.5


def test_time_that_passed_otherwise_counts_only_once() -> None:
    clock = Clock()
    pace = RateLimiter(rows=100, clock=clock)
    pace.took(100, 0, clock)
    clock.now += 60
    pace.took(100, 0, clock)
    assert round(clock.now, 6) == 162


def test_without_limits_nothing_waits_and_stopping_ends_the_wait() -> None:
    clock, stop = Clock(), threading.Event()
    RateLimiter(clock=clock).took(1_000_000, 1 << 30, clock)
    assert clock.now == 100.0
    stop.set()
    RateLimiter(rows=1).took(1_000, 0, stop)


def test_chunks_of_a_copy_that_is_held_back_are_of_a_second() -> None:
    assert chunk_rows(Snapshot()) == 100_000
    assert chunk_rows(Snapshot(max_rows_per_second=500)) == 500
    assert chunk_rows(Snapshot(chunk_rows=10, max_rows_per_second=500)) == 10
