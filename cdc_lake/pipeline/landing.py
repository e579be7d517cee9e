"""Landing: one bronze commit at a time, in a thread of its own, so that the source is read and answered meanwhile."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Self

from cdc_lake.bronze.port import BronzeWriter, ClosedBatch, Landed, Tabulate


class Landing:
    """Hands commits to the writer. At most one is under way; what it made durable is taken by `taken` or `finish`.

    As a context manager it waits for the commit under way at the end and drops its result: bronze itself is asked
    at the next start.
    """

    def __init__(self, bronze: BronzeWriter) -> None:
        self._bronze = bronze
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cdc-lake-bronze")
        self._commit: Future[Landed] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True)

    @property
    def busy(self) -> bool:
        """True from the start of a commit until its result is taken."""
        return self._commit is not None

    def append(self, batch: ClosedBatch, tabulate: Tabulate) -> None:
        """Start the commit of a batch; only when not busy."""
        assert self._commit is None
        self._commit = self._thread.submit(self._bronze.append, batch, tabulate)

    def advance(self, position: int, confirm: int, empty: int) -> None:
        """Start an empty commit up to `position`; only when not busy."""
        assert self._commit is None
        self._commit = self._thread.submit(self._bronze.advance, position, confirm, empty)

    def taken(self, timeout: float = 0.0) -> Landed | None:
        """What the commit under way made durable, waiting up to `timeout` seconds; raises what it raised."""
        if self._commit is None:
            return None
        wait([self._commit], timeout)
        if not self._commit.done():
            return None
        commit, self._commit = self._commit, None
        return commit.result()

    def finish(self) -> Landed | None:
        """Wait for the commit under way, however long; None where there is none."""
        if self._commit is None:
            return None
        commit, self._commit = self._commit, None
        return commit.result()
