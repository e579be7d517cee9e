"""Random schemas and values: what the server prints is what lands, as text, in binary, and as lines of test_decoding."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from cdc_lake.config.project import Project
from tests.conftest import Database
from tests.decoding_postgres import server  # noqa: F401 - a fixture
from tests.live.test_binary_values import RANDOM
from tests.live.test_receive_loop import assert_equal_to_source, once, project_of
from tests.odd_names import odd_names
from tests.seeds import seeds

pytestmark = pytest.mark.live

WAYS: dict[str, dict[str, Any]] = {
    "text": {},
    "binary": {"decoding": {"binary": True}},
    "lines": {"slot": {"plugin": "test_decoding"}},
}
KEYS = ("int4", "int8", "text", "varchar", "uuid", "date", "timestamp", "bytea", "numeric", "bool", "inet", "float8")
"""Types that a part of a key is of, beside the number that makes it one of its own."""
IDENTITIES = ("DEFAULT", "FULL")
TABLES = 4


@dataclass(frozen=True)
class RandomTable:
    """Columns by name with their types, in their order; `key` begins with the number of the row."""

    name: str
    columns: dict[str, str]
    key: tuple[str, ...]
    dice: random.Random

    @classmethod
    def made(cls, conn: psycopg.Connection[Any], dice: random.Random, name: str) -> RandomTable:
        number, more, *others = odd_names(dice, dice.randint(2, 12))
        kinds = [(number, "int8"), (more, dice.choice(KEYS)), *((one, dice.choice([*RANDOM])) for one in others)]
        table = cls(name, dict(dice.sample(kinds, len(kinds))), (number, more)[: dice.randint(1, 2)], dice)
        listed = [sql.SQL("{} " + kind).format(sql.Identifier(one)) for one, kind in table.columns.items()]  # type: ignore[arg-type]
        keys = sql.SQL(", ").join(map(sql.Identifier, table.key))
        listed.append(sql.SQL("PRIMARY KEY ({})").format(keys))
        identity = sql.SQL("ALTER TABLE {} REPLICA IDENTITY " + dice.choice(IDENTITIES))  # type: ignore[arg-type]
        conn.execute(sql.SQL("CREATE TABLE {} ({})").format(sql.Identifier(name), sql.SQL(", ").join(listed)))
        conn.execute(identity.format(sql.Identifier(name)))
        return table

    def insert(self, conn: psycopg.Connection[Any], number: int) -> None:
        values = [sql.Literal(number) if one == self.key[0] else self._value(one) for one in self.columns]
        insert = sql.SQL("INSERT INTO {} VALUES ({})")
        conn.execute(insert.format(sql.Identifier(self.name), sql.SQL(", ").join(values)))

    def update(self, conn: psycopg.Connection[Any], number: int) -> None:
        chosen = self.dice.sample([*self.columns], self.dice.randint(1, len(self.columns)))
        fresh = [one for one in chosen if one != self.key[0]]
        sets = [sql.SQL("{} = {}").format(sql.Identifier(one), self._value(one)) for one in fresh]
        if len(fresh) < len(chosen):
            sets.append(sql.SQL("{0} = -{0}").format(sql.Identifier(self.key[0])))
        update = sql.SQL("UPDATE {} SET {} {}")
        conn.execute(update.format(sql.Identifier(self.name), sql.SQL(", ").join(sets), self._where(number)))

    def delete(self, conn: psycopg.Connection[Any], number: int) -> None:
        conn.execute(sql.SQL("DELETE FROM {} {}").format(sql.Identifier(self.name), self._where(number)))

    def _where(self, number: int) -> sql.Composable:
        return sql.SQL("WHERE {} = {}").format(sql.Identifier(self.key[0]), sql.Literal(number))

    def _value(self, column: str) -> sql.Composable:
        kind = self.columns[column]
        if column not in self.key and self.dice.random() < 0.15:
            return sql.SQL("NULL")
        return sql.SQL("CAST(CAST({} AS text) AS " + kind + ")").format(sql.Literal(RANDOM[kind](self.dice)))  # type: ignore[arg-type]


def changed(conn: psycopg.Connection[Any], tables: list[RandomTable], dice: random.Random) -> Iterator[None]:
    """Rows to be copied, then, behind the first step, changes of every kind."""
    for table in tables:
        for number in range(1, 11):
            table.insert(conn, number)
    yield
    for number in range(11, 41):
        table = dice.choice(tables)
        with conn.transaction():
            table.insert(conn, number)
            table.update(conn, dice.choice((number, dice.randint(1, number))))
            table.delete(conn, dice.randint(1, number))


@pytest.mark.parametrize("seed", seeds(1))
def test_what_the_server_prints_lands_whichever_way_it_is_sent(database: Database, tmp_path: Path, seed: int) -> None:
    dice, projects = random.Random(seed), list[Project]()
    with database.connect() as conn:
        tables = [RandomTable.made(conn, dice, name) for name in odd_names(dice, TABLES)]
        steps = changed(conn, tables, dice)
        next(steps)
        for way, given in WAYS.items():
            (tmp_path / way).mkdir()
            slot = {"slot": {"name": f"random_{way}", **given.get("slot", {})}}
            projects.append(project_of(database, tmp_path / way, source={**given, **slot}))
            assert once(projects[-1]).snapshot_rows == 10 * TABLES
        next(steps, None)
    for project in projects:
        assert once(project).transactions == 30
        assert_equal_to_source(project, database)
