"""The rows of a batch, a file's worth at a time: all of its ordinary transactions, the parts of each large one.

While one file is written, by a thread of its own, the rows of the next one are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa

from cdc_lake.bronze.large_rows import LargeRows
from cdc_lake.bronze.port import BronzeState, Tabulate
from cdc_lake.bronze.rows import build
from cdc_lake.decode.changes import ChangeColumns
from cdc_lake.decode.in_parts import InParts
from cdc_lake.decode.raw import Raw, Tabulated
from cdc_lake.errors import DecodeError

T = TypeVar("T")

_LARGE: Final = 16 << 20
"""Bytes of a part that is one large row: what Arrow took for it, several times as much, it keeps for a while when it is
not needed any more (measured), unless it is told to give it back.
"""
_FEW: Final = 1000
"""Fewer rows than that, in a table of so many bytes, are large ones."""


def one_thread(name: str) -> Executor:
    """A thread of its own."""
    return ThreadPoolExecutor(1, thread_name_prefix=f"cdc-lake-{name}")


class BatchRows:
    """Rows of ascending transactions behind `before`. Once all were given, `head` is the last one's hash, `changes` how
    many there are, `operations` how many of each kind. `worker` makes what writes files, beside the caller.
    """

    def __init__(
        self,
        fresh: Sequence[Raw],
        tabulate: Tabulate,
        before: BronzeState,
        ingest_ts: int,
        worker: Callable[[str], Executor] = one_thread,
    ) -> None:
        self._fresh = fresh
        self._tabulate = tabulate
        self._before = before
        self._build = partial(build, stream=before.stream, epoch=before.epoch, ingest_ts=ingest_ts)
        self._worker = worker
        self._faults: dict[int, DecodeError] = {}
        self._under_way: InParts | None = None
        self._numbers = np.zeros(256, np.int64)
        self.head = before.head

    def each(self, use: Callable[[pa.Table], list[T]]) -> list[T]:
        """What `use`, called by the worker, makes of the rows, a file's worth at a time and in order. Starts over,
        also when asked for again, where the parts of a large transaction begin elsewhere, or all of it is kept as
        bytes. Raises DecodeError, LakeError.
        """
        with self._worker("files") as pool:
            while True:
                try:
                    return _used(self._tables(), lambda table: pool.submit(use, table))
                except DecodeError as error:
                    if not self._keeps(error):
                        raise

    def _tables(self) -> Iterator[pa.Table]:
        self.head, self._under_way = self._before.head, None
        self._numbers[:] = 0
        for run in _runs(self._fresh):
            if isinstance(run, InParts):
                yield from self._large(run)
                continue
            changes = self._tabulate(run)
            self._count(changes)
            rows, self.head = self._build(run, changes, previous=self.head)
            yield rows

    def _keeps(self, error: DecodeError) -> bool:
        """Whether to start over after this error."""
        large = self._under_way
        if large is None or large.bounds.position in self._faults:
            return False
        if not large.cut_otherwise(error):
            self._faults[large.bounds.position] = error.with_traceback(None)  # which would keep the part in memory
        return True

    @property
    def changes(self) -> int:
        """How many changes there are."""
        return int(self._numbers.sum())

    @property
    def operations(self) -> dict[str, int]:
        """Of the changes: `I U D T M X` → how many."""
        return {chr(code): number for code, number in enumerate(self._numbers.tolist()) if number}

    def _large(self, large: InParts) -> Iterator[pa.Table]:
        rows = LargeRows(large, self._build, self.head)
        self._under_way = large
        for part in large.parts(self._faults.get(large.bounds.position)):
            changes, told = self._tabulate([part]), Tabulated(part.bounds, part.size, part.count)
            del part  # its bytes are not needed while its rows are written
            _released(told)
            self._count(changes)
            table = rows.part(told, changes)
            if table.num_rows:  # none where all of it was taken back
                yield table
            del changes, table
            _released(told)
        self._under_way = None
        self.head = rows.head

    def _count(self, changes: ChangeColumns) -> None:
        self._numbers += np.bincount(changes.op, minlength=256)


def _used(tables: Iterator[pa.Table], use: Callable[[pa.Table], Future[list[T]]]) -> list[T]:
    """What comes of each table; at most one is in use while the next one is made, and none that is of a large row."""
    out: list[T] = []
    before: Future[list[T]] | None = None
    for table in tables:
        out += before.result() if before is not None else []
        before = use(table)
        if table.num_rows < _FEW and table.nbytes >= _LARGE:
            out, before = out + before.result(), None
        del table
    return out + (before.result() if before is not None else [])


def _released(part: Raw) -> None:
    if part.size >= _LARGE:
        pa.default_memory_pool().release_unused()


def _runs(transactions: Sequence[Raw]) -> Iterator[Sequence[Raw] | InParts]:
    """Ordinary transactions that stand together, and each large one."""
    run: list[Raw] = []
    for one in transactions:
        if isinstance(one, InParts):
            if run:
                yield run
            yield one
            run = []
        else:
            run.append(one)
    if run:
        yield run
