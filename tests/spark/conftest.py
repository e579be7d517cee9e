"""One Spark session a test process, on a lake of its own."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.tables.spark_session import RUNTIME_SETTINGS, apply_settings, start
from tests.conftest import INTERPRETED, filling_jars
from tests.pipeline_file import make_project

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
COMPILED = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.sql.adaptive.enabled": "true",
}
"""As in production."""


_named: Counter[str] = Counter()


def new_name(name: str, fmt: str) -> str:
    """A pipeline's name that no test before has in the folder they share (which Spark's catalog has)."""
    name = f"{name}_{fmt}"
    _named[name] += 1
    return name if _named[name] == 1 else f"{name}_{_named[name]}"


@pytest.fixture(scope="session")
def lake_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="session")
def spark(lake_root: Path) -> Iterator[Any]:
    with filling_jars():
        session = start(make_project(lake_root))
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def settings(spark: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of the session and of those that are derived from it."""
    compiled = BUDGET > 1 or request.node.get_closest_marker("compiled") is not None
    for key, value in (COMPILED if compiled else INTERPRETED).items():
        monkeypatch.setitem(RUNTIME_SETTINGS, key, value)
    apply_settings(spark)
