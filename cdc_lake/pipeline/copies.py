"""Copies: which rows of bronze are a table's copy, by the control table `snapshots`.

A table may have been copied at another position than the others: what a broken copy had not finished is copied anew,
in a snapshot of its own. In force is the newest whole copy of a table: its rows stand at its position, and the table's
transactions count from there on. Rows of a copy that broke off stand at a position of their own, and are never read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from cdc_lake.bronze.contract import SNAPSHOT
from cdc_lake.bronze.port import BronzeState
from cdc_lake.lake.control import ControlTables
from cdc_lake.lake.control_rows import SnapshotRow
from cdc_lake.model.relation import TableName

COMPLETE = "complete"
STARTED = "started"


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """A table that was copied whole: how many rows and chunks, and the position that they stand at."""

    relation: TableName
    layout: int
    rows: int
    chunks: int
    position: int


def snapshot_id(epoch: int) -> str:
    """Name of the initial copy of a stream, unique in the pipeline."""
    return f"initial-{epoch}"


def told(tables: Sequence[CopiedTable]) -> str:
    """Tables as the control table has them."""
    return json.dumps([{**asdict(table), "relation": str(table.relation)} for table in tables])


def tables_of(row: SnapshotRow) -> list[CopiedTable]:
    """The tables of a copy that were copied whole; those of older versions stand at the copy's own position."""
    return [
        CopiedTable(
            TableName.parse(str(one["relation"])),
            int(one["layout"]),
            int(one["rows"]),
            int(one["chunks"]),
            int(one.get("position", row.position)),
        )
        for one in json.loads(row.tables)
    ]


def copies_in_force(rows: Iterable[SnapshotRow], stream: str) -> dict[str, CopiedTable] | None:
    """The copy of each table of a stream; None where no copy of the stream is whole. `rows`: oldest first."""
    done = [row for row in rows if row.stream == stream and row.state == COMPLETE]
    return {str(one.relation): one for row in done for one in tables_of(row)} if done else None


def beginning(control: ControlTables, state: BronzeState) -> int:
    """The position that the transactions of a stream lie behind, whose initial copy is whole."""
    return next(r.position for r in control.snapshots() if (r.stream, r.state) == (state.stream, COMPLETE))


def finished(rows: Iterable[SnapshotRow], stream: str, epoch: int) -> list[CopiedTable]:
    """The tables that a stream's initial copy has whole so far."""
    mine = [row for row in rows if (row.stream, row.epoch, row.snapshot) == (stream, epoch, snapshot_id(epoch))]
    return tables_of(mine[-1]) if mine else []


def whole_copies(rows: Iterable[SnapshotRow], table: TableName) -> dict[int, frozenset[int]]:
    """Epoch → the positions that a table was copied whole at, of epochs whose initial copy is whole."""
    out: dict[int, frozenset[int]] = {}
    for row in rows:
        if row.state == COMPLETE:
            mine = {one.position for one in tables_of(row) if one.relation == table}
            out[row.epoch] = out.get(row.epoch, frozenset()) | mine
    return out


def in_whole_copy(copies: Mapping[int, frozenset[int]], epoch: int, position: int, ordinal: int, op: str) -> bool:
    """False for a row of a copy that broke off; `copies`: as `whole_copies` of its table."""
    return op != SNAPSHOT or ordinal < 0 or epoch not in copies or position in copies[epoch]
