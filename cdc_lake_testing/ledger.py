"""A ledger of rows that are inserted once, and of the transactions that insert them, some of which abort."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg

from cdc_lake.config.project import Project
from cdc_lake_testing.kills import inserted


@dataclass
class Inserts:
    """A table whose rows are inserted once, and stay. `written`: the numbers of those that were committed."""

    table: str
    written: list[str]

    def lost_or_twice(self, project: Project) -> Iterator[str]:
        """Which committed rows bronze does not have once."""
        there = Counter(inserted(project, self.table))
        lost = [n for n in self.written if not there[n]]
        twice = [n for n in self.written if there[n] > 1]
        if lost:
            yield f"{len(lost)} rows of {self.table} are not in bronze: {', '.join(lost[:5])}"
        if twice:
            yield f"{len(twice)} rows of {self.table} are in bronze more than once: {', '.join(twice[:5])}"

    def not_committed(self, project: Project) -> Iterator[str]:
        """Which rows bronze has that nobody committed."""
        wrong = sorted(set(inserted(project, self.table)) - set(self.written), key=int)
        if wrong:
            yield f"{len(wrong)} rows of {self.table} are in bronze and were not committed: {', '.join(wrong[:5])}"


def at_source(connection: psycopg.Connection[Any], table: str, number: str) -> Inserts:
    """The rows that the source has by now, where who wrote them cannot know which of their commits came about."""
    found = connection.execute(f"SELECT {number} FROM {table} ORDER BY 1".encode())
    return Inserts(table, [str(n) for (n,) in found])


class Ledger(Inserts):
    """The table `ledger` of a database. `aborted`: the numbers that were not committed."""

    def __init__(self, connection: psycopg.Connection[Any], dice: random.Random) -> None:
        super().__init__("public.ledger", [])
        self.connection = connection
        self.dice = dice
        self.aborted: list[str] = []
        connection.execute("CREATE TABLE IF NOT EXISTS ledger (n int PRIMARY KEY)")

    def write(self, transactions: int) -> None:
        """So many transactions of one to four rows, of which a fifth abort."""
        for _ in range(transactions):
            first = len(self.written) + len(self.aborted)
            numbers = [str(n) for n in range(first, first + self.dice.randint(1, 4))]
            aborts = self.dice.random() < 0.2
            with self.connection.transaction(force_rollback=aborts):
                for number in numbers:
                    self.connection.execute("INSERT INTO ledger VALUES (%s)", [number])
            (self.aborted if aborts else self.written).extend(numbers)

    def insert(self, size: int, *, aborts: bool | None = None) -> None:
        """One transaction of so many rows by one statement, which aborts as the others do."""
        first = len(self.written) + len(self.aborted)
        aborts = self.dice.random() < 0.2 if aborts is None else aborts
        with self.connection.transaction(force_rollback=aborts):
            self.connection.execute(
                "INSERT INTO ledger SELECT generate_series(%s::int, %s::int)", [first, first + size - 1]
            )
        (self.aborted if aborts else self.written).extend(str(n) for n in range(first, first + size))
