"""Batches: which transactions go into one bronze commit.

Latency first when idle, size first under load: what arrives after a pause is due at once; while batches follow one
another each waits until `max_delay` after the one before it, or until it is full.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from cdc_lake.bronze.port import ClosedBatch
from cdc_lake.config.model import Batch
from cdc_lake.decode.in_parts import InParts
from cdc_lake.decode.raw import Raw, Tabulated
from cdc_lake.pipeline.stream.order import Closed


class OpenBatch:
    """Whole transactions waiting for a commit; closed by bytes, changes, transactions or age, whichever is first.

    `upto`, `confirm` and `empty` are what bronze's state will be once everything taken so far is in it: they move on
    with transactions without changes too, which need no commit of their own. `to_decode`: bytes of what was not handed
    over for decoding.
    """

    def __init__(self, limits: Batch, clock: Callable[[], float], upto: int, confirm: int) -> None:
        """`clock` counts seconds; `upto` and `confirm` are bronze's now."""
        self._limits = limits
        self._clock = clock
        self.upto, self.confirm, self.empty = upto, confirm, 0
        self._transactions: list[Raw] = []
        self._steps: list[tuple[int, int, int]] = []
        self._bytes = self._rows = 0
        self._handed, self.to_decode = 0, 0
        self._since = self._closed = -math.inf  # when its oldest transaction came, when the batch before it was closed

    def __len__(self) -> int:
        return len(self._transactions)

    def restrict(self, limits: Batch) -> None:
        """Close by these limits from now on."""
        self._limits = limits

    def add(self, closed: Closed) -> None:
        """Take one more step, in order."""
        self.upto = max(self.upto, closed.upto)
        self.confirm = max(self.confirm, closed.confirm)
        self.empty = closed.empty
        transaction = closed.transaction
        if transaction is None:
            return
        if not self._transactions:
            self._since = self._clock()
        self._transactions.append(transaction)
        self._steps.append((self.upto, self.confirm, self.empty))
        self._bytes += transaction.size
        self.to_decode += transaction.size
        self._rows += transaction.count

    @property
    def full(self) -> bool:
        """True where a limit of size is reached."""
        limits = self._limits
        return (
            self._bytes >= limits.max_bytes
            or self._rows >= limits.max_rows
            or len(self._transactions) >= limits.max_transactions
        )

    @property
    def due_in(self) -> float:
        """Seconds until it is to be closed, at most `max_delay` after its oldest transaction; not above zero: now."""
        return max(self._since, self._closed + self._limits.max_delay / 1000) - self._clock()

    def hand_over(self) -> Sequence[Raw]:
        """The transactions that were not handed over for decoding yet. Their bytes are held no longer, but for large
        ones, whose bytes are on disk.
        """
        handed = self._transactions[self._handed :]
        self._transactions[self._handed :] = [
            raw if isinstance(raw, InParts) else Tabulated(raw.bounds, raw.size, raw.count) for raw in handed
        ]
        self._handed, self.to_decode = len(self._transactions), 0
        return handed

    def take(self) -> ClosedBatch:
        """Close it: its transactions and markers, and it holds no transaction any more."""
        taken, self._transactions = self._transactions, []
        steps, self._steps = self._steps, []
        self._bytes = self._rows = self._handed = self.to_decode = 0
        self._closed = self._clock()
        return ClosedBatch(taken, self.upto, self.confirm, self.empty, steps)
