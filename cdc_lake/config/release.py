"""Release numbers of servers, as far as rules compare them: `6.0.2`, `505.2`."""

from __future__ import annotations

import re
from typing import TypeAlias

Release: TypeAlias = tuple[int, int, int]
"""Three numbers; what a text does not say is 0. GaussDB's numbers are of another line than openGauss's and MogDB's."""


def parse_release(text: str) -> Release:
    """The numbers a release begins with; raises ValueError where it begins with none."""
    found = re.match(r"([0-9]+)(?:\.([0-9]+))?(?:\.([0-9]+))?", text)
    if found is None:
        msg = f"`{text}` is no release: expected numbers with dots"
        raise ValueError(msg)
    return int(found[1]), int(found[2] or 0), int(found[3] or 0)


def pad_release(numbers: tuple[int, ...]) -> Release:
    """Three numbers of however many there are: a shorter tuple would sort before its own release."""
    first, second, third = (*numbers, 0, 0, 0)[:3]
    return first, second, third


def show_release(release: Release) -> str:
    """The release as people write it."""
    return ".".join(map(str, release))
