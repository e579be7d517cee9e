"""Resync: copies tables from the source again while the stream continues, so that silver equals the source.

The copy goes into bronze beside the stream, at an exact position (`runtime.receive.stream_setup`); the current or the
next run merges it into silver once it is complete (`runtime.apply.resync_swap`). The other tables are not affected.
"""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.config.project import Project
from cdc_lake.connectors.factory import source_view
from cdc_lake.control.streams import is_complete, source_table
from cdc_lake.errors import NoStream, PastTrimmed, SnapshotIncomplete, TableNotKnown
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import ProgressReporter, silent
from cdc_lake.runtime.apply.span_planning import check_own_past
from cdc_lake.runtime.receive.stream_setup import recopy
from cdc_lake.source.base import format_stream_position
from cdc_lake.tables.control_schema import RunRow, new_run
from cdc_lake.tables.control_tables import control_tables


@dataclass(frozen=True, slots=True)
class ResyncedTable:
    """A table of a resync. `rows`: number copied, None if nothing was; `remembers`: silver keeps its history."""

    source: str
    table: str
    kind: str
    remembers: bool
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Resynced:
    """The result of a resync. `position`: that of the copies, None if nothing was copied."""

    pipeline: str
    position: str | None
    tables: tuple[ResyncedTable, ...]
    seconds: float


def resync(
    project: Project,
    tables: Sequence[str],
    *,
    dry_run: bool = False,
    stop: threading.Event | None = None,
    report: ProgressReporter = silent,
) -> Resynced:
    """Copy tables again, given by their source names. `dry_run`: only list them.

    Raises NoStream, SnapshotIncomplete, TableNotKnown, PastTrimmed, AnotherCopy, CopyUnplaced, SourceError, LakeError;
    Stopped if `stop` was set.
    """
    began, started_at, control = time.monotonic(), datetime.now(UTC), control_tables(project)
    reader = bronze_reader(project)
    state = reader.state()
    if state is None:
        raise NoStream("bronze contains no stream yet: the first `cdc-lake run` copies every table", where=reader.place)
    if not is_complete(state, control):
        raise SnapshotIncomplete("the initial copy is not finished: the next `cdc-lake run` continues it")
    names = [*dict.fromkeys(map(source_table, tables))]
    _check_carried(project, names)
    chosen = tuple(_table(project, reader, state, name) for name in names)
    if dry_run:
        return Resynced(project.name, None, chosen, round(time.monotonic() - began, 3))
    copied = recopy(project, state, names, control, stop or threading.Event(), report)
    rows = {str(table.relation): table.rows for table in copied}
    result = Resynced(
        pipeline=project.name,
        position=format_stream_position(state.stream, copied[0].position),
        tables=tuple(dataclasses.replace(table, rows=rows[table.source]) for table in chosen),
        seconds=round(time.monotonic() - began, 3),
    )
    facts = json.dumps(dataclasses.asdict(result))
    control.record(RunRow(new_run(), "resync", started_at, datetime.now(UTC), "done", facts))
    return result


def _check_carried(project: Project, names: Sequence[TableName]) -> None:
    with source_view(project) as source:
        carried = source.tables()
    if missing := sorted(set(names) - set(carried)):
        listed = ", ".join(map(str, carried))
        raise TableNotKnown(f"the stream does not contain {', '.join(map(str, missing))}; it contains {listed}")


def _table(project: Project, reader: BronzeReader, state: StreamCheckpoint, name: TableName) -> ResyncedTable:
    target = project.target(name)
    keeps = target.keeps_past
    check_own_past(target, control_tables(project), state, reader)
    if keeps and (left := reader.last_trimmed().get(state.epoch)) is not None:
        begins = f"bronze begins after {format_stream_position(state.stream, left[0])}"
        raise PastTrimmed(f"{begins}, and {target.label} is rebuilt starting with its first copy", where=reader.place)
    return ResyncedTable(str(name), target.label, target.kind, keeps)
