"""The initial copy into bronze: chunks of every table, read in one snapshot, by one reader or several side by side.

A table is read by one reader from its first row to its last, so its chunks never come from two snapshots. Chunks are
written by the calling thread in the order they arrive; ordinals and chunk numbers count over all tables.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol, Self

import pyarrow as pa

from cdc_lake.bronze.port import BronzeState, BronzeWriter
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.observe.failpoint import SNAPSHOT_CHUNK, failpoint
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.action import TableFacts

_AHEAD = 2  # chunks a reader may be ahead of the writer
_LOOK = 0.2  # seconds between looks at whether to give up


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """One table of a finished copy."""

    relation: TableName
    layout: int
    rows: int
    chunks: int


class Stopped(Exception):
    """The copy was asked to stop; it starts anew next time."""


class TableReader(Protocol):
    """Reads tables in the snapshot that all readers of a copy share; for one thread."""

    def read(self, relation: Relation) -> Iterator[pa.ListArray]:
        """The table's rows in chunks of list<string> by position in the layout. Raises SourceError."""
        ...


def snapshot_id(epoch: int) -> str:
    """Name of the initial copy of a stream, unique in the pipeline."""
    return f"initial-{epoch}"


def expected_rows(facts: Iterable[TableFacts]) -> int | None:
    """Rows of tables together as the planner estimates them; None where it does not for one of them."""
    rows = [fact.rows for fact in facts]
    known = [number for number in rows if number is not None]
    return sum(known) if len(known) == len(rows) else None


def copy_tables(
    relations: Sequence[Relation],
    readers: Sequence[TableReader],
    bronze: BronzeWriter,
    state: BronzeState,
    stop: threading.Event,
    tell: Tell,
    expected: int | None = None,
) -> tuple[CopiedTable, ...]:
    """Copy tables as rows at the stream's start. Raises SourceError, LakeError, Stopped.

    `expected`: rows of all of them together, as the planner thinks.
    """
    counts = [_Count() for _ in relations]
    ordinal = chunk = finished = 0
    for at, part in _parts(relations, readers, stop):
        relation, count = relations[at], counts[at]
        if part is None:
            finished += 1
            text = f"copied {relation.table}: {count.rows} rows, {finished} of {len(relations)} tables"
            whole = ordinal if finished == len(relations) else _ahead_of(ordinal, expected)
            tell(Progress("snapshot", text, ordinal, whole, "rows"))
            continue
        bronze.append_snapshot(snapshot_id(state.epoch), chunk, relation, part, ordinal, state.upto)
        failpoint(SNAPSHOT_CHUNK)
        ordinal, chunk = ordinal + len(part), chunk + 1
        count.rows, count.chunks = count.rows + len(part), count.chunks + 1
        tell(Progress("snapshot", f"copying {relation.table}", ordinal, _ahead_of(ordinal, expected), "rows"))
    return tuple(
        CopiedTable(relation.table, relation.layout, count.rows, count.chunks)
        for relation, count in zip(relations, counts, strict=True)
    )


def _ahead_of(done: int, expected: int | None) -> int | None:
    """The expected end, as long as it was not reached: then nobody knows."""
    return expected if expected is not None and done < expected else None


@dataclass(slots=True)
class _Count:
    rows: int = 0
    chunks: int = 0


def _parts(
    relations: Sequence[Relation], readers: Sequence[TableReader], stop: threading.Event
) -> Iterator[tuple[int, pa.ListArray | None]]:
    """Chunks with the index of their table; None where a table is finished."""
    if len(readers) == 1:
        for at, relation in enumerate(relations):
            for part in _chunks(readers[0], relation):
                if stop.is_set():
                    raise Stopped
                yield at, part
            yield at, None
        return
    with _Together(relations, readers, stop) as together:
        yield from together.parts()


def _chunks(reader: TableReader, relation: Relation) -> Iterator[pa.ListArray]:
    """The table's chunks; one without rows for an empty table, so that its layout is known from the start."""
    empty = True
    for part in reader.read(relation):
        empty = False
        yield part
    if empty:
        yield pa.array([], pa.list_(pa.string()))


@dataclass
class _Together:
    """Readers in threads of their own, and the queue that the writer takes from."""

    relations: Sequence[Relation]
    readers: Sequence[TableReader]
    stop: threading.Event
    over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._waiting: queue.Queue[int] = queue.Queue()
        for at in range(len(self.relations)):
            self._waiting.put(at)
        self._ready: queue.Queue[tuple[int, pa.ListArray | None]] = queue.Queue(_AHEAD * len(self.readers))
        self._threads = ThreadPoolExecutor(len(self.readers), thread_name_prefix="cdc-lake-copy")
        self._running = [self._threads.submit(self._work, reader) for reader in self.readers]
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._threads.shutdown(wait=True)

    def parts(self) -> Iterator[tuple[int, pa.ListArray | None]]:
        """What the readers read; raises what one of them raised."""
        left = len(self.relations)
        while left:
            if self.stop.is_set():
                raise Stopped
            try:
                at, part = self._ready.get(timeout=_LOOK)
            except queue.Empty:
                for one in self._running:
                    if one.done():
                        one.result()
                continue
            left -= part is None
            yield at, part

    def _work(self, reader: TableReader) -> None:
        while not self.over.is_set():
            try:
                at = self._waiting.get_nowait()
            except queue.Empty:
                return
            parts: Iterable[pa.ListArray | None] = _chunks(reader, self.relations[at])
            for part in parts:
                if not self._give(at, part):
                    return
            if not self._give(at, None):
                return

    def _give(self, at: int, part: pa.ListArray | None) -> bool:
        """False where nobody takes any more."""
        while not self.over.is_set():
            try:
                self._ready.put((at, part), timeout=_LOOK)
            except queue.Full:
                continue
            return True
        return False
