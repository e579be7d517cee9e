"""The order in which a connection's transactions go on to bronze.

An order takes transactions as they arrive and closes them one by one: everything up to a closed one's position has
arrived. Here is what all orders have in common, and the one that closes each transaction as it comes; transactions of
an ordinary slot are put into CSN order by `pipeline.gaussdb.csn_order`. Pure: the clock is handed in.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from cdc_lake.decode.in_parts import dropped
from cdc_lake.decode.raw import Raw


@dataclass(frozen=True, slots=True)
class Gap:
    """CSNs `first` to `last`, which did not arrive in time and were passed over.

    `below` and `above` are the commit LSNs of the transactions next to them, None where not known.
    """

    first: int
    last: int
    below: int | None = None
    above: int | None = None

    def __str__(self) -> str:
        return f"CSN {self.first}" if self.first == self.last else f"CSNs {self.first} to {self.last}"


@dataclass(frozen=True, slots=True)
class Closed:
    """One step on. Every transaction up to the position `upto` has arrived and is closed with this step or before.

    `confirm` is the slot position that may be confirmed once they are durable: every transaction that arrived with a
    confirm at or below it is closed. `transaction` is the one at `upto` where it has changes; without, there is nothing
    to land at this step. `empty` counts transactions without changes behind the last one that has; `gap` is what was
    passed over to get here, to be recorded before anything above it is landed.
    """

    upto: int
    confirm: int
    transaction: Raw | None
    empty: int = 0
    gap: Gap | None = None


class Order(Protocol):
    """Closes transactions by ascending position. One instance a connection: a new one starts from bronze's state."""

    @property
    def repeats(self) -> int:
        """Transactions dropped because they were closed before."""
        ...

    @property
    def waiting(self) -> int:
        """Transactions that arrived and are not closed yet."""
        ...

    def take(self, transaction: Raw) -> Sequence[Closed]:
        """Take the next committed transaction, also one without changes; what can be closed now. Raises StateError."""
        ...

    def tend(self, opened: Collection[int] = ()) -> Sequence[Closed]:
        """Look at the clock, after each reading of the stream; what is closed by passing over a gap. Raises CsnMissing.

        `opened`: CSNs whose BEGIN came and whose COMMIT did not.
        """
        ...


class ArrivalOrder:
    """As they come: the lsn domain, and CSN-ordered slots, whose server sends in that order and leaves numbers out.

    Repeats are left to bronze, which drops and counts them; but transactions with a CSN at or below `seen` are in the
    initial copy, wherever they stand in the log, and are dropped here.
    """

    waiting = 0

    def __init__(self, seen: int | None = None) -> None:
        self._seen = -1 if seen is None else seen
        self.repeats = 0

    def take(self, transaction: Raw) -> Sequence[Closed]:
        """See Order."""
        bounds = transaction.bounds
        landed = transaction.count > 0
        if landed and bounds.csn is not None and bounds.csn <= self._seen:
            self.repeats += 1
            landed = False
            dropped(transaction)
        return (Closed(bounds.position, bounds.confirm, transaction if landed else None),)

    def tend(self, opened: Collection[int] = ()) -> Sequence[Closed]:  # noqa: ARG002 - part of the port
        """See Order: nothing is ever waited for."""
        return ()
