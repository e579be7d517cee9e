"""One Spark session a test process, on a lake of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.lake.session import derive, start
from tests.conftest import filling_jars

INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}
"""For tests of hundreds of small rows and large plans: to compile what they ask takes longer than to interpret it
(half the time of such a test, measured).
"""


def make_project(root: Path, name: str = "shop", **sections: Any) -> Project:
    source = {"type": "postgres", "host": "h", "database": "d", "user": "u", "tables": ["public.*"]}
    values = {"version": 1, "pipeline": name, "source": source, **sections}
    root.mkdir(parents=True, exist_ok=True)
    return Project(Pipeline.model_validate(values), root / "shop.yaml", root)


@pytest.fixture(scope="session")
def lake_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="session")
def spark(lake_root: Path) -> Iterator[Any]:
    with filling_jars():
        session = start(make_project(lake_root))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def interpreted(spark: Any) -> Any:
    """A session with the settings `INTERPRETED`."""
    session = derive(spark)
    for key, value in INTERPRETED.items():
        session.conf.set(key, value)
    return session
