"""Rounds: something done now and then beside a loop, on a thread of its own and with a connection of its own.

What breaks is opened again a round later. What hangs keeps nobody waiting: the thread is left to itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

from cdc_lake.errors import CdcLakeError

Opened = TypeVar("Opened")
_GRACE: Final = 2.0  # seconds for a round under way to end


class Rounds(Generic[Opened]):
    """Makes rounds while it is entered: `each` with what `open_one` gave, every so many seconds.

    A CdcLakeError of either is given to `failed`; whoever else needs the source tells why.
    """

    def __init__(
        self,
        name: str,
        every: Callable[[], float],
        open_one: Callable[[], AbstractContextManager[Opened]],
        each: Callable[[Opened], None],
        failed: Callable[[CdcLakeError], None],
    ) -> None:
        self._every = every
        self._open = open_one
        self._each = each
        self._failed = failed
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_round, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(timeout=_GRACE)

    def _go_round(self) -> None:
        while not self._over.is_set():
            try:
                with self._open() as opened:
                    while not self._over.is_set():
                        self._each(opened)
                        self._over.wait(self._every())
            except CdcLakeError as error:
                self._failed(error)
                self._over.wait(self._every())
