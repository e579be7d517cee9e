"""Rules that judge a table as a whole: how many rows it has (`row_count`), how old the newest is (`freshness`)."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.page import wording
from cdc_lake.quality.table_facts import Tally


def counted(rows: int, low: int | None, high: int | None) -> Tally:
    """Whether the number of rows lies within bounds, both inclusive."""
    fails = (low is not None and rows < low) or (high is not None and rows > high)
    return Tally(1, int(fails), wording.plural(rows, "row"))


def newest(values: pa.ChunkedArray, at: dt.datetime, age: dt.timedelta) -> Tally:
    """Whether the newest value is at most `age` old at `at`. No value at all fails; one of the future passes."""
    last = pc.max(instants(values)).as_py()
    if last is None:
        return Tally(1, 1, "no value")
    old = (at - last).total_seconds()
    seen = f"{wording.duration(old)} old" if old > 0 else "newer than the report"
    return Tally(1, int(at - last > age), seen)


def instants(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Points in time of a column: days begin at midnight, and what has no zone is UTC."""
    return values.cast(pa.timestamp("us"), safe=False).cast(pa.timestamp("us", tz="UTC"))
