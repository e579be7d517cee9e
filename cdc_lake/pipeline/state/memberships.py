"""Memberships: which table of the source each name of the stream was read from, kept to see what somebody else did.

A table that was taken out of the publication and put back looks as before, and what was changed meanwhile is lost to
the stream. So is what rows hold that are published otherwise from then on. PostgreSQL makes a new entry for the table
each time, so one whose entry is another than the stream was last read by has to be copied again.

A name may also come to mean another table: it was dropped and made anew, or two tables swapped their names. Their OIDs
tell. What was decoded from before a swap still comes under the old names, and is no reason to stop. Where rows come
with the name of their table alone, those of one that had another name for a while are lost as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow.compute as pc

from cdc_lake.bronze.port import BronzeState
from cdc_lake.decode.mppdb.facts import named_anew
from cdc_lake.lake.control import ControlTables
from cdc_lake.lake.control_rows import MembershipRow
from cdc_lake.lake.control_rows import now as control_now
from cdc_lake.model.relation import TableName
from cdc_lake.source.captured import Published


@dataclass(frozen=True, slots=True)
class Member:
    """`entry`: by which the publication had the table; without one, by which it has its name (`named_by`), None if an
    older version recorded it. `oid`: of the table, None likewise.
    """

    entry: int | str | None
    oid: int | None = None


def last_members(control: ControlTables, state: BronzeState) -> Mapping[str, Member]:
    """Of each table of the stream what it was last read from; empty if no version recorded it yet. Raises LakeError."""
    mine = (pc.field("stream") == state.stream) & (pc.field("epoch") == state.epoch)
    rows = control.read("memberships", mine).to_pylist()
    if not rows:
        return {}
    found = json.loads(max(rows, key=lambda row: row["recorded_at"])["tables"])
    return {name: Member(*one) if isinstance(one, list) else Member(one) for name, one in found.items()}


def named_tables(members: Mapping[str, Member]) -> dict[TableName, tuple[int, str]]:
    """OID and `named_by` of the tables that a stream without a publication is read from, as far as recorded."""
    known = {TableName.parse(name): one for name, one in members.items()}
    return {name: (one.oid, str(one.entry or "")) for name, one in known.items() if one.oid is not None}


def note_members(carried: Iterable[Published], control: ControlTables, state: BronzeState) -> None:
    """Keep that the stream is read from these from here. Raises LakeError."""
    members = {str(one.table): Member(one.member, one.oid) for one in carried}
    if members != last_members(control, state):
        told = {name: [one.entry, one.oid] for name, one in members.items()}
        control.record(MembershipRow(state.epoch, state.stream, json.dumps(told, sort_keys=True), control_now()))


def moved(carried: Iterable[Published], known: Mapping[str, Member]) -> frozenset[TableName]:
    """The tables that are published by another entry than is known, or are other tables of that name."""
    return frozenset(
        one.table
        for one in carried
        if (before := known.get(str(one.table))) is not None and not _same(before, one.member, one.oid)
    )


def renamed(carried: Iterable[Published], known: Mapping[str, Member]) -> dict[TableName, TableName]:
    """The tables that are known by another name, with that name."""
    names = {one.oid: TableName.parse(name) for name, one in known.items() if one.oid is not None}
    return {one.table: before for one in carried if (before := names.get(one.oid or 0, one.table)) != one.table}


def _same(known: Member, entry: int | str | None, oid: int | None) -> bool:
    if known.oid not in {None, oid}:
        return False
    if isinstance(entry, str):
        return known.entry is None or not named_anew(str(known.entry), entry)
    return entry == known.entry
