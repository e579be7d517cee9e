"""The same walks where the stream announces no layouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Database
from tests.decoding_postgres import server  # noqa: F401 - a fixture
from tests.live.test_random_walks import BUDGET, Round, printing
from tests.live.test_receive_loop import once, project_of
from tests.seeds import seeds

pytestmark = pytest.mark.live

LEFT_OUT = frozenset({"parts", "nothing", "rekeys"})
"""Partitions are tables of their own here. The other two are left out for what is known to go wrong: a key that is updated
under REPLICA IDENTITY NOTHING is taken for another row where the identity is DEFAULT again before it is read, and a key
that moved under REPLICA IDENTITY FULL may be that of now.
"""
SEEDS = seeds(100 if BUDGET > 1 else 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_walks_over_test_decoding_end_equal_or_wait_for_what_mends_them(
    database: Database, tmp_path: Path, seed: int
) -> None:
    project = project_of(database, tmp_path, source={"slot": {"plugin": "test_decoding"}})
    with printing(database) as conn:
        walks = Round(conn, project, seed)
        walks.run(lambda: once(project), without=LEFT_OUT)
    print(walks.outcomes)
