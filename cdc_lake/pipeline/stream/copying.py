"""The initial copy into bronze: chunks of every table, read in one snapshot, by one reader or several side by side.

What one reader reads at a time is a table, or a part of one. All readers see one snapshot, so a table's chunks never
come from two. Chunks are written by the calling thread in the order they arrive; ordinals and chunk numbers count over
all tables.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, Self, TypeAlias, TypeVar

import pyarrow as pa

from cdc_lake.bronze.port import BronzeWriter
from cdc_lake.config.model import Snapshot
from cdc_lake.model.counting import counted
from cdc_lake.model.relation import Relation
from cdc_lake.observe.failpoint import SNAPSHOT_CHUNK, failpoint
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.ports.action import TableFacts
from cdc_lake.pipeline.state.copies import CopiedTable
from cdc_lake.pipeline.stream.pace import Pace

_AHEAD = 1  # chunks a reader may be ahead of the writer
_NOTHING = pa.array([], pa.list_(pa.string()))
_LOOK = 0.2  # seconds between looks at whether to give up


R = TypeVar("R")
Chunk: TypeAlias = pa.ListArray | pa.ChunkedArray
"""Rows as list<string> by position in the layout. Nobody keeps one a moment longer than it takes: they are large."""

Part: TypeAlias = Callable[[R], Iterator[Chunk]]
"""Reads a part of a table by a reader, in chunks. Raises SourceError."""


@dataclass(frozen=True, slots=True)
class TableCopy(Generic[R]):
    """What to copy of a table: parts that make it up together."""

    relation: Relation
    parts: Sequence[Part[R]]


@dataclass(frozen=True, slots=True)
class CopyPoint:
    """Where copied rows stand: the name of the snapshot they are read in, and its position."""

    snapshot: str
    position: int


class Stopped(Exception):
    """The copy was asked to stop before its end."""


def chunk_rows(limits: Snapshot) -> int:
    """Rows of a chunk; of a copy that is held back at most those of a second, so that it goes evenly."""
    return min(limits.chunk_rows, limits.max_rows_per_second or limits.chunk_rows)


def pace_of(limits: Snapshot) -> Pace:
    """How quickly a copy may go."""
    return Pace(limits.max_rows_per_second, limits.max_bytes_per_second)


def expected_rows(facts: Iterable[TableFacts]) -> int | None:
    """Rows of tables together as the planner estimates them; None where it does not for one of them."""
    rows = [fact.rows for fact in facts]
    known = [number for number in rows if number is not None]
    return sum(known) if len(known) == len(rows) else None


def copy_tables(
    copies: Sequence[TableCopy[R]],
    readers: Sequence[R],
    bronze: BronzeWriter,
    point: CopyPoint,
    stop: threading.Event,
    tell: Tell,
    expected: int | None = None,
    pace: Pace | None = None,
    finished: Callable[[CopiedTable], None] | None = None,
) -> tuple[CopiedTable, ...]:
    """Copy tables as rows at a point, by readers that are of one thread each. Raises SourceError, LakeError, Stopped.

    `expected`: rows of all of them together, as the planner thinks; `pace`: how quickly it may go; `finished`: told of
    each table that is in bronze whole.
    """
    counts = [_Count(len(copy.parts)) for copy in copies]
    ordinal = chunk = 0
    done: dict[int, CopiedTable] = {}
    for at, given in _parts(copies, readers, stop):
        relation, count = copies[at].relation, counts[at]
        count.left -= given is None
        # of an empty table a chunk without rows, so that its layout is known from the start
        part = _NOTHING if given is None and not count.left and not count.chunks else given
        if part is not None:
            bronze.append_snapshot(point.snapshot, chunk, relation, part, ordinal, point.position)
            failpoint(SNAPSHOT_CHUNK)
            ordinal, chunk = ordinal + len(part), chunk + 1
            count.rows, count.chunks = count.rows + len(part), count.chunks + 1
            tell(Progress("snapshot", f"copying {relation.table}", ordinal, _ahead_of(ordinal, expected), "rows"))
            if pace is not None:
                pace.took(len(part), part.nbytes, stop)
        over = given is None
        del given, part
        if over and not count.left:
            layout = bronze.as_landed(relation).layout
            done[at] = CopiedTable(relation.table, layout, count.rows, count.chunks, point.position)
            if finished is not None:
                finished(done[at])
            of = counted(len(copies), "table")
            text = f"copied {relation.table}: {counted(count.rows, 'row')}, {len(done)} of {of}"
            whole = ordinal if len(done) == len(copies) else _ahead_of(ordinal, expected)
            tell(Progress("snapshot", text, ordinal, whole, "rows"))
    return tuple(done[at] for at in range(len(copies)))


def _ahead_of(done: int, expected: int | None) -> int | None:
    """The expected end, as long as it was not reached: then nobody knows."""
    return expected if expected is not None and done < expected else None


@dataclass(slots=True)
class _Count:
    left: int  # parts
    rows: int = 0
    chunks: int = 0


def _parts(
    copies: Sequence[TableCopy[R]], readers: Sequence[R], stop: threading.Event
) -> Iterator[tuple[int, Chunk | None]]:
    """Chunks with the index of their table; None where a part of it is finished."""
    if len(readers) == 1:
        for at, copy in enumerate(copies):
            for part in copy.parts:
                for chunk in part(readers[0]):
                    if stop.is_set():
                        raise Stopped
                    yield at, chunk
                    del chunk
                yield at, None
        return
    with _Together(copies, readers, stop) as together:
        yield from together.chunks()


@dataclass
class _Together(Generic[R]):
    """Readers in threads of their own, and the queue that the writer takes from."""

    copies: Sequence[TableCopy[R]]
    readers: Sequence[R]
    stop: threading.Event
    over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._waiting: queue.Queue[tuple[int, Part[R]]] = queue.Queue()
        for at, copy in enumerate(self.copies):
            for part in copy.parts:
                self._waiting.put((at, part))
        self._left = self._waiting.qsize()
        self._ready: queue.Queue[tuple[int, Chunk | None]] = queue.Queue(_AHEAD)
        self._threads = ThreadPoolExecutor(len(self.readers), thread_name_prefix="cdc-lake-copy")
        self._running = [self._threads.submit(self._work, reader) for reader in self.readers]
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._threads.shutdown(wait=True)

    def chunks(self) -> Iterator[tuple[int, Chunk | None]]:
        """What the readers read; raises what one of them raised."""
        while self._left:
            if self.stop.is_set():
                raise Stopped
            for one in self._running:
                if one.done():
                    one.result()
            try:
                at, chunk = self._ready.get(timeout=_LOOK)
            except queue.Empty:
                continue
            self._left -= chunk is None
            yield at, chunk
            del chunk

    def _work(self, reader: R) -> None:
        while not self.over.is_set():
            try:
                at, part = self._waiting.get_nowait()
            except queue.Empty:
                return
            for chunk in part(reader):
                if not self._give(at, chunk):
                    return
                del chunk
            if not self._give(at, None):
                return

    def _give(self, at: int, chunk: Chunk | None) -> bool:
        """False where nobody takes any more."""
        while not self.over.is_set():
            try:
                self._ready.put((at, chunk), timeout=_LOOK)
            except queue.Full:
                continue
            return True
        return False
