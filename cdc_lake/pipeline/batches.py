"""Batches: which transactions go into one bronze commit."""

from __future__ import annotations

from collections.abc import Callable

from cdc_lake.config.model import Batch
from cdc_lake.decode.raw import RawTransaction


class OpenBatch:
    """Whole transactions waiting for a commit; closed by bytes, changes, transactions or age, whichever is first."""

    def __init__(self, limits: Batch, clock: Callable[[], float]) -> None:
        """`clock` counts seconds."""
        self._limits = limits
        self._clock = clock
        self._transactions: list[RawTransaction] = []
        self._bytes = self._rows = 0
        self._since = 0.0

    def __len__(self) -> int:
        return len(self._transactions)

    def add(self, transaction: RawTransaction) -> None:
        """Take one more transaction, in commit order."""
        if not self._transactions:
            self._since = self._clock()
        self._transactions.append(transaction)
        self._bytes += transaction.size
        self._rows += len(transaction.frames)

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
        """Seconds until its oldest transaction has waited long enough; not above zero: now."""
        return self._since + self._limits.max_delay / 1000 - self._clock()

    def take(self) -> list[RawTransaction]:
        """Close it: its transactions, and it is empty again."""
        taken, self._transactions = self._transactions, []
        self._bytes = self._rows = 0
        return taken
