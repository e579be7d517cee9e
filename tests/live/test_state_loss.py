"""State of a receiver that is lost between two runs: it recovers exactly, or refuses by a code and loses nothing.

That of apply is in tests/spark/test_silver_state_loss.py. `CDC_LAKE_BUDGET` above 1 takes every loss, by default some
of them, by the seed.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import psycopg
import pytest

from cdc_lake.config.project import Project
from cdc_lake.errors import CdcLakeError
from cdc_lake_testing.invariants import Known, invariants
from cdc_lake_testing.ledger import Ledger
from cdc_lake_testing.watermarks import Watch
from tests.conftest import Database
from tests.live.test_receive_loop import once, project_of
from tests.seeds import one_seed
from tests.tally import tally

pytestmark = pytest.mark.live

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
OLDER = "older"
"""The folder beside the lake that has it as it was after the first run."""

Lose: TypeAlias = Callable[[Project], None]


def control_table(name: str) -> Lose:
    def lose(project: Project) -> None:
        shutil.rmtree(project.control / name)

    return lose


def all_control_tables(project: Project) -> None:
    shutil.rmtree(project.control)


def bronze_gone(project: Project) -> None:
    shutil.rmtree(project.bronze)


def bronze_put_back(project: Project) -> None:
    bronze_gone(project)
    shutil.copytree(project.root / OLDER / project.bronze.relative_to(project.lake), project.bronze)


def everything_put_back(project: Project) -> None:
    shutil.rmtree(project.lake)
    shutil.copytree(project.root / OLDER, project.lake)


def notes_gone(project: Project) -> None:
    shutil.rmtree(project.lake / "logs")


LOSSES: dict[str, tuple[Lose, str | None]] = {
    "row of the stream": (control_table("streams"), None),
    "rows of the copy": (control_table("snapshots"), "SRC230"),
    "rows of the configuration": (control_table("configurations"), None),
    "all control tables": (all_control_tables, "SRC230"),
    "bronze": (bronze_gone, "LAK427"),
    "bronze, put back to an older one": (bronze_put_back, "SRC215"),
    "the lake, put back to an older one": (everything_put_back, "SRC215"),
    "the receiver's notes": (notes_gone, None),
}
"""What is lost, and the code of the error that says so; None: the next run does without it."""


def ended(project: Project) -> CdcLakeError | None:
    try:
        once(project)
    except CdcLakeError as error:
        return error
    return None


@pytest.mark.parametrize("what", LOSSES if BUDGET > 1 else random.Random(one_seed()).sample([*LOSSES], 3))
def test_a_receiver_recovers_what_is_lost_or_refuses_and_skips_nothing(
    database: Database, tmp_path: Path, what: str
) -> None:
    lose, code = LOSSES[what]
    project = project_of(database, tmp_path)
    with database.connect() as conn:
        ledger = written(conn, 3)
        once(project)
        ledger.write(3)
        once(project)
        shutil.copytree(project.lake, tmp_path / OLDER)
        ledger.write(4)
        once(project)
        shutil.copytree(project.lake, tmp_path / "as it was")
        watch = Watch(project)
        watch.look()
        lose(project)
        ledger.write(3)
        error = ended(project)
        assert (None if error is None else error.code) == code, error
        if error is not None:
            shutil.rmtree(project.lake)
            shutil.copytree(tmp_path / "as it was", project.lake)
            once(project)
        watch.look()
        known = Known(source=True, silver=False, ledger=ledger, watch=watch)
        invariants(project, known).assert_held("I1", "I2", "I3", "I5", "I6")
    tally("R13", [what], losses=1, refused=int(error is not None))


def test_a_second_deployment_of_the_same_name_takes_nothing_from_the_first(database: Database, tmp_path: Path) -> None:
    first, second = project_of(database, tmp_path / "first"), project_of(database, tmp_path / "second")
    with database.connect() as conn:
        ledger = written(conn, 3)
        once(first)
        ledger.write(3)
        error = ended(second)
        assert error is not None
        assert error.code == "SRC214"
        once(first)
        invariants(first, Known(source=True, silver=False, ledger=ledger)).assert_held("I1", "I2", "I3", "I5", "I6")
    tally("R13", ["two deployments of one name"], losses=1, refused=1)


def written(conn: psycopg.Connection[Any], transactions: int) -> Ledger:
    ledger = Ledger(conn, random.Random(one_seed()))
    ledger.write(transactions)
    return ledger
