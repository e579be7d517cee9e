"""Random commands before, inside and behind changes that wait to be read: layouts tell what rows hold, or that they do not know.

The oracle is a row that nobody touches: what it holds at each change, by the numbers of its columns, is what a reader of
the layouts works out of the copy, the columns that go and come, and what their layouts say that old rows hold.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.model.position import Span
from cdc_lake.model.relation import TableName
from tests.conftest import Database
from tests.live.test_evolution_live import project_of, receive
from tests.seeds import seeds

pytestmark = pytest.mark.live
T = TableName("public", "t")
NAMES = "abcd"
PLAIN = "CREATE TABLE t (id int PRIMARY KEY, a int DEFAULT 1, b text)"
PARTS = f"""{PLAIN} PARTITION BY RANGE (id);
CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (1000); CREATE TABLE t_2 PARTITION OF t DEFAULT"""
STEPS = 40


@dataclass
class Walk:
    """Commands on one table; `truth`: by the number of a row that was inserted, what the untouched row held then."""

    conn: psycopg.Connection[Any]
    dice: random.Random
    parts: bool
    rows: int = 1
    truth: dict[int, dict[int, str | None]] = field(default_factory=dict)

    def columns(self) -> dict[str, int]:
        query = "SELECT attname, attnum FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0 AND NOT attisdropped"
        return {str(name): int(number) for name, number in self.conn.execute(query)}

    def insert(self) -> None:
        """A row, which lands with the layout of now."""
        self.rows += 1
        self.conn.execute("INSERT INTO t (id) SELECT %s", [self.rows])
        numbers = self.columns()
        listed = ", ".join(f"{name}::text" for name in numbers)
        (row,) = self.conn.execute(f"SELECT {listed} FROM t WHERE id = 1")  # type: ignore[call-overload]
        self.truth[self.rows] = dict(zip(numbers.values(), row, strict=True))

    def alter(self) -> None:
        """One command, or a few that belong together."""
        there = [name for name in self.columns() if name != "id"]
        free = [name for name in NAMES if name not in there]
        if not free or (there and self.dice.random() < 0.5):
            one, more = self.dice.choice(there), self.dice.choice(there)
            new = self.dice.choice([*free, one])
            self._run(
                self.dice.choice(
                    [
                        f"DROP {one}",
                        f"DROP {one}; ADD {one} int",
                        f"RENAME {one} TO {new}" if new != one else f"ALTER {one} SET DEFAULT NULL",
                        f"RENAME {one} TO x; RENAME {more} TO {one}; RENAME x TO {more}"
                        if more != one
                        else f"DROP {one}",
                        f"ALTER {one} TYPE text",  # rewrites the table
                    ]
                )
            )
            return
        name, value = self.dice.choice(free), self.dice.randint(1, 99)
        drop = f"ALTER {name} DROP DEFAULT"
        self._run(
            self.dice.choice(
                [
                    f"ADD {name} int",
                    f"ADD {name} int DEFAULT {value}",
                    f"ADD {name} int NOT NULL DEFAULT {value}; {drop}; ALTER {name} DROP NOT NULL",
                    f"ADD {name} int; ALTER {name} SET DEFAULT {value}",
                    f"ADD {name} int DEFAULT {value}; ALTER {name} SET DEFAULT {value + 1}",
                    f"ADD {name} int DEFAULT (random() * 99)::int; {drop}",
                    f"ADD {name} sevens",
                ]
            )
        )

    def _run(self, commands: str) -> None:
        for command in commands.split("; "):
            self.conn.execute(f"ALTER TABLE t {command}")  # type: ignore[call-overload]

    def step(self) -> None:
        """A change, commands, or both in one transaction, some of it rolled back."""
        match self.dice.choice(("insert", "alter", "both", "both", "sub", "other")):
            case "insert":
                self.insert()
            case "alter":
                self.alter()
            case "both":
                with self.conn.transaction():
                    for _ in range(self.dice.randint(1, 3)):
                        self.dice.choice([self.insert, self.alter])()
            case "sub":
                with self.conn.transaction():
                    self._tried(self.alter)
                    self.insert()
                    self._tried(self.alter)
            case _ if self.parts:
                self.conn.execute("VACUUM FULL t_1")
            case _:
                self.conn.execute("VACUUM FULL t")

    def _tried(self, what: Callable[[], None]) -> None:
        with self.conn.transaction(force_rollback=self.dice.random() < 0.3):
            what()


def check_layouts(project: Project, walk: Walk) -> tuple[int, int]:
    """How many values were told right, and how many nobody knew."""
    reader = bronze_reader(project)
    layouts = reader.layouts([T])
    row: dict[int, str | None] = dict(walk.truth[1])
    doubtful: set[int] = set()
    known = asked = 0
    for change in reader.changes(T, Span(1, 0, 1 << 62)).to_pylist():
        layout, at = layouts[change["layout"]], int(change["new"][0])
        columns = {c.number: c for c in layout.columns}
        for number, column in columns.items():
            assert number is not None
            if column.ambiguous:
                doubtful.add(number)
            if number not in row:
                missing = column.missing
                row[number] = None if missing is None else missing.text
                if missing is not None and missing.text is None:
                    doubtful.add(number)
        row = {number: row[number] for number in columns if number is not None}
        truth = walk.truth[at]
        sure = {number for number in {*row, *truth} if number not in doubtful}
        if not any(column.ambiguous for column in layout.columns):
            assert set(row) == set(truth), f"row {at}: {layout}"
        for number in sure & set(row) & set(truth):
            assert row[number] == truth[number], f"row {at}, column {number}: {layout}"
            known += 1
        asked += len(doubtful & set(row))
    return known, asked


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize("made", [PLAIN, PARTS])
def test_layouts_tell_what_old_rows_hold_whatever_was_altered(
    database: Database, tmp_path: Path, made: str, seed: int
) -> None:
    dice = random.Random(seed)
    project = project_of(database, tmp_path)
    with database.connect() as conn:
        conn.execute("CREATE DOMAIN sevens AS int DEFAULT 7")
        conn.execute(made)  # type: ignore[call-overload]
        conn.execute("INSERT INTO t VALUES (1, 1, 'one')")
        receive(project)
        walk = Walk(conn, dice, made == PARTS)
        walk.truth[1] = {1: "1", 2: "1", 3: "one"}
        for _ in range(STEPS):
            walk.step()
            if dice.random() < 0.25:
                receive(project)
        receive(project)
    known, asked = check_layouts(project, walk)
    assert known > asked / 3, f"seed {seed}: {known} known, {asked} not"
