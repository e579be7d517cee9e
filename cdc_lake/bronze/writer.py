"""Writes bronze: transactions become one commit of one or more files, durable before the call returns.

Both markers are part of the commit that contains the rows. A commit is based on the version whose state was read, so a
second writer is refused; once refused, a writer stays refused.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pyarrow as pa

from cdc_lake.bronze.contract import BronzeCommit, StreamCheckpoint, Tabulate, TransactionBatch, snapshot_app
from cdc_lake.bronze.data_files import BronzeTable, WrittenFile
from cdc_lake.bronze.delta_table import DeltaBronzeTable
from cdc_lake.bronze.row_builder import BatchRows, Place, absent_rows, one_thread, snapshot_rows
from cdc_lake.decode.hashing import GENESIS
from cdc_lake.decode.pgoutput.columnar import tabulate
from cdc_lake.decode.transaction import ReceivedTransaction
from cdc_lake.errors import AnotherReceiver, NoStream, NotInOrder
from cdc_lake.model.quarantine import RefetchedRows
from cdc_lake.model.relation import Relation
from cdc_lake.observability.failpoints import FILE_WRITTEN, STATE_READ, failpoint
from cdc_lake.tables.delta_storage import LocalDeltaStorage

FILE_BYTES = 1 << 30
"""Size in memory above which rows go to more than one file."""


_REREAD_BITS, _REREAD_BELOW = 20, 1 << 62
"""Ordinals of rows that are read again: the time of writing in milliseconds, shifted by so many bits, all below zero.
At their position they precede all changes, in order of writing. At most a million at a time.
"""


def _now_micros() -> int:
    """Microseconds since 1970-01-01 UTC."""
    return time.time_ns() // 1_000


class TableBronze:
    """Writes a bronze table of any format (`bronze.contract.BronzeWriter`). One instance per pipeline and thread.

    `clock` provides `ingest_ts`; `worker`: see `BatchRows`.
    """

    def __init__(
        self,
        table: BronzeTable,
        *,
        clock: Callable[[], int] = _now_micros,
        worker: Callable[[str], Executor] = one_thread,
    ) -> None:
        self._table = table
        self._clock = clock
        self._worker = worker
        self._cached_state: StreamCheckpoint | None = None
        """The state in the table's current version; None: it must be read, as after a failed commit."""
        self._refused = False

    def state(self) -> StreamCheckpoint | None:
        """The state of the newest stream, read from the table; None if no stream was started."""
        state = self._read()[1]
        failpoint(STATE_READ)
        return state

    def begin_stream(self, stream: str, start: int, confirm: int | None = None, *, after: int = 0) -> StreamCheckpoint:
        """Start a stream at `start`, in the epoch after the last one and `after`; creates the table if necessary."""
        exists, last = self._read()
        if not exists:
            self._table.create()
        if last is not None and last.stream == stream:
            raise NoStream(f"the stream {stream} was already started", where=self._table.place)
        epoch = max(last.epoch if last else 0, after) + 1
        state = StreamCheckpoint(stream, epoch, start, start if confirm is None else confirm, GENESIS)
        self._commit(state, (), {})
        return state

    def append(
        self, batch: TransactionBatch | Sequence[ReceivedTransaction], tabulate: Tabulate = tabulate
    ) -> BronzeCommit:
        """Append whole transactions, ascending by position; those at or below `upto` are dropped as repeated."""
        before = self._stream()
        closed_batch = batch if isinstance(batch, TransactionBatch) else _bare(batch, before)
        _check_order(closed_batch, self._table.place)
        fresh = [raw for raw in closed_batch.transactions if raw.bounds.position > before.upto]
        repeats = len(closed_batch.transactions) - len(fresh)
        if not fresh:
            return replace(self.advance(closed_batch.upto, closed_batch.confirm, closed_batch.empty), repeats=repeats)
        rows = BatchRows(fresh, tabulate, before, self._clock(), self._worker)
        written = rows.map_tables(self._files)
        confirm = max(before.confirm, closed_batch.confirm)
        state = replace(before, upto=closed_batch.upto, confirm=confirm, head=rows.head, empty=closed_batch.empty)
        version, size = self._commit(state, written, {}), sum(file.size for file in written)
        return BronzeCommit(
            state.upto, state.confirm, len(fresh), rows.changes, repeats, size, version, rows.operations
        )

    def advance(self, position: int, confirm: int, empty: int = 0) -> BronzeCommit:
        """Record that nothing is missing up to `position`, unless the markers are that high already."""
        before = self._stream()
        upto, confirm = max(before.upto, position), max(before.confirm, confirm)
        if (upto, confirm) == (before.upto, before.confirm):
            return _without_rows(before, self._table.version)
        state = replace(before, upto=upto, confirm=confirm, empty=empty if position >= before.upto else before.empty)
        return _without_rows(state, self._commit(state, (), {}))

    def turn_back(self, position: int) -> StreamCheckpoint:
        """Record that bronze is complete up to `position` only, unless the markers are that low already."""
        before = self._stream()
        state = replace(before, upto=min(before.upto, position), confirm=min(before.confirm, position))
        if state != before:
            self._commit(state, (), {})
        return state

    def append_snapshot(
        self, snapshot: str, chunk: int, relation: Relation, rows: object, first_ordinal: int, position: int
    ) -> BronzeCommit:
        """Append one chunk of snapshot rows, outside the chain and its markers; an existing chunk is dropped."""
        state = self._stream()
        app = snapshot_app(state.stream, snapshot)
        last = self._table.last_chunk(app)
        if last is not None and chunk <= last:
            return _without_rows(state, self._table.version)
        place = Place(state.stream, state.epoch, position, self._clock())
        table = snapshot_rows(relation, rows, place, first_ordinal)
        written = self._files(table)
        version = self._commit(state, written, {app: chunk})
        size = sum(file.size for file in written)
        return BronzeCommit(state.upto, state.confirm, 0, table.num_rows - 1, 0, size, version)

    def as_landed(self, relation: Relation) -> Relation:
        """The layout itself, because nothing is redacted here."""
        return relation

    def append_reread(self, relation: Relation, rows: pa.Array, absent: pa.Array, position: int) -> RefetchedRows:
        """Append rows read again at the source, valid directly before `position`, and keys without a row then: outside
        the chain and its markers, in parallel with a receiver like maintenance. Both are list<string> by position in
        the layout. Raises AnotherReceiver if the receiver came first.
        """
        state, now = self._stream(), self._clock()
        first = (now // 1_000 << _REREAD_BITS) - _REREAD_BELOW
        place = Place(state.stream, state.epoch, position, now)
        present_rows = snapshot_rows(relation, rows, place, first)
        gone = absent_rows(relation, absent, place, first + len(rows))
        self._commit(state, self._files(pa.concat_tables([present_rows, gone])), {})
        return RefetchedRows(position, first, len(rows) + len(absent))

    # ── the table ──

    def _read(self) -> tuple[bool, StreamCheckpoint | None]:
        """Whether the table exists, and its state."""
        if self._refused:
            raise AnotherReceiver("another writer replaced this one", where=self._table.place)
        if self._cached_state is None:
            if not self._table.refresh():
                return False, None
            self._table.prove()
            self._cached_state = self._table.state()
        return True, self._cached_state

    def _stream(self) -> StreamCheckpoint:
        state = self._read()[1]
        if state is None:
            raise NoStream("no stream was started in this bronze table", where=self._table.place)
        return state

    def _files(self, rows: pa.Table) -> list[WrittenFile]:
        """Write rows as one or several files. Files written before an error remain, and no commit refers to them."""
        files = -(-rows.nbytes // FILE_BYTES)
        share = -(-rows.num_rows // files)
        return [self._table.write(rows.slice(start, share)) for start in range(0, rows.num_rows, share)]

    def _commit(self, state: StreamCheckpoint, files: Sequence[WrittenFile], chunks: dict[str, int]) -> int:
        """Commit with the state; after any error the table is read again before the next commit.

        If only maintenance came first, which does not change the state, the commit is repeated on top of it.
        """
        if files:
            failpoint(FILE_WRITTEN)
        before, self._cached_state = self._cached_state, None
        while True:
            last = {app: self._table.last_chunk(app) for app in chunks}
            try:
                version = self._table.commit(files, state, chunks)
            except AnotherReceiver:
                is_unchanged = before is not None and self._table.refresh()
                if is_unchanged:
                    self._table.prove()
                    chunks_now = {app: self._table.last_chunk(app) for app in chunks}
                    is_unchanged = self._table.state() == before and last == chunks_now
                if not is_unchanged:
                    self._refused = True
                    raise
            else:
                self._cached_state = state
                return version


class BesideBronze(TableBronze):
    """Writes rows of copies, which are not part of the stream, in parallel with a receiver. Its commits do not change
    the state, so to a receiver they are maintenance; if the receiver came first, the same files are committed on top.

    Raises NoStream if another stream was begun meanwhile.
    """

    def _commit(self, state: StreamCheckpoint, files: Sequence[WrittenFile], chunks: dict[str, int]) -> int:
        failpoint(FILE_WRITTEN)
        while True:
            self._cached_state = None
            now = self._stream()
            if now.stream != state.stream:
                raise NoStream(f"the stream {now.stream} was started in the meantime", where=self._table.place)
            try:
                version = self._table.commit(files, now, chunks)
            except AnotherReceiver:
                continue
            self._cached_state = now
            return version


class DeltaBronze(TableBronze):
    """Writes a Delta table in a local folder; `durability: fsync` survives power loss, `os` a crash of the process."""

    def __init__(
        self, path: Path, durability: Literal["fsync", "os"] = "fsync", *, clock: Callable[[], int] = _now_micros
    ) -> None:
        super().__init__(DeltaBronzeTable(LocalDeltaStorage(Path(path), durable=durability == "fsync")), clock=clock)


def _bare(transactions: Sequence[ReceivedTransaction], before: StreamCheckpoint) -> TransactionBatch:
    if not transactions:
        return TransactionBatch((), before.upto, before.confirm, before.empty)
    confirm = max(raw.bounds.confirm for raw in transactions)
    return TransactionBatch(transactions, transactions[-1].bounds.position, confirm)


def _check_order(batch: TransactionBatch, place: str) -> None:
    positions = [raw.bounds.position for raw in batch.transactions]
    for earlier, later in itertools.pairwise(positions):
        if later <= earlier:
            raise NotInOrder(f"position {later} follows {earlier} in one batch", where=place)
    if positions and positions[-1] > batch.upto:
        raise NotInOrder(f"a batch up to {batch.upto} contains position {positions[-1]}", where=place)


def _without_rows(state: StreamCheckpoint, version: int) -> BronzeCommit:
    return BronzeCommit(state.upto, state.confirm, 0, 0, 0, 0, version)
