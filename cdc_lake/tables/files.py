"""Writes rows as one Parquet file, collects their bounds meanwhile, and syncs files and folders.

A file's content survives a power failure once it is synced, its name once its folder is. Bounds are minimum and maximum
values, NULL counts and the number of rows.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_lake.observability.failpoints import FILE_OPEN, failpoint

_FOREIGN: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF}
)
"""Errors of syncing a folder that are harmless, or that mean that the file system does not support it."""

_ON_DISK: Final[set[tuple[Path, int]]] = set()
"""Folders, by path and inode, whose names this process has synced."""


def sync(path: Path) -> None:
    """Sync a file or a folder to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path, *, durable: bool = True) -> None:
    """Create a folder and its parents; durably if so, existing ones too, whose creator may not have synced."""
    if not durable:
        folder.mkdir(parents=True, exist_ok=True)
        return
    new = {path for path in (folder, *folder.parents) if not path.exists()}
    folder.mkdir(parents=True, exist_ok=True)
    for path in (folder, *folder.parents):
        folder_id = (path, path.stat().st_ino)
        if path not in new and folder_id in _ON_DISK:
            continue
        if path in new:
            sync(path)
        try:
            sync(path.parent)
        except OSError as refused:
            if path in new or refused.errno not in _FOREIGN:
                raise
        _ON_DISK.add(folder_id)


T = TypeVar("T")


def grouped(items: Iterable[T], size_of: Callable[[T], int], enough: int) -> Iterator[list[T]]:
    """Consecutive items in groups, each ended by the item with which its size reaches `enough`."""
    group: list[T] = []
    size = 0
    for item in items:
        group.append(item)
        size += size_of(item)
        if size >= enough:
            yield group
            group, size = [], 0
    if group:
        yield group


ROW_GROUP_ROWS = 128 * 1024

_LEVEL: Final = 1
"""zstd level: half the bytes of snappy at its speed; level 3 halves the speed without a benefit (measured)."""
_LARGE: Final = 64 << 20
"""Size in bytes of a value from which its page is compressed only if that is worth another copy in memory."""
_WORTH: Final = 0.6
_SAMPLES: Final = 16
_SAMPLE: Final = 64 << 10  # bytes of each

Rows: TypeAlias = pa.Table | Iterable[pa.Table]
"""The rows of a file, whole or in parts, at least one; the parts can be iterated again if a write is retried."""


def write_parquet(rows: Rows, sink: IO[bytes] | Any, *, stats: Sequence[str], plain: Sequence[str]) -> None:
    """Write all rows. `stats`: columns with statistics; `plain`: columns a dictionary would only slow down.

    Each part is a row group of its own, or several if it is larger than one. The first part decides the compression of
    columns, because the writer takes one choice for a file and parts are created on demand: examining all of them first
    would create them twice. A very large incompressible value in a later part costs another copy of it in memory; after
    one in the first part, the column's other values are not compressed.
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
    """Whether to compress a column; decided by its largest value if that is very large."""
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
            sample = b"".join(value[offset : offset + _SAMPLE] for offset in range(0, step * _SAMPLES, step))
            return len(pa.Codec("zstd", _LEVEL).compress(sample)) < _WORTH * len(sample)
    return True


class Bounds:
    """Bounds of the named columns, none or all of scalar type; a column without values has no bounds.

    `loose`: bounds of columns whose real ones are too long for the table's metadata.
    """

    def __init__(self, columns: Sequence[str], loose: Mapping[str, tuple[str, str]] | None = None) -> None:
        self.columns = columns
        self.rows = 0
        self.low: dict[str, Any] = {}
        self.high: dict[str, Any] = {}
        self._loose = loose or {}
        self.nulls = dict.fromkeys((*columns, *(self._loose if columns else ())), 0)

    def observe_rows(self, rows: Rows) -> Iterator[pa.Table]:
        """The rows unchanged, part by part, each counted as it passes."""
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
            extremes = pc.min_max(part[name]).as_py()
            low, high = extremes["min"], extremes["max"]
            self.low[name] = min(low, self.low[name]) if name in self.low else low
            self.high[name] = max(high, self.high[name]) if name in self.high else high
