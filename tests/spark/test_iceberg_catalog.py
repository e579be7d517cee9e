"""A catalog that nobody used yet, opened by several sessions at once: as many tables of one pipeline are made."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.errors import ConcurrentModification, OtherCatalog
from cdc_lake.model.relation import TableName
from cdc_lake.tables.catalog import catalog_settings
from cdc_lake.tables.iceberg_silver import IcebergSilver
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.silver_table import Marker
from cdc_lake.tables.spark_session import derive, static_settings
from cdc_lake.tables.types import SilverColumn
from cdc_lake_testing.rest_catalog import RestCatalogServer
from tests.pipeline_file import make_project

from .conftest import BUDGET

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("attempt", range(4 if BUDGET > 1 else 1))
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


def test_spark_and_pyiceberg_share_a_rest_catalog(spark: Any, tmp_path: Path) -> None:
    with RestCatalogServer(tmp_path / "served") as server:
        lake = {"iceberg": {"catalog": "served_here", "type": "rest", "uri": server.uri}}
        project = make_project(tmp_path, lake=lake, silver={"defaults": {"format": "iceberg"}})
        session, target = derive(spark), project.target(TableName("public", "t"))
        for name, value in catalog_settings(project).items():
            session.conf.set(name, value)
        silver = IcebergSilver(session, project, target)
        assert silver.columns() is None
        silver.create((SilverColumn("id", "int"), SilverColumn("note", "string")), "s")
        assert silver.marker("s") == Marker(None, None)
        version = silver.commit("s", silver.marker("s"), 10, lambda to: f"INSERT INTO {to} VALUES (1, 'a')")
        stale = silver.marker("s")
        assert stale == Marker(10, version)
        silver.commit("s", stale, 20, lambda to: f"INSERT INTO {to} VALUES (2, 'b')")
        with pytest.raises(ConcurrentModification):
            silver.commit("s", stale, 30, lambda to: f"INSERT INTO {to} VALUES (3, 'c')")
        assert silver.marker("s").position == 20
        assert sorted(table_log(project, target).read()["id"].to_pylist()) == [1, 2]


def test_a_session_that_has_another_pipelines_catalog_is_refused(spark: Any, tmp_path: Path) -> None:
    project = make_project(tmp_path, silver={"defaults": {"format": "iceberg"}})
    with pytest.raises(OtherCatalog, match=str(project.lake)):
        IcebergSilver(derive(spark), project, project.target(TableName("public", "t"))).columns()
