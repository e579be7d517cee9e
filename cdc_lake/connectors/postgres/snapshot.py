"""Copies tables of a PostgreSQL into bronze: at the first start, when tables are added, and again on request.

The first start:

    temporary slot → stream begun in bronze → permanent slot → every table copied → `snapshots` says complete

The temporary slot disappears with its connection, so an interruption before the permanent one exists leaves nothing on
the server but the publication. After a later interruption, complete tables are kept and the others copied again.
Changes are read only after the last step.

Each attempt reads in the snapshot of its own temporary slot. It shows exactly the transactions that end at or below the
slot's consistent point (PostgreSQL docs, CREATE_REPLICATION_SLOT), so a copy has an exact position. A table that was
just added to the publication lacks nothing after that point: a slot begins only when every transaction has ended that
was running when it was created, and later ones are decoded with the current publication.

With two-phase decoding by test_decoding the permanent slot cannot be a copy of the temporary one:

    intention recorded → permanent slot, with two-phase decoding → temporary slot → stream begun in bronze → …

The stream begins at the temporary slot's position, and is read from the permanent one's, which is earlier (decision
0051).

Tables that were added to or removed from `source.tables` since the stream began:

    recorded as excluded at bronze's position → publication altered → copied (`runtime.receive.stream_setup`) → active

A removed table stays excluded. An added one is excluded too, so that apply waits for its copy: its earlier changes in
the stream are not applied. So is a table that was removed from the publication and added again by other means
(`connectors.table_sync`). A publication that the pipeline file names, or that the role may not alter, is not altered:
missing tables are reported with the statement. A publication that another pipeline created, and that the file does not
name, is an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial

from cdc_lake import errors
from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.connectors import table_sync
from cdc_lake.connectors.base import ReceiverContext
from cdc_lake.connectors.failover import last_timeline, note_timeline
from cdc_lake.connectors.open_stream import codec_by_name
from cdc_lake.connectors.postgres import decoding
from cdc_lake.connectors.postgres.server_checks import SessionFactory, check_same, intention_of, left_over
from cdc_lake.connectors.postgres.server_checks import tables as table_facts
from cdc_lake.connectors.snapshot_copy import Stopped, TableCopy, chunk_rows, copy_tables
from cdc_lake.connectors.table_sync import TableChanges
from cdc_lake.control import streams
from cdc_lake.control.ownership import check_own_bronze, unclaimed_slot
from cdc_lake.control.snapshots import STARTED, CopiedTable, copy_name, courses, finished_tables, snapshot_id
from cdc_lake.control.streams import PendingSlot
from cdc_lake.model.diagnostic import pluralize
from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.observability.failpoints import PUBLICATION_ALTERED, SLOT_KEPT, TABLE_COPIED, failpoint
from cdc_lake.source.base import StreamIdentity, chooses
from cdc_lake.source.postgres import publication, slot, snapshot
from cdc_lake.source.postgres.catalog import check_identities, relation_of
from cdc_lake.source.postgres.connection import Session, for_replication
from cdc_lake.source.postgres.publication import check_filtered
from cdc_lake.source.postgres.server import ServerFacts, identify, timeline_of
from cdc_lake.source.postgres.snapshot import create_slot_with_snapshot, ranges_of
from cdc_lake.source.primary import Timeline
from cdc_lake.source.socket_io import Opened, ignore_open
from cdc_lake.tables.control_tables import ControlTables

_RECORD_EVERY = 1.0  # seconds: small tables are recorded together


def copy_published(
    context: ReceiverContext,
    session: Session,
    dial: Callable[[str], Session],
    state: StreamCheckpoint,
    exported_slot: slot.ExportedSlot,
    copied_tables: Sequence[CopiedTable],
) -> list[CopiedTable]:
    """Copy every published table that is not complete; returns all that are complete then.

    Complete tables are recorded, so that a later attempt need not copy them. Raises SourceError, LakeError, Stopped.
    """
    have, complete = {copied.relation for copied in copied_tables}, list(copied_tables)
    recorded_at = -_RECORD_EVERY

    def record(table: CopiedTable) -> None:
        nonlocal recorded_at
        complete.append(table)
        if time.monotonic() - recorded_at >= _RECORD_EVERY:
            streams.record_copy(context.control, state, STARTED, complete)
            recorded_at = time.monotonic()
            failpoint(TABLE_COPIED)

    # chunks are counted per name; no two slots have one position, because each waits for a WAL record of its own
    name, position = snapshot_id(state.epoch), exported_slot.consistent.value
    if position != state.upto:
        name = f"{name}-{position}"
    copy_some(context, session, dial, exported_slot, lambda table: table not in have, name, record)
    return complete


def copy_some(
    context: ReceiverContext,
    session: Session,
    dial: Callable[[str], Session],
    exported_slot: slot.ExportedSlot,
    chosen: Callable[[TableName], bool],
    name: str,
    finished: Callable[[CopiedTable], None] = lambda _: None,
) -> tuple[CopiedTable, ...]:
    """Copy the selected published tables, in the slot's snapshot, under a name; `finished`: called for each complete
    one; `dial`: opens sessions besides `session`. Raises SourceError, LakeError, Stopped.
    """
    project = context.project
    limits = project.pipeline.snapshot
    with ExitStack() as opened:
        several = limits.parallelism > 1
        inside = opened.enter_context(snapshot.import_snapshot(session, exported_slot.snapshot, others=several))
        left = {table.table: table for table in decoding.carried_tables(project, inside) if chosen(table.table)}
        # the server sends UTF-8, or any bytes from a database in SQL_ASCII
        rows, codec, copies = chunk_rows(limits), codec_by_name(project, "SQL_ASCII"), []
        for table in left.values():
            relation = relation_of(inside, table.table, table.columns)
            read = partial(
                snapshot.read_chunks, relation=relation, row_filter=table.row_filter, chunk_rows=rows, codec=codec
            )
            ranges = ranges_of(inside, relation, rows) if several else ()
            copies.append(TableCopy(relation, [partial(read, within=row_range) for row_range in ranges or (None,)]))
        facts = table_facts(inside, list(left))
        readers = [inside]
        for _ in range(min(limits.parallelism, sum(len(copy.parts) for copy in copies)) - 1):
            other = opened.enter_context(closing(dial("copy")))
            readers.append(opened.enter_context(snapshot.import_snapshot(other, exported_slot.snapshot, others=True)))
        position = exported_slot.consistent.value
        return copy_tables(context, copies, readers, name, position, facts, finished)


def table_changes(project: Project, session: Session, state: StreamCheckpoint, control: ControlTables) -> TableChanges:
    """Compare the tables of the stream with the source. Raises SourceError, LakeError."""
    table_courses = courses(control.snapshots(), state.stream)
    carries = decoding.carried_tables(project, session)
    carried_names, copies = {source_table.table for source_table in carries}, project.pipeline.snapshot.copies
    members = table_sync.last_members(control, state)
    other = table_sync.moved_tables(carries, members) if copies else frozenset()
    existing = decoding.in_database(project, session)
    try:
        chosen = decoding.chosen_tables(project, session)
    except errors.NoTableMatches:  # a table was dropped at the source: its rows are in bronze
        followed = {name for name, course in table_courses.items() if not course.waits}
        other = frozenset(table for table in other if str(table) in followed)
        gone = table_sync.changes_of((), (), existing, table_courses, (), published=False, read=members)
        return TableChanges(waiting=tuple(sorted(other)), left=gone.left, moved=other, dropped=gone.dropped)
    new = {table for table in carried_names.intersection(chosen) if str(table) not in table_courses}
    came: set[TableName] = set()
    if new and copies:
        came = table_sync.newcomers(new, bronze_reader(project).layouts().values())
    published = decoding.by_publication(project)
    return table_sync.changes_of(
        chosen, carried_names, existing, table_courses, came, published=published, moved=other, read=members
    )


def check_filters(project: Project, session: Session, state: StreamCheckpoint | None, control: ControlTables) -> None:
    """Raise RowFilterUnfit, and PublicationUnfit if an existing publication lacks the filters; SourceError. A followed
    table that was dropped at the source no longer needs its filter.
    """
    if not project.postgres.row_filters:
        return
    table_courses = {} if state is None else courses(control.snapshots(), state.stream)
    captured = list(filter(chooses(project.postgres.tables), decoding.in_database(project, session)))
    row_filters = decoding.filters(project, session, captured, table_courses)
    if publication.publication_exists(session, project.publication):
        check_filtered(project.publication, decoding.carried_tables(project, session), row_filters)


def settle_tables(
    context: ReceiverContext, session: Session, state: StreamCheckpoint, ends: int
) -> tuple[TableName, ...]:
    """Adapt records and publication to `source.tables`; returns the tables to be copied. Nobody may read the stream
    meanwhile. `ends`: a position at or after everything committed by now. Raises SourceError, LakeError.
    """
    project, control, report = context.project, context.control, context.report
    changes = table_changes(project, session, state, control)
    check_filters(project, session, state, control)
    copies, may = project.pipeline.snapshot.copies, alterable(project)
    came = [table for table in changes.lacking if not may or _has_identity(session, table, report)]
    table_sync.leave(changes, (*came, *changes.waiting) if copies else (), control, state, report, ends)
    added = [table for table in came if may and _alter_publication(project, session, "ADD", table, report)]
    for table in changes.extra if may else ():
        _alter_publication(project, session, "DROP", table, report)
    failpoint(PUBLICATION_ALTERED)
    for table in sorted(changes.moved):
        what = "it was renamed or recreated"
        if decoding.by_publication(project):
            what = f"publication `{project.publication}` was altered"
        report(_connect_event(f"{what}: table {table} is copied again"))
    for table in came if not may else ():
        statement = publication.altering(project.publication, "ADD", table, filters=decoding.declared_filters(project))
        text = f"table {table} matches `source.tables` but is not captured: {statement}, then start again"
        report(_connect_event(text))
    _note_members(context, session, state)
    waits = (table for table in added if copies or table in changes.left)
    return (*waits, *changes.waiting)


def _note_members(context: ReceiverContext, session: Session, state: StreamCheckpoint) -> None:
    """Record the entries of the publication from here on."""
    project, control, report = context.project, context.control, context.report
    carries = decoding.carried_tables(project, session)
    if not project.pipeline.snapshot.copies:
        members = table_sync.last_members(control, state)
        other = table_sync.moved_tables(carries, members)
        for table in sorted(other):
            text = f"table {table} was renamed or recreated: changes made in between may be missing"
            if decoding.by_publication(project):
                text = (
                    f"publication `{project.publication}` was altered: changes of table {table} that it did not "
                    "publish are missing"
                )
            report(ProgressEvent("warning", f"{text}, and `snapshot.mode` disables the copy: cdc-lake resync {table}"))
        table_sync.report_renamed(
            {table: name for table, name in table_sync.renamed_tables(carries, members).items() if table not in other},
            report,
        )
    table_sync.note_members(carries, control, state)


def alterable(project: Project) -> bool:
    """Whether the publication is the pipeline's own."""
    return decoding.by_publication(project) and project.postgres.publication is None


def check_maker(project: Project, session: Session) -> None:
    """Raise PublicationUnfit if the publication of another pipeline whose slot exists is about to be used."""
    name = project.publication
    maker = publication.maker_of(session, name) if alterable(project) else None
    if maker is None or maker.slot == project.slot:
        return
    maker_slot = slot.find_slot(session, maker.slot)
    if maker_slot is None or maker_slot.database != project.postgres.database:
        return
    raise errors.PublicationUnfit(
        f"publication `{name}` belongs to pipeline `{maker.pipeline}` with slot `{maker.slot}`, but this is pipeline "
        f"`{project.name}` with slot `{project.slot}`",
        hint="set `source.publication` to a new name, and the publication will be created; if you name this "
        "one there, it is read as it is and not altered",
    )


def _has_identity(session: Session, table: TableName, report: ProgressReporter) -> bool:
    try:
        check_identities(session, [table])
    except errors.NoReplicaIdentity as bare:
        report(_connect_event(f"table {table} is not captured: {bare.message}"))
        return False
    return True


def _alter_publication(
    project: Project, session: Session, verb: str, table: TableName, report: ProgressReporter
) -> bool:
    """Alter the publication; False if the server refuses, which is reported with the statement."""
    name, filters = project.publication, decoding.declared_filters(project)
    try:
        publication.alter_publication(session, name, verb, table, filters=filters)
    except errors.TableLocked:
        raise  # not a refusal
    except errors.SourceError as refused:
        text = f"{refused.message}; its owner can run: {publication.altering(name, verb, table, filters=filters)}"
        report(ProgressEvent("warning", text, facts={"code": refused.code}))
        return False
    words = "now publishes" if verb == "ADD" else "no longer publishes"
    report(_connect_event(f"publication `{name}` {words} {table}"))
    return True


def _connect_event(text: str) -> ProgressEvent:
    return ProgressEvent("connect", text)


_LOOK = 0.05  # seconds between two attempts to take a snapshot that fits the slot


def begin(
    context: ReceiverContext, session: Session, replication: Session, dial: Callable[[str], Session], facts: ServerFacts
) -> tuple[StreamCheckpoint, int]:
    """Start a stream, or continue one whose copy was interrupted; returns its state and the rows copied now. `dial`
    opens sessions besides the two. Raises SourceError, LakeError, Stopped.
    """
    project, bronze, control, report = context.project, context.bronze, context.control, context.report
    timeline = timeline_of(replication, facts.timeline)  # first: a snapshot lasts until the next command
    intention = intention_of(project, facts)
    before = _resumable_copy(context, session, facts, timeline, intention)
    ensure_publication(project, session, report)
    # before the slot begins, so that later changes of the publication are noticed
    carries = decoding.carried_tables(project, session)
    copied_tables: list[CopiedTable] = []
    two_phase_lsn = None
    if before is None and decoding.needs_two_phase(project):
        intention.record(control, streams.last_epoch(bronze.state(), control))
        two_phase_lsn = slot.make_two_phase(session, project.slot, project.postgres.slot.plugin)
        failpoint(SLOT_KEPT)
    with exported_point(context, session, replication, dial) as exported_slot:
        if before is not None:
            state, copied_tables = before, finished_tables(control.snapshots(), before.stream, before.epoch)
            text = (
                f"initial copy continues as of {exported_slot.consistent} after "
                f"{pluralize(len(copied_tables), 'complete table')}"
            )
        else:
            identity = StreamIdentity(facts.system, facts.database, project.slot, exported_slot.consistent)
            state = streams.begin_stream(identity, (two_phase_lsn or exported_slot.consistent).value, bronze, control)
            note_timeline(timeline, control, state, report)
            table_sync.note_members(carries, control, state)
            if two_phase_lsn is None:
                _keep(session, exported_slot, project.slot)
            text = f"initial copy as of {exported_slot.consistent}"
        report(ProgressEvent("snapshot", text, facts={"epoch": state.epoch}))
        had = sum(table.rows for table in copied_tables)
        if project.pipeline.snapshot.copies:
            copied_tables = copy_published(context, session, dial, state, exported_slot, copied_tables)
    return state, streams.finish_copy(control, state, copied_tables, report) - had


@contextmanager
def exported_point(
    context: ReceiverContext, session: Session, replication: Session, dial: Callable[[str], Session]
) -> Iterator[slot.ExportedSlot]:
    """A temporary slot, and a snapshot of exactly what was committed before its start. Raises SourceError, Stopped."""
    project = context.project
    plugin = project.postgres.slot.plugin
    if for_replication(replication):
        with _slots_counted(session):
            exported_slot = slot.export_slot(replication, project.slot, plugin)
        yield exported_slot
        return

    def pause() -> None:
        if context.stop.wait(_LOOK):
            raise Stopped

    tables = [table.table for table in decoding.carried_tables(project, session)]
    options = decoding.plugin_options(project)
    with (
        closing(dial("snapshot")) as reading,
        create_slot_with_snapshot(
            replication, reading, project.slot, plugin, options, tables, pause=pause
        ) as exported_slot,
    ):
        yield exported_slot


def _keep(session: Session, exported_slot: slot.ExportedSlot, name: str) -> None:
    try:
        with _slots_counted(session):
            slot.keep_slot(session, exported_slot, name)
    except errors.SlotMissing as gone:
        raise errors.ServerUnreachable("the connection that held the slot was lost") from gone
    failpoint(SLOT_KEPT)


@contextmanager
def _slots_counted(session: Session) -> Iterator[None]:
    """Add the number of slots to NoFreeSlot: a start needs a temporary one besides the permanent one."""
    try:
        yield
    except errors.NoFreeSlot as none:
        used, most = slot.slots_in_use(session)
        words = f"{used} of {most} replication slots are in use, and a start needs two temporarily"
        hint = (
            f"raise max_replication_slots to {used + 2} or more and restart the server; `cdc-lake slot list` lists "
            "the slots"
        )
        raise errors.NoFreeSlot(words, hint=hint) from none


def ensure_publication(project: Project, session: Session, report: ProgressReporter) -> None:
    """Check the publication against `tables`, or create it; does nothing if the plugin uses none."""
    chosen = decoding.chosen_tables(project, session)
    check_identities(session, chosen)
    if not decoding.by_publication(project):
        return
    check_maker(project, session)
    name, conditions = project.publication, decoding.declared_filters(project)
    filtered = decoding.filters(project, session, chosen)
    if publication.publication_exists(session, name):
        published_tables = publication.load_published_tables(session, name)
        publication.check_published(name, (p.table for p in published_tables), chosen, conditions)
        check_filtered(name, published_tables, filtered)
        return
    owner = publication.PublicationOwner(project.name, project.slot)
    publication.create_publication(session, name, chosen, conditions, owner)
    report(ProgressEvent("connect", f"publication `{name}` created for {pluralize(len(chosen), 'table')}"))


def _resumable_copy(
    context: ReceiverContext, session: Session, facts: ServerFacts, timeline: Timeline, intention: PendingSlot
) -> StreamCheckpoint | None:
    """The stream whose copy was interrupted and can continue. Without one, our slot is dropped for a new stream."""
    project, control, state = context.project, context.control, context.bronze.state()
    existing_slot = slot.find_slot(session, project.slot)
    check_own_bronze(project, state, control)
    if state is None or streams.starts_over(state, control):
        if existing_slot is not None and not left_over(existing_slot, intention, state, control):
            raise unclaimed_slot(project, bronze_reader(project).place, state)
        if existing_slot is not None:
            slot.drop_slot(session, project.slot)
        return None
    before = streams.check_unfinished(state)
    if existing_slot is not None and left_over(existing_slot, intention, state, control):
        slot.drop_slot(session, project.slot)
    elif existing_slot is not None:
        if (before.system, before.database, before.slot) != (facts.system, facts.database, project.slot):
            raise errors.SlotForeign(f"slot `{project.slot}` exists, but bronze was fed from another source")
        if existing_slot.confirmed != Lsn(state.confirm) or existing_slot.plugin != project.postgres.slot.plugin:
            raise errors.SlotForeign(
                f"slot `{project.slot}` is not the one created for {state.stream}: it was read by another "
                "program or recreated"
            )
        fits = not existing_slot.is_lost and existing_slot.two_phase == decoding.needs_two_phase(project)
        if fits and last_timeline(control, state) == timeline and _same_configuration(state, control):
            return state
        slot.drop_slot(session, project.slot)
    text = f"the copy of epoch {state.epoch} was not finished: starting a new stream"
    context.report(ProgressEvent("snapshot", text))
    return None


def _same_configuration(state: StreamCheckpoint, control: ControlTables) -> bool:
    """Whether the configuration, especially redaction, is as it was when the stream began."""
    began = [row.recorded_at for row in control.streams() if row.stream == state.stream]
    return bool(began) and all(row.recorded_at <= began[-1] for row in control.configurations())


def copy_postgres(
    context: ReceiverContext, state: StreamCheckpoint, tables: Sequence[TableName], on_open: Opened = ignore_open
) -> tuple[str, tuple[CopiedTable, ...]]:
    """Copy the tables of the stream; returns the copy's name. Raises SourceError, LakeError, StateError, Stopped."""
    project = context.project
    with ExitStack() as opened:
        dial = SessionFactory(project, opened, on_open)
        replication = dial("copy's slot", replication=project.postgres.streams)
        check_same(project, replication, identify(replication, dial.source), state, context.control)
        session = dial("copy")
        with exported_point(context, session, replication, dial) as exported_slot:
            text = f"copy as of {exported_slot.consistent}"
            context.report(ProgressEvent("snapshot", text, facts={"epoch": state.epoch}))
            name, chosen = copy_name(state, exported_slot.consistent.value), frozenset(tables)
            return name, copy_some(context, session, dial, exported_slot, chosen.__contains__, name)
