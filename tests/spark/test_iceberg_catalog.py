"""A catalog that nobody used yet, opened by several sessions at once: as many tables of one pipeline are made."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.errors import CatalogKeepsNoVersions, ConcurrentModification, OtherCatalog
from cdc_lake.model.relation import TableName
from cdc_lake.tables.catalog import catalog_settings
from cdc_lake.tables.catalog_fence import Fence, silver_fence
from cdc_lake.tables.iceberg_silver import IcebergSilver
from cdc_lake.tables.maintenance import IcebergSilverMaintenance, Keep
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.schema_evolution import ChangeType
from cdc_lake.tables.silver_table import Marker
from cdc_lake.tables.spark_session import derive, static_settings
from cdc_lake.tables.types import SilverColumn
from cdc_lake_testing.rest_catalog import NESSIE, Limit, RestCatalogServer
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


LIMITS = {Fence.BRANCH: frozenset[Limit](), Fence.DRAFT: frozenset({Limit.REFS})}
COLUMNS = (SilverColumn("id", "int"), SilverColumn("note", "string"))
MERGE = (
    "MERGE INTO {} AS t USING (SELECT * FROM VALUES (1, 'new'), (2, 'b') AS v(id, note)) AS s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET note = s.note WHEN NOT MATCHED THEN INSERT *"
)


class Served:
    """A silver table in a REST catalog that leaves one of the fences to be used."""

    def __init__(self, spark: Any, root: Path, fence: Fence, server: RestCatalogServer) -> None:
        self.spark, self.fence, self.server = spark, fence, server
        lake = {"iceberg": {"catalog": f"served_{fence}", "type": "rest", "uri": server.uri}}
        self.project = make_project(root, lake=lake, silver={"defaults": {"format": "iceberg"}})
        self.target = self.project.target(TableName("public", "t"))
        self.silver = self.session()
        self.silver.create(COLUMNS, "s")
        self.silver.commit("s", self.base, 10, lambda to: f"INSERT INTO {to} VALUES (1, 'a')")

    def session(self) -> IcebergSilver:
        """One more writer."""
        session = derive(self.spark)
        for name, value in catalog_settings(self.project).items():
            session.conf.set(name, value)
        return IcebergSilver(session, self.project, self.target)

    @property
    def base(self) -> Marker:
        return self.silver.marker("s")

    @property
    def rows(self) -> dict[int, Any]:
        read = table_log(self.project, self.target).read().to_pylist()
        return {row["id"]: row["note"] for row in read}

    def tables(self) -> list[str]:
        """What the catalog has in the namespace."""
        return [name for *_, name in self.server.catalog.list_tables(self.target.namespace)]


@pytest.fixture(params=list(Fence))
def served(spark: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    with RestCatalogServer(tmp_path / "served", limits=LIMITS[request.param]) as server:
        table = Served(spark, tmp_path, request.param, server)
        assert silver_fence(table.project) is request.param
        yield table
        assert table.tables() == ["t"]


def test_a_statement_is_published_on_its_base_alone(served: Served) -> None:
    stale = served.base
    assert stale.position == 10
    version = served.silver.commit("s", stale, 20, MERGE.format)
    assert served.base == Marker(20, version)
    with pytest.raises(ConcurrentModification):
        served.silver.commit("s", stale, 30, lambda to: f"INSERT INTO {to} VALUES (3, 'c')")

    def rival(to: str) -> str:
        """Another session commits while the statement is being planned."""
        served.session().commit("s", Marker(20, version), 40, lambda other: f"INSERT INTO {other} VALUES (4, 'd')")
        return f"INSERT INTO {to} VALUES (5, 'e')"

    with pytest.raises(ConcurrentModification):
        served.silver.commit("s", served.base, 50, rival)
    assert (served.base.position, served.rows) == (40, {1: "new", 2: "b", 4: "d"})
    assert table_log(served.project, served.target).read(version).num_rows == 2, "versions before are read"
    served.silver.commit("s", served.base, 60, MERGE.format)
    assert served.rows == {1: "new", 2: "b", 4: "d"}


def test_columns_and_content_change_in_one_commit_and_old_versions_expire(served: Served) -> None:
    first = served.base
    served.silver.reshape("s", first, 15, [ChangeType("id", "int", "string")], "true")
    assert [column.type for column in served.silver.columns() or ()] == ["string", "string"]
    columns = (*COLUMNS, SilverColumn("more", "boolean"))
    query = "SELECT 7 AS id, 'z' AS note, true AS more"
    version = served.silver.replace("s", served.base, 2, 70, columns, query)
    assert served.base == Marker(70, version, 2)
    with pytest.raises(ConcurrentModification):
        served.silver.replace("s", first, 3, 80, columns, query)
    served.silver.commit("s", served.base, 90, lambda to: f"UPDATE {to} SET note = 'y'")
    assert served.rows == {7: "y"}
    log = table_log(served.project, served.target)
    assert first.version is not None
    assert log.is_readable(first.version)
    now = datetime.now(UTC)
    keep = Keep(frozenset(), now + timedelta(hours=1))
    list(IcebergSilverMaintenance(served.session()._spark, served.project, served.target).run_steps(keep, now))
    assert not log.is_readable(first.version)
    assert (served.base.position, served.rows) == (90, {7: "y"})


def test_a_catalog_without_a_fence_is_refused_before_a_table_is_made(spark: Any, tmp_path: Path) -> None:
    with RestCatalogServer(tmp_path / "served", limits=NESSIE) as server, pytest.raises(CatalogKeepsNoVersions):
        Served(spark, tmp_path, Fence.DRAFT, server)


def test_a_session_that_has_another_pipelines_catalog_is_refused(spark: Any, tmp_path: Path) -> None:
    project = make_project(tmp_path, silver={"defaults": {"format": "iceberg"}})
    with pytest.raises(OtherCatalog, match=str(project.lake)):
        IcebergSilver(derive(spark), project, project.target(TableName("public", "t"))).columns()
