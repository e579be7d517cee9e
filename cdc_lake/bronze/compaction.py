"""Maintenance of a bronze table: compacts small files, applies retention, and removes obsolete files.

A full file is left as it is. Smaller files are divided into tiers by size; enough neighbouring files of one tier and
below become one file of a higher tier. A row is rewritten at most once per tier and a few times in the lowest, and the
tiers limit the number of files, however many commits there were.

Each step is a separate commit that does not change the state (`bronze.data_files`), based on the version for which it
was planned. A receiver may therefore commit at any time: the loser of a race plans again, and the receiver continues on
a version with its state. Rows keep their order, and streaming readers see that nothing was added.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze.contract import COMMIT, RELATION, SCHEMA, SNAPSHOT, StreamCheckpoint
from cdc_lake.bronze.data_files import BronzeTable, Files, WrittenFile
from cdc_lake.decode.hashing import GENESIS
from cdc_lake.errors import AnotherReceiver, BronzeBusy
from cdc_lake.observability.failpoints import COMPACTED, COMPACTING, failpoint
from cdc_lake.tables.files import ROW_GROUP_ROWS
from cdc_lake.tables.orphan_files import OrphanFiles

FULL_BYTES = 64 << 20
"""Size above which a data file is not compacted any more."""

FULL_UNPACKED: Final = 512 << 20
"""Its size in memory from which on it is full too. While a file is written, memory grows by a quarter of a megabyte for
each row group (measured): by 300 MiB if a file of 64 MiB contains ten gigabytes of one repeated text.
"""

_TIERS = (FULL_BYTES >> 12, FULL_BYTES >> 8, FULL_BYTES >> 4, FULL_BYTES)  # 16 KiB: some commits of a row or two
_GROUP_BYTES: Final = 4 << 20
"""Bytes in memory of a row group, which is in memory several times while it is read and written, in addition to the
receiver's usage. With 64 MiB, files are neither smaller nor faster to read (measured).
"""


@dataclass(frozen=True, slots=True)
class Group:
    """Consecutive files that are to become one."""

    paths: tuple[str, ...]
    rows: int
    size: int


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    rows: int
    size: int
    low: tuple[int, ...]  # smallest epoch, position and ordinal (-1: only layout rows), and greatest
    high: tuple[int, ...]


def plan(files: Files, after: int, *, ignore_tiers: bool = False) -> list[Group]:
    """Groups of at least `after` files, each within an epoch, and at most a full file.

    `ignore_tiers`: compact everything that is not full, whatever its tier.
    """
    tiers = _TIERS[-1:] if ignore_tiers else _TIERS
    runs = [run for row in _rows(files) for run in _runs(row, after, tiers)]
    return [group for run in runs for group in _groups(files, run)]


class Parts:
    """The rows of files in their order, as row groups; each iteration reads them again.

    Every commit repeats the layouts that it uses. One file needs a layout row only if a table's layout changed: a year
    of small commits has as many layout rows as commits, and every search for layouts reads all of them.
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
    """The size in memory. Arrow visits every buffer for it, so it is computed once per part."""
    return int(part.nbytes)


def _without_repeats(part: pa.Table, layouts: dict[str, int]) -> pa.Table:
    """Rows without those of known layouts; `layouts`: the current layout of each table in this file."""
    layout_indices = np.flatnonzero(np.asarray(pc.equal(part["op"], RELATION)))
    keep = np.ones(part.num_rows, bool)
    layout_rows = part.select(["relation", "layout"]).take(pa.array(layout_indices))
    for place, name, layout in zip(
        layout_indices, layout_rows["relation"].to_pylist(), layout_rows["layout"].to_pylist(), strict=True
    ):
        keep[place] = layouts.get(name) != layout
        layouts[name] = layout
    return part if keep.all() else part.filter(pa.array(keep))


def _rows(files: Files) -> Iterator[list[_File]]:
    """Consecutive files without overlaps, split where an epoch ends or the bounds of a file are unknown."""
    current: list[_File] = []
    for file in _bounded_files(files):
        fits = current and file is not None and current[-1].high < file.low and current[-1].low[0] == file.low[0]
        if not fits and current:
            yield current
            current = []
        if file is not None and file.low[0] == file.high[0]:
            current.append(file)
    if current:
        yield current


def _bounded_files(files: Files) -> Iterator[_File | None]:
    """The files in order; None for one with unknown bounds."""
    wanted = ["min.epoch", "min.position", "min.ordinal", "max.epoch", "max.position", "max.ordinal"]
    actions = files.actions
    has_bounds = {"num_records", "size_bytes", *wanted} <= set(actions.column_names)
    columns = [name for name in ("path", "num_records", "size_bytes", *wanted) if name in actions.column_names]
    for row in actions.select(columns).to_pylist():
        bounds = [row[name] for name in wanted] if has_bounds else [None]
        if any(value is None for value in (*bounds[:2], *bounds[3:5])):
            yield None
            continue
        low, high = (tuple(-1 if value is None else int(value) for value in part) for part in (bounds[:3], bounds[3:]))
        yield _File(row["path"], row["num_records"], row["size_bytes"], low, high)


def _runs(row: list[_File], after: int, tiers: Sequence[int]) -> Iterator[list[_File]]:
    """Runs of at least `after` files of one tier or below, from the lowest tier up; each file is in one of them."""
    used_paths: set[str] = set()
    for bound in tiers:
        run: list[_File] = []
        for file in (*row, None):
            if file is not None and file.size < bound and file.path not in used_paths:
                run.append(file)
                continue
            if len(run) >= after:
                used_paths |= {member.path for member in run}
                yield run
            run = []


def _groups(files: Files, run: list[_File]) -> Iterator[Group]:
    """A run, split where a file becomes full; single remaining files are left as they are."""
    group: list[_File] = []
    size = unpacked = 0
    for file in run:
        more = files.memory_bytes(file.path)
        if group and (size + file.size > FULL_BYTES or unpacked + more > FULL_UNPACKED):
            yield from _group(group)
            group, size, unpacked = [], 0, 0
        group.append(file)
        size, unpacked = size + file.size, unpacked + more
    yield from _group(group)


def _group(files: list[_File]) -> Iterator[Group]:
    if len(files) > 1:
        yield Group(tuple(f.path for f in files), sum(f.rows for f in files), sum(f.size for f in files))


_TURNS = 100  # attempts to commit between two commits of a busy receiver


class MaintainedTable(BronzeTable, Protocol):
    """A bronze table with maintenance. Every commit here raises AnotherReceiver if another commit came first."""

    def prepare(self, state: StreamCheckpoint) -> None:
        """Set the table properties that maintenance needs, once."""

    def exchange(
        self, removed: Sequence[str], files: Sequence[WrittenFile], state: StreamCheckpoint, *, gone: bool
    ) -> int:
        """Replace files, by their paths; `gone`: the rows of the others leave the table."""

    def record_trimmed(self, trimmed: Mapping[int, tuple[int, bytes]], state: StreamCheckpoint) -> None:
        """Record what `BronzeTable.trimmed` returns afterwards."""

    def leftovers(self, now: float, files_seconds: float | None) -> OrphanFiles | None:
        """Obsolete files (`tables.orphan_files`); None if they cannot be determined."""

    def tidy(self, now: float, files_seconds: float | None) -> OrphanFiles | None:
        """Write a checkpoint and remove obsolete files."""

    def written_at(self) -> float | None:
        """When the current version was written, by the clock of the files' times; None if unknown."""


@dataclass(frozen=True, slots=True)
class Trim:
    """What retention removes: whole files, oldest first, up to an epoch and position."""

    paths: tuple[str, ...]
    rows: int
    size: int
    epoch: int
    position: int


def compact(table: MaintainedTable, after: int, *, ignore_tiers: bool = False) -> list[Group]:
    """Compact the files of `bronze.compaction.plan`; returns the groups that became one file each. Raises LakeError.

    Files that arrive meanwhile are left for the next time.
    """
    groups: list[Group] = []
    if not table.refresh():
        return groups
    files = table.files()
    for group in plan(files, after, ignore_tiers=ignore_tiers):
        written = table.write(Parts(files, group.paths))
        failpoint(COMPACTING)
        if exchange(table, group.paths, [written], gone=False):
            failpoint(COMPACTED)
            groups.append(group)
    return groups


def exchange(table: MaintainedTable, removed: Sequence[str], files: Sequence[WrittenFile], *, gone: bool) -> bool:
    """Replace files between two commits of a receiver; False if somebody else replaced some of them.

    Raises BronzeBusy if the receiver was always faster.
    """

    def replace_files(state: StreamCheckpoint) -> bool:
        if not set(removed) <= set(table.files().paths):
            return False
        table.exchange(removed, files, state, gone=gone)
        return True

    return _between_commits(table, replace_files)


def _between_commits(table: MaintainedTable, commit: Callable[[StreamCheckpoint], bool]) -> bool:
    """The result of `commit` for the table's state, repeated if the receiver was faster; False without a stream."""
    for _ in range(_TURNS):
        state = table.state()
        if state is None:
            return False
        try:
            return commit(state)
        except AnotherReceiver:
            table.refresh()
    raise BronzeBusy("another writer committed each time", where=table.place)


def trimmable(files: Files, floor: tuple[int, int], landed_before: datetime) -> Trim | None:
    """What may be removed: files at or below `floor` (epoch, position) that landed before a time, oldest first."""
    wanted = ("min.epoch", "max.epoch", "max.position", "max.ingest_ts", "num_records", "size_bytes", "path")
    if not set(wanted) <= set(files.actions.column_names):
        return None
    trimmed_rows: list[dict[str, Any]] = []
    for row in files.actions.select(list(wanted)).to_pylist():
        if any(row[name] is None for name in wanted) or row["min.epoch"] != row["max.epoch"]:
            break
        if (row["max.epoch"], row["max.position"]) > floor or row["max.ingest_ts"] >= landed_before:
            break
        trimmed_rows.append(row)
    if not trimmed_rows:
        return None
    last = max((row["max.epoch"], row["max.position"]) for row in trimmed_rows)
    return Trim(
        tuple(row["path"] for row in trimmed_rows),
        sum(row["num_records"] for row in trimmed_rows),
        sum(row["size_bytes"] for row in trimmed_rows),
        *last,
    )


def trim(table: MaintainedTable, wanted: Trim) -> bool:
    """Remove files; False if somebody else replaced some meanwhile. Layouts are kept, in one small file.

    First the table records the last removed transaction and its hash: the chain starts there.
    """
    files = table.files() if table.refresh() else Files.empty()
    if not set(wanted.paths) <= set(files.paths):
        return False
    layouts = _layouts(files, wanted.paths)
    if layouts.num_rows == wanted.rows:
        return False  # nothing else is left there
    ends = _ends(files, wanted.paths, table.last_trimmed())
    trimmed = {**table.last_trimmed(), **ends}

    def record(state: StreamCheckpoint) -> bool:
        if dict(table.last_trimmed()) != trimmed:
            table.record_trimmed(trimmed, state)
        return True

    if not _between_commits(table, record):
        return False
    layout_files = [table.write(layouts)] if layouts.num_rows else []
    return exchange(table, wanted.paths, layout_files, gone=True)


def prepare(table: MaintainedTable) -> bool:
    """Set the table properties for maintenance; False if there is no stream yet. Raises BronzeBusy."""

    def set_properties(state: StreamCheckpoint) -> bool:
        table.prove()
        table.prepare(state)
        return True

    return table.refresh() and _between_commits(table, set_properties)


def tidy(table: MaintainedTable, files_seconds: float | None, now: float | None = None) -> OrphanFiles | None:
    """Remove log entries, and, if seconds are given, data files that no version has referred to since then.

    By default the time is at most that of the newest version: files for the next version are younger, whatever happened
    to the clock meanwhile.
    """
    if not table.refresh():
        return None
    table.prove()  # after foreign changes, the files may be needed for a repair
    if now is None:
        written, now = table.written_at(), time.time()
        now = now if written is None else min(now, written)
    return table.tidy(now, files_seconds)


def _ends(files: Files, paths: Sequence[str], before: Mapping[int, tuple[int, bytes]]) -> dict[int, tuple[int, bytes]]:
    """Epoch → position and hash of the last transaction in files to be removed; of copied rows only their position."""
    last: dict[int, int] = {}
    copied: dict[int, int] = {}
    for part in files.batches(paths, ["epoch", "position", "op"], pc.field("op") == SNAPSHOT):
        for row in part.group_by("epoch").aggregate([("position", "min")]).to_pylist():
            copied[row["epoch"]] = min(row["position_min"], copied.get(row["epoch"], row["position_min"]))
    for part in files.batches(paths, ["epoch", "position", "op"], pc.field("op") == COMMIT):
        for row in part.group_by("epoch").aggregate([("position", "max")]).to_pylist():
            last[row["epoch"]] = max(row["position_max"], last.get(row["epoch"], row["position_max"]))
    starts = {epoch: (position, GENESIS) for epoch, position in copied.items() if epoch not in before}
    return starts | {epoch: (position, _hash(files, epoch, position)) for epoch, position in last.items()}


def _hash(files: Files, epoch: int, position: int) -> bytes:
    """The hash of a transaction."""
    place = (pc.field("epoch") == epoch) & (pc.field("position") == position)
    paths = files.select(epoch=epoch, after=position - 1, upto=position)
    rows = files.read(paths, ["info"], place & (pc.field("op") == COMMIT))
    return bytes.fromhex(json.loads(rows["info"][0].as_py())["hash"])


def _layouts(files: Files, paths: Sequence[str]) -> pa.Table:
    """The last row of each layout in files to be removed, in order."""
    rows = files.read(list(paths), SCHEMA.names, pc.field("op") == RELATION)
    keys = zip(rows["epoch"].to_pylist(), rows["layout"].to_pylist(), strict=True)
    last = {key: index for index, key in enumerate(keys)}
    return rows.take(pa.array(np.sort(np.fromiter(last.values(), np.int64, len(last)))))
