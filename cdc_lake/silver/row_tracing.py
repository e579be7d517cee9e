"""Traces rows whose keys move: which row each change belongs to, and which changes a held one blocks.

Folding by key is enough while keys stay. If an update moves a row to another key, the row's history is spread over
keys, and several rows may have had one key in turn (swaps, chains, delete and insert again). This module follows rows
through such changes, one at a time and in order. It gets only the few changes that touch a moving, failing or
quarantined key, without other values, and works on plain Python values.

Guarantees:

* A key has one row at a time, except inside a transaction: if it is checked at the end, or has a NULL part. Then a
  change belongs to the row that its whole old tuple equals, the youngest of equal ones; if digests do not decide, to
  the one that had the key first.
* A change that touches a quarantined key is held, and holds every key it touches: silver still shows the quarantined
  rows, so nothing may overtake them. TRUNCATE ends all holds, and a row that was read again at the source ends those of
  its key.
* A queued change violates nothing itself: the values it omits are unknown.
* A change that needs a missing row, and one that brings a second row to a key, are held by themselves.
* If a row cannot leave its key because the change is held, a row that took that key in the same transaction is held
  too: at the end of a transaction no key has two rows.
* A decision concerns one quarantined change, and ends its hold if it is still held. A released change is an event of
  its own, after everything that was held. After a discard, silver does not have the row of the source: the next change
  that contains all of it, or deletes it, determines what the key has, and any other is held. An insert does so only if
  its transaction removes no row from that key afterwards: that may be the older one.
* Every change of a transaction that is held as a whole is held; each names its own reason, if any.

In a group of tables, a transaction is held if one of its changes is held by itself, or touches a quarantined key; then
every key that it touches in the group's tables is held. Transactions are processed once, in order. A TRUNCATE ends the
holds of its table before its own transaction is evaluated: what the transaction did to the table before does not count.
Rows that were read again belong to no transaction: each ends the holds of its key, or is held alone.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Final, TypeAlias

from cdc_lake.model.quarantine import CEILING, Place

Key: TypeAlias = tuple[str | None, ...]

Unit: TypeAlias = tuple[int, bool]
"""What is held as a whole: the transaction at a position, or with True the decisions that take effect before it."""

TRUNCATE: Final = "T"
MISSING: Final = "missing_row"
"""The reason for holding a change with unchanged values whose row does not exist."""

TAKEN: Final = "key_taken"
"""The reason for holding a change that brings a second row to a key."""

DISCARDED: Final = "discarded"
"""The reason for holding an incomplete change of a row after a discard."""


@dataclass(frozen=True, slots=True)
class Event:
    """One change, reduced to what moves rows: `old` is the key it leaves, `new` the key it has afterwards.

    Insert: new. Delete: old. Update: both, equal if the key stayed. Truncate (`op` T): neither. `failed`: a rule holds
    it; `partial`: it is held if its row does not exist. `left_to`: the key to which a row moved when it left silver,
    according to silver's row only: if the change is held, that row is outdated, so that key is held too. `again`: not a
    change, but the state of a key read at the source: an insert, or a delete if there is no row. `decides`: the held
    change that this decision releases by this event, or discards if `given_up`. `old_digest` and `new_digest`: of all
    values of the row before and after it; None if unknown or not requested.
    """

    position: int
    ordinal: int
    op: str
    old: Key | None = None
    new: Key | None = None
    failed: bool = False
    partial: bool = False
    left_to: Key | None = None
    again: bool = False
    decides: Place | None = None
    given_up: bool = False
    old_digest: int | None = None
    new_digest: int | None = None

    @property
    def keys(self) -> frozenset[Key]:
        """The keys that it touches."""
        return frozenset(key for key in (self.old, self.new) if key is not None)

    @property
    def unit(self) -> Unit | None:
        """The unit with which it is held; None for what was read again, which belongs to no transaction."""
        return None if self.again and self.decides is None else (self.position, self.decides is not None)


@dataclass(frozen=True, slots=True)
class TracedChange:
    """The result for an event: `row` numbers rows, `origin` is the key the row had in silver, None if it is new.

    `waits`: one of its keys was held before. `broke`: why it is held by itself, if no rule holds it. `dropped`: it has
    no effect, being a decision on a change that is no longer held.
    """

    position: int
    ordinal: int
    row: int
    origin: Key | None
    quarantined: bool
    waits: bool = False
    broke: str | None = None
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class HoldRelease:
    """The end of holds: a truncate ends those of all keys (`key`: None), a row that was read again those of its own."""

    position: int
    ordinal: int
    key: Key | None = None


def unit_of(position: int, ordinal: int, op: str) -> Unit | None:
    """The unit with which the change at a place is held; `op` is S for a copied row or one that was read again."""
    decided = ordinal < CEILING
    return (position, decided) if decided or op != "S" else None


@dataclass(frozen=True)
class QuarantineState:
    """Quarantined changes by place, with the keys that each blocks; `apart`: keys with discarded changes, whose row in
    silver therefore differs from the source's.
    """

    quarantined: Mapping[Place, frozenset[Key]] = field(default_factory=dict)
    apart: frozenset[Key] = frozenset()

    @property
    def keys(self) -> frozenset[Key]:
        """The quarantined keys."""
        return frozenset().union(*self.quarantined.values())

    def rename_keys(self, names: Mapping[Key, Key]) -> QuarantineState:
        """The same with other texts of keys."""
        quarantined = {
            place: frozenset(names.get(key, key) for key in keys) for place, keys in self.quarantined.items()
        }
        return QuarantineState(quarantined, frozenset(names.get(key, key) for key in self.apart))

    def __bool__(self) -> bool:
        return bool(self.quarantined or self.apart)


NOTHING_WAITS: Final = QuarantineState()


class QuarantinedKeys:
    """Quarantined keys, with the number of changes that hold each, and the changes that decisions concern."""

    def __init__(self, waiting: QuarantineState, decided: frozenset[Place]) -> None:
        self._decided = decided
        self._by_key = Counter(key for keys in waiting.quarantined.values() for key in keys)
        self._places = {place: keys for place, keys in waiting.quarantined.items() if place in decided}
        self.apart = set(waiting.apart)

    def copy(self) -> QuarantinedKeys:
        """An independent copy."""
        other = QuarantinedKeys(NOTHING_WAITS, self._decided)
        other._by_key, other._places, other.apart = Counter(self._by_key), dict(self._places), set(self.apart)
        return other

    def __bool__(self) -> bool:
        return bool(self._by_key or self.apart)

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    def touch(self, keys: Iterable[Key]) -> bool:
        """Whether one of the keys is held."""
        return any(key in self._by_key for key in keys)

    def add(self, event: Event, keys: frozenset[Key]) -> None:
        """Record a quarantined change, which holds these keys."""
        self._by_key.update(keys)
        place = (event.position, event.ordinal)
        if place in self._decided:
            self._places[place] = keys

    def close(self, key: Key) -> None:
        """End all holds of a key."""
        self._by_key.pop(key, None)
        self.apart.discard(key)
        self._places = {place: left for place, keys in self._places.items() if (left := keys - {key})}

    def clear(self) -> None:
        """End all holds."""
        self._by_key.clear()
        self._places.clear()
        self.apart.clear()

    def decide(self, event: Event) -> bool:
        """Apply a decision; returns whether its change was still held."""
        assert event.decides is not None, "the event is a decision"
        keys = self._places.pop(event.decides, None)
        if keys is None:
            return False
        self._by_key.subtract(keys)
        for key in keys:
            if self._by_key[key] <= 0:
                del self._by_key[key]
        if event.given_up:
            self.apart |= keys
        return True


def trace(
    events: Iterable[Event],
    *,
    existing: frozenset[Key] = frozenset(),
    quarantined: QuarantineState = NOTHING_WAITS,
    filtered: bool = False,
    holds_missing: bool = True,
    whole_units: Container[Unit | None] = (),
) -> tuple[list[TracedChange], list[HoldRelease]]:
    """Follow events in order. `existing`: those of their keys that silver has; `quarantined`: the quarantine before
    them.

    `filtered`: the source has rows that silver does not, so a row at an unknown key is new to silver. `holds_missing`:
    a change that needs a missing row is held; otherwise the merge refuses it. `whole_units`: what is held as a whole;
    none of it truncates.
    """
    rows = _Rows(existing, filtered=filtered, holds_missing=holds_missing)
    events = list(events)
    holds = QuarantinedKeys(quarantined, _decided_changes(events))
    traced: list[TracedChange] = []
    closings: list[HoldRelease] = []
    for transaction in _transactions(events):
        forced: dict[int, str | None] = {}
        while True:
            undo = rows.save_state(transaction)
            traced_events, closed, after = _transaction(transaction, rows, holds, forced)
            if (clash := rows.clash(transaction)) is None:
                break
            undo()
            arrival, key = clash
            forced[arrival] = None if key in after else TAKEN
        if transaction[0].unit in whole_units:
            undo()
            traced_events, closed, after = _as_a_whole(transaction, traced_events, rows, holds)
        holds = after
        traced += traced_events
        closings += closed
    return traced, closings


def find_shared_key_positions(events: Iterable[Event], existing: frozenset[Key]) -> frozenset[int]:
    """The positions of transactions with a change of one of several rows at a key, for which digests are needed. Held
    changes count as applied here.
    """
    rows, positions = _Rows(existing, filtered=False, holds_missing=False), set()
    for event in events:
        if event.op == TRUNCATE:
            rows.clear()
        elif event.again:
            rows.put(event)
        elif not event.given_up:
            if event.old is not None and rows.has_several(event.old):
                positions.add(event.position)
            rows.follow(event, move=True)
    return frozenset(positions)


def _decided_changes(events: Iterable[Event]) -> frozenset[Place]:
    return frozenset(event.decides for event in events if event.decides is not None)


def _transactions(events: Iterable[Event]) -> Iterable[list[Event]]:
    """Group events that take effect together: decisions before everything else at their position, then what was read
    again.
    """
    for _, group in itertools.groupby(events, key=lambda event: (event.position, event.decides is None, event.unit)):
        yield list(group)


def _transaction(
    events: list[Event], rows: _Rows | None, quarantined: QuarantinedKeys, forced: Mapping[int, str | None]
) -> tuple[list[TracedChange], list[HoldRelease], QuarantinedKeys]:
    """Trace one transaction with the changes in `forced` held anyway, and update the holds. `rows`: None if rows cannot
    be distinguished.
    """
    holds = quarantined.copy()
    traced: list[TracedChange] = []
    closings: list[HoldRelease] = []
    # Decide all of them before applying the first: each of these changes blocked the keys of the others.
    void = {event.ordinal for event in events if event.decides is not None and not holds.decide(event)}
    open_ended = _open_ended(events)
    for event in events:
        if event.op == TRUNCATE:
            if holds:
                closings.append(HoldRelease(event.position, event.ordinal))
            if rows is not None:
                rows.clear()
            holds.clear()
            continue
        if event.given_up or (event.decides is not None and event.ordinal in void):
            traced.append(TracedChange(event.position, event.ordinal, 0, None, quarantined=False, dropped=True))
            continue
        waits = not event.again and holds.touch(event.keys)
        if not event.failed and not waits and event.ordinal not in open_ended and _says_all(event, holds):
            ended = [key for key in event.keys if key in holds or key in holds.apart]
            closings += [HoldRelease(event.position, event.ordinal, key) for key in ended]
            for key in ended:
                holds.close(key)
            row = _ANY if rows is None else rows.put(event)
            traced.append(TracedChange(event.position, event.ordinal, row.number, row.origin, quarantined=False))
            continue
        broke = None if event.failed or waits else _broken(event, rows, holds, forced)
        is_quarantined = event.failed or waits or broke is not None or event.ordinal in forced
        if is_quarantined:
            holds.add(event, event.keys if event.left_to is None else event.keys | {event.left_to})
        row = _ANY if rows is None else rows.follow(event, move=not is_quarantined)
        traced.append(TracedChange(event.position, event.ordinal, row.number, row.origin, is_quarantined, waits, broke))
    return traced, closings, holds


def _open_ended(events: list[Event]) -> frozenset[int]:
    """Inserts at a key that a row leaves later in their transaction: only the row before shows whether it is theirs."""
    leaving: set[tuple[int | None, Key]] = set()
    ordinals: set[int] = set()
    for event in reversed(events):
        of = event.decides[0] if event.decides is not None else None
        if event.op == TRUNCATE:
            leaving.clear()
        elif event.old is None and event.new is not None and not event.again and (of, event.new) in leaving:
            ordinals.add(event.ordinal)
        elif event.old is not None and event.old != event.new:
            leaving.add((of, event.old))
    return frozenset(ordinals)


def _as_a_whole(
    events: list[Event], alone: Iterable[TracedChange], rows: _Rows, quarantined: QuarantinedKeys
) -> tuple[list[TracedChange], list[HoldRelease], QuarantinedKeys]:
    """Hold every change of one transaction; `alone`: the results if it were not held as a whole."""
    holds = quarantined.copy()
    for event in events:
        if event.decides is not None:
            holds.decide(event)
    traced: list[TracedChange] = []
    for event, was in zip((event for event in events if event.op != TRUNCATE), alone, strict=True):
        if was.dropped:
            traced.append(was)
            continue
        holds.add(event, event.keys)
        row = rows.follow(event, move=False)
        traced.append(replace(was, row=row.number, origin=row.origin, quarantined=True))
    return traced, [], holds


def _says_all(event: Event, holds: QuarantinedKeys) -> bool:
    """Whether an event determines what its key has, whatever was before."""
    if event.again:
        return True
    stays = event.old is None or event.new is None or event.old == event.new
    return stays and not event.partial and not holds.apart.isdisjoint(event.keys)


def _broken(event: Event, rows: _Rows | None, holds: QuarantinedKeys, forced: Mapping[int, str | None]) -> str | None:
    if not holds.apart.isdisjoint(event.keys):
        return DISCARDED
    if rows is not None and rows.holds_missing and event.partial and event.old is not None and not rows.has(event.old):
        return MISSING
    return forced.get(event.ordinal)


def trace_content(
    events: Iterable[Event], quarantined: QuarantineState
) -> tuple[list[TracedChange], list[HoldRelease]]:
    """Trace holds of rows that only their content identifies: any number of them may have one key."""
    events = list(events)
    holds = QuarantinedKeys(quarantined, _decided_changes(events))
    traced: list[TracedChange] = []
    closings: list[HoldRelease] = []
    for transaction in _transactions(events):
        traced_events, closed, holds = _transaction(transaction, None, holds, {})
        traced += traced_events
        closings += closed
    return traced, closings


@dataclass(frozen=True, slots=True)
class _Row:
    """A row at a key: its number, its key in silver, the change that brought it here (0: none), and the digest of its
    values with the position of the transaction to which they belong, None if unknown.

    In another transaction that digest is not compared, so that the division into spans does not matter.
    """

    number: int
    origin: Key | None
    arrival: int
    content: tuple[int, int] | None = None


_ANY: Final = _Row(0, None, 0)


class _Rows:
    """The rows of each key now, oldest first."""

    def __init__(self, existing: frozenset[Key], *, filtered: bool, holds_missing: bool) -> None:
        self.holds_missing = holds_missing
        self._existing = existing
        self._filtered = filtered
        self._rows_by_key: dict[Key, deque[_Row]] = {}
        self._last = 0

    def follow(self, event: Event, *, move: bool) -> _Row:
        """The row of an event; with `move` it moves to the event's new key."""
        old, new = event.old, event.new
        here = self._rows(old) if old is not None else deque()
        # Silver cannot know a change at an unknown key: its row gets that key as origin, and the merge refuses it.
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
        """Set the row of a key, replacing its former state; an existing row continues."""
        key = event.new if event.new is not None else event.old
        assert key is not None, "a row that was read again has a key"
        here = self._rows(key)
        row = here[0] if here else _Row(self._number(), None, 0)
        self._rows_by_key[key] = deque([] if event.new is None else [row])
        return row

    def has(self, key: Key) -> bool:
        """Whether a row has the key."""
        return bool(self._rows(key))

    def has_several(self, key: Key) -> bool:
        """Whether more than one row has the key."""
        return len(self._rows(key)) > 1

    def clear(self) -> None:
        """Apply a truncate: no key has a row."""
        self._rows_by_key = {}
        self._existing = frozenset()

    def save_state(self, events: list[Event]) -> Callable[[], None]:
        """Save the state that a transaction may change; returns a function that undoes the transaction, once."""
        keys = _touched_keys(events)
        touched = {key: deque(self._rows_by_key[key]) if key in self._rows_by_key else None for key in keys}
        saved = self._rows_by_key, self._existing, self._last

        def undo() -> None:
            self._rows_by_key, self._existing, self._last = saved
            for key, rows in touched.items():
                if rows is None:
                    self._rows_by_key.pop(key, None)
                else:
                    self._rows_by_key[key] = rows

        return undo

    def clash(self, events: list[Event]) -> tuple[int, Key] | None:
        """The ordinal of the last change that brought a second row to a key, and the key; None if every key has at
        most one row.
        """
        several = (
            (rows[-1].arrival, key)
            for key in _touched_keys(events)
            if len(rows := self._rows_by_key.get(key, deque())) > 1
        )
        return max(several, key=itemgetter(0), default=None)

    def _rows(self, key: Key) -> deque[_Row]:
        if key not in self._rows_by_key:
            self._rows_by_key[key] = deque([_Row(self._number(), key, 0)] if key in self._existing else [])
        return self._rows_by_key[key]

    def _number(self) -> int:
        self._last += 1
        return self._last


def _place(here: deque[_Row], event: Event) -> int:
    """The index of an event's row among the rows at a key."""
    if len(here) < 2 or event.old_digest is None:
        return 0
    equal = [place for place, row in enumerate(here) if row.content == (event.position, event.old_digest)]
    return equal[-1] if equal else 0


def _touched_keys(events: list[Event]) -> set[Key]:
    return {key for event in events for key in event.keys}


@dataclass(frozen=True, slots=True)
class TableEvents:
    """All changes of a table in a span, in order, and the quarantine before them. For rows that were read again,
    `failed` says whether they are held.
    """

    events: Sequence[Event]
    waiting: QuarantineState = NOTHING_WAITS


def quarantined_as_whole(tables: Mapping[str, TableEvents], seeds: frozenset[Unit]) -> frozenset[Unit]:
    """What is held as a whole in these tables; `seeds`: units of which some change is held by itself."""
    holds = {name: QuarantinedKeys(table.waiting, _decided_changes(table.events)) for name, table in tables.items()}
    every = [(_order(event), name, event) for name, table in tables.items() for event in table.events]
    every.sort(key=lambda item: item[:2])  # stable, so events of one table keep their order
    units = set(seeds)
    for _, items in itertools.groupby(every, key=lambda item: item[0]):
        effective_events = {
            name: _effective_events([event for _, _, event in table_items], holds[name])
            for name, table_items in itertools.groupby(items, key=lambda item: item[1])
        }
        unit = next((event.unit for events in effective_events.values() for event in events), None)
        if unit is None:
            continue
        if unit in seeds or any(
            holds[name].touch(event.keys) for name, events in effective_events.items() for event in events
        ):
            units.add(unit)
            for name, events in effective_events.items():
                for event in events:
                    holds[name].add(event, event.keys)
    return frozenset(units)


def _order(event: Event) -> tuple[int, int]:
    """Order decisions before everything else at their position, then what was read again."""
    if event.decides is not None:
        return event.position, 0
    return event.position, 1 if event.again else 2


def _effective_events(events: Sequence[Event], holds: QuarantinedKeys) -> list[Event]:
    """The events of a table at one place that count, after the holds that they end."""
    first = events[0]
    if first.decides is not None:
        waits = [holds.decide(event) for event in events]  # all of them, before the first is applied
        return [event for event, waited in zip(events, waits, strict=True) if waited and not event.given_up]
    if first.again:
        for event in events:
            if event.failed:
                holds.add(event, event.keys)
                continue
            for key in event.keys:
                holds.close(key)
        return []
    start = max((index for index, event in enumerate(events, 1) if event.op == TRUNCATE), default=0)
    if start:
        holds.clear()
    return list(events[start:])
