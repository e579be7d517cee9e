"""State of apply that is lost between two runs: it recovers exactly, or refuses by a code and loses nothing.

That of a receiver is in tests/live/test_state_loss.py; checkpoints and tables that were put back are in
test_apply_concurrent, what retention let go in test_apply_during_maintenance, a table that is gone in test_apply_cases. By default three
of them, by the seed; with a greater budget all.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from cdc_lake.errors import CdcLakeError
from tests.seeds import one_seed
from tests.tally import tally

from .committed_lake import BETWEEN, Told, breaks, update
from .conftest import BUDGET
from .formats import drawn
from .test_apply_cases import insert

pytestmark = pytest.mark.spark

Lose: TypeAlias = Callable[[Told], Path]
"""Loses something; where it was."""


def control_table(name: str) -> Lose:
    return lambda lake: lake.project.control / name


def checkpoint(lake: Told) -> Path:
    return lake.project.checkpoint


def data_file(lake: Told) -> Path:
    """One that silver has not read yet, as a vacuum behind the reader takes it."""
    return max(lake.project.bronze.glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns)


LOSSES: dict[str, tuple[Lose, str | None]] = {
    "checkpoint": (checkpoint, None),
    "rows of the cuts": (control_table("cuts"), None),
    "rows of what is held": (control_table("quarantine"), "STA613"),
    "rows of the runs": (control_table("runs"), None),
    "a file of bronze": (data_file, "LAK422"),
}
"""What is lost, and the code of the error that says so; None: the next run does without it."""


def ended(lake: Told) -> CdcLakeError | None:
    try:
        lake.apply()
    except CdcLakeError as error:
        return error
    return None


@drawn
def test_apply_recovers_what_is_lost_or_refuses_and_skips_nothing(spark: Any, lake_root: Path, fmt: str) -> None:
    lake = Told(lake_root, spark, "losses", fmt, rules=[BETWEEN])
    lake.land(insert("1", "1"), insert("2", "95"))
    lake.apply()
    lake.land(update("1", "2", "b"), insert("3", "3"))
    lake.apply()
    chosen = LOSSES if BUDGET > 1 else random.Random(one_seed()).sample([*LOSSES], 3)
    for number, what in enumerate(chosen, start=4):
        lost, code = LOSSES[what]
        lake.land(insert(str(number), "1"))
        lake.land(update("2", str(number), "b"))  # behind the held one
        place = lost(lake)
        assert place.exists(), what
        place.rename(place.with_name("lost"))
        error = ended(lake)
        assert (None if error is None else error.code) == code, f"{what}: {error!r}"
        if error is not None:
            if place.exists():
                shutil.rmtree(place)
            place.with_name("lost").rename(place)
            lake.apply()
        lake.assert_kept(breaks)
        shutil.rmtree(place.with_name("lost"), ignore_errors=True)
        tally("R13", [what], losses=1, refused=int(error is not None))
