"""A draft of an Iceberg table becomes the table in one commit, or is refused; on SQLite and through a REST catalog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import BooleanType

from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.errors import ConcurrentModification
from cdc_lake.model.relation import TableName
from cdc_lake.tables.iceberg_silver import StagedTable
from cdc_lake.tables.silver_table import iceberg_catalog
from cdc_lake_testing.rest_catalog import RestCatalogServer


class Place:
    """A table with one version of one row, and its catalog."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.target = project.target(TableName("public", "t"))
        self.catalog = iceberg_catalog(project)
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
        source = {"type": "postgres", "host": "h", "database": "d", "user": "u", "tables": ["public.*"]}
        values: dict[str, Any] = {"version": 1, "pipeline": "shop", "source": source}
        values["silver"] = {"defaults": {"format": "iceberg", "namespace": "silver"}}
        if request.param == "rest":
            values["lake"] = {"iceberg": {"type": "rest", "uri": server.uri}}
        yield Place(Project(Pipeline.model_validate(values), tmp_path / "shop.yaml", tmp_path))


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
