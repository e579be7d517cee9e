"""Manages slots: lists the server's, and creates, advances and drops the pipeline's without unnoticed loss of changes.

A slot makes the server keep the WAL. Creating one begins the stream, with its copy, and receives nothing more;
advancing never passes the end of bronze; dropping first reports what is lost and needs confirmation.
"""

from __future__ import annotations

import threading

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.open import bronze_reader, bronze_writer
from cdc_lake.config.project import Project
from cdc_lake.connectors.base import SlotAdvanced, SlotDetails, SlotDropped, SlotFound, SlotList, SlotMade
from cdc_lake.connectors.factory import slot_care
from cdc_lake.control.streams import is_complete
from cdc_lake.errors import NoStream, SlotMissing
from cdc_lake.model.diagnostic import size
from cdc_lake.observability.events import ProgressReporter, silent
from cdc_lake.runtime.receive.stream_setup import open_stream
from cdc_lake.runtime.restart import drop
from cdc_lake.source.base import format_stream_position
from cdc_lake.tables.control_tables import control_tables


def list_slots(project: Project) -> SlotList:
    """Every slot of the server. Raises SourceError, NotForThisSource."""
    return SlotList(project.name, project.pipeline.source.place, tuple(slot_care(project).views()))


def inspect_slot(project: Project, name: str | None = None) -> SlotDetails:
    """Details of the pipeline's slot, or of the named one, and of what it endangers. Nothing is changed.

    Raises SlotMissing, SourceError, LakeError, NotForThisSource.
    """
    name = name or project.slot
    details = slot_care(project).inspect(name, lambda: bronze_reader(project).state())
    if details is None:
        raise _not_there(project, name)
    return details


def create_slot(project: Project, *, report: ProgressReporter = silent) -> SlotMade:
    """Begin the stream: create publication, slot and initial copy as a first run does, and nothing more.

    From then on the server keeps the WAL for it. An existing slot is checked as at every start. Raises SourceError,
    LakeError, StateError.
    """
    control, before = control_tables(project, project.pipeline.bronze.durability), bronze_reader(project).state()
    was_complete = is_complete(before, control)
    with open_stream(project, bronze_writer(project), control, threading.Event(), report) as stream:
        state = stream.state
        return SlotMade(
            project.name,
            project.slot,
            not was_complete,
            format_stream_position(state.stream, state.upto),
            stream.copied,
        )


def advance_slot(project: Project, upto: int | None = None) -> SlotAdvanced:
    """Let the slot discard what bronze has, up to a position or all of it; never moves it backwards.

    Raises AdvancePastBronze, SlotActive, NoStream, and what `run` would raise if the stream could not continue;
    NotForThisSource if the server does not support it.
    """
    reader = bronze_reader(project)

    def landed_state() -> StreamCheckpoint:
        if (state := reader.state()) is None:
            raise NoStream("bronze contains no stream yet: there is nothing that a slot may forget", where=reader.place)
        return state

    return slot_care(project).advance(landed_state, upto)


def drop_slot(project: Project, name: str | None = None, *, yes: bool = False, wait: float = 0) -> SlotDropped:
    """Drop the pipeline's slot, or the named one; without `yes` report what is lost and change nothing.

    `wait`: seconds to wait for its reader. Raises SlotActive, SlotMissing, SourceError, NotForThisSource.
    """
    name, care = name or project.slot, slot_care(project)
    own = name == project.slot
    slot = care.find(name)
    if slot is None:
        raise _not_there(project, name)
    lost = f"its reader loses the changes after {slot.confirmed or 'its position'}"
    if own:
        lost = _describe_loss(project, slot)
    if yes:
        drop(care, name, wait, "cdc-lake slot drop" if own else f"cdc-lake slot drop {name}")
    return SlotDropped(project.name, name, own, yes, lost, slot.retained)


def _not_there(project: Project, name: str) -> SlotMissing:
    hint = "`cdc-lake slot list` lists the existing slots"
    return SlotMissing(f"slot `{name}` does not exist", where=project.pipeline.source.place, hint=hint)


def _describe_loss(project: Project, slot: SlotFound) -> str:
    """What the pipeline loses with its slot."""
    reader = bronze_reader(project)
    state = reader.state()
    if state is None:
        away = "if its lake is not mounted, or was moved, the stream is lost with the slot"
        return f"unknown: there is no bronze at {reader.place}; {away}"
    position_text = format_stream_position(state.stream, state.upto)
    backlog = "" if slot.end is None else f", {size(max(0, slot.end - state.confirm))} of WAL by now"
    return f"all changes after {position_text}{backlog}: the pipeline needs `cdc-lake restart` and new copies"
