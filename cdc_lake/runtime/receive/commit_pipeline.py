"""Commits batches to bronze, one commit at a time, while the source is read and the next batch is decoded.

Two threads work besides the caller's: one converts changes to columns, a few mebibytes at a time and long before their
batch is closed; the other writes a batch and commits it. Both run mostly without Python's interpreter lock. Bytes that
wait for decoding are freed early, because only columns wait for writing.

If a transaction of a batch cannot be decoded, everything before it is committed, and `fault` is set. The writer decodes
a large transaction itself, one part at a time. If decoding a transaction depends on what earlier rows revealed, the
writer also decodes what follows the large one in its batch; the next batch waits for the commit.

If the lake is unavailable or full, a failed commit that waiting can resolve is retried with increasing pauses. The
connection stays open, keepalives are answered and nothing is acknowledged, so the server retains everything. The next
attempt first reads from the table what the failed commit left, so nothing is committed twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Self, TypeAlias, TypeVar

import pyarrow as pa

from cdc_lake.bronze.contract import (
    BronzeCommit,
    BronzeWriter,
    InParts,
    StreamCheckpoint,
    Tabulate,
    TransactionBatch,
    release_transaction,
)
from cdc_lake.bronze.row_builder import one_thread
from cdc_lake.connectors.snapshot_copy import Stopped
from cdc_lake.control.coordination import ReceiverNote
from cdc_lake.decode.change_batch import ChangeColumns, concat_changes
from cdc_lake.decode.pgoutput.columnar import tabulate
from cdc_lake.decode.transaction import ReceivedTransaction
from cdc_lake.errors import DecodeError, LakeError, Retry
from cdc_lake.model.relation import Relation
from cdc_lake.observability.events import ProgressEvent, ProgressReporter

PART_BYTES: Final = 2 << 20
"""Bytes of whole transactions that are decoded before their batch is closed."""

_MOST_BEHIND: Final = 4 * PART_BYTES


@dataclass(frozen=True, slots=True)
class _Decoded:
    """Columns of a number of transactions, and the error that ended them."""

    columns: ChangeColumns | None
    transactions: int
    fault: DecodeError | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    """Transactions being decoded, and their bytes."""

    columns: Future[_Decoded]
    size: int


_AnyPart: TypeAlias = _Part | InParts | list[ReceivedTransaction]
"""A list has transactions that their writer decodes, because they follow a large one."""


class _Ready:
    """Provides columns to a batch's writer: decoded before, except parts of large transactions and what follows
    them.
    """

    def __init__(self, batch: TransactionBatch, tabulate: Tabulate) -> None:
        self.batch = batch
        self.failed: int | None = None
        """The first of the batch's transactions that the writer could not decode."""
        self._tabulate = tabulate
        self._runs: dict[int, list[tuple[ChangeColumns, int]]] = {}  # by the position of the last transaction
        self.later: dict[int, ReceivedTransaction] = {}
        """Transactions to decode when they are requested, by position."""

    def add(self, run: list[tuple[ChangeColumns, int]], end: int) -> None:
        """Add the columns of consecutive transactions, up to number `end` of the batch, exclusive."""
        if run:
            self._runs[self.batch.transactions[end - 1].bounds.position] = run

    def __call__(self, fresh: Sequence[Any]) -> ChangeColumns:
        last = fresh[-1].bounds.position
        if (run := self._runs.get(last)) is not None:
            repeats = sum(count for _, count in run) - len(fresh)
            return concat_changes(run, pa.chunked_array).without_first(repeats)
        try:
            return self._tabulate([self.later.get(transaction.bounds.position, transaction) for transaction in fresh])
        except DecodeError as error:
            positions = [transaction.bounds.position for transaction in self.batch.transactions]
            self.failed = positions.index(fresh[0].bounds.position) + error.good
            raise


class BronzeCommitPipeline:
    """Passes commits to the writer, at most one at a time; `poll` or `drain` take what a commit made durable.

    The next batch consists of what `decode` received since the last `append`; `tabulate` converts it to columns.

    The exit of its context waits for the current commit and drops its result: the next start reads bronze itself.
    """

    def __init__(
        self, bronze: BronzeWriter, tabulate: Tabulate, worker: Callable[[str], Executor] = one_thread
    ) -> None:
        """`worker` creates an executor of sequential tasks in a thread."""
        self._bronze = bronze
        self._tabulate = tabulate
        self._decoding = worker("decode")
        self._writing = worker("bronze")
        self._parts: list[_AnyPart] = []  # of the next batch
        self._undecoded_parts: list[_Part] = []  # of any batch, not decoded at the last check
        self._commit: Future[BronzeCommit] | None = None
        self._before: Future[BronzeCommit] | None = None  # further decoding waits for this commit
        self.fault: DecodeError | None = None
        """The error of the transaction after the last commit taken; nothing after it may be landed."""
        self._ended_by: DecodeError | None = None  # the same for the current commit

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writing.shutdown(wait=True)
        self._decoding.shutdown(wait=True, cancel_futures=True)

    @property
    def in_flight(self) -> bool:
        """True from the start of a commit until its result is taken."""
        return self._commit is not None

    @property
    def is_saturated(self) -> bool:
        """Whether so much waits for decoding that nothing more should be read."""
        self._undecoded_parts = [part for part in self._undecoded_parts if not part.columns.done()]
        return sum(part.size for part in self._undecoded_parts) >= _MOST_BEHIND

    def decode(self, transactions: Sequence[ReceivedTransaction]) -> None:
        """Start to decode further transactions of the next batch."""
        for large, group in groupby(transactions, key=lambda item: isinstance(item, InParts)):
            if large:
                self._parts += [item for item in group if isinstance(item, InParts)]
                continue
            together = list(group)
            if _in_order(self._parts):
                self._parts.append(together)
                continue
            size = sum(transaction.size for transaction in together)
            part = _Part(self._decoding.submit(self._decode, together, self._before), size)
            self._parts.append(part)
            self._undecoded_parts.append(part)

    def append(self, batch: TransactionBatch) -> None:
        """Start the commit of a batch whose transactions were all passed to `decode`; only when not busy."""
        assert self._commit is None
        parts, self._parts = self._parts, []
        self._commit = self._writing.submit(self._append, batch, parts)
        self._before = self._commit if _in_order(parts) else None

    def advance(self, position: int, confirm: int, empty: int) -> None:
        """Start an empty commit up to `position`; only when not busy."""
        assert self._commit is None
        self._commit = self._writing.submit(self._bronze.advance, position, confirm, empty)

    def wait(self, timeout: float) -> None:
        """Wait up to `timeout` seconds, until the current commit is done or something is decoded."""
        if self._commit is not None and self._commit.done():
            return
        under_way: list[Future[Any]] = [part.columns for part in self._undecoded_parts if not part.columns.done()]
        wait(under_way + ([self._commit] if self._commit is not None else []), timeout, FIRST_COMPLETED)

    def poll(self) -> BronzeCommit | None:
        """What the current commit made durable, once it is done; raises its error."""
        return self.drain() if self._commit is not None and self._commit.done() else None

    def drain(self) -> BronzeCommit | None:
        """Wait for the current commit without a limit; None if there is none."""
        if self._commit is None:
            return None
        commit, self._commit = self._commit, None
        landed = commit.result()
        self.fault = self._ended_by
        return landed

    def join_decoders(self) -> None:
        """Wait until nothing is being decoded: then another thread may call `tabulate`."""
        wait([part.columns for part in self._undecoded_parts])

    def _decode(self, transactions: Sequence[ReceivedTransaction], before: Future[BronzeCommit] | None) -> _Decoded:
        if before is not None:
            wait([before])
        try:
            return _Decoded(self._tabulate(transactions), len(transactions))
        except DecodeError as fault:
            good = transactions[: fault.good]
            return _Decoded(self._tabulate(good) if good else None, len(good), fault)

    def _append(self, batch: TransactionBatch, parts: list[_AnyPart]) -> BronzeCommit:
        ready = _Ready(batch, self._tabulate)
        run: list[tuple[ChangeColumns, int]] = []
        end = 0
        for part in parts:
            if isinstance(part, InParts):
                ready.add(run, end)
                run, end = [], end + 1
                continue
            if isinstance(part, list):
                ready.later.update((transaction.bounds.position, transaction) for transaction in part)
                end += len(part)
                continue
            decoded = part.columns.result()
            end += decoded.transactions
            if decoded.columns is not None:
                run.append((decoded.columns, decoded.transactions))
            if decoded.fault is not None:
                batch = self._good(batch, end, decoded.fault)
                break
        ready.add(run, end)
        try:
            landed = self._bronze.append(batch, ready)
        except DecodeError as fault:
            if ready.failed is None:
                raise
            landed = self._bronze.append(self._good(batch, ready.failed, fault), ready)
        for transaction in batch.transactions:
            release_transaction(transaction)
        return landed

    def _good(self, batch: TransactionBatch, count: int, fault: DecodeError) -> TransactionBatch:
        """The part of a batch before the undecodable transaction; raises its error if that is empty."""
        if not count:
            raise fault
        self._ended_by = fault
        return batch.first(count)


def _in_order(parts: Sequence[_AnyPart]) -> bool:
    """Whether the transactions after these must be decoded after them."""
    return any(isinstance(part, InParts) and part.in_order for part in parts)


PAUSES: Final = (0.5, 30.0)
"""Seconds: the first and the longest pause between two attempts."""

T = TypeVar("T")


class RetryingBronzeWriter:
    """A bronze writer that waits for its lake (`bronze.contract.BronzeWriter`); for one thread at a time.

    `stop` or its exit ends the wait with Stopped. It is entered for one connection.
    """

    def __init__(
        self,
        bronze: BronzeWriter,
        stop: threading.Event,
        report: ProgressReporter,
        note: ReceiverNote,
        pauses: tuple[float, float] = PAUSES,
    ) -> None:
        self._bronze = bronze
        self._stop = stop
        self._report = report
        self._note = note
        self._pauses = pauses
        self._left = threading.Event()

    def __enter__(self) -> Self:
        self._left.clear()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()

    def state(self) -> StreamCheckpoint | None:
        """What bronze has of the newest stream; not retried, because the loop retries with the whole connection."""
        return self._bronze.state()

    def begin_stream(self, stream: str, start: int, confirm: int | None = None, *, after: int = 0) -> StreamCheckpoint:
        """Start a stream; not retried, because its slot was just checked."""
        return self._bronze.begin_stream(stream, start, confirm, after=after)

    def append(
        self, batch: TransactionBatch | Sequence[ReceivedTransaction], tabulate: Tabulate = tabulate
    ) -> BronzeCommit:
        """Commit whole transactions in order; those at or below `upto` are dropped."""
        return self._outlast(lambda: self._bronze.append(batch, tabulate))

    def advance(self, position: int, confirm: int, empty: int = 0) -> BronzeCommit:
        """Record by an empty commit that nothing is missing up to `position`, and that `confirm` may be
        acknowledged.
        """
        return self._outlast(lambda: self._bronze.advance(position, confirm, empty))

    def turn_back(self, position: int) -> StreamCheckpoint:
        """Record that bronze is complete up to `position` only; not retried, as `begin_stream`."""
        return self._bronze.turn_back(position)

    def append_snapshot(
        self, snapshot: str, chunk: int, relation: Relation, rows: object, first_ordinal: int, position: int
    ) -> BronzeCommit:
        """Commit a chunk of snapshot rows, a list<string> array by position in the layout; a repeat is dropped."""
        return self._outlast(
            lambda: self._bronze.append_snapshot(snapshot, chunk, relation, rows, first_ordinal, position)
        )

    def as_landed(self, relation: Relation) -> Relation:
        """The layout of snapshot rows in bronze, which differs if columns are redacted."""
        return self._bronze.as_landed(relation)

    def _outlast(self, commit: Callable[[], T]) -> T:
        pause, longest = self._pauses
        waited = False
        while True:
            try:
                result = commit()
            except LakeError as error:
                if error.retry is Retry.NEVER or self._left.is_set():
                    raise
                if self._stop.is_set():
                    raise Stopped from error
                waited = True
                self._report(retrying(error, pause))
                self._note.waits(error)
                for _ in range(round(pause / 0.1)):  # at most until the wait is ended
                    if self._left.is_set() or self._stop.wait(0.1):
                        break
                pause = min(2 * pause, longest)
            else:
                if waited:
                    self._note.goes_on()
                    self._report(ProgressEvent("retry", "the lake is available again: the receiver continues"))
                return result


def retrying(error: LakeError, pause: float) -> ProgressEvent:
    """The event for a failure that is retried."""
    location = f" at {error.where}" if error.where else ""
    return ProgressEvent("retry", f"{error.message}{location}; next attempt in {pause:g} s", facts={"code": error.code})
