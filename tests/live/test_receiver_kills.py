"""A receiver killed (-9) at every crash point of its own: nothing is lost, nothing is there twice, no reader sees a part.

Points 1 to 11, 18, and 20 to 24 of `cdc-lake inspect failpoints`. `CDC_LAKE_BUDGET` above 1 takes every point with each
of twenty seeds, over all sources and formats; by default each point once, dealt out among three of them.
"""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path

import pytest

from cdc_lake.comparison.bronze_vs_source import against_source
from cdc_lake.observability import failpoints as at
from cdc_lake_testing.kills import (
    KILLED,
    RECEIVING,
    Watching,
    receive_boasting,
    receive_unanswered,
    receive_until_killed,
)
from cdc_lake_testing.ledger import Ledger
from tests.conftest import Database
from tests.live import test_receive_loop
from tests.live.kill_sources import BRONZE, Ground, decoding_server, ground, receivers_of
from tests.live.test_gaussdb_workload import stand_in
from tests.seeds import one_seed, seeds
from tests.tally import tally

pytestmark = [pytest.mark.live, pytest.mark.timeout(3600)]

__all__ = ["decoding_server", "stand_in"]

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
SEEDS = {
    ("pgoutput", "delta"): 6,
    ("pgoutput", "iceberg"): 4,
    ("test_decoding", "delta"): 2,
    ("test_decoding", "iceberg"): 3,
    ("family", "delta"): 3,
    ("family", "iceberg"): 2,
}
"""How many seeds each has."""
SMALL = [("pgoutput", "delta"), ("test_decoding", "iceberg"), ("family", "delta")]
TRIES = 10
"""Starts until a point came about: small files become one after some commits, say."""


def cases() -> list[tuple[str, str, int, int]]:
    """Source, format, seed, and its number."""
    chosen = SMALL if BUDGET == 1 else [case for case, many in SEEDS.items() for _ in range(many)]
    drawn = itertools.cycle(seeds(len(chosen)))
    return [(*case, next(drawn), number) for number, case in enumerate(chosen)]


def points(number: int, there: Ground) -> tuple[list[str], list[str]]:
    """Where it is killed in the copy, and behind it."""
    if BUDGET > 1:
        return list(there.copying), there.dice.sample(there.receiving, len(there.receiving))
    dealt = random.Random(one_seed()).sample(RECEIVING, len(RECEIVING))[number :: len(SMALL)]
    own = [name for name in there.receiving if name not in RECEIVING]
    copied = set(there.dice.sample(there.copying, 2))
    return [name for name in there.copying if name in copied], [*dealt, *own]


class Killing:
    """Kills receivers of a pipeline, and counts."""

    def __init__(self, there: Ground) -> None:
        self._there = there
        self.kills = self.twice = 0

    def at(self, name: str, passages: int) -> None:
        """Kill one there, now and then a second time in a row. More is written until it comes about.

        A slot is kept once: who starts behind it copies to the end.
        """
        dice = self._there.dice
        for passage in (dice.randint(1, passages), *[1] * TRIES):
            if self._dies(name, passage):
                break
            self._there.write()
        else:
            pytest.fail(f"{name} was not passed")
        if dice.random() < 0.25 and name != at.SLOT_KEPT:
            if dice.random() < 0.5:
                self._there.write()
            self.twice += self._dies(name, 1)

    def _dies(self, name: str, passage: int) -> bool:
        target = receive_unanswered if name == at.COMMIT_DOUBTED else receive_until_killed
        if name in {at.BEGUN, at.CHANGE_TAKEN, at.FRAME_PART}:
            self._there.broken()
        code = self._there.receivers.run(f"{name}:{passage}", target=target)
        assert code in {0, KILLED}, f"{name} ended with {code}"
        self.kills += code == KILLED
        return code == KILLED


@pytest.mark.parametrize(("source", "fmt", "seed", "number"), cases())
def test_killed_at_every_point_bronze_ends_as_its_source(
    request: pytest.FixtureRequest, tmp_path: Path, source: str, fmt: str, seed: int, number: int
) -> None:
    with ground(source, request, tmp_path, random.Random(seed), bronze={**BRONZE, "format": fmt}) as there:
        killing = Killing(there)
        copying, receiving = points(number, there)
        print(f"seed {seed}, {source}, {fmt}: {', '.join([*copying, *receiving])}")
        there.workload.run(20)
        there.ledger.write(3)
        for name in copying:
            killing.at(name, 2 if name in {at.FILE_WRITTEN, at.COMMIT_WRITTEN, at.SNAPSHOT_CHUNK} else 1)
        assert there.receivers.run() == 0
        with Watching(there.project) as watching:
            for name in receiving:
                there.write()
                killing.at(name, 2)
            assert there.receivers.run() == 0
        assert watching.looks > 0
        there.assert_proven()
        tally("R1", [*copying, *receiving], kills=killing.kills, twice=killing.twice, changes=len(there.ledger.written))


def test_a_receiver_whose_every_commit_fails_and_lands_goes_on(database: Database, tmp_path: Path) -> None:
    project = test_receive_loop.project_of(database, tmp_path, bronze=BRONZE)
    receivers = receivers_of(project, database.password)
    with database.connect() as conn:
        ledger = Ledger(conn, random.Random(one_seed()))
        ledger.write(3)
        for _ in range(2):
            assert receivers.run(target=receive_unanswered) == 0
            ledger.write(10)
        assert receivers.run(target=receive_unanswered) == 0
    assert against_source(project).holds


def test_a_receiver_that_confirms_before_it_commits_is_found_out(database: Database, tmp_path: Path) -> None:
    """The negative control."""
    project = test_receive_loop.project_of(database, tmp_path, bronze=BRONZE)
    receivers = receivers_of(project, database.password)
    with database.connect() as conn:
        ledger = Ledger(conn, random.Random(one_seed()))
        assert receivers.run() == 0
        # The first thing confirmed may be a place between two transactions: then nothing is lost yet.
        for _ in range(5):
            ledger.write(30)
            assert receivers.run(f"{at.CONFIRMED}:1", target=receive_boasting) == KILLED
            proof = against_source(project)
            assert proof.chain.holds, "what is there is whole"
            if not proof.holds:
                break
    assert (proof.holds, proof.forgotten) == (False, True)
