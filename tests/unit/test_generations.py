"""Generations: which content of a silver table counts, read from the table's own commits, on both formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.errors import SilverMissing
from cdc_lake.lake.marker import (
    APP_PROPERTY,
    POSITION_PROPERTY,
    Marker,
    app_id,
    iceberg_catalog,
    read_marker,
)
from cdc_lake.model.relation import TableName
from cdc_lake.pipeline.cuts import TableState

FORMATS = pytest.mark.parametrize("fmt", ["delta", "iceberg"])
STREAM = "postgres:7:slot"


def make(root: Path, fmt: str) -> tuple[Project, Any]:
    source = {"type": "postgres", "host": "h", "database": "d", "user": "u", "tables": ["public.*"]}
    values = {"version": 1, "pipeline": "shop", "source": source, "silver": {"defaults": {"format": fmt}}}
    project = Project(Pipeline.model_validate(values), root / "shop.yaml", root)
    return project, project.target(TableName("public", "t"))


def write(project: Project, target: Any, app: str | None, position: int = 0) -> int:
    """A commit that replaces all rows; without `app` one of somebody else."""
    rows = pa.table({"id": [position]})
    if target.format == "delta":
        apps = [Transaction(app, position)] if app else []
        properties = CommitProperties(app_transactions=apps)
        folder = str(project.silver_path(target))
        write_deltalake(folder, rows, mode="overwrite", commit_properties=properties)
        return DeltaTable(folder).version()
    catalog = iceberg_catalog(project)
    catalog.create_namespace_if_not_exists(target.namespace)
    table = catalog.create_table_if_not_exists((target.namespace, target.name), rows.schema)
    table.append(rows, snapshot_properties={APP_PROPERTY: app, POSITION_PROPERTY: str(position)} if app else {})
    head = table.current_snapshot()
    assert head is not None
    return head.snapshot_id


@FORMATS
def test_the_generation_in_force_is_the_one_that_was_begun_last_wherever_it_stands(tmp_path: Path, fmt: str) -> None:
    project, target = make(tmp_path, fmt)
    assert read_marker(project, target, STREAM) == Marker(None, None, 1)
    first = write(project, target, app_id(STREAM, target, 1), 200)
    assert read_marker(project, target, STREAM) == Marker(200, first, 1)
    second = write(project, target, app_id(STREAM, target, 2), 150)
    assert read_marker(project, target, STREAM) == Marker(150, second, 2), "a rebuild may stand lower"
    others = write(project, target, None)
    assert read_marker(project, target, STREAM) == Marker(150, others, 2)
    assert read_marker(project, target, STREAM, first) == Marker(200, first, 1), "old versions say what they were"
    assert read_marker(project, target, "another") == Marker(None, others, 1)


@FORMATS
def test_a_version_that_is_not_there_has_no_marker(tmp_path: Path, fmt: str) -> None:
    project, target = make(tmp_path, fmt)
    write(project, target, app_id(STREAM, target, 1), 200)
    with pytest.raises(SilverMissing):
        read_marker(project, target, STREAM, 99)


def test_a_cut_of_an_older_version_knew_only_the_first_generation() -> None:
    facts = {"table": "silver.t", "format": "delta", "version": 3, "position": 10, "state": "in", "held": 0}
    assert TableState(**facts).generation == 1
