"""Seeded transactions over our own wire client: every kind of change, on tables of every kind of key."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from cdc_lake.model.relation import TableName
from cdc_lake.source.gaussdb.wire.session import WireSession
from cdc_lake.source.sql_text import identifier, literal
from cdc_lake_testing.workload import WIDE, Shape

SHAPES: Final = (
    Shape("items", {"id": "int"}, {"name": "text", "price": "numeric(12,3)", "at": "timestamptz", "big": "wide"}),
    Shape("pairs", {"a": "int", "b": "text"}, {"v": "text", "flag": "boolean"}),
    Shape("texts", {"key": "text"}, {"body": "wide", "raw": "bytea", "n": "float8"}),
    Shape('Odd "Table".x', {"Key Id": "bigint"}, {"select": "text", "Größe": "int"}),
    Shape("whole", {"x": "int"}, {"y": "text", "body": "wide"}, "ALTER TABLE {} REPLICA IDENTITY FULL"),
    Shape(
        "indexed",
        {"code": "text"},
        {"id": "int", "note": "text"},
        "CREATE UNIQUE INDEX by_code ON {0} (code); ALTER TABLE {0} REPLICA IDENTITY USING INDEX by_code",
    ),
)
"""Tables that PostgreSQL can have too: one column as key, two, text, quoted names, whole old rows, an index."""

KINDS: Final = Shape(
    "kinds",
    {"id": "int"},
    {
        "c": "char(5)",
        "v": "varchar2(20)",
        "nv": "nvarchar2(10)",
        "cl": "clob",
        "bl": "blob",
        "r": "raw",
        "d": "date",
        "sd": "smalldatetime",
        "i1": "tinyint",
        "i2": "smallint",
        "f4": "real",
        "iv": "interval",
        "tm": "time",
        "ts": "timestamp",
        "u": "uuid",
        "j": "json",
        "jb": "jsonb",
        "b": "bit(3)",
        "arr": "int[]",
        "n": "numeric",
    },
)
"""Types of the family's own, and others that print in their own way."""

USTORE: Final = Shape("in_place", {"id": "int"}, {"v": "text", "big": "wide"})
"""A table of the family's other storage engine."""

_TEXTS: Final = ("NULL", "unchanged-toast-datum", "a\tb\\N\nc", "'", '"', "plain", "ü€𝄞", "  ")


class Workload:
    """Random transactions of one session on the tables of `schema`; the same seed gives the same statements.

    Without `truncates` nothing is truncated: parallel decoding does not tell. Ended in the middle by an error, it can
    be told to forget what it did not commit by `forget`.
    """

    def __init__(
        self, session: WireSession, schema: str, seed: int, *, truncates: bool = True, family: bool = False
    ) -> None:
        self.session = session
        self.schema = schema
        self.shapes = (*SHAPES, KINDS, USTORE) if family else SHAPES
        self.done: Counter[str] = Counter()
        self._truncates = truncates
        self._random = random.Random(seed)
        self._keys: dict[str, list[tuple[Any, ...]]] = {shape.name: [] for shape in self.shapes}
        self._next = 0

    def create_tables(self) -> None:
        """Make the schema and its tables, empty."""
        self._say(f"CREATE SCHEMA {identifier(self.schema)}")
        for shape in self.shapes:
            columns = [f"{identifier(name)} {kind} NOT NULL" for name, kind in shape.key.items()]
            columns += [f"{identifier(name)} {_kind(kind)}" for name, kind in shape.rest.items()]
            key = ", ".join(map(identifier, shape.key))
            stored = " WITH (storage_type = ustore)" if shape is USTORE else ""
            self._say(f"CREATE TABLE {self._table(shape)} ({', '.join(columns)}, PRIMARY KEY ({key})){stored}")
            for name, kind in shape.rest.items():
                if kind == "wide":
                    self._say(f"ALTER TABLE {self._table(shape)} ALTER COLUMN {identifier(name)} SET STORAGE EXTERNAL")
            for statement in filter(None, shape.after.split("; ")):
                self._say(statement.format(self._table(shape)))

    def run(self, transactions: int) -> None:
        """Do that many transactions, of which some abort."""
        for _ in range(transactions):
            self._transaction()

    def _transaction(self) -> None:
        kept, aborts = self._copy_of_keys(), self._random.random() < 0.08
        self._say("BEGIN")
        for _ in range(self._random.choice((1, 1, 2, 3, 6))):
            self._step()
        self._say("ROLLBACK" if aborts else "COMMIT")
        if aborts:
            self._keys = kept
            self.done["aborted"] += 1

    def _step(self) -> None:
        if self._random.random() < 0.12:
            kept = self._copy_of_keys()
            self._say("SAVEPOINT s")
            self._operation()
            self._say("ROLLBACK TO SAVEPOINT s")
            self._keys = kept
            self.done["savepoint"] += 1
        self._operation()

    def _copy_of_keys(self) -> dict[str, list[tuple[Any, ...]]]:
        return {name: list(keys) for name, keys in self._keys.items()}

    def _operation(self) -> None:
        operations: dict[Callable[[Shape], None], int] = {
            self._insert: 30,
            self._insert_many: 10,
            self._update: 25,
            self._update_narrow: 12,
            self._delete: 12,
            self._change_key: 7,
            self._reinsert: 3,
            self._truncate: int(self._truncates),
        }
        shape = self._random.choice(self.shapes)
        chosen = self._random.choices(list(operations), list(operations.values()))[0]
        if not self._keys[shape.name] and chosen not in (self._insert_many, self._truncate):
            chosen = self._insert
        chosen(shape)
        self.done[chosen.__name__.strip("_")] += 1

    def _insert(self, shape: Shape) -> None:
        self._put(shape, [self._key(shape)])

    def _insert_many(self, shape: Shape) -> None:
        self._put(shape, [self._key(shape) for _ in range(self._random.randint(2, 20))])

    def _update(self, shape: Shape) -> None:
        self._set(shape, self._pick(shape), dict(shape.rest))

    def _update_narrow(self, shape: Shape) -> None:
        """Leave the wide columns alone: their values are not sent."""
        self._set(shape, self._pick(shape), {name: kind for name, kind in shape.rest.items() if kind != "wide"})

    def _delete(self, shape: Shape) -> None:
        key = self._pick(shape)
        self._say(f"DELETE FROM {self._table(shape)} WHERE {self._where(shape, key)}")
        self._keys[shape.name].remove(key)

    def _change_key(self, shape: Shape) -> None:
        old, new = self._pick(shape), self._key(shape)
        given = ", ".join(f"{identifier(n)} = {_constant(v)}" for n, v in zip(shape.key, new, strict=True))
        self._say(f"UPDATE {self._table(shape)} SET {given} WHERE {self._where(shape, old)}")
        self._keys[shape.name].remove(old)
        self._keys[shape.name].append(new)

    def _reinsert(self, shape: Shape) -> None:
        """Delete a row and insert another under its key in one transaction."""
        key = self._pick(shape)
        self._delete_key(shape, key)
        self._put(shape, [key])

    def _delete_key(self, shape: Shape, key: tuple[Any, ...]) -> None:
        self._say(f"DELETE FROM {self._table(shape)} WHERE {self._where(shape, key)}")
        self._keys[shape.name].remove(key)

    def _truncate(self, shape: Shape) -> None:
        self._say(f"TRUNCATE {self._table(shape)}")
        self._keys[shape.name] = []

    def _put(self, shape: Shape, keys: list[tuple[Any, ...]]) -> None:
        rows = [[*map(_constant, key), *(self._value(kind) for kind in shape.rest.values())] for key in keys]
        names = ", ".join(map(identifier, shape.columns))
        values = ", ".join(f"({', '.join(row)})" for row in rows)
        self._say(f"INSERT INTO {self._table(shape)} ({names}) VALUES {values}")
        self._keys[shape.name].extend(keys)

    def _set(self, shape: Shape, key: tuple[Any, ...], kinds: dict[str, str]) -> None:
        given = ", ".join(f"{identifier(name)} = {self._value(kind)}" for name, kind in kinds.items())
        self._say(f"UPDATE {self._table(shape)} SET {given} WHERE {self._where(shape, key)}")

    def _pick(self, shape: Shape) -> tuple[Any, ...]:
        return self._random.choice(self._keys[shape.name])

    def _key(self, shape: Shape) -> tuple[Any, ...]:
        """A key never used before."""
        self._next += 1
        return tuple(f"k'{self._next}\\é" if kind == "text" else self._next for kind in shape.key.values())

    def _where(self, shape: Shape, key: tuple[Any, ...]) -> str:
        return " AND ".join(f"{identifier(n)} = {_constant(v)}" for n, v in zip(shape.key, key, strict=True))

    def _table(self, shape: Shape) -> str:
        return f"{identifier(self.schema)}.{identifier(shape.name)}"

    def _say(self, statement: str) -> None:
        self.session.query(statement, doing=statement[:60])

    def _value(self, kind: str) -> str:
        """A value as an SQL expression."""
        pick = self._random
        if pick.random() < 0.1:
            return "NULL"
        if kind in _VALUES:
            return pick.choice(_VALUES[kind])
        match kind:
            case "int":
                return str(pick.randint(-(2**31), 2**31 - 1))
            case "numeric(12,3)":
                return f"{pick.choice((0, pick.randint(-(10**9), 10**9 - 1)))}.{pick.randint(0, 999):03}"
            case "timestamptz":
                day = f"20{pick.randint(10, 30)}-0{pick.randint(1, 9)}-1{pick.randint(0, 9)}"
                return f"'{day} 12:34:56.{pick.randint(0, 999999):06}+0{pick.randint(0, 9)}'"
            case "bytea":
                return f" E'\\\\x{pick.randbytes(pick.randint(1, 40)).hex()}'"
            case "wide":
                return literal("".join(pick.choices("abcdefgh ü\n\t", k=WIDE if pick.random() < 0.4 else 5)))
            case _:
                return literal(pick.choice((*_TEXTS, f"t{pick.randint(0, 10**6)}")))


_VALUES: Final = {
    "boolean": ("true", "false"),
    "float8": ("0.1", "-0.0", "1e300", "'Infinity'", "'NaN'", "1.0e-7", "123456.789"),
    "char(5)": ("'ab'", "'abcde'", "'é'"),
    "varchar2(20)": ("'v'", "'it''s'", "'üü'"),
    "nvarchar2(10)": ("'nn'", "'ß'"),
    "clob": ("'some clob'", "'c'"),
    "blob": ("'DEADBEEF'", "'00ff'"),
    "raw": ("'CAFE'", "'01'"),
    "date": ("'2026-02-28'", "'1999-12-31'"),
    "smalldatetime": ("'2026-02-28 10:11:00'", "'1999-12-31 23:59:00'"),
    "tinyint": ("0", "255"),
    "smallint": ("-32768", "32767", "0"),
    "real": ("0.1", "-1.5", "1e20"),
    "interval": ("'1 year 2 days 03:04:05.5'", "'-00:00:01'"),
    "time": ("'00:00:00'", "'23:59:59.123456'"),
    "timestamp": ("'2026-02-28 10:11:12.123456'", "'0044-03-15 00:00:00 BC'", "'infinity'"),
    "uuid": ("'6f2a1d0c-0a54-4f0e-9f1c-0123456789ab'",),
    "json": ('\'{"a": [1, null, "x"]}\'', "'[]'"),
    "jsonb": ('\'{"a": [1, null, "x"]}\'', "'null'"),
    "bit(3)": ("B'101'", "B'000'"),
    "int[]": ("'{1,2,NULL}'", "'{}'", "'{{1,2},{3,4}}'"),
    "numeric": ("0", "0.000001", "-0.5", "'NaN'", "12345678901234567890.123456789"),
}


def tables_at_source(session: WireSession, workload: Workload) -> dict[TableName, dict[Any, Any]]:
    """What the server holds: table → key → row by column name, without empty tables."""
    out: dict[TableName, dict[Any, Any]] = {}
    for shape in workload.shapes:
        names = list(shape.columns)
        listed = ", ".join(map(identifier, names))
        table = f"{identifier(workload.schema)}.{identifier(shape.name)}"
        rows = session.query(f"SELECT {listed} FROM {table}", doing=f"reading {table}").rows
        if rows:
            found = [dict(zip(names, row, strict=True)) for row in rows]
            out[TableName(workload.schema, shape.name)] = {tuple(row[k] for k in shape.key): row for row in found}
    return out


def _kind(kind: str) -> str:
    return "text" if kind == "wide" else kind


def _constant(value: object) -> str:
    return literal(value) if isinstance(value, str) else str(value)
