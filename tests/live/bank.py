"""Two banks whose accounts give coins to each other: whatever is read of them at one moment, no coin is missing or twice."""

from __future__ import annotations

import random
import threading
from typing import Any

import psycopg
import pytest

from cdc_lake.config.project import Project
from cdc_lake.model.relation import TableName
from tests.bronze_replay import replayed
from tests.conftest import Database

ACCOUNTS, EACH = 240, 1000
BANKS = ("accounts", "vault")
SPLIT = {"parallelism": 3, "chunk_rows": 15}

_ACCOUNTS = "CREATE TABLE accounts (id int PRIMARY KEY, coins bigint NOT NULL, note text NOT NULL)"
_VAULT = "CREATE TABLE vault (LIKE accounts INCLUDING ALL)"
_PARTITIONED = f"""
{_VAULT} PARTITION BY RANGE (id);
CREATE TABLE vault_low PARTITION OF vault FOR VALUES FROM (0) TO (100);
CREATE TABLE vault_high PARTITION OF vault FOR VALUES FROM (100) TO (1000) PARTITION BY LIST (id);
CREATE TABLE vault_rest PARTITION OF vault_high DEFAULT;
"""


def make_bank(connection: psycopg.Connection[Any], *, partitioned: bool = True) -> None:
    """`partitioned`: rows of one bank are in partitions, under whose names `test_decoding` prints them."""
    for statement in (_ACCOUNTS, _PARTITIONED if partitioned else _VAULT, "CREATE TABLE empty (id int PRIMARY KEY)"):
        connection.execute(statement)
    for name in BANKS:
        connection.execute(
            f"INSERT INTO {name} SELECT n, {EACH}, repeat('x', 400) FROM generate_series(1, {ACCOUNTS}) AS n"
        )


def transfers(database: Database, seed: int, stop: threading.Event, pause: float = 0.03) -> int:
    """Moves coins between all accounts until told to stop; rows are also deleted and come again. How many moves."""
    dice, moved = random.Random(seed), 0
    with database.connect() as connection:
        while not stop.is_set():
            giver, taker = dice.choice(BANKS), dice.choice(BANKS)
            one, other = dice.sample(range(1, ACCOUNTS + 1), 2)
            amount = dice.randint(1, 90)
            with connection.transaction(force_rollback=dice.random() < 0.1):
                connection.execute(f"UPDATE {giver} SET coins = coins - %s WHERE id = %s", [amount, one])
                if dice.random() < 0.2:  # the row moves to another place of the table
                    row = connection.execute(
                        f"DELETE FROM {taker} WHERE id = %s RETURNING coins, note", [other]
                    ).fetchone()
                    if row is None:  # another transfer deleted and inserted it since this statement began
                        raise psycopg.Rollback
                    coins, note = row
                    connection.execute(f"INSERT INTO {taker} VALUES (%s, %s, %s)", [other, coins + amount, note])
                else:
                    connection.execute(f"UPDATE {taker} SET coins = coins + %s WHERE id = %s", [amount, other])
            moved += 1
            stop.wait(pause)  # the oracle follows each of them
    return moved


def assert_sums_right(project: Project) -> int:
    """At every transaction from the copies on nothing is missing of the coins, and nothing is twice; how many."""
    seen = 0
    for _, tables in replayed(project):
        banks = [tables.get(TableName("public", name), {}) for name in BANKS]
        if all(banks):
            assert sum(int(row["coins"]) for bank in banks for row in bank.values()) == len(BANKS) * ACCOUNTS * EACH
            seen += 1
    return seen


@pytest.fixture
def bank(database: Database) -> Any:
    """A connection to a database that has the two."""
    with database.connect() as connection:
        make_bank(connection)
        yield connection
