"""Upkeep of a bronze table: small files become large ones, old ones leave, and what nobody needs is removed.

Each step is a commit of its own that leaves the state as it was (`bronze.state`), made only on top of the version that
was looked at. So a receiver may commit at any time: whoever comes second looks again, the receiver goes on above a
version that left its state alone, and upkeep drops what was replaced by somebody else. Rows keep their order; readers
of a stream see that nothing was added.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze.compaction import Group, Parts, plan
from cdc_lake.bronze.contract import COMMIT, RELATION, SCHEMA, SNAPSHOT
from cdc_lake.bronze.files import Files
from cdc_lake.bronze.port import BronzeState
from cdc_lake.bronze.table import BronzeTable, Written
from cdc_lake.decode.digest import GENESIS
from cdc_lake.errors import AnotherReceiver, BronzeBusy
from cdc_lake.lake.delta_leftovers import Leftovers
from cdc_lake.observe.failpoint import COMPACTED, COMPACTING, failpoint

_TURNS = 100  # attempts to get between two commits of a receiver that never rests


class MaintainedTable(BronzeTable, Protocol):
    """A bronze table that can be kept up. Every commit here raises AnotherReceiver where it comes second."""

    def prepare(self, state: BronzeState) -> None:
        """Set what upkeep wants of the table itself, once."""
        ...

    def exchange(self, removed: Sequence[str], files: Sequence[Written], state: BronzeState, *, gone: bool) -> int:
        """Put files in the place of others, by their paths; `gone`: what the others held leaves the table."""
        ...

    def record_trimmed(self, trimmed: Mapping[int, tuple[int, bytes]], state: BronzeState) -> None:
        """Record what `BronzeTable.trimmed` then says."""
        ...

    def leftovers(self, now: float, files_seconds: float | None) -> Leftovers | None:
        """What nobody needs any more (`lake.delta_leftovers`); None where nobody can say."""
        ...

    def tidy(self, now: float, files_seconds: float | None) -> Leftovers | None:
        """Make a checkpoint and remove the leftovers."""
        ...

    def written_at(self) -> float | None:
        """When the version looked at was written, by the clock that gives its files their times; None: nobody knows."""
        ...


@dataclass(frozen=True, slots=True)
class Trim:
    """What retention lets go: whole files from the oldest on, up to an epoch and position."""

    paths: tuple[str, ...]
    rows: int
    size: int
    epoch: int
    position: int


def compact(table: MaintainedTable, after: int, *, whole: bool = False) -> list[Group]:
    """Put together what is planned (`bronze.compaction.plan`); the groups that became one file each. Raises LakeError.

    Files that arrive meanwhile are left to the next time.
    """
    done: list[Group] = []
    if not table.look():
        return done
    files = table.files()
    for group in plan(files, after, whole=whole):
        written = table.write(Parts(files, group.paths))
        failpoint(COMPACTING)
        if exchange(table, group.paths, [written], gone=False):
            failpoint(COMPACTED)
            done.append(group)
    return done


def exchange(table: MaintainedTable, removed: Sequence[str], files: Sequence[Written], *, gone: bool) -> bool:
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
            table.look()
        else:
            return True
    raise BronzeBusy("another writer committed each time", where=table.place)


def trimmable(files: Files, floor: tuple[int, int], landed_before: datetime) -> Trim | None:
    """What may leave: files at or below `floor` (epoch, position) that landed before a time, from the oldest on."""
    wanted = ("min.epoch", "max.epoch", "max.position", "max.ingest_ts", "num_records", "size_bytes", "path")
    if not set(wanted) <= set(files.actions.column_names):
        return None
    taken: list[dict[str, Any]] = []
    for row in files.actions.select(list(wanted)).to_pylist():
        if any(row[name] is None for name in wanted) or row["min.epoch"] != row["max.epoch"]:
            break
        if (row["max.epoch"], row["max.position"]) > floor or row["max.ingest_ts"] >= landed_before:
            break
        taken.append(row)
    if not taken:
        return None
    last = max((row["max.epoch"], row["max.position"]) for row in taken)
    return Trim(
        tuple(row["path"] for row in taken),
        sum(row["num_records"] for row in taken),
        sum(row["size_bytes"] for row in taken),
        *last,
    )


def trim(table: MaintainedTable, wanted: Trim) -> bool:
    """Let files leave; False where somebody else replaced some meanwhile. Layouts stay, in one small file.

    Before anything leaves, the table says which transaction is the last to go and its hash: the chain starts there.
    """
    files = table.files() if table.look() else Files.none()
    if not set(wanted.paths) <= set(files.paths):
        return False
    layouts = _layouts(files, wanted.paths)
    if layouts.num_rows == wanted.rows:
        return False  # nothing else is left there
    ends = _ends(files, wanted.paths, table.trimmed())
    if not _recorded(table, {**table.trimmed(), **ends}):
        return False
    kept = [table.write(layouts)] if layouts.num_rows else []
    return exchange(table, wanted.paths, kept, gone=True)


def prepare(table: MaintainedTable) -> bool:
    """Set what upkeep wants of the table; False where there is no stream yet, or a receiver was busy."""
    for _ in range(_TURNS):
        state = table.state() if table.look() else None
        if state is None:
            return False
        table.prove()
        try:
            table.prepare(state)
        except AnotherReceiver:
            continue
        return True
    raise BronzeBusy("another writer committed each time", where=table.place)


def tidy(table: MaintainedTable, files_seconds: float | None, now: float | None = None) -> Leftovers | None:
    """Remove log entries, and, if seconds are given, data files that no version names since then.

    By default the time is that of the newest version, where it is the earlier one: what is written for the next one
    is younger, whatever has become of the clock meanwhile.
    """
    if not table.look():
        return None
    table.prove()  # what something else removed may be needed to put it back
    if now is None:
        written, now = table.written_at(), time.time()
        now = now if written is None else min(now, written)
    return table.tidy(now, files_seconds)


def _recorded(table: MaintainedTable, trimmed: Mapping[int, tuple[int, bytes]]) -> bool:
    for _ in range(_TURNS):
        state = table.state()
        if state is None:
            return False
        if dict(table.trimmed()) == dict(trimmed):
            return True
        try:
            table.record_trimmed(trimmed, state)
        except AnotherReceiver:
            table.look()
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
    last = {key: at for at, key in enumerate(keys)}
    return rows.take(pa.array(np.sort(np.fromiter(last.values(), np.int64, len(last)))))
