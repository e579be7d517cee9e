"""Settings of Iceberg catalogs: the same tables for pyiceberg and for Spark, and no secret where it would be seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc_lake.bronze.delta_table import DeltaBronzeTable
from cdc_lake.bronze.iceberg_table import IcebergBronzeTable
from cdc_lake.bronze.open import bronze_table
from cdc_lake.config.effective import effective
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.tables.catalog import POSTGRES_DRIVER, catalog_address, catalog_packages, catalog_settings
from cdc_lake.tables.spark_session import static_settings


def project(root: Path, iceberg: dict[str, Any] | None = None, **bronze: Any) -> Project:
    source = {"type": "postgres", "host": "h", "database": "d", "user": "u", "tables": ["public.*"]}
    lake = {"iceberg": iceberg or {}}
    values = {"version": 1, "pipeline": "shop", "source": source, "lake": lake, "bronze": bronze}
    return Project(Pipeline.model_validate(values), root / "shop.yaml", root)


def test_the_format_says_which_table_bronze_is(tmp_path: Path):
    assert isinstance(bronze_table(project(tmp_path)), DeltaBronzeTable)
    iceberg = bronze_table(project(tmp_path, format="iceberg"))
    assert isinstance(iceberg, IcebergBronzeTable)
    assert iceberg.place == "lake: bronze.shop"
    assert not iceberg.refresh()


def test_spark_opens_the_sqlite_file_that_pyiceberg_opens(tmp_path: Path):
    given = project(tmp_path)
    settings = catalog_settings(given)
    assert settings["spark.sql.catalog.lake.uri"] == f"jdbc:sqlite:{tmp_path}/lake/catalog.db"
    assert settings["spark.sql.catalog.lake.warehouse"] == f"file://{tmp_path}/lake/warehouse"
    assert catalog_address(given).file == tmp_path / "lake" / "catalog.db"
    assert catalog_packages(given) == ()


def test_spark_is_told_beside_the_address_who_opens_a_postgresql_catalog(tmp_path: Path):
    uri = "postgresql+psycopg://cat:p%40ss@db2:5433/catalog?sslmode=require"
    given = project(tmp_path, {"uri": uri})
    settings = catalog_settings(given)
    assert settings["spark.sql.catalog.lake.uri"] == "jdbc:postgresql://db2:5433/catalog?sslmode=require"
    assert settings["spark.sql.catalog.lake.jdbc.user"] == "cat"
    assert settings["spark.sql.catalog.lake.jdbc.password"] == "p@ss"
    assert catalog_packages(given) == (POSTGRES_DRIVER,)
    assert POSTGRES_DRIVER in static_settings(given)["spark.jars.packages"]
    assert catalog_address(given).uri == uri


def test_a_rest_catalog_takes_its_properties_and_its_own_warehouse(tmp_path: Path):
    rest = {"type": "rest", "uri": "https://c.example/api", "warehouse": "w", "properties": {"token": "abc"}}
    given = project(tmp_path, rest)
    settings = catalog_settings(given)
    assert settings["spark.sql.catalog.lake.type"] == "rest"
    assert settings["spark.sql.catalog.lake.token"] == "abc"
    assert settings["spark.sql.catalog.lake.warehouse"] == "w"
    assert catalog_address(given).properties == (("token", "abc"),)
    bare = project(tmp_path, {"type": "rest", "uri": "https://c.example/api"})
    assert "spark.sql.catalog.lake.warehouse" not in catalog_settings(bare)


def test_no_secret_of_a_catalog_is_shown(tmp_path: Path):
    secrets = {"uri": "postgresql+psycopg://cat:hidden1@db2/c", "properties": {"s3.secret-access-key": "hidden2"}}
    given = project(tmp_path, secrets)
    shown = " ".join(f"{s.path}={s.text} {s.value}" for s in effective(given))
    assert "postgresql+psycopg://cat:••••••@db2/c" in shown
    assert "lake.iceberg.properties.s3.secret-access-key=••••••" in shown
    assert "hidden" not in shown + repr(given.pipeline.lake.iceberg.properties) + repr(catalog_address(given))


@pytest.mark.parametrize("uri", ["sqlite:////a/b.db", "postgresql://u@h/d"])
def test_an_address_without_password_is_shown_as_it_is(tmp_path: Path, uri: str):
    (shown,) = [s.text for s in effective(project(tmp_path, {"uri": uri})) if s.path == "lake.iceberg.uri"]
    assert shown == uri
