"""The Delta bronze writer: transactions in, one file and one commit out, on disk before it returns.

Both markers are application transactions of the same commit as the rows. A commit is made only as the version right
after the one whose markers were read, so a second writer is refused instead of interleaved; a writer refused once stays
refused. A commit whose call failed is looked up in the log by its id: it landed, or it did not, and data files are
never deleted (one that no commit names is harmless).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from cdc_lake.bronze.contract import CONTRACT_VERSION, SCHEMA, confirm_app, order_app, snapshot_app
from cdc_lake.bronze.files import BOUNDED, LOOSE
from cdc_lake.bronze.port import BronzeState, ClosedBatch, Landed, Tabulate
from cdc_lake.bronze.rows import build, snapshot_rows
from cdc_lake.bronze.state import CONTRACT_PROPERTY, check_contract, read_state
from cdc_lake.decode.columnar import tabulate
from cdc_lake.decode.digest import GENESIS
from cdc_lake.decode.raw import Raw
from cdc_lake.errors import AnotherReceiver, BronzeNotWritten, NoStream, NotInOrder
from cdc_lake.lake.delta_log import NotLanded, commit, create_table, open_table, write_file
from cdc_lake.model.relation import Relation
from cdc_lake.observe.failpoint import FILE_WRITTEN, failpoint

FILE_BYTES = 1 << 30
"""Size in memory above which a commit has more than one file: only a transaction larger than any batch gets there."""

_PLAIN = ("ordinal", "lsn", "new", "old", "info", "raw")  # their values hardly repeat


def _now() -> int:
    """Microseconds since 1970-01-01 UTC."""
    return time.time_ns() // 1_000


@dataclass(frozen=True, slots=True)
class _Open:
    """The table at a version and what it said there. Replaced after each commit, dropped when a commit failed."""

    table: DeltaTable
    state: BronzeState | None


class DeltaBronze:
    """A bronze table in a local folder (`bronze.port.BronzeWriter`). One instance a pipeline, used by one thread.

    `durability`: `fsync` survives power loss, `os` only the end of the process. `clock` gives `ingest_ts`.
    """

    def __init__(
        self, path: Path, durability: Literal["fsync", "os"] = "fsync", *, clock: Callable[[], int] = _now
    ) -> None:
        self._folder = Path(path)
        self._durable = durability == "fsync"
        self._clock = clock
        self._opened: _Open | None = None
        self._refused = False

    def state(self) -> BronzeState | None:
        """What bronze holds of the newest stream, read from the table; None where no stream was started."""
        opened = self._read()
        return opened.state if opened is not None else None

    def begin_stream(self, stream: str, start: int, confirm: int | None = None) -> BronzeState:
        """Start a stream at `start`, in the epoch after the last one; the table is made where there is none."""
        opened = self._read() or _Open(self._create(), None)
        last = opened.state
        if last is not None and last.stream == stream:
            raise NoStream(f"the stream {stream} was already started", where=str(self._folder))
        epoch = last.epoch + 1 if last else 1
        state = BronzeState(stream, epoch, start, start if confirm is None else confirm, GENESIS)
        self._commit(opened, state, (), {})
        return state

    def append(self, batch: ClosedBatch | Sequence[Raw], tabulate: Tabulate = tabulate) -> Landed:
        """Append whole transactions, ascending by position; those at or below `upto` are dropped as repeats."""
        opened, before = self._stream()
        given = batch if isinstance(batch, ClosedBatch) else _bare(batch, before)
        _check_order(given, self._folder)
        fresh = [raw for raw in given.transactions if raw.bounds.position > before.upto]
        repeats = len(given.transactions) - len(fresh)
        if not fresh:
            return replace(self.advance(given.upto, given.confirm, given.empty), repeats=repeats)
        changes = tabulate(fresh)
        rows, head = build(
            fresh,
            changes,
            stream=before.stream,
            epoch=before.epoch,
            previous=before.head,
            ingest_ts=self._clock(),
        )
        confirm = max(before.confirm, given.confirm)
        state = replace(before, upto=given.upto, confirm=confirm, head=head, empty=given.empty)
        version, size = self._land(opened, state, rows, {})
        return _landed(
            state, version, transactions=len(fresh), changes=len(changes), repeats=repeats, bytes_written=size
        )

    def advance(self, position: int, confirm: int, empty: int = 0) -> Landed:
        """Record that nothing is missing up to `position`: the markers rise, or nothing happens."""
        opened, before = self._stream()
        upto, confirm = max(before.upto, position), max(before.confirm, confirm)
        if (upto, confirm) == (before.upto, before.confirm):
            return _landed(before, opened.table.version())
        state = replace(before, upto=upto, confirm=confirm, empty=empty if position >= before.upto else before.empty)
        return _landed(state, self._commit(opened, state, (), {}))

    def append_snapshot(
        self, snapshot: str, chunk: int, relation: Relation, rows: object, first_ordinal: int, position: int
    ) -> Landed:
        """Append one chunk of snapshot rows, outside the chain and its markers; a chunk already there is dropped."""
        opened, state = self._stream()
        app = snapshot_app(state.stream, snapshot)
        last = opened.table.transaction_version(app)
        if last is not None and chunk <= last:
            return _landed(state, opened.table.version())
        table = snapshot_rows(
            relation,
            rows,
            stream=state.stream,
            epoch=state.epoch,
            position=position,
            first_ordinal=first_ordinal,
            ingest_ts=self._clock(),
        )
        version, size = self._land(opened, state, table, {app: chunk}, markers=False)
        return _landed(state, version, changes=table.num_rows - 1, bytes_written=size)

    # ── the table ──

    def _read(self) -> _Open | None:
        if self._refused:
            raise AnotherReceiver("this writer was overtaken by another one", where=str(self._folder))
        if self._opened is None and (table := open_table(self._folder)) is not None:
            check_contract(table, self._folder)
            self._opened = _Open(table, read_state(table, self._folder))
        return self._opened

    def _stream(self) -> tuple[_Open, BronzeState]:
        opened = self._read()
        if opened is None or opened.state is None:
            raise NoStream("no stream was started in this bronze table", where=str(self._folder))
        return opened, opened.state

    def _create(self) -> DeltaTable:
        properties = {"delta.appendOnly": "true", CONTRACT_PROPERTY: str(CONTRACT_VERSION)}
        try:
            return create_table(self._folder, SCHEMA, properties, durable=self._durable)
        except DeltaError as cause:
            raise BronzeNotWritten("the bronze table could not be made", where=str(self._folder)) from cause

    def _land(
        self, opened: _Open, state: BronzeState, rows: pa.Table, apps: dict[str, int], *, markers: bool = True
    ) -> tuple[int, int]:
        """Write the rows and commit them; the version made and the bytes written."""
        files = -(-rows.nbytes // FILE_BYTES)
        share = -(-rows.num_rows // files)
        try:
            actions = [
                write_file(
                    self._folder,
                    rows.slice(start, share),
                    stats=BOUNDED,
                    loose=LOOSE,
                    plain=_PLAIN,
                    durable=self._durable,
                )
                for start in range(0, rows.num_rows, share)
            ]
        except OSError as cause:
            raise BronzeNotWritten("a data file could not be written", where=str(self._folder)) from cause
        failpoint(FILE_WRITTEN)
        version = self._commit(opened, state, actions, apps, markers=markers)
        return version, sum(action.size for action in actions)

    def _commit(
        self, opened: _Open, state: BronzeState, actions: Sequence[Any], apps: dict[str, int], *, markers: bool = True
    ) -> int:
        """Commit with the state's markers; whatever goes wrong, the table is read again before the next commit."""
        own = {order_app(state.stream): state.upto, confirm_app(state.stream): state.confirm} if markers else {}
        note = {
            "contract": CONTRACT_VERSION,
            "stream": state.stream,
            "epoch": state.epoch,
            "head": state.head.hex(),
            "empty": state.empty,
        }
        self._opened = None
        try:
            version = commit(
                opened.table, self._folder, actions, apps=own | apps, note=note, fenced=True, durable=self._durable
            )
        except NotLanded as failure:
            if failure.overtaken:
                self._refused = True
                raise AnotherReceiver("another writer committed to bronze", where=str(self._folder)) from failure
            raise BronzeNotWritten("the commit failed and did not land", where=str(self._folder)) from failure
        self._opened = _Open(opened.table, state)
        return version


def _bare(transactions: Sequence[Raw], before: BronzeState) -> ClosedBatch:
    if not transactions:
        return ClosedBatch((), before.upto, before.confirm, before.empty)
    confirm = max(raw.bounds.confirm for raw in transactions)
    return ClosedBatch(transactions, transactions[-1].bounds.position, confirm)


def _check_order(batch: ClosedBatch, folder: Path) -> None:
    positions = [raw.bounds.position for raw in batch.transactions]
    for earlier, later in itertools.pairwise(positions):
        if later <= earlier:
            raise NotInOrder(f"position {later} follows {earlier} in one batch", where=str(folder))
    if positions and positions[-1] > batch.upto:
        raise NotInOrder(f"a batch up to {batch.upto} holds position {positions[-1]}", where=str(folder))


def _landed(
    state: BronzeState,
    version: int,
    *,
    transactions: int = 0,
    changes: int = 0,
    repeats: int = 0,
    bytes_written: int = 0,
) -> Landed:
    return Landed(state.upto, state.confirm, transactions, changes, repeats, bytes_written, version)
