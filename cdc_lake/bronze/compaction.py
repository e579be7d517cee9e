"""Maintenance of a bronze table: small files become large ones, old ones leave, unneeded files are removed.

A full file stays as it is. Smaller files are in tiers by size, and enough neighbouring files of one tier and below
become one file of a higher tier: a row is rewritten at most once a tier and a few times in the lowest, and the number
of files is bounded by the tiers, however many commits there were.

Each step is a commit of its own that leaves the state as it was (`bronze.data_files`), made only on top of the version
it was planned on. So a receiver may commit at any time: the loser of a race plans again, the receiver continues on a
version that left its state alone. Rows keep their order, and readers of a stream see that nothing was added.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
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


def plan(files: Files, after: int, *, ignore_tiers: bool = False) -> list[Group]:
    """Groups of at least `after` files, none across an epoch, and each at most a full file.

    `ignore_tiers`: everything that is not full goes together, whatever its tier.
    """
    tiers = _TIERS[-1:] if ignore_tiers else _TIERS
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
    """Files that follow one another without overlap, cut where an epoch ends or nothing is known of a file."""
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
    """The files in order; None for one whose bounds are not known."""
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
    """Runs of at least `after` files of one tier or below, from the lowest tier up; each file in one of them."""
    used_paths: set[str] = set()
    for bound in tiers:
        run: list[_File] = []
        for file in row:
            if file.size < bound and file.path not in used_paths:
                run.append(file)
                continue
            if len(run) >= after:
                used_paths |= {member.path for member in run}
                yield run
            run = []
        if len(run) >= after:
            used_paths |= {member.path for member in run}
            yield run


def _groups(files: Files, run: list[_File]) -> Iterator[Group]:
    """A run cut where a file gets full; what is left alone stays as it is."""
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


_TURNS = 100  # attempts to get between two commits of a receiver that never rests


class MaintainedTable(BronzeTable, Protocol):
    """A bronze table that can be kept up. Every commit here raises AnotherReceiver where it comes second."""

    def prepare(self, state: StreamCheckpoint) -> None:
        """Set what upkeep wants of the table itself, once."""

    def exchange(
        self, removed: Sequence[str], files: Sequence[WrittenFile], state: StreamCheckpoint, *, gone: bool
    ) -> int:
        """Put files in the place of others, by their paths; `gone`: what the others held leaves the table."""

    def record_trimmed(self, trimmed: Mapping[int, tuple[int, bytes]], state: StreamCheckpoint) -> None:
        """Record what `BronzeTable.trimmed` then says."""

    def leftovers(self, now: float, files_seconds: float | None) -> OrphanFiles | None:
        """What nobody needs any more (`tables.orphan_files`); None where nobody can say."""

    def tidy(self, now: float, files_seconds: float | None) -> OrphanFiles | None:
        """Make a checkpoint and remove the leftovers."""

    def written_at(self) -> float | None:
        """When the version looked at was written, by the clock that gives its files their times; None: nobody knows."""


@dataclass(frozen=True, slots=True)
class Trim:
    """What retention lets go: whole files from the oldest on, up to an epoch and position."""

    paths: tuple[str, ...]
    rows: int
    size: int
    epoch: int
    position: int


def compact(table: MaintainedTable, after: int, *, ignore_tiers: bool = False) -> list[Group]:
    """Put together what is planned (`bronze.compaction.plan`); the groups that became one file each. Raises LakeError.

    Files that arrive meanwhile are left to the next time.
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
    """Exchange files between two commits of a receiver; False where somebody else replaced some of them.

    Raises BronzeBusy where there was no room.
    """
    for _ in range(_TURNS):
        state = table.state()
        if state is None or not set(removed) <= set(table.files().paths):
            return False
        try:
            table.exchange(removed, files, state, gone=gone)
        except AnotherReceiver:
            table.refresh()
        else:
            return True
    raise BronzeBusy("another writer committed each time", where=table.place)


def trimmable(files: Files, floor: tuple[int, int], landed_before: datetime) -> Trim | None:
    """What may leave: files at or below `floor` (epoch, position) that landed before a time, from the oldest on."""
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
    """Let files leave; False where somebody else replaced some meanwhile. Layouts stay, in one small file.

    Before anything leaves, the table says which transaction is the last to go and its hash: the chain starts there.
    """
    files = table.files() if table.refresh() else Files.empty()
    if not set(wanted.paths) <= set(files.paths):
        return False
    layouts = _layouts(files, wanted.paths)
    if layouts.num_rows == wanted.rows:
        return False  # nothing else is left there
    ends = _ends(files, wanted.paths, table.last_trimmed())
    if not _record_trimmed(table, {**table.last_trimmed(), **ends}):
        return False
    layout_files = [table.write(layouts)] if layouts.num_rows else []
    return exchange(table, wanted.paths, layout_files, gone=True)


def prepare(table: MaintainedTable) -> bool:
    """Set what upkeep wants of the table; False where there is no stream yet, or a receiver was busy."""
    for _ in range(_TURNS):
        state = table.state() if table.refresh() else None
        if state is None:
            return False
        table.prove()
        try:
            table.prepare(state)
        except AnotherReceiver:
            continue
        return True
    raise BronzeBusy("another writer committed each time", where=table.place)


def tidy(table: MaintainedTable, files_seconds: float | None, now: float | None = None) -> OrphanFiles | None:
    """Remove log entries, and, if seconds are given, data files that no version names since then.

    By default the time is that of the newest version, where it is the earlier one: what is written for the next one
    is younger, whatever has become of the clock meanwhile.
    """
    if not table.refresh():
        return None
    table.prove()  # what something else removed may be needed to put it back
    if now is None:
        written, now = table.written_at(), time.time()
        now = now if written is None else min(now, written)
    return table.tidy(now, files_seconds)


def _record_trimmed(table: MaintainedTable, trimmed: Mapping[int, tuple[int, bytes]]) -> bool:
    for _ in range(_TURNS):
        state = table.state()
        if state is None:
            return False
        if dict(table.last_trimmed()) == dict(trimmed):
            return True
        try:
            table.record_trimmed(trimmed, state)
        except AnotherReceiver:
            table.refresh()
    raise BronzeBusy("another writer committed each time", where=table.place)


def _ends(files: Files, paths: Sequence[str], before: Mapping[int, tuple[int, bytes]]) -> dict[int, tuple[int, bytes]]:
    """Epoch → position and hash of the last transaction in files that leave; of copied rows alone their position."""
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
    """The last row of each layout in files that leave, in order."""
    rows = files.read(list(paths), SCHEMA.names, pc.field("op") == RELATION)
    keys = zip(rows["epoch"].to_pylist(), rows["layout"].to_pylist(), strict=True)
    last = {key: index for index, key in enumerate(keys)}
    return rows.take(pa.array(np.sort(np.fromiter(last.values(), np.int64, len(last)))))
