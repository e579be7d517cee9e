"""Pauses: a table that stays where it is while the others go on, until somebody lets it go on.

A row of the control table `pauses` says so, and stands from the moment it is written; a run that applies sees it at its
next span. Bronze goes on receiving the table's changes, and retention keeps them: the cuts list the table with the
position it stayed at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.errors import NoStream, TableNotKnown
from cdc_lake.lake.control import ControlTables, control_tables
from cdc_lake.lake.control_rows import PauseRow
from cdc_lake.model.relation import TableName
from cdc_lake.pipeline.state.cuts import BROKEN, PAUSED, TableState, last_cut


@dataclass(frozen=True, slots=True)
class PauseState:
    """What stands now of a table. `changed`: whether it was otherwise before; `since`: None where it never paused."""

    pipeline: str
    source: str
    table: str
    paused: bool
    changed: bool
    since: datetime | None


def pause(project: Project, table: str) -> PauseState:
    """Stop a table, named by its source, where the span under way ends, with its group where it is in one.

    Raises NoStream, TableNotKnown, LakeError.
    """
    return _set(project, table, paused=True)


def resume(project: Project, table: str) -> PauseState:
    """Let a table go on from where it stayed. Raises the same."""
    return _set(project, table, paused=False)


def paused_tables(control: ControlTables) -> dict[str, datetime]:
    """The source tables that are paused, each with the time since when."""
    return {relation: row.recorded_at for relation, row in _newest(control).items() if row.paused}


def stopped_tables(project: Project, control: ControlTables) -> dict[str, datetime]:
    """The same with the other tables of their groups: a group stops as one."""
    paused = paused_tables(control)
    out = dict(paused)
    for group in project.groups:
        since = [paused[str(name)] for name in group.tables if str(name) in paused]
        out |= {str(name): out.get(str(name), min(since)) for name in group.tables if since}
    return out


def settled(
    project: Project, tables: Mapping[str, TableState], paused: Iterable[str], position: int
) -> dict[str, TableState]:
    """The tables of the last cut, at `position`, as pauses have it: those that are paused stay where they are, also
    one that no cut lists yet; those that are not any more wait to be brought to where the others are.
    """
    paused = frozenset(paused)
    out = dict(tables)
    for relation, table in tables.items():
        if relation in paused:
            out[relation] = replace(table, state=PAUSED)
        elif table.state == PAUSED:
            out[relation] = replace(table, state=BROKEN)
    for relation in paused - tables.keys():
        target = project.target(TableName.parse(relation))
        out[relation] = TableState(target.label, target.format, None, position, PAUSED, 0)
    return out


def _newest(control: ControlTables) -> dict[str, PauseRow]:
    rows = control.read("pauses").sort_by("recorded_at").to_pylist()
    return {row["relation"]: PauseRow(**row) for row in rows}


def _set(project: Project, given: str, *, paused: bool) -> PauseState:
    control = control_tables(project)
    relation = _known(project, control, given)
    newest, name = _newest(control), TableName.parse(relation)
    group = project.group(name)
    every = (relation,) if group is None else tuple(map(str, group.tables))
    others = [one for one in every if paused != (one in newest and newest[one].paused)]
    changed = bool(others)
    for one in others:
        row = PauseRow(one, paused, datetime.now(UTC))
        newest[one] = replace(row, recorded_at=control.record_in_turn(row))
        control.compact("pauses")
    before, target = newest.get(relation), project.target(name)
    since = None if before is None else before.recorded_at
    return PauseState(project.name, relation, target.label, paused, changed, since)


def _known(project: Project, control: ControlTables, given: str) -> str:
    """The source table that is meant, as bronze writes it."""
    reader = bronze_reader(project)
    state = reader.state()
    if state is None:
        hint = "`cdc-lake run --once --only receive` copies into bronze alone: pause it then, before silver takes it"
        raise NoStream("bronze holds no stream yet: no table flows that could be paused", where=reader.place, hint=hint)
    cut = last_cut(control, state.stream)
    known = {str(layout.table) for layout in reader.layouts().values()} | set(cut.tables if cut is not None else ())
    found = [one for one in (given, f"public.{given}") if one in known]
    if not found:
        raise TableNotKnown(f"bronze knows no table `{given}`; it knows {', '.join(sorted(known)) or 'none'}")
    return found[0]
