"""The oracle: applies transactions one by one to a dictionary per table. Everything else must agree with it.

It follows a change exactly as the server made it: if two rows temporarily have one key (a deferred constraint), a
change belongs to the one that its whole old tuple equals, the youngest of equal ones; to the older one if it equals
neither. With `fails` it also holds changes: one whose row fails, and every later change of a key that a held one
touches, until a truncate; with `missing` also a change that needs a missing row. A held change may be released or
discarded; after a discard, the next change that contains a whole row determines what exists, except an insert at a key
that a row leaves later in its transaction, because that may be the unknown one. Transactions of the tables in `grouped`
are held as a whole.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, assert_never

from cdc_lake.model.change import UNCHANGED, Change, Delete, Insert, Message, Transaction, Truncate, Tuple, Update
from cdc_lake.model.relation import Relation, ReplicaIdentity, TableName
from cdc_lake_testing.messages import transaction_at

Key: TypeAlias = tuple[str | None, ...]
Row: TypeAlias = dict[str, str | None]


AGAIN = -1
"""The ordinal of what was read again, in `Oracle.held`."""


class TruncateIsHeld(Exception):
    """The transaction at this position truncates a table of a group, and is held."""


@dataclass
class Oracle:
    """The state of all tables after the transactions applied so far: table → key → row by column name."""

    keys: dict[TableName, tuple[str, ...]] = field(default_factory=dict)
    tables: dict[TableName, dict[Key, Row]] = field(default_factory=dict)
    fails: Callable[[TableName, Row], bool] | None = None
    missing: bool = False
    quarantined_keys: dict[TableName, set[Key]] = field(default_factory=dict)
    quarantined: list[tuple[int, int]] = field(default_factory=list)
    waiting: dict[TableName, dict[tuple[int, int], Change]] = field(default_factory=dict)
    apart: dict[TableName, set[Key]] = field(default_factory=dict)
    grouped: frozenset[TableName] = frozenset()

    def apply(
        self, transaction: Transaction, ordinals: Sequence[int] | None = None, together: Sequence[int] = ()
    ) -> None:
        """Apply one transaction, whose changes have these ordinals, or count from 1; within it keys may clash, at its
        end they may not. `together`: which changes came in one transaction at the source, where they are of several.

        Where a clash comes from a hold, the change that brought the younger row is held too, and the transaction is
        applied again from its start. Raises TruncateIsHeld.
        """
        kept_back: set[int] = set()
        unsure = set(self._unsure(transaction.changes, together))
        before, waiting, apart = self.tables, self.quarantined_keys, self.apart
        while True:
            self.tables = {table: dict(rows) for table, rows in before.items()}
            self.quarantined_keys = {table: set(keys) for table, keys in waiting.items()}
            self.apart = {table: set(keys) for table, keys in apart.items()}
            quarantined, clash = self._attempt(transaction, kept_back, unsure)
            if clash is None:
                break
            if not quarantined:
                msg = f"two rows have one key at the end of the transaction at {transaction.bounds.position}"
                raise ValueError(msg)
            kept_back.add(clash)
        if self.grouped and self._holds_whole(transaction, quarantined):
            for table in self.grouped:
                self.tables[table] = dict(before.get(table, {}))
                self.quarantined_keys[table] = set(waiting.get(table, ()))
                self.apart[table] = set(apart.get(table, ()))
            quarantined = self._hold(transaction, quarantined)
        if ordinals is None:
            ordinals = range(1, len(transaction.changes) + 1)
        self.quarantined += [(transaction.bounds.position, ordinals[at]) for at in quarantined]
        for at, change in enumerate(transaction.changes):
            if isinstance(change, Truncate):
                self.waiting.pop(change.relation.table, None)
            elif at in quarantined:
                assert not isinstance(change, Message), "a message has no row"
                mine = self.waiting.setdefault(change.relation.table, {})
                mine[transaction.bounds.position, ordinals[at]] = change

    def _holds_whole(self, transaction: Transaction, quarantined: Iterable[int]) -> bool:
        """Whether something is held of a table of the group that the transaction does not truncate later."""
        last = {c.relation.table: at for at, c in enumerate(transaction.changes) if isinstance(c, Truncate)}
        tables = [(at, _table(transaction.changes[at])) for at in quarantined]
        return any(table in self.grouped and at > last.get(table, -1) for at, table in tables)

    def _hold(self, transaction: Transaction, alone: Iterable[int]) -> list[int]:
        """Hold the whole transaction in the group, whatever becomes of it elsewhere: `alone`."""
        quarantined = {at for at in alone if _table(transaction.changes[at]) not in self.grouped}
        for at, change in enumerate(transaction.changes):
            table = _table(change)
            if table not in self.grouped:
                continue
            if isinstance(change, Truncate):
                raise TruncateIsHeld(transaction.bounds.position)
            self.quarantined_keys.setdefault(table, set()).update(self.keys_of(change))
            quarantined.add(at)
        return sorted(quarantined)

    def release(self, table: TableName, place: tuple[int, int], places: Iterable[tuple[int, int]]) -> None:
        """Held changes, all that wait for each other, are made from a place on, whatever they break."""
        position, first = place
        self.release_together(position, {table: dict(zip(sorted(places), itertools.count(first)))})

    def release_together(self, position: int, of: Mapping[TableName, Mapping[tuple[int, int], int]]) -> None:
        """The same in several tables, whatever waits for what in them: held changes, each with its ordinal there. All
        that is let through at a position is one transaction.
        """
        wanted = [(table, place, at) for table, places in of.items() for place, at in _by_ordinal(places)]
        changes = [self.waiting[table].pop(place) for table, place, _ in wanted]
        for change, (table, _, _) in zip(changes, wanted, strict=True):
            self.quarantined_keys[table] -= self.keys_of(change)
        fails, self.fails = self.fails, None
        let = transaction_at(position, changes)
        self.apply(let, [at for _, _, at in wanted], [came for _, (came, _), _ in wanted])
        self.fails = fails

    def discard(self, table: TableName, places: Iterable[tuple[int, int]]) -> None:
        """Held changes, all that wait for each other, are given up: their keys keep the rows they have here."""
        keys = {key for place in places for key in self.keys_of(self.waiting[table].pop(place))}
        self.quarantined_keys[table] -= keys
        self.apart.setdefault(table, set()).update(keys)

    def keys_of(self, change: Change) -> set[Key]:
        """The keys that a change of a row touches."""
        match change:
            case Insert(relation, new):
                return {self._key(relation, _row(relation, new, {}))}
            case Delete(relation, old):
                return set() if old is None else {self._key(relation, _row(relation, old, {}))}
            case Update(relation, new, old):
                before = _row(relation, old if old is not None else new, {})
                return {self._key(relation, before), self._key(relation, _row(relation, new, before))}
            case _:
                return set()

    def reread(self, relation: Relation, position: int, rows: Mapping[Key, Row | None]) -> None:
        """Keys have these rows right before a position, None for none, whatever waited; what fails is held."""
        state, waiting = dict(self.tables.get(relation.table, {})), set(self.quarantined_keys.get(relation.table, ()))
        for key, row in rows.items():
            if row is not None and self.fails is not None and self.fails(relation.table, row):
                waiting.add(key)
                self.quarantined.append((position, AGAIN))
                continue
            waiting.discard(key)
            state.pop(key, None)
            if row is not None:
                state[key] = dict(row)
        self.tables[relation.table], self.quarantined_keys[relation.table] = state, waiting

    def _unsure(self, changes: Sequence[Change], together: Sequence[int]) -> Iterator[int]:
        """Inserts, by their number, to keys that a row leaves later in the same transaction."""
        left: dict[TableName | None, set[tuple[int, Key]]] = {}
        for n in reversed(range(len(changes))):
            change, whose = changes[n], together[n] if together else 0
            mine = left.setdefault(_table(change), set())
            if isinstance(change, Truncate):
                mine.clear()
            elif isinstance(change, Insert) and not mine.isdisjoint((whose, key) for key in self.keys_of(change)):
                yield n
            elif (key := self._leaves(change)) is not None:
                mine.add((whose, key))

    def _is_apart(self, change: Change) -> bool:
        apart = set() if isinstance(change, Message) else self.apart.get(change.relation.table, set())
        return not apart.isdisjoint(self.keys_of(change))

    def _leaves(self, change: Change) -> Key | None:
        """The key that a change takes a row from."""
        match change:
            case Delete(relation, old) if old is not None:
                return self._key(relation, _row(relation, old, {}))
            case Update(relation, new, old):
                before = _row(relation, old if old is not None else new, {})
                after = self._key(relation, _row(relation, new, before))
                return None if self._key(relation, before) == after else self._key(relation, before)
            case _:
                return None

    def _attempt(self, transaction: Transaction, kept_back: set[int], unsure: set[int]) -> tuple[list[int], int | None]:
        """Which changes are held, and the last one that brought a second row to a key."""
        open_rows = {table: list(rows.items()) for table, rows in self.tables.items()}
        quarantined: list[int] = []
        arrived: dict[tuple[TableName, Key], int] = {}
        for at, change in enumerate(transaction.changes):
            open_ended = at in unsure and self._is_apart(change)
            if not self._change(open_rows, change, force=at in kept_back or open_ended):
                quarantined.append(at)
            elif isinstance(change, Insert | Update):
                key = self._key(change.relation, _row(change.relation, change.new, {}))
                arrived[change.relation.table, key] = at
        clashes = [
            arrived[table, key]
            for table, rows in open_rows.items()
            for key, n in Counter(k for k, _ in rows).items()
            if n > 1
        ]
        for table, rows in open_rows.items():
            self.tables[table] = dict(rows)
        return quarantined, max(clashes, default=None)

    def run(self, transactions: Sequence[Transaction]) -> dict[TableName, dict[Key, Row]]:
        """Apply transactions in order and return the state."""
        for transaction in transactions:
            self.apply(transaction)
        return self.tables

    def _change(self, tables: dict[TableName, list[tuple[Key, Row]]], change: Change, *, force: bool) -> bool:
        """Make a change; False where it is held instead."""
        match change:
            case Message():
                return True
            case Insert(relation, new):
                row = _row(relation, new, {})
                if self._held(relation, row, [self._key(relation, row)], force=force):
                    return False
                self._settle(tables, relation, self._key(relation, row))
                tables.setdefault(relation.table, []).append((self._key(relation, row), row))
            case Update(relation, new, old):
                if (done := self._of_apart(tables, relation, new, old, force=force)) is not None:
                    return done
                return self._update(tables.setdefault(relation.table, []), relation, new, old, force=force)
            case Delete(relation, old):
                rows = tables.setdefault(relation.table, [])
                if old is None:
                    msg = f"a DELETE of {relation.table} names no row"
                    raise ValueError(msg)
                key = self._key(relation, _row(relation, old, {}))
                if self._held(relation, None, [key], force=force):
                    return False
                told = self._settle(tables, relation, key)
                if not told and not (self.missing and all(there != key for there, _ in rows)):
                    rows.pop(self._find(relation, rows, key, old))
            case Truncate(relation):
                tables[relation.table] = []
                self.quarantined_keys.pop(relation.table, None)
                self.apart.pop(relation.table, None)
            case _:
                assert_never(change)
        return True

    def _settle(self, tables: dict[TableName, list[tuple[Key, Row]]], relation: Relation, key: Key) -> bool:
        """A key of which changes were given up is told anew: what it had here goes; False where it is none."""
        if key not in self.apart.get(relation.table, ()):
            return False
        self.apart[relation.table].discard(key)
        tables[relation.table] = [(k, row) for k, row in tables.get(relation.table, []) if k != key]
        return True

    def _of_apart(
        self,
        tables: dict[TableName, list[tuple[Key, Row]]],
        relation: Relation,
        new: Tuple,
        old: Tuple | None,
        *,
        force: bool,
    ) -> bool | None:
        """An update of a key of which changes were given up; None where it is none."""
        keys = self.keys_of(Update(relation, new, old))
        if self.apart.get(relation.table, set()).isdisjoint(keys):
            return None
        row = _row(relation, new, _row(relation, old, {}) if old is not None else {})
        told = UNCHANGED not in new or relation.identity is ReplicaIdentity.FULL
        if self._held(relation, row, sorted(keys, key=repr), force=force or not told or len(keys) > 1):
            return False
        (key,) = keys
        self._settle(tables, relation, key)
        tables.setdefault(relation.table, []).append((key, row))
        return True

    def _update(
        self, rows: list[tuple[Key, Row]], relation: Relation, new: Tuple, old: Tuple | None, *, force: bool
    ) -> bool:
        before = self._key(relation, _row(relation, old if old is not None else new, {}))
        after = self._key(relation, _row(relation, new, _row(relation, old, {}) if old is not None else {}))
        if self._held(relation, None, [before, after], force=force):
            return False
        if self.missing and all(key != before for key, _ in rows):
            whole = _row(relation, new, _row(relation, old, {}) if old is not None else {})
            told = UNCHANGED not in new or relation.identity is ReplicaIdentity.FULL
            if self._held(relation, whole, [before, after], force=force or not told):
                return False
            rows.append((after, whole))
            return True
        at = self._find(relation, rows, before, old)
        # An old row that the server logs whole tells what was not sent, also where silver has another one.
        told_row = _row(relation, old, {}) if old is not None and relation.identity is ReplicaIdentity.FULL else {}
        row = _row(relation, new, rows[at][1] | told_row)
        if self._held(relation, row, [before, after], force=force):
            return False
        if after == before:
            rows[at] = (after, row)
        else:
            rows.pop(at)
            rows.append((after, row))
        return True

    def _held(self, relation: Relation, row: Row | None, keys: list[Key], *, force: bool) -> bool:
        """Whether a change is kept back: a key it touches waits, or its row fails. Its keys wait from then on."""
        waiting = self.quarantined_keys.setdefault(relation.table, set())
        failing = row is not None and self.fails is not None and self.fails(relation.table, row)
        if force or failing or not waiting.isdisjoint(keys):
            waiting.update(keys)
            return True
        return False

    def _key(self, relation: Relation, row: Row) -> Key:
        names = self.keys.get(relation.table) or relation.primary_key
        return tuple(row[name] for name in names)

    @staticmethod
    def _find(relation: Relation, rows: list[tuple[Key, Row]], wanted: Key, old: Tuple | None) -> int:
        places = [at for at, (key, _) in enumerate(rows) if key == wanted]
        if len(places) > 1 and old is not None and relation.identity is ReplicaIdentity.FULL:
            told = {c.name: value for c, value in zip(relation.columns, old, strict=True) if c.key}
            places = [at for at in places if all(rows[at][1].get(n) == v for n, v in told.items())][-1:] or places
        if places:
            return places[0]
        msg = f"{relation.table} has no row with the key of a change"
        raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class Version:
    """A row as it was from the position `begun` until before `ended`; None: it is so now."""

    key: Key
    row: tuple[tuple[str, str | None], ...]
    begun: int
    ended: int | None = None


@dataclass
class Versions:
    """Every version of every row, one a key and transaction: the state at `oracle` is followed from outside.

    `track`: a transaction that changes none of these columns of a table's row amends its version, unless it truncates.
    """

    oracle: Oracle
    track: Mapping[TableName, tuple[str, ...]] = field(default_factory=dict)
    closed: dict[TableName, list[Version]] = field(default_factory=dict)
    current: dict[TableName, dict[Key, Version]] = field(default_factory=dict)

    def run(self, transactions: Sequence[Transaction]) -> None:
        """Apply transactions in order."""
        for transaction in transactions:
            before = {table: dict(rows) for table, rows in self.oracle.tables.items()}
            self.oracle.apply(transaction)
            for table in before.keys() | self.oracle.tables.keys():
                emptied = any(isinstance(c, Truncate) and c.relation.table == table for c in transaction.changes)
                self._step(table, before.get(table, {}), transaction.bounds.position, emptied=emptied)

    def reread(self, relation: Relation, position: int, rows: Mapping[Key, Row | None]) -> None:
        """See Oracle: each row begins a version."""
        before = dict(self.oracle.tables.get(relation.table, {}))
        self.oracle.reread(relation, position, rows)
        self._step(relation.table, before, position, emptied=False)

    def release(self, table: TableName, place: tuple[int, int], places: Iterable[tuple[int, int]]) -> None:
        """See Oracle: each row that comes of it begins a version."""
        position, first = place
        self.release_together(position, {table: dict(zip(sorted(places), itertools.count(first)))})

    def release_together(self, position: int, of: Mapping[TableName, Mapping[tuple[int, int], int]]) -> None:
        """The same in several tables."""
        before = {table: dict(self.oracle.tables.get(table, {})) for table in of}
        self.oracle.release_together(position, of)
        for table, rows in before.items():
            self._step(table, rows, position, emptied=False)

    def of(self, table: TableName) -> set[Version]:
        """All versions of a table."""
        return {*self.closed.get(table, ()), *self.current.get(table, {}).values()}

    def _step(self, table: TableName, before: dict[Key, Row], position: int, *, emptied: bool) -> None:
        after = self.oracle.tables.get(table, {})
        current = self.current.setdefault(table, {})
        for key in before.keys() | after.keys():
            if before.get(key) is after.get(key):  # the same object: no change made it anew
                continue
            if not emptied and self._amends(table, before.get(key), after.get(key)):
                current[key] = replace(current[key], row=tuple(after[key].items()))
                continue
            if key in current:
                self.closed.setdefault(table, []).append(replace(current.pop(key), ended=position))
            if key in after:
                current[key] = Version(key, tuple(after[key].items()), position)

    def _amends(self, table: TableName, before: Row | None, after: Row | None) -> bool:
        if table not in self.track or before is None or after is None:
            return False
        return all(before.get(name) == after.get(name) for name in self.track[table])


def _table(change: Change) -> TableName | None:
    return None if isinstance(change, Message) else change.relation.table


def _by_ordinal(places: Mapping[tuple[int, int], int]) -> list[tuple[tuple[int, int], int]]:
    return sorted(places.items(), key=lambda item: item[1])


def _row(relation: Relation, values: Tuple, before: Row) -> Row:
    """A tuple by column name; what was not sent is taken from the row before."""
    out: Row = {}
    for column, value in zip(relation.columns, values, strict=True):
        out[column.name] = before.get(column.name) if value is UNCHANGED else value
    return out
