"""Random schemas and values: what the server prints is what lands, as text, in binary, and as lines of test_decoding."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from cdc_lake.config.project import Project
from tests.conftest import Database
from tests.live.test_binary_values import RANDOM
from tests.live.test_receive_loop import assert_equal_to_source, once, project_of
from tests.odd_names import odd_names
from tests.postgres_with_test_decoding import server  # noqa: F401 - a fixture
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
MOMENTS = ("date", "timestamp", "timestamptz")
TABLES = 4


def any_kinds(dice: random.Random) -> list[str]:
    """Types of the columns that are not in the key, from none to ten."""
    return [dice.choice([*RANDOM]) for _ in range(dice.randint(0, 10))]


@dataclass(frozen=True)
class RandomTable:
    """Columns by name with their types, in their order; `key` begins with the number of the row. `fitting`: of how many
    values of moments care is taken that silver's types hold them; `misfits`: the rows that got another one.
    """

    name: str
    columns: dict[str, str]
    key: tuple[str, ...]
    dice: random.Random
    fitting: float = 0
    misfits: set[int] = field(default_factory=set)

    @classmethod
    def made(
        cls, conn: psycopg.Connection[Any], dice: random.Random, name: str, kinds: Sequence[str], fitting: float = 0
    ) -> RandomTable:
        number, more, *others = odd_names(dice, len(kinds) + 2)
        named = [(number, "int8"), (more, dice.choice(KEYS)), *zip(others, kinds, strict=True)]
        columns = dict(dice.sample(named, len(named)))
        table = cls(name, columns, (number, more)[: dice.randint(1, 2)], dice, fitting)
        listed = [sql.SQL("{} " + kind).format(sql.Identifier(one)) for one, kind in table.columns.items()]  # type: ignore[arg-type]
        keys = sql.SQL(", ").join(map(sql.Identifier, table.key))
        listed.append(sql.SQL("PRIMARY KEY ({})").format(keys))
        identity = sql.SQL("ALTER TABLE {} REPLICA IDENTITY " + dice.choice(IDENTITIES))  # type: ignore[arg-type]
        conn.execute(sql.SQL("CREATE TABLE {} ({})").format(sql.Identifier(name), sql.SQL(", ").join(listed)))
        conn.execute(identity.format(sql.Identifier(name)))
        return table

    def insert(self, conn: psycopg.Connection[Any], number: int) -> None:
        texts = {one: str(number) if one == self.key[0] else self._text(one) for one in self.columns}
        insert = sql.SQL("INSERT INTO {} VALUES ({})")
        listed = sql.SQL(", ").join(self._value(*one) for one in texts.items())
        conn.execute(insert.format(sql.Identifier(self.name), listed))
        self._note(number, texts)

    def update(self, conn: psycopg.Connection[Any], number: int) -> None:
        chosen = self.dice.sample([*self.columns], self.dice.randint(1, len(self.columns)))
        texts = {one: self._text(one) for one in chosen if one != self.key[0]}
        sets = [sql.SQL("{} = {}").format(sql.Identifier(one), self._value(one, text)) for one, text in texts.items()]
        if len(texts) < len(chosen):
            sets.append(sql.SQL("{0} = -{0}").format(sql.Identifier(self.key[0])))
        update = sql.SQL("UPDATE {} SET {} {}")
        name, listed = sql.Identifier(self.name), sql.SQL(", ").join(sets)
        if conn.execute(update.format(name, listed, self._where(number))).rowcount:
            self._note(number, texts)

    def delete(self, conn: psycopg.Connection[Any], number: int) -> None:
        conn.execute(sql.SQL("DELETE FROM {} {}").format(sql.Identifier(self.name), self._where(number)))

    def _where(self, number: int) -> sql.Composable:
        return sql.SQL("WHERE {} = {}").format(sql.Identifier(self.key[0]), sql.Literal(number))

    def _text(self, column: str) -> str | None:
        kind = self.columns[column]
        if column not in self.key and self.dice.random() < 0.15:
            return None
        text = RANDOM[kind](self.dice)
        if self.dice.random() < self.fitting:
            while misfits(kind, text):
                text = RANDOM[kind](self.dice)
        return text

    def _value(self, column: str, text: str | None) -> sql.Composable:
        kind = self.columns[column]
        return sql.SQL("CAST(CAST({} AS text) AS " + kind + ")").format(sql.Literal(text))  # type: ignore[arg-type]

    def _note(self, number: int, texts: dict[str, str | None]) -> None:
        if any(text is not None and misfits(self.columns[one], text) for one, text in texts.items()):
            self.misfits.add(number)


def misfits(kind: str, text: str) -> bool:
    """Whether silver's type has no such moment."""
    return kind in MOMENTS and re.search("BC|infinity|[0-9]{5}-", text) is not None


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
        tables = [RandomTable.made(conn, dice, name, any_kinds(dice)) for name in odd_names(dice, TABLES)]
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
