"""Paused tables, and facts about epochs from other places than bronze.

A row of the control table `pauses` pauses a table from the moment it is written; apply reads it at its next span.
Bronze continues to receive the table's changes, and retention keeps them: cuts list the table with its position.

Facts about an epoch come from the control tables and the stream's own identity; the hash chain is compared with them.
The end of an epoch is known once the next one has begun: its first row records where bronze was then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pyarrow.compute as pc

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.hash_chain import EpochFacts
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.config.project import Project
from cdc_lake.config.source import FamilySource
from cdc_lake.control.cuts import FAILED, PAUSED, TableState, last_cut
from cdc_lake.errors import NoStream, OtherSource, TableNotKnown
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import TableName
from cdc_lake.source.base import StreamIdentity
from cdc_lake.tables.control_schema import PauseRow, StreamRow
from cdc_lake.tables.control_tables import ControlTables, control_tables


@dataclass(frozen=True, slots=True)
class PauseState:
    """The state of a table. `changed`: whether it was different before; `since`: None if it was never paused."""

    pipeline: str
    source: str
    table: str
    paused: bool
    changed: bool
    since: datetime | None


def pause(project: Project, table: str) -> PauseState:
    """Pause a table, named by its source, at the end of the current span, together with its group.

    Raises NoStream, TableNotKnown, LakeError.
    """
    return _set(project, table, paused=True)


def resume(project: Project, table: str) -> PauseState:
    """Let a table continue from its position. Raises the same."""
    return _set(project, table, paused=False)


def paused_tables(control: ControlTables) -> dict[str, datetime]:
    """The paused source tables, each with the time of its pause."""
    return {relation: row.recorded_at for relation, row in _newest(control).items() if row.paused}


def stopped_tables(project: Project, control: ControlTables) -> dict[str, datetime]:
    """The same including the other tables of their groups: a group stops as a whole."""
    paused = paused_tables(control)
    result = dict(paused)
    for group in project.groups:
        since = [paused[str(name)] for name in group.tables if str(name) in paused]
        result |= {str(name): result.get(str(name), min(since)) for name in group.tables if since}
    return result


def apply_pause_state(
    project: Project, tables: Mapping[str, TableState], paused: Iterable[str], position: int
) -> dict[str, TableState]:
    """The tables of the last cut, at `position`, with current pauses: paused ones stay at their position, even if no
    cut lists them yet; resumed ones wait to be brought to the position of the others.
    """
    paused = frozenset(paused)
    result = dict(tables)
    for relation, table in tables.items():
        if relation in paused:
            result[relation] = replace(table, state=PAUSED)
        elif table.state == PAUSED:
            result[relation] = replace(table, state=FAILED)
    for relation in paused - tables.keys():
        target = project.target(TableName.parse(relation))
        result[relation] = TableState(target.label, target.format, None, position, PAUSED, 0)
    return result


def _newest(control: ControlTables) -> dict[str, PauseRow]:
    rows = control.read("pauses").sort_by("recorded_at").to_pylist()
    return {row["relation"]: PauseRow(**row) for row in rows}


def _set(project: Project, table: str, *, paused: bool) -> PauseState:
    control = control_tables(project)
    relation = _resolve_table(project, control, table)
    newest, name = _newest(control), TableName.parse(relation)
    group = project.group(name)
    every = (relation,) if group is None else tuple(map(str, group.tables))
    others = [member for member in every if paused != (member in newest and newest[member].paused)]
    for member in others:
        row = PauseRow(member, paused, datetime.now(UTC))
        newest[member] = replace(row, recorded_at=control.record_in_turn(row))
        control.compact("pauses")
    before, target = newest.get(relation), project.target(name)
    since = None if before is None else before.recorded_at
    return PauseState(project.name, relation, target.label, paused, bool(others), since)


def _resolve_table(project: Project, control: ControlTables, table: str) -> str:
    """The source table for a name, as bronze writes it."""
    reader = bronze_reader(project)
    state = reader.state()
    if state is None:
        hint = (
            "`cdc-lake run --once --only receive` copies into bronze only: pause the table after that, before "
            "silver applies it"
        )
        raise NoStream("bronze contains no stream yet, so there is no table to pause", where=reader.place, hint=hint)
    cut = last_cut(control, state.stream)
    tables = {str(layout.table) for layout in reader.layouts().values()} | set(cut.tables if cut is not None else ())
    matching = [name for name in (table, f"public.{table}") if name in tables]
    if not matching:
        raise TableNotKnown(f"bronze has no table `{table}`; it has {', '.join(sorted(tables)) or 'none'}")
    return matching[0]


def read_epoch_facts(project: Project, reader: BronzeReader, control: ControlTables) -> dict[int, EpochFacts]:
    """The facts of every epoch. Raises LakeError."""
    state = reader.state()
    if state is None:
        return {}
    rows = {row.epoch: row for row in control.streams()}
    gaps = _gaps(control)
    result = {}
    for epoch in range(1, state.epoch + 1):
        row, after = rows.get(epoch), rows.get(epoch + 1)
        stream = row.stream if row is not None else state.stream if epoch == state.epoch else None
        identity = None if stream is None else _identity(stream)
        result[epoch] = EpochFacts(
            stream=stream,
            start=None if identity is None else identity.start,
            head=None if after is None or after.last_hash is None else bytes.fromhex(after.last_hash),
            dense=_dense(project, state, row, epoch),
            gaps=gaps.get((epoch, stream or ""), ()),
        )
    return result


def _identity(stream: str) -> StreamIdentity | None:
    """The identity of a stream, None for a text of another form."""
    try:
        return StreamIdentity.parse(stream)
    except OtherSource:
        return None


def _dense(project: Project, state: StreamCheckpoint, row: StreamRow | None, epoch: int) -> bool:
    """Whether the stream shows every CSN; without a row the pipeline file decides, for the newest stream only."""
    if row is not None and row.dense is not None:
        return row.dense
    source = project.pipeline.source
    identity = _identity(state.stream)
    if epoch != state.epoch or identity is None or not isinstance(source, FamilySource):
        return False
    return identity.domain is OrderDomain.CSN and source.slot_order == "lsn"


def _gaps(control: ControlTables) -> dict[tuple[int, str], tuple[tuple[int, int], ...]]:
    """Epoch and stream → the CSNs recorded as missing, ascending, without duplicates."""
    result: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for row in control.read("gaps", pc.field("first") <= pc.field("last")).sort_by("first").to_pylist():
        spans = result.setdefault((row["epoch"], row["stream"]), [])
        first = max(row["first"], spans[-1][1] + 1) if spans else row["first"]
        if first <= row["last"]:
            spans.append((first, row["last"]))
    return {place: tuple(spans) for place, spans in result.items()}
