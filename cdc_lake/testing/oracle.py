"""The oracle: the smallest honest thing. A dictionary a table, to which transactions are applied one by one.

It follows a change exactly as the server made it: where two rows have one key for a moment (a deferred constraint), the
older one leaves first. Everything clever must agree with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

from cdc_lake.model.change import UNCHANGED, Change, Delete, Insert, Message, Truncate, Tuple, Update
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.model.transaction import Transaction

Key: TypeAlias = tuple[str | None, ...]
Row: TypeAlias = dict[str, str | None]


@dataclass
class Oracle:
    """The state of all tables after the transactions applied so far: table → key → row by column name."""

    keys: dict[TableName, tuple[str, ...]] = field(default_factory=dict)
    tables: dict[TableName, dict[Key, Row]] = field(default_factory=dict)

    def apply(self, transaction: Transaction) -> None:
        """Apply one transaction; within it keys may clash, at its end they may not."""
        open_rows = {table: [(key, row) for key, row in rows.items()] for table, rows in self.tables.items()}
        for change in transaction.changes:
            self._change(open_rows, change)
        for table, rows in open_rows.items():
            self.tables[table] = dict(rows)
            if len(self.tables[table]) != len(rows):
                msg = f"{table} has two rows of one key at the end of a transaction"
                raise ValueError(msg)

    def run(self, transactions: Sequence[Transaction]) -> dict[TableName, dict[Key, Row]]:
        """Apply transactions in order and return the state."""
        for transaction in transactions:
            self.apply(transaction)
        return self.tables

    def _change(self, tables: dict[TableName, list[tuple[Key, Row]]], change: Change) -> None:
        match change:
            case Message():
                return
            case Insert(relation, new):
                row = _row(relation, new, {})
                tables.setdefault(relation.table, []).append((self._key(relation, row), row))
            case Update(relation, new, old):
                rows = tables.setdefault(relation.table, [])
                at = self._find(relation, rows, old if old is not None else new)
                row = _row(relation, new, rows[at][1])
                key = self._key(relation, row)
                if key == rows[at][0]:
                    rows[at] = (key, row)
                else:
                    rows.pop(at)
                    rows.append((key, row))
            case Delete(relation, old):
                rows = tables.setdefault(relation.table, [])
                rows.pop(self._find(relation, rows, old))
            case Truncate(relation):
                tables[relation.table] = []
            case _:
                assert_never(change)

    def _key(self, relation: Relation, row: Row) -> Key:
        names = self.keys.get(relation.table) or relation.primary_key
        return tuple(row[name] for name in names)

    def _find(self, relation: Relation, rows: list[tuple[Key, Row]], values: Tuple) -> int:
        wanted = self._key(relation, _row(relation, values, {}))
        for at, (key, _) in enumerate(rows):
            if key == wanted:
                return at
        msg = f"{relation.table} has no row with the key of a change"
        raise ValueError(msg)


def _row(relation: Relation, values: Tuple, before: Row) -> Row:
    """A tuple by column name; what was not sent is taken from the row before."""
    out: Row = {}
    for column, value in zip(relation.columns, values, strict=True):
        out[column.name] = before.get(column.name) if value is UNCHANGED else value
    return out
