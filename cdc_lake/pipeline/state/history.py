"""History: the control tables as Arrow, for who asks what was. Without Spark, wherever the tables are."""

from __future__ import annotations

from datetime import datetime
from functools import reduce
from operator import and_
from typing import Final, get_args

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.config.project import Project
from cdc_lake.errors import LakeError
from cdc_lake.lake.control import control_tables
from cdc_lake.lake.control_columns import ControlName, schema_of
from cdc_lake.source.stream import shown

SHOWN: Final = "shown"
"""The column that says a row's `position` as people paste it."""

_TIMES: Final = ("recorded_at", "started_at", "judged_at", "compared_at")


def read_history(
    project: Project,
    table: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int | None = None,
) -> pa.Table:
    """Rows of a control table, oldest first; of those written from `since` on and before `until` the newest `limit`.

    The columns are those of its page, and `shown` where it has a stream and a position. Raises LakeError for a table
    that there is none of, and for a time without zone.
    """
    names = get_args(ControlName)
    name: ControlName | None = next((one for one in names if one == table), None)
    if name is None:
        raise LakeError(f"there is no control table `{table}`", hint=f"one of: {', '.join(names)}")
    when = time_of(name)
    wanted = [pc.field(when) >= _zoned(since)] if since is not None else []
    wanted += [pc.field(when) < _zoned(until)] if until is not None else []
    rows = control_tables(project).read(name, reduce(and_, wanted) if wanted else None).sort_by(when)
    if limit is not None:
        rows = rows.slice(max(rows.num_rows - limit, 0))
    return _with_shown(rows)


def time_of(name: ControlName) -> str:
    """The column by which a control table is in order."""
    columns = schema_of(name).names
    return next(one for one in _TIMES if one in columns)


def _zoned(time: datetime) -> datetime:
    if time.tzinfo is None:
        raise LakeError(f"the time {time.isoformat()} has no zone", hint="give it one, as `datetime.now(UTC)` has")
    return time


def _with_shown(rows: pa.Table) -> pa.Table:
    if not {"stream", "position"} <= set(rows.column_names):
        return rows
    pairs = zip(rows["stream"].to_pylist(), rows["position"].to_pylist(), strict=True)
    texts = [None if stream is None or position is None else shown(stream, position) for stream, position in pairs]
    return rows.append_column(SHOWN, pa.array(texts, pa.string()))
