"""Defines silver and its holds for a table with transforms whose changes contain only a part of their rows.

The definition has no spans: changes are applied one by one to a dictionary of silver's rows. A value after a change is
known if the change contains it, or if silver has its column and the row before the change; a row that leaves silver
takes its values along. A change is held if its row cannot be computed from that, or fails a rule; a change that touches
a key of a held one is held too. Any division into spans must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

from cdc_lake.model.change import (
    UNCHANGED,
    Change,
    Delete,
    Insert,
    Message,
    OldKind,
    Transaction,
    Truncate,
    Tuple,
    Update,
)
from cdc_lake.model.relation import Relation

Key: TypeAlias = tuple[str | None, ...]
Row: TypeAlias = dict[str, str | None]

NOT_SENT = frozenset({"not_sent"})
WAITS: frozenset[str] = frozenset()


@dataclass
class PartlyTold:
    """One table. `reads`: columns of the filter, `matches` works it out of them; `needed`: what must be known of a row
    that is there; `kept`: silver's columns; `fails`: the names of the rules that a row breaks, as far as it is known.

    `rows`: what is known of the rows that silver has; `held`: place and reasons, none where a change waits.
    """

    reads: Collection[str]
    needed: Collection[str]
    kept: Collection[str]
    matches: Callable[[Row], bool]
    fails: Callable[[Row], frozenset[str]] = lambda _: frozenset()
    rows: dict[Key, Row] = field(default_factory=dict)
    waiting: set[Key] = field(default_factory=set)
    quarantined: list[tuple[int, int, frozenset[str]]] = field(default_factory=list)

    def run(self, transactions: Iterable[Transaction]) -> None:
        """Apply transactions in order. No key may have two rows, not even for a moment."""
        for one in transactions:
            for ordinal, change in enumerate(one.changes, start=1):
                if (reason := self._change(change)) is not None:
                    self.quarantined.append((one.bounds.position, ordinal, reason))

    def _change(self, change: Change) -> frozenset[str] | None:
        """Why a change is held, None where it is made."""
        match change:
            case Message():
                return None
            case Truncate():
                self.rows.clear()
                self.waiting.clear()
                return None
            case Insert(relation, new):
                row = _told(relation, new)
                return self._step(None, _key(relation, row), row) if self.matches(row) else None
            case Delete(relation, old, kind):
                assert old is not None
                before = _told(relation, old)
                if kind is OldKind.FULL and not self.matches(before):
                    return None
                return self._step(_key(relation, before), None, {})
            case Update():
                return self._update(change)
            case _:
                assert_never(change)

    def _update(self, change: Update) -> frozenset[str] | None:
        relation, new = change.relation, _told(change.relation, change.new)
        old = {} if change.old is None else _told(relation, change.old)
        if change.old_kind is OldKind.FULL:
            was, row = self.matches(old), old | new
        else:
            before = _key(relation, old or new)
            there = {} if before in self.waiting else self.rows.get(before, {})
            was, row = True, {name: value for name, value in there.items() if name in self.kept} | new
        out = row.keys() >= set(self.reads) and not self.matches(row)
        left = _key(relation, old or new) if was else None
        if out:
            return self._step(left, None, {}) if was else None
        return self._step(left, _key(relation, row), row)

    def _step(self, left: Key | None, to: Key | None, row: Row) -> frozenset[str] | None:
        """A row of silver goes from the key `left` to `to`; None: it is not there."""
        touched = {key for key in (left, to) if key is not None}
        waits = not self.waiting.isdisjoint(touched)
        told = to is None or row.keys() >= {*self.reads, *self.needed}
        broken = self.fails(row) if to is not None else frozenset()
        if waits or not told or broken:
            self.waiting |= touched
            return WAITS if waits else broken if told else broken | NOT_SENT
        if left is not None:
            self.rows.pop(left, None)
        if to is not None:
            self.rows[to] = row
        return None


def _told(relation: Relation, given: Tuple) -> Row:
    """What a tuple says; of a key alone the rest is NULL."""
    return {name: value for name, value in zip(relation.names, given, strict=True) if value is not UNCHANGED}


def _key(relation: Relation, row: Row) -> Key:
    return tuple(row[name] for name in relation.primary_key)
