"""Bounds: smallest and greatest values, NULLs and number of rows of a data file, gathered while it is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.lake.parquet_file import Rows


class Bounds:
    """Of the named columns, none or all of scalar type; a column without values has no bounds.

    `loose`: bounds of columns whose real ones are too long for the table's metadata.
    """

    def __init__(self, columns: Sequence[str], loose: Mapping[str, tuple[str, str]] | None = None) -> None:
        self.columns = columns
        self.rows = 0
        self.low: dict[str, Any] = {}
        self.high: dict[str, Any] = {}
        self._loose = loose or {}
        self.nulls = dict.fromkeys((*columns, *(self._loose if columns else ())), 0)

    def seen(self, rows: Rows) -> Iterator[pa.Table]:
        """The rows as they are, part by part, each counted as it passes."""
        parts: Iterable[pa.Table] = [rows] if isinstance(rows, pa.Table) else rows
        for part in parts:
            self._add(part)
            yield part

    def _add(self, part: pa.Table) -> None:
        self.rows += part.num_rows
        for name in self.nulls:
            missing = part[name].null_count
            self.nulls[name] += missing
            if missing == part.num_rows:
                continue
            if name in self._loose:
                self.low[name], self.high[name] = self._loose[name]
                continue
            found = pc.min_max(part[name]).as_py()
            low, high = found["min"], found["max"]
            self.low[name] = min(low, self.low[name]) if name in self.low else low
            self.high[name] = max(high, self.high[name]) if name in self.high else high
