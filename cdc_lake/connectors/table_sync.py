"""Compares the tables of a stream with `source.tables` and with the tables that their names referred to before.

Added and removed tables are computed from the selected tables, those in the stream, those in the database, and the
history of each table. Each type of source decides what to do about them at a start.

A table that was removed from the publication and added again looks the same, but the stream lacks what changed
meanwhile. PostgreSQL creates a new entry for the table each time, so a table whose entry has changed is copied again.

A name may also refer to another table later: a table was dropped and recreated, or two tables were swapped. The OIDs
show this. Changes from before a swap still arrive under the old names, and are no reason to stop. If rows carry only
the name of their table, those of a table that temporarily had another name are lost as well.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import pyarrow.compute as pc

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.control.snapshots import TableTimeline, record_left
from cdc_lake.decode.gaussdb.catalog_facts import named_anew
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.observability.failpoints import TABLES_LEFT, failpoint
from cdc_lake.source.base import PublishedTable
from cdc_lake.tables.control_schema import MembershipRow
from cdc_lake.tables.control_schema import utc_now as control_now
from cdc_lake.tables.control_tables import ControlTables


@dataclass(frozen=True, slots=True)
class TableChanges:
    """`lacking`: selected but not in the stream; `waiting`: excluded or never followed, selected and in the stream;
    `gone`: followed and existing, but not selected; `extra`: in the stream but not selected, if they can be removed;
    `left`: all excluded ones, not copied since; `moved`: those of `waiting` with another entry in the publication than
    before, or that are other tables than before; `dropped`: followed, but the database has no table of that name now.
    """

    lacking: tuple[TableName, ...] = ()
    waiting: tuple[TableName, ...] = ()
    gone: tuple[TableName, ...] = ()
    extra: tuple[TableName, ...] = ()
    left: frozenset[TableName] = frozenset()
    moved: frozenset[TableName] = frozenset()
    dropped: tuple[TableName, ...] = ()


def changes_of(
    chosen: Collection[TableName],
    carried: Collection[TableName],
    existing: Collection[TableName],
    table_courses: Mapping[str, TableTimeline],
    came: Collection[TableName],
    *,
    published: bool,
    moved: Collection[TableName] = (),
    read: Iterable[str] = (),
) -> TableChanges:
    """Compare. `came`: unknown tables in the stream; `published`: whether the publication can be altered; `moved`:
    tables with another entry than before; `read`: names under which the stream was read before.
    """
    chosen, carried = set(chosen), set(carried)
    again = frozenset(moved) & chosen & carried
    left = frozenset(TableName.parse(name) for name, course in table_courses.items() if course.waits)
    followed = {TableName.parse(name) for name in table_courses} - left
    return TableChanges(
        lacking=tuple(sorted(chosen - carried)),
        waiting=tuple(sorted(chosen & carried & left | set(came) | again)),
        gone=tuple(sorted((carried - left | followed) & set(existing) - chosen)),
        extra=tuple(sorted(carried - chosen if published else ())),
        left=left,
        moved=again - left,
        dropped=tuple(sorted(({*followed, *map(TableName.parse, read)} - left).difference(existing))),
    )


def leave(
    changes: TableChanges,
    waiting: Collection[TableName],
    control: ControlTables,
    state: StreamCheckpoint,
    report: ProgressReporter,
    ends: int | None = None,
) -> None:
    """Record removed tables, and those that are `waiting` for a copy, as excluded. Raises ControlNotWritten.

    `ends`: a position at or after everything committed now, up to which dropped tables are followed; if None, the
    stream cannot determine it, and dropped tables are not recorded.
    """
    if changes.dropped and ends is not None:
        record_left(control, replace(state, upto=max(state.upto, ends)), changes.dropped)
        for table in changes.dropped:
            text = f"table {table} no longer exists in the database: silver keeps its last rows"
            report(ProgressEvent("connect", text))
    if leaves := [table for table in (*changes.gone, *waiting) if table not in changes.left]:
        record_left(control, state, leaves)
    failpoint(TABLES_LEFT)
    for table in changes.gone:
        report(ProgressEvent("connect", f"table {table} is no longer captured: `source.tables` excludes it"))


def report_renamed(names: Mapping[TableName, TableName], report: ProgressReporter) -> None:
    """Report tables that had another name before, if no copy is requested."""
    for table, before in sorted(names.items()):
        text = (
            f"table {before} was renamed to {table}: silver starts a table of that name with the changes from here on"
        )
        report(ProgressEvent("warning", f"{text}, and `snapshot.mode` disables the copy: cdc-lake resync {table}"))


def newcomers(new: Iterable[TableName], landed: Iterable[Relation]) -> set[TableName]:
    """New tables of which bronze has nothing, or which were renamed."""
    names_of: defaultdict[int | None, set[TableName]] = defaultdict(set)
    for layout in landed:
        names_of[layout.oid].add(layout.table)
    known_names = set().union(*names_of.values())
    renamed = {name for oid, names in names_of.items() if oid is not None and len(names) > 1 for name in names}
    return {table for table in new if table not in known_names or table in renamed}


@dataclass(frozen=True, slots=True)
class Member:
    """`entry`: the table's entry in the publication; without one, `named_by` says how its name is determined, None if
    an older version recorded it. `oid`: of the table, None likewise.
    """

    entry: int | str | None
    oid: int | None = None


def last_members(control: ControlTables, state: StreamCheckpoint) -> Mapping[str, Member]:
    """How each table of the stream was last read; empty if no version recorded it yet. Raises LakeError."""
    stream_filter = (pc.field("stream") == state.stream) & (pc.field("epoch") == state.epoch)
    rows = control.read("memberships", stream_filter).to_pylist()
    if not rows:
        return {}
    document = json.loads(max(rows, key=lambda row: row["recorded_at"])["tables"])
    return {name: Member(*entry) if isinstance(entry, list) else Member(entry) for name, entry in document.items()}


def named_tables(members: Mapping[str, Member]) -> dict[TableName, tuple[int, str]]:
    """OID and `named_by` of the tables of a stream without a publication, if recorded."""
    by_name = {TableName.parse(name): member for name, member in members.items()}
    return {name: (member.oid, str(member.entry or "")) for name, member in by_name.items() if member.oid is not None}


def note_members(carried: Iterable[PublishedTable], control: ControlTables, state: StreamCheckpoint) -> None:
    """Record how the tables are read from here on. Raises LakeError."""
    members = {str(entry.table): Member(entry.member, entry.oid) for entry in carried}
    if members != last_members(control, state):
        document = {name: [entry.entry, entry.oid] for name, entry in members.items()}
        control.record(MembershipRow(state.epoch, state.stream, json.dumps(document, sort_keys=True), control_now()))


def moved_tables(carried: Iterable[PublishedTable], known_members: Mapping[str, Member]) -> frozenset[TableName]:
    """Tables with another entry in the publication than recorded, or that are other tables of that name."""
    return frozenset(
        source_table.table
        for source_table in carried
        if (before := known_members.get(str(source_table.table))) is not None
        and not _is_same_member(before, source_table.member, source_table.oid)
    )


def renamed_tables(
    carried: Iterable[PublishedTable], known_members: Mapping[str, Member]
) -> dict[TableName, TableName]:
    """The tables that had another name before, with that name."""
    names = {entry.oid: TableName.parse(name) for name, entry in known_members.items() if entry.oid is not None}
    return {
        entry.table: before for entry in carried if (before := names.get(entry.oid or 0, entry.table)) != entry.table
    }


def _is_same_member(known_member: Member, entry: int | str | None, oid: int | None) -> bool:
    if known_member.oid not in {None, oid}:
        return False
    if isinstance(entry, str):
        return known_member.entry is None or not named_anew(str(known_member.entry), entry)
    return entry == known_member.entry
