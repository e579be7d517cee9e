"""Opens a stream of the GaussDB family for a pipeline: a new one, or the one in bronze after checks.

The first start:

    intention recorded → slot → order domain decided → snapshot at a CSN → stream begun in bronze → tables copied
    → `snapshots` says complete

Slots of the family are never temporary, so the intention to create one is recorded first: a slot of that name is then
ours even if bronze does not know it yet. An interrupted start begins again.

The copy contains exactly the transactions with a CSN below the snapshot's. In the csn domain the stream begins there;
in the lsn domain repeated transactions are dropped by their CSN (`connectors.open_stream.CommitLsnOrdering`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.config.gaussdb_options import Mode
from cdc_lake.config.project import Project
from cdc_lake.config.validation.gaussdb import judge
from cdc_lake.connectors import failover, open_stream
from cdc_lake.connectors.base import ReceiverContext
from cdc_lake.connectors.gaussdb import decoding
from cdc_lake.connectors.gaussdb.csn_order import CsnOrdering, decide, order_of, recorded_gaps, refuse_csn
from cdc_lake.connectors.gaussdb.failover import FailoverFrames, FailoverOrdering, rejoining
from cdc_lake.connectors.hashing_process import HashingProcess
from cdc_lake.connectors.open_stream import CommitLsnOrdering, OpenStream, TransactionOrdering
from cdc_lake.connectors.snapshot_copy import BackgroundCopies, Recopy, TableCopy, chunk_rows, copy_tables
from cdc_lake.connectors.spool import Spool
from cdc_lake.connectors.table_sync import last_members, named_tables
from cdc_lake.control import streams
from cdc_lake.control.ownership import check_named_slot, check_own_bronze, unclaimed_slot
from cdc_lake.control.snapshots import CopiedTable, snapshot_id
from cdc_lake.control.streams import PendingSlot
from cdc_lake.decode.gaussdb.batches import TableFilter
from cdc_lake.decode.gaussdb.catalog_facts import GaussDbTableMetadata
from cdc_lake.decode.gaussdb.columnar import tabulate
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.decode.gaussdb.undecodable import GaussDbFormat
from cdc_lake.errors import OptionRefused, OtherSource, SlotForeign
from cdc_lake.errors.base import ANEW
from cdc_lake.model.position import Csn, Lsn, OrderDomain
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.source.base import FrameSource, Kind, StreamIdentity, chooses, format_stream_position
from cdc_lake.source.gaussdb import server, slot
from cdc_lake.source.gaussdb.catalog import check_identities, check_printing, tables_in_database
from cdc_lake.source.gaussdb.snapshot import (
    GaussDbReader,
    create_slot_with_snapshot,
    csn_now,
    export_snapshot,
    exports_csn,
    readers,
)
from cdc_lake.source.gaussdb.wire.protocol import WireTarget
from cdc_lake.source.gaussdb.wire.session import WireSession, connect, connect_to_standby
from cdc_lake.source.primary import Timeline
from cdc_lake.tables.control_tables import ControlTables, control_tables

_INEXACT = (
    "this server reports no CSN with a snapshot, so a transaction near the snapshot may be missing or received twice"
)


@dataclass(frozen=True, slots=True)
class GaussDbStart:
    """What a start of a stream needs besides the pipeline: sessions, closed by the caller, and the server's facts."""

    dial: decoding.Dial
    session: WireSession
    facts: server.GaussDbServerFacts


def start_stream(context: ReceiverContext, start: GaussDbStart) -> tuple[StreamCheckpoint, int]:
    """Start a stream; returns its state and the rows copied. Raises SourceError, LakeError, Stopped."""
    project, control, report = context.project, context.control, context.report
    tables = decoding.catalog(project, start.session, decoding.captured_tables(project, start.session))
    check_identities(tables, start.session.place)
    before = context.bronze.state()
    _clear_the_way(context, start, before)
    _intention(project, start.facts).record(control, streams.last_epoch(before, control))
    with _slot_and_snapshot(context, start) as (created_slot, domain, csn):
        state = _begin_stream(context, start.facts, created_slot, csn, domain)
        what = f"of everything below CSN {csn}" if csn else f"as of about {created_slot.consistent}: {_INEXACT}"
        report(ProgressEvent("snapshot", f"initial copy {what}", facts={"epoch": state.epoch}))
        copied: tuple[CopiedTable, ...] = ()
        if project.pipeline.snapshot.copies:
            copied = _copy(context, start, created_slot.snapshot or "", tables, state)
    return state, streams.finish_copy(control, state, copied, report)


@contextmanager
def _slot_and_snapshot(
    context: ReceiverContext, start: GaussDbStart
) -> Iterator[tuple[slot.CreatedSlot, OrderDomain, Csn | None]]:
    """Create the slot, decide the stream's order, and take a snapshot after the slot was created. Yields the slot with
    that snapshot, the order, and the snapshot's CSN.
    """
    project = context.project
    if exports_csn(start.session) or project.family.slot_order == "csn":
        created_slot = _make_slot(project, start)
        domain = decide(project, start.dial, start.session, context.stop, context.report)
        with export_snapshot(start.session) as exported_snapshot:
            yield replace(created_slot, snapshot=exported_snapshot.name), domain, exported_snapshot.csn
        return
    # without a CSN there is nothing to count from: the stream is ordered by LSN
    refuse_csn(project)
    replication = start.dial("slot", True)
    try:
        created_slot, csn = create_slot_with_snapshot(replication, project.slot, project.family.slot.plugin)
        yield created_slot, OrderDomain.LSN, csn
    finally:
        replication.close()


def _make_slot(project: Project, start: GaussDbStart) -> slot.CreatedSlot:
    source = project.family
    if source.slot_order == "csn":
        # only the function accepts an order; the replication command creates ordinary slots
        return slot.create_slot_by_function(start.session, project.slot, source.slot.plugin, OrderDomain.CSN)
    if source.mode == "polling":
        return slot.create_slot_by_function(start.session, project.slot, source.slot.plugin, None)
    replication = start.dial("slot", True)
    try:
        return slot.create_slot(replication, project.slot, source.slot.plugin)
    finally:
        replication.close()


def _begin_stream(
    context: ReceiverContext,
    facts: server.GaussDbServerFacts,
    created_slot: slot.CreatedSlot,
    csn: Csn | None,
    domain: OrderDomain,
) -> StreamCheckpoint:
    project = context.project
    last = None if csn is None else Csn(csn.value - 1)
    identity = StreamIdentity(
        facts.system,
        facts.database,
        project.slot,
        created_slot.consistent,
        csn=last if domain is OrderDomain.CSN else None,
        kind=Kind.GAUSS,
        snapshot_csn=last if domain is OrderDomain.LSN else None,
    )
    # a CSN-ordered slot is acknowledged by CSN
    by_csn = project.family.slot_order == "csn"
    confirm = identity.start if by_csn else created_slot.consistent.value
    dense = domain is OrderDomain.CSN and not by_csn
    return streams.begin_stream(identity, confirm, context.bronze, context.control, dense=dense)


def _copy(
    context: ReceiverContext,
    start: GaussDbStart,
    snapshot: str,
    tables: dict[TableName, GaussDbTableMetadata],
    state: StreamCheckpoint,
) -> tuple[CopiedTable, ...]:
    layouts = RelationResolver(tables.get)
    relations = [layouts.relation_of(table) for table in tables]
    limits = context.project.pipeline.snapshot
    count = max(1, min(limits.parallelism, len(relations)))
    codec = open_stream.sql_codec(context.project, start.facts.encoding)
    copies = [TableCopy(relation, (partial(GaussDbReader.read, relation=relation),)) for relation in relations]
    facts, name = decoding.tables(start.session, list(tables)), snapshot_id(state.epoch)
    with readers(lambda: start.dial("copy", False), snapshot, count, chunk_rows(limits), codec) as together:
        return copy_tables(context, copies, together, name, state.upto, facts)


def _intention(project: Project, facts: server.GaussDbServerFacts) -> PendingSlot:
    return PendingSlot(Kind.GAUSS, facts.system, facts.database, project.slot)


def is_slot_intended(
    project: Project,
    facts: server.GaussDbServerFacts,
    control: ControlTables,
    state: StreamCheckpoint | None,
    *,
    new_stream: bool = False,
) -> bool:
    """Whether this pipeline intended to create its slot, for `new_stream` since the newest stream."""
    after = _intention(project, facts).recorded_epoch(control)
    return after is not None and not (new_stream and after < streams.last_epoch(state, control))


def _clear_the_way(context: ReceiverContext, start: GaussDbStart, state: StreamCheckpoint | None) -> None:
    """Ensure that there is no slot; drop ours if an earlier start was interrupted after creating it."""
    project, control = context.project, context.control
    existing_slot = slot.find_slot(start.session, project.slot)
    check_own_bronze(project, state, control)
    again = streams.starts_over(state, control)
    if state is not None and not again:
        streams.check_unfinished(state)
        text = f"the copy of epoch {state.epoch} was not finished: starting a new stream"
        context.report(ProgressEvent("snapshot", text))
    if existing_slot is None:
        return
    after = _intention(project, start.facts).recorded_epoch(control)
    if after is None or (again and after < streams.last_epoch(state, control)):
        raise unclaimed_slot(project, bronze_reader(project).place, state)
    # a start after this epoch that was interrupted too may have created the slot again
    if state is not None and after < state.epoch:
        before = StreamIdentity.parse(state.stream)
        confirmed = existing_slot.confirmed if existing_slot.order is OrderDomain.LSN else None
        if confirmed is not None and confirmed > before.point.value:
            raise SlotForeign(
                f"slot `{project.slot}` is not the one created for {state.stream}: it is confirmed up to "
                f"{Lsn(confirmed)}"
            )
    slot.drop_slot(start.session, project.slot)


@contextmanager
def open_family(
    context: ReceiverContext, patience: float, recopy: Recopy, *, first: bool, enforce_wal_budget: Callable[[], object]
) -> Iterator[OpenStream]:
    """`connectors.factory.opened_stream` for this kind of source."""
    project, control, report = context.project, context.control, context.report
    everywhere = target = server.target_of(project.family, project.root)
    with ExitStack() as opened:

        def dial(what: str, replication: bool) -> WireSession:
            session = connect(target, application=f"cdc_lake {project.name} {what}", replication=replication)
            opened.callback(session.close)
            return session

        def start_at(position: int) -> FrameSource:
            if not project.family.on_standby:
                return decoding.frames_of(project, dial("stream", not by_sql), position, looks=rejoin is not None)
            session = _standby(project, everywhere, facts)
            opened.callback(session.close)
            return decoding.frames_of(project, session, position, on_standby=True)

        session = dial("catalog", False)
        target = session.target  # everything is read from one server, even during a failover
        by_sql = decoding.reads_by_sql(project)
        facts = server_facts(session if by_sql else dial("identify", True), by_sql=by_sql)
        _check_fits(project, session, facts)
        state, copied, rejoin = context.bronze.state(), 0, None
        if not streams.is_complete(state, control):
            start = GaussDbStart(dial, session, facts)
            state, copied = open_stream.retry_while_slot_active(
                lambda: start_stream(context, start), context.stop, report, patience
            )
        else:
            checked_slot = check_resume(project, session, facts, state, slot.find_slot(session, project.slot))
            if checked_slot.exact or not by_sql:  # SQL functions cannot start at an inexact position
                rejoin = rejoining(bronze_reader(project), state, checked_slot)
        if facts.timeline:
            failover.note_timeline(Timeline(facts.timeline, None), control, state, report)
        identity = StreamIdentity.parse(state.stream)
        frames = open_stream.retry_while_slot_active(
            partial(start_at, state.confirm if rejoin is None else rejoin.start), context.stop, report, patience
        )
        opened.callback(frames.close)
        came = decoding.settle_family(context, session, state, _goal(project, session, identity.domain))
        table_copies = opened.enter_context(BackgroundCopies(project, state, came, recopy, report, lasting=not first))
        if first:
            copied += sum(
                table.rows for table in table_copies.wait_for_copies((frames.tick, enforce_wal_budget), context.stop)
            )
        goal = _goal(project, session, identity.domain)  # after the copies that are made first
        after = format_stream_position(state.stream, state.upto)
        report(ProgressEvent("connect", f"slot `{project.slot}` streams after {after}", facts={"upto": state.upto}))
        reader = bronze_reader(project)
        members = named_tables(last_members(control, state))
        layouts = _layouts(project, facts, session, reader.latest_layouts(state.epoch), members)
        limits = project.pipeline.bronze.spool
        spool = opened.enter_context(Spool(project.spool, limits.max_bytes, limits.part))
        assembler = decoding.assembler_of(
            project,
            identity.domain,
            facts.encoding,
            lambda text: report(ProgressEvent("receive", text)),
            frames=spool,
            captured=TableFilter(layouts, layouts.takes) if decoding.sends_more(project) else None,
        )
        order = _order(project, identity, state, control, reader)
        if rejoin is not None:
            rejoin.then = partial(frames.confirm, state.confirm)
            frames, order = FailoverFrames(frames, rejoin), FailoverOrdering(order, rejoin, state)
        columns = partial(tabulate, hashing=opened.enter_context(HashingProcess()))

        @cache
        def own_layouts() -> RelationResolver:
            """For repeated transactions, with a session of its own: the others belong to another thread."""
            return _layouts(project, facts, dial("repeats", False), reader.latest_layouts(state.epoch), members)

        yield OpenStream(
            frames=frames,
            assembler=assembler,
            ordering=order,
            tabulate=open_stream.by_policy(
                project, GaussDbFormat(layouts, project.family.slot.plugin, columns), report
            ),
            again=lambda batch: tabulate(batch, own_layouts()),
            domain=identity.domain,
            state=state,
            goal=goal,
            copied=copied,
            spilled=lambda: spool.written,
            raise_background_errors=table_copies.raise_background_errors,
            newest_decoded=lambda: assembler.newest_decoded,
        )


def _standby(project: Project, everywhere: WireTarget, facts: server.GaussDbServerFacts) -> WireSession:
    """A replication connection to a standby of the server of `facts`."""
    session = connect_to_standby(everywhere, application=f"cdc_lake {project.name} stream")
    standby = server.identify(session)
    if standby.system != facts.system:
        session.close()
        text = f"the standby has the system identifier `{standby.system}`, the primary `{facts.system}`"
        raise OtherSource(text, where=session.place, hint="name only servers of one cluster in `source.hosts`")
    return session


def _check_fits(project: Project, session: WireSession, facts: server.GaussDbServerFacts) -> None:
    """Raise if the server is not what the pipeline file says, or cannot be read as configured; OptionRefused if the
    release does not support a setting, or not safely.
    """
    server.check_server(facts, session.place)
    server.check_product(facts.version, project.family.type, session.place)
    if refused := judge(project.family, server.release_of(facts.version)):
        first, more = refused[0], f" (and {len(refused) - 1} more: `cdc-lake check`)" if len(refused) > 1 else ""
        raise OptionRefused(f"{first.summary}{more}", where=project.family.place, hint=first.remedy)
    if project.family.decoding_mode is Mode.PARALLEL:
        with connect(replace(session.target, settings={})) as bare:
            check_printing(bare)


def check_resume(
    project: Project,
    session: WireSession,
    facts: server.GaussDbServerFacts,
    state: StreamCheckpoint,
    existing_slot: slot.GaussDbSlotFacts | None,
) -> slot.GaussDbSlotFacts:
    """Raise unless the stream in bronze can continue at this server, database and slot; returns the slot."""
    identity = StreamIdentity.parse(state.stream)
    if identity.kind is not Kind.GAUSS:
        raise OtherSource(f"the kind of source is `{Kind.GAUSS}`, but bronze was fed from `{identity.kind}`")
    system = facts.known_as if identity.system == facts.known_as else facts.system
    check_named_slot(project, state)
    failover.check_fed_from(identity, system=system, database=facts.database, slot=project.slot)
    source = project.family
    if source.order != "auto" and OrderDomain(source.order) is not identity.domain:
        raise OtherSource(
            f"the pipeline asks for order {source.order}, but the stream was started in order {identity.domain.value}",
            hint=f"set `source.order` to {identity.domain.value} or auto; to use the other order: {ANEW}",
        )
    slot_order = OrderDomain(source.slot_order)
    if identity.domain is OrderDomain.CSN and order_of(source, exports=True) is OrderDomain.LSN:
        text = f"the stream was started in order csn, but {source.decoding_mode} decoding with these options omits CSNs"
        raise OtherSource(text, hint=f"restore `source.mode` and `source.decoding`; to use the new settings: {ANEW}")
    reader = bronze_reader(project)
    last = failover.last_timeline(control_tables(project), state)
    if facts.timeline and last is not None:
        failover.check_not_older(Timeline(facts.timeline, None), last)
    if slot_order is OrderDomain.LSN:
        failover.check_log_reaches(facts.flushed, reader, state)
    if identity.domain is OrderDomain.CSN:
        failover.check_csns_reach(csn_now(session).value, reader, state)
    confirmed, plugin = None if existing_slot is None else existing_slot.confirmed, source.slot.plugin
    with open_stream.bronze_may_go_on(project, state, confirmed):
        return slot.check_slot(existing_slot, project.slot, plugin, facts.database, state.confirm, slot_order)


def server_facts(session: WireSession, *, by_sql: bool) -> server.GaussDbServerFacts:
    """Identify the server; a replication connection for this is closed again. Raises SourceError."""
    if by_sql:
        return server.identify_by_sql(session)
    with session as replication:
        return server.identify(replication)


def _goal(project: Project, session: WireSession, domain: OrderDomain) -> int:
    """A position at or after everything committed by now, which the stream reaches even on a quiet server."""
    source = project.family
    goal = csn_now(session).value - 1 if domain is OrderDomain.CSN else server.current_lsn(session).value
    if source.slot_order == "csn" or (domain is OrderDomain.LSN and source.decoding_mode is Mode.PARALLEL):
        # the stream omits numbers, or keepalives have no CSN: a transaction of this database has to pass the
        # goal, and one that only takes an id does
        session.query("SELECT txid_current()", doing="passing the goal of this run")
    return goal


def _order(
    project: Project, identity: StreamIdentity, state: StreamCheckpoint, control: ControlTables, reader: BronzeReader
) -> TransactionOrdering:
    source = project.family
    if identity.domain is OrderDomain.LSN or source.slot_order == "csn":
        return CommitLsnOrdering(None if identity.snapshot_csn is None else identity.snapshot_csn.value)
    return CsnOrdering(
        state.upto,
        state.confirm,
        bound=source.csn_gap.bound / 1000,
        policy=source.csn_gap.policy,
        clock=time.monotonic,
        empty=state.empty,
        recorded=recorded_gaps(control, reader, state),
    )


def _layouts(
    project: Project,
    facts: server.GaussDbServerFacts,
    session: WireSession,
    known_relations: Sequence[Relation],
    members: Mapping[TableName, tuple[int, str]],
) -> RelationResolver:
    tables = frozenset(tables_in_database(session))
    codec, takes = decoding.codec_of(project, facts.encoding), chooses(project.family.tables)
    catalog = decoding.family_tables(project, session)
    return RelationResolver(
        catalog,
        codec,
        known_relations=known_relations,
        tables=tables,
        takes=takes,
        versions=catalog.versions,
        members=members,
        type_names=catalog.type_names,
    )
