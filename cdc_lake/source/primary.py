"""The primary, or a standby, among several hosts of one cluster, whatever the server and its driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Protocol, TypeVar

from cdc_lake.errors import NoPrimary, Retry, SeveralPrimaries, SourceError, StandbyNeeded


class Closable(Protocol):
    """An open session."""

    def close(self) -> None:
        """End it."""
        ...


T = TypeVar("T", bound=Closable)


def find_primary(
    hosts: Iterable[tuple[str, Callable[[], T]]], in_recovery: Callable[[T], bool], who: Callable[[T], object] | None
) -> T:
    """A session on the one host that is no standby; `hosts`: the place of each, and what opens a session there.

    `who` tells servers apart, of which two names may be one; None: any of them will do, as with coordinators.
    Raises the SourceError that fits, whose message says of each host why not; SeveralPrimaries.
    """
    left = iter(hosts)
    place, session = _first(left, lambda session: not in_recovery(session), NoPrimary("a standby"), "primary")
    if who is None:
        return session
    with ExitStack() as opened:
        opened.callback(session.close)
        more = [other for other, dial in left if _is_another(dial, in_recovery, who, who(session))]
        if not more:
            opened.pop_all()
            return session
    raise SeveralPrimaries(f"{' and '.join([place, *more])} are all primaries")


def _is_another(
    dial: Callable[[], T], in_recovery: Callable[[T], bool], who: Callable[[T], object], known: object
) -> bool:
    """Whether a host is a primary too; one that cannot be asked is none that applications write to from here."""
    try:
        session = dial()
    except SourceError:
        return False
    try:
        return not in_recovery(session) and who(session) != known
    except SourceError:
        return False
    finally:
        session.close()


def find_standby(hosts: Iterable[tuple[str, Callable[[], T]]], in_recovery: Callable[[T], bool]) -> T:
    """A session on the first host that is a standby; otherwise as `find_primary`."""
    return _first(hosts, in_recovery, StandbyNeeded("the primary"), "standby")[1]


def _first(
    hosts: Iterable[tuple[str, Callable[[], T]]], fits: Callable[[T], bool], other: SourceError, wanted: str
) -> tuple[str, T]:
    failed: list[tuple[str, SourceError]] = []
    for place, dial in hosts:
        session = None
        try:
            session = dial()
            if fits(session):
                return place, session
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
