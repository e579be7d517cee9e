"""Visible: the predicate that says which transactions a source snapshot shows.

`pg_current_snapshot()` prints `xmin:xmax:xip,…` in 64-bit transaction ids (PostgreSQL docs, "Transaction ID and
Snapshot Information"): visible is what is below xmin, or below xmax and not in the list. The stream carries the lower
32 bits; the id meant is the one nearest to xmax, because a server never has ids of more than 2^31 apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import TableName
from cdc_lake.source.connection import Session, named
from cdc_lake.source.quoting import quoted

_HALF, _WHOLE = 1 << 31, 1 << 32


@dataclass(frozen=True, slots=True)
class Visible:
    """A snapshot as a predicate, and a position that no transaction it shows lies above."""

    xmin: int
    xmax: int
    in_progress: frozenset[int]
    position: int

    @classmethod
    def parse(cls, snapshot: str, position: int) -> Visible:
        """Read the server's text; raises ValueError where it is none."""
        xmin, xmax, running = snapshot.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(x) for x in running.split(",") if x), position)

    def shows(self, xid: int) -> bool:
        """Whether the snapshot shows a committed transaction, by its id as the stream gives it."""
        whole = self.whole(xid)
        return whole < self.xmin or (whole < self.xmax and whole not in self.in_progress)

    @property
    def column(self) -> str:
        """See `captured.Shown`."""
        return "xid"

    def near(self, numbers: Any) -> Any:
        """See `captured.Shown`; modulo 2^32, because the stream gives 32 bits."""
        return (numbers - self.xmin) % _WHOLE < _HALF

    def whole(self, xid: int) -> int:
        """The 64-bit id that a 32-bit one stands for."""
        return self.xmax + (xid - self.xmax + _HALF) % _WHOLE - _HALF


@contextmanager
def visible(session: Session, tables: Sequence[TableName] = ()) -> Iterator[Visible]:
    """A read-only transaction that sees one snapshot of `tables` throughout, and that snapshot as a predicate.

    The tables are locked against TRUNCATE and rewriting ALTER TABLE before the snapshot is taken: these are not
    MVCC-safe, and the snapshot would see an empty table (PostgreSQL docs, "Caveats" of concurrency control). Rows can
    be changed meanwhile. The position is taken after the snapshot and at the end of what is inserted, not flushed: a
    transaction may be seen before its commit record is on disk.
    """
    with named("taking a snapshot of the source"):
        session.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        if tables:
            listed = ", ".join(quoted(table) for table in tables)
            session.execute(f"LOCK TABLE {listed} IN ACCESS SHARE MODE".encode())
        row = session.execute("SELECT pg_current_snapshot()::text").fetchone()
        end = session.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    assert end is not None
    try:
        yield Visible.parse(str(row[0]), Lsn.parse(str(end[0])).value)
    finally:
        if not session.broken and not session.closed:
            session.execute("ROLLBACK")
