"""The first start of a stream: publication, slot, initial copy.

    temporary slot → stream begun in bronze → every table copied → lasting slot → `snapshots` says complete

The temporary slot goes with its connection, so whatever breaks off before the end leaves nothing on the server but
the publication, and nothing in bronze that is ever applied: the next start begins a new stream. Only the last step
makes the stream one that changes are read from.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from cdc_lake.bronze.port import BronzeState, BronzeWriter
from cdc_lake.config.project import Project
from cdc_lake.errors import CopyUnknown, ServerUnreachable, SlotForeign, SlotMissing
from cdc_lake.lake.control import ControlTables, SnapshotRow, StreamRow
from cdc_lake.lake.control import now as control_now
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.observe.failpoint import SNAPSHOT_CHUNK, SNAPSHOT_DONE, failpoint
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.source import publication, slot, snapshot
from cdc_lake.source.catalog import check_identities, relation_of
from cdc_lake.source.connection import Session
from cdc_lake.source.server import ServerFacts
from cdc_lake.source.stream import StreamIdentity, shown


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """One table of a finished copy."""

    relation: TableName
    layout: int
    rows: int
    chunks: int


class Stopped(Exception):
    """The copy was asked to stop; it starts anew next time."""


def is_complete(control: ControlTables, stream: str, epoch: int) -> bool:
    """True where the initial copy of this stream was recorded as complete."""
    return any(
        row.state == "complete" and (row.stream, row.epoch, row.snapshot) == (stream, epoch, snapshot_id(epoch))
        for row in control.snapshots()
    )


def snapshot_id(epoch: int) -> str:
    """Name of the initial copy of a stream, unique in the pipeline."""
    return f"initial-{epoch}"


def begin(
    project: Project,
    session: Session,
    replication: Session,
    facts: ServerFacts,
    bronze: BronzeWriter,
    control: ControlTables,
    stop: threading.Event,
    tell: Tell,
) -> tuple[BronzeState, int]:
    """Start a stream; its state and the rows copied. Raises SourceError, LakeError, Stopped."""
    _clear_the_way(project, session, facts, bronze.state(), tell)
    ensure_publication(project, session, tell)
    made = slot.export_slot(replication, project.slot)
    state = _begin_stream(project, facts, made, bronze, control)
    tell(Progress("snapshot", f"initial copy as of {made.consistent}", facts={"epoch": state.epoch}))
    copied: tuple[CopiedTable, ...] = ()
    if project.pipeline.snapshot.mode == "initial":
        copied = _copy(project, session, made, bronze, state.epoch, stop, tell)
    try:
        slot.keep_slot(session, made, project.slot)
    except SlotMissing as gone:
        raise ServerUnreachable("the connection that held the slot broke off during the copy") from gone
    failpoint(SNAPSHOT_DONE)
    _record(control, state, "complete", copied)
    rows = sum(t.rows for t in copied)
    tell(Progress("snapshot", f"copied {len(copied)} tables, {rows} rows", rows, rows, "rows"))
    return state, rows


def _begin_stream(
    project: Project, facts: ServerFacts, made: slot.ExportedSlot, bronze: BronzeWriter, control: ControlTables
) -> BronzeState:
    identity = StreamIdentity(facts.system, facts.database, project.slot, made.consistent)
    state = bronze.begin_stream(str(identity), identity.start, made.consistent.value)
    control.record(
        StreamRow(
            state.epoch,
            state.stream,
            identity.start,
            project.slot,
            facts.system,
            facts.database,
            identity.domain,
            control_now(),
        )
    )
    _record(control, state, "started", ())
    return state


def _record(control: ControlTables, state: BronzeState, word: str, copied: tuple[CopiedTable, ...]) -> None:
    tables = [{"relation": str(t.relation), "layout": t.layout, "rows": t.rows, "chunks": t.chunks} for t in copied]
    control.record(
        SnapshotRow(
            snapshot=snapshot_id(state.epoch),
            stream=state.stream,
            epoch=state.epoch,
            position=state.upto,
            tables=json.dumps(tables),
            state=word,
            recorded_at=control_now(),
        )
    )


def ensure_publication(project: Project, session: Session, tell: Tell) -> None:
    """Check the publication against `tables`, or make it."""
    wanted = publication.select_tables(project.postgres.tables, publication.tables_in_database(session))
    check_identities(session, wanted)
    name = project.publication
    if publication.publication_exists(session, name):
        publication.check_published(name, (p.table for p in publication.published(session, name)), wanted)
        return
    publication.create_publication(session, name, wanted)
    tell(Progress("connect", f"publication `{name}` made for {len(wanted)} tables"))


def _clear_the_way(
    project: Project, session: Session, facts: ServerFacts, state: BronzeState | None, tell: Tell
) -> None:
    """Make sure no slot is in the way; drop ours where an earlier start broke off after making it."""
    there = slot.find_slot(session, project.slot)
    if state is None:
        if there is not None:
            raise SlotForeign(f"slot `{project.slot}` exists, but bronze holds nothing: this pipeline did not make it")
        return
    before = StreamIdentity.parse(state.stream)
    if state.upto != before.start:
        raise CopyUnknown(
            f"bronze holds changes of {state.stream} up to {shown(state.stream, state.upto)}, "
            "but no finished initial copy of it"
        )
    tell(Progress("snapshot", f"the copy of epoch {state.epoch} was not finished: a new stream starts"))
    if there is None:
        return
    if (before.system, before.database, before.slot) != (facts.system, facts.database, project.slot):
        raise SlotForeign(f"slot `{project.slot}` exists, but bronze was begun from another source")
    if there.confirmed != before.point or there.plugin != slot.PLUGIN:
        raise SlotForeign(f"slot `{project.slot}` is not the one made for {state.stream}: it was read or made anew")
    slot.drop_slot(session, project.slot)


def _copy(
    project: Project,
    session: Session,
    made: slot.ExportedSlot,
    bronze: BronzeWriter,
    epoch: int,
    stop: threading.Event,
    tell: Tell,
) -> tuple[CopiedTable, ...]:
    """Copy every published table in the slot's snapshot; ordinals and chunks count over all of them."""
    copied: list[CopiedTable] = []
    ordinal = chunk = 0
    with snapshot.exported(session, made.snapshot) as inside:
        carried = publication.published(inside, project.publication)
        for at, table in enumerate(carried):
            relation = relation_of(inside, table.table, table.columns)
            rows = chunks = 0
            for part in _chunks(inside, relation, table, project.pipeline.snapshot.chunk_rows):
                if stop.is_set():
                    raise Stopped
                bronze.append_snapshot(snapshot_id(epoch), chunk, relation, part, ordinal, made.consistent.value)
                failpoint(SNAPSHOT_CHUNK)
                ordinal, chunk = ordinal + len(part), chunk + 1
                rows, chunks = rows + len(part), chunks + 1
                tell(Progress("snapshot", f"copying {table.table}", ordinal, None, "rows"))
            copied.append(CopiedTable(table.table, relation.layout, rows, chunks))
            tell(Progress("snapshot", f"copied {table.table}: {rows} rows", at + 1, len(carried), "tables"))
    return tuple(copied)


def _chunks(
    session: Session, relation: Relation, table: publication.Published, chunk_rows: int
) -> Iterator[pa.ListArray]:
    """The table's chunks; one without rows for an empty table, so that its layout is known from the start."""
    empty = True
    for part in snapshot.read_chunks(session, relation, row_filter=table.row_filter, chunk_rows=chunk_rows):
        empty = False
        yield part
    if empty:
        yield pa.array([], pa.list_(pa.string()))
