"""Tables without a key: seeded histories of them, and the oracle for their rows and numbers of equal rows.

The server logs whole rows (REPLICA IDENTITY FULL). Values come from small sets, so that equal rows are common.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from cdc_lake.model.change import UNCHANGED, Change, Delete, Insert, OldKind, Transaction, Truncate, Tuple, Update
from cdc_lake.model.relation import Relation
from cdc_lake_testing.messages import transaction_at

Row: TypeAlias = tuple[str | None, ...]
Place: TypeAlias = tuple[int, int]
"""A position and an ordinal."""


class CopiesHistory:
    """Makes transactions for a relation; the same seed makes the same ones. `large`: the last column, unsent where it
    did not change; `truncates`: how often of a thousand transactions the table is emptied; `texts`: what the values of
    a column are drawn from, where they are not small numbers.
    """

    def __init__(
        self,
        seed: int,
        relation: Relation,
        *,
        first: str | None = None,
        truncates: int = 0,
        texts: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._random = random.Random(seed)
        self._relation = relation
        self._first = first
        self._truncates = truncates
        self._texts = texts or {}
        self._rows: list[Row] = []

    def transaction(self, position: int) -> Transaction:
        """One transaction that ends at `position`."""
        changes = [self._change() for _ in range(self._random.randint(1, 5))]
        return transaction_at(position, changes)

    def emptied(self) -> None:
        """Somebody else's TRUNCATE."""
        self._rows.clear()

    def _change(self) -> Change:
        if self._truncates and self._random.randrange(1000) < self._truncates:
            self._rows.clear()
            return Truncate(self._relation)
        what = self._random.random()
        if not self._rows or what < 0.45:
            row = self._random.choice(self._rows) if self._rows and what < 0.2 else self._values()
            self._rows.append(row)
            return Insert(self._relation, row)
        before = self._rows.pop(self._random.randrange(len(self._rows)))
        if what < 0.65:
            return Delete(self._relation, before, OldKind.FULL)
        values = self._values()
        after = tuple(new if self._random.random() < 0.5 else old for old, new in zip(before, values, strict=True))
        self._rows.append(after)
        new: Tuple = after
        if after[-1] == before[-1] is not None and self._random.random() < 0.8:
            new = (*after[:-1], UNCHANGED)
        return Update(self._relation, new, before, OldKind.FULL)

    def _values(self) -> Row:
        numbers = tuple(map(str, range(4)))
        row = [
            None if self._random.random() < 0.2 else self._random.choice(self._texts.get(name, numbers))
            for name in self._relation.names
        ]
        if self._first is not None:
            row[0] = self._first
        return tuple(row)


@dataclass
class CopiesOracle:
    """The rows of one table, each as often as it is there, by the places of the changes that brought its copies; the
    youngest goes first. With `fails` a change of a failing row is held, and every later one that takes or brings a row
    which a held one touches, until a truncate.
    """

    fails: Callable[[Row], bool] | None = None
    copies: dict[Row, list[Place]] = field(default_factory=dict)
    waiting: set[Row] = field(default_factory=set)
    quarantined: list[Place] = field(default_factory=list)

    @property
    def rows(self) -> Counter[Row]:
        """The rows, as often as they are there."""
        return Counter({row: len(places) for row, places in self.copies.items()})

    def run(self, transactions: Sequence[Transaction]) -> None:
        """Apply transactions in order."""
        for transaction in transactions:
            for ordinal, change in enumerate(transaction.changes, start=1):
                place = (transaction.bounds.position, ordinal)
                if not self._change(change, place):
                    self.quarantined.append(place)

    def _change(self, change: Change, place: Place) -> bool:
        if isinstance(change, Truncate):
            self.copies.clear()
            self.waiting.clear()
            return True
        before = _texts(change.old, ()) if isinstance(change, Update | Delete) and change.old is not None else None
        after = _texts(change.new, before or ()) if isinstance(change, Insert | Update) else None
        touched = {row for row in (before, after) if row is not None}
        fails = after is not None and self.fails is not None and self.fails(after)
        if fails or not self.waiting.isdisjoint(touched):
            self.waiting |= touched
            return False
        if before is not None:
            self._take(before)
        if after is not None:
            self.copies.setdefault(after, []).append(place)
        return True

    def _take(self, row: Row) -> None:
        if row not in self.copies:
            raise ValueError("a change takes a row away that is not there")
        self.copies[row].pop()
        if not self.copies[row]:
            del self.copies[row]


def _texts(values: Tuple, before: Row) -> Row:
    return tuple(before[at] if value is UNCHANGED else value for at, value in enumerate(values))
