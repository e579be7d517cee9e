"""A ledger at the source: rows that are inserted once, in transactions of which some abort, and who wrote them down."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg

from cdc_lake.config.project import Project
from cdc_lake.testing.kills import inserted


@dataclass
class Ledger:
    """The table `ledger` of a database. `written`: the numbers that were committed, `aborted` those that were not."""

    connection: psycopg.Connection[Any]
    dice: random.Random
    written: list[str] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.connection.execute("CREATE TABLE IF NOT EXISTS ledger (n int PRIMARY KEY)")

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

    def lost_or_twice(self, project: Project) -> Iterator[str]:
        """Which committed rows bronze does not have once."""
        there = Counter(inserted(project, "public.ledger"))
        lost = [n for n in self.written if not there[n]]
        twice = [n for n in self.written if there[n] > 1]
        if lost:
            yield f"{len(lost)} rows of the ledger are not in bronze: {', '.join(lost[:5])}"
        if twice:
            yield f"{len(twice)} rows of the ledger are in bronze more than once: {', '.join(twice[:5])}"

    def not_committed(self, project: Project) -> Iterator[str]:
        """Which rows bronze has that nobody committed."""
        wrong = sorted(set(inserted(project, "public.ledger")) - set(self.written), key=int)
        if wrong:
            yield f"{len(wrong)} rows of the ledger are in bronze and were not committed: {', '.join(wrong[:5])}"
