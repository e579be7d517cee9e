"""CSN order from an ordinary slot: transactions that arrive by commit LSN leave by CSN, and none is missing.

CSNs count every commit of the server, so a parallel stream that sends empty transactions too has no hole in them; but
now and then a CSN comes a few transactions late, because number and commit record are not made at one moment. A
transaction is therefore closed once every CSN up to its own has arrived. Counting starts behind `start`, which the
initial copy holds: transactions at or below it that still arrive are repeats. A hole that does not close in time is a
lost transaction: the policy is to stop, or to record it and go on; then its transaction, should it ever come, is an
error and never taken for a repeat.

Pure: transactions in, closed transactions out, the clock handed in.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any, Final, Literal, cast

from cdc_lake.decode.in_parts import InParts, dropped
from cdc_lake.decode.raw import Raw
from cdc_lake.errors import CsnMissing, CsnTwice, LateTransaction, NoOrderNumber
from cdc_lake.model.counting import counted
from cdc_lake.model.position import Lsn
from cdc_lake.model.transaction import Boundaries
from cdc_lake.pipeline.stream.order import Closed, Gap

STEP: Final = 1.0
"""Seconds that count at most between two looks at the clock: a longer pause is ours (bronze was busy), and what was not
read could not arrive."""
CROWD: Final = 1000
"""With this many transactions behind a hole (inversions were measured at a distance of at most 9) …"""
CROWD_BYTES: Final = 128 << 20
"""… of this size in all, nothing more is waited for: memory has an end."""

_NEVER: Final = 1 << 64  # above every CSN: what was never closed is never confirmed


class CsnOrder:
    """Closes transactions in CSN order (`pipeline.stream.order.Order`).

    `start` and `confirm` are bronze's markers, `empty` its count of empty transactions behind its last rows, `recorded`
    the gaps it passed over, which do not overlap. `bound`: seconds that a CSN may be late, counted from the moment its
    turn came, but not while one and the same transaction is being received. `clock` counts seconds.
    """

    def __init__(
        self,
        start: int,
        confirm: int,
        *,
        bound: float,
        policy: Literal["stop", "record"],
        clock: Callable[[], float],
        empty: int = 0,
        recorded: Iterable[Gap] = (),
    ) -> None:
        self._upto = start
        self._confirm = confirm
        self._bound = bound
        self._policy = policy
        self._clock = clock
        self._empty = empty
        # where bronze did not get past a gap, its transactions are still in time
        self._passed = sorted((gap.first, min(gap.last, start)) for gap in recorded if gap.first <= start)
        self._waiting: dict[int, Raw] = {}
        self._bytes = 0
        self._arrived: list[tuple[int, int]] = []  # heap of (confirm, csn) that the confirm position has not passed
        self._below: int | None = None  # commit LSN of the last transaction closed
        self._front = start  # the CSN whose turn it is, while something above it has arrived
        self._waited = self._looked = 0.0
        self._opened: frozenset[int] = frozenset()
        self.repeats = 0

    @property
    def waiting(self) -> int:
        """Transactions that arrived and wait for a CSN below theirs."""
        return len(self._waiting)

    def take(self, transaction: Raw) -> Sequence[Closed]:
        """See Order. Raises NoOrderNumber, CsnTwice, LateTransaction."""
        bounds = transaction.bounds
        csn = bounds.csn
        if csn is None:
            raise NoOrderNumber(f"the transaction that ends at {_lsn(bounds)} has no CSN")
        if csn <= self._upto:
            return self._again(transaction, csn)
        heappush(self._arrived, (bounds.confirm, csn))
        if (known := self._waiting.get(csn)) is not None:
            if (known.bounds, known.size) != (bounds, transaction.size):
                raise CsnTwice(f"two transactions have CSN {csn}: they end at {_lsn(known.bounds)} and {_lsn(bounds)}")
            self.repeats += 1
            dropped(transaction)
            return ()
        self._waiting[csn] = transaction
        self._bytes += _held(transaction)
        return self._run() if csn == self._upto + 1 else ()

    def tend(self, opened: Collection[int] = ()) -> Sequence[Closed]:
        """See Order. Raises CsnMissing where the policy is to stop."""
        beyond = [csn for csn in opened if csn > self._upto]
        front = self._upto + 1
        if front in beyond or not (beyond or self._waiting):
            self._front = self._upto
            return ()
        now = self._clock()
        if front != self._front:
            self._front, self._waited = front, 0.0
        elif self._opened.isdisjoint(opened):
            self._waited += min(now - self._looked, STEP)
        self._looked, self._opened = now, frozenset(opened)
        crowded = len(self._waiting) >= CROWD and self._bytes >= CROWD_BYTES
        if self._waited < self._bound and not crowded:
            return ()
        return self._pass_over(min([*self._waiting, *beyond]) - 1)

    def _run(self) -> Sequence[Closed]:
        """Close what has no hole before it."""
        steps = []
        while (transaction := self._waiting.pop(self._upto + 1, None)) is not None:
            self._upto += 1
            self._bytes -= _held(transaction)
            self._below = transaction.bounds.commit_lsn
            self._move_confirm()
            if transaction.count:
                numbered = _numbered(transaction, self._empty) if self._empty else transaction
                self._empty = 0
                steps.append(Closed(self._upto, self._confirm, numbered))
            else:
                self._empty += 1
                steps.append(Closed(self._upto, self._confirm, None, self._empty))
        return steps

    def _move_confirm(self) -> None:
        arrived = self._arrived
        while arrived and arrived[0][1] <= self._upto:
            self._confirm = max(self._confirm, heappop(arrived)[0])

    def _again(self, transaction: Raw, csn: int) -> Sequence[Closed]:
        """One that is closed already, or whose CSN was passed over."""
        at = bisect_right(self._passed, csn, key=itemgetter(0)) - 1
        if at >= 0 and csn <= self._passed[at][1] and transaction.count:
            heappush(self._arrived, (transaction.bounds.confirm, _NEVER))
            raise LateTransaction(
                f"CSN {csn} was recorded as a gap, and now its transaction came (it ends at {_lsn(transaction.bounds)})"
            )
        self.repeats += 1
        dropped(transaction)
        heappush(self._arrived, (transaction.bounds.confirm, csn))
        before = self._confirm
        self._move_confirm()
        return (Closed(self._upto, self._confirm, None, self._empty),) if self._confirm > before else ()

    def _pass_over(self, last: int) -> Sequence[Closed]:
        above = self._waiting.get(last + 1)
        gap = Gap(self._upto + 1, last, self._below, above.bounds.commit_lsn if above is not None else None)
        if self._policy == "stop":
            raise CsnMissing(f"{gap} did not arrive, {self._why()}{_between(gap)}")
        insort(self._passed, (gap.first, gap.last))
        self._upto = last
        self._move_confirm()
        return [Closed(last, self._confirm, None, self._empty, gap), *self._run()]

    def _why(self) -> str:
        behind = f"{counted(len(self._waiting), 'transaction')} behind"
        if self._waited >= self._bound:
            return f"waited for {self._bound:g} s with {behind}"
        return f"and there is no room for more than {behind} ({self._bytes >> 20} MiB)"


def _held(transaction: Raw) -> int:
    """Bytes in memory: a large one is on disk."""
    return 0 if isinstance(transaction, InParts) else transaction.size


def _numbered(transaction: Raw, empty: int) -> Raw:
    """The transaction with its count of empty ones before it: every format's is a dataclass."""
    bounds = dataclasses.replace(transaction.bounds, empty_before=empty)
    return cast("Raw", dataclasses.replace(cast("Any", transaction), bounds=bounds))


def _lsn(bounds: Boundaries) -> str:
    return "an unknown LSN" if bounds.commit_lsn is None else str(Lsn(bounds.commit_lsn))


def _between(gap: Gap) -> str:
    below = None if gap.below is None else f"after the transaction at LSN {Lsn(gap.below)}"
    above = None if gap.above is None else f"before the one at LSN {Lsn(gap.above)}"
    return "".join(f", {part}" for part in (below, above) if part)
