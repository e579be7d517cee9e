"""Timelines: which history of its log a server is on, and up to where two histories are one.

Each promotion of a standby begins a timeline: a log that shares everything before the switch with the one it branched
off, and nothing behind it (PostgreSQL documentation, chapter "Timelines"). A position is a place in one history only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cdc_lake.errors import MalformedPosition, StreamProtocol
from cdc_lake.model.position import Lsn

_BRANCH = re.compile(r"(\d{1,10})@(\S+)")


@dataclass(frozen=True, slots=True)
class Branch:
    """Where a history left the timeline `parent`: everything up to `switch` is in it, nothing of `parent` behind."""

    parent: int
    switch: Lsn

    def __str__(self) -> str:
        return f"{self.parent}@{self.switch}"


@dataclass(frozen=True, slots=True)
class Timeline:
    """A server's timeline and the branches that led to it, oldest first; None where the server does not tell them."""

    number: int
    branches: tuple[Branch, ...] | None = ()

    @property
    def history(self) -> str | None:
        """The branches as one text, `1@0/3000148 2@0/5000060`; None where they are not known."""
        return None if self.branches is None else " ".join(map(str, self.branches))

    @classmethod
    def of(cls, number: int, history: str | None) -> Timeline:
        """Read `history` back. Raises MalformedPosition."""
        return cls(number, None if history is None else tuple(map(_branch, history.split())))

    def common_with(self, other: Timeline) -> Lsn | None:
        """The position up to which both are one history; None where that has no end. Both must tell their branches."""
        at = Lsn(0)
        for (mine, my_end), (theirs, their_end) in zip(self._parts(), other._parts(), strict=False):
            if mine != theirs:
                return at
            if my_end != their_end:
                return min(end for end in (my_end, their_end) if end is not None)
            at = my_end or at
        return None

    def _parts(self) -> list[tuple[int, Lsn | None]]:
        """The timelines in order, each with its end; None for the last, which has none yet."""
        return [*((branch.parent, branch.switch) for branch in self.branches or ()), (self.number, None)]


def parse_history(number: int, content: str) -> Timeline:
    """The timeline of a history file as `TIMELINE_HISTORY` sends it. Raises StreamProtocol."""
    found = []
    for line in content.split("\n"):  # the reason in a line is anybody's text
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            found.append(Branch(int(words[0]), Lsn.parse(words[1])))
        except (ValueError, IndexError, MalformedPosition) as bad:
            raise StreamProtocol(f"the history of timeline {number} has a line that is none") from bad
    return Timeline(number, tuple(found))


def _branch(text: str) -> Branch:
    if (found := _BRANCH.fullmatch(text)) is None:
        raise MalformedPosition(text)
    return Branch(int(found[1]), Lsn.parse(found[2]))
