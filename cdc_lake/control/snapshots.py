"""Copies of tables: which rows of bronze belong to a copy, according to the control table `snapshots`.

Tables may have been copied at different positions: an interrupted copy continues in another snapshot. The newest
complete copy of a table is active: its rows are at its position, and the table's transactions count from there on. Rows
of an interrupted copy have a position of their own, and are never read.

A table may be copied again later (`resync`), and may be excluded for a while, so it has a timeline of intervals, each
of which begins with a copy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from cdc_lake.bronze.contract import SNAPSHOT, StreamCheckpoint
from cdc_lake.model.position import Span
from cdc_lake.model.quarantine import RefetchedRows, rereads_in
from cdc_lake.model.relation import TableName
from cdc_lake.tables.control_schema import SnapshotRow, utc_now
from cdc_lake.tables.control_tables import ControlTables

COMPLETE = "complete"
STARTED = "started"
LEFT = "left"
"""The mark in `snapshots` for tables that are excluded from a position on, until they are copied again."""
REFETCHED = "reread"
"""The mark in `snapshots` for rows that a repair read again at the source."""


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """A completely copied table: its rows and chunks, and their position."""

    relation: TableName
    layout: int
    rows: int
    chunks: int
    position: int


def snapshot_id(epoch: int) -> str:
    """Name of the initial copy of a stream, unique in the pipeline."""
    return f"initial-{epoch}"


def copy_name(state: StreamCheckpoint, position: int) -> str:
    """The name of a copy in bronze; copies of a stream at one position would be the same copy."""
    return f"copy-{state.epoch}-{position}"


def tables_json(tables: Sequence[CopiedTable]) -> str:
    """Tables as the control table stores them."""
    return json.dumps([{**asdict(table), "relation": str(table.relation)} for table in tables])


def tables_of(row: SnapshotRow) -> list[CopiedTable]:
    """The completely copied tables of a copy; those of older versions have the copy's own position."""
    return [
        CopiedTable(
            TableName.parse(str(entry["relation"])),
            int(entry["layout"]),
            int(entry["rows"]),
            int(entry["chunks"]),
            int(entry.get("position", row.position)),
        )
        for entry in json.loads(row.tables)
    ]


def initial_copies(rows: Iterable[SnapshotRow], stream: str) -> dict[str, CopiedTable] | None:
    """The initial copy of each table of a stream; None if it is incomplete."""
    initial = next((row for row in rows if row.stream == stream and _is_initial(row)), None)
    return None if initial is None else {str(table.relation): table for table in tables_of(initial)}


def copies_in_force(rows: Iterable[SnapshotRow], stream: str, upto: int) -> dict[str, CopiedTable] | None:
    """The active copy of each table of a stream: the initial one, or the newest later one at or below `upto`. None if
    the initial copy is incomplete. `rows`: oldest first.
    """
    rows = list(rows)
    initial = initial_copies(rows, stream)
    if initial is None:
        return None
    later = {name: course.copy_at(upto) for name, course in courses(rows, stream).items()}
    return initial | {name: copy for name, copy in later.items() if copy is not None}


def beginning(control: ControlTables, state: StreamCheckpoint) -> int:
    """The position after which the transactions of a stream begin, whose initial copy is complete."""
    return next(row.position for row in control.snapshots() if row.stream == state.stream and _is_initial(row))


def _is_initial(row: SnapshotRow) -> bool:
    return row.state == COMPLETE and row.snapshot == snapshot_id(row.epoch)


@dataclass(frozen=True, slots=True)
class CaptureInterval:
    """An interval of a stream in which a table is followed: from a copy on, or None: from the start of the stream.

    `left`: the position at which it was excluded, None if it was not. `later`: the copy is not the initial one.
    """

    copy: CopiedTable | None = None
    left: int | None = None
    later: bool = False

    @property
    def begins(self) -> int:
        """The position of its copy, below every position without one."""
        return -1 if self.copy is None else self.copy.position


@dataclass(frozen=True, slots=True)
class TableTimeline:
    """The intervals in which a table is followed in a stream, in order."""

    stretches: tuple[CaptureInterval, ...] = (CaptureInterval(),)

    def stretch_at(self, position: int) -> CaptureInterval:
        """The interval at a position, or the last one before it; before all of them the first one."""
        begun = [stretch for stretch in self.stretches if stretch.begins <= position]
        return begun[-1] if begun else self.stretches[0]

    def follows(self, position: int) -> bool:
        """Whether changes directly after a position are followed."""
        left = self.stretch_at(position).left
        return left is None or position < left

    def copy_at(self, position: int) -> CopiedTable | None:
        """The copy with which silver's content at a position begins, if it is not the initial one."""
        stretch = self.stretch_at(position)
        return stretch.copy if stretch.later and stretch.begins <= position else None

    def renewal(self, position: int, copied: int | None) -> CopiedTable | None:
        """The copy with which silver's content at a position has to begin, if it began with another one, at `copied`
        (None for the initial one).
        """
        copy = self.copy_at(position) if self.follows(position) else None
        return copy if copy is not None and (copied is None or copied < copy.position) else None

    @property
    def waits(self) -> bool:
        """Whether the table was excluded and not copied since."""
        return self.stretches[-1].left is not None

    def with_copy(self, copy: CopiedTable, *, later: bool) -> TableTimeline:
        """The timeline with one more copy."""
        before = self.stretches if later or self.stretches != (CaptureInterval(),) else ()
        return TableTimeline((*before, CaptureInterval(copy, later=later)))

    def end_at(self, position: int) -> TableTimeline:
        """The timeline up to a position. If it is excluded already, or its copy is ahead, it is unchanged."""
        if self.waits:
            return self
        first = self.stretches.index(self.stretch_at(position))
        ends = (
            stretch if stretch.left is not None else replace(stretch, left=max(position, stretch.begins))
            for stretch in self.stretches[first:]
        )
        return TableTimeline((*self.stretches[:first], *ends))


def courses(rows: Iterable[SnapshotRow], stream: str) -> dict[str, TableTimeline]:
    """The timeline of each table of a stream that was ever copied or excluded. `rows`: oldest first."""
    result: dict[str, TableTimeline] = {}
    for row in rows:
        if row.stream != stream:
            continue
        if row.state == COMPLETE:
            for copy in tables_of(row):
                name = str(copy.relation)
                result[name] = result.get(name, TableTimeline()).with_copy(copy, later=not _is_initial(row))
        elif row.state == LEFT:
            for name in json.loads(row.tables):
                result[name] = result.get(name, TableTimeline()).end_at(row.position)
    return result


def record_left(control: ControlTables, state: StreamCheckpoint, tables: Sequence[TableName]) -> None:
    """Record that tables are excluded from bronze's position on, until they are copied. Raises ControlNotWritten."""
    recorded = utc_now()
    name = f"left-{state.epoch}-{state.upto}-{recorded.timestamp():.6f}"
    names = json.dumps([str(table) for table in tables])
    control.record(SnapshotRow(name, state.stream, state.epoch, state.upto, names, LEFT, recorded))


def record_recopied(
    control: ControlTables, state: StreamCheckpoint, snapshot: str, copied: Sequence[CopiedTable]
) -> None:
    """Record that tables were copied again in one snapshot, which activates the copies. Raises ControlNotWritten."""
    position = copied[0].position
    control.record(SnapshotRow(snapshot, state.stream, state.epoch, position, tables_json(copied), COMPLETE, utc_now()))


def finished_tables(rows: Iterable[SnapshotRow], stream: str, epoch: int) -> list[CopiedTable]:
    """The tables of a stream's initial copy that are complete so far."""
    own_rows = [row for row in rows if (row.stream, row.epoch, row.snapshot) == (stream, epoch, snapshot_id(epoch))]
    return tables_of(own_rows[-1]) if own_rows else []


def whole_copies(rows: Iterable[SnapshotRow], table: TableName) -> dict[int, frozenset[int]]:
    """Epoch → the positions of a table's complete copies, for epochs whose initial copy is complete."""
    result: dict[int, frozenset[int]] = {}
    for row in rows:
        if row.state == COMPLETE:
            positions = {copy.position for copy in tables_of(row) if copy.relation == table}
            result[row.epoch] = result.get(row.epoch, frozenset()) | positions
    return result


def in_whole_copy(copies: Mapping[int, frozenset[int]], epoch: int, position: int, ordinal: int, op: str) -> bool:
    """False for a row of an interrupted copy; `copies`: the result of `whole_copies` for its table."""
    return op != SNAPSHOT or ordinal < 0 or epoch not in copies or position in copies[epoch]


def _refetches(rows: Iterable[SnapshotRow], stream: str) -> Iterator[tuple[SnapshotRow, dict[str, Any]]]:
    """The rows of `snapshots` that record a repair in a stream, each with its document."""
    for row in rows:
        if row.state == REFETCHED and row.stream == stream:
            yield row, json.loads(row.tables)


def refetched_rows(rows: Iterable[SnapshotRow], stream: str, relation: str, span: Span) -> tuple[RefetchedRows, ...]:
    """Rows of a table that a repair read again and that take effect in `span`; `rows`: of `snapshots`."""
    rereads = [
        RefetchedRows(row.position, int(document["first"]), int(document["rows"]))
        for row, document in _refetches(rows, stream)
        if row.epoch == span.epoch and document["relation"] == relation
    ]
    return rereads_in(rereads, span)


def refetched_tables(rows: Iterable[SnapshotRow], stream: str, span: Span) -> frozenset[str]:
    """The tables with rows that a repair read again and that take effect in `span`."""
    refetches = _refetches((row for row in rows if row.epoch == span.epoch and row.position in span), stream)
    return frozenset(document["relation"] for _, document in refetches)


def refetch_note(rows: Iterable[SnapshotRow], stream: str, position: int, ordinal: int, op: str) -> str:
    """How a row of bronze was read again at the source; empty for every other row."""
    if op != SNAPSHOT or ordinal >= 0:
        return ""
    for row, document in _refetches(rows, stream):
        if row.position == position and document["first"] <= ordinal < document["first"] + document["rows"]:
            by = document.get("by")
            return f"read again at the source by {by}" if by else "read again at the source"
    return "read again at the source, but never applied: the process ended before it was recorded"
