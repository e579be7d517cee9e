"""Truncates of one table, as what applies a span knows them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Truncated:
    """A truncate of a table: its place, and what bronze's row says of its transaction."""

    position: int
    ordinal: int
    csn: int | None
    lsn: int | None
    xid: int | None
    commit_ts: datetime | None
