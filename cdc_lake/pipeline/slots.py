"""Slot care: the server's slots seen, the pipeline's own made, advanced and dropped, no change lost unseen.

A slot is the server's promise to keep the log. Making one begins the stream, with its copy, and receives nothing
more; advancing never passes what bronze holds; dropping says what is lost by it and waits for a yes.
"""

from __future__ import annotations

import threading

from cdc_lake.bronze.open import bronze_reader, bronze_writer
from cdc_lake.config.project import Project
from cdc_lake.errors import AdvancePastBronze, NoStream, SlotMissing
from cdc_lake.lake.control import control_tables
from cdc_lake.model.position import Lsn
from cdc_lake.observe.progress import Tell, silent
from cdc_lake.pipeline.action import size
from cdc_lake.pipeline.connect import open_stream
from cdc_lake.pipeline.postgres_facts import reading, session_of, wal_position
from cdc_lake.pipeline.postgres_resume import check_own_slot, check_same
from cdc_lake.pipeline.slot_values import SlotAdvanced, SlotDropped, SlotList, SlotMade, SlotView
from cdc_lake.pipeline.streams import is_complete
from cdc_lake.source import slot
from cdc_lake.source.connection import Session
from cdc_lake.source.server import check_server, identify
from cdc_lake.source.stream import shown


def list_slots(project: Project) -> SlotList:
    """Look at every slot of the server. Raises SourceError, NotForThisSource."""
    with reading(project) as session:
        found = tuple(_view(facts, own=facts.name == project.slot) for facts in slot.all_slots(session))
    return SlotList(project.name, project.postgres.place, found)


def create_slot(project: Project, *, tell: Tell = silent) -> SlotMade:
    """Begin the stream: publication, slot and initial copy as a first run makes them, and no more.

    From then on the server keeps the log for it. Where it is there already, it is checked as at every start. Raises
    SourceError, LakeError, StateError.
    """
    control, before = control_tables(project, project.pipeline.bronze.durability), bronze_reader(project).state()
    there = before is not None and is_complete(control, before.stream, before.epoch)
    with open_stream(project, bronze_writer(project), control, threading.Event(), tell) as stream:
        state = stream.state
        return SlotMade(project.name, project.slot, not there, shown(state.stream, state.upto), stream.copied)


def advance_slot(project: Project, upto: int | None = None) -> SlotAdvanced:
    """Let the slot forget what bronze holds, up to a position or all of it; one that is further already stays there.

    Raises AdvancePastBronze, SlotActive, NoStream, and what `run` would raise where the stream could not go on.
    """
    reader = bronze_reader(project)
    if (state := reader.state()) is None:
        raise NoStream("bronze holds no stream yet: there is nothing that a slot may forget", where=reader.place)
    with session_of(project, replication=True) as replication, session_of(project) as session:
        facts = identify(replication, project.postgres)
        check_server(facts, project.postgres.place)
        _, held = check_same(project, replication, facts, state, control_tables(project))
        found = check_own_slot(project, slot.find_slot(session, project.slot), facts.database, held.confirm)
        before = reached = found.confirmed
        assert before is not None  # `check_own_slot` says so
        assert reached is not None
        target = held.confirm if upto is None else upto
        if target > held.confirm:
            missing, end = target - held.confirm, Lsn(held.confirm)
            raise AdvancePastBronze(f"{missing} bytes would be missing: bronze ends at {end}, before {Lsn(target)}")
        if target > before.value:
            reached = slot.advance_slot(session, project.slot, Lsn(target))
    return SlotAdvanced(project.name, project.slot, str(before), str(reached), reached.value - before.value)


def drop_slot(project: Project, name: str | None = None, *, yes: bool = False, wait: float = 0) -> SlotDropped:
    """Drop the pipeline's slot, or the one named; without `yes` say what is lost by it and change nothing.

    `wait`: seconds that who reads it is waited for. Raises SlotActive, SlotMissing, SourceError, NotForThisSource.
    """
    name = name or project.slot
    own = name == project.slot
    with session_of(project) as session:
        found = slot.find_slot(session, name)
        if found is None:
            hint = "`cdc-lake slot list` shows those there are"
            raise SlotMissing(f"slot `{name}` is not there", where=project.postgres.place, hint=hint)
        lost = _lost(project, session) if own else f"who reads it loses what comes behind {found.confirmed}"
    if yes:
        with session_of(project, replication=True) as replication:
            slot.drop_slot_when_free(replication, name, wait)
    return SlotDropped(project.name, name, own, yes, lost, found.retained)


def _lost(project: Project, session: Session) -> str:
    """What the pipeline loses with its slot."""
    state = bronze_reader(project).state()
    if state is None:
        return "nothing: bronze holds nothing of it"
    behind = max(0, wal_position(session).value - state.upto)
    at = shown(state.stream, state.upto)
    return f"all changes behind {at}, {size(behind)} of log by now: the pipeline needs a new lake and a new copy"


def _view(facts: slot.SlotFacts, *, own: bool) -> SlotView:
    state, reason = "idle", "nobody reads it"
    if facts.lost:
        state, reason = "lost", f"the server gave it up ({facts.invalidation or facts.wal_status})"
    elif facts.active_pid is not None:
        state, reason = "active", f"read by server process {facts.active_pid}"
    return SlotView(
        name=facts.name,
        own=own,
        kind=facts.kind,
        plugin=facts.plugin,
        database=facts.database,
        temporary=facts.temporary,
        failover=facts.failover,
        state=state,
        reason=reason,
        confirmed=None if facts.confirmed is None else str(facts.confirmed),
        retained_bytes=facts.retained,
        safe_bytes=facts.safe,
    )
