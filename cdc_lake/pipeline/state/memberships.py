"""Memberships: by what the publication has each table, kept to see what somebody else did to it.

A table that was taken out of the publication and put back looks as before, and what was changed meanwhile is lost to
the stream. So is what rows hold that are published otherwise from then on. PostgreSQL makes a new entry for the table
each time, so one whose entry is another than the stream was last read by has to be copied again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pyarrow.compute as pc

from cdc_lake.bronze.port import BronzeState
from cdc_lake.decode.announced import TableFacts
from cdc_lake.errors import PublicationAltered
from cdc_lake.lake.control import ControlTables
from cdc_lake.lake.control_rows import MembershipRow
from cdc_lake.lake.control_rows import now as control_now
from cdc_lake.model.relation import TableName
from cdc_lake.source.captured import Published
from cdc_lake.source.catalog import SourceCatalog
from cdc_lake.source.connection import Session
from cdc_lake.source.publication import member_of


def last_members(control: ControlTables, state: BronzeState) -> Mapping[str, int]:
    """Of each table of the stream the entry it was last read by; nothing where no version kept it yet. Raises
    LakeError.
    """
    mine = (pc.field("stream") == state.stream) & (pc.field("epoch") == state.epoch)
    rows = control.read("memberships", mine).to_pylist()
    if not rows:
        return {}
    found: dict[str, int] = json.loads(max(rows, key=lambda row: row["recorded_at"])["tables"])
    return found


def note_members(carried: Iterable[Published], control: ControlTables, state: BronzeState) -> None:
    """Keep that the stream is read by these from here. Raises LakeError."""
    members = _members(carried)
    if members != last_members(control, state):
        control.record(MembershipRow(state.epoch, state.stream, json.dumps(members, sort_keys=True), control_now()))


def moved(carried: Iterable[Published], known: Mapping[str, int]) -> frozenset[TableName]:
    """The tables that have another entry than is known."""
    return frozenset(one.table for one in carried if str(one.table) in known and one.member != known[str(one.table)])


def _members(carried: Iterable[Published]) -> dict[str, int]:
    return {str(one.table): one.member for one in carried if one.member is not None}


class WatchedCatalog:
    """A catalog that looks, whenever a table is announced, whether the publication has it by the same entry as before.

    PostgreSQL announces a table again with its first change after its publication was altered.
    """

    def __init__(self, session: Session, publication: str, known: Mapping[str, int]) -> None:
        self._catalog = SourceCatalog(session)
        self._session = session
        self._publication = publication
        self._known = known

    def __call__(self, oid: int, table: TableName) -> TableFacts:
        """As `SourceCatalog`; raises PublicationAltered."""
        known = self._known.get(str(table))
        # where table or publication is gone, nothing is read on in another way: the stream itself says what follows
        there = None if known is None else member_of(self._session, self._publication, oid)
        if there is not None and there != known:
            text = f"publication `{self._publication}` was altered: it has table {table} in another way than before"
            raise PublicationAltered(text)
        facts = self._catalog(oid, table)
        root = facts.published_as
        if root is not None and (str(table) in self._known or str(root.table) not in self._known):
            return replace(facts, published_as=None)
        return facts
