"""Gaps: CSNs that were passed over, kept where the next start finds them, and what came of them too late.

A gap is recorded before anything above it is landed, so that none is forgotten; where the receiver died in between and
its transactions came in time after all, bronze holds them, and they are no gap.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze.batch_rows import BatchRows
from cdc_lake.bronze.port import BronzeState, Tabulate
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.decode.digest import GENESIS
from cdc_lake.decode.raw import Raw
from cdc_lake.lake.control import ControlTables
from cdc_lake.lake.control_rows import GapRow, now
from cdc_lake.lake.disk import write_rows
from cdc_lake.model.span import Span
from cdc_lake.pipeline.stream.order import Gap


def record_gap(control: ControlTables, state: BronzeState, gap: Gap) -> None:
    """Add a gap of the stream to the control table `gaps`. Raises ControlNotWritten."""
    control.record(GapRow(state.epoch, state.stream, gap.first, gap.last, gap.below, gap.above, now()))


def recorded_gaps(control: ControlTables, bronze: BronzeReader, state: BronzeState) -> list[Gap]:
    """The gaps that bronze has passed over, ascending, none overlapping. Raises LakeError."""
    rows = control.read("gaps", (pc.field("stream") == state.stream) & (pc.field("epoch") == state.epoch)).to_pylist()
    missing: list[Gap] = []
    for row in sorted(rows, key=lambda row: (row["first"], row["last"])):
        first = max(row["first"], missing[-1].last + 1 if missing else row["first"])
        last = min(row["last"], state.upto)
        if first > last:
            continue
        landed = [commit.position for commit in bronze.commits(Span(state.epoch, first - 1, last))]
        for position in [*landed, last + 1]:
            if first < position:
                missing.append(Gap(first, position - 1, row["below"], row["above"]))
            first = position + 1
    return missing


def keep_late(folder: Path, state: BronzeState, transaction: Raw, tabulate: Tabulate) -> Path:
    """Write a late transaction beside the control tables as bronze rows, in Parquet and durably; the file."""
    rows = BatchRows([transaction], tabulate, replace(state, head=GENESIS), time.time_ns() // 1000)
    path = folder / "late" / f"{state.epoch}-{transaction.bounds.position}.parquet"
    write_rows(pa.concat_tables(rows.each(lambda table: [table])), path)
    return path
