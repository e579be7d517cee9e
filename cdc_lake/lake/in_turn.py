"""In turn: no row of a control table is recorded before those that are there, whatever the clock does.

Of many rows the newest counts: a pause, how a promise or a copy stands, a cut of one position. A clock that is set back
must not give an old one the last word. So a row that the clock puts before the last one is recorded right behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.lake.control_columns import ControlName

RECORDED: Final = "recorded_at"

BESIDE: Final[Mapping[ControlName, tuple[ControlName, ...]]] = {
    "configurations": ("streams",),
    "cuts": (),
    "decoded": (),
    "memberships": (),
    "pauses": (),
    "promises": (),
    "snapshots": (),
    "streams": ("configurations",),
    "timelines": (),
    "withheld": (),
}
"""The tables whose rows supersede each other, and those that theirs are compared with too."""


def recorded_of(files: pa.Table) -> tuple[pa.ChunkedArray, list[str]]:
    """When the newest rows of data files were recorded, by their bounds in the log; the files that have to be read."""
    column = f"max.{RECORDED}"
    if column not in files.column_names:
        return pa.chunked_array([], pa.timestamp("us", "UTC")), files["path"].to_pylist()
    told = pc.and_(ours(files), pc.is_valid(files[column]))
    times = files.filter(told)[column].cast(pa.timestamp("us", "UTC"))
    return times, files.filter(pc.invert(told))["path"].to_pylist()


def ours(files: pa.Table) -> pa.ChunkedArray:
    """Which data files are our own: deltalake may cut the bounds of those that it writes."""
    return pc.invert(pc.starts_with(files["path"], "part-"))


def behind(rows: pa.Table, last: pa.Scalar) -> pa.Table:
    """Rows that were not recorded before the last one there is; null: there is none."""
    if not last.is_valid:
        return rows
    at = rows.schema.get_field_index(RECORDED)
    field = rows.schema.field(at)
    latest = last.cast(pa.int64()).as_py()  # in microseconds
    times = rows[RECORDED].cast(pa.int64())
    times = pc.if_else(pc.less(times, latest), latest + 1, times)
    return rows.set_column(at, field, times.cast(field.type))
