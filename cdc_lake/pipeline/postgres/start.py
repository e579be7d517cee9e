"""The first start of a stream of PostgreSQL: publication, slot, initial copy.

    temporary slot → stream begun in bronze → lasting slot → every table copied → `snapshots` says complete

The temporary slot goes with its connection, so what breaks off before the lasting one is made leaves nothing on the
server but the publication, and the next start begins a new stream. What breaks off behind that goes on: tables that are
whole stay, the others are copied anew in the snapshot of another temporary slot (`pipeline.postgres.copy`). Only the
last step makes the stream one that changes are read from.

With two-phase decoding by test_decoding the lasting slot cannot be such a copy:

    intention recorded → lasting slot, with two-phase decoding → temporary slot → stream begun in bronze → …

The stream begins where the temporary slot does, and is read from where the lasting one does, further back: of what was
committed between them bronze takes nothing, but what was prepared there and is committed behind it is parked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.port import BronzeState, BronzeWriter
from cdc_lake.config.project import Project
from cdc_lake.errors import NoFreeSlot, ServerUnreachable, SlotForeign, SlotMissing
from cdc_lake.lake.control import ControlTables
from cdc_lake.model.counting import counted
from cdc_lake.model.position import Lsn
from cdc_lake.observe.failpoint import SLOT_KEPT, failpoint
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.postgres.captured import by_publication, carried, filters, stated, wanted
from cdc_lake.pipeline.postgres.copy import Copying, copy_published
from cdc_lake.pipeline.postgres.left import intention_of, left_over
from cdc_lake.pipeline.postgres.reading import phased, plugin_options
from cdc_lake.pipeline.postgres.tables import check_maker
from cdc_lake.pipeline.state.copies import CopiedTable, finished
from cdc_lake.pipeline.state.intention import Intention
from cdc_lake.pipeline.state.memberships import note_members
from cdc_lake.pipeline.state.ownership import check_own_bronze, unclaimed_slot
from cdc_lake.pipeline.state.streams import (
    begin_stream,
    check_unfinished,
    finish_copy,
    last_epoch,
    starts_over,
)
from cdc_lake.pipeline.stream.copying import Stopped
from cdc_lake.pipeline.stream.failover import last_timeline, note_timeline
from cdc_lake.source import publication, slot
from cdc_lake.source.catalog import check_identities
from cdc_lake.source.connection import Session, for_replication
from cdc_lake.source.row_filters import check_filtered
from cdc_lake.source.server import ServerFacts, timeline_of
from cdc_lake.source.settled import settled
from cdc_lake.source.stream import StreamIdentity
from cdc_lake.source.timeline import Timeline

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
    """Start a stream, or go on with one whose copy broke off; its state and the rows copied now. `dial` opens sessions
    beside the two.

    Raises SourceError, LakeError, Stopped.
    """
    timeline = timeline_of(replication, facts.timeline)  # now: a snapshot lasts until the connection's next command
    intention = intention_of(project, facts)
    before = _unfinished(project, session, facts, timeline, bronze.state(), control, intention, tell)
    ensure_publication(project, session, tell)
    carries = carried(project, session)  # before the slot begins: what is done to the publication behind that is seen
    whole: list[CopiedTable] = []
    kept = None
    if before is None and phased(project):
        intention.record(control, last_epoch(bronze.state(), control))
        kept = slot.make_two_phase(session, project.slot, project.postgres.slot.plugin)
        failpoint(SLOT_KEPT)
    with exported_point(project, session, replication, dial, stop) as made:
        if before is not None:
            state, whole = before, finished(control.snapshots(), before.stream, before.epoch)
            text = f"initial copy goes on as of {made.consistent} behind {counted(len(whole), 'whole table')}"
        else:
            identity = StreamIdentity(facts.system, facts.database, project.slot, made.consistent)
            state = begin_stream(identity, (kept or made.consistent).value, bronze, control)
            note_timeline(timeline, control, state, tell)
            note_members(carries, control, state)
            if kept is None:
                _keep(session, made, project.slot)
            text = f"initial copy as of {made.consistent}"
        tell(Progress("snapshot", text, facts={"epoch": state.epoch}))
        had = sum(one.rows for one in whole)
        if project.pipeline.snapshot.copies:
            whole = copy_published(Copying(project, session, dial, bronze, control, state, stop, tell), made, whole)
    return state, finish_copy(control, state, whole, tell) - had


@contextmanager
def exported_point(
    project: Project, session: Session, replication: Session, dial: Callable[[str], Session], stop: threading.Event
) -> Iterator[slot.ExportedSlot]:
    """A temporary slot, and an exported snapshot of exactly what was committed up to where it begins. Raises
    SourceError, Stopped.
    """
    plugin = project.postgres.slot.plugin
    if for_replication(replication):
        with _slots_counted(session):
            made = slot.export_slot(replication, project.slot, plugin)
        yield made
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


def _keep(session: Session, made: slot.ExportedSlot, name: str) -> None:
    try:
        with _slots_counted(session):
            slot.keep_slot(session, made, name)
    except SlotMissing as gone:
        raise ServerUnreachable("the connection that held the slot broke off") from gone
    failpoint(SLOT_KEPT)


@contextmanager
def _slots_counted(session: Session) -> Iterator[None]:
    """Say with NoFreeSlot how many slots there are: a start needs a temporary one besides the one that stays."""
    try:
        yield
    except NoFreeSlot as none:
        used, most = slot.slots_in_use(session)
        words = f"{used} of {most} replication slots are in use, and a start needs two for a moment"
        hint = (
            f"raise max_replication_slots to {used + 2} or more and restart the server; `cdc-lake slot list` shows them"
        )
        raise NoFreeSlot(words, hint=hint) from none


def ensure_publication(project: Project, session: Session, tell: Tell) -> None:
    """Check the publication against `tables`, or make it; none where the plugin takes none."""
    chosen = wanted(project, session)
    check_identities(session, chosen)
    if not by_publication(project):
        return
    check_maker(project, session)
    name, filtered, conditions = project.publication, filters(project, session, chosen), stated(project)
    if publication.publication_exists(session, name):
        there = publication.published(session, name)
        publication.check_published(name, (p.table for p in there), chosen, conditions)
        check_filtered(name, there, filtered)
        return
    publication.create_publication(session, name, chosen, conditions, publication.Maker(project.name, project.slot))
    tell(Progress("connect", f"publication `{name}` made for {counted(len(chosen), 'table')}"))


def _unfinished(
    project: Project,
    session: Session,
    facts: ServerFacts,
    timeline: Timeline,
    state: BronzeState | None,
    control: ControlTables,
    intention: Intention,
    tell: Tell,
) -> BronzeState | None:
    """The stream whose copy broke off and can go on. Where there is none, no slot is in the way of a new one: ours is
    dropped.
    """
    there = slot.find_slot(session, project.slot)
    check_own_bronze(project, state, control)
    if state is None or starts_over(state, control):
        if there is not None and not left_over(there, intention, state, control):
            raise unclaimed_slot(project, bronze_reader(project).place, state)
        if there is not None:
            slot.drop_slot(session, project.slot)
        return None
    before = check_unfinished(state)
    if there is not None and left_over(there, intention, state, control):
        slot.drop_slot(session, project.slot)
    elif there is not None:
        if (before.system, before.database, before.slot) != (facts.system, facts.database, project.slot):
            raise SlotForeign(f"slot `{project.slot}` exists, but bronze was begun from another source")
        if there.confirmed != Lsn(state.confirm) or there.plugin != project.postgres.slot.plugin:
            raise SlotForeign(f"slot `{project.slot}` is not the one made for {state.stream}: it was read or made anew")
        fits = not there.lost and there.two_phase == phased(project)
        if fits and last_timeline(control, state) == timeline and _same_configuration(state, control):
            return state
        slot.drop_slot(session, project.slot)
    tell(Progress("snapshot", f"the copy of epoch {state.epoch} was not finished: a new stream starts"))
    return None


def _same_configuration(state: BronzeState, control: ControlTables) -> bool:
    """Whether what decides what bronze holds, redaction above all, is as it was when the stream began."""
    began = [row.recorded_at for row in control.streams() if row.stream == state.stream]
    return bool(began) and all(row.recorded_at <= began[-1] for row in control.configurations())
