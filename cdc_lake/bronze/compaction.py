"""Compaction, planned: which small files that follow one another become one.

A file stays as it is once it is full. Smaller ones are in tiers by size, and so many of one tier and below that follow
one another become one file of a higher tier: a row is written again at most once a tier and a few times in the lowest,
and the number of files is bounded by the tiers, however many commits there were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze.contract import RELATION
from cdc_lake.bronze.files import Files
from cdc_lake.lake.parquet_file import ROW_GROUP_ROWS

FULL_BYTES = 64 << 20
"""Size of a data file above which it is not put together with others any more."""

FULL_UNPACKED: Final = 512 << 20
"""Its size in memory from which on it is full too. While a file is written memory grows by a quarter of a megabyte with
each of its row groups (measured): by 300 MiB, where 64 MiB of a file are ten gigabytes of one text again and again.
"""

_TIERS = (FULL_BYTES >> 12, FULL_BYTES >> 8, FULL_BYTES >> 4, FULL_BYTES)  # 16 KiB: some commits of a row or two
_GROUP_BYTES: Final = 4 << 20
"""In memory, of a row group, which lies there several times while it is read and written: a receiver has that besides.
With 64 MiB files are neither smaller nor read more quickly (measured).
"""


@dataclass(frozen=True, slots=True)
class Group:
    """Files that follow one another, to become one."""

    paths: tuple[str, ...]
    rows: int
    size: int


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    rows: int
    size: int
    low: tuple[int, ...]  # smallest epoch, position and ordinal (-1: it has layout rows alone), and greatest
    high: tuple[int, ...]


def plan(files: Files, after: int, *, whole: bool = False) -> list[Group]:
    """Groups of at least `after` files, none across an epoch, and each at most a full file.

    `whole`: everything that is not full goes together, whatever its tier.
    """
    tiers = _TIERS[-1:] if whole else _TIERS
    runs = [run for row in _rows(files) for run in _runs(row, after, tiers)]
    return [group for run in runs for group in _groups(files, run)]


class Parts:
    """The rows of files in their order, as row groups; read again each time they are asked for.

    Every commit repeats the layouts that it uses. One file needs a layout row only where a table's layout is another
    one than before: a year of small commits has as many layout rows as commits, and who looks for layouts reads all.
    """

    def __init__(self, files: Files, paths: tuple[str, ...]) -> None:
        self._files = files
        self._paths = paths

    def __iter__(self) -> Iterator[pa.Table]:
        waiting: list[pa.Table] = []
        layouts: dict[str, int] = {}
        rows = size = 0
        for part in self._files.in_turn(self._paths):
            own = _without_repeats(part, layouts)
            waiting.append(own)
            rows, size = rows + own.num_rows, size + _size(own)
            if rows >= ROW_GROUP_ROWS or size >= _GROUP_BYTES:
                yield pa.concat_tables(waiting)
                waiting, rows, size = [], 0, 0
        if waiting:
            yield pa.concat_tables(waiting)


def _size(part: pa.Table) -> int:
    """In memory. Arrow looks at every buffer for it, so it is asked once of a part."""
    return int(part.nbytes)


def _without_repeats(part: pa.Table, layouts: dict[str, int]) -> pa.Table:
    """Rows less those of layouts that their tables have already; `layouts`: of each table, in this file so far."""
    at = np.flatnonzero(np.asarray(pc.equal(part["op"], RELATION)))
    keep = np.ones(part.num_rows, bool)
    some = part.select(["relation", "layout"]).take(pa.array(at))
    for place, name, layout in zip(at, some["relation"].to_pylist(), some["layout"].to_pylist(), strict=True):
        keep[place] = layouts.get(name) != layout
        layouts[name] = layout
    return part if keep.all() else part.filter(pa.array(keep))


def _rows(files: Files) -> Iterator[list[_File]]:
    """Files that follow one another without overlap, cut where an epoch ends or nothing is known of a file."""
    current: list[_File] = []
    for file in _described(files):
        fits = current and file is not None and current[-1].high < file.low and current[-1].low[0] == file.low[0]
        if not fits and current:
            yield current
            current = []
        if file is not None and file.low[0] == file.high[0]:
            current.append(file)
    if current:
        yield current


def _described(files: Files) -> Iterator[_File | None]:
    """The files in order; None for one whose bounds are not known."""
    wanted = ["min.epoch", "min.position", "min.ordinal", "max.epoch", "max.position", "max.ordinal"]
    actions = files.actions
    known = {"num_records", "size_bytes", *wanted} <= set(actions.column_names)
    columns = [name for name in ("path", "num_records", "size_bytes", *wanted) if name in actions.column_names]
    for row in actions.select(columns).to_pylist():
        bounds = [row[name] for name in wanted] if known else [None]
        if any(value is None for value in (*bounds[:2], *bounds[3:5])):
            yield None
            continue
        low, high = (tuple(-1 if value is None else int(value) for value in part) for part in (bounds[:3], bounds[3:]))
        yield _File(row["path"], row["num_records"], row["size_bytes"], low, high)


def _runs(row: list[_File], after: int, tiers: Sequence[int]) -> Iterator[list[_File]]:
    """Runs of at least `after` files of one tier or below, from the lowest tier up; each file in one of them."""
    taken: set[str] = set()
    for bound in tiers:
        run: list[_File] = []
        for file in row:
            if file.size < bound and file.path not in taken:
                run.append(file)
                continue
            if len(run) >= after:
                taken |= {one.path for one in run}
                yield run
            run = []
        if len(run) >= after:
            taken |= {one.path for one in run}
            yield run


def _groups(files: Files, run: list[_File]) -> Iterator[Group]:
    """A run cut where a file gets full; what is left alone stays as it is."""
    group: list[_File] = []
    size = unpacked = 0
    for file in run:
        more = files.unpacked(file.path)
        if group and (size + file.size > FULL_BYTES or unpacked + more > FULL_UNPACKED):
            yield from _group(group)
            group, size, unpacked = [], 0, 0
        group.append(file)
        size, unpacked = size + file.size, unpacked + more
    yield from _group(group)


def _group(files: list[_File]) -> Iterator[Group]:
    if len(files) > 1:
        yield Group(tuple(f.path for f in files), sum(f.rows for f in files), sum(f.size for f in files))
