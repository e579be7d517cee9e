"""A workload: seeded random transactions on a live PostgreSQL, with every kind of change that a stream can contain.

The same seed on new tables gives the same statements. Six tables have different keys: one column, two columns, text,
quoted names, a key with REPLICA IDENTITY FULL, a key by index.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from cdc_lake_testing.histories import AT_LIMITS, LINE_BREAKS

WIDE = 9_000
"""Characters of a value that is stored out of line: an update that leaves it alone does not send it."""


@dataclass(frozen=True)
class Shape:
    """A table of the workload: key columns and the others, each with the kind of its values."""

    name: str
    key: dict[str, str]
    rest: dict[str, str]
    after: str = ""

    @property
    def columns(self) -> dict[str, str]:
        """All columns."""
        return self.key | self.rest


SHAPES = (
    Shape("w_items", {"id": "int"}, {"name": "text", "price": "numeric(12,3)", "at": "timestamptz", "big": "wide"}),
    Shape("w_pairs", {"a": "int", "b": "text"}, {"v": "text", "flag": "boolean"}),
    Shape("w_texts", {"key": "text"}, {"body": "wide", "raw": "bytea", "n": "float8"}),
    Shape('W "Odd".Table', {"Key Id": "bigint"}, {"select": "text", "Größe": "int"}),
    Shape("w_full", {"x": "int"}, {"y": "text", "body": "wide"}, "ALTER TABLE {} REPLICA IDENTITY FULL"),
    Shape(
        "w_indexed",
        {"code": "text"},
        {"id": "int", "note": "text"},
        "CREATE UNIQUE INDEX w_indexed_code ON {0} (code) INCLUDE (id);"
        "ALTER TABLE {0} REPLICA IDENTITY USING INDEX w_indexed_code",
    ),
)


class Workload:
    """Random transactions through `connection` (in autocommit), from `seed`.

    Without `truncates` no table is ever truncated: parallel decoding of the GaussDB family cannot tell.
    """

    def __init__(self, connection: psycopg.Connection[Any], seed: int, *, truncates: bool = True) -> None:
        self._connection = connection
        self._truncates = truncates
        self._random = random.Random(seed)
        self._keys: dict[str, list[tuple[Any, ...]]] = {shape.name: [] for shape in SHAPES}
        self._next = 0
        self.done: Counter[str] = Counter()
        """How often each operation was done, also those rolled back."""

    def create_tables(self) -> None:
        """Make the tables, empty."""
        for shape in SHAPES:
            self._connection.execute(_definition(shape))

    def run(self, transactions: int) -> None:
        """Do that many transactions, of which some abort."""
        for _ in range(transactions):
            self._transaction()

    def _transaction(self) -> None:
        kept = self._snapshot()
        aborts = self._random.random() < 0.08
        with self._connection.transaction(force_rollback=aborts):
            for _ in range(self._random.choice((1, 1, 2, 3, 6))):
                self._step()
        if aborts:
            self._keys = kept
            self.done["aborted"] += 1

    def _step(self) -> None:
        if self._random.random() < 0.12:
            kept = self._snapshot()
            with self._connection.transaction(force_rollback=True):
                self._operation()
            self._keys = kept
            self.done["savepoint"] += 1
        self._operation()

    def _snapshot(self) -> dict[str, list[tuple[Any, ...]]]:
        return {name: list(keys) for name, keys in self._keys.items()}

    def _operation(self) -> None:
        operations: dict[Callable[[Shape], None], int] = {
            self._insert: 30,
            self._insert_many: 8,
            self._copy: 3,
            self._update: 25,
            self._update_narrow: 12,
            self._delete: 12,
            self._change_key: 7,
            self._swap: 3,
            self._reinsert: 3,
            self._truncate: int(self._truncates),
        }
        shape = self._random.choice(SHAPES)
        chosen = self._random.choices(list(operations), list(operations.values()))[0]
        if not self._keys[shape.name] and chosen not in (self._insert_many, self._copy, self._truncate):
            chosen = self._insert
        chosen(shape)
        self.done[chosen.__name__.strip("_")] += 1

    # ── operations ──

    def _insert(self, shape: Shape) -> None:
        self._put(shape, [self._row(shape)])

    def _insert_many(self, shape: Shape) -> None:
        self._put(shape, [self._row(shape) for _ in range(self._random.randint(2, 20))])

    def _copy(self, shape: Shape) -> None:
        rows = [self._row(shape) for _ in range(self._random.randint(2, 40))]
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(_table(shape), _names(shape.columns))
        with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)
        self._note(shape, rows)

    def _update(self, shape: Shape) -> None:
        self._set(shape, self._pick(shape), {name: self._value(kind) for name, kind in shape.rest.items()})

    def _update_narrow(self, shape: Shape) -> None:
        """Leave the wide columns alone: their values are not sent."""
        narrow = {name: self._value(kind) for name, kind in shape.rest.items() if kind != "wide"}
        self._set(shape, self._pick(shape), narrow)

    def _delete(self, shape: Shape) -> None:
        key = self._pick(shape)
        self._connection.execute(sql.SQL("DELETE FROM {} WHERE {}").format(_table(shape), _where(shape)), key)
        self._keys[shape.name].remove(key)

    def _change_key(self, shape: Shape) -> None:
        self._rekey(shape, self._pick(shape), self._key(shape))

    def _swap(self, shape: Shape) -> None:
        """Two rows exchange their keys, by way of a third."""
        if len(self._keys[shape.name]) < 2:
            self._insert_many(shape)
        one, other = self._random.sample(self._keys[shape.name], 2)
        aside = self._key(shape)
        self._rekey(shape, one, aside)
        self._rekey(shape, other, one)
        self._rekey(shape, aside, other)

    def _reinsert(self, shape: Shape) -> None:
        """Delete a row and insert another under its key in one transaction."""
        key = self._pick(shape)
        self._connection.execute(sql.SQL("DELETE FROM {} WHERE {}").format(_table(shape), _where(shape)), key)
        self._keys[shape.name].remove(key)
        self._put(shape, [key + self._row(shape)[len(key) :]])

    def _truncate(self, shape: Shape) -> None:
        others = [shape, *(s for s in SHAPES if s is not shape and self._random.random() < 0.2)]
        listed = sql.SQL(", ").join(_table(s) for s in others)
        self._connection.execute(sql.SQL("TRUNCATE {}").format(listed))
        for each in others:
            self._keys[each.name] = []

    # ── rows ──

    def _put(self, shape: Shape, rows: list[tuple[Any, ...]]) -> None:
        one = sql.SQL("({})").format(sql.SQL(", ").join(sql.Placeholder() * len(shape.columns)))
        statement = sql.SQL("INSERT INTO {} ({}) VALUES {}").format(
            _table(shape), _names(shape.columns), sql.SQL(", ").join([one] * len(rows))
        )
        self._connection.execute(statement, [value for row in rows for value in row])
        self._note(shape, rows)

    def _note(self, shape: Shape, rows: list[tuple[Any, ...]]) -> None:
        self._keys[shape.name].extend(row[: len(shape.key)] for row in rows)

    def _set(self, shape: Shape, key: tuple[Any, ...], values: dict[str, Any]) -> None:
        assigned = sql.SQL(", ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in values)
        statement = sql.SQL("UPDATE {} SET {} WHERE {}").format(_table(shape), assigned, _where(shape))
        self._connection.execute(statement, [*values.values(), *key])

    def _rekey(self, shape: Shape, old: tuple[Any, ...], new: tuple[Any, ...]) -> None:
        self._set(shape, old, dict(zip(shape.key, new, strict=True)))
        self._keys[shape.name].remove(old)
        self._keys[shape.name].append(new)

    def _pick(self, shape: Shape) -> tuple[Any, ...]:
        return self._random.choice(self._keys[shape.name])

    def _key(self, shape: Shape) -> tuple[Any, ...]:
        """A key never used before."""
        self._next += 1
        return tuple(f"k'{self._next}\\é" if kind == "text" else self._next for kind in shape.key.values())

    def _row(self, shape: Shape) -> tuple[Any, ...]:
        return (*self._key(shape), *(self._value(kind) for kind in shape.rest.values()))

    def _value(self, kind: str) -> object:  # noqa: PLR0911 - one a kind
        pick = self._random
        if pick.random() < 0.1:
            return None
        match kind:
            case "int":
                return pick.randint(-(2**31), 2**31 - 1)
            case "boolean":
                return pick.random() < 0.5
            case "float8":
                return pick.choice((0.1, -0.0, 1e300, float("inf"), float("nan"), pick.random()))
            case "numeric(12,3)":
                return f"{pick.randint(-(10**9), 10**9 - 1)}.{pick.randint(0, 999):03}"
            case "timestamptz":
                day = f"20{pick.randint(10, 30)}-0{pick.randint(1, 9)}-1{pick.randint(0, 9)}"
                return f"{day} 12:34:56.{pick.randint(0, 999999):06}+0{pick.randint(0, 9)}"
            case "bytea":
                return pick.randbytes(pick.randint(0, 40))
            case "wide":
                return "".join(
                    pick.choices("abcdefgh ü\t" + "".join(LINE_BREAKS), k=WIDE if pick.random() < 0.4 else 5)
                )
            case _:
                return pick.choice(
                    (
                        *LINE_BREAKS,
                        *AT_LIMITS,
                        "",
                        "NULL",
                        "unchanged-toast-datum",
                        "a\tb\\N\nc",
                        "'",
                        f"t{pick.randint(0, 10**6)}",
                    )
                )


def _definition(shape: Shape) -> sql.Composed:
    columns = [
        sql.SQL("{} {} NOT NULL").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in shape.key.items()
    ]
    columns += [
        sql.SQL("{} {}").format(
            sql.Identifier(name),
            sql.SQL("text" if kind == "wide" else kind),
        )
        for name, kind in shape.rest.items()
    ]
    parts = [*columns, sql.SQL("PRIMARY KEY ({})").format(_names(shape.key))]
    made = sql.SQL("CREATE TABLE {} ({})").format(_table(shape), sql.SQL(", ").join(parts))
    wide = [
        sql.SQL("ALTER TABLE {} ALTER {} SET STORAGE EXTERNAL").format(_table(shape), sql.Identifier(name))
        for name, kind in shape.rest.items()
        if kind == "wide"
    ]
    after = [sql.SQL(shape.after).format(_table(shape))] if shape.after else []
    return sql.SQL("; ").join([made, *wide, *after])


def _table(shape: Shape) -> sql.Identifier:
    return sql.Identifier("public", shape.name)


def _names(columns: dict[str, str]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(name) for name in columns)


def _where(shape: Shape) -> sql.Composed:
    return sql.SQL(" AND ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in shape.key)
