"""The random walks of tests/live/test_random_walks.py into silver that apply writes, on Delta and on Iceberg.

All tables of a round are one pipeline's, so that each run merges them side by side. While the walks go on, apply runs
now and then, and does what some of the tables that wait print; at the end it does so for all of them.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.config.project import Project
from cdc_lake.decode.mppdb.records import Style
from cdc_lake.errors import CdcLakeError
from cdc_lake.lake.read import read_silver
from cdc_lake.model.relation import TableName
from cdc_lake.observe.progress import silent
from cdc_lake.pipeline.applying.advance import Advance
from cdc_lake.pipeline.applying.watching import watching
from cdc_lake.testing.altered import Altered
from cdc_lake.testing.folded import Row
from tests.decoding_postgres import server  # noqa: F401 - a fixture
from tests.live.test_gaussdb_receive import project_of as family_project
from tests.live.test_gaussdb_workload import stand_in
from tests.live.test_random_walks import ONLY, Round, allowed, printing
from tests.live.test_random_walks_by_lines import KINDS, LEFT_OUT
from tests.live.test_receive_loop import once, project_of
from tests.seeds import one_seed, seeds
from tests.silver_rows import silver_rows

from .conftest import BUDGET
from .formats import BOTH

pytestmark = [
    pytest.mark.spark,
    pytest.mark.live,
    # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"),
]

__all__ = ["stand_in"]

PLUGINS = ("pgoutput", "test_decoding", "family")
TABLES = 10 if BUDGET > 1 else 2


@dataclass
class Lake:
    """Silver of all tables of a pipeline. `words`: what a run allows; `fresh`: whether a run saw all there is."""

    project: Project
    spark: Any
    seed: int
    words: set[str] = field(default_factory=set)
    broken: dict[str, CdcLakeError] = field(default_factory=dict)
    fresh: bool = False
    asked: Counter[str] = field(default_factory=Counter)

    def _dice(self, what: str) -> random.Random:
        """For one walk of a round alone they fall as for all of them."""
        self.asked[what] += 1
        return random.Random(f"{self.seed} {what} {self.asked[what]}")

    def receive(self) -> None:
        """The receiver, and now and then apply, whose questions are answered at times."""
        once(self.project)
        self.fresh = False
        while self._dice("run").random() < 0.5:
            self.run()
            for label, failed in self.broken.items():
                if "resync" not in failed.remedy and self._dice(label).random() < 0.5:
                    self.words |= allowed(failed) or set()

    def run(self) -> None:
        """Apply what bronze has."""
        watcher = watching(self.project, silent)
        with watcher, Advance(self.project, self.spark, watcher.heard, allowed=self.words) as advance:
            advance.run(None, threading.Event())
        self.broken, self.fresh = advance.done.broken, True

    def table(self, walk: Altered) -> SilverTable:
        """The table of a walk."""
        return SilverTable(self, TableName("public", walk.name))


@dataclass
class SilverTable:
    """A table as a round asks it: a run brings all of them forward, if there is something that no run knew of."""

    lake: Lake
    source: TableName
    allowed: set[str] = field(default_factory=set)

    @property
    def rows(self) -> list[Row]:
        return silver_rows(self.lake.project, self.lake.project.target(self.source))

    @property
    def columns(self) -> dict[str, str]:
        schema = read_silver(self.lake.project, self.lake.project.target(self.source)).schema
        return {name: str(kind) for name, kind in zip(schema.names, schema.types, strict=True)}

    def advance(self) -> CdcLakeError | None:
        if not self.lake.fresh or not self.allowed <= self.lake.words:
            self.lake.words |= self.allowed
            self.lake.run()
        return self.lake.broken.get(self.lake.project.target(self.source).label)


def cases() -> Iterable[Any]:
    """All plugins into all formats; in CI one of them, by the seed."""
    every = [(plugin, fmt) for plugin in PLUGINS for fmt in BOTH]
    return every if BUDGET > 1 else [random.Random(one_seed()).choice(every)]


@pytest.mark.parametrize("seed", seeds(20 if BUDGET > 1 else 1))
@pytest.mark.parametrize(("plugin", "fmt"), cases())
def test_walks_into_silver_end_equal_or_wait_for_what_mends_them(
    spark: Any, lake_root: Path, request: pytest.FixtureRequest, plugin: str, fmt: str, seed: int
) -> None:
    name = f"walks_{plugin}_{fmt}_{seed}"
    silver = {"defaults": {"format": fmt, "namespace": name}}
    without = LEFT_OUT if plugin != "pgoutput" else frozenset()
    if plugin == "family":
        source = request.getfixturevalue("stand_in")
        database, kind = source.database, KINDS[seed % len(KINDS)]
        project = family_project(source, kind, lake_root, silver=silver)
        without |= frozenset() if kind.style is Style.SERIAL else {"truncates"}
    else:
        database = request.getfixturevalue("database")
        project = project_of(database, lake_root, source={"slot": {"name": name, "plugin": plugin}}, silver=silver)
    project = replace(project, pipeline=project.pipeline.model_copy(update={"pipeline": name}))
    lake = Lake(project, spark, seed)
    numbers = range(TABLES) if ONLY is None else (int(ONLY),)
    with printing(database) as conn:
        walks = Round(conn, lake.project, seed, numbers, silver=lake.table)
        walks.run(lake.receive, without)
    print(walks.outcomes)
