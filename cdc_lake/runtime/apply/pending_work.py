"""Determines without Spark whether silver has anything left to apply: from bronze, control tables and table commits.

Starting Spark is usually slower than this check. `settle_without_spark` does what a run of apply would do if there is
nothing to merge, or says that Spark is needed. If it is not sure, Spark is needed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.config.project import Project
from cdc_lake.control.coordination import apply_lease
from cdc_lake.control.cuts import ACTIVE, PAUSED, Cut, TableState, last_cut
from cdc_lake.control.quarantine import QuarantineLog, quarantine_log
from cdc_lake.control.snapshots import courses, refetched_tables
from cdc_lake.control.table_pauses import apply_pause_state, stopped_tables
from cdc_lake.errors import CdcLakeError
from cdc_lake.model.position import Span
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.runtime.apply import table_integrity
from cdc_lake.runtime.apply.merge import ApplyTotals
from cdc_lake.runtime.cut_retention import JudgingClock, Keeper
from cdc_lake.source.base import format_stream_position
from cdc_lake.tables.control_schema import new_run
from cdc_lake.tables.control_tables import ControlTables, control_tables
from cdc_lake.tables.open_silver_table import table_log


def has_pending_work(project: Project, goal: int | None = None) -> bool:
    """Return True unless silver is certainly at `goal` or the end of bronze, and nobody else changed it.

    Unreadable state counts as work: apply then reports the error.
    """
    try:
        return _load_standing(project, goal) is None
    except CdcLakeError:
        return True


def settle_without_spark(project: Project, goal: int | None, report: ProgressReporter) -> ApplyTotals | None:
    """Do what a run of apply does if there is nothing to merge; None if Spark is needed.

    Args:
        project: The pipeline.
        goal: Position that silver is to reach; None for the end of bronze.
        report: Receives progress events, for example about paused tables.

    Raises:
        AnotherApply: Another process applies.
        LakeError: The control tables cannot be read or written.
    """
    began, since = datetime.now(UTC), time.monotonic()
    with apply_lease(project):
        try:
            standing = _load_standing(project, goal)
        except CdcLakeError:
            return None
        if standing is None:
            return None
        if standing.stream is None:
            return ApplyTotals()
        control = control_tables(project)
        if not _pins_enforced(project, control, report):
            return None
        JudgingClock(project, control, report).tick(standing.stream)
        paused = {table.table: table for table in standing.tables.values() if table.state == PAUSED}
        for label, table in sorted(paused.items()):
            position = format_stream_position(standing.stream, table.position)
            facts = {"table": label, "position": position}
            report(ProgressEvent("paused", f"{label} is paused: it stays at {position}", facts=facts))
        upto = standing.position
        totals = ApplyTotals(new_run(), standing.stream, upto, top=upto, paused=frozenset(paused))
        control.record(totals.run_row(began, datetime.now(UTC), "done", time.monotonic() - since))
        return totals


@dataclass(frozen=True, slots=True)
class _Standing:
    """Position and tables of the last cut, with pauses applied, if nothing is left to apply. `stream`: None if bronze
    has none yet.
    """

    stream: str | None
    position: int | None
    tables: Mapping[str, TableState]


def _load_standing(project: Project, goal: int | None) -> _Standing | None:
    """Where silver is; None if anything is left to apply. Raises CdcLakeError."""
    bronze, control = bronze_reader(project), control_tables(project)
    if (state := bronze.proven()) is None:
        return _Standing(None, None, {})
    if (cut := last_cut(control, state.stream)) is None:
        return None
    tables = apply_pause_state(project, cut.tables, stopped_tables(project, control), cut.position)
    work = _has_work(project, bronze, control, state, Cut(cut.position, tables), goal)
    return None if work else _Standing(state.stream, cut.position, tables)


def _has_work(
    project: Project, bronze: BronzeReader, control: ControlTables, state: StreamCheckpoint, cut: Cut, goal: int | None
) -> bool:
    """`cut`: the last one, with pauses applied."""
    tables = cut.tables
    position, snapshots, quarantine = cut.position, control.snapshots(), quarantine_log(control)
    ahead = Span(state.epoch, position, max(position, state.upto if goal is None else min(goal, state.upto)))
    followed = courses(snapshots, state.stream)
    for name, course in followed.items():
        listed = tables.get(name)
        if listed is not None and not course.follows(position):
            return True
        if any(position < interval.begins <= ahead.upto for interval in course.stretches if interval.later):
            return True
        paused = listed is not None and listed.state == PAUSED
        if not paused and course.renewal(position, None if listed is None else listed.copied) is not None:
            return True
    return (
        refetched_tables(snapshots, state.stream, ahead) != frozenset()
        or bool(quarantine.decided_tables(ahead))
        or next(iter(bronze.commits_in_turn(ahead)), None) is not None
        or any(not _is_settled(project, state, quarantine, relation, table) for relation, table in tables.items())
    )


def _is_settled(
    project: Project, state: StreamCheckpoint, quarantine: QuarantineLog, relation: str, table: TableState
) -> bool:
    """Whether a table is as in the last cut, and nobody else changed it since."""
    if table.state != ACTIVE or table.version is None:
        return table.state in {ACTIVE, PAUSED}
    target = project.target(TableName.parse(relation))
    if table_integrity.is_untouched(project, target, state, table, quarantine):
        return True
    committed = table_log(project, target).marker(state.stream)  # maintenance may have committed; it changes no rows
    lost = table_integrity.missing_quarantine_rows(quarantine, target, state.epoch, table)
    violation = lost or table_integrity.find_violation(project, target, state.stream, table, committed)
    in_sync = table_integrity.reconcile(table, committed, violation, table.position) == table_integrity.InSync()
    return in_sync and committed.generation == table.generation


def _pins_enforced(project: Project, control: ControlTables, report: ProgressReporter) -> bool:
    """Set the tags of Iceberg tables that pins need; False if a Delta table's retention must change too."""
    statements: list[str] = []
    Keeper(project, control, lambda _, statement: statements.append(statement), report).keep()
    return not statements
