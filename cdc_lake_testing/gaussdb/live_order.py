"""Assigns a CSN to each transaction of a live PostgreSQL.

A server assigns CSNs when a transaction becomes visible, shortly after its commit record was written: so CSNs are
dense, and sometimes inverted against the WAL. Here a transaction gets its number only when it is seen to be visible: a
later snapshot then shows everything with a number, and transactions that it shows without one can still get a lower
number. The ledger gets transactions in WAL order, each when all before it have their number.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake_testing.gaussdb.live_rows import Told

WINDOW: Final = 10
"""Inversions stay within so many transactions: the widest distance recorded from a server is 9."""
_REMEMBERED: Final = 100_000
EMPTY: Final = 2
"""Bytes of a transaction of our own making, which the log has no record of: enough that the one behind it begins above
its start plus 1, which is what is confirmed of it where frames name the start."""
ALIGNED: Final = 8
"""Records begin at multiples of it, and none is shorter than three."""


@dataclass(slots=True)
class Waiting:
    """A committed transaction that is not in the ledger yet; `csn` is None until it is numbered.

    `xid` is None for a transaction of another database: nothing of it is known but that it was.
    """

    told: Told
    xid: int | None
    first_lsn: int
    commit_lsn: int
    end_lsn: int
    commit_ts: int
    csn: int | None = None
    raw: BufferedTransaction | None = None


class Places:
    """Where transactions stand: each begins at the end of all before it or behind that, as in a log, and so behind what
    is confirmed of them.

    Those of our own making take the first bytes behind a record, and a commit record that is there is told to begin
    behind them. There is room for three: a place that is known of the log stays below any other that may become known.
    """

    def __init__(self, end: int) -> None:
        """`end`: where the log begins to be read; then, how far it was read and told."""
        self.end = end

    def reach(self, end: int) -> None:
        """Everything before `end` was read."""
        self.end = max(self.end, end)

    def recorded(self, start: int, end: int) -> int:
        """The start to tell of a commit record that the log has from `start` to `end`."""
        told, self.end = max(start, self.end), end
        assert told < end, "records come in their order"
        return told

    def own(self) -> int | None:
        """The start of the next one of our own making; None where there is no room before the log goes on."""
        start = self.end
        if start % ALIGNED + EMPTY >= ALIGNED:
            return None
        self.end += EMPTY
        return start


class SnapshotPassed(Exception):
    """A transaction that a snapshot does not show has a number already: the snapshot is older than it should be."""


class LiveOrder:
    """Numbers transactions densely from `first_csn` on; `inversions` is the share of neighbours exchanged."""

    def __init__(self, first_csn: int, *, inversions: float = 0.0, seed: int = 0) -> None:
        self.next_csn = first_csn
        self._skipped: deque[int] = deque()
        self._inversions = inversions
        self._random = random.Random(seed)
        self._waiting: deque[Waiting] = deque()
        self._numbered: deque[int] = deque(maxlen=_REMEMBERED)

    def resume(self, given: Collection[int]) -> None:
        """Go on after these numbers; those that were lost between them are given first."""
        if given:
            first, self.next_csn = self.next_csn, max(given) + 1
            self._skipped.extend(sorted(set(range(first, self.next_csn)).difference(given)))

    def add(self, transaction: Waiting) -> None:
        """Take the next transaction of the log."""
        self._waiting.append(transaction)

    @property
    def unnumbered(self) -> int:
        """How many transactions wait for a number."""
        return sum(waiting.csn is None for waiting in self._waiting)

    def number(self, shows: Callable[[int], bool], *, whole: bool = False) -> int:
        """Number what a snapshot shows; returns the next CSN: the snapshot shows exactly what is below it.

        `shows` says of a transaction id whether it is visible. The snapshot must be newer than all before; where that
        is not sure, ask `check` first. Without `whole`, a last block may wait for more to be exchanged with.
        """
        seen = [w for w in self._waiting if w.csn is None and (w.xid is None or shows(w.xid))]
        if self._inversions and not whole:
            del seen[len(seen) - len(seen) % WINDOW :]
        for start in range(0, len(seen), WINDOW):
            for waiting in self._shuffled(seen[start : start + WINDOW]):
                waiting.csn = self._next()
                if waiting.xid is not None:
                    self._numbered.append(waiting.xid)
        return self.next_csn

    def _next(self) -> int:
        if self._skipped:
            return self._skipped.popleft()
        self.next_csn += 1
        return self.next_csn - 1

    def check(self, shows: Callable[[int], bool]) -> None:
        """Raise SnapshotPassed where a snapshot does not show everything that has a number."""
        if not all(map(shows, self._numbered)):
            raise SnapshotPassed

    def first_unseen(self) -> int | None:
        """Where the commit record of the first transaction without a number starts."""
        return next((w.commit_lsn for w in self._waiting if w.csn is None), None)

    def last_seen(self) -> int | None:
        """Where the commit record of the last waiting transaction with a number starts."""
        return max((w.commit_lsn for w in self._waiting if w.csn is not None), default=None)

    def ready(self) -> Iterator[Waiting]:
        """Take out the transactions that can go into the ledger, in the order of the log."""
        while self._waiting and self._waiting[0].csn is not None:
            yield self._waiting.popleft()

    def _shuffled(self, block: list[Waiting]) -> list[Waiting]:
        """Exchange neighbours that may be told either way, some of them, again and again."""
        if not self._inversions:
            return block
        for _ in range(len(block)):
            for at in range(len(block) - 1):
                one, other = block[at], block[at + 1]
                if self._random.random() < self._inversions and not one.told.excludes(other.told):
                    block[at], block[at + 1] = other, one
        return block
