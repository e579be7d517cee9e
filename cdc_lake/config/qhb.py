"""Releases of QHB, which is built on PostgreSQL: what one speaks, and which PostgreSQL it is read as."""

from __future__ import annotations

from typing import Final

from cdc_lake.config.pgoutput import FIRST_WITH
from cdc_lake.config.release import Release

OLDEST_QHB: Final = "1.5.0"
"""First release that is read."""
_PROTOCOLS: Final[tuple[tuple[Release, int], ...]] = (((1, 5, 3), 4), ((1, 5, 2), 3), ((1, 5, 0), 2))
"""First releases that speak a version of pgoutput's protocol: QHB's manual (1.5.3), page of that protocol."""
_BUILT_ON: Final = 12
"""PostgreSQL that releases before them come from."""


def protocol_of(release: Release) -> int:
    """The highest version of pgoutput's protocol that a release speaks."""
    return next((version for first, version in _PROTOCOLS if release >= first), 1)


def read_as(release: Release) -> int:
    """The major version of PostgreSQL that a release is read as: the first that speaks its protocol."""
    return FIRST_WITH.get(protocol_of(release), _BUILT_ON)
