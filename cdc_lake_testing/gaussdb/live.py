"""A live PostgreSQL as the source of the test server's ledger.

A thread reads one logical slot and appends what openGauss would have sent of each transaction: a dense CSN, whole rows,
old keys. The WAL positions are PostgreSQL's own. A real workload of a real database thus passes through the family's
protocol, and its tables are the oracle. Snapshots at an exact CSN are taken in the same thread, between two reads: see
`live_order`.

Not supported: updates of tables without a replica identity, which PostgreSQL refuses (list such tables in `keyless`);
moves between partitions arrive as an UPDATE of the root.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self

import psycopg
from psycopg import conninfo

from cdc_lake.decode.pgoutput.assembler import Assembler
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import TableName
from cdc_lake.source.postgres.catalog import SourceCatalog
from cdc_lake.source.postgres.connection import Session
from cdc_lake.source.postgres.snapshot_visibility import SnapshotPredicate
from cdc_lake_testing.gaussdb.ledger import Ledger, LedgerTransaction
from cdc_lake_testing.gaussdb.live_errands import Errands
from cdc_lake_testing.gaussdb.live_journal import Journal, Numbered, Opening
from cdc_lake_testing.gaussdb.live_order import EMPTY, LiveOrder, Places, Waiting
from cdc_lake_testing.gaussdb.live_rows import LiveRows, Told
from cdc_lake_testing.gaussdb.live_setup import (
    GeneratedColumns,
    TypeNames,
    begin,
    connect,
    current_snapshot,
    open_stream,
    prepare,
)

_IDLE: Final = 0.02  # seconds: the longest a request for a snapshot waits for the reader
_GATHER: Final = 0.05  # seconds a block of transactions that may be exchanged waits to be full
_STANDSTILL: Final = 60.0  # seconds without any progress towards what is committed
_BEFORE: Final = 8  # bytes: a slot of the 3.0 line sends what starts behind its point, not what starts there


@dataclass(frozen=True, slots=True)
class SnapshotPoint:
    """What a snapshot shows: exactly the transactions below `csn`. From `lsn` on the log holds all the others."""

    csn: int
    lsn: int


class LivePostgres:
    """The reader; see the module. Use it as a context manager, or `start` and `stop` it.

    `dsn` names the database and a superuser. `inversions` is the share of neighbouring transactions whose CSNs are
    exchanged, `foreign` the chance of an empty transaction of another database behind each. `seed` fixes both. With
    `ddl_marks` transactions say where DDL was done in them, so that parallel decoding loses the rows behind it.

    With a `journal` (a file) the ledger goes on where an earlier process left it; otherwise it begins now.
    """

    def __init__(
        self,
        dsn: str,
        *,
        first_csn: int = 2000,
        inversions: float = 0.0,
        foreign: float = 0.0,
        seed: int = 0,
        keyless: Collection[TableName] = (),
        leading_zero: bool = True,
        ddl_marks: bool = False,
        journal: Path | None = None,
    ) -> None:
        """Describe it; nothing is opened yet."""
        self._dsn = dsn
        self.database = str(conninfo.conninfo_to_dict(dsn)["dbname"])
        self.keyless = frozenset(keyless)
        self._leading_zero = leading_zero
        self._ddl_marks = ddl_marks
        self._first_csn = first_csn
        self._foreign = foreign
        self._random = random.Random(seed)
        self._order = LiveOrder(first_csn, inversions=inversions, seed=seed)
        self._journal = None if journal is None else Journal(journal)
        self._errands = Errands()
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="live postgres", daemon=True)
        self._added_at = 0.0
        self._confirmed_at = 0.0
        self._sessions: list[Session] = []

    # ── what it does ─────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> Self:
        """Open the slot, copy the tables, start reading; from then on `ledger` is there. Raises SourceError."""
        self._sql = self._connect()
        prepare(self._sql, self.keyless, ddl_marks=self._ddl_marks)
        self._rows = LiveRows(
            TypeNames(self._connect()),
            GeneratedColumns(self._connect()),
            keyless=self.keyless,
            leading_zero=self._leading_zero,
        )
        self._assembler = Assembler(SourceCatalog(self._connect()))
        replication = self._connect(replication=True)
        opening, numbered = self._opening(replication)
        for relation, rows in opening.rows:
            self._rows.load(relation, rows)
        self.ledger = Ledger(start=opening.start, first_csn=self._first_csn)
        self._places = Places(opening.start)
        self._order.resume([entry.csn for entry in numbered])
        for entry in numbered:
            self._add(self._waiting(entry.raw, entry.commit_lsn, entry.commit_ts, entry.csn))
        self._append(journaled=True)
        self._stream = open_stream(replication, opening.slot, self._places.end)
        self._thread.start()
        return self

    def _opening(self, replication: Session) -> tuple[Opening, list[Numbered]]:
        """Where the ledger begins, and what was in it when an earlier process ended."""
        if self._journal is not None and (kept := self._journal.read()) is not None:
            return kept
        opening = begin(replication, self._connect(), self._sql, outlives=self._journal is not None)
        if self._journal is not None:
            self._journal.open(opening)
        return opening, []

    def _connect(self, *, replication: bool = False) -> Session:
        session = connect(self._dsn, replication=replication)
        self._sessions.append(session)
        return session

    def stop(self) -> None:
        """End reading; without a journal the slot goes with its connection. Raises what the reader failed with."""
        self._stopping.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def beat(self) -> int:
        """Add a transaction without changes, as one that only took a transaction id; its id."""
        return self._errands.ask(self._beat, self._still_reading)

    def lose_csn(self) -> int:
        """Leave a CSN out, as if its transaction were lost; to be called where everything is `settled`. The CSN."""
        lost = self._order.next_csn
        self._order.next_csn += 1
        return lost

    @property
    def reading(self) -> bool:
        """False once the reader has failed or stopped."""
        return self._thread.is_alive()

    def snapshot(self, take: Callable[[], SnapshotPredicate], *, aligned: bool = False) -> SnapshotPoint:
        """Take a snapshot with `take` and give it a place: see `SnapshotPoint`.

        With `aligned` it is taken again until no transaction it shows stands in the log behind one it does not, as a
        new slot's consistent point wants it. Raises SnapshotPassed where the snapshot was older than this call.
        """
        return self._errands.ask(partial(self._place, take, aligned=aligned), self._still_reading)

    def point(self) -> SnapshotPoint:
        """This moment as a point: everything committed by now is in the ledger, and nothing else lies before it."""

        def now() -> SnapshotPredicate:
            with psycopg.connect(self._dsn, autocommit=True) as session:
                return current_snapshot(session)

        return self.snapshot(now, aligned=True)

    def settled(self) -> int:
        """The end of the ledger once everything that is committed now is in it."""
        self.point()
        return self.ledger.end_lsn

    # ── the thread ───────────────────────────────────────────────────────────────────────────────────────────

    def _still_reading(self) -> None:
        if not self._thread.is_alive():
            raise RuntimeError("the live PostgreSQL is no longer read") from self._failure

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._errands.run()
                self._read(_IDLE if self._errands.none else 0)
                self._number()
        except BaseException as failed:  # noqa: BLE001 - handed to whoever asks or stops
            self._failure = failed
        finally:
            for session in self._sessions:
                session.close()

    def _read(self, timeout: float) -> None:
        for lsn, payload in self._stream.poll(timeout):
            for raw in self._assembler.feed(payload, lsn):
                assert isinstance(raw, BufferedTransaction), "none is large to an assembler without a spool"
                self._take(raw)
        self._places.reach(self._stream.keepalive_end)

    def _take(self, raw: BufferedTransaction) -> None:
        if not raw.lsns:
            return  # PostgreSQL before 15 sends also what holds nothing of the publication
        bounds = raw.bounds
        assert bounds.commit_lsn is not None
        assert bounds.commit_ts is not None
        at = self._places.recorded(bounds.commit_lsn, bounds.position)
        self._add(self._waiting(raw, at, bounds.commit_ts))
        if self._random.random() < self._foreign:
            beside = self._places.own()
            assert beside is not None, "a record ends where the next one may begin"
            self._add(self._waiting(None, beside, bounds.commit_ts))

    def _waiting(self, raw: BufferedTransaction | None, at: int, time_us: int, csn: int | None = None) -> Waiting:
        """A transaction as it waits for the ledger; without `raw` an empty one of another database."""
        if raw is None:
            return Waiting(Told(()), None, at, at, at + EMPTY, time_us, csn)
        first = raw.lsns[0] if raw.lsns else at
        assert raw.bounds.xid is not None
        return Waiting(self._rows.tell(raw), raw.bounds.xid, first, at, raw.bounds.position, time_us, csn, raw)

    def _add(self, waiting: Waiting) -> None:
        self._order.add(waiting)
        self._places.reach(waiting.end_lsn)
        self._added_at = time.monotonic()

    def _number(self) -> None:
        """Number what is visible by now, and append what stands in the order of the log."""
        if self._order.unnumbered:
            visible = current_snapshot(self._sql)
            self._order.number(_shows(visible), whole=time.monotonic() - self._added_at > _GATHER)
        self._append()

    def _append(self, *, journaled: bool = False) -> None:
        ready = list(self._order.ready())
        if self._journal is not None and not journaled and ready:
            self._journal.write(*(Numbered(w.csn or 0, w.commit_lsn, w.commit_ts, w.raw) for w in ready))
        for waiting in ready:
            self.ledger.append(self._transaction(waiting))
        now = time.monotonic()
        if ready and not journaled and now - self._confirmed_at > 1:
            self._stream.confirm(ready[-1].end_lsn)
            self._confirmed_at = now

    def _transaction(self, waiting: Waiting) -> LedgerTransaction:
        assert waiting.csn is not None
        return LedgerTransaction(
            csn=waiting.csn,
            xid=waiting.xid or self.ledger.allot_xid(),
            first_lsn=waiting.first_lsn,
            commit_start=waiting.commit_lsn,
            commit_end=waiting.end_lsn,
            time_us=waiting.commit_ts,
            changes=waiting.told.records,
            database=self.database if waiting.xid is not None else "other",
        )

    def _beat(self) -> int:
        row = self._sql.execute("SELECT txid_current()::text").fetchone()
        assert row is not None
        xid = int(str(row[0]))
        self._read_to(current_snapshot(self._sql).position)
        while (at := self._places.own()) is None:
            self._read_to(current_snapshot(self._sql).position)  # behind what this wrote before
        self._add(Waiting(Told(()), xid, at, at, at + EMPTY, time.time_ns() // 1000))
        self._number()
        return xid

    def _place(self, take: Callable[[], SnapshotPredicate], *, aligned: bool) -> SnapshotPoint:
        while True:
            visible = take()
            self._read_to(visible.position)
            self._order.check(_shows(visible))
            csn = self._order.number(_shows(visible), whole=True)
            unseen, seen = self._order.first_unseen(), self._order.last_seen()
            is_aligned = unseen is None or seen is None or seen < unseen
            self._append()
            if is_aligned or not aligned:
                first = visible.position if unseen is None else min(unseen, visible.position)
                return SnapshotPoint(csn, first - _BEFORE)

    def _read_to(self, position: int) -> None:
        """Read until everything that was committed before `position` has come.

        The server decodes the log of all its databases to get there, which may take long: a standstill is an error.
        """
        self._sql.execute("SELECT pg_logical_emit_message(true, 'gaussdb_standin', '')")  # its commit is flushed
        moved, at = time.monotonic(), self._places.end
        while self._places.end < position:
            if self._places.end > at:
                moved, at = time.monotonic(), self._places.end
            if time.monotonic() - moved > _STANDSTILL:
                raise RuntimeError(f"the slot stands at {Lsn(at)} and does not reach {Lsn(position)}")
            self._stream.tick(ping=True)
            self._read(0.005)


def _shows(visible: SnapshotPredicate) -> Callable[[int], bool]:
    """What a snapshot shows of transactions that commit about now, before it or behind it."""
    half = 1 << 31
    return lambda xid: visible.shows_whole(visible.xmax + (xid - visible.xmax + half) % (2 * half) - half)
