"""A source table whose layout changes, transaction by transaction, and what its rows are then: the oracle of evolution.

Values are texts as the server prints them. A column is its number; a rename changes nothing else, a column that is
dropped and made again is another one.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime
from typing import Any

from cdc_lake.model.change import UNCHANGED, Change, Delete, Insert, OldKind, Truncate, Update
from cdc_lake.model.relation import Column, Missing, Relation, ReplicaIdentity, TableName
from cdc_lake.tables.types import silver_names
from cdc_lake_testing.histories import LINE_BREAKS
from cdc_lake_testing.messages import TYPE_OIDS

WIDER = {"int2": "int4", "int4": "int8", "float4": "float8", "date": "timestamp"}
NAMES = ["n", "N", "a b", 'quo"ted', "say `hi`", "größe", "_file", "x.y"]
TYPES = ["int2", "int4", "int8", "text", "float4", "float8", "date", "timestamp"]
TYPED: dict[str, Callable[[str], Any]] = {
    "int2": int, "int4": int, "int8": int, "text": str, "float4": lambda t: _single(float(t)), "float8": float, "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat
}  # fmt: skip


class Evolving:
    """One table. What it does is collected in `changes` until `taken`."""

    def __init__(self, name: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.table = TableName("public", name)
        self.oid, self.last = zlib.crc32(name.encode()), 2
        self.columns = [_column("id", "int4", 1, key=True), _column("body", "text", 2)]
        self.rows: dict[int, dict[int, str | None]] = {}
        self.changes: list[Change] = []
        self.next_id = 1

    @property
    def relation(self) -> Relation:
        """The layout now."""
        return Relation(self.table, tuple(self.columns), ReplicaIdentity.DEFAULT, ("id",), self.oid)

    def expected(self) -> list[dict[str, Any]]:
        """The rows as silver is to have them, by key."""
        names = silver_names(self.relation)
        out = []
        for row in self.rows.values():
            values = ((row[c.number or 0], c) for c in self.columns)
            typed = [None if text is None else TYPED[c.type_name](text) for text, c in values]
            out.append(dict(zip(names, typed, strict=True)))
        return sorted(out, key=lambda row: row["id"])

    def taken(self) -> tuple[Change, ...]:
        """What was done since; begin anew."""
        done, self.changes = tuple(self.changes), []
        return done

    # ── what a client does ──

    def insert(self, **values: str) -> None:
        """A new row; columns that are not given by chance."""
        row = {c.number or 0: values.get(c.name, self._value(c.type_name)) for c in self.columns}
        row[1] = str(self.next_id)
        self.next_id += 1
        self.rows[int(row[1] or 0)] = row
        self.changes.append(Insert(self.relation, tuple(row[c.number or 0] for c in self.columns)))

    def update(self) -> None:
        """A row with other values; texts may not be sent, the key may be another one."""
        if not self.rows:
            return
        key = self.random.choice(list(self.rows))
        row = dict(self.rows.pop(key))
        moved = self.random.random() < 0.2
        if moved:
            row[1], self.next_id = str(self.next_id), self.next_id + 1
        new: list[Any] = []
        for column in self.columns:
            at = column.number or 0
            if at != 1 and column.type_name == "text" and self.random.random() < 0.4:
                new.append(UNCHANGED)
                continue
            if at != 1:
                row[at] = self._value(column.type_name)
            new.append(row[at])
        self.rows[int(row[1] or 0)] = row
        old = (str(key), *(None for _ in self.columns[1:])) if moved else None
        self.changes.append(Update(self.relation, tuple(new), old, OldKind.KEY if moved else None))

    def replace(self, *row: str | None) -> None:
        """A row written again as it is, of which the server logs the old one whole."""
        full = replace(self.relation, identity=ReplicaIdentity.FULL)
        self.changes.append(Update(full, row, row, OldKind.FULL))

    def delete(self) -> None:
        """A row goes."""
        if self.rows:
            key = self.random.choice(list(self.rows))
            del self.rows[key]
            self.changes.append(Delete(self.relation, (str(key), *(None for _ in self.columns[1:])), OldKind.KEY))

    def truncate(self) -> None:
        """All rows go."""
        self.rows.clear()
        self.changes.append(Truncate(self.relation))

    # ── what its owner does ──

    def add(self, name: str, kind: str, default: str | None = None) -> None:
        """`ADD COLUMN … DEFAULT`: rows that are there have it without being sent."""
        self.last += 1
        missing = None if default is None else Missing(default)
        self.columns.append(replace(_column(name, kind, self.last), missing=missing))
        for row in self.rows.values():
            row[self.last] = default

    def drop(self, name: str) -> None:
        """`DROP COLUMN`."""
        self.columns = [c for c in self.columns if c.name != name]

    def rename(self, name: str, to: str) -> None:
        """`RENAME COLUMN`."""
        self.columns = [replace(c, name=to) if c.name == name else c for c in self.columns]

    def retype(self, name: str, kind: str) -> None:
        """`ALTER COLUMN … TYPE`: the server casts, and sends nothing. (Where it writes the table anew it forgets which
        default rows got, and a layout that nobody has seen by then is one of unknown values.)
        """
        old = next(c for c in self.columns if c.name == name)
        missing = None if old.missing is None else Missing(_cast(old.missing.text, old.type_name, kind))
        new = replace(_column(name, kind, old.number or 0, key=old.key), missing=missing)
        self.columns = [new if c is old else c for c in self.columns]
        for row in self.rows.values():
            row[old.number or 0] = _cast(row[old.number or 0], old.type_name, kind)

    def make_again(self) -> None:
        """`DROP TABLE`, and `CREATE TABLE` with its name: its rows are gone without a word."""
        self.oid += 1
        self.rows.clear()

    # ── at random ──

    def transaction(self, ddl: float) -> None:
        """Some changes, among them changes of the layout."""
        for _ in range(self.random.randint(1, 5)):
            if self.random.random() < ddl:
                self.alter()
                self.insert()  # the stream has a layout with the first change of it
            acts = [self.insert, self.insert, self.update, self.update, self.delete]
            self.random.choice([*acts, self.truncate] if self.random.random() < 0.1 else acts)()

    def alter(self) -> None:
        """Another layout."""
        free = [n for n in NAMES if n not in {c.name for c in self.columns}]
        others = [c for c in self.columns if c.number != 1]
        match self.random.choice(["add", "add", "default", "drop", "rename", "widen", "text"]):
            case "add" if free:
                self.add(self.random.choice(free), self.random.choice(TYPES))
            case "default" if free:
                kind = self.random.choice(TYPES)
                self.add(self.random.choice(free), kind, self._value(kind))
            case "drop" if others:
                self.drop(self.random.choice(others).name)
            case "rename" if others and free:
                self.rename(self.random.choice(others).name, self.random.choice(free))
            case "widen":
                if wide := [c for c in self.columns if c.type_name in WIDER]:
                    column = self.random.choice(wide)
                    self.retype(column.name, WIDER[column.type_name])
            case "text":
                if known := [c for c in others if c.type_name in {"int2", "int4", "int8"}]:
                    self.retype(self.random.choice(known).name, "text")
            case _:
                pass

    def _value(self, kind: str) -> str | None:
        number = self.random.randint(-99, 99)
        match kind:
            case "text":
                return self.random.choice([None, "", "x", "it's", 'a\\b"`', *LINE_BREAKS])
            case "float4":
                return repr(number / 10)
            case "float8":
                return repr(number / 10)
            case "date":
                return f"2026-01-{abs(number) % 28 + 1:02}"
            case "timestamp":
                return f"2026-01-{abs(number) % 28 + 1:02} 10:00:{abs(number) % 60:02}"
            case _:
                return self.random.choice([None, str(number)])


def _column(name: str, kind: str, number: int, *, key: bool = False) -> Column:
    oid = TYPE_OIDS[kind]
    return Column(name, kind, oid, -1, key, None, number)


def _cast(text: str | None, old: str, new: str) -> str | None:
    """As the server does: the nearest float of 32 bits has other digits as one of 64."""
    if text is not None and (old, new) == ("date", "timestamp"):
        return f"{text} 00:00:00"
    if text is None or (old, new) != ("float4", "float8"):
        return text
    return repr(_single(float(text)))


def _single(number: float) -> float:
    return float(struct.unpack("f", struct.pack("f", number))[0])
