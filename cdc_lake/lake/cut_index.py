"""The index of cuts: where and when each of them is, from the bounds in the table's log.

A span adds a cut, and a cut is a file: after a day of spans there are tens of thousands. A file of one row has the
row's own values as its bounds, so none of them is opened; only files that an older version or another program wrote
are.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.lake.in_turn import ours

PLACE = ("epoch", "stream", "position", "commit_ts", "recorded_at")
"""The columns of a cut that say where and when it is."""

_ORDER = [("epoch", "ascending"), ("position", "ascending"), ("recorded_at", "ascending")]


def places_of(files: pa.Table, read: Callable[[str], pa.Table]) -> pa.Table:
    """`PLACE` of every cut, and the `path` of its file, in order. `files`: data files with their bounds; `read` gives
    these columns of one.
    """
    told = _told(files)
    parts = [_bounds(files.filter(told))]
    for path in files.filter(pc.invert(told))["path"].to_pylist():
        rows = read(path)
        parts.append(rows.append_column("path", pa.array([path] * rows.num_rows, pa.string())))
    return pa.concat_tables(part.cast(_SCHEMA) for part in parts).sort_by(_ORDER)


def newest_files(files: pa.Table, stream: str | None) -> pa.Table:
    """The files that may hold the newest cut, of one stream or of all."""
    told = _told(files)
    known = files.filter(told)
    if stream is not None and known.num_rows:
        known = known.filter(pc.field("min.stream") == stream)
    if known.num_rows == 0:
        return files
    best = known.sort_by([("min.epoch", "descending"), ("min.position", "descending")]).slice(0, 1).to_pylist()[0]
    epoch, position = best["min.epoch"], best["min.position"]
    below = (pc.field("max.epoch") < epoch) | ((pc.field("max.epoch") == epoch) & (pc.field("max.position") < position))
    return files.filter(~pc.coalesce(below, pc.scalar(False)))


_TIME = pa.timestamp("us", tz="UTC")
_SCHEMA = pa.schema(
    [
        ("epoch", pa.int32()),
        ("stream", pa.string()),
        ("position", pa.int64()),
        ("commit_ts", _TIME),
        ("recorded_at", _TIME),
        ("path", pa.string()),
    ]
)


def _told(files: pa.Table) -> pa.Array:
    """Of which files the bounds are the row: our own, of one row."""
    if files.num_rows == 0 or "min.recorded_at" not in files.column_names:
        return pa.array([False] * files.num_rows, pa.bool_())
    one = pc.and_(pc.equal(files["num_records"], 1), pc.is_valid(files["min.recorded_at"]))
    return pc.fill_null(pc.and_(ours(files), one), False).combine_chunks()


def _bounds(files: pa.Table) -> pa.Table:
    if files.num_rows == 0:
        return _SCHEMA.empty_table()
    return pa.table({**{name: files[f"min.{name}"] for name in PLACE}, "path": files["path"]})
