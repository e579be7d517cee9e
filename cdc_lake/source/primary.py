"""Finds the primary, or a standby, among several hosts of one cluster, and compares their timelines.

Each promotion of a standby begins a timeline: a history that shares with its parent everything before the switch and
nothing after it (PostgreSQL documentation, chapter "Timelines"). A position is valid in one history only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Protocol, TypeVar

from cdc_lake import errors
from cdc_lake.model.position import Lsn


class Closable(Protocol):
    """An open session."""

    def close(self) -> None:
        """End it."""


T = TypeVar("T", bound=Closable)


def find_primary(
    hosts: Iterable[tuple[str, Callable[[], T]]], in_recovery: Callable[[T], bool], who: Callable[[T], object] | None
) -> T:
    """A session on the only host that is not a standby; `hosts`: the address of each, and a function that opens a
    session.

    `who` identifies a server, which may have two names; None: any of them will do, as with coordinators. Raises the
    SourceError that fits, with the reason of each host; SeveralPrimaries.
    """
    left = iter(hosts)
    place, session = _first(left, lambda session: not in_recovery(session), errors.NoPrimary("a standby"), "primary")
    if who is None:
        return session
    with ExitStack() as opened:
        opened.callback(session.close)
        more = [other for other, dial in left if _is_another(dial, in_recovery, who, who(session))]
        if not more:
            opened.pop_all()
            return session
    raise errors.SeveralPrimaries(f"{' and '.join([place, *more])} are all primaries")


def _is_another(
    dial: Callable[[], T], in_recovery: Callable[[T], bool], who: Callable[[T], object], primary_id: object
) -> bool:
    """Whether a host is another primary; an unreachable one cannot be written to from here either."""
    try:
        with closing(dial()) as session:
            return not in_recovery(session) and who(session) != primary_id
    except errors.SourceError:
        return False


def find_standby(hosts: Iterable[tuple[str, Callable[[], T]]], in_recovery: Callable[[T], bool]) -> T:
    """A session on the first standby among the hosts; otherwise as `find_primary`."""
    return _first(hosts, in_recovery, errors.StandbyNeeded("the primary"), "standby")[1]


def _first(
    hosts: Iterable[tuple[str, Callable[[], T]]], fits: Callable[[T], bool], other: errors.SourceError, wanted: str
) -> tuple[str, T]:
    failed: list[tuple[str, errors.SourceError]] = []
    for place, dial in hosts:
        session = None
        try:
            session = dial()
            if fits(session):
                return place, session
            failed.append((place, other))
        except errors.SourceError as refused:
            failed.append((place, refused))
        if session is not None:
            session.close()
    failures = [error for _, error in failed]  # one is raised for all: a permanent one, if there is one
    worst = next((error for error in failures if error.retry is errors.Retry.NEVER and error is not other), None)
    worst = worst or next((error for error in failures if error is other), failures[0])
    reasons = "; ".join(f"{place}: {error.message}" for place, error in failed)
    raise type(worst)(f"no {wanted} found among {len(failed)} hosts: {reasons}", hint=worst.remedy)


_BRANCH = re.compile(r"(\d{1,10})@(\S+)")


@dataclass(frozen=True, slots=True)
class Branch:
    """Where a history left the timeline `parent`: it contains `parent` up to `switch`, and nothing after it."""

    parent: int
    switch: Lsn

    def __str__(self) -> str:
        return f"{self.parent}@{self.switch}"


@dataclass(frozen=True, slots=True)
class Timeline:
    """A server's timeline and the branches that led to it, oldest first; None if the server does not report them."""

    number: int
    branches: tuple[Branch, ...] | None = ()

    @property
    def history(self) -> str | None:
        """The branches as one text, `1@0/3000148 2@0/5000060`; None if unknown."""
        return None if self.branches is None else " ".join(map(str, self.branches))

    @classmethod
    def from_history(cls, number: int, history: str | None) -> Timeline:
        """Parse `history`. Raises MalformedPosition."""
        return cls(number, None if history is None else tuple(map(_branch, history.split())))

    def common_with(self, other: Timeline) -> Lsn | None:
        """The position up to which both share a history; None if it has no end. Both must have their branches."""
        position = Lsn(0)
        for (own_number, my_end), (theirs, their_end) in zip(self._parts(), other._parts(), strict=False):
            if own_number != theirs:
                return position
            if my_end != their_end:
                return min(end for end in (my_end, their_end) if end is not None)
            position = my_end or position
        return None

    def _parts(self) -> list[tuple[int, Lsn | None]]:
        """The timelines in order, each with its end; None for the last."""
        return [*((branch.parent, branch.switch) for branch in self.branches or ()), (self.number, None)]


def parse_history(number: int, content: str) -> Timeline:
    """Parse a history file sent by `TIMELINE_HISTORY`. Raises StreamProtocol."""
    branches = []
    for line in content.split("\n"):  # the reason in a line is arbitrary text
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            branches.append(Branch(int(words[0]), Lsn.parse(words[1])))
        except (ValueError, IndexError, errors.MalformedPosition) as bad:
            raise errors.StreamProtocol(f"the history of timeline {number} has an invalid line") from bad
    return Timeline(number, tuple(branches))


def _branch(text: str) -> Branch:
    if (match := _BRANCH.fullmatch(text)) is None:
        raise errors.MalformedPosition(text)
    return Branch(int(match[1]), Lsn.parse(match[2]))
