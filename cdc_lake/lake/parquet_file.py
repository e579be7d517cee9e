"""Rows as one Parquet file, in the way all tables of this package have them, whatever their format."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import IO, Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from cdc_lake.observe.failpoint import FILE_OPEN, failpoint

ROW_GROUP_ROWS = 128 * 1024

Rows: TypeAlias = pa.Table | Iterable[pa.Table]
"""The rows of a file, whole or in parts, at least one; parts can be asked for again where a write is tried again."""


def write_parquet(rows: Rows, sink: IO[bytes] | Any, *, stats: Sequence[str], plain: Sequence[str]) -> None:
    """Write all rows. `stats`: columns with statistics; `plain`: columns a dictionary would only slow down.

    A part is a row group of its own, or several where it is larger than one.
    """
    parts = iter([rows] if isinstance(rows, pa.Table) else rows)
    first = next(parts)
    with pq.ParquetWriter(
        sink,
        first.schema,
        compression="zstd",
        compression_level=1,  # half of snappy's bytes at its speed; 3 halves the speed for nothing (measured)
        use_dictionary=[name for name in _leaves(first.schema) if name.split(".")[0] not in plain],
        write_statistics=[name for name in first.schema.names if name in stats],
        store_schema=False,
    ) as writer:
        for part in itertools.chain([first], parts):
            writer.write_table(part, row_group_size=ROW_GROUP_ROWS)
        failpoint(FILE_OPEN)


def _leaves(schema: pa.Schema) -> list[str]:
    """Column paths as Parquet names them."""
    return [f"{f.name}.list.element" if pa.types.is_list(f.type) else f.name for f in schema]
