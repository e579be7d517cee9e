"""Landing: one bronze commit at a time and in order, while the source is read and answered, and the next batch decoded.

Two threads of their own, one for each of what a batch goes through: its changes become columns, then they are written
and committed. The two cost about the same, and each runs mostly outside Python's interpreter lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self

from cdc_lake.bronze.port import BronzeWriter, ClosedBatch, Landed, Tabulate
from cdc_lake.decode.changes import ChangeColumns
from cdc_lake.decode.raw import Tabulated

_MOST: Final = 2
"""Batches under way: one being committed, one being decoded. Each is held in memory."""


class Landing:
    """Hands commits to the writer, which makes one at a time; what it made durable is taken by `taken` or `finish`.

    While one is under way one more batch is taken in. Where a commit fails, those handed over behind it are not made.

    As a context manager it waits for the commit under way at the end and drops its result: bronze itself is asked
    at the next start.
    """

    def __init__(self, bronze: BronzeWriter) -> None:
        self._bronze = bronze
        self._decoding = ThreadPoolExecutor(1, thread_name_prefix="cdc-lake-decode")
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="cdc-lake-bronze")
        self._commits: deque[Future[Landed]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writing.shutdown(wait=True, cancel_futures=True)
        self._decoding.shutdown(wait=True, cancel_futures=True)

    @property
    def idle(self) -> bool:
        """True where every commit's result was taken."""
        return not self._commits

    @property
    def has_room(self) -> bool:
        """Whether one more batch may be handed over."""
        return len(self._commits) < _MOST

    def append(self, batch: ClosedBatch, tabulate: Tabulate) -> None:
        """Start the commit of a batch; only while there is room."""
        assert self.has_room
        before = self._commits[-1] if self._commits else None
        columns = self._decoding.submit(_columns_of, batch, tabulate)
        self._commits.append(self._writing.submit(self._append, before, columns))

    def advance(self, position: int, confirm: int, empty: int) -> None:
        """Start an empty commit up to `position`; only when idle."""
        assert self.idle
        self._commits.append(self._writing.submit(self._bronze.advance, position, confirm, empty))

    def taken(self, timeout: float = 0.0) -> Landed | None:
        """What the oldest commit under way made durable, waiting up to `timeout` seconds; raises what it raised."""
        if not self._commits:
            return None
        wait([self._commits[0]], timeout)
        return self._commits.popleft().result() if self._commits[0].done() else None

    def finish(self) -> Sequence[Landed]:
        """Wait for all commits under way, however long; raises what one of them raised."""
        landed = [commit.result() for commit in self._commits]
        self._commits.clear()
        return landed

    def _append(self, before: Future[Landed] | None, columns: Future[tuple[ClosedBatch, ChangeColumns]]) -> Landed:
        if before is not None:
            before.result()  # what failed is not passed over: its transactions would be missing
        batch, changes = columns.result()

        def given(fresh: Sequence[Any]) -> ChangeColumns:
            return changes.without_first(len(batch.transactions) - len(fresh))  # repeats come first

        return self._bronze.append(batch, given)


def _columns_of(batch: ClosedBatch, tabulate: Tabulate) -> tuple[ClosedBatch, ChangeColumns]:
    """The changes as columns, and the batch without the bytes they were made of, which are of no more use."""
    changes = tabulate(batch.transactions)
    bare = [Tabulated(raw.bounds, raw.size, raw.count) for raw in batch.transactions]
    return replace(batch, transactions=bare), changes
