"""A catalog that nobody used yet, opened by several sessions at once: as many tables of one pipeline are made."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.lake.iceberg import IcebergSilver
from cdc_lake.lake.session import derive, static_settings
from cdc_lake.model.relation import TableName

from .conftest import make_project

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("attempt", range(4))
def test_sessions_that_open_a_new_catalog_at_once_do_not_meet(spark: Any, tmp_path: Path, attempt: int) -> None:
    lake = {"iceberg": {"catalog": f"fresh_{attempt}"}}
    project = make_project(tmp_path, lake=lake, silver={"defaults": {"format": "iceberg"}})
    project.lake.mkdir()
    sessions = [derive(spark) for _ in range(6)]
    for session in sessions:
        for name, value in static_settings(project).items():
            if name.startswith(f"spark.sql.catalog.fresh_{attempt}"):
                session.conf.set(name, value)
    tables = [
        IcebergSilver(session, project, project.target(TableName("public", f"t{n}")))
        for n, session in enumerate(sessions)
    ]
    with ThreadPoolExecutor(len(tables)) as threads:
        assert list(threads.map(IcebergSilver.columns, tables)) == [None] * len(tables)
