"""Silver's rows as texts, as a PostgreSQL server prints the values."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import pyarrow as pa

from cdc_lake.config.project import Project, Target
from cdc_lake.tables.open_silver_table import table_log

Texts = dict[str, str | None]


def silver_rows(project: Project, target: Target) -> list[Texts]:
    """All rows of a silver table; none where it was never merged into."""
    if table_log(project, target).marker("test").version is None:
        return []
    return as_texts(table_log(project, target).read())


def as_texts(rows: pa.Table) -> list[Texts]:
    """Rows by column."""
    return [{name: _text(value) for name, value in row.items()} for row in rows.to_pylist()]


def _text(value: Any) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return "t" if value else "f"
        case float():
            return "NaN" if math.isnan(value) else repr(value).replace("inf", "Infinity")
        case bytes():
            return "\\x" + value.hex()
        case dt.datetime():
            seconds = value.replace(tzinfo=None).isoformat(" ")
            seconds = seconds.rstrip("0") if value.microsecond else seconds
            return seconds if value.tzinfo is None else f"{seconds}+00"
        case _:
            return str(value)
