"""Tables without a key: seeded histories of them, and the oracle that says which rows they leave, and how often.

The server logs whole rows (REPLICA IDENTITY FULL). Values come from small sets, so that equal rows are common.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from cdc_lake.model.change import UNCHANGED, Change, Delete, Insert, OldKind, Truncate, Tuple, Update
from cdc_lake.model.relation import Relation
from cdc_lake.model.transaction import Transaction
from cdc_lake.testing.messages import boundaries

Row: TypeAlias = tuple[str | None, ...]


class CopiesHistory:
    """Makes transactions for a relation; the same seed makes the same ones. `large`: the last column, unsent where it
    did not change; `truncates`: how often of a thousand transactions the table is emptied.
    """

    def __init__(self, seed: int, relation: Relation, *, first: str | None = None, truncates: int = 0) -> None:
        self._random = random.Random(seed)
        self._relation = relation
        self._first = first
        self._truncates = truncates
        self._rows: list[Row] = []

    def transaction(self, position: int) -> Transaction:
        """One transaction that ends at `position`."""
        changes = [self._change() for _ in range(self._random.randint(1, 5))]
        return Transaction(boundaries(position), tuple(changes), tuple(position for _ in changes))

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
        names = self._relation.names
        row = [None if self._random.random() < 0.2 else str(self._random.randrange(4)) for _ in names]
        if self._first is not None:
            row[0] = self._first
        return tuple(row)


@dataclass
class CopiesOracle:
    """The rows of one table, as often as they are there. With `fails` a change of a failing row is held, and every
    later one that takes or brings a row which a held one touches, until a truncate.
    """

    fails: Callable[[Row], bool] | None = None
    rows: Counter[Row] = field(default_factory=Counter)
    waiting: set[Row] = field(default_factory=set)
    held: list[tuple[int, int]] = field(default_factory=list)

    def run(self, transactions: Sequence[Transaction]) -> None:
        """Apply transactions in order."""
        for transaction in transactions:
            for ordinal, change in enumerate(transaction.changes, start=1):
                if not self._change(change):
                    self.held.append((transaction.bounds.position, ordinal))

    def _change(self, change: Change) -> bool:
        if isinstance(change, Truncate):
            self.rows.clear()
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
            self.rows[after] += 1
        return True

    def _take(self, row: Row) -> None:
        if not self.rows[row]:
            raise ValueError("a change takes a row away that is not there")
        self.rows[row] -= 1
        if not self.rows[row]:
            del self.rows[row]


def _texts(values: Tuple, before: Row) -> Row:
    return tuple(before[at] if value is UNCHANGED else value for at, value in enumerate(values))
