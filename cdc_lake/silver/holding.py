"""What waits while rows are followed: keys, the held changes that keep them, and the decisions that end that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from cdc_lake.model.decision import Place
from cdc_lake.silver.row_events import Event, Key


@dataclass(frozen=True)
class Waiting:
    """What waits: held changes by place, with the keys that each keeps; `apart`: keys of which changes were given up,
    so that silver has not the source's row of them.
    """

    held: Mapping[Place, frozenset[Key]] = field(default_factory=dict)
    apart: frozenset[Key] = frozenset()

    @property
    def keys(self) -> frozenset[Key]:
        """The keys that wait."""
        return frozenset().union(*self.held.values())

    def renamed(self, names: Mapping[Key, Key]) -> Waiting:
        """The same with other texts of keys."""
        held = {place: frozenset(names.get(key, key) for key in keys) for place, keys in self.held.items()}
        return Waiting(held, frozenset(names.get(key, key) for key in self.apart))

    def __bool__(self) -> bool:
        return bool(self.held or self.apart)


NOTHING_WAITS: Final = Waiting()


class Holds:
    """Which keys wait, by how many held changes each, and the held changes that decisions are on."""

    def __init__(self, waiting: Waiting, decided: frozenset[Place]) -> None:
        self._decided = decided
        self._by_key = Counter(key for keys in waiting.held.values() for key in keys)
        self._places = {place: keys for place, keys in waiting.held.items() if place in decided}
        self.apart = set(waiting.apart)

    def copy(self) -> Holds:
        """The same, to be changed by itself."""
        other = Holds(NOTHING_WAITS, self._decided)
        other._by_key, other._places, other.apart = Counter(self._by_key), dict(self._places), set(self.apart)
        return other

    def __bool__(self) -> bool:
        return bool(self._by_key or self.apart)

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    def touch(self, keys: Iterable[Key]) -> bool:
        """Whether one of the keys waits."""
        return any(key in self._by_key for key in keys)

    def add(self, event: Event, keys: frozenset[Key]) -> None:
        """A change is held, and keeps these keys."""
        self._by_key.update(keys)
        place = (event.position, event.ordinal)
        if place in self._decided:
            self._places[place] = keys

    def close(self, key: Key) -> None:
        """Whatever waited of a key is over."""
        self._by_key.pop(key, None)
        self.apart.discard(key)
        self._places = {place: left for place, keys in self._places.items() if (left := keys - {key})}

    def clear(self) -> None:
        """Nothing waits."""
        self._by_key.clear()
        self._places.clear()
        self.apart.clear()

    def decide(self, event: Event) -> bool:
        """Carry out a decision; whether the change that it is on still waited."""
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
