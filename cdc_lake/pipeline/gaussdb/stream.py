"""From a pipeline to an open stream of the GaussDB family: a new one, or the one that bronze was fed from, checked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.port import BronzeState, BronzeWriter
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.config.gaussdb_options import Mode
from cdc_lake.config.gaussdb_rules import judge
from cdc_lake.config.project import Project
from cdc_lake.decode.changes import ChangeColumns
from cdc_lake.decode.mppdb.captured import Captured
from cdc_lake.decode.mppdb.columnar import tabulate
from cdc_lake.decode.mppdb.kept import FamilyFormat
from cdc_lake.decode.mppdb.layouts import Layouts
from cdc_lake.decode.mppdb.raw import RecordTransaction
from cdc_lake.errors import OptionRefused, OtherSource
from cdc_lake.errors.root import ANEW
from cdc_lake.lake.control import ControlTables, control_tables
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.gaussdb import start as family_start
from cdc_lake.pipeline.gaussdb.csn_order import CsnOrder
from cdc_lake.pipeline.gaussdb.density import order_of
from cdc_lake.pipeline.gaussdb.facts import family_tables
from cdc_lake.pipeline.gaussdb.frames import (
    assembler_of,
    codec_of,
    frames_of,
    reads_by_sql,
    sends_more,
)
from cdc_lake.pipeline.gaussdb.gaps import recorded_gaps
from cdc_lake.pipeline.gaussdb.rejoin import RejoiningFrames, RejoiningOrder, rejoining
from cdc_lake.pipeline.gaussdb.tables import settle_family
from cdc_lake.pipeline.state.memberships import last_members, named_tables
from cdc_lake.pipeline.state.ownership import check_named_slot
from cdc_lake.pipeline.state.streams import is_complete
from cdc_lake.pipeline.stream.copies_beside import CopiesBeside, Recopy
from cdc_lake.pipeline.stream.failover import (
    check_csns_reach,
    check_log_reaches,
    check_not_older,
    last_timeline,
    note_timeline,
)
from cdc_lake.pipeline.stream.hashing_process import HashingProcess
from cdc_lake.pipeline.stream.open_stream import OpenStream, nothing, patiently
from cdc_lake.pipeline.stream.order import ArrivalOrder, Order
from cdc_lake.pipeline.stream.policy import by_policy
from cdc_lake.pipeline.stream.slot_race import bronze_may_go_on
from cdc_lake.pipeline.stream.spool import Spool
from cdc_lake.source.gaussdb.catalog import tables_in_database
from cdc_lake.source.gaussdb.connection import target_of
from cdc_lake.source.gaussdb.printing import check_printing
from cdc_lake.source.gaussdb.server import (
    FamilyServerFacts,
    check_server,
    current_lsn,
    identify,
    identify_by_sql,
)
from cdc_lake.source.gaussdb.slot import FamilySlotFacts, check_slot, find_slot
from cdc_lake.source.gaussdb.snapshot import csn_now
from cdc_lake.source.gaussdb.version import check_product, release_of
from cdc_lake.source.resume import check_fed_from
from cdc_lake.source.stream import FrameSource, Kind, StreamIdentity, shown
from cdc_lake.source.tables import chooses
from cdc_lake.source.timeline import Timeline
from cdc_lake.source.wire.connect import connect, connect_to_standby
from cdc_lake.source.wire.session import WireSession
from cdc_lake.source.wire.target import WireTarget


@contextmanager
def open_family(
    project: Project,
    bronze: BronzeWriter,
    control: ControlTables,
    stop: threading.Event,
    tell: Tell,
    patience: float,
    recopy: Recopy,
    *,
    first: bool = False,
    heed: Callable[[], object] = nothing,
) -> Iterator[OpenStream]:
    """Connect, start or check the stream, start replication. `first`: tables that came to the pipeline are copied
    before anything is read, while `heed` is called; otherwise beside it. Raises SourceError, LakeError, StateError,
    Stopped.
    """
    everywhere = target = target_of(project.family, project.root)
    with ExitStack() as opened:

        def dial(what: str, replication: bool) -> WireSession:
            session = connect(target, application=f"cdc_lake {project.name} {what}", replication=replication)
            opened.callback(session.close)
            return session

        def start_at(position: int) -> FrameSource:
            if not project.family.on_standby:
                return frames_of(project, dial("stream", not by_sql), position, looks=rejoin is not None)
            session = _standby(project, everywhere, facts)
            opened.callback(session.close)
            return frames_of(project, session, position, on_standby=True)

        session = dial("catalog", False)
        target = session.target  # what is read belongs together, also while a failover is under way
        by_sql = reads_by_sql(project)
        facts = server_facts(session if by_sql else dial("identify", True), by_sql=by_sql)
        _check_fits(project, session, facts)
        state, copied, rejoin = bronze.state(), 0, None
        if not is_complete(state, control):
            start = family_start.FamilyStart(dial, session, facts)
            state, copied = patiently(
                lambda: family_start.begin(project, start, bronze, control, stop, tell), stop, tell, patience
            )
        else:
            found = find_slot(session, project.slot)
            there = check_resume(project, session, facts, state, found)
            if there.exact or not by_sql:  # by SQL an inexact position could not be read from
                rejoin = rejoining(bronze_reader(project), state, there)
        if facts.timeline:
            note_timeline(Timeline(facts.timeline, None), control, state, tell)
        identity = StreamIdentity.parse(state.stream)
        begin = state.confirm if rejoin is None else rejoin.start
        frames = patiently(lambda: start_at(begin), stop, tell, patience)
        opened.callback(frames.close)
        beside = CopiesBeside(
            project,
            state,
            settle_family(project, session, state, control, tell, _goal(project, session, identity.domain)),
            recopy,
            tell,
            lasting=not first,
        )
        opened.enter_context(beside)
        if first:
            copied += sum(one.rows for one in beside.finished((frames.tick, heed), stop))
        goal = _goal(project, session, identity.domain)  # behind the copies that are made first
        after = shown(state.stream, state.upto)
        tell(Progress("connect", f"slot `{project.slot}` streams after {after}", facts={"upto": state.upto}))
        reader = bronze_reader(project)
        members = named_tables(last_members(control, state))
        layouts = _layouts(project, facts, session, reader.latest_layouts(state.epoch), members)
        limits = project.pipeline.bronze.spool
        spool = opened.enter_context(Spool(project.spool, limits.max_bytes, limits.part))
        assembler = assembler_of(
            project,
            identity.domain,
            facts.encoding,
            lambda text: tell(Progress("receive", text)),
            frames=spool,
            captured=Captured(layouts, layouts.takes) if sends_more(project) else None,
        )
        order = _order(project, identity, state, control, reader)
        if rejoin is not None:
            rejoin.then = partial(frames.confirm, state.confirm)
            frames, order = RejoiningFrames(frames, rejoin), RejoiningOrder(order, rejoin, state)
        columns = partial(tabulate, hashing=opened.enter_context(HashingProcess()))
        yield OpenStream(
            frames=frames,
            assembler=assembler,
            order=order,
            tabulate=by_policy(project, FamilyFormat(layouts, project.family.slot.plugin, columns), tell),
            again=_Again(
                lambda: _layouts(project, facts, dial("repeats", False), reader.latest_layouts(state.epoch), members)
            ),
            domain=identity.domain,
            state=state,
            goal=goal,
            copied=copied,
            spilled=lambda: spool.written,
            heed=beside.heed,
            newest_decoded=lambda: assembler.newest_decoded,
        )


def _standby(project: Project, everywhere: WireTarget, facts: FamilyServerFacts) -> WireSession:
    """A replication connection to a standby of the server that `facts` are of."""
    session = connect_to_standby(everywhere, application=f"cdc_lake {project.name} stream")
    standby = identify(session)
    if standby.system != facts.system:
        session.close()
        raise OtherSource(
            f"the standby has the system identifier `{standby.system}`, the primary `{facts.system}`",
            where=session.place,
            hint="name servers of one cluster in `source.hosts`",
        )
    return session


def _check_fits(project: Project, session: WireSession, facts: FamilyServerFacts) -> None:
    """Raise for a server that is not what the pipeline says, or that it cannot be read from as asked for."""
    check_server(facts, session.place)
    check_product(facts.version, project.family.type, session.place)
    check_options(project, facts)
    if project.family.decoding_mode is Mode.PARALLEL:
        with connect(replace(session.target, settings={})) as bare:
            check_printing(bare)


def check_options(project: Project, facts: FamilyServerFacts) -> None:
    """Raise OptionRefused for what the pipeline asks of a release that cannot give it, or not safely."""
    refused = judge(project.family, release_of(facts.version))
    if refused:
        first, more = refused[0], f" (and {len(refused) - 1} more: `cdc-lake check`)" if len(refused) > 1 else ""
        raise OptionRefused(f"{first.summary}{more}", where=project.family.place, hint=first.remedy)


def check_resume(
    project: Project,
    session: WireSession,
    facts: FamilyServerFacts,
    state: BronzeState,
    there: FamilySlotFacts | None,
) -> FamilySlotFacts:
    """Raise unless the stream that bronze holds can go on at this server, database and slot; the slot."""
    identity = StreamIdentity.parse(state.stream)
    if identity.kind is not Kind.GAUSS:
        raise OtherSource(f"the kind of source is `{Kind.GAUSS}`, but bronze was fed from `{identity.kind}`")
    system = facts.known_as if identity.system == facts.known_as else facts.system
    check_named_slot(project, state)
    check_fed_from(identity, system=system, database=facts.database, slot=project.slot)
    source = project.family
    if source.order != "auto" and OrderDomain(source.order) is not identity.domain:
        raise OtherSource(
            f"the pipeline asks for order {source.order}, but the stream was begun in order {identity.domain.value}",
            hint=f"set `source.order` to {identity.domain.value} or auto; to have the other order: {ANEW}",
        )
    slot_order = OrderDomain(source.slot_order)
    if identity.domain is OrderDomain.CSN and order_of(source, exports=True) is OrderDomain.LSN:
        raise OtherSource(
            f"the stream was begun in order csn, but {source.decoding_mode} decoding as asked for leaves CSNs out",
            hint=f"set `source.mode` and `source.decoding` as they were; to have them otherwise: {ANEW}",
        )
    reader = bronze_reader(project)
    last = last_timeline(control_tables(project), state)
    if facts.timeline and last is not None:
        check_not_older(Timeline(facts.timeline, None), last)
    if slot_order is OrderDomain.LSN:
        check_log_reaches(facts.flushed, reader, state)
    if identity.domain is OrderDomain.CSN:
        check_csns_reach(csn_now(session).value, reader, state)
    with bronze_may_go_on(project, state, None if there is None else there.confirmed):
        return check_slot(there, project.slot, source.slot.plugin, facts.database, state.confirm, slot_order)


def server_facts(session: WireSession, *, by_sql: bool) -> FamilyServerFacts:
    """Who the server is; a replication connection is closed after it was asked. Raises SourceError."""
    if by_sql:
        return identify_by_sql(session)
    with session as replication:
        return identify(replication)


def _goal(project: Project, session: WireSession, domain: OrderDomain) -> int:
    """A position that everything committed by now lies at or below, and that a quiet server's stream reaches."""
    source = project.family
    goal = csn_now(session).value - 1 if domain is OrderDomain.CSN else current_lsn(session).value
    if source.slot_order == "csn" or (domain is OrderDomain.LSN and source.decoding_mode is Mode.PARALLEL):
        # the stream leaves numbers out, or its keepalives promise nothing: a transaction of this database has to
        # pass the goal, and one that only takes an id does
        session.query("SELECT txid_current()", doing="passing the goal of this run")
    return goal


def _order(
    project: Project, identity: StreamIdentity, state: BronzeState, control: ControlTables, reader: BronzeReader
) -> Order:
    source = project.family
    if identity.domain is OrderDomain.LSN or source.slot_order == "csn":
        return ArrivalOrder(None if identity.seen is None else identity.seen.value)
    return CsnOrder(
        state.upto,
        state.confirm,
        bound=source.csn_gap.bound / 1000,
        policy=source.csn_gap.policy,
        clock=time.monotonic,
        empty=state.empty,
        recorded=recorded_gaps(control, reader, state),
    )


class _Again:
    """Makes columns of what comes again, by layouts and a session of its own: the others are another thread's."""

    def __init__(self, layouts: Callable[[], Layouts]) -> None:
        self._made = layouts
        self._layouts: Layouts | None = None

    def __call__(self, batch: Sequence[RecordTransaction]) -> ChangeColumns:
        if self._layouts is None:
            self._layouts = self._made()
        return tabulate(batch, self._layouts)


def _layouts(
    project: Project,
    facts: FamilyServerFacts,
    session: WireSession,
    known: Sequence[Relation],
    members: Mapping[TableName, tuple[int, str]],
) -> Layouts:
    tables = frozenset(tables_in_database(session))
    codec, takes = codec_of(project, facts.encoding), chooses(project.family.tables)
    catalog = family_tables(project, session)
    return Layouts(catalog, codec, known=known, tables=tables, takes=takes, versions=catalog.versions, members=members)
