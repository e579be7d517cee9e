"""A receiver killed (-9) at any moment while the source is written to: nothing is lost, nothing is there twice.

The first kills find it in its initial copy. Half of them come some moment behind its first commit, so that it dies at
work on a machine of any speed, the others at any moment from its start on. `CDC_LAKE_BUDGET` 10 kills a hundred times
on each source, half of them into Delta and half into Iceberg, and goes on until two million rows went by, most of them at
the two that are real servers.
"""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import pytest

from cdc_lake_testing.beside import beside, until
from tests.bronze_replay import landed_position
from tests.live.kill_sources import Ground, decoding_server, ground
from tests.live.test_gaussdb_workload import stand_in
from tests.seeds import seeds
from tests.tally import tally

pytestmark = [pytest.mark.live, pytest.mark.timeout(3600)]

__all__ = ["decoding_server", "stand_in"]

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
FULL = BUDGET >= 10
KILLS = 5 * BUDGET if FULL else 10 * BUDGET
CHANGES = {"pgoutput": 500_000, "test_decoding": 450_000, "family": 50_000}
"""Rows that go by into each format at full budget; the stand-in retells them one by one."""
CASES = [(source, fmt) for source in CHANGES for fmt in ("delta", "iceberg")]
SMALL = [("pgoutput", "delta"), ("test_decoding", "iceberg"), ("family", "delta")]
SIZES = (1, 3, 20, 200, 2000)
"""Rows of a transaction."""
PER_SECOND = 10_000
"""Rows that are written, or a little less: what a receiver leaves behind it, it has to catch up with."""


class Load:
    """Transactions of every size, until told to stop; with a `most` they become small once that many rows went by."""

    def __init__(self, there: Ground, most: int) -> None:
        self._there = there
        self._most = most

    @property
    def enough(self) -> bool:
        return len(self._there.ledger.written) >= self._most

    def write(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._there.workload.run(1)
            size = self._there.dice.choice(SIZES[:2] if self.enough else SIZES)
            self._there.ledger.insert(size)
            stop.wait(max(size / PER_SECOND, 0.005))


@pytest.mark.parametrize(("source", "fmt"), CASES if FULL else SMALL)
def test_killed_at_any_moment_under_load_bronze_ends_as_its_source(
    request: pytest.FixtureRequest, tmp_path: Path, source: str, fmt: str
) -> None:
    seed = seeds(1)[0]
    dice = random.Random(f"{seed} {source}")
    sections = {"bronze": {"format": fmt}, "snapshot": {"chunk_rows": 2000}}
    with ground(source, request, tmp_path, random.Random(f"{seed} written"), **sections) as there:
        print(f"seed {seed}, {there.project.slot}")
        there.workload.run(40)
        assert there.receivers.run() == 0  # a TRUNCATE beside the copy would end it, by its name
        load = Load(there, CHANGES[source] if FULL else 5_000 * BUDGET)
        kills = landing = 0
        with beside(load.write):
            while kills < KILLS or not load.enough:
                before = landed_position(there.project)
                with there.receivers.running():
                    if dice.random() < 0.5:
                        until(lambda before=before: landed_position(there.project) > before, "a commit of bronze")
                        time.sleep(dice.uniform(0, 0.3))
                    else:
                        time.sleep(dice.uniform(0, 1.2))
                kills += 1
                landing += landed_position(there.project) > before
        print(f"{landing} of {kills} had committed something")
        assert there.receivers.run(seconds=900) == 0
        there.assert_proven()
        tally("R2", [f"{source}, {fmt}"], kills=kills, changes=len(there.ledger.written))
