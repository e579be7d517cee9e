"""Which formats of silver a test is run on.

What depends on the format (commits, markers, merges, upkeep, layouts, fences) is shown on both, at any budget, but in a run
of the whole suite, which draws one of them (`tests/conftest.py`). What comes before it is shown on both with a greater
budget, and with that of `make test` on one: Delta for some tests and Iceberg for others, whose merges of few rows take
less than half of the time (measured).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import pytest

from tests.seeds import one_seed

from .conftest import BUDGET

Test = TypeVar("Test", bound=Callable[..., None])
BOTH = ("delta", "iceberg")
FORMATS = pytest.mark.parametrize("fmt", BOTH)
"""On both."""
BESIDE: Literal["delta", "iceberg"] = "iceberg" if BUDGET == 1 else "delta"
"""The format of a table that stands beside the one that a test is about."""


def drawn(test: Test) -> Test:
    """On both with a greater budget, otherwise on one, by the seed."""
    one = random.Random(f"{one_seed()} {test.__name__}").choice(BOTH)
    return either(one)(test)


def either(fmt: str) -> Any:
    """On both with a greater budget, otherwise on this one."""
    return pytest.mark.parametrize("fmt", BOTH if BUDGET > 1 else (fmt,))
