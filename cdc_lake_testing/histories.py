"""Histories: seeded random transactions that a server could have sent, with every kind of change.

`History(seed, relations)` tracks the rows of each table and makes only possible changes: inserts, updates with
unchanged large values, key changes, chains, swaps and rotations of keys (as a deferred constraint allows), delete and
insert again, truncates. Values come from small sets, so that keys and values repeat; large texts contain every line
break of Unicode.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cdc_lake.model.change import (
    UNCHANGED,
    Change,
    Delete,
    Insert,
    OldKind,
    Transaction,
    Truncate,
    Tuple,
    Update,
    Value,
)
from cdc_lake.model.relation import Relation, ReplicaIdentity, TableName
from cdc_lake_testing.messages import transaction_at

_Row = dict[str, str | None]
_Key = tuple[str | None, ...]

KINDS = {
    "insert": 5,
    "update": 6,
    "delete": 2,
    "move": 2,
    "chain": 1,
    "swap": 1,
    "rotate": 1,
    "again": 1,
    "takeover": 1,
}
LINE_BREAKS = ("\n", "\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")
"""All that `str.splitlines` ends a line at: a text may have each of them, and only the first ends a line of JSON."""

AT_LIMITS = tuple(
    "x" * length + last
    for length in (30, 31, 32)
    for last in ("", "😀", "\uffff", "\U0010ffff", "\U0010ffff\U0010ffff")
)
"""Texts about as long as what statistics of columns have of one (32 characters in Delta, 16 in Iceberg), with the last
characters that there are, of one and of two UTF-16 units.
"""

DEFERRED = frozenset({"swap", "rotate", "takeover"})
"""What a server allows only where it checks keys at the end of a transaction."""


class History:
    """Makes transactions for `relations`; the same seed makes the same ones.

    `large`: columns whose unchanged values are not sent. `fixed`: key columns that always have one value, so that many
    histories fit in one table. `truncates`: how often of a thousand transactions one table is emptied. `identified`:
    columns that identify a row where they are not the primary key; those in `nullable` may be NULL, in one row.
    `texts`: what the values of a column are drawn from, where they are not numbers or large.
    """

    def __init__(
        self,
        seed: int,
        relations: Sequence[Relation],
        *,
        large: frozenset[str] = frozenset({"body"}),
        fixed: dict[str, str] | None = None,
        keys: int = 6,
        truncates: int = 0,
        identified: Mapping[TableName, tuple[str, ...]] | None = None,
        nullable: frozenset[str] = frozenset(),
        texts: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._random = random.Random(seed)
        self._relations = list(relations)
        self._large = large
        self._fixed = fixed or {}
        self._keys = keys
        self._truncates = truncates
        self._identified = identified or {}
        self._nullable = nullable
        self._texts = texts or {}
        self._rows: dict[TableName, dict[_Key, _Row]] = {r.table: {} for r in relations}

    def add_column(self, relation: Relation) -> None:
        """Go on with another layout of a table; rows have NULL in its new columns."""
        self._relations = [relation if r.table == relation.table else r for r in self._relations]
        for row in self._rows[relation.table].values():
            for column in relation.columns:
                row.setdefault(column.name, None)

    def emptied(self, table: TableName) -> None:
        """Somebody else's TRUNCATE."""
        if table in self._rows:
            self._rows[table].clear()

    def rows(self, table: TableName) -> list[dict[str, str | None]]:
        """The rows of a table as they are now."""
        return list(self._rows[table].values())

    def transaction(self, position: int) -> Transaction:
        """One transaction that ends at `position`."""
        changes: list[Change] = []
        for _ in range(self._random.randint(1, 5)):
            relation = self._random.choice(self._relations)
            if self._truncates and self._random.randrange(1000) < self._truncates:
                self._rows[relation.table].clear()
                changes.append(Truncate(relation))
            kind = self._random.choices(list(KINDS), list(KINDS.values()))[0]
            changes += getattr(self, f"_{kind}")(relation)
        return transaction_at(position, changes)

    def inserts(self, position: int) -> Transaction:
        """One that inserts a row into each table that has a key left, so that none stays without changes."""
        return transaction_at(position, [change for relation in self._relations for change in self._insert(relation)])

    # ── kinds of change ──────────────────────────────────────────────────────────────────────────────────────────

    def _insert(self, relation: Relation) -> list[Change]:
        key = self._free_key(relation)
        if key is None:
            return []
        row = dict(zip(self._key(relation), key, strict=True)) | self._values(relation)
        self._rows[relation.table][key] = row
        return [Insert(relation, _tuple(relation, row))]

    def _update(self, relation: Relation) -> list[Change]:
        key = self._some_key(relation)
        return [] if key is None else [self._write(relation, key, key)]

    def _delete(self, relation: Relation) -> list[Change]:
        key = self._some_key(relation)
        if key is None:
            return []
        row = self._rows[relation.table].pop(key)
        return [Delete(relation, self._old(relation, row), _old_kind(relation))]

    def _move(self, relation: Relation) -> list[Change]:
        key, to = self._some_key(relation), self._free_key(relation)
        return [] if key is None or to is None else [self._write(relation, key, to)]

    def _chain(self, relation: Relation) -> list[Change]:
        return [change for _ in range(3) for change in self._move(relation)]

    def _swap(self, relation: Relation) -> list[Change]:
        return self._cycle(relation, 2)

    def _rotate(self, relation: Relation) -> list[Change]:
        return self._cycle(relation, 3)

    def _again(self, relation: Relation) -> list[Change]:
        """Delete a row and insert another one with its key."""
        gone = self._delete(relation)
        if not gone:
            return []
        old = gone[0]
        assert isinstance(old, Delete)
        assert old.old is not None
        at = [relation.names.index(name) for name in self._key(relation)]
        key = tuple(None if old.old[i] is None else str(old.old[i]) for i in at)
        row = dict(zip(self._key(relation), key, strict=True)) | self._values(relation)
        self._rows[relation.table][key] = row
        return [*gone, Insert(relation, _tuple(relation, row))]

    def _takeover(self, relation: Relation) -> list[Change]:
        """A second row comes to a key, the two are changed, and one of them goes: such a key is no replica identity."""
        key = self._some_key(relation)
        if key is None or relation.identity is not ReplicaIdentity.FULL:
            return []
        rows = self._rows[relation.table]
        first = rows.pop(key)
        second = first | self._values(relation) if self._random.random() < 0.8 else dict(first)
        both = [first, second]
        changes: list[Change] = [Insert(relation, _tuple(relation, second))]
        for _ in range(self._random.choice((0, 0, 1, 2))):
            at = self._random.randrange(2)
            both[at], change = self._changed(relation, both[at], key)
            changes.append(change)
        gone, rows[key] = self._random.sample(both, 2)
        to = self._free_key(relation) if self._random.random() < 0.3 else None
        if to is None:
            return [*changes, Delete(relation, self._old(relation, gone), _old_kind(relation))]
        rows[to], change = self._changed(relation, gone, to)
        return [*changes, change]

    def _cycle(self, relation: Relation, length: int) -> list[Change]:
        """Each of some rows takes the key of the next: two rows have one key for a moment."""
        rows = self._rows[relation.table]
        if len(rows) < length:
            return []
        keys = self._random.sample(sorted(rows, key=repr), length)
        taken = {key: rows.pop(key) for key in keys}
        changes: list[Change] = []
        for key, to in zip(keys, keys[1:] + keys[:1], strict=True):
            rows[to], change = self._changed(relation, taken[key], to)
            changes.append(change)
        return changes

    # ── parts ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _write(self, relation: Relation, key: _Key, to: _Key) -> Change:
        rows = self._rows[relation.table]
        rows[to], change = self._changed(relation, rows.pop(key), to)
        return change

    def _changed(self, relation: Relation, before: _Row, to: _Key) -> tuple[_Row, Change]:
        after = before | dict(zip(self._key(relation), to, strict=True))
        for name, value in self._values(relation).items():
            if self._random.random() < 0.4:
                after[name] = value
        new: list[Value] = []
        for column in relation.columns:
            same = after[column.name] == before[column.name] and after[column.name] is not None
            unsent = same and column.name in self._large and self._random.random() < 0.8
            new.append(UNCHANGED if unsent else after[column.name])
        moved = any(before[name] != after[name] for name in self._key(relation))
        full = relation.identity is ReplicaIdentity.FULL
        told = moved or full or self._random.random() < 0.1  # the GaussDB family always tells the key
        old = self._old(relation, before) if told else None
        return after, Update(relation, tuple(new), old, _old_kind(relation) if old is not None else None)

    def _old(self, relation: Relation, row: _Row) -> Tuple:
        return tuple(row[c.name] if c.key else None for c in relation.columns)

    def _values(self, relation: Relation) -> _Row:
        return {c.name: self._value(c.name) for c in relation.columns if c.name not in self._key(relation)}

    def _value(self, name: str) -> str | None:
        pick = self._random.random()
        if pick < 0.1:
            return None
        if name in self._texts:
            return self._random.choice(self._texts[name])
        if name in self._large:
            last = self._random.choice(("", "", *LINE_BREAKS, *AT_LIMITS))
            return f"large {self._random.randrange(1000)} " + "é" * self._random.randrange(30) + last
        return str(self._random.randrange(100))

    def _some_key(self, relation: Relation) -> _Key | None:
        rows = self._rows[relation.table]
        return self._random.choice(sorted(rows, key=repr)) if rows else None

    def _free_key(self, relation: Relation) -> _Key | None:
        for _ in range(5):
            key = tuple(self._key_part(name) for name in self._key(relation))
            if key not in self._rows[relation.table]:
                return key
        return None

    def _key_part(self, name: str) -> str | None:
        if name in self._fixed:
            return self._fixed[name]
        number = self._random.randrange(self._keys)
        if name in self._nullable and number == 0:
            return None
        return self._texts[name][number % len(self._texts[name])] if name in self._texts else str(number)

    def _key(self, relation: Relation) -> tuple[str, ...]:
        return self._identified.get(relation.table, relation.primary_key)


def interleave(seed: int, histories: Sequence[History], transactions: int, first: int = 1000) -> list[Transaction]:
    """Transactions of several histories, in random turn, at rising positions; a TRUNCATE empties a table for all."""
    turn = random.Random(seed)
    out = []
    for n in range(transactions):
        mine = turn.choice(histories)
        out.append(mine.transaction(first + 10 * n))
        emptied = {change.relation.table for change in out[-1].changes if isinstance(change, Truncate)}
        for table in emptied:
            for other in histories:
                if other is not mine:
                    other.emptied(table)
    return out


def with_column(relation: Relation, name: str, kind: str, oid: int) -> Relation:
    """The layout after ALTER TABLE … ADD COLUMN."""
    template = relation.columns[-1]
    key = relation.identity is ReplicaIdentity.FULL
    return replace(
        relation, columns=(*relation.columns, replace(template, name=name, type_name=kind, type_oid=oid, key=key))
    )


def _tuple(relation: Relation, row: _Row) -> Tuple:
    return tuple(row[c.name] for c in relation.columns)


def _old_kind(relation: Relation) -> OldKind:
    return OldKind.FULL if relation.identity is ReplicaIdentity.FULL else OldKind.KEY
