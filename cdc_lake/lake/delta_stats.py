"""Delta's per-file statistics (protocol, section Per-file Statistics), gathered while a file's rows are written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.lake.parquet_file import Rows


class Bounds:
    """Number of rows and, of the named columns, smallest and greatest values and NULLs.

    `columns`: none, or all of scalar type; `loose`: bounds of columns whose real ones are too long for the log.
    """

    def __init__(self, columns: Sequence[str], loose: Mapping[str, tuple[str, str]] | None = None) -> None:
        self._columns = columns
        self._loose = loose or {}
        self._rows = 0
        self._nulls = dict.fromkeys((*columns, *(self._loose if columns else ())), 0)
        self._low: dict[str, Any] = {}
        self._high: dict[str, Any] = {}

    def seen(self, rows: Rows) -> Iterator[pa.Table]:
        """The rows as they are, part by part, each counted as it passes."""
        parts: Iterable[pa.Table] = [rows] if isinstance(rows, pa.Table) else rows
        for part in parts:
            self._add(part)
            yield part

    def text(self) -> str:
        """The statistics of what has passed, as JSON."""
        if not self._columns:
            return json.dumps({"numRecords": self._rows})
        return json.dumps(
            {
                "numRecords": self._rows,
                "minValues": self._low,
                "maxValues": self._high,
                "nullCount": self._nulls,
            },
            ensure_ascii=False,
            default=_time,
        )

    def _add(self, part: pa.Table) -> None:
        self._rows += part.num_rows
        for name in self._nulls:
            missing = part[name].null_count
            self._nulls[name] += missing
            if missing == part.num_rows:
                continue
            if name in self._loose:
                self._low[name], self._high[name] = self._loose[name]
                continue
            found = pc.min_max(part[name]).as_py()
            low, high = found["min"], found["max"]
            self._low[name] = min(low, self._low[name]) if name in self._low else low
            self._high[name] = max(high, self._high[name]) if name in self._high else high


def _time(value: object) -> str:
    if not isinstance(value, datetime):
        msg = f"statistics of {type(value).__name__} have no form in Delta"
        raise TypeError(msg)
    return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
