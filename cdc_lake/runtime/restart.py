"""Restart: begins a new stream for a pipeline whose old one cannot continue, and keeps its tables.

The old stream's slot is dropped if it still exists, and the control tables record that the next start begins a new
stream: slot, publication and copies as in a first run, in the next epoch of the same bronze. Silver tables, cuts, pins
and decisions stay; each silver table begins again with its copy, and one that keeps a history keeps it. Other pipelines
of the lake, and slots that this pipeline did not create, are not touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project, Target
from cdc_lake.connectors.base import SlotAdmin
from cdc_lake.connectors.factory import slot_care, source_view
from cdc_lake.control.cuts import FAILED, TableState, last_cut
from cdc_lake.control.ownership import check_own_bronze
from cdc_lake.control.streams import last_epoch, start_over
from cdc_lake.errors import NoStream, OtherWriter, SilverRestored, SlotActive, SlotForeign
from cdc_lake.model.position import Span
from cdc_lake.runtime.apply.table_integrity import find_violation, is_tolerated
from cdc_lake.source.base import StreamIdentity, format_stream_position
from cdc_lake.tables.control_tables import control_tables
from cdc_lake.tables.open_silver_table import table_log

WAITED: Final = 60
"""Seconds that a hint tells users to wait for a slot's reader: the server's default timeout of a lost connection."""


_DAMAGE: Final = (OtherWriter.code, SilverRestored.code)
_NOT_OURS: Final = (
    "correct `source`, or set `source.slot.name` to a name that does not exist yet: the owner of this slot may need "
    "it; `cdc-lake slot inspect` shows its reader and what it retains. If the slot was carried over by an upgrade "
    "of the server and has no other reader, drop it first: `cdc-lake explain SRC216`"
)


@dataclass(frozen=True, slots=True)
class RestartedTable:
    """A table that the next run copies. `keeps`: its silver table keeps its history."""

    source: str
    table: str
    kind: str
    keeps: bool


@dataclass(frozen=True, slots=True)
class Restarted:
    """What a restart does. `done`: it was carried out; `slot`: the one dropped, None if there is none.

    `left`: the old stream's slot, if the pipeline now names another one and it still exists. `position`: the end of
    bronze, None if it does not exist; `unapplied`: its transactions that silver does not have yet.
    """

    pipeline: str
    done: bool
    slot: str | None
    left: str | None
    position: str | None
    unapplied: int
    tables: tuple[RestartedTable, ...]


def restart(project: Project, *, yes: bool = False, wait: float = 0) -> Restarted:
    """Make the next run begin a new stream; without `yes` describe it and change nothing.

    `wait`: seconds to wait for the slot's reader. Raises NoStream if there is no stream yet, SlotActive, SlotForeign,
    OtherWriter, SourceError, LakeError.
    """
    control, reader = control_tables(project), bronze_reader(project)
    state = reader.state()
    if last_epoch(state, control) == 0:
        words = "neither bronze nor the control tables contain a stream: the first `cdc-lake run` starts one"
        raise NoStream(words, where=reader.place)
    if state is not None:
        check_own_bronze(project, state, control)
    with source_view(project) as source:
        targets = [project.target(name) for name in source.tables()]
        origin = source.origin()
    before = StreamIdentity.parse(control.streams()[-1].stream if state is None else state.stream)
    slots = {view.name: view for view in slot_care(project).views()}
    slot, database = slots.get(project.slot), project.pipeline.source.database
    if slot is not None and slot.database not in {None, database}:
        words = f"slot `{project.slot}` belongs to database {slot.database}, not to this pipeline"
        raise SlotForeign(
            words, hint="set `source.slot.name` to another name: slot names are shared by all databases of a server"
        )
    if slot is not None and origin != before.origin and not any(row.stream == origin for row in control.snapshots()):
        words = f"slot `{project.slot}` ({origin}) is not the one that bronze was fed from, {before.origin}"
        raise SlotForeign(words, hint=_NOT_OURS)
    old = slots.get(before.slot) if before.slot != project.slot else None
    left = before.slot if old is not None and old.database == database == before.database else None
    cut = None if state is None else last_cut(control, state.stream)
    if state is not None and cut is not None:
        check_pasts(project, state.stream, targets, cut.tables)
    unapplied = 0
    if state is not None and cut is not None and cut.position < state.upto:
        unapplied = len(reader.commits(Span(state.epoch, cut.position, state.upto)))
    if yes:
        if slot is not None:  # first: if the process dies afterwards, the next one reports the missing slot
            drop(slot_care(project), project.slot, wait, "cdc-lake restart")
        start_over(state, control)
    return Restarted(
        pipeline=project.name,
        done=yes,
        slot=None if slot is None else project.slot,
        left=left,
        position=None if state is None else format_stream_position(state.stream, state.upto),
        unapplied=unapplied,
        tables=tuple(RestartedTable(str(t.source), t.label, t.kind, t.keeps_past) for t in targets),
    )


def check_pasts(project: Project, stream: str, targets: Iterable[Target], tables: Mapping[str, TableState]) -> None:
    """Raise OtherWriter if others changed a table with a history: after a restart the history stays as it is, and
    bronze of the new stream could not rebuild it. `tables`: of the last cut.
    """
    for target in targets:
        listed = tables.get(str(target.source))
        if listed is None or listed.table != target.label or not target.keeps_past:
            continue
        if (finding := _find_damage(project, target, stream, listed)) is None:
            continue
        message, remedy = finding
        other = f"or give {target.source} another silver table (`to`), and {target.label} is kept as it is"
        words = f"a restart would make the damage to the past of {target.label} permanent: {message}"
        raise OtherWriter(words, hint=f"{remedy}, before you restart; {other}")


def _find_damage(project: Project, target: Target, stream: str, listed: TableState) -> tuple[str, str] | None:
    """Foreign changes of a table and their remedy, from the last cut or detected now."""
    if listed.error is not None and listed.state == FAILED:
        code, message, remedy = listed.error
    else:
        error = find_violation(project, target, stream, listed, table_log(project, target).marker(stream))
        if error is None or is_tolerated(project, error):
            return None
        code, message, remedy = error.code, error.message, error.for_table(str(target.source)).remedy
    return (message, remedy) if code in _DAMAGE else None


def drop(slots: SlotAdmin, name: str, wait: float, command: str) -> None:
    """Drop a slot. Raises SlotActive, with the hint to let `command` wait for the slot's reader."""
    try:
        slots.drop(name, wait)
    except SlotActive as active:
        hint = f"stop the process that reads the slot, or wait until it ends: {command} --yes --wait {WAITED}"
        raise SlotActive(active.message, where=active.where, hint=hint) from active
