"""The rows of a batch, a file's worth at a time: all of its ordinary transactions, the parts of each large one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from cdc_lake.bronze.large_rows import LargeRows
from cdc_lake.bronze.port import BronzeState, Tabulate
from cdc_lake.bronze.rows import build
from cdc_lake.decode.changes import ChangeColumns
from cdc_lake.decode.large import LargeTransaction
from cdc_lake.decode.raw import Raw
from cdc_lake.errors import DecodeError


class BatchRows:
    """Rows of ascending transactions behind `before`. Once `tables` is at its end, `head` is the last one's hash,
    `changes` how many there are, `operations` how many of each kind.
    """

    def __init__(self, fresh: Sequence[Raw], tabulate: Tabulate, before: BronzeState, ingest_ts: int) -> None:
        self._fresh = fresh
        self._tabulate = tabulate
        self._before = before
        self._build = partial(build, stream=before.stream, epoch=before.epoch, ingest_ts=ingest_ts)
        self._faults: dict[int, DecodeError] = {}
        self._at: int | None = None  # the large one under way
        self._numbers = np.zeros(256, np.int64)
        self.head = before.head

    def tables(self) -> Iterator[pa.Table]:
        """The rows in order. Can be asked for again, which starts over. Raises DecodeError, LakeError."""
        self.head, self._at = self._before.head, None
        self._numbers[:] = 0
        for run in _runs(self._fresh):
            if isinstance(run, LargeTransaction):
                yield from self._large(run)
                continue
            changes = self._tabulate(run)
            self._count(changes)
            rows, self.head = self._build(run, changes, previous=self.head)
            yield rows

    def keeps(self, error: DecodeError) -> bool:
        """Whether `tables` should be asked for again after this error: then of a large transaction all is kept as
        bytes, where the pipeline wants that.
        """
        at = self._at
        if at is None or at in self._faults:
            return False
        self._faults[at] = error
        return True

    @property
    def changes(self) -> int:
        """How many changes there are."""
        return int(self._numbers.sum())

    @property
    def operations(self) -> dict[str, int]:
        """Of the changes: `I U D T M X` → how many."""
        return {chr(code): number for code, number in enumerate(self._numbers.tolist()) if number}

    def _large(self, large: LargeTransaction) -> Iterator[pa.Table]:
        rows = LargeRows(large, self._build, self.head)
        self._at = at = large.bounds.position
        for part in large.parts(self._faults.get(at)):
            changes = self._tabulate([part])
            self._count(changes)
            yield rows.part(part, changes)
        self._at = None
        self.head = rows.head

    def _count(self, changes: ChangeColumns) -> None:
        self._numbers += np.bincount(changes.op, minlength=256)


def _runs(transactions: Sequence[Raw]) -> Iterator[Sequence[Raw] | LargeTransaction]:
    """Ordinary transactions that stand together, and each large one."""
    run: list[Raw] = []
    for one in transactions:
        if isinstance(one, LargeTransaction):
            if run:
                yield run
            yield one
            run = []
        else:
            run.append(one)
    if run:
        yield run
