"""Releases of QHB, which is built on PostgreSQL: what one speaks, and which PostgreSQL it is read as."""

from __future__ import annotations

from typing import Final

from cdc_lake.config.release import Release

OLDEST_QHB: Final = "1.5.0"
"""First release that is read."""
_PROTOCOLS: Final[tuple[tuple[Release, int], ...]] = (((1, 5, 3), 4), ((1, 5, 2), 3), ((1, 5, 0), 2))
"""First releases that speak a version of pgoutput's protocol: QHB's manual (1.5.3), page of that protocol."""
_HAS_IT: Final = {1: 12, 2: 14, 3: 15, 4: 16}
"""PostgreSQL's own first versions of it, by which a release is read; its manual, page of that protocol."""


def protocol_of(release: Release) -> int:
    """The highest version of pgoutput's protocol that a release speaks."""
    return next((version for first, version in _PROTOCOLS if release >= first), 1)


def read_as(release: Release) -> int:
    """The major version of PostgreSQL that a release is read as."""
    return _HAS_IT[protocol_of(release)]
