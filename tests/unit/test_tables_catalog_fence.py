"""What a catalog can do is asked of it, and the fence of silver follows."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cdc_lake.config.project import Project, Target
from cdc_lake.errors import (
    CatalogKeepsNoVersions,
    CatalogNotConditional,
    CatalogReadOnly,
    CatalogWithoutFence,
    NameElsewhere,
)
from cdc_lake.model.relation import TableName
from cdc_lake.ops.check.runner import catalog_limits
from cdc_lake.tables.catalog import catalog_address, open_catalog
from cdc_lake.tables.catalog_fence import CatalogAbilities, Fence, choose_fence, probe, silver_fence
from cdc_lake.tables.delta_silver import _REGISTERED, _GlueNames, register
from cdc_lake.tables.iceberg_silver import StagedTable
from cdc_lake.tables.silver_table import table_ref
from cdc_lake.tables.store_options import delta_options
from cdc_lake_testing.object_store import ACCESS_KEY, SECRET_KEY, LocalStore
from cdc_lake_testing.rest_catalog import NESSIE, Limit, RestCatalogServer
from tests.pipeline_file import make_project

ALL = CatalogAbilities(branches=True, tags=True, versions=True, conditional=True, registers=True)


def on(server: RestCatalogServer, root: Path) -> Project:
    return make_project(root, lake={"iceberg": {"type": "rest", "uri": server.uri}})


@pytest.mark.parametrize(
    ("limits", "fence"),
    [
        ((), Fence.BRANCH),
        ({Limit.REGISTER}, Fence.BRANCH),
        ({Limit.REFS}, Fence.DRAFT),
        pytest.param({Limit.REFS, Limit.REGISTER}, CatalogWithoutFence, marks=pytest.mark.obeys("LAK439")),
        pytest.param({Limit.VERSIONS}, CatalogKeepsNoVersions, marks=pytest.mark.obeys("LAK434")),
        (NESSIE, CatalogKeepsNoVersions),
        pytest.param({Limit.CONDITIONS}, CatalogNotConditional, marks=pytest.mark.obeys("LAK433")),
        pytest.param({Limit.WRITE}, CatalogReadOnly, marks=pytest.mark.obeys("LAK432")),
    ],
)
def test_a_catalog_gets_the_fence_that_it_allows_and_another_one_works_where_it_has_none(
    tmp_path: Path, limits: Collection[Limit], fence: Fence | type[Exception]
) -> None:
    with RestCatalogServer(tmp_path / "limited", limits=limits) as limited, RestCatalogServer(tmp_path / "a") as full:
        if isinstance(fence, Fence):
            assert silver_fence(on(limited, tmp_path)) is fence
        else:
            with pytest.raises(fence, match="the Iceberg catalog `lake`") as refused:
                silver_fence(on(limited, tmp_path))
            print(refused.value.remedy)
            assert silver_fence(on(full, tmp_path)) is Fence.BRANCH, "another catalog"
            limited.limits = ()
            assert silver_fence(on(limited, tmp_path)) is Fence.BRANCH, "a newer one, or another role"
        assert limited.catalog.list_tables("silver") == []
        requests = limited.commits
        silver_fence(on(limited, tmp_path))
        assert limited.commits == requests, "one probe in a process is enough"


def test_a_catalog_of_sql_tables_is_not_asked(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    assert silver_fence(project) is Fence.BRANCH
    assert not (tmp_path / "lake").exists()


def test_check_says_what_a_catalog_with_a_fence_cannot_do(tmp_path: Path) -> None:
    with RestCatalogServer(tmp_path / "a") as full, RestCatalogServer(tmp_path / "b", limits={Limit.REFS}) as limited:
        assert list(catalog_limits(on(full, tmp_path))) == []
        (line,) = catalog_limits(on(limited, tmp_path))
        assert (line.ok, line.subject) == (None, "fence")
        assert "keeps no tags" in line.text
    with RestCatalogServer(tmp_path / "c", limits={Limit.REGISTER}) as limited:
        (line,) = catalog_limits(on(limited, tmp_path))
        assert "can be neither rebuilt" in line.text


def test_a_table_is_not_staged_in_a_catalog_that_registers_none(tmp_path: Path) -> None:
    with RestCatalogServer(tmp_path / "a", limits={Limit.REGISTER}) as limited:
        project = on(limited, tmp_path)
        catalog = open_catalog(catalog_address(project))
        catalog.create_namespace("silver")
        catalog.create_table("silver.t", pa.schema([("id", pa.int64())]))
        target = Target(TableName("public", "t"), "silver", "t", "iceberg", None, ())
        with pytest.raises(CatalogWithoutFence, match="registerTable"), StagedTable(project, target):
            pass
        assert catalog.list_tables("silver") == [("silver", "t")]


def test_what_is_missing_most_is_named_first() -> None:
    assert choose_fence(ALL, "c") is Fence.BRANCH
    assert isinstance(choose_fence(CatalogAbilities(), "c"), CatalogNotConditional)
    assert isinstance(choose_fence(CatalogAbilities(refusal="no"), "c"), CatalogReadOnly)


@pytest.mark.parametrize("conditional", [True, False])
def test_a_glue_that_ignores_the_condition_of_an_update_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, conditional: bool
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "kit")
    with LocalStore() as store:
        store.bucket("lake")
        store.conditional.checks_versions = conditional
        storage: dict[str, Any] = {"endpoint": store.endpoint, "region": "us-east-1", "credentials": "environment"}
        lake = {
            "storage": {**storage, "allow_http": True},
            "iceberg": {"type": "glue", "uri": store.endpoint, "warehouse": "s3://lake/tables"},
        }
        project = make_project(tmp_path, lake=lake)
        if conditional:
            assert silver_fence(project) is Fence.BRANCH
            catalog = open_catalog(catalog_address(project))
            assert probe(catalog, "silver") == ALL
            assert catalog.list_tables("silver") == []
        else:
            with pytest.raises(CatalogNotConditional):
                silver_fence(project)


def test_delta_tables_have_names_in_glue(tmp_path: Path) -> None:
    with LocalStore() as store:
        store.bucket("lake")
        storage = {"endpoint": store.endpoint, "region": "us-east-1", "allow_http": True}
        keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}
        delta = {"metastore": f"glue+{store.endpoint}"}
        project = make_project(tmp_path, lake={"path": "s3://lake/shop", "storage": storage | keys, "delta": delta})
        target, no_spark = Target(TableName("public", "T"), "silver", "T", "delta", None, ()), cast("Any", None)
        names = _GlueNames(project, store.endpoint)
        ref = table_ref(project, target)
        assert (ref.address, ref.is_registered) == ("s3://lake/shop/silver/T", False), "Spark writes by address"
        register(no_spark, project, target)
        assert names.find(target) is None, "there is no table yet"
        assert project.storage is not None
        made = DeltaTable.create(
            "s3://lake/shop/silver/T", pa.schema([("id", pa.int32())]), storage_options=delta_options(project.storage)
        )
        for _ in range(2):
            register(no_spark, project, target)
            assert names.find(target) == made.table_uri.rstrip("/")
        kept = names._glue.get_table(DatabaseName="silver", Name="t")["Table"]
        assert kept["Parameters"] == {"EXTERNAL": "TRUE", "spark.sql.sources.provider": "delta", "table_type": "delta"}
        names.drop(target)
        names.add(target, "s3://lake/elsewhere/T")
        _REGISTERED.clear()
        with pytest.raises(NameElsewhere, match="at s3://lake/elsewhere/T, not at s3://lake/shop/silver/T"):
            register(no_spark, project, target)
        names.drop(target)
        moved = Target(TableName("public", "U"), "silver", "U", "delta", None, ())
        names.add(moved, "s3://lake/shop/silver/U")
        register(no_spark, project, moved)
        assert names.find(moved) is None, "no table is at the address of the name"
