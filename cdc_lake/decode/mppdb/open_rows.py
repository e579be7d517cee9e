"""Open rows: those of the transaction whose COMMIT has not come, in memory and, beyond a size, in a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from cdc_lake.decode.frames import AllInMemory, FrameStore, NewFrames
from cdc_lake.decode.mppdb.bounding import STORABLE
from cdc_lake.decode.mppdb.captured import Captured
from cdc_lake.decode.mppdb.large_records import LargeRecords
from cdc_lake.decode.mppdb.raw import RecordTransaction
from cdc_lake.decode.mppdb.records import Style
from cdc_lake.decode.mppdb.runs import Lsns, Rows, Run
from cdc_lake.errors import MalformedMessage
from cdc_lake.model.transaction import Boundaries

Whole: TypeAlias = RecordTransaction | LargeRecords
"""A committed transaction as the assemblers give it."""


class OpenRows:
    """Rows of one transaction after the other, of which those are left out that are not captured.

    Who appends to `records` and `lsns` tells by `grown`. `captured`: None leaves nothing out.
    """

    def __init__(self, style: Style, frames: NewFrames | None, captured: Captured | None = None) -> None:
        """`frames` makes stores for transactions that are large; None: all are held in memory."""
        self._style = style
        self._new_store: NewFrames = frames or AllInMemory()
        self._part = self._new_store.part
        self._captured = captured
        self._store: FrameStore | None = None
        self.forget()

    def forget(self) -> None:
        """Begin with nothing."""
        if self._store is not None:
            self._store.close()
        self._begin()

    def _begin(self) -> None:
        self._store = None
        self._start()

    def _start(self) -> None:
        self.records: list[bytes] = []
        self.lsns: list[int] = []
        self._before: list[tuple[list[bytes], list[int], Run]] = []  # records and LSNs, and a run behind them
        self._held = 0

    @property
    def size(self) -> int:
        """Bytes of the rows."""
        return self._held + (0 if self._store is None else self._store.size)

    @property
    def some(self) -> bool:
        """Whether there were rows, captured or not."""
        return bool(self.records or self._before or self._store is not None)

    def keep(self, record: bytes, lsn: int) -> None:
        """Add a row. Raises LakeError, as all that adds does."""
        self.records.append(record)
        self.lsns.append(lsn)
        self.grown(len(record))

    def keep_run(self, run: Run) -> None:
        """Add the rows of a run."""
        self._before.append((self.records, self.lsns, run))
        self.records, self.lsns = [], []
        self.grown(run.size)

    def grown(self, size: int) -> None:
        """So many bytes of rows were added."""
        self._held += size
        if self._held > self._part:
            self._outgrown()

    def check(self, offset: int = 0) -> None:
        """Raise MalformedMessage where bronze could not hold the LSN of a row."""
        for numbers in (self.lsns, *(earlier for _, earlier, _ in self._before)):
            if numbers and max(numbers) >= STORABLE:
                raise MalformedMessage("a row whose LSN is above 63 bits", offset=offset)

    def closed(self, bounds: Boundaries) -> Whole:
        """The transaction, which is committed, and nothing is open. Raises LakeError."""
        if self._store is not None:
            self._outgrown()
        store, rows = self._store, self._kept()
        self._begin()
        if store is None:
            return RecordTransaction(bounds, self._style, *rows)
        store.seal()
        if store.spilled and store.size >= self._part:
            return LargeRecords(bounds, self._style, store, store.size, len(store))
        records, lsns = next(store.parts(), ([], []))  # most of it was not captured: one part
        store.close()
        return RecordTransaction(bounds, self._style, records, lsns, sum(map(len, records)))

    def set_aside(self) -> FrameStore:
        """The rows in a store, which the caller closes, and nothing is open: the transaction is prepared. Raises
        LakeError.
        """
        self._outgrown()
        store = self._store
        assert store is not None, "made, where there was none"
        self._begin()
        store.seal()
        return store

    def _outgrown(self) -> None:
        """The transaction goes on in a store."""
        self.check()
        if self._store is None:
            self._store = self._new_store()
        records, lsns, _ = self._kept()
        self._store.extend(records, lsns)
        self._start()

    def _kept(self) -> tuple[Sequence[bytes], Sequence[int], int]:
        """What is in memory and captured: rows, their LSNs, bytes."""
        records, lsns = self._held_rows()
        if self._captured is None:
            return records, lsns, self._held
        return self._captured.rows(self._style, records, lsns, self._held)

    def _held_rows(self) -> tuple[Sequence[bytes], Sequence[int]]:
        if not self._before:
            return self.records, self.lsns
        rows: list[Run | list[bytes]] = []
        lsns: list[Any] = []
        for records, numbers, run in self._before:
            rows += [records, run]
            lsns += [np.array(numbers, np.int64), run.lsn]
        return Rows([*rows, self.records]), Lsns([*lsns, np.array(self.lsns, np.int64)])
