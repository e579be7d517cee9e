"""The primary, or a standby, among several hosts of one cluster, whatever the server and its driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from cdc_lake.errors import NoPrimary, Retry, SourceError, StandbyNeeded


class Closable(Protocol):
    """An open session."""

    def close(self) -> None:
        """End it."""
        ...


T = TypeVar("T", bound=Closable)


def find_primary(hosts: Iterable[tuple[str, Callable[[], T]]], in_recovery: Callable[[T], bool]) -> T:
    """A session on the first host that is no standby; `hosts`: the place of each, and what opens a session there.

    Raises the SourceError that fits; its message says of each host why not.
    """
    return _first(hosts, lambda session: not in_recovery(session), NoPrimary("a standby"), "primary")


def find_standby(hosts: Iterable[tuple[str, Callable[[], T]]], in_recovery: Callable[[T], bool]) -> T:
    """A session on the first host that is a standby; otherwise as `find_primary`."""
    return _first(hosts, in_recovery, StandbyNeeded("the primary"), "standby")


def _first(
    hosts: Iterable[tuple[str, Callable[[], T]]], fits: Callable[[T], bool], other: SourceError, wanted: str
) -> T:
    failed: list[tuple[str, SourceError]] = []
    for place, dial in hosts:
        session = None
        try:
            session = dial()
            if fits(session):
                return session
            failed.append((place, other))
        except SourceError as refused:
            failed.append((place, refused))
        if session is not None:
            session.close()
    raise _none_of(failed, other, wanted)


def _none_of(failed: list[tuple[str, SourceError]], other: SourceError, wanted: str) -> SourceError:
    """One error for several hosts: of the kind that waiting does not mend, if there is one."""
    errors = [error for _, error in failed]
    worst = next((error for error in errors if error.retry is Retry.NEVER and error is not other), None)
    worst = worst or next((error for error in errors if error is other), errors[0])
    said = "; ".join(f"{place}: {error.message}" for place, error in failed)
    return type(worst)(f"no {wanted} found among {len(failed)} hosts: {said}", hint=worst.remedy)
