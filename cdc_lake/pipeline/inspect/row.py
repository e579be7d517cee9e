"""The row of one key, wherever it is: its changes in bronze, what they come to, what of them is held, and silver's row.

Shows row values because that is what was asked for; nothing here is logged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze.contract import DELETE, INSERT, TRUNCATE
from cdc_lake.bronze.history import RowEvent
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.config.project import Project
from cdc_lake.errors import LakeError, StateError
from cdc_lake.lake.canonical import from_silver, from_source
from cdc_lake.lake.control import control_tables
from cdc_lake.model.as_of import Latest
from cdc_lake.model.relation import TableName
from cdc_lake.model.rows_by_key import RowsByKey
from cdc_lake.pipeline.held.listing import HeldChange, held_list
from cdc_lake.pipeline.inspect.bronze import RowView, inspect_row
from cdc_lake.pipeline.state.reading import open_session
from cdc_lake.pipeline.target.layout_changes import silver_names_of
from cdc_lake.source.stream import shown

Values: TypeAlias = dict[str, str | None]
"""Column → text as the server prints it; columns of which nothing is known are left out."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """What one change made of the row it was about; None: there was no row, or there is none any more."""

    before: Values | None
    after: Values | None


@dataclass(frozen=True, slots=True)
class SilverRows:
    """What silver has of the key at the last cut. `position`: the table's own there; `reason`: why `rows` could not be
    looked at, empty where they were. More than one row: versions or changes, where the table keeps them.
    """

    table: str
    position: str
    state: str
    rows: tuple[Values, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RowEverywhere:
    """`events` are the changes of the rows that ever had the key and `changes` what each made of its row; `net`: the
    row of the key at the end of bronze, None where there is none; `silver`: None where no cut lists the table yet.
    """

    table: str
    key: dict[str, str]
    events: tuple[RowEvent, ...]
    changes: tuple[RowChange, ...]
    net: Values | None
    held: tuple[HeldChange, ...]
    silver: SilverRows | None


def row_everywhere(project: Project, reader: BronzeReader, table: TableName, key: Mapping[str, str]) -> RowEverywhere:
    """Everything about the row of a key (column name → text). Raises NotInBronze, LakeError."""
    found = inspect_row(reader, table, key, control_tables(project).snapshots())
    rows: RowsByKey[Values] = RowsByKey()
    changes = tuple(_changes(found, rows))
    values = tuple(key.values())
    held = tuple(one for one in held_list(project).changes if one.source == str(table) and one.key == values)
    silver = _silver(project, reader, table, key)
    return RowEverywhere(found.table, found.key, found.events, changes, rows.last(values), held, silver)


def _changes(found: RowView, rows: RowsByKey[Values]) -> Iterator[RowChange]:
    """Follow rows from key to key; `rows` has them by key at the end. Another stream begins with none."""
    epoch = None
    for event in found.events:
        if event.epoch != epoch:
            rows.clear()
            epoch = event.epoch
        if event.op == TRUNCATE or event.key is None:
            before = next(iter(rows), None)
            rows.clear()
            yield RowChange(before, None)
            continue
        after = tuple(event.key.values())
        left = None if event.op == INSERT else _key_before(event, tuple(event.key)) or after
        old = event.old if event.old_kind == "full" else None
        known = None if left is None else rows.row_of(left, old)
        if event.op == DELETE or event.new is None:
            rows.move(left, None, None, old)
            yield RowChange(known or event.old, None)
            continue
        new = {
            name: known[name] if name in event.unchanged and known else value
            for name, value in event.new.items()
            if name not in event.unchanged or (known is not None and name in known)
        }
        rows.move(left, after, new, old)
        yield RowChange(known, new)


def _key_before(event: RowEvent, columns: Sequence[str]) -> tuple[str | None, ...] | None:
    if event.old is None or not set(columns) <= event.old.keys():
        return None
    return tuple(event.old[name] for name in columns)


def _silver(project: Project, reader: BronzeReader, table: TableName, key: Mapping[str, str]) -> SilverRows | None:
    """The rows of the key as of the last cut."""
    try:
        session = open_session(project, Latest(), None, allow_behind=True)
    except StateError:
        return None  # there is no cut yet
    listed = session.tables.get(str(table))
    if listed is None:
        return None
    there = SilverRows(listed.table, shown(session.cut.stream, listed.position), listed.state)
    names: dict[str, str] = {}
    for layout in reader.layouts([table]).values():
        names |= silver_names_of(layout, project.target(table))
    if unknown := [name for name in key if name not in names]:
        return replace(there, reason=f"silver does not have {', '.join(unknown)}")
    try:
        rows = session.read(str(table))
    except LakeError as error:
        return replace(there, reason=error.message)
    for name, text in key.items():
        column = rows[names[name]]
        rows = rows.filter(pc.equal(from_silver(column), from_source(pa.array([text]), column.type)[0]))
    return replace(there, rows=tuple(pa.table({n: _text(rows[n]) for n in rows.column_names}).to_pylist()))


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """As the server prints it; a float as Arrow does: its canonical form is its bits."""
    return pc.cast(column, pa.large_string()) if pa.types.is_floating(column.type) else from_silver(column)
