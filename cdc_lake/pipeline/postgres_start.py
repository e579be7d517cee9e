"""The first start of a stream of PostgreSQL: publication, slot, initial copy.

    temporary slot → stream begun in bronze → every table copied → lasting slot → `snapshots` says complete

The temporary slot goes with its connection, so whatever breaks off before the end leaves nothing on the server but
the publication, and nothing in bronze that is ever applied: the next start begins a new stream. Only the last step
makes the stream one that changes are read from.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from cdc_lake.bronze.port import BronzeState, BronzeWriter
from cdc_lake.config.project import Project
from cdc_lake.decode.mppdb.codec import Codec
from cdc_lake.errors import ServerUnreachable, SlotForeign, SlotMissing
from cdc_lake.lake.control import ControlTables
from cdc_lake.model.counting import counted
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.observe.failpoint import SNAPSHOT_DONE, failpoint
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.copying import (
    CopiedTable,
    CopyPoint,
    Part,
    Stopped,
    TableCopy,
    chunk_rows,
    copy_tables,
    expected_rows,
    pace_of,
    snapshot_id,
)
from cdc_lake.pipeline.encoding import codec_by_name
from cdc_lake.pipeline.failover import note_timeline
from cdc_lake.pipeline.postgres_captured import by_publication, carried, wanted
from cdc_lake.pipeline.postgres_facts import tables as table_facts
from cdc_lake.pipeline.postgres_reading import plugin_options
from cdc_lake.pipeline.streams import begin_stream, check_unfinished, record_copy
from cdc_lake.source import publication, slot, snapshot
from cdc_lake.source.captured import Published
from cdc_lake.source.catalog import check_identities, relation_of
from cdc_lake.source.connection import Session, for_replication
from cdc_lake.source.ranges import Range, ranges_of
from cdc_lake.source.server import ServerFacts, timeline_of
from cdc_lake.source.settled import settled
from cdc_lake.source.stream import StreamIdentity

_LOOK = 0.05  # seconds between two looks for a snapshot that fits the slot


def begin(
    project: Project,
    session: Session,
    replication: Session,
    dial: Callable[[str], Session],
    facts: ServerFacts,
    bronze: BronzeWriter,
    control: ControlTables,
    stop: threading.Event,
    tell: Tell,
) -> tuple[BronzeState, int]:
    """Start a stream; its state and the rows copied. `dial` opens sessions beside the two.

    Raises SourceError, LakeError, Stopped.
    """
    _clear_the_way(project, session, facts, bronze.state(), tell)
    ensure_publication(project, session, tell)
    timeline = timeline_of(replication, facts.timeline)  # now: the snapshot lasts until the connection's next command
    copied: tuple[CopiedTable, ...] = ()
    with _beginning(project, session, replication, dial, stop) as made:
        identity = StreamIdentity(facts.system, facts.database, project.slot, made.consistent)
        state = begin_stream(identity, made.consistent.value, bronze, control)
        note_timeline(timeline, control, state, tell)
        tell(Progress("snapshot", f"initial copy as of {made.consistent}", facts={"epoch": state.epoch}))
        if project.pipeline.snapshot.mode == "initial":
            copied = _copy(project, session, dial, made, bronze, state, stop, tell)
    try:
        slot.keep_slot(session, made, project.slot)
    except SlotMissing as gone:
        raise ServerUnreachable("the connection that held the slot broke off during the copy") from gone
    failpoint(SNAPSHOT_DONE)
    record_copy(control, state, "complete", copied)
    rows = sum(t.rows for t in copied)
    whole = f"copied {counted(len(copied), 'table')}, {counted(rows, 'row')}"
    tell(Progress("snapshot", whole, rows, rows, "rows", facts={"epoch": state.epoch}))
    return state, rows


@contextmanager
def _beginning(
    project: Project, session: Session, replication: Session, dial: Callable[[str], Session], stop: threading.Event
) -> Iterator[slot.ExportedSlot]:
    """A temporary slot, and an exported snapshot of exactly what was committed up to where it begins."""
    plugin = project.postgres.slot.plugin
    if for_replication(replication):
        yield slot.export_slot(replication, project.slot, plugin)
        return

    def pause() -> None:
        if stop.wait(_LOOK):
            raise Stopped

    tables, options = [one.table for one in carried(project, session)], plugin_options(project)
    with (
        closing(dial("snapshot")) as reading,
        settled(replication, reading, project.slot, plugin, options, tables, pause=pause) as made,
    ):
        yield made


def ensure_publication(project: Project, session: Session, tell: Tell) -> None:
    """Check the publication against `tables`, or make it; none where the plugin takes none."""
    chosen = wanted(project, session)
    check_identities(session, chosen)
    if not by_publication(project):
        return
    name = project.publication
    if publication.publication_exists(session, name):
        publication.check_published(name, (p.table for p in publication.published(session, name)), chosen)
        return
    publication.create_publication(session, name, chosen)
    tell(Progress("connect", f"publication `{name}` made for {counted(len(chosen), 'table')}"))


def _clear_the_way(
    project: Project, session: Session, facts: ServerFacts, state: BronzeState | None, tell: Tell
) -> None:
    """Make sure no slot is in the way; drop ours where an earlier start broke off after making it."""
    there = slot.find_slot(session, project.slot)
    if state is None:
        if there is not None:
            raise SlotForeign(f"slot `{project.slot}` exists, but bronze holds nothing: this pipeline did not make it")
        return
    before = check_unfinished(state)
    tell(Progress("snapshot", f"the copy of epoch {state.epoch} was not finished: a new stream starts"))
    if there is None:
        return
    if (before.system, before.database, before.slot) != (facts.system, facts.database, project.slot):
        raise SlotForeign(f"slot `{project.slot}` exists, but bronze was begun from another source")
    if there.confirmed != before.point or there.plugin != project.postgres.slot.plugin:
        raise SlotForeign(f"slot `{project.slot}` is not the one made for {state.stream}: it was read or made anew")
    slot.drop_slot(session, project.slot)


@dataclass(frozen=True, slots=True)
class _Copying:
    """How published tables are read in a snapshot, by sessions that see it."""

    carried: Mapping[TableName, Published]
    chunk_rows: int
    codec: Codec

    def parts(self, session: Session, relation: Relation, *, several: bool) -> Sequence[Part[Session]]:
        """What readers take of a table; `several`: more than one reads."""
        found = ranges_of(session, relation, self.chunk_rows) if several else ()
        return [partial(self._read, relation=relation, within=one) for one in found or (None,)]

    def _read(self, session: Session, relation: Relation, within: Range | None) -> Iterator[pa.ListArray]:
        return snapshot.read_chunks(
            session,
            relation,
            row_filter=self.carried[relation.table].row_filter,
            chunk_rows=self.chunk_rows,
            codec=self.codec,
            within=within,
        )


def _copy(
    project: Project,
    session: Session,
    dial: Callable[[str], Session],
    made: slot.ExportedSlot,
    bronze: BronzeWriter,
    state: BronzeState,
    stop: threading.Event,
    tell: Tell,
) -> tuple[CopiedTable, ...]:
    """Copy every published table in the slot's snapshot."""
    limits = project.pipeline.snapshot
    with ExitStack() as opened:
        several = limits.parallelism > 1
        inside = opened.enter_context(snapshot.exported(session, made.snapshot, others=several))
        tables = {table.table: table for table in carried(project, inside)}
        # the server sends UTF-8, or whatever a database in SQL_ASCII holds
        copying = _Copying(tables, chunk_rows(limits), codec_by_name(project, "SQL_ASCII"))
        relations = [relation_of(inside, table.table, table.columns) for table in tables.values()]
        copies = [TableCopy(one, copying.parts(inside, one, several=several)) for one in relations]
        expected = expected_rows(table_facts(inside, list(tables)))
        readers = [inside]
        for _ in range(min(limits.parallelism, sum(len(copy.parts) for copy in copies)) - 1):
            other = opened.enter_context(closing(dial("copy")))
            readers.append(opened.enter_context(snapshot.exported(other, made.snapshot, others=True)))
        point = CopyPoint(snapshot_id(state.epoch), state.upto)
        return copy_tables(copies, readers, bronze, point, stop, tell, expected, pace_of(limits))
