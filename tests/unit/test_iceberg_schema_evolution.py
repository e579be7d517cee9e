"""Layouts on Iceberg, without Spark: what a schema says, who is refused, how far it went."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from cdc_lake.errors import ConcurrentModification
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
from cdc_lake.tables.types import SilverColumn

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
