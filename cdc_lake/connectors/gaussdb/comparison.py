"""Snapshots of the GaussDB family that are exported with their CSN, for comparisons and for copying tables again.

A snapshot shows exactly the transactions below its CSN. A comparison reads the rest of the slot as the receiver would,
and acknowledges nothing, so that the next receiver gets it again. A table that is copied again has an exact position in
a stream ordered by CSN, and none in one ordered by LSN.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze.contract import SNAPSHOT, StreamCheckpoint
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.connectors.base import ReceiverContext
from cdc_lake.connectors.gaussdb import decoding
from cdc_lake.connectors.gaussdb.adapter import check_resume, server_facts
from cdc_lake.connectors.open_stream import sql_codec
from cdc_lake.connectors.snapshot_copy import TableCopy, chunk_rows, copy_tables
from cdc_lake.control.snapshots import CopiedTable, copy_name
from cdc_lake.decode.gaussdb.assembler import GaussDbAssembler
from cdc_lake.decode.gaussdb.batches import RecordTransaction
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.errors import CopyUnplaced, DecodeError, SlotActive, SlotUndecodable
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.source.base import (
    PendingTransaction,
    PublishedTable,
    SnapshotVisibility,
    StreamIdentity,
    format_stream_position,
)
from cdc_lake.source.copy_format import csv_statement, csv_tables
from cdc_lake.source.gaussdb.server import CsnSnapshot, GaussDbServerFacts, current_lsn, target_of
from cdc_lake.source.gaussdb.slot import find_slot
from cdc_lake.source.gaussdb.snapshot import GaussDbReader, export_snapshot, own_encoding
from cdc_lake.source.gaussdb.wire.session import WireSession, connect
from cdc_lake.source.row_hash_sql import HashSql
from cdc_lake.source.socket_io import Opened, ignore_open
from cdc_lake.source.sql_text import identifier, quote_table
from cdc_lake.tables.control_tables import ControlTables

_APPLICATION = "cdc_lake compare"

PATIENCE = 10.0
"""Seconds in which the slot has to send what the snapshot shows."""


@dataclass(frozen=True, slots=True)
class CsnSnapshotPredicate:
    """A snapshot that shows the transactions below a CSN (implements `source.base.SnapshotVisibility`)."""

    csn: int
    position: int
    column = "csn"

    def shows(self, number: int, _position: int) -> bool:
        """Whether it shows the transaction with this number, committed at a position of the stream's order domain."""
        return number < self.csn

    def may_be_hidden(self, numbers: Any, _positions: Any) -> Any:
        """For int64 ndarrays of numbers and positions a bool ndarray: False if the snapshot certainly shows it."""
        return numbers >= self.csn


@dataclass
class GaussDbComparison:
    """One session that reads everything in one snapshot, and a replication connection for what has not landed."""

    project: Project
    state: StreamCheckpoint
    facts: GaussDbServerFacts
    reading: WireSession
    opened: ExitStack

    def __post_init__(self) -> None:
        self._domain = StreamIdentity.parse(self.state.stream).domain
        self._layouts = RelationResolver(decoding.family_tables(self.project, self.reading))

    def captured_tables(self) -> list[PublishedTable]:
        """The tables that the stream contains, sorted."""
        tables = decoding.catalog(self.project, self.reading, decoding.captured_tables(self.project, self.reading))
        return [PublishedTable(table, tuple(c.name for c in facts.columns), None) for table, facts in tables.items()]

    @contextmanager
    def snapshot(self, tables: Sequence[TableName]) -> Iterator[SnapshotVisibility]:
        """One snapshot for everything read inside; locks out TRUNCATE and rewrites, which would invalidate it."""
        with export_snapshot(self.reading, [quote_table(table) for table in tables]) as exported_snapshot:
            csn = exported_snapshot.csn.value
            position = csn - 1 if self._domain is OrderDomain.CSN else current_lsn(self.reading).value
            yield CsnSnapshotPredicate(csn, position)

    def relation_of(self, source_table: PublishedTable) -> Relation:
        """The layout of a captured table, as the stream would announce it."""
        return self._layouts.relation_of(source_table.table)

    def parts(self, relation: Relation, source_table: PublishedTable) -> Iterator[pa.Table]:
        """The rows of a captured table that match its filter, in blocks: large_string columns, text as printed."""
        columns = ", ".join(identifier(name) for name in relation.names)
        where = f" WHERE {source_table.row_filter}" if source_table.row_filter else ""
        query = f"SELECT {columns} FROM {quote_table(source_table.table)}{where}"
        codec = sql_codec(self.project, self.facts.encoding)
        with ExitStack() as held:
            if codec.python != "utf-8":
                held.enter_context(own_encoding(self.reading, codec.encoding, query))
            sent = self.reading.copy_out(csv_statement(query), doing=f"reading {source_table.table}")
            yield from csv_tables(sent, relation, codec)

    def unsummable_reason(self, relation: Relation) -> str:
        """Why the server cannot sum up hashes: `concat` is not verified for all versions of the family."""
        del relation
        return "its server belongs to the GaussDB family"

    def sums(self, source_table: PublishedTable, hashed: HashSql) -> Iterator[tuple[int, int, int]]:
        """The rows of `parts`, summed up by the server: bucket, number of rows, sum of their hashes."""
        msg = f"a server of the GaussDB family cannot hash {source_table.table}: {hashed}"
        raise AssertionError(msg)

    def ahead(self, shown: SnapshotVisibility, after: int) -> Sequence[PendingTransaction] | None:
        """What the slot still has of what the snapshot shows, after position `after`; None if it has a reader."""
        by_sql = decoding.reads_by_sql(self.project)
        session = connect(target_of(self.project.family, self.project.root), replication=not by_sql)
        self.opened.callback(session.close)
        try:
            # by SQL from the slot's position: only the receiver may advance it
            start = 0 if by_sql else self.state.confirm
            frames = decoding.frames_of(self.project, session, start, looks=by_sql)
        except SlotActive:
            return None
        self.opened.callback(frames.close)
        assembler = decoding.assembler_of(self.project, self._domain, self.facts.encoding)
        with connect(target_of(self.project.family, self.project.root)) as other:
            known = decoding.family_tables(self.project, other)
            codec = decoding.codec_of(self.project, self.facts.encoding)
            layouts = RelationResolver(known, codec, type_names=known.type_names)
            pending: list[PendingTransaction] = []
            every = self._domain is OrderDomain.CSN and self.project.family.slot_order != "csn"
            missing = set(range(after + 1, shown.position + 1)) if every else set[int]()
            reached, deadline = after, time.monotonic() + PATIENCE
            while missing if every else max(reached, frames.keepalive_end) < shown.position:
                if time.monotonic() > deadline:
                    return None
                sent = frames.poll(0.2)
                if not sent:
                    frames.tick(ping=True)
                for raw in self._decode_frames(assembler, sent):
                    missing.discard(raw.bounds.position)
                    reached = max(reached, raw.bounds.position)
                    if raw.count and raw.bounds.position > after:
                        pending.append(self._pending_transaction(raw, layouts))
        return pending

    def _decode_frames(
        self, assembler: GaussDbAssembler, sent: Sequence[tuple[int, bytes]]
    ) -> Iterator[RecordTransaction]:
        """The transactions that the frames complete. Raises SlotUndecodable."""
        for number, payload in sent:
            try:
                for raw in assembler.feed(payload, number):
                    assert isinstance(raw, RecordTransaction), "all of it is held in memory"
                    yield raw
            except DecodeError as error:
                raise self._undecodable(error) from error

    def _pending_transaction(self, raw: RecordTransaction, layouts: RelationResolver) -> PendingTransaction:
        try:
            tables = decoding.tables_of(raw, layouts)
        except DecodeError as error:
            position = format_stream_position(self.state.stream, raw.bounds.position)
            error.where = error.where or f"the transaction at {position}"
            raise self._undecodable(error) from error
        return PendingTransaction(raw.bounds.position, raw.bounds.csn or 0, tables)

    def _undecodable(self, error: DecodeError) -> SlotUndecodable:
        return SlotUndecodable(
            f"slot `{self.project.slot}` has a transaction that cannot be decoded: {error.message} "
            f"({error.code}, in {error.where})"
        )


@contextmanager
def family_side(project: Project, state: StreamCheckpoint) -> Iterator[GaussDbComparison]:
    """Connect to the server of bronze's stream. Raises SourceError, StateError."""
    target = target_of(project.family, project.root)
    with ExitStack() as opened:
        reading = connect(target, application=_APPLICATION)
        opened.callback(reading.close)
        facts, state = check_source(project, reading, state)
        yield GaussDbComparison(project, state, facts, reading, opened)


def check_source(
    project: Project, reading: WireSession, state: StreamCheckpoint, on_open: Opened = ignore_open
) -> tuple[GaussDbServerFacts, StreamCheckpoint]:
    """The server's facts, and bronze's state when they were read: a receiver may have landed and acknowledged more
    since `state`. `on_open`: called with connections.
    """
    target, by_sql = target_of(project.family, project.root), decoding.reads_by_sql(project)
    while True:
        with ExitStack() as opened:
            asked = reading
            if not by_sql:
                asked = connect(target, application=_APPLICATION, replication=True, on_open=on_open)
                opened.callback(asked.close)
            facts = server_facts(asked, by_sql=by_sql)
        try:
            check_resume(project, reading, facts, state, find_slot(reading, project.slot))
        except SlotActive:  # bronze advanced while the slot was checked
            now = bronze_reader(project).state()
            if now is None or now == state:
                raise
            state = now
        else:
            return facts, state


_ATTEMPTS: Final = 3


def copy_family(
    context: ReceiverContext, state: StreamCheckpoint, tables: Sequence[TableName], opened: Opened = ignore_open
) -> tuple[str, tuple[CopiedTable, ...]]:
    """Copy tables of the stream; returns the copy's name. Raises CopyUnplaced, SourceError, LakeError, StateError."""
    if StreamIdentity.parse(state.stream).domain is not OrderDomain.CSN:
        raise CopyUnplaced("the stream is ordered by LSN, but a snapshot of this server has its position by CSN")
    project = context.project
    target, application = target_of(project.family, project.root), f"cdc_lake {project.name} copy"
    with closing(connect(target, application=application, on_open=opened)) as session:
        facts, _ = check_source(project, session, state, opened)
        carried_tables = [table for table in decoding.captured_tables(project, session) if table in set(tables)]
        table_sizes = decoding.tables(session, carried_tables)
        with _take_free_snapshot(project, session, state, context.control, carried_tables) as snapshot:
            position = snapshot.csn.value - 1
            text = f"copy of everything below CSN {snapshot.csn}"
            context.report(ProgressEvent("snapshot", text, facts={"epoch": state.epoch}))
            layouts = RelationResolver(decoding.catalog(project, session, carried_tables).get)
            relations = [layouts.relation_of(table) for table in carried_tables]
            copies = [TableCopy(relation, (partial(GaussDbReader.read, relation=relation),)) for relation in relations]
            reader = GaussDbReader(session, chunk_rows(project.pipeline.snapshot), sql_codec(project, facts.encoding))
            name = copy_name(state, position)
            return name, copy_tables(context, copies, [reader], name, position, table_sizes)


@contextmanager
def _take_free_snapshot(
    project: Project, session: WireSession, state: StreamCheckpoint, control: ControlTables, tables: Sequence[TableName]
) -> Iterator[CsnSnapshot]:
    """A snapshot at a CSN that no other copy has, of whatever tables, because copies are named by it. On a quiet server
    two snapshots have one CSN; a transaction of ours that only takes an id separates them. Raises CopyUnplaced if it
    does not, SourceError.
    """
    for _ in range(_ATTEMPTS):
        with export_snapshot(session, [quote_table(table) for table in tables]) as snapshot:
            if _is_free(project, state, control, snapshot.csn.value - 1):
                yield snapshot
                return
        session.query("SELECT txid_current()", doing="separating a copy from the one before it")
    hint = "run `cdc-lake resync` again when a transaction has ended at the source"
    raise CopyUnplaced(f"bronze already has a copy that was started at CSN {snapshot.csn.value - 1}", hint=hint)


def _is_free(project: Project, state: StreamCheckpoint, control: ControlTables, position: int) -> bool:
    """Whether no copy, even an interrupted one or one of empty tables, has a position."""
    if any(row.snapshot == copy_name(state, position) for row in control.snapshots()):
        return False
    files = bronze_reader(project).files()
    paths = files.select(epoch=state.epoch, after=position - 1, upto=position, op=SNAPSHOT)
    wanted = (pc.field("epoch") == state.epoch) & (pc.field("position") == position) & (pc.field("op") == SNAPSHOT)
    return not files.read(paths, ["relation"], wanted).num_rows
