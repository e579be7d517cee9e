"""Delta's per-file statistics (protocol, section Per-file Statistics) of a file's bounds."""

from __future__ import annotations

import json
from datetime import datetime

from cdc_lake.lake.bounds import Bounds


def statistics(bounds: Bounds) -> str:
    """The statistics as JSON; of no columns only the number of rows."""
    if not bounds.columns:
        return json.dumps({"numRecords": bounds.rows})
    return json.dumps(
        {
            "numRecords": bounds.rows,
            "minValues": bounds.low,
            "maxValues": bounds.high,
            "nullCount": bounds.nulls,
        },
        ensure_ascii=False,
        default=_time,
    )


def _time(value: object) -> str:
    if not isinstance(value, datetime):
        msg = f"statistics of {type(value).__name__} have no form in Delta"
        raise TypeError(msg)
    return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
