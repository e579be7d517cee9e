"""Visible: the predicate that says which transactions a source snapshot shows.

`pg_current_snapshot()` prints `xmin:xmax:xip,…` in 64-bit transaction ids (PostgreSQL docs, "Transaction ID and
Snapshot Information"): visible is what is below xmin, or below xmax and not in the list. The stream carries the lower
32 bits. Of a transaction whose commit lies below the snapshot's position the id was given out by then, so it is the
newest such id with these bits; bronze may hold transactions that are older than any distance of 32-bit ids.
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

_WHOLE = 1 << 32


@dataclass(frozen=True, slots=True)
class Visible:
    """A snapshot as a predicate, and a position that no transaction it shows lies above."""

    xmin: int
    xmax: int
    in_progress: frozenset[int]
    position: int
    newest: int
    """No id above it was given out when the position was read."""

    @classmethod
    def parse(cls, snapshot: str, position: int, given_out: int = 0) -> Visible:
        """Read the server's text; `given_out`: how many ids were from xmax on. Raises ValueError if it is malformed."""
        xmin, xmax, running = snapshot.split(":")
        in_progress = frozenset(int(x) for x in running.split(",") if x)
        return cls(int(xmin), int(xmax), in_progress, position, int(xmax) + given_out)

    def shows(self, xid: int, position: int) -> bool:
        """Whether the snapshot shows the transaction that committed at a position, by its id as the stream gives it."""
        return position <= self.position and self.shows_whole(self.whole(xid))

    def shows_whole(self, whole: int) -> bool:
        """Whether the snapshot shows the transaction of a 64-bit id."""
        return whole < self.xmin or (whole < self.xmax and whole not in self.in_progress)

    @property
    def column(self) -> str:
        """See `captured.Shown`."""
        return "xid"

    def near(self, numbers: Any, positions: Any) -> Any:
        """See `captured.Shown`."""
        return (positions > self.position) | (self.newest - (self.newest - numbers) % _WHOLE >= self.xmin)

    def whole(self, xid: int) -> int:
        """The 64-bit id that a 32-bit one stands for, if it was given out when the position was read."""
        return self.newest - (self.newest - xid) % _WHOLE


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
        assert row is not None
        snapshot = str(row[0])
        end = session.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        xmax = int(snapshot.split(":")[1]) % _WHOLE
        # the distance to the next id that will be given out (xid_age in PostgreSQL's xid.c); takes no id itself, for
        # which others that create a slot would wait
        later = session.execute("SELECT age(%s::text::xid)", [xmax]).fetchone()
    assert end is not None
    assert later is not None
    try:
        yield Visible.parse(snapshot, Lsn.parse(str(end[0])).value, int(str(later[0])))
    finally:
        if not session.broken and not session.closed:
            session.execute("ROLLBACK")
