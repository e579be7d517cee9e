"""Rows as one Parquet file, in the way all tables of this package have them, whatever their format."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import IO, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_lake.observe.failpoint import FILE_OPEN, failpoint

ROW_GROUP_ROWS = 128 * 1024

_LEVEL: Final = 1
"""Of zstd: half of snappy's bytes at its speed; 3 halves the speed for nothing (measured)."""
_LARGE: Final = 64 << 20
"""Bytes of a value from which on its page is compressed only where that is worth a copy more of it in memory."""
_WORTH: Final = 0.6
_SAMPLES: Final = 16
_SAMPLE: Final = 64 << 10  # bytes of each

Rows: TypeAlias = pa.Table | Iterable[pa.Table]
"""The rows of a file, whole or in parts, at least one; parts can be asked for again where a write is tried again."""


def write_parquet(rows: Rows, sink: IO[bytes] | Any, *, stats: Sequence[str], plain: Sequence[str]) -> None:
    """Write all rows. `stats`: columns with statistics; `plain`: columns a dictionary would only slow down.

    A part is a row group of its own, or several where it is larger than one. The first one tells how columns are
    compressed, as the writer takes one choice for a file and parts are made as they are asked for: to look at all of
    them before would make them twice. A very large value of a later part that does not compress costs a copy more of it
    in memory; behind one in the first part, the column's other values stay as large as they are.
    """
    parts = iter([rows] if isinstance(rows, pa.Table) else rows)
    first = next(parts)
    leaves = _leaves(first.schema)
    packed = [name for name, column in zip(leaves, first.columns, strict=True) if _is_worth_packing(column)]
    with pq.ParquetWriter(
        sink,
        first.schema,
        compression={name: "zstd" if name in packed else "none" for name in leaves},
        compression_level=dict.fromkeys(packed, _LEVEL),
        use_dictionary=[name for name in leaves if name.split(".")[0] not in plain],
        write_statistics=[name for name in first.schema.names if name in stats],
        store_schema=False,
    ) as writer:
        for part in itertools.chain([first], parts):
            writer.write_table(part, row_group_size=ROW_GROUP_ROWS)
        failpoint(FILE_OPEN)


def _leaves(schema: pa.Schema) -> list[str]:
    """Column paths as Parquet names them."""
    return [f"{f.name}.list.element" if pa.types.is_list(f.type) else f.name for f in schema]


def _is_worth_packing(column: pa.ChunkedArray) -> bool:
    """Whether to compress it; its largest value tells, where that is very large."""
    if column.nbytes < _LARGE:
        return True
    for chunk in column.chunks:
        values = chunk.flatten() if pa.types.is_list(chunk.type) else chunk
        if not (pa.types.is_string(values.type) or pa.types.is_binary(values.type)) or values.nbytes < _LARGE:
            continue
        sizes = pc.binary_length(values)
        if (size := pc.max(sizes).as_py() or 0) >= _LARGE:
            value = memoryview(values[pc.index(sizes, size).as_py()].as_buffer())
            step = size // _SAMPLES
            sample = b"".join(value[at : at + _SAMPLE] for at in range(0, step * _SAMPLES, step))
            return len(pa.Codec("zstd", _LEVEL).compress(sample)) < _WORTH * len(sample)
    return True
