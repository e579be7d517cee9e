"""The GaussDB family's side of a comparison (`pipeline.ports.side.CompareSource`).

The snapshot is exported with its CSN and shows exactly the transactions below it. What the slot still has is read from
it as the receiver would, and nothing is confirmed, so that the next receiver gets it again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.port import BronzeState
from cdc_lake.config.project import Project
from cdc_lake.decode.mppdb.assembler import FamilyAssembler
from cdc_lake.decode.mppdb.layouts import Layouts
from cdc_lake.decode.mppdb.raw import RecordTransaction
from cdc_lake.errors import DecodeError, SlotActive, SlotUndecodable
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.pipeline.gaussdb.facts import captured, catalog, family_tables
from cdc_lake.pipeline.gaussdb.frames import assembler_of, codec_of, frames_of, reads_by_sql, tables_of
from cdc_lake.pipeline.gaussdb.stream import check_resume, server_facts
from cdc_lake.pipeline.ports.side import joined
from cdc_lake.pipeline.stream.encoding import sql_codec
from cdc_lake.source.captured import Published, Shown, Unlanded
from cdc_lake.source.copy_csv import csv_statement, csv_tables
from cdc_lake.source.ending import Opened, nobody
from cdc_lake.source.gaussdb.connection import target_of
from cdc_lake.source.gaussdb.server import FamilyServerFacts, current_lsn
from cdc_lake.source.gaussdb.slot import find_slot
from cdc_lake.source.gaussdb.snapshot import exported, own_encoding
from cdc_lake.source.hash_sql import HashSql
from cdc_lake.source.quoting import identifier, quoted
from cdc_lake.source.stream import StreamIdentity, shown
from cdc_lake.source.wire.connect import connect
from cdc_lake.source.wire.session import WireSession

_APPLICATION = "cdc_lake compare"

PATIENCE = 10.0
"""Seconds that the slot may take to send what the snapshot shows."""


@dataclass(frozen=True, slots=True)
class CsnShown:
    """A snapshot that shows the transactions below a CSN (implements `captured.Shown`)."""

    csn: int
    position: int

    @property
    def column(self) -> str:
        """See Shown."""
        return "csn"

    def shows(self, number: int, _position: int) -> bool:
        """See Shown."""
        return number < self.csn

    def near(self, numbers: Any, _positions: Any) -> Any:
        """See Shown."""
        return numbers >= self.csn


class FamilySide:
    """One session that reads everything in one snapshot, and a replication connection for what is not landed."""

    def __init__(
        self, project: Project, state: BronzeState, facts: FamilyServerFacts, reading: WireSession, opened: ExitStack
    ) -> None:
        self._project = project
        self._state = state
        self._facts = facts
        self._reading = reading
        self._opened = opened
        self._domain = StreamIdentity.parse(state.stream).domain
        self._layouts = Layouts(family_tables(project, reading))

    def captured(self) -> list[Published]:
        """See CompareSource."""
        found = catalog(self._project, self._reading, captured(self._project, self._reading))
        return [Published(table, tuple(c.name for c in facts.columns), None) for table, facts in found.items()]

    @contextmanager
    def snapshot(self, tables: Sequence[TableName]) -> Iterator[Shown]:
        """See CompareSource. TRUNCATE and rewrites are locked out: no snapshot shows a table through them."""
        with exported(self._reading, [quoted(table) for table in tables]) as taken:
            csn = taken.csn.value
            yield CsnShown(csn, csn - 1 if self._domain is OrderDomain.CSN else current_lsn(self._reading).value)

    def relation_of(self, one: Published) -> Relation:
        """See CompareSource."""
        return self._layouts.relation_of(one.table)

    def parts(self, relation: Relation, one: Published) -> Iterator[pa.Table]:
        """See CompareSource."""
        columns = ", ".join(identifier(name) for name in relation.names)
        where = f" WHERE {one.row_filter}" if one.row_filter else ""
        query = f"SELECT {columns} FROM {quoted(one.table)}{where}"
        codec = sql_codec(self._project, self._facts.encoding)
        with ExitStack() as held:
            if codec.python != "utf-8":
                held.enter_context(own_encoding(self._reading, codec.encoding, query))
            sent = self._reading.copy_out(csv_statement(query), doing=f"reading {one.table}")
            yield from csv_tables(sent, relation, codec)

    def rows(self, relation: Relation, one: Published) -> pa.Table:
        """See CompareSource."""
        return joined(self.parts(relation, one), relation)

    def unsummed(self, relation: Relation) -> str:
        """See CompareSource. What `concat` prints is not proven of every version and compatibility of this family."""
        del relation
        return "its server is of the GaussDB family"

    def sums(self, one: Published, hashed: HashSql) -> Iterator[tuple[int, int, int]]:
        """See CompareSource."""
        msg = f"{one.table} is not summed up by a server of the GaussDB family: {hashed}"
        raise AssertionError(msg)

    def ahead(self, shown: Shown, after: int) -> Sequence[Unlanded] | None:
        """See CompareSource."""
        by_sql = reads_by_sql(self._project)
        session = connect(target_of(self._project.family, self._project.root), replication=not by_sql)
        self._opened.callback(session.close)
        try:
            # by SQL from wherever the slot is: it would be moved otherwise, which is for the receiver to do
            start = 0 if by_sql else self._state.confirm
            frames = frames_of(self._project, session, start, looks=by_sql)
        except SlotActive:
            return None
        self._opened.callback(frames.close)
        assembler = assembler_of(self._project, self._domain, self._facts.encoding)
        with connect(target_of(self._project.family, self._project.root)) as other:
            layouts = Layouts(family_tables(self._project, other), codec_of(self._project, self._facts.encoding))
            found: list[Unlanded] = []
            wanted = _Wanted(shown, after, every=self._domain is OrderDomain.CSN and not self._by_csn)
            deadline = time.monotonic() + PATIENCE
            while not wanted.seen(frames.keepalive_end):
                if time.monotonic() > deadline:
                    return None
                sent = frames.poll(0.2)
                if not sent:
                    frames.tick(ping=True)
                for raw in self._decoded(assembler, sent):
                    wanted.note(raw.bounds.position)
                    if raw.count and raw.bounds.position > after:
                        found.append(self._unlanded(raw, layouts))
        return found

    def _decoded(self, assembler: FamilyAssembler, sent: Sequence[tuple[int, bytes]]) -> Iterator[RecordTransaction]:
        """The transactions that frames complete. Raises SlotUndecodable."""
        for number, payload in sent:
            try:
                for raw in assembler.feed(payload, number):
                    assert isinstance(raw, RecordTransaction), "all of it is held in memory"
                    yield raw
            except DecodeError as error:
                raise self._undecodable(error) from error

    def _unlanded(self, raw: RecordTransaction, layouts: Layouts) -> Unlanded:
        try:
            tables = tables_of(raw, layouts)
        except DecodeError as error:
            error.where = error.where or f"the transaction at {shown(self._state.stream, raw.bounds.position)}"
            raise self._undecodable(error) from error
        return Unlanded(raw.bounds.position, raw.bounds.csn or 0, tables)

    def _undecodable(self, error: DecodeError) -> SlotUndecodable:
        return SlotUndecodable(
            f"slot `{self._project.slot}` has a transaction that cannot be decoded: {error.message} "
            f"({error.code}, in {error.where})"
        )

    @property
    def _by_csn(self) -> bool:
        return self._project.family.slot_order == "csn"


class _Wanted:
    """What must have come before everything is known that a snapshot shows; `every`: no position is left out."""

    def __init__(self, shown: Shown, after: int, *, every: bool) -> None:
        self._upto = shown.position
        self._missing = set(range(after + 1, shown.position + 1)) if every else None
        self._reached = after

    def note(self, position: int) -> None:
        self._reached = max(self._reached, position)
        if self._missing is not None:
            self._missing.discard(position)

    def seen(self, keepalive_end: int) -> bool:
        if self._missing is not None:
            return not self._missing
        return max(self._reached, keepalive_end) >= self._upto


@contextmanager
def family_side(project: Project, state: BronzeState) -> Iterator[FamilySide]:
    """Connect to the server that bronze was fed from. Raises SourceError, StateError."""
    target = target_of(project.family, project.root)
    with ExitStack() as opened:
        reading = connect(target, application=_APPLICATION)
        opened.callback(reading.close)
        facts, state = checked(project, reading, state)
        yield FamilySide(project, state, facts, reading, opened)


def checked(
    project: Project, reading: WireSession, state: BronzeState, told: Opened = nobody
) -> tuple[FamilyServerFacts, BronzeState]:
    """The server's facts, and bronze as it was when they were asked for: a receiver may have landed and confirmed more
    since `state`. `told`: of connections.
    """
    target, by_sql = target_of(project.family, project.root), reads_by_sql(project)
    while True:
        with ExitStack() as opened:
            asked = reading
            if not by_sql:
                asked = connect(target, application=_APPLICATION, replication=True, told=told)
                opened.callback(asked.close)
            facts = server_facts(asked, by_sql=by_sql)
        try:
            check_resume(project, reading, facts, state, find_slot(reading, project.slot))
        except SlotActive:  # bronze went on while the slot was looked at
            now = bronze_reader(project).state()
            if now is None or now == state:
                raise
            state = now
        else:
            return facts, state
