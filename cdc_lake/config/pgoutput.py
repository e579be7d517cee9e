"""Versions of pgoutput's protocol, and the first PostgreSQL that speaks each.

PostgreSQL's documentation, "Logical Streaming Replication Parameters": version 2 streams transactions that are under
way, version 3 knows two-phase, version 4 tells where a stream was rolled back, for those who apply in parallel.
"""

from __future__ import annotations

from typing import Final

STREAMS: Final = 2
TWO_PHASE: Final = 3
PARALLEL: Final = 4
ORIGINS: Final = 16
"""First PostgreSQL that tells origins apart."""

FIRST_WITH: Final = {STREAMS: 14, TWO_PHASE: 15, PARALLEL: 16}
"""First PostgreSQL that speaks a version."""


def newest_protocol(major: int) -> int:
    """The highest version that a PostgreSQL speaks."""
    return max((version for version, first in FIRST_WITH.items() if major >= first), default=1)
