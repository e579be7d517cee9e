"""Seeds of what tests draw by chance: CDC_LAKE_SEED repeats one; CDC_LAKE_CHANCE says which ones are drawn, as a run in CI does."""

from __future__ import annotations

import os
import random

import pytest


def seeds(count: int) -> list[int]:
    """As many as asked for, or CDC_LAKE_SEED alone. Processes side by side must collect the same tests, so their chance is that of the run."""
    if "CDC_LAKE_SEED" in os.environ:
        return [int(os.environ["CDC_LAKE_SEED"])]
    chance = random.Random(os.environ.get("CDC_LAKE_CHANCE", os.environ.get("PYTEST_XDIST_TESTRUNUID")))
    return [chance.getrandbits(32) for _ in range(count)]


def one_seed() -> int:
    """The first of them, for a test that draws everything from one."""
    return seeds(1)[0]


@pytest.fixture
def dice() -> random.Random:
    seed = one_seed()
    print(f"seed {seed}")
    return random.Random(seed)
