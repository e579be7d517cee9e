"""Shelf: rows of one side of a comparison by bucket, in memory while they are few, then on disk.

So whatever differs, only a part of it is matched at a time. A file is one group of rows, a record batch a part.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

ROWS_IN_MEMORY = 500_000
PARTS = 64


class Shelf:
    """Rows of one schema in `PARTS` parts; rows of one bucket are in one part."""

    def __init__(self, folder: Path, name: str, at_most: int = ROWS_IN_MEMORY) -> None:
        """`folder` is made when the first file is."""
        self._folder = folder
        self._name = name
        self._at_most = at_most
        self._open: list[tuple[pa.Table, Any]] = []
        self._rows = 0
        self._files: list[Path] = []

    @property
    def spilled(self) -> bool:
        """Whether some rows are on disk."""
        return bool(self._files)

    def add(self, rows: pa.Table, buckets: Any) -> None:
        """Put rows in; `buckets`: the bucket of each."""
        self._open.append((rows, buckets % PARTS))
        self._rows += rows.num_rows
        if self._rows >= self._at_most:
            self._spill()

    def whole(self) -> pa.Table | None:
        """All rows, where none is on disk; None where there are none."""
        return pa.concat_tables([rows for rows, _ in self._open]) if self._open else None

    def part(self, number: int) -> pa.Table | None:
        """The rows of one part; None where there are none."""
        found = [rows.filter(pa.array(parts == number)) for rows, parts in self._open]
        found += [table for file in self._files for table in _read(file, number)]
        return pa.concat_tables(found) if found else None

    def _spill(self) -> None:
        rows = pa.concat_tables([rows for rows, _ in self._open]).combine_chunks()
        parts = np.concatenate([parts for _, parts in self._open])
        ordered = rows.take(pa.array(np.argsort(parts, kind="stable")))
        ends = np.cumsum(np.bincount(parts, minlength=PARTS))
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = self._folder / f"{self._name}.{len(self._files)}.arrow"
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
            for first, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
                (batch,) = ordered.slice(first, end - first).combine_chunks().to_batches() or _no_rows(rows.schema)
                writer.write_batch(batch)
        self._files.append(file)
        self._open, self._rows = [], 0


def _no_rows(schema: pa.Schema) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)]


def _read(file: Path, number: int) -> Iterator[pa.Table]:
    with pa.OSFile(str(file), "rb") as source, pa.ipc.open_file(source) as reader:
        yield pa.Table.from_batches([reader.get_batch(number)])


def together(one: Shelf, other: Shelf) -> Iterator[tuple[pa.Table | None, pa.Table | None]]:
    """The rows of two shelves, so that rows of one bucket come together: all at once where they are few."""
    if not one.spilled and not other.spilled:
        yield one.whole(), other.whole()
        return
    for number in range(PARTS):
        yield one.part(number), other.part(number)
