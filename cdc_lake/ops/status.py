"""The status of a pipeline as a frozen value, of which terminal, JSON, metrics and reports are views.

It is read from bronze, the control tables, the silver tables' own markers and, if reachable, the source. It works
without the source and without Spark, and then reports what is missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.reader import BronzeReader, CommitRow
from cdc_lake.config.project import Project, Target
from cdc_lake.connectors.factory import source_view
from cdc_lake.connectors.wal_budget import WalNote
from cdc_lake.control.coordination import ReceiverNote
from cdc_lake.control.cuts import FAILED, PAUSED, RESYNCING, TableState, table_states
from cdc_lake.control.quarantine import open_quarantine, quarantine_log
from cdc_lake.control.snapshots import courses
from cdc_lake.control.streams import is_complete
from cdc_lake.control.streams import waiting as waiting_undecoded
from cdc_lake.control.table_pauses import stopped_tables
from cdc_lake.control.verdicts import verified_state
from cdc_lake.errors import LakeError, SourceError
from cdc_lake.model.diagnostic import pluralize
from cdc_lake.model.position import OrderDomain, Span, format_position
from cdc_lake.model.relation import TableName
from cdc_lake.runtime.apply.schema_changes import refused_names
from cdc_lake.runtime.cut_gate import still_withheld
from cdc_lake.runtime.receive.lag import (
    Lag,
    LakeSide,
    QuarantinedRows,
    SlotStatus,
    SourceSide,
    Status,
    TableStatus,
    lags_of,
    prepared_transactions,
)
from cdc_lake.tables.control_schema import CutRow
from cdc_lake.tables.control_tables import control_tables
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.silver_table import Marker

__all__ = ["Lag", "QuarantinedRows", "SlotStatus", "Status", "TableStatus", "status"]


def status(project: Project, *, checked_at: datetime | None = None) -> Status:
    """Collect the status. An unreachable source is part of the result, not an error. Raises LakeError."""
    now = checked_at or datetime.now(UTC)
    waits = ReceiverNote(project).read()
    try:
        lake = _ask_lake(project)
    except LakeError as error:
        if waits is not None:
            error.remedy = (
                f"the receiver has waited for it since {_time(waits.since)} and continues by itself: {error.remedy}"
            )
        raise
    source = _ask_source(project, lake.domain)
    control = control_tables(project)
    quarantine, compared = quarantine_log(control), control.read("verified")
    names = sorted({*lake.captured, *source.tables})
    tables, quarantined_rows = [], []
    nameless = _nameless(project, lake, names)
    for name in names:
        target, refused = project.target(name), nameless.get(name)
        marker = Marker(None, None)
        if lake.state is not None and refused is None:  # otherwise the table may be another one's
            marker = table_log(project, target).marker(lake.state.stream)
        tables.append(_table(lake, target, marker, quarantine, compared, refused))
        quarantined_rows += _quarantined_rows(lake, target, marker, quarantine)
    return Status(
        pipeline=project.name,
        at=now,
        source=project.pipeline.source.place,
        reachable=source.error is None,
        unreachable_because=source.error.message if source.error else "",
        stream=lake.state.stream if lake.state else None,
        epoch=lake.state.epoch if lake.state else None,
        source_position=_position_text(source.end, lake.domain),
        bronze_position=_position_text(lake.state.upto if lake.state else None, lake.domain),
        silver_position=_position_text(lake.silver, lake.domain),
        last_commit=lake.last_commit,
        **lags_of(source, lake, now),
        slot=_slot(project, source, lake),
        tables=tuple(tables),
        quarantined=tuple(quarantined_rows),
        undecodable=lake.undecodable,
        receiver_waits=waits,
        withheld=still_withheld(project, control),
        wal_budget=WalNote(project).read(),
        prepared=prepared_transactions(project, lake.state),
    )


def _nameless(project: Project, lake: LakeSide, names: Sequence[TableName]) -> Mapping[TableName, LakeError]:
    """Of tables not in a cut yet, those that will fail in the next run because another table has their silver name."""
    left = {relation for relation, course in lake.courses.items() if course.waits}
    refused = refused_names(project, [name for name in names if str(name) not in left])
    return {name: error for name, error in refused.items() if str(name) not in lake.tables}


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")


def _ask_source(project: Project, domain: OrderDomain) -> SourceSide:
    try:
        with source_view(project) as view:
            end, received, slot = view.end(domain), view.received_position(), view.slot()
            try:
                tables = tuple(view.tables())
            except SourceError:
                tables = ()  # nothing matches any more: the tables are still in bronze
            return SourceSide(None, end, received, slot, tables)
    except SourceError as error:
        return SourceSide(error)


def _ask_lake(project: Project) -> LakeSide:
    reader, control = bronze_reader(project), control_tables(project)
    state = reader.state()
    if state is None:
        return LakeSide(None, copied=False, cut=None, tables={}, waiting=(), last_commit=None, captured=())
    copied = is_complete(state, control)
    cut = control.last_cut(state.stream)
    waiting = reader.commits(Span(state.epoch, cut.position, state.upto)) if cut and cut.position < state.upto else []
    if cut is None and copied:
        waiting = reader.commits(Span(state.epoch, 0, state.upto))
    captured = sorted({layout.table for layout in reader.layouts().values()})
    tables = table_states(cut.tables) if cut is not None else {}
    last = _last_commit(reader, state, waiting, cut)
    ahead = Span(state.epoch, cut.position if cut else -1, max(state.upto, cut.position if cut else -1))
    odd = waiting_undecoded(reader, ahead, state.stream)
    paused = stopped_tables(project, control)
    stayed = [tables[relation].position for relation in paused if relation in tables]
    since = min(stayed, default=0)  # the position of a copy may be after everything received
    passed = reader.commits(Span(state.epoch, since, max(since, state.upto))) if stayed else waiting
    followed = courses(control.snapshots(), state.stream)
    return LakeSide(state, copied, cut, tables, waiting, last, tuple(captured), odd, paused, passed, followed)


def _last_commit(
    reader: BronzeReader, state: StreamCheckpoint, waiting: Sequence[CommitRow], cut: CutRow | None
) -> datetime | None:
    if waiting:
        return waiting[-1].commit_ts
    if cut is not None and cut.commit_ts is not None:
        return cut.commit_ts
    highest = reader.highest_commit(state.epoch)
    if highest is None:
        return None
    commits = reader.commits(Span(state.epoch, highest - 1, highest))
    return commits[-1].commit_ts if commits else None


def _slot(project: Project, source: SourceSide, lake: LakeSide) -> SlotStatus:
    slot = source.slot
    if source.error is not None:
        return SlotStatus(project.slot, "unknown", "the source cannot be reached")
    if slot is None:
        gone = "bronze was fed from it, but it no longer exists"
        return SlotStatus(project.slot, "missing", "it is created by the first run" if lake.state is None else gone)
    if slot.lost is not None:
        state, reason = "lost", slot.lost
    elif slot.read_by is not None:
        state, reason = "active", f"read by {slot.read_by}"
    else:
        state, reason = "idle", "it has no reader, and the server retains WAL until a run reads it"
        if project.pipeline.source.mode == "polling":
            reason = "read only briefly at intervals (`mode: polling`): whether a run is active cannot be seen here"
    return SlotStatus(project.slot, state, reason, slot.retained, slot.confirmed, slot.safe, slot.counters)


def _table(
    lake: LakeSide, target: Target, marker: Marker, quarantine: Any, compared: Any, nameless: LakeError | None
) -> TableStatus:
    name = target.source
    in_cut = lake.tables.get(str(name))
    reached = [p for p in (marker.position, None if in_cut is None else in_cut.position) if p is not None]
    position = max(reached) if reached else None
    waiting = _open_rows(lake, name, quarantine, marker, position)
    state, reason = _state(lake, name, position, in_cut, waiting, exists=marker.version is not None)
    code, _, remedy = (None if in_cut is None else in_cut.error) or ("", "", "")
    if nameless is not None and state != "paused":
        code, remedy = nameless.code, nameless.remedy
        state, reason = "failed", f"{nameless.message} [{code}]"
    proven = verified_state(compared, str(name), lake.state.stream if lake.state else "", marker.generation)
    return TableStatus(
        source=str(name),
        table=target.label,
        format=target.format,
        state=state,
        reason=reason,
        position=_position_text(position, lake.domain),
        version=marker.version,
        quarantined=waiting,
        verified_through=_position_text(proven.through, lake.domain),
        verified_at=proven.verified_at,
        different_at=proven.different_at,
        code=code if state == "failed" else "",
        remedy={"failed": remedy, "quarantined": "`cdc-lake quarantine list`"}.get(state, ""),
    )


def _state(  # noqa: PLR0911  # one return a state
    lake: LakeSide, name: TableName, position: int | None, in_cut: TableState | None, quarantined: int, *, exists: bool
) -> tuple[str, str]:
    if lake.state is None:
        return "pending", "nothing has been received yet"
    if (since := lake.paused.get(str(name))) is not None:
        unapplied = [c for c in lake.passed if str(name) in c.counts and (position is None or c.position > position)]
        wait = f"{pluralize(len(unapplied), 'transaction')} {'waits' if len(unapplied) == 1 else 'wait'}"
        empty = "" if exists else "not in silver yet, "
        return "paused", f"since {_time(since)}, {empty}{wait}: `cdc-lake resume {name}`"
    if not lake.copied:
        return "snapshot", "the initial copy is in progress or was interrupted"
    if (copy_state := _copied_again(lake, str(name), in_cut)) is not None:
        return copy_state
    in_cut_state = None if in_cut is None else in_cut.state
    if in_cut_state == RESYNCING:
        return "catching-up", "its content was recreated, and it is catching up with the other tables"
    if in_cut_state == PAUSED:
        return "catching-up", "it was paused, and continues with the next run"
    if in_cut is not None and in_cut_state == FAILED:
        code, why, _ = in_cut.error or ("", "it could not continue at its last span; the next run reports why", "")
        return "failed", f"{why} [{code}]" if code else why
    unapplied = [c for c in lake.waiting if str(name) in c.counts and (position is None or c.position > position)]
    if position is None:
        return "catching-up", "received, not applied yet"
    if quarantined:
        verb = "waits" if quarantined == 1 else "wait"
        return "quarantined", f"{pluralize(quarantined, 'change')} {verb} in quarantine"
    if unapplied:
        stopped = f", stopped before {lake.undecodable[0].position}" if lake.undecodable else ""
        return "catching-up", f"{pluralize(len(unapplied), 'transaction')} to apply{stopped}"
    if lake.undecodable:
        transaction = lake.undecodable[0]
        return "catching-up", f"stopped before {transaction.position}, which could not be decoded ({transaction.code})"
    return "live", "everything received is applied"


def _copied_again(lake: LakeSide, name: str, in_cut: TableState | None) -> tuple[str, str] | None:
    """The note for a skipped or resynced table; None for others."""
    course, state = lake.courses.get(name), lake.state
    if course is None or state is None:
        return None
    if course.waits:
        position_text = _position_text(course.stretches[-1].left, lake.domain)
        why = "`source.tables` excludes the table, or the source no longer has a table of that name"
        return "left", f"not captured after {position_text}: {why}; the receiver copies it when it is there again"
    copied, newest = None if in_cut is None else in_cut.copied, course.stretches[-1]
    if newest.later and (copied is None or copied < newest.begins):
        position_text = _position_text(newest.begins, lake.domain)
        return "catching-up", f"copied at {position_text}, but silver has not taken the copy over yet"
    return None


def _open_rows(lake: LakeSide, name: TableName, quarantine: Any, marker: Marker, position: int | None) -> int:
    if lake.state is None or position is None:
        return 0
    return int(open_quarantine(quarantine, str(name), lake.state.epoch, marker.generation, position).rows.num_rows)


def _quarantined_rows(lake: LakeSide, target: Target, marker: Marker, quarantine: Any) -> list[QuarantinedRows]:
    if lake.state is None:
        return []
    rows = open_quarantine(quarantine, str(target.source), lake.state.epoch, marker.generation, lake.silver or 0).rows
    rules: Counter[str] = Counter()
    for broken in rows["rules"].to_pylist():
        rules.update(broken or ["waiting"])
    return [QuarantinedRows(target.label, rule, count) for rule, count in sorted(rules.items())]


def _position_text(position: int | None, domain: OrderDomain) -> str | None:
    return None if position is None else format_position(position, domain)
