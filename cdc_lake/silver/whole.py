"""Whole transactions: which of them are held in a group of tables.

A transaction is held where one of its changes is held by itself, or touches a key that waits; then every key that it
touches in the group's tables waits. Transactions are gone through once, in order.

A TRUNCATE ends the holds of its table, before its own transaction is judged: what the transaction did to the table
before it counts for nothing. Rows that were read again are of no transaction: each ends what waits of its key, or is
held alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cdc_lake.silver.holding import NOTHING_WAITS, Holds, Waiting
from cdc_lake.silver.row_events import TRUNCATE, Event, Unit


@dataclass(frozen=True, slots=True)
class TableEvents:
    """All changes of a table in a span, in order, and what waits before them. Of those that were read again `failed`
    says which are held.
    """

    events: Sequence[Event]
    waiting: Waiting = NOTHING_WAITS


def held_whole(tables: Mapping[str, TableEvents], seeds: frozenset[Unit]) -> frozenset[Unit]:
    """What is held as a whole in these tables; `seeds`: that of which some change is held for a reason of its own."""
    decided = {
        name: frozenset(event.decides for event in one.events if event.decides is not None)
        for name, one in tables.items()
    }
    holds = {name: Holds(one.waiting, decided[name]) for name, one in tables.items()}
    every = [(_order(event), name, event) for name, one in tables.items() for event in one.events]
    every.sort(key=lambda item: item[:2])  # stable: the order of a table's own events stays
    found = set(seeds)
    for _, items in itertools.groupby(every, key=lambda item: item[0]):
        made = {
            name: _judged([event for _, _, event in mine], holds[name])
            for name, mine in itertools.groupby(items, key=lambda item: item[1])
        }
        unit = next((event.unit for events in made.values() for event in events), None)
        if unit is None:
            continue
        if unit in seeds or any(holds[name].touch(event.keys) for name, events in made.items() for event in events):
            found.add(unit)
            for name, events in made.items():
                for event in events:
                    holds[name].add(event, event.keys)
    return frozenset(found)


def _order(event: Event) -> tuple[int, int]:
    """Decisions before everything else at their position, then what was read again."""
    if event.decides is not None:
        return event.position, 0
    return event.position, 1 if event.again else 2


def _judged(events: Sequence[Event], holds: Holds) -> list[Event]:
    """The events of a table at one place that count, once what they end is over."""
    first = events[0]
    if first.decides is not None:
        waits = [holds.decide(event) for event in events]  # all of them, before the first is made
        return [event for event, there in zip(events, waits, strict=True) if there and not event.given_up]
    if first.again:
        for event in events:
            if event.failed:
                holds.add(event, event.keys)
                continue
            for key in event.keys:
                holds.close(key)
        return []
    behind = max((at for at, event in enumerate(events, 1) if event.op == TRUNCATE), default=0)
    if behind:
        holds.clear()
    return list(events[behind:])
