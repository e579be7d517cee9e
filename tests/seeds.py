"""Seeds of tests that are collected once for each: CDC_LAKE_SEED alone, or as many as asked for by chance."""

from __future__ import annotations

import os
import random


def seeds(count: int) -> list[int]:
    """Processes side by side must collect the same tests, so their chance is that of the run."""
    if "CDC_LAKE_SEED" in os.environ:
        return [int(os.environ["CDC_LAKE_SEED"])]
    chance = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID"))
    return [chance.getrandbits(32) for _ in range(count)]
