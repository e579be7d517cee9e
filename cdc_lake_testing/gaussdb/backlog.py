"""Decides which transactions a stream sends next, in the order of its slot.

A stream in LSN order sends a transaction (again) if its commit record starts at or after the slot's position, one in
CSN order if its CSN is greater. Parallel decoding of 3.0 differs: it sends only what starts strictly after, so that
confirming the end of a commit loses a transaction that starts right there.
"""

from __future__ import annotations

import bisect
import heapq
import time
from collections.abc import Callable
from typing import Final

from cdc_lake_testing.gaussdb.ledger import Ledger, LedgerTransaction
from cdc_lake_testing.gaussdb.slots import SlotOrder

_PATIENCE: Final = 0.5
"""Seconds a CSN-ordered stream waits for a CSN before it takes the next one: the ledger may have none of it."""


class Backlog:
    """Walks the ledger from a position on. `hold_back()` says how many of the newest transactions are kept back.

    `at_start`: a commit record that starts at the position counts.
    """

    def __init__(
        self, ledger: Ledger, position: int, order: SlotOrder, hold_back: Callable[[], int], *, at_start: bool
    ) -> None:
        self._ledger = ledger
        self._order = order
        self._hold_back = hold_back
        self._position = position
        self._early: list[tuple[int, int]] = []
        self._expected = position + 1
        self._since = time.monotonic()
        if order is SlotOrder.LSN:
            find = bisect.bisect_left if at_start else bisect.bisect_right
            self.index = find(range(len(ledger)), position, key=lambda i: ledger[i].commit_start)
        else:
            self.index = 0

    def next(self) -> tuple[int, LedgerTransaction] | None:
        """The next transaction with its index in the ledger; None where there is none now."""
        if self._order is SlotOrder.CSN:
            return self._next_by_csn()
        if self.index >= len(self._ledger) - self._hold_back():
            return None
        self.index += 1
        return self.index - 1, self._ledger[self.index - 1]

    def _next_by_csn(self) -> tuple[int, LedgerTransaction] | None:
        limit = len(self._ledger) - self._hold_back()
        while self.index < limit:
            transaction = self._ledger[self.index]
            if transaction.csn > self._position:
                heapq.heappush(self._early, (transaction.csn, self.index))
            self.index += 1
        if not self._early:
            self._since = time.monotonic()
            return None
        if self._early[0][0] != self._expected and time.monotonic() - self._since < _PATIENCE:
            return None
        csn, index = heapq.heappop(self._early)
        self._expected = csn + 1
        self._since = time.monotonic()
        return index, self._ledger[index]
