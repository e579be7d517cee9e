"""The first start of a stream of the GaussDB family: slot, order domain, initial copy.

    intention recorded → slot → order domain decided → snapshot at a CSN → stream begun in bronze → tables copied
    → `snapshots` says complete

Slots of the family are never temporary, so the intention to make one is recorded first: a slot of that name is then
ours although bronze knows nothing of it yet. Whatever breaks off before the end is begun anew at the next start.

The copy holds exactly the transactions with a CSN below the snapshot's. In the csn domain the stream begins there; in
the lsn domain what the slot sends of them again is left out by CSN (`order.ArrivalOrder`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.port import BronzeState, BronzeWriter
from cdc_lake.config.project import Project
from cdc_lake.decode.mppdb.facts import FamilyTableFacts
from cdc_lake.decode.mppdb.layouts import Layouts
from cdc_lake.errors import SlotForeign
from cdc_lake.lake.control import ControlTables
from cdc_lake.model.position import Csn, Lsn, OrderDomain
from cdc_lake.model.relation import TableName
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.gaussdb.density import decide, refuse_csn
from cdc_lake.pipeline.gaussdb.facts import captured, catalog
from cdc_lake.pipeline.gaussdb.facts import tables as table_facts
from cdc_lake.pipeline.gaussdb.frames import Dial
from cdc_lake.pipeline.state.copies import CopiedTable, snapshot_id
from cdc_lake.pipeline.state.intention import Intention
from cdc_lake.pipeline.state.ownership import check_own_bronze, unclaimed_slot
from cdc_lake.pipeline.state.streams import (
    begin_stream,
    check_unfinished,
    finish_copy,
    last_epoch,
    starts_over,
)
from cdc_lake.pipeline.stream.copying import (
    CopyPoint,
    TableCopy,
    chunk_rows,
    copy_tables,
    expected_rows,
    pace_of,
)
from cdc_lake.pipeline.stream.encoding import sql_codec
from cdc_lake.source.gaussdb.catalog import check_identities
from cdc_lake.source.gaussdb.server import FamilyServerFacts
from cdc_lake.source.gaussdb.slot import CreatedSlot, create_slot, create_slot_by_function, drop_slot, find_slot
from cdc_lake.source.gaussdb.snapshot import (
    FamilyReader,
    FamilySnapshot,
    create_slot_with_snapshot,
    exported,
    exports_csn,
    readers,
)
from cdc_lake.source.stream import Kind, StreamIdentity
from cdc_lake.source.wire.session import WireSession

_INEXACT = "this server gives no CSN with a snapshot, so a transaction near it may be missing or come twice"


@dataclass(frozen=True, slots=True)
class FamilyStart:
    """What the start of a stream needs besides the pipeline: sessions, closed by the caller, and who the server is."""

    dial: Dial
    session: WireSession
    facts: FamilyServerFacts


def begin(
    project: Project,
    start: FamilyStart,
    bronze: BronzeWriter,
    control: ControlTables,
    stop: threading.Event,
    tell: Tell,
) -> tuple[BronzeState, int]:
    """Start a stream; its state and the rows copied. Raises SourceError, LakeError, Stopped."""
    tables = _checked_tables(project, start.session)
    before = bronze.state()
    _clear_the_way(project, start, before, control, tell)
    _intention(project, start.facts).record(control, last_epoch(before, control))
    with _slot_and_snapshot(project, start, stop, tell) as (made, domain, taken):
        state = _begin_stream(project, start.facts, made, taken.csn, domain, bronze, control)
        what = f"of all below CSN {taken.csn}" if taken.csn else f"as of about {made.consistent}: {_INEXACT}"
        tell(Progress("snapshot", f"initial copy {what}", facts={"epoch": state.epoch}))
        copied: tuple[CopiedTable, ...] = ()
        if project.pipeline.snapshot.copies:
            copied = _copy(project, start, taken, tables, bronze, state, stop, tell)
    return state, finish_copy(control, state, copied, tell)


def _checked_tables(project: Project, session: WireSession) -> dict[TableName, FamilyTableFacts]:
    """The tables that the pipeline takes, with the catalog's facts. Raises NoTableMatches, NoReplicaIdentity."""
    found = catalog(project, session, captured(project, session))
    check_identities(found, session.place)
    return found


@contextmanager
def _slot_and_snapshot(
    project: Project, start: FamilyStart, stop: threading.Event, tell: Tell
) -> Iterator[tuple[CreatedSlot, OrderDomain, FamilySnapshot]]:
    """Make the slot, decide what orders the stream, and hold a snapshot from after the slot was made."""
    if exports_csn(start.session) or project.family.slot_order == "csn":
        made = _make_slot(project, start)
        domain = decide(project, start.dial, start.session, stop, tell)
        with exported(start.session) as taken:
            yield made, domain, FamilySnapshot(taken.name, taken.csn)
        return
    # without a CSN at hand there is nothing to count from: the stream is ordered by LSN
    refuse_csn(project)
    replication = start.dial("slot", True)
    try:
        made, snapshot = create_slot_with_snapshot(replication, project.slot, project.family.slot.plugin)
        yield made, OrderDomain.LSN, snapshot
    finally:
        replication.close()


def _make_slot(project: Project, start: FamilyStart) -> CreatedSlot:
    source = project.family
    if source.slot_order == "csn":
        # only the function takes an order; the replication command makes ordinary slots
        return create_slot_by_function(start.session, project.slot, source.slot.plugin, OrderDomain.CSN)
    if source.mode == "polling":
        return create_slot_by_function(start.session, project.slot, source.slot.plugin, None)
    replication = start.dial("slot", True)
    try:
        return create_slot(replication, project.slot, source.slot.plugin)
    finally:
        replication.close()


def _begin_stream(
    project: Project,
    facts: FamilyServerFacts,
    made: CreatedSlot,
    csn: Csn | None,
    domain: OrderDomain,
    bronze: BronzeWriter,
    control: ControlTables,
) -> BronzeState:
    last = None if csn is None else Csn(csn.value - 1)
    identity = StreamIdentity(
        facts.system,
        facts.database,
        project.slot,
        made.consistent,
        csn=last if domain is OrderDomain.CSN else None,
        kind=Kind.GAUSS,
        seen=last if domain is OrderDomain.LSN else None,
    )
    # a CSN-ordered slot is confirmed by CSN
    by_csn = project.family.slot_order == "csn"
    confirm = identity.start if by_csn else made.consistent.value
    return begin_stream(identity, confirm, bronze, control, dense=domain is OrderDomain.CSN and not by_csn)


def _copy(
    project: Project,
    start: FamilyStart,
    taken: FamilySnapshot,
    tables: dict[TableName, FamilyTableFacts],
    bronze: BronzeWriter,
    state: BronzeState,
    stop: threading.Event,
    tell: Tell,
) -> tuple[CopiedTable, ...]:
    layouts = Layouts(tables.get)
    relations = [layouts.relation_of(table) for table in tables]
    limits = project.pipeline.snapshot
    count = max(1, min(limits.parallelism, len(relations)))
    codec = sql_codec(project, start.facts.encoding)
    copies = [TableCopy(one, (partial(FamilyReader.read, relation=one),)) for one in relations]
    point = CopyPoint(snapshot_id(state.epoch), state.upto)
    expected = expected_rows(table_facts(start.session, list(tables)))
    with readers(lambda: start.dial("copy", False), taken, count, chunk_rows(limits), codec) as together:
        return copy_tables(copies, together, bronze, point, stop, tell, expected, pace_of(limits))


def _intention(project: Project, facts: FamilyServerFacts) -> Intention:
    return Intention(Kind.GAUSS, facts.system, facts.database, project.slot)


def intended(
    project: Project, facts: FamilyServerFacts, control: ControlTables, state: BronzeState | None, *, anew: bool = False
) -> bool:
    """Whether this pipeline once set out to make its slot: then one that bronze knows nothing of yet is ours; where it
    starts over (`anew`), since the newest stream.
    """
    after = _intention(project, facts).after(control)
    return after is not None and not (anew and after < last_epoch(state, control))


def _clear_the_way(
    project: Project, start: FamilyStart, state: BronzeState | None, control: ControlTables, tell: Tell
) -> None:
    """Make sure no slot is in the way; drop ours where an earlier start broke off after making it."""
    there = find_slot(start.session, project.slot)
    check_own_bronze(project, state, control)
    again = starts_over(state, control)
    if state is not None and not again:
        check_unfinished(state)
        tell(Progress("snapshot", f"the copy of epoch {state.epoch} was not finished: a new stream starts"))
    if there is None:
        return
    after = _intention(project, start.facts).after(control)
    if after is None or (again and after < last_epoch(state, control)):
        raise unclaimed_slot(project, bronze_reader(project).place, state)
    # a start that came after this epoch and broke off as well may have made the slot anew
    if state is not None and after < state.epoch:
        before = StreamIdentity.parse(state.stream)
        confirmed = there.confirmed if there.order is OrderDomain.LSN else None
        if confirmed is not None and confirmed > before.point.value:
            raise SlotForeign(
                f"slot `{project.slot}` is not the one made for {state.stream}: it is confirmed up to {Lsn(confirmed)}"
            )
    drop_slot(start.session, project.slot)
