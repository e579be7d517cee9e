"""Lineage: which row each change belongs to, where keys move, and which changes a held one keeps waiting.

Folding by key is enough while keys stay. Where an update moves a row to another key, the row's history is spread over
keys, and two rows may have had one key in turn (swaps, chains, delete and insert again). This module follows rows
through such changes, one at a time and in order; it is given only the changes that touch a moving, failing or held
key, which are few, and works on plain values.

Promises:

* A key has one row at a time, except inside a transaction with a deferred constraint: then the row that had the key
  first leaves it first.
* A change that touches a held key is held, and holds every key it touches: silver still shows the held rows, so
  nothing may overtake them. TRUNCATE ends all holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

Key: TypeAlias = tuple[str | None, ...]

TRUNCATE: Final = "T"


@dataclass(frozen=True, slots=True)
class Event:
    """One change, reduced to what moves rows: `old` is the key it leaves, `new` the key it has afterwards.

    Insert: new. Delete: old. Update: both, equal where the key stayed. Truncate (`op` T): neither.
    """

    position: int
    ordinal: int
    op: str
    old: Key | None = None
    new: Key | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Traced:
    """What became of an event: `row` numbers rows, `origin` is the key the row had in silver, None if it is new."""

    position: int
    ordinal: int
    row: int
    origin: Key | None
    held: bool


@dataclass(frozen=True, slots=True)
class Closing:
    """A truncate that ended at least one hold."""

    position: int
    ordinal: int


def trace(
    events: Iterable[Event], *, existing: frozenset[Key] = frozenset(), held: frozenset[Key] = frozenset()
) -> tuple[list[Traced], list[Closing]]:
    """Follow events in order. `existing`: which of their keys silver has; `held`: keys with open holds."""
    rows = _Rows(existing)
    holds = set(held)
    traced: list[Traced] = []
    closings: list[Closing] = []
    for event in events:
        if event.op == TRUNCATE:
            if holds:
                closings.append(Closing(event.position, event.ordinal))
            rows = _Rows(frozenset(), rows.next)
            holds = set()
            continue
        touched = {key for key in (event.old, event.new) if key is not None}
        is_held = event.failed or not holds.isdisjoint(touched)
        if is_held:
            holds |= touched
        row, origin = rows.follow(event, move=not is_held)
        traced.append(Traced(event.position, event.ordinal, row, origin, is_held))
    return traced, closings


class _Rows:
    """Which rows have which key now, oldest first."""

    def __init__(self, existing: frozenset[Key], first: int = 0) -> None:
        self._existing = existing
        self._at: dict[Key, deque[tuple[int, Key | None]]] = {}
        self.next = first

    def follow(self, event: Event, *, move: bool) -> tuple[int, Key | None]:
        """The row of an event and its origin; with `move` the row goes where the event says."""
        old, new = event.old, event.new
        here = self._rows(old) if old is not None else deque()
        # A key nobody has is a change silver cannot know: its row gets that key as origin, and the merge refuses it.
        row = here[0] if here else (self._number(), old)
        if move and here and new != old:
            here.popleft()
        if move and new is not None and (new != old or not here):
            self._rows(new).append(row)
        return row

    def _rows(self, key: Key) -> deque[tuple[int, Key | None]]:
        if key not in self._at:
            self._at[key] = deque([(self._number(), key)] if key in self._existing else [])
        return self._at[key]

    def _number(self) -> int:
        self.next += 1
        return self.next
