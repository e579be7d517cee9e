"""Iceberg tables without Spark: schema changes, staged tables, and settings of catalogs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import BooleanType

from cdc_lake.bronze.delta_table import DeltaBronzeTable
from cdc_lake.bronze.iceberg_table import IcebergBronzeTable
from cdc_lake.bronze.open import bronze_table
from cdc_lake.config.effective import effective
from cdc_lake.config.loader import validate
from cdc_lake.config.project import Project
from cdc_lake.errors import ConcurrentModification, LakeError, NotPinned
from cdc_lake.model.relation import TableName
from cdc_lake.runtime.cut_retention import create_views
from cdc_lake.tables.catalog import (
    DELEGATION,
    POSTGRES_DRIVER,
    catalog_address,
    catalog_packages,
    catalog_settings,
    open_catalog,
)
from cdc_lake.tables.iceberg_silver import IcebergSilver, StagedTable
from cdc_lake.tables.schema_evolution import (
    AddColumn,
    ChangeType,
    DropColumn,
    Progress,
    RenameColumn,
    SchemaChange,
    assignments,
    begin,
    finish,
    is_promotion,
    progress,
)
from cdc_lake.tables.silver_table import table_ref
from cdc_lake.tables.spark_session import packages_of, static_settings
from cdc_lake.tables.types import SilverColumn
from cdc_lake_testing.rest_catalog import RestCatalogServer
from tests.pipeline_file import make_project

BEGUN, DONE = Progress("app", 7, done=False), Progress("app", 7, done=True)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Any]:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("s")
    rows = pa.table(
        {"id": pa.array([1], pa.int32()), "a": ["left"], "b": ["right"], "r": pa.array([0.5], pa.float32()), "n": ["7"]}
    )
    made = catalog.create_table("s.t", rows.schema)
    made.append(rows)
    yield made
    catalog.close()


class Contended:
    """A session whose first statements find that another commit was first."""

    def __init__(self, refused: int) -> None:
        self.refused, self.asked = refused, 0

    def sql(self, statement: str) -> None:
        assert statement == "DROP BRANCH b"
        self.asked += 1
        if self.asked <= self.refused:
            raise RuntimeError(
                "org.apache.iceberg.exceptions.CommitFailedException: Table metadata refresh is required"
            )


def test_a_change_of_a_branch_is_repeated_while_upkeep_commits(tmp_path: Path) -> None:
    found = make_project(tmp_path, silver={"defaults": {"format": "iceberg"}})
    target = found.target(TableName("public", "t"))
    for refused in (0, 1, 4):
        session: Any = Contended(refused)
        IcebergSilver(session, found, target)._change_reference("DROP BRANCH b")
        assert session.asked == refused + 1
    never: Any = Contended(99)
    with pytest.raises(ConcurrentModification):
        IcebergSilver(never, found, target)._change_reference("DROP BRANCH b")


def read(table: Any) -> list[dict[str, Any]]:
    return list(table.refresh().scan().to_arrow().to_pylist())


def test_names_change_places_types_are_promoted_and_a_name_comes_back_empty(table: Any) -> None:
    changes: list[SchemaChange] = [
        DropColumn(SilverColumn("n", "string")),
        RenameColumn("a", "b"),
        RenameColumn("b", "a"),
        ChangeType("id", "int", "bigint"),
        ChangeType("r", "float", "double"),
        AddColumn(SilverColumn("n", "decimal(10,2)")),
        AddColumn(SilverColumn("tags", "array<string>")),
    ]
    begin(table, table.current_snapshot().snapshot_id, changes, DONE)
    assert read(table) == [{"id": 1, "b": "left", "a": "right", "r": 0.5, "n": None, "tags": None}]
    assert progress(table) == DONE
    assert str(table.schema().find_field("id").field_type) == "long"


def test_a_type_that_iceberg_does_not_promote_is_a_new_column_that_takes_the_place(table: Any) -> None:
    change = ChangeType("m", "string", "int")
    version = table.current_snapshot().snapshot_id
    begin(table, version, [RenameColumn("n", "m"), change], BEGUN)
    assert progress(table.refresh()) == BEGUN
    (written,) = assignments([change], "true")
    assert written == "_cdc_next_m"
    assert list(table.schema().column_names)[-1] == written
    finish(table, version, [change], DONE)
    assert read(table) == [{"id": 1, "a": "left", "b": "right", "r": 0.5, "m": None}]
    assert str(table.schema().find_field("m").field_type) == "int"


def test_a_column_takes_the_name_that_another_one_leaves(table: Any) -> None:
    of = table.schema().find_field("n").field_id
    added = AddColumn(SilverColumn("n", "bigint"))
    begin(table, table.current_snapshot().snapshot_id, [RenameColumn("n", "m"), added], DONE)
    schema = table.refresh().schema()
    assert (schema.find_field("m").field_id, str(schema.find_field("n").field_type)) == (of, "long")
    assert schema.find_field("n").field_id != of


def test_a_table_whose_rows_are_others_by_now_is_left_as_it_is(table: Any) -> None:
    version = table.current_snapshot().snapshot_id
    table.append(table.scan().to_arrow())
    before = table.schema()
    with pytest.raises(ConcurrentModification):
        begin(table, version, [DropColumn(SilverColumn("n", "string"))], DONE)
    assert table.refresh().schema() == before
    assert progress(table) is None


def test_of_two_that_do_the_same_the_second_is_refused(table: Any) -> None:
    other = table.catalog.load_table("s.t")
    version, changes = table.current_snapshot().snapshot_id, [AddColumn(SilverColumn("more", "int"))]
    begin(table, version, changes, DONE)
    with pytest.raises(ConcurrentModification):
        begin(other, version, changes, DONE)
    assert list(table.refresh().schema().column_names)[-1] == "more"


def test_an_empty_table_is_reshaped_too(table: Any) -> None:
    bare = table.catalog.create_table("s.bare", pa.schema([("id", pa.int32())]))
    begin(bare, None, [ChangeType("id", "int", "bigint")], DONE)
    assert str(bare.refresh().schema().find_field("id").field_type) == "long"


@pytest.mark.parametrize(
    ("old", "new", "native"),
    [
        ("int", "bigint", True),
        ("decimal(10,2)", "decimal(12,2)", True),
        ("decimal(10,2)", "decimal(12,4)", False),
        ("date", "timestamp_ntz", False),
    ],
)
def test_what_iceberg_promotes_by_itself_is_known(old: str, new: str, native: bool) -> None:
    assert is_promotion(ChangeType("n", old, new)) is native


class Place:
    """A table with one version of one row, and its catalog."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.target = project.target(TableName("public", "t"))
        self.catalog = open_catalog(catalog_address(project))
        self.catalog.create_namespace_if_not_exists("silver")
        self.catalog.create_table(("silver", "t"), pa.schema([("id", pa.int64())])).append(pa.table({"id": [1]}))
        self.base = self.table().current_snapshot().snapshot_id

    def table(self, name: str = "t") -> Any:
        return self.catalog.load_table(("silver", name))

    def write(self, draft: StagedTable) -> None:
        """What Spark does to a draft, but that the rows before stay."""
        table = self.table(draft.name)
        with table.update_schema() as schema:
            schema.add_column("live", BooleanType())
        table.append(pa.table({"id": [2], "live": [True]}), snapshot_properties={"made": "by the draft"})


@pytest.fixture(params=["sql", "rest"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with RestCatalogServer(tmp_path / "server") as server:
        lake = {"lake": {"iceberg": {"type": "rest", "uri": server.uri}}} if request.param == "rest" else {}
        silver = {"defaults": {"format": "iceberg", "namespace": "silver"}}
        yield Place(make_project(tmp_path, silver=silver, **lake))


def test_a_draft_is_not_seen_until_it_is_published_and_then_whole(place: Place) -> None:
    place.table().manage_snapshots().create_tag(place.base, "promised").commit()
    with StagedTable(place.project, place.target) as draft:
        place.write(draft)
        before = place.table()
        assert before.current_snapshot().snapshot_id == place.base
        assert before.scan().to_arrow().column_names == ["id"]
        draft.publish(place.base)
    after = place.table()
    assert after.current_snapshot().summary["made"] == "by the draft"
    assert sorted(map(str, after.scan().to_arrow().to_pylist())) == [
        "{'id': 1, 'live': None}",
        "{'id': 2, 'live': True}",
    ]
    assert after.scan(snapshot_id=place.base).to_arrow().to_pylist() == [{"id": 1}], "old versions keep their columns"
    assert set(after.refs()) == {"main", "promised"}
    assert [name[-1] for name in place.catalog.list_tables("silver")] == ["t"]
    after.append(pa.table({"id": [3], "live": [False]}))
    assert place.table().scan().to_arrow().num_rows == 3


def test_a_draft_of_a_table_that_moved_is_refused_and_leaves_nothing(place: Place) -> None:
    with StagedTable(place.project, place.target) as draft:
        place.write(draft)
        place.table().append(pa.table({"id": [9]}))
        with pytest.raises(ConcurrentModification):
            draft.publish(place.base)
    assert sorted(place.table().scan().to_arrow()["id"].to_pylist()) == [1, 9]
    assert [name[-1] for name in place.catalog.list_tables("silver")] == ["t"]


def test_columns_that_came_meanwhile_refuse_a_draft(place: Place) -> None:
    with StagedTable(place.project, place.target) as draft:
        place.write(draft)
        with place.table().update_schema() as schema:
            schema.add_column("other", BooleanType())
        with pytest.raises(ConcurrentModification):
            draft.publish(place.base)
    assert place.table().schema().column_names == ["id", "other"]


def test_a_draft_that_a_killed_process_left_is_no_hindrance(place: Place) -> None:
    StagedTable(place.project, place.target).__enter__()
    with StagedTable(place.project, place.target) as draft:
        place.write(draft)
        draft.publish(place.base)
    assert place.table().scan().to_arrow().num_rows == 2


def test_a_draft_of_a_table_without_a_version_gives_it_its_first(place: Place) -> None:
    place.catalog.drop_table(("silver", "t"))
    place.catalog.create_table(("silver", "t"), pa.schema([("id", pa.int64())]))
    with StagedTable(place.project, place.target) as draft:
        place.write(draft)
        draft.publish(None)
    assert place.table().scan().to_arrow().to_pylist() == [{"id": 2, "live": True}]
    with StagedTable(place.project, place.target) as draft:
        place.table(draft.name).append(pa.table({"id": [3], "live": [True]}))
        with pytest.raises(ConcurrentModification):
            draft.publish(None)


def project(root: Path, iceberg: dict[str, Any] | None = None, **bronze: Any) -> Project:
    return make_project(root, lake={"iceberg": iceberg or {}}, bronze=bronze)


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


def test_spark_opens_a_hive_metastore_and_glue_by_its_own_names(tmp_path: Path):
    hive = project(tmp_path, {"type": "hive", "uri": "thrift://h:9083"})
    settings = catalog_settings(hive)
    assert settings["spark.sql.catalog.lake.type"] == "hive"
    assert settings["spark.sql.catalog.lake.uri"] == "thrift://h:9083"
    assert settings["spark.sql.catalog.lake.warehouse"] == f"file://{tmp_path}/lake/warehouse"
    assert catalog_packages(hive) == ()
    storage = {"region": "eu-west-1", "credentials": "environment"}
    glue = make_project(tmp_path, lake={"path": "s3://lake/shop", "storage": storage, "iceberg": {"type": "glue"}})
    settings = catalog_settings(glue)
    assert settings["spark.sql.catalog.lake.type"] == "glue"
    assert settings["spark.sql.catalog.lake.client.region"] == "eu-west-1"
    assert settings["spark.sql.catalog.lake.warehouse"] == "s3://lake/shop/warehouse"
    assert "spark.sql.catalog.lake.uri" not in settings
    assert dict(catalog_address(glue).properties)["glue.region"] == "eu-west-1"
    assert set(catalog_packages(glue)) <= set(packages_of(glue))
    vended = project(tmp_path, {"type": "rest", "uri": "https://c", "properties": {DELEGATION: "vended-credentials"}})
    assert any("iceberg-aws-bundle" in package for package in catalog_packages(vended))


@pytest.mark.parametrize(
    ("lake", "words"),
    [
        ("{iceberg: {type: hive}}", "requires `uri`"),
        ("{iceberg: {type: hive, uri: https://h}}", "not a valid address of a catalog of `type: hive`"),
        ("{delta: {metastore: 'https://h'}}", "not a valid address of a Hive metastore"),
        ("{iceberg: {type: glue}}", "tables in AWS Glue are in S3"),
        ("{delta: {metastore: glue}}", "tables in AWS Glue are in S3"),
        ("{path: s3://b/l, storage: {region: r, credentials: role, role_arn: 'arn:aws:iam::123456789012:role/l'}, delta: {metastore: glue}}", "a role is not assumed for AWS Glue"),
        ("{path: s3://b/l, storage: {region: r, access_key_id: a, secret_access_key: b}, iceberg: {type: glue}}", "only credentials of the environment"),
    ],
)  # fmt: skip
def test_what_a_kind_of_catalog_needs_is_asked_of_the_file(tmp_path: Path, lake: str, words: str):
    file = tmp_path / "shop.yaml"
    source = "{type: postgres, host: h, database: d, user: u, tables: ['public.*']}"
    file.write_text(f"version: 1\npipeline: shop\nsource: {source}\nlake: {lake}\n")
    assert any(words in problem.summary for problem in validate([file]))


def test_delta_tables_have_names_if_there_is_a_metastore(tmp_path: Path):
    plain, named = (make_project(tmp_path, lake=lake) for lake in ({}, {"delta": {"metastore": "thrift://h:9083"}}))
    target = named.target(TableName("public", "t"))
    before, ref = table_ref(plain, target), table_ref(named, target)
    assert (ref.sql, ref.address, ref.by_address) == ("`silver`.`t`", before.address, before.sql)
    assert (before.is_registered, ref.is_registered) == (False, True)
    draft = replace(target, namespace="scratch/shop.rebuild")
    assert table_ref(named, draft) == table_ref(plain, draft)
    settings = static_settings(named)
    assert settings["spark.sql.catalogImplementation"] == "hive"
    assert settings["spark.hadoop.hive.metastore.uris"] == "thrift://h:9083"
    assert "spark.sql.catalogImplementation" not in static_settings(plain)


def test_views_need_a_metastore_and_a_name(tmp_path: Path):
    with pytest.raises(LakeError, match="metastore"):
        create_views(make_project(tmp_path), "month_end", "report")
    named = make_project(tmp_path, lake={"delta": {"metastore": "thrift://h:9083"}})
    with pytest.raises(LakeError, match="not a valid name"):
        create_views(named, "month_end", "re-port")
    with pytest.raises(NotPinned):
        create_views(named, "month_end", "report")
