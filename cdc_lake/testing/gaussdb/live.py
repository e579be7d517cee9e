"""A live PostgreSQL as the source of the fake server's ledger.

A thread reads one logical slot and appends what openGauss would have shown of each transaction: a dense CSN, the whole
rows, the old keys. The log positions are PostgreSQL's own. So a real database's real workload flows through the wire
of the family, and its tables are the oracle. Snapshots at an exact CSN are taken in the same thread, between two
readings: see `live_order`.

Left out: rows of tables created without a replica identity (PostgreSQL refuses their updates; name those there are in
`keyless`), and moves between partitions come as an UPDATE of the root.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import psycopg
from psycopg import conninfo, sql

from cdc_lake.decode.assembler import Assembler
from cdc_lake.decode.raw import RawTransaction
from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import TableName
from cdc_lake.source.catalog import SourceCatalog, relation_of
from cdc_lake.source.connection import Session
from cdc_lake.source.postgres import PostgresStream
from cdc_lake.source.printing import PRINTING
from cdc_lake.source.publication import published
from cdc_lake.source.slot import export_slot
from cdc_lake.source.snapshot import exported, read_chunks
from cdc_lake.source.visible import Visible
from cdc_lake.testing.gaussdb.ledger import Ledger, LedgerTransaction
from cdc_lake.testing.gaussdb.live_order import LiveOrder, SnapshotPassed, Waiting
from cdc_lake.testing.gaussdb.live_rows import SCHEMA, LiveRows, Told

_MARK_DDL: Final = f"""
CREATE SCHEMA {SCHEMA};
CREATE TABLE {SCHEMA}.ddl (tag text);
CREATE FUNCTION {SCHEMA}.mark() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER
    AS $$ BEGIN INSERT INTO {SCHEMA}.ddl VALUES (tg_tag); END $$;
CREATE EVENT TRIGGER {SCHEMA} ON ddl_command_end EXECUTE FUNCTION {SCHEMA}.mark();
"""
_PUBLICATION: Final = "gaussdb_standin"
_IDLE: Final = 0.02  # seconds: the longest a request for a snapshot waits for the reader
_GATHER: Final = 0.05  # seconds a block of transactions that may be exchanged waits to be full
_STATUS: Final = 5.0
_CHUNK_ROWS: Final = 10_000
_FOREIGN_STEP: Final = 8  # bytes: an empty transaction of another database fits behind a commit record


@dataclass(slots=True)
class _Ask:
    """A snapshot somebody wants: `take` takes it, in the reader's thread, while its asker waits."""

    take: Callable[[], Visible]
    aligned: bool
    done: threading.Event = field(default_factory=threading.Event)
    point: SnapshotPoint | None = None
    failed: BaseException | None = None


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
        self._asks: queue.SimpleQueue[_Ask] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="live postgres", daemon=True)
        self._added_at = 0.0
        self._confirmed_at = 0.0
        self._sessions: list[Session] = []

    # ── what it does ─────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> Self:
        """Open the slot, copy the tables, start reading; from then on `ledger` is there."""
        self._sql = self._connect()
        self._prepare()
        replication = self._connect(replication=True)
        slot = export_slot(replication, f"live_{random.SystemRandom().getrandbits(32):08x}")
        self._rows = LiveRows(_TypeNames(self._connect()), keyless=self.keyless, leading_zero=self._leading_zero)
        self._copy(slot.snapshot)
        self.ledger = Ledger(start=slot.consistent.value, first_csn=self._first_csn)
        self._assembler = Assembler(SourceCatalog(self._connect()))
        self._stream = PostgresStream(
            replication, slot.name, _PUBLICATION, slot.consistent.value, status_interval=_STATUS
        )
        self._end = slot.consistent.value
        self._thread.start()
        return self

    def stop(self) -> None:
        """End reading; the slot goes with its connection. Raises what the reader failed with."""
        self._stopping.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def snapshot(self, take: Callable[[], Visible], *, aligned: bool = False) -> SnapshotPoint:
        """Take a snapshot with `take` and give it a place: see `SnapshotPoint`.

        With `aligned` it is taken again until no transaction it shows stands in the log behind one it does not, as a
        new slot's consistent point wants it. Raises SnapshotPassed where the snapshot was older than this call.
        """
        ask = _Ask(take, aligned)
        self._asks.put(ask)
        while not ask.done.wait(0.2):
            if not self._thread.is_alive():
                raise RuntimeError("the live PostgreSQL is no longer read") from self._failure
        if ask.failed is not None:
            raise ask.failed
        assert ask.point is not None
        return ask.point

    def point(self) -> SnapshotPoint:
        """This moment as a point: everything committed by now is in the ledger, and nothing else lies before it."""

        def now() -> Visible:
            with psycopg.connect(self._dsn, autocommit=True) as session:
                return current_snapshot(session)

        return self.snapshot(now, aligned=True)

    def settled(self) -> int:
        """The end of the ledger once everything that is committed now is in it."""
        self.point()
        return self.ledger.end_lsn

    # ── the thread ───────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._answer()
                self._read(_IDLE if self._asks.empty() else 0)
                self._number()
        except BaseException as failed:  # noqa: BLE001 - handed to whoever asks or stops
            self._failure = failed
        finally:
            for session in self._sessions:
                session.close()

    def _read(self, timeout: float) -> None:
        for lsn, payload in self._stream.poll(timeout):
            for raw in self._assembler.feed(payload, lsn):
                self._take(raw)
        self._end = max(self._end, self._stream.keepalive_end)

    def _take(self, raw: RawTransaction) -> None:
        bounds = raw.bounds
        assert bounds.commit_lsn is not None
        assert bounds.xid is not None
        assert bounds.commit_ts is not None
        first = raw.lsns[0] if raw.lsns else bounds.commit_lsn
        told = self._rows.tell(raw)
        self._add(Waiting(told, bounds.xid, first, bounds.commit_lsn, bounds.position, bounds.commit_ts))
        if self._random.random() < self._foreign:
            at = bounds.position
            self._add(Waiting(Told(()), None, at, at, at + _FOREIGN_STEP, bounds.commit_ts))

    def _add(self, waiting: Waiting) -> None:
        self._order.add(waiting)
        self._end = max(self._end, waiting.end_lsn)
        self._added_at = time.monotonic()

    def _number(self) -> None:
        """Number what is visible by now, and append what stands in the order of the log."""
        if self._order.unnumbered:
            visible = current_snapshot(self._sql)
            self._order.number(visible.shows, whole=time.monotonic() - self._added_at > _GATHER)
        self._append()

    def _append(self) -> None:
        last = 0
        for waiting in self._order.ready():
            assert waiting.csn is not None
            self.ledger.append(
                LedgerTransaction(
                    csn=waiting.csn,
                    xid=waiting.xid or self.ledger.allot_xid(),
                    first_lsn=waiting.first_lsn,
                    commit_start=waiting.commit_lsn,
                    commit_end=waiting.end_lsn,
                    time_us=waiting.commit_ts,
                    changes=waiting.told.records,
                    database=self.database if waiting.xid is not None else "other",
                )
            )
            last = waiting.end_lsn
        now = time.monotonic()
        if last and now - self._confirmed_at > 1:
            self._stream.confirm(last)
            self._confirmed_at = now

    def _answer(self) -> None:
        while not self._asks.empty():
            ask = self._asks.get()
            try:
                ask.point = self._place(ask)
            except (psycopg.Error, SnapshotPassed, RuntimeError) as failed:
                ask.failed = failed
            ask.done.set()

    def _place(self, ask: _Ask) -> SnapshotPoint:
        while True:
            visible = ask.take()
            self._read_to(visible.position)
            self._order.check(visible.shows)
            csn = self._order.number(visible.shows, whole=True)
            unseen, seen = self._order.first_unseen(), self._order.last_seen()
            aligned = unseen is None or seen is None or seen < unseen
            self._append()
            if aligned or not ask.aligned:
                return SnapshotPoint(csn, visible.position if unseen is None else min(unseen, visible.position))

    def _read_to(self, position: int) -> None:
        """Read until everything that was committed before `position` has come."""
        self._sql.execute("SELECT pg_logical_emit_message(true, 'gaussdb_standin', '')")  # its commit is flushed
        while self._end < position:
            self._stream.tick(ping=True)
            self._read(0.005)

    # ── how it starts ────────────────────────────────────────────────────────────────────────────────────────

    def _connect(self, *, replication: bool = False) -> Session:
        options = " ".join(f"-c {name}={value}" for name, value in PRINTING.items())
        given = {"replication": "database"} if replication else {}
        made = conninfo.make_conninfo(self._dsn, options=options, client_encoding="UTF8", **given)
        session: Session = psycopg.connect(made, autocommit=True)
        self._sessions.append(session)
        return session

    def _prepare(self) -> None:
        """The publication, and whole old rows for tables that have no identity."""
        for table in self.keyless:
            name = sql.Identifier(table.schema, table.name)
            self._sql.execute(sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(name))
        if self._ddl_marks and not self._there("pg_namespace", "nspname", SCHEMA):
            self._sql.execute(_MARK_DDL.encode())
        if not self._there("pg_publication", "pubname", _PUBLICATION):
            # openGauss sends generated columns; PostgreSQL can since 18
            generated = ", publish_generated_columns = stored" if self._sql.info.server_version >= 180000 else ""
            self._sql.execute(
                f"CREATE PUBLICATION {_PUBLICATION} FOR ALL TABLES "
                f"WITH (publish_via_partition_root = true{generated})".encode()
            )

    def _there(self, catalog: str, column: str, name: str) -> bool:
        query = sql.SQL("SELECT FROM {} WHERE {} = %s").format(sql.Identifier(catalog), sql.Identifier(column))
        return self._sql.execute(query, [name]).fetchone() is not None

    def _copy(self, snapshot: str) -> None:
        """Load the image of every keyed table as of the slot's point."""
        with exported(self._connect(), snapshot) as session:
            for entry in published(session, _PUBLICATION):
                relation = relation_of(session, entry.table, entry.columns)
                for rows in read_chunks(session, relation, row_filter=None, chunk_rows=_CHUNK_ROWS):
                    self._rows.load(relation, map(tuple, rows.to_pylist()))


class _TypeNames:
    """Type names by OID, as `format_type` prints them for whoever has the default search path."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: dict[int, str] = {}

    def __call__(self, oid: int) -> str:
        if (name := self._known.get(oid)) is None:
            row = self._session.execute("SELECT format_type(%s::oid, NULL)", [oid]).fetchone()
            assert row is not None
            name = self._known[oid] = str(row[0])
        return name


def current_snapshot(session: Session) -> Visible:
    """What `session` sees now, and a position nothing of it lies above."""
    row = session.execute("SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return Visible.parse(str(row[0]), Lsn.parse(str(row[1])).value)
