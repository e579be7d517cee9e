"""The rows of a batch, a file's worth at a time: all of its ordinary transactions, the parts of each large one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa

from cdc_lake.bronze.large_rows import LargeRows
from cdc_lake.bronze.port import BronzeState, Tabulate
from cdc_lake.bronze.rows import build
from cdc_lake.decode.changes import ChangeColumns
from cdc_lake.decode.in_parts import InParts
from cdc_lake.decode.raw import Raw
from cdc_lake.errors import DecodeError

T = TypeVar("T")


class BatchRows:
    """Rows of ascending transactions behind `before`. Once all were given, `head` is the last one's hash, `changes` how
    many there are, `operations` how many of each kind.
    """

    def __init__(self, fresh: Sequence[Raw], tabulate: Tabulate, before: BronzeState, ingest_ts: int) -> None:
        self._fresh = fresh
        self._tabulate = tabulate
        self._before = before
        self._build = partial(build, stream=before.stream, epoch=before.epoch, ingest_ts=ingest_ts)
        self._faults: dict[int, DecodeError] = {}
        self._under_way: InParts | None = None
        self._numbers = np.zeros(256, np.int64)
        self.head = before.head

    def each(self, use: Callable[[pa.Table], list[T]]) -> list[T]:
        """What `use` makes of the rows, a file's worth at a time and in order. Starts over, also when asked for again,
        where the parts of a large transaction begin elsewhere, or all of it is kept as bytes. Raises DecodeError,
        LakeError.
        """
        while True:
            try:
                return [one for table in self._tables() for one in use(table)]
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
            self._faults[large.bounds.position] = error
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
            changes = self._tabulate([part])
            self._count(changes)
            table = rows.part(part, changes)
            if table.num_rows:  # none where all of it was taken back
                yield table
        self._under_way = None
        self.head = rows.head

    def _count(self, changes: ChangeColumns) -> None:
        self._numbers += np.bincount(changes.op, minlength=256)


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
