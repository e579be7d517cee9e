"""The ledger: every transaction that the test server has committed, in the order of its WAL.

An append-only, thread-safe list that survives connections and restarts. Transactions are ordered by the end of their
commit record, as in a WAL; their CSNs are dense and may be inverted against that order, as on the real servers. LSNs
and sizes are bytes, times µs since 1970 UTC.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from cdc_lake.decode.gaussdb.records import Ddl, Row, Truncated

LedgerChange: TypeAlias = Row | Truncated | Ddl
"""A change; its values are output text, and its fields carry both `type_name` and `type_oid`."""

COMMIT_RECORD = 0x60
"""Bytes from the start of a commit record to its end, as seen in the recordings."""

ROW_RECORD = 0x58
"""Bytes a row takes in the log where nobody says how many."""

ALIGNMENT = 8
"""Records begin at multiples of this (MAXALIGN)."""


@dataclass(frozen=True, slots=True)
class LedgerTransaction:
    """One committed transaction; `first_lsn` is its first record's, `commit_start` that of an empty one.

    A `Ddl` or `Truncated` among the changes is a change of the catalog: what each version and mode prints of it and
    of the rows behind it is the server's business. Rows must have their LSNs.
    """

    csn: int
    xid: int
    first_lsn: int
    commit_start: int
    commit_end: int
    time_us: int
    changes: tuple[LedgerChange, ...] = ()
    database: str = "postgres"
    origin_id: int | None = None
    user: str | None = None


class Ledger:
    """Committed transactions, and the end of the log. Raises ValueError where one does not fit behind the others."""

    def __init__(self, *, start: int = 0x2000000, first_csn: int = 2000, first_xid: int = 14000) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._transactions: list[LedgerTransaction] = []
        self._end = start
        self._next_csn = first_csn
        self._next_xid = first_xid
        self._allotted: set[int] = set()

    def copy(self) -> Ledger:
        """The log as a standby has it that received everything up to now; it goes on by itself."""
        with self._changed:
            other = Ledger(start=self._end, first_csn=self._next_csn, first_xid=self._next_xid)
            other._transactions = list(self._transactions)
            return other

    def __len__(self) -> int:
        return len(self._transactions)

    def __getitem__(self, index: int) -> LedgerTransaction:
        return self._transactions[index]

    @property
    def end_lsn(self) -> int:
        """The end of the log: nothing was written at or above it."""
        with self._changed:
            return self._end

    @property
    def next_csn(self) -> int:
        """One more than the highest CSN handed out."""
        with self._changed:
            return self._next_csn

    def reach(self, lsn: int) -> None:
        """The log goes up to `lsn` at least, although no transaction says so."""
        with self._changed:
            self._end = max(self._end, lsn)

    def allot(self, size: int = ROW_RECORD) -> int:
        """Write a record of `size` bytes: its LSN. Records of running transactions may so be interleaved."""
        with self._changed:
            lsn = self._end
            self._end += -(-size // ALIGNMENT) * ALIGNMENT
            return lsn

    def allot_xid(self) -> int:
        """The next transaction id."""
        with self._changed:
            self._next_xid += 1
            return self._next_xid - 1

    def allot_csn(self) -> int:
        """The next CSN; who allots it commits it, in whatever order."""
        with self._changed:
            self._next_csn += 1
            self._allotted.add(self._next_csn - 1)
            return self._next_csn - 1

    def append(self, transaction: LedgerTransaction) -> int:
        """Add a transaction whose numbers are already given; returns its index."""
        with self._changed:
            if self._transactions and transaction.commit_end <= self._transactions[-1].commit_end:
                msg = (
                    f"a commit that ends at {transaction.commit_end} stands behind {self._transactions[-1].commit_end}"
                )
                raise ValueError(msg)
            if not transaction.commit_start < transaction.commit_end:
                msg = f"a commit record from {transaction.commit_start} to {transaction.commit_end} is none"
                raise ValueError(msg)
            self._transactions.append(transaction)
            self._allotted.discard(transaction.csn)
            self._end = max(self._end, transaction.commit_end)
            self._next_csn = max(self._next_csn, transaction.csn + 1)
            self._next_xid = max(self._next_xid, transaction.xid + 1)
            self._changed.notify_all()
            return len(self._transactions) - 1

    def commit(
        self,
        changes: Sequence[LedgerChange] = (),
        *,
        database: str = "postgres",
        csn: int | None = None,
        xid: int | None = None,
        time_us: int | None = None,
        origin_id: int | None = None,
        user: str | None = None,
    ) -> LedgerTransaction:
        """Write the changes that have no LSN, then the commit record, and append the transaction."""
        with self._changed:
            written = tuple(replace(c, lsn=self.allot()) if c.lsn is None else c for c in changes)
            commit_start = self.allot(COMMIT_RECORD)
            transaction = LedgerTransaction(
                csn=self.allot_csn() if csn is None else csn,
                xid=self.allot_xid() if xid is None else xid,
                first_lsn=min((c.lsn for c in written if c.lsn is not None), default=commit_start),
                commit_start=commit_start,
                commit_end=commit_start + COMMIT_RECORD,
                time_us=time.time_ns() // 1000 if time_us is None else time_us,
                changes=written,
                database=database,
                origin_id=origin_id,
                user=user,
            )
            self.append(transaction)
            return transaction

    def snapshot(self, patience: float = 10.0) -> tuple[int, int]:
        """The CSN of a snapshot taken now, and the end of the log: waits for lower CSNs that are still to be committed.

        What is below the CSN is in the ledger then, and what is not lies behind that end. Raises TimeoutError.
        """
        with self._changed:
            csn, end = self._next_csn, self._end
            if not self._changed.wait_for(lambda: all(held >= csn for held in self._allotted), patience):
                msg = f"CSN {min(self._allotted)} was allotted and not committed within {patience:g} s"
                raise TimeoutError(msg)
            return csn, end

    def through(self, index: int) -> int:
        """The LSN up to which every commit stands before `index`: the end of the log where nothing stands behind."""
        with self._changed:
            return self._end if index >= len(self._transactions) else self._transactions[index].commit_start

    def since(self, index: int) -> list[LedgerTransaction]:
        """The transactions from `index` on."""
        with self._changed:
            return self._transactions[index:]

    def wait(self, index: int, timeout: float) -> bool:
        """Wait up to `timeout` seconds for a transaction at `index`; False where none came."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._transactions) > index, timeout)

    def wake(self) -> None:
        """Let waiting threads look again."""
        with self._changed:
            self._changed.notify_all()
