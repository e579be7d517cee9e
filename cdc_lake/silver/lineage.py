"""Lineage: which row each change belongs to, where keys move, and which changes a held one keeps waiting.

Folding by key is enough while keys stay. Where an update moves a row to another key, the row's history is spread over
keys, and two rows may have had one key in turn (swaps, chains, delete and insert again). This module follows rows
through such changes, one at a time and in order; it is given only the changes that touch a moving, failing or held
key, which are few, and works on plain values.

Promises:

* A key has one row at a time, except inside a transaction: where it is checked at the end, or has a part that is NULL.
  Then a change is of the row that its whole old tuple equals, the youngest of equal ones; where digests do not tell,
  of the one that had the key first.
* A change that touches a held key is held, and holds every key it touches: silver still shows the held rows, so
  nothing may overtake them. TRUNCATE ends all holds, and a row that was read again at the source ends those of its key.
* A change that waits breaks nothing by itself: what it does not say, no row that is known could tell.
* A change that needs a row which is not there, and one that brings a second row to a key, are held by themselves.
* Where a row cannot leave its key because the change is held, a row that took that key in the same transaction is held
  too: at the end of a transaction no key has two rows.
* A decision is on one held change, and ends its hold where that still waits. What is let through is an event of its
  own, behind everything that waited. Where changes were given up, silver does not have the row of the source: the
  next change that tells all of it, or that it went, says what the key has, and any other is held. An insert says it
  only where its transaction takes no row from that key afterwards: that may be the older one.
* Of a transaction that is held as a whole every change is held; it names what it would be held for by itself.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from cdc_lake.model.decision import Place
from cdc_lake.silver.holding import NOTHING_WAITS, Holds, Waiting
from cdc_lake.silver.row_events import DISCARDED, MISSING, TAKEN, TRUNCATE, Closing, Event, Key, Traced, Unit


def trace(
    events: Iterable[Event],
    *,
    existing: frozenset[Key] = frozenset(),
    held: Waiting = NOTHING_WAITS,
    filtered: bool = False,
    holds_missing: bool = True,
    whole: Container[Unit | None] = (),
) -> tuple[list[Traced], list[Closing]]:
    """Follow events in order. `existing`: which of their keys silver has; `held`: what waits before them.

    `filtered`: the source has rows that silver does not, so a row at a key that nobody has is new to silver.
    `holds_missing`: what needs a row that is not there is held; otherwise the merge refuses it. `whole`: what is held
    as a whole; none of it truncates.
    """
    rows = _Rows(existing, filtered=filtered, holds_missing=holds_missing)
    events = list(events)
    holds = Holds(held, _decided(events))
    traced: list[Traced] = []
    closings: list[Closing] = []
    for transaction in _transactions(events):
        forced: dict[int, str | None] = {}
        while True:
            before = rows.saved(transaction)
            done, closed, after = _transaction(transaction, rows, holds, forced)
            if (clash := rows.clash(transaction)) is None:
                break
            rows.restore(before)
            forced[clash.arrival] = None if clash.key in after else TAKEN
        if transaction[0].unit in whole:
            rows.restore(before)
            done, closed, after = _as_a_whole(transaction, done, rows, holds)
        holds = after
        traced += done
        closings += closed
    return traced, closings


def crowded(events: Iterable[Event], existing: frozenset[Key]) -> frozenset[int]:
    """The positions of transactions in which a change is of one of several rows at a key: their digests tell of which.
    What is held is taken to be made.
    """
    rows, found = _Rows(existing, filtered=False, holds_missing=False), set()
    for event in events:
        if event.op == TRUNCATE:
            rows.clear()
        elif event.again:
            rows.put(event)
        elif not event.given_up:
            if event.old is not None and rows.several(event.old):
                found.add(event.position)
            rows.follow(event, move=True)
    return frozenset(found)


def _decided(events: Iterable[Event]) -> frozenset[Place]:
    return frozenset(event.decides for event in events if event.decides is not None)


def _transactions(events: Iterable[Event]) -> Iterable[list[Event]]:
    """Events that come into force together: decisions before everything else at their position, then what was read
    again.
    """
    for _, group in itertools.groupby(events, key=lambda event: (event.position, event.decides is None, event.unit)):
        yield list(group)


def _transaction(
    events: list[Event], rows: _Rows | None, held: Holds, forced: Mapping[int, str | None]
) -> tuple[list[Traced], list[Closing], Holds]:
    """One transaction with the changes in `forced` held whatever they are; what waits after it. `rows`: None where
    nobody tells them apart.
    """
    holds = held.copy()
    traced: list[Traced] = []
    closings: list[Closing] = []
    # All of them before the first is made: each of these changes kept the keys of the others.
    void = {event.ordinal for event in events if event.decides is not None and not holds.decide(event)}
    open_ended = _open_ended(events)
    for event in events:
        if event.op == TRUNCATE:
            if holds:
                closings.append(Closing(event.position, event.ordinal))
            if rows is not None:
                rows.clear()
            holds.clear()
            continue
        if event.given_up or (event.decides is not None and event.ordinal in void):
            traced.append(Traced(event.position, event.ordinal, 0, None, held=False, dropped=True))
            continue
        waits = not event.again and holds.touch(event.keys)
        if not event.failed and not waits and event.ordinal not in open_ended and _says_all(event, holds):
            ended = [key for key in event.keys if key in holds or key in holds.apart]
            closings += [Closing(event.position, event.ordinal, key) for key in ended]
            for key in ended:
                holds.close(key)
            row = _ANY if rows is None else rows.put(event)
            traced.append(Traced(event.position, event.ordinal, row.number, row.origin, held=False))
            continue
        broke = None if event.failed or waits else _broken(event, rows, holds, forced)
        is_held = event.failed or waits or broke is not None or event.ordinal in forced
        if is_held:
            holds.add(event, event.keys if event.left_to is None else event.keys | {event.left_to})
        row = _ANY if rows is None else rows.follow(event, move=not is_held)
        traced.append(Traced(event.position, event.ordinal, row.number, row.origin, is_held, waits, broke))
    return traced, closings, holds


def _open_ended(events: list[Event]) -> frozenset[int]:
    """Inserts that come to a key which a row leaves later in their transaction: whether that is theirs, only who knows
    the row before can tell.
    """
    leaving: set[tuple[int | None, Key]] = set()
    found: set[int] = set()
    for event in reversed(events):
        of = event.decides[0] if event.decides is not None else None
        if event.op == TRUNCATE:
            leaving.clear()
        elif event.old is None and event.new is not None and not event.again and (of, event.new) in leaving:
            found.add(event.ordinal)
        elif event.old is not None and event.old != event.new:
            leaving.add((of, event.old))
    return frozenset(found)


def _as_a_whole(
    events: list[Event], alone: Iterable[Traced], rows: _Rows, held: Holds
) -> tuple[list[Traced], list[Closing], Holds]:
    """One transaction of which every change is held; `alone`: what became of each, were it not."""
    holds = held.copy()
    for event in events:
        if event.decides is not None:
            holds.decide(event)
    traced: list[Traced] = []
    for event, was in zip((event for event in events if event.op != TRUNCATE), alone, strict=True):
        if was.dropped:
            traced.append(was)
            continue
        holds.add(event, event.keys)
        row = rows.follow(event, move=False)
        traced.append(replace(was, row=row.number, origin=row.origin, held=True))
    return traced, [], holds


def _says_all(event: Event, holds: Holds) -> bool:
    """Whether an event says what its key has by then, whatever was before."""
    if event.again:
        return True
    stays = event.old is None or event.new is None or event.old == event.new
    return stays and not event.partial and not holds.apart.isdisjoint(event.keys)


def _broken(event: Event, rows: _Rows | None, holds: Holds, forced: Mapping[int, str | None]) -> str | None:
    if not holds.apart.isdisjoint(event.keys):
        return DISCARDED
    if rows is not None and rows.holds_missing and event.partial and event.old is not None and not rows.has(event.old):
        return MISSING
    return forced.get(event.ordinal)


def trace_content(events: Iterable[Event], held: Waiting) -> tuple[list[Traced], list[Closing]]:
    """What waits among rows that their content alone identifies: any number of them may have one key."""
    events = list(events)
    holds = Holds(held, _decided(events))
    traced: list[Traced] = []
    closings: list[Closing] = []
    for transaction in _transactions(events):
        done, closed, holds = _transaction(transaction, None, holds, {})
        traced += done
        closings += closed
    return traced, closings


@dataclass(frozen=True, slots=True)
class _Clash:
    """Two rows at one key: the key, and the ordinal of the change that brought the younger one."""

    arrival: int
    key: Key


@dataclass(frozen=True, slots=True)
class _Row:
    """A row at a key: its number, the key silver has it under, the change that brought it here, 0: none, and the digest
    of its values with the position of the transaction that they are of, None where they are not known.

    In another transaction that digest says nothing, so the spans do not matter: there the row is the one that is none
    of the others.
    """

    number: int
    origin: Key | None
    arrival: int
    content: tuple[int, int] | None = None


_ANY: Final = _Row(0, None, 0)


@dataclass(frozen=True, slots=True)
class _Saved:
    at: dict[Key, deque[_Row]]
    touched: dict[Key, deque[_Row] | None]
    existing: frozenset[Key]
    last: int


class _Rows:
    """Which rows have which key now, oldest first."""

    def __init__(self, existing: frozenset[Key], *, filtered: bool, holds_missing: bool) -> None:
        self.holds_missing = holds_missing
        self._existing = existing
        self._filtered = filtered
        self._at: dict[Key, deque[_Row]] = {}
        self._last = 0

    def follow(self, event: Event, *, move: bool) -> _Row:
        """The row of an event; with `move` it goes where the event says."""
        old, new = event.old, event.new
        here = self._rows(old) if old is not None else deque()
        # A key nobody has is a change silver cannot know: its row gets that key as origin, and the merge refuses it.
        place = _place(here, event)
        row = here[place] if here else _Row(self._number(), None if self._filtered else old, 0)
        if not move:
            return row
        content = None if event.new_digest is None else (event.position, event.new_digest)
        if here and new == old:
            here[place] = _Row(row.number, row.origin, row.arrival, content)
            return row
        if here:
            del here[place]
        if new is not None:
            self._rows(new).append(_Row(row.number, row.origin, event.ordinal, content))
        return row

    def put(self, event: Event) -> _Row:
        """The row that a key has now, whatever it had before; it goes on where there was one."""
        key = event.new if event.new is not None else event.old
        assert key is not None, "a row that was read again has a key"
        here = self._rows(key)
        row = here[0] if here else _Row(self._number(), None, 0)
        self._at[key] = deque([] if event.new is None else [row])
        return row

    def has(self, key: Key) -> bool:
        """Whether a row has the key."""
        return bool(self._rows(key))

    def several(self, key: Key) -> bool:
        """Whether more than one row has the key."""
        return len(self._rows(key)) > 1

    def clear(self) -> None:
        """A truncate: no key has a row."""
        self._at = {}
        self._existing = frozenset()

    def saved(self, events: list[Event]) -> _Saved:
        """What a transaction may change."""
        keys = _touched(events)
        touched = {key: deque(self._at[key]) if key in self._at else None for key in keys}
        return _Saved(self._at, touched, self._existing, self._last)

    def restore(self, saved: _Saved) -> None:
        """Take a transaction back."""
        self._at, self._existing, self._last = saved.at, saved.existing, saved.last
        for key, rows in saved.touched.items():
            if rows is None:
                self._at.pop(key, None)
            else:
                self._at[key] = rows

    def clash(self, events: list[Event]) -> _Clash | None:
        """The last change that brought a second row to a key, None where every key has one at most."""
        found = [
            _Clash(rows[-1].arrival, key) for key in _touched(events) if len(rows := self._at.get(key, deque())) > 1
        ]
        return max(found, key=lambda clash: clash.arrival, default=None)

    def _rows(self, key: Key) -> deque[_Row]:
        if key not in self._at:
            self._at[key] = deque([_Row(self._number(), key, 0)] if key in self._existing else [])
        return self._at[key]

    def _number(self) -> int:
        self._last += 1
        return self._last


def _place(here: deque[_Row], event: Event) -> int:
    """Which of the rows at a key a change is of."""
    if len(here) < 2 or event.old_digest is None:
        return 0
    equal = [place for place, row in enumerate(here) if row.content == (event.position, event.old_digest)]
    return equal[-1] if equal else 0


def _touched(events: list[Event]) -> set[Key]:
    return {key for event in events for key in (event.old, event.new) if key is not None}
