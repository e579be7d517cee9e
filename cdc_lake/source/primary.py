"""The primary among several hosts of one cluster, whatever the server and its driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from cdc_lake.errors import NoPrimary, Retry, SourceError


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
    failed: list[tuple[str, SourceError]] = []
    for place, dial in hosts:
        session = None
        try:
            session = dial()
            if not in_recovery(session):
                return session
            failed.append((place, NoPrimary("a standby", where=place)))
        except SourceError as refused:
            failed.append((place, refused))
        if session is not None:
            session.close()
    raise _none_of(failed)


def _none_of(failed: list[tuple[str, SourceError]]) -> SourceError:
    """One error for several hosts: of the kind that waiting does not mend, if there is one."""
    errors = [error for _, error in failed]
    worst = next((error for error in errors if error.retry is Retry.NEVER), None)
    worst = worst or next((error for error in errors if isinstance(error, NoPrimary)), errors[0])
    said = "; ".join(f"{place}: {error.message}" for place, error in failed)
    return type(worst)(f"no primary found among {len(failed)} hosts: {said}", hint=worst.remedy)
