"""Landing: one bronze commit at a time, while the source is read and answered, and the next batch decoded.

Two threads of their own, one for each of what changes go through: they become columns, a few mebibytes of them at a
time and long before their batch is closed; then a batch is written and committed. Both work mostly outside of Python's
interpreter lock. What waits for decoding is bytes, what waits for writing is columns: the first are given back early.

Of a batch with a transaction that cannot be decoded what stands before it is committed; then there is a `fault`.

A large transaction is decoded by its writer, a part at a time. Where decoding one transaction takes what those before
it taught, so is what stands behind it in its batch; what the next batch has waits until it is landed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass
from itertools import groupby
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from cdc_lake.bronze.batch_rows import one_thread
from cdc_lake.bronze.port import BronzeWriter, ClosedBatch, Landed, Tabulate
from cdc_lake.decode.changes import ChangeColumns
from cdc_lake.decode.in_parts import InParts, dropped
from cdc_lake.decode.joined import joined
from cdc_lake.decode.raw import Raw
from cdc_lake.errors import DecodeError

PART_BYTES: Final = 2 << 20
"""Bytes of whole transactions that are worth decoding before their batch is closed."""

_MOST_BEHIND: Final = 4 * PART_BYTES


@dataclass(frozen=True, slots=True)
class _Decoded:
    """Columns of so many transactions, and why there are no more."""

    columns: ChangeColumns | None
    transactions: int
    fault: DecodeError | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    """Transactions being decoded, and their bytes."""

    columns: Future[_Decoded]
    size: int


@dataclass(frozen=True, slots=True)
class _Later:
    """Transactions that are decoded by their writer, as they stand behind a large one."""

    transactions: Sequence[Raw]


class _Ready:
    """What a batch's writer asks for columns (`bronze.port.Tabulate`): decoded before, but for parts of large ones and
    what has to be decoded behind them.
    """

    def __init__(self, batch: ClosedBatch, tabulate: Tabulate) -> None:
        self.batch = batch
        self.failed: int | None = None
        """Of the batch's transactions, the first one that could not be decoded by the writer."""
        self._tabulate = tabulate
        self._runs: dict[int, list[tuple[ChangeColumns, int]]] = {}  # by the position of the last transaction
        self._later: dict[int, Raw] = {}  # by position

    def add(self, run: list[tuple[ChangeColumns, int]], behind: int) -> None:
        """The columns of transactions that stand together, up to number `behind` of the batch, exclusive."""
        if run:
            self._runs[self.batch.transactions[behind - 1].bounds.position] = run

    def later(self, transactions: Sequence[Raw]) -> None:
        """These are decoded when they are asked for."""
        self._later.update((one.bounds.position, one) for one in transactions)

    def __call__(self, fresh: Sequence[Any]) -> ChangeColumns:
        last = fresh[-1].bounds.position
        if (run := self._runs.get(last)) is not None:
            repeats = sum(count for _, count in run) - len(fresh)
            return joined(run, pa.chunked_array).without_first(repeats)
        try:
            return self._tabulate([self._later.get(one.bounds.position, one) for one in fresh])
        except DecodeError as error:
            positions = [one.bounds.position for one in self.batch.transactions]
            self.failed = positions.index(fresh[0].bounds.position) + error.good
            raise


class Landing:
    """Hands commits to the writer. At most one is under way; what it made durable is taken by `taken` or `finish`.

    What was given to `decode` since the last `append` is what the next batch holds; `tabulate` makes columns of it.

    As a context manager it waits for the commit under way at the end and drops its result: bronze itself is asked
    at the next start.
    """

    def __init__(
        self, bronze: BronzeWriter, tabulate: Tabulate, worker: Callable[[str], Executor] = one_thread
    ) -> None:
        """`worker` makes what does one thing after the other, beside the caller."""
        self._bronze = bronze
        self._tabulate = tabulate
        self._decoding = worker("decode")
        self._writing = worker("bronze")
        self._parts: list[_Part | InParts | _Later] = []  # of the next batch
        self._behind: list[_Part] = []  # of any batch, not decoded yet when last looked at
        self._commit: Future[Landed] | None = None
        self._before: Future[Landed] | None = None  # what is decoded from now on waits for this commit
        self.fault: DecodeError | None = None
        """Of the transaction behind the commit taken last, where that ends early: nothing behind it is to be landed."""
        self._ended_by: DecodeError | None = None  # the same of the commit under way

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writing.shutdown(wait=True)
        self._decoding.shutdown(wait=True, cancel_futures=True)

    @property
    def busy(self) -> bool:
        """True from the start of a commit until its result is taken."""
        return self._commit is not None

    @property
    def behind(self) -> bool:
        """Whether so much waits for decoding that nothing more should be read."""
        self._behind = [part for part in self._behind if not part.columns.done()]
        return sum(part.size for part in self._behind) >= _MOST_BEHIND

    def decode(self, transactions: Sequence[Raw]) -> None:
        """Start to make columns of the transactions that the next batch has, behind those given before."""
        for large, some in groupby(transactions, key=lambda one: isinstance(one, InParts)):
            if large:
                self._parts += [one for one in some if isinstance(one, InParts)]
                continue
            together = list(some)
            if _in_order(self._parts):
                self._parts.append(_Later(together))
                continue
            size = sum(transaction.size for transaction in together)
            part = _Part(self._decoding.submit(self._decode, together, self._before), size)
            self._parts.append(part)
            self._behind.append(part)

    def append(self, batch: ClosedBatch) -> None:
        """Start the commit of a batch all of whose transactions were given to `decode`; only when not busy."""
        assert self._commit is None
        parts, self._parts = self._parts, []
        self._commit = self._writing.submit(self._append, batch, parts)
        self._before = self._commit if _in_order(parts) else None

    def advance(self, position: int, confirm: int, empty: int) -> None:
        """Start an empty commit up to `position`; only when not busy."""
        assert self._commit is None
        self._commit = self._writing.submit(self._bronze.advance, position, confirm, empty)

    def rest(self, timeout: float) -> None:
        """Wait up to `timeout` seconds, until the commit under way is made or something is decoded."""
        if self._commit is not None and self._commit.done():
            return
        under_way: list[Future[Any]] = [part.columns for part in self._behind if not part.columns.done()]
        wait(under_way + ([self._commit] if self._commit is not None else []), timeout, FIRST_COMPLETED)

    def taken(self) -> Landed | None:
        """What the commit under way made durable, once it is done; raises what it raised."""
        return self.finish() if self._commit is not None and self._commit.done() else None

    def finish(self) -> Landed | None:
        """Wait for the commit under way, however long; None where there is none."""
        if self._commit is None:
            return None
        commit, self._commit = self._commit, None
        landed = commit.result()
        self.fault = self._ended_by
        return landed

    def settle(self) -> None:
        """Wait until nothing is being decoded: `tabulate` may be called by somebody else then."""
        wait([part.columns for part in self._behind])

    def _decode(self, transactions: Sequence[Raw], before: Future[Landed] | None) -> _Decoded:
        if before is not None:
            wait([before])
        try:
            return _Decoded(self._tabulate(transactions), len(transactions))
        except DecodeError as fault:
            good = transactions[: fault.good]
            return _Decoded(self._tabulate(good) if good else None, len(good), fault)

    def _append(self, batch: ClosedBatch, parts: list[_Part | InParts | _Later]) -> Landed:
        ready = _Ready(batch, self._tabulate)
        run: list[tuple[ChangeColumns, int]] = []
        behind = 0
        for part in parts:
            if isinstance(part, InParts):
                ready.add(run, behind)
                run, behind = [], behind + 1
                continue
            if isinstance(part, _Later):
                ready.later(part.transactions)
                behind += len(part.transactions)
                continue
            decoded = part.columns.result()
            behind += decoded.transactions
            if decoded.columns is not None:
                run.append((decoded.columns, decoded.transactions))
            if decoded.fault is not None:
                batch = self._good(batch, behind, decoded.fault)
                break
        ready.add(run, behind)
        try:
            landed = self._bronze.append(batch, ready)
        except DecodeError as fault:
            if ready.failed is None:
                raise
            landed = self._bronze.append(self._good(batch, ready.failed, fault), ready)
        for transaction in batch.transactions:
            dropped(transaction)
        return landed

    def _good(self, batch: ClosedBatch, count: int, fault: DecodeError) -> ClosedBatch:
        """What of a batch stands before the transaction that cannot be decoded; raises its error where that is none."""
        if not count:
            raise fault
        self._ended_by = fault
        return batch.first(count)


def _in_order(parts: Sequence[_Part | InParts | _Later]) -> bool:
    """Whether what comes behind these is to be decoded behind them."""
    return any(isinstance(part, InParts) and part.in_order for part in parts)
