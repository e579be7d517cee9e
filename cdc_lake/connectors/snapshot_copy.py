"""The initial copy into bronze: chunks of every table, read in one snapshot by one or several readers.

A reader reads one table or part of a table at a time. All readers use one snapshot, so all chunks of a table come from
it. The calling thread writes chunks in the order in which they arrive; ordinals and chunk numbers count over all
tables. A rate limit leaves capacity to the source.

Copies in parallel with a stream run in a thread with their own connections. Their failures are reported, and they start
again after a while, and with the next connection; the stream continues, except after a programming error. If the server
does not answer, the end of the stream closes their connections. `PeriodicTask` runs something regularly in the
background of a loop: after a failure it is opened again in the next round; if it hangs, it is abandoned.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, Generic, Self, TypeAlias, TypeVar

import pyarrow as pa

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.config.model import Snapshot
from cdc_lake.config.project import Project
from cdc_lake.connectors.base import ReceiverContext, TableFacts
from cdc_lake.control.snapshots import CopiedTable
from cdc_lake.errors import CdcLakeError
from cdc_lake.model.diagnostic import pluralize
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.observability.failpoints import SNAPSHOT_CHUNK, failpoint
from cdc_lake.source.socket_io import ConnectionRegistry, Opened
from cdc_lake.tables.control_tables import ControlTables, control_tables

_LOOK = 0.2  # seconds between checks whether to give up


class RateLimiter:
    """Limits a copy to a number of rows and bytes per second; None: no limit."""

    def __init__(
        self, rows: int | None = None, size: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = rows, size
        self._clock = clock
        self._due = 0.0

    def took(self, rows: int, size: int, stop: threading.Event) -> None:
        """Wait after a chunk until the next one is allowed, or until `stop` is set."""
        seconds = [took / limit for took, limit in zip((rows, size), self._limits, strict=True) if limit is not None]
        self._due = max(self._due, self._clock()) + max(seconds, default=0.0)
        while not stop.is_set() and (left := self._due - self._clock()) > 0:
            stop.wait(min(left, _LOOK))


_AHEAD = 1  # chunks that a reader may be ahead of the writer
_NOTHING = pa.array([], pa.list_(pa.string()))


R = TypeVar("R")
Chunk: TypeAlias = pa.ListArray | pa.ChunkedArray
"""Rows as list<string> by position in the layout. They are large, so references are dropped as early as possible."""

Part: TypeAlias = Callable[[R], Iterator[Chunk]]
"""Reads a part of a table with a reader, in chunks. Raises SourceError."""


@dataclass(frozen=True, slots=True)
class TableCopy(Generic[R]):
    """What to copy of a table: the parts that it consists of."""

    relation: Relation
    parts: Sequence[Part[R]]


class Stopped(Exception):
    """The copy was stopped before its end."""


def chunk_rows(limits: Snapshot) -> int:
    """Rows of a chunk; with a rate limit at most those of a second, for an even rate."""
    return min(limits.chunk_rows, limits.max_rows_per_second or limits.chunk_rows)


def copy_tables(
    context: ReceiverContext,
    copies: Sequence[TableCopy[R]],
    readers: Sequence[R],
    snapshot: str,
    position: int,
    facts: Iterable[TableFacts],
    finished: Callable[[CopiedTable], None] = lambda _: None,
) -> tuple[CopiedTable, ...]:
    """Copy tables as rows at `position` of a snapshot, with readers of one thread each.

    `facts`: of the tables, to estimate the rows; `finished`: called for each table that is complete in bronze. Raises
    SourceError, LakeError, Stopped.
    """
    bronze, stop, report = context.bronze, context.stop, context.report
    estimates = [fact.rows for fact in facts]
    expected = sum(rows or 0 for rows in estimates) if None not in estimates else None
    limits = context.project.pipeline.snapshot
    pace = RateLimiter(limits.max_rows_per_second, limits.max_bytes_per_second)
    counts = [_Count(len(copy.parts)) for copy in copies]
    ordinal = chunk = 0
    copied_tables: dict[int, CopiedTable] = {}
    for index, next_chunk in _parts(copies, readers, stop):
        relation, count = copies[index].relation, counts[index]
        count.left -= next_chunk is None
        # an empty table gets a chunk without rows, so that its layout is known from the start
        part = _NOTHING if next_chunk is None and not count.left and not count.chunks else next_chunk
        if part is not None:
            bronze.append_snapshot(snapshot, chunk, relation, part, ordinal, position)
            failpoint(SNAPSHOT_CHUNK)
            ordinal, chunk = ordinal + len(part), chunk + 1
            count.rows, count.chunks = count.rows + len(part), count.chunks + 1
            total = _ahead_of(ordinal, expected)
            report(ProgressEvent("snapshot", f"copying {relation.table}", ordinal, total, "rows"))
            pace.took(len(part), part.nbytes, stop)
        over = next_chunk is None
        del next_chunk, part
        if over and not count.left:
            layout = bronze.as_landed(relation).layout
            copied_tables[index] = CopiedTable(relation.table, layout, count.rows, count.chunks, position)
            finished(copied_tables[index])
            of = pluralize(len(copies), "table")
            text = f"copied {relation.table}: {pluralize(count.rows, 'row')}, {len(copied_tables)} of {of}"
            total = ordinal if len(copied_tables) == len(copies) else _ahead_of(ordinal, expected)
            report(ProgressEvent("snapshot", text, ordinal, total, "rows"))
    return tuple(copied_tables[index] for index in range(len(copies)))


def _ahead_of(copied_rows: int, expected: int | None) -> int | None:
    """The expected number of rows, until it is exceeded."""
    return expected if expected is not None and copied_rows < expected else None


@dataclass(slots=True)
class _Count:
    left: int  # parts
    rows: int = 0
    chunks: int = 0


def _parts(
    copies: Sequence[TableCopy[R]], readers: Sequence[R], stop: threading.Event
) -> Iterator[tuple[int, Chunk | None]]:
    """Chunks with the index of their table; None when a part of it is finished."""
    if len(readers) == 1:
        for index, copy in enumerate(copies):
            for part in copy.parts:
                for chunk in part(readers[0]):
                    if stop.is_set():
                        raise Stopped
                    yield index, chunk
                    del chunk
                yield index, None
        return
    with _Together(copies, readers, stop) as together:
        yield from together.chunks()


@dataclass
class _Together(Generic[R]):
    """Readers in separate threads, and the queue from which the writer takes chunks."""

    copies: Sequence[TableCopy[R]]
    readers: Sequence[R]
    stop: threading.Event
    over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._waiting: queue.Queue[tuple[int, Part[R]]] = queue.Queue()
        for index, copy in enumerate(self.copies):
            for part in copy.parts:
                self._waiting.put((index, part))
        self._left = self._waiting.qsize()
        self._ready: queue.Queue[tuple[int, Chunk | None]] = queue.Queue(_AHEAD)
        self._threads = ThreadPoolExecutor(len(self.readers), thread_name_prefix="cdc-lake-copy")
        self._running = [self._threads.submit(self._work, reader) for reader in self.readers]
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._threads.shutdown(wait=True)

    def chunks(self) -> Iterator[tuple[int, Chunk | None]]:
        """The chunks of all readers; raises a reader's error."""
        while self._left:
            if self.stop.is_set():
                raise Stopped
            for future in self._running:
                if future.done():
                    future.result()
            try:
                index, chunk = self._ready.get(timeout=_LOOK)
            except queue.Empty:
                continue
            self._left -= chunk is None
            yield index, chunk
            del chunk

    def _work(self, reader: R) -> None:
        while not self.over.is_set():
            try:
                index, part = self._waiting.get_nowait()
            except queue.Empty:
                return
            for chunk in part(reader):
                if not self._give(index, chunk):
                    return
                del chunk
            if not self._give(index, None):
                return

    def _give(self, index: int, chunk: Chunk | None) -> bool:
        """Put a chunk into the queue; False if the writer has ended."""
        while not self.over.is_set():
            try:
                self._ready.put((index, chunk), timeout=_LOOK)
            except queue.Full:
                continue
            return True
        return False


AGAIN: Final = 30.0
"""Seconds until a failed copy starts again."""


Recopy: TypeAlias = Callable[
    [Project, StreamCheckpoint, Sequence[TableName], ControlTables, threading.Event, ProgressReporter, Opened],
    tuple[CopiedTable, ...],
]
"""Copies tables of a stream, and activates the copies: `runtime.receive.stream_setup`. Raises CdcLakeError, Stopped."""


@dataclass
class BackgroundCopies:
    """Copies tables, if any, while it is entered. `lasting`: failed copies start again."""

    project: Project
    state: StreamCheckpoint
    tables: Sequence[TableName]
    recopy: Recopy
    report: ProgressReporter
    lasting: bool = field(kw_only=True)

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._connections = ConnectionRegistry()
        self._copied: tuple[CopiedTable, ...] = ()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="cdc-lake-came", daemon=True)

    def __enter__(self) -> Self:
        if self.tables:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._connections.end()
        if self.tables:
            self._thread.join()

    def wait_for_copies(
        self, meanwhile: Sequence[Callable[[], object]], stop: threading.Event
    ) -> tuple[CopiedTable, ...]:
        """Wait for complete copies; calls `meanwhile` regularly. Raises errors of the copies, Stopped."""
        while self._thread.is_alive():
            if stop.is_set():
                raise Stopped
            for action in meanwhile:
                action()
            self._thread.join(_LOOK)
        self.raise_background_errors()
        return self._copied

    def raise_background_errors(self) -> None:
        """Raise an error from which the copies cannot recover."""
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        while not self._over.is_set():
            try:
                control = control_tables(self.project, self.project.pipeline.bronze.durability)
                self._copied = self.recopy(
                    self.project, self.state, self.tables, control, self._over, self.report, self._connections.add
                )
            except Stopped:
                return
            except CdcLakeError as error:
                if self._over.is_set():
                    return
                if not self.lasting:
                    self._failure = error
                    return
                text = f"tables added to the pipeline are not copied yet: {error.message}; next attempt in {AGAIN:g} s"
                self.report(ProgressEvent("retry", text, facts={"code": error.code}))
                self._over.wait(AGAIN)
            except Exception as failure:  # noqa: BLE001 - handed to the thread that reads the stream
                self._failure = failure
                return
            else:
                return
            finally:
                self._connections.forget()


S = TypeVar("S")
_GRACE: Final = 2.0  # seconds for the current round to end


@dataclass
class PeriodicTask(Generic[S]):
    """Calls `each` at an interval while it is entered, with what `open_one` returned.

    A CdcLakeError of either is passed to `failed`.
    """

    name: str
    every: Callable[[], float]
    open_one: Callable[[], AbstractContextManager[S]]
    each: Callable[[S], None]
    failed: Callable[[CdcLakeError], None]

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_round, name=self.name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=_GRACE)

    def _go_round(self) -> None:
        while not self._over.is_set():
            try:
                with self.open_one() as opened:
                    while not self._over.is_set():
                        self.each(opened)
                        self._over.wait(self.every())
            except CdcLakeError as error:
                self.failed(error)
                self._over.wait(self.every())
