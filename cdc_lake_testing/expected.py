"""The expected content of a silver table, by its kind: the oracle's rows in silver's form.

An expectation follows whole transactions and uses the changes of its table. Values are texts as the server printed
them; a column that a row does not have is NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

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
from cdc_lake.model.relation import Column, Relation, TableName
from cdc_lake.tables.types import silver_names
from cdc_lake_testing.copies import CopiesOracle, Place
from cdc_lake_testing.oracle import Key, Oracle, Row, Versions

Fails: TypeAlias = Callable[[Mapping[str, str | None]], bool]
"""Whether a row is kept back."""

LINEAGE = ("_lsn", "_xid", "_ordinal")
_NOTHING = Message("", b"")


class Expected(Protocol):
    """What is expected of one table."""

    def run(self, transaction: Transaction) -> None:
        """Apply one transaction."""

    @property
    def rows(self) -> list[Row]:
        """The rows of the silver table, by the names of the source's columns and silver's own."""

    @property
    def quarantined(self) -> list[Place]:
        """Where the changes are that are kept back."""


def of_table(transaction: Transaction, table: TableName, *, lineage: bool = False) -> Transaction:
    """A transaction with nothing in the places of what is of other tables; with `lineage` each row says its change."""
    at = transaction.bounds.position

    def own(ordinal: int, change: Change) -> Change:
        if isinstance(change, Message) or change.relation.table != table:
            return _NOTHING
        return _with_lineage(change, (str(at), str(transaction.bounds.xid), str(ordinal))) if lineage else change

    return replace(transaction, changes=tuple(own(n, change) for n, change in enumerate(transaction.changes, start=1)))


def _with_lineage(change: Change, place: tuple[str, ...]) -> Change:
    if isinstance(change, Message):
        return change
    extra = tuple(Column(name, "int8", 20) for name in LINEAGE)
    change = replace(change, relation=replace(change.relation, columns=(*change.relation.columns, *extra)))
    if isinstance(change, Update | Delete) and change.old is not None:
        change = replace(change, old=(*change.old, *(None for _ in extra)))
    return replace(change, new=(*change.new, *place)) if isinstance(change, Insert | Update) else change


@dataclass
class CurrentRows:
    """`kind: current`. `soft`: rows that are gone stay as they were after the last transaction that left them."""

    table: TableName
    oracle: Oracle
    lineage: bool = False
    soft: bool = False
    gone: dict[Key, Row] = field(default_factory=dict)

    def run(self, transaction: Transaction) -> None:
        """Apply one transaction."""
        before = self._live
        self.oracle.apply(of_table(transaction, self.table, lineage=self.lineage))
        self._leave(before)

    def reread(self, relation: Relation, position: int, rows: Mapping[Key, Row | None]) -> None:
        """See Oracle."""
        before = self._live
        self.oracle.reread(relation, position, rows)
        self._leave(before)

    def _leave(self, before: dict[Key, Row]) -> None:
        gone = {key: {c: v for c, v in row.items() if c not in LINEAGE} for key, row in before.items()}
        self.gone = {key: row for key, row in (self.gone | gone).items() if key not in self._live}

    @property
    def rows(self) -> list[Row]:
        """The rows there are, and with `soft` those that were."""
        live = list(self._live.values())
        if not self.soft:
            return live
        gone = [{**row, "_is_deleted": "t"} for row in self.gone.values()]
        return [*({**row, "_is_deleted": "f"} for row in live), *gone]

    @property
    def quarantined(self) -> list[Place]:
        """Where the changes are that are kept back."""
        return self.oracle.quarantined

    @property
    def _live(self) -> dict[Key, Row]:
        return self.oracle.tables.get(self.table, {})


@dataclass
class HistoryRows:
    """`kind: history`."""

    table: TableName
    versions: Versions
    lineage: bool = False

    def run(self, transaction: Transaction) -> None:
        """Apply one transaction."""
        self.versions.run([of_table(transaction, self.table, lineage=self.lineage)])

    def reread(self, relation: Relation, position: int, rows: Mapping[Key, Row | None]) -> None:
        """See Oracle."""
        self.versions.reread(relation, position, rows)

    @property
    def rows(self) -> list[Row]:
        """Every version."""
        return [
            {
                **dict(one.row),
                "valid_from": str(one.begun),
                "valid_to": None if one.ended is None else str(one.ended),
                "is_current": "t" if one.ended is None else "f",
            }
            for one in self.versions.of(self.table)
        ]

    @property
    def quarantined(self) -> list[Place]:
        """Where the changes are that are kept back."""
        return self.versions.oracle.quarantined


@dataclass
class CopiesRows:
    """`kind: current` of a table without a key."""

    relation: Relation
    oracle: CopiesOracle
    lineage: bool = False

    def run(self, transaction: Transaction) -> None:
        """Apply one transaction."""
        self.oracle.run([of_table(transaction, self.relation.table)])

    @property
    def rows(self) -> list[Row]:
        """Each row as often as it is there, numbered."""
        out = []
        for row, places in self.oracle.copies.items():
            for number, (position, ordinal) in enumerate(places, start=1):
                own = {"_copy": str(number), **dict(zip(self.relation.names, row, strict=True))}
                place = (str(position), str(position & 0xFFFFFFFF), str(ordinal))
                out.append({**own, **dict(zip(LINEAGE, place, strict=True))} if self.lineage else own)
        return out

    @property
    def quarantined(self) -> list[Place]:
        """Where the changes are that are kept back."""
        return self.oracle.quarantined


@dataclass
class AppendRows:
    """`kind: append`: every change but those whose row fails or has a value without a silver one; none waits behind."""

    table: TableName
    fails: Fails
    misfits: Fails
    old_values: bool = False
    rows: list[Row] = field(default_factory=list)
    quarantined: list[Place] = field(default_factory=list)

    def run(self, transaction: Transaction) -> None:
        """Take one transaction."""
        at, xid = transaction.bounds.position, transaction.bounds.xid
        for ordinal, change in enumerate(of_table(transaction, self.table).changes, start=1):
            if isinstance(change, Message):
                continue
            row, old, unsent = _said(change)
            judge = self.fails if isinstance(change, Insert | Update) else self.misfits
            if judge(row) or (self.old_values and self.misfits(old)):
                self.quarantined.append((at, ordinal))
                continue
            own: Row = {"_op": type(change).__name__[0], "_position": str(at), "_ordinal": str(ordinal)}
            own |= {"_lsn": str(at), "_xid": str(xid), "_unchanged": unsent}
            self.rows.append({**row, **own, **(_old_columns(change, old) if self.old_values else {})})


def _said(change: Insert | Update | Delete | Truncate) -> tuple[Row, Row, str | None]:
    """What a change says of the row after it (a delete: of the one before), of the one before; what it did not send."""
    names = change.relation.names
    if isinstance(change, Truncate):
        return {}, {}, None
    told = change.old if isinstance(change, Update | Delete) else None
    old = dict.fromkeys(names) if told is None else _texts(names, told, {})
    if isinstance(change, Delete):
        return old, old, None
    whole = old if isinstance(change, Update) and change.old_kind is OldKind.FULL else {}
    called = zip(silver_names(change.relation), change.new, strict=True)
    unsent = [name for name, value in called if value is UNCHANGED]
    return _texts(names, change.new, whole), old, str(unsent) if unsent else None


def _old_columns(change: Insert | Update | Delete | Truncate, old: Row) -> Row:
    names = zip(change.relation.names, silver_names(change.relation), strict=True)
    return {f"_old_{silver}": old.get(name) for name, silver in names}


def _texts(names: tuple[str, ...], values: Tuple, unsent: Row) -> Row:
    return {n: unsent.get(n) if v is UNCHANGED else v for n, v in zip(names, values, strict=True)}
