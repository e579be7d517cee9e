"""A receiver killed (-9) at every durable step: nothing is lost, nothing is there twice, no reader ever sees a part.

The proof at the end is the one that ships: `inspect chain --against source`. Beside it a ledger at the source, of which
each row must be in bronze once, and none of a transaction that aborted.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc_lake.config.project import Project
from cdc_lake.decode.mppdb.records import Style
from cdc_lake.observe import failpoint as at
from cdc_lake.pipeline.against_source import against_source
from cdc_lake.testing.kills import COPYING, KILLED, RECEIVING, Receivers, Watching, inserted, receive_boasting
from cdc_lake.testing.workload import Workload
from tests.conftest import Database
from tests.live import test_gaussdb_receive, test_receive_loop
from tests.live.test_gaussdb_workload import PASSWORD, Kind, StandIn, stand_in
from tests.seeds import one_seed

pytestmark = [pytest.mark.live, pytest.mark.timeout(3600)]

__all__ = ["stand_in"]

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
ROUNDS = 1 if BUDGET == 1 else 2 * BUDGET
BRONZE = {"batch": {"max_transactions": 3, "max_delay": "5 ms"}, "maintenance": {"compact_after_files": 6}}
FORMATS = pytest.mark.parametrize("fmt", ["delta", "iceberg"])


@pytest.fixture
def dice() -> random.Random:
    seed = one_seed()
    print(f"seed {seed}")
    return random.Random(seed)


class Ledger:
    """Rows that are inserted once, in transactions of which some abort."""

    def __init__(self, connection: psycopg.Connection[Any], dice: random.Random) -> None:
        self._connection = connection
        self._dice = dice
        self._next = 0
        self.written: list[str] = []
        connection.execute("CREATE TABLE IF NOT EXISTS ledger (n int PRIMARY KEY)")

    def write(self, transactions: int) -> None:
        for _ in range(transactions):
            size = self._dice.randint(1, 4)
            numbers = [str(n) for n in range(self._next, self._next + size)]
            self._next += size
            aborts = self._dice.random() < 0.2
            with self._connection.transaction(force_rollback=aborts):
                for number in numbers:
                    self._connection.execute("INSERT INTO ledger VALUES (%s)", [number])
            if not aborts:
                self.written += numbers


def killed_everywhere(
    project: Project, receivers: Receivers, workload: Workload, ledger: Ledger, dice: random.Random, steps: int
) -> None:
    """Kill at each step in turn, some twice in a row; with a small budget at `steps` of them, by chance."""
    deaths = 0

    def die(name: str, passages: int) -> None:
        nonlocal deaths
        for _ in range(1 + (dice.random() < 0.25)):
            code = receivers.run(f"{name}:{dice.randint(1, passages)}")
            assert code in {0, KILLED}, f"{name} ended with {code}"
            deaths += code == KILLED

    workload.run(20)
    ledger.write(3)
    some = BUDGET == 1 and steps < len(RECEIVING)
    for name in dice.sample(COPYING, 2) if some else COPYING:
        die(name, 3)
    assert receivers.run() == 0
    with Watching(project) as watching:
        for _ in range(ROUNDS):
            for name in dice.sample(RECEIVING, steps if some else len(RECEIVING)):
                workload.run(dice.randint(4, 12))
                ledger.write(dice.randint(1, 5))
                die(name, 2)
        assert receivers.run() == 0
    assert watching.looks > 0
    print(f"{deaths} kills, {watching.looks} looks of a reader")
    assert deaths >= (1 if some else steps / 2), "a step may not be passed often enough, all of them always are"


def assert_proven(project: Project, ledger: Ledger) -> None:
    proof = against_source(project)
    assert proof.holds, proof
    assert {table.verdict for table in proof.tables} == {"equal"}, proof.tables
    assert sorted(inserted(project, "public.ledger"), key=int) == ledger.written


@FORMATS
def test_killed_at_every_durable_step_bronze_ends_as_its_source(
    database: Database, tmp_path: Path, fmt: str, dice: random.Random
) -> None:
    project = test_receive_loop.project_of(database, tmp_path, bronze={**BRONZE, "format": fmt})
    with database.connect() as conn:
        workload, ledger = Workload(conn, dice.randrange(1 << 30)), Ledger(conn, dice)
        workload.create_tables()
        receivers, steps = receivers_of(project, database.password), {"delta": len(RECEIVING), "iceberg": 3}[fmt]
        killed_everywhere(project, receivers, workload, ledger, dice, steps)
    assert_proven(project, ledger)


@FORMATS
def test_killed_at_every_durable_step_over_the_familys_wire(
    stand_in: StandIn, tmp_path: Path, fmt: str, dice: random.Random
) -> None:
    if fmt == "iceberg" and BUDGET == 1:
        pytest.skip("with a greater budget")
    kind = Kind(Style.BINARY, batch=True)
    project = test_gaussdb_receive.project_of(stand_in, kind, tmp_path, bronze={**BRONZE, "format": fmt})
    with stand_in.database.connect() as conn:
        workload, ledger = Workload(conn, dice.randrange(1 << 30), truncates=False), Ledger(conn, dice)
        killed_everywhere(project, receivers_of(project, PASSWORD), workload, ledger, dice, steps=3)
    assert_proven(project, ledger)


def test_a_receiver_that_confirms_before_it_commits_is_found_out(
    database: Database, tmp_path: Path, dice: random.Random
) -> None:
    """The negative control."""
    project = test_receive_loop.project_of(database, tmp_path, bronze=BRONZE)
    receivers = receivers_of(project, database.password)
    with database.connect() as conn:
        ledger = Ledger(conn, dice)
        assert receivers.run() == 0
        ledger.write(30)
        assert receivers.run(f"{at.CONFIRMED}:1", target=receive_boasting) == KILLED
    proof = against_source(project)
    assert proof.chain.holds, "what is there is whole"
    assert (proof.holds, proof.forgotten) == (False, True)


def receivers_of(project: Project, password: str) -> Receivers:
    source = project.pipeline.source.model_dump(mode="json", by_alias=True) | {"password": password}
    return Receivers(project, {"source": source})
