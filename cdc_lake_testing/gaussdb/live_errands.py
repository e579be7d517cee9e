"""Requests of other threads to the reader's thread, which executes them between two reads while they wait."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

import psycopg

from cdc_lake_testing.gaussdb.live_order import SnapshotPassed

T = TypeVar("T")


class Errands:
    """Errands of one reader; whoever asks gets the errors of the database and of the order that it met."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    @property
    def none(self) -> bool:
        """Whether nothing is waiting."""
        return self._waiting.empty()

    def ask(self, errand: Callable[[], T], reading: Callable[[], None]) -> T:
        """Have it done, and wait; `reading` raises where nobody will do it any more."""
        done, found, failed = threading.Event(), list[T](), list[Exception]()

        def do() -> None:
            try:
                found.append(errand())
            except (psycopg.Error, SnapshotPassed, RuntimeError, OSError) as failure:
                failed.append(failure)
            done.set()

        self._waiting.put(do)
        while not done.wait(0.2):
            reading()
        if failed:
            raise failed[0]
        return found[0]

    def run(self) -> None:
        """Do what is waiting."""
        while not self._waiting.empty():
            self._waiting.get()()
