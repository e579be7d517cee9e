"""Silver and cuts by a clock that is a day behind or ahead are those of a right one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cdc_lake.errors import ClockBehind
from cdc_lake_testing.faults import Pipeline
from cdc_lake_testing.workload import Workload
from cdc_lake_testing.wrong_clock import WrongClock
from tests.conftest import Database
from tests.live.test_clock import DAY, clock, pipeline_of
from tests.live.test_clock import pytestmark as needs
from tests.tally import tally

pytestmark = [*needs, pytest.mark.slow, pytest.mark.spark, pytest.mark.usefixtures("jars")]

__all__ = ["clock"]


@contextmanager
def begun(
    database: Database, root: Path, clock: WrongClock, dice: random.Random, fmt: str
) -> Iterator[tuple[Pipeline, Pipeline, Workload]]:
    """A pipeline that ran once by the right clock, the same by the wrong one, and its source, with more to come."""
    right = pipeline_of(database, root, f"{fmt}_by_a_wrong_clock", {}, fmt)
    with database.connect() as conn:
        workload = Workload(conn, dice.randrange(1 << 30))
        workload.create_tables()
        workload.run(30)
        right.do("run", "--once")
        workload.run(30)
        yield right, Pipeline(right.file, clock.environment), workload


def test_silver_and_cuts_by_a_wrong_clock_are_true(
    database: Database, tmp_path: Path, clock: WrongClock, dice: random.Random
) -> None:
    """A table is paused by the right clock and resumed by one that is behind: it goes on."""
    with begun(database, tmp_path, clock, dice, "delta") as (right, wrong, workload):
        right.do("pause", "public.w_items")
        clock.shift(-DAY)
        wrong.do("run", "--once")
        wrong.do("resume", "public.w_items")
        workload.run(30)
        wrong.do("run", "--once")
        print(wrong.prove())
        clock.shift(DAY)
        workload.run(30)
        wrong.do("run", "--once")
        workload.run(30)
        right.do("run", "--once")
        print(right.prove())
    tally("R18", {"silver, a day behind", "silver, a day ahead"}, shifts=2)


@pytest.mark.obeys("LAK414")
def test_iceberg_waits_for_a_clock_that_is_behind_its_last_snapshot(
    database: Database, tmp_path: Path, clock: WrongClock, dice: random.Random
) -> None:
    """It takes no older one; the other tables go on, and by the right clock it does too."""
    with begun(database, tmp_path, clock, dice, "iceberg") as (right, wrong, workload):
        clock.shift(-DAY)
        assert ClockBehind.code in wrong.do("run", "--once", expect=ClockBehind.status()).said
        right.do("run", "--once")
        print(right.prove())
        workload.run(30)
        clock.shift(DAY)
        wrong.do("run", "--once")
        print(wrong.prove())
    tally("R18", {"Iceberg, a day behind", "Iceberg, a day ahead"}, shifts=2)
