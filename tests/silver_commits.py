"""Commits to silver tables without Spark, as ours or as somebody else's, on both formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from cdc_lake.config.project import Project
from cdc_lake.model.relation import TableName
from cdc_lake.tables.catalog import catalog_address, open_catalog
from cdc_lake.tables.silver_table import APP_PROPERTY, GENERATION_PROPERTY, POSITION_PROPERTY
from tests.pipeline_file import make_project

FORMATS = pytest.mark.parametrize("fmt", ["delta", "iceberg"])
STREAM = "postgres:7:slot"


def make(root: Path, fmt: str) -> tuple[Project, Any]:
    project = make_project(root, silver={"defaults": {"format": fmt}})
    return project, project.target(TableName("public", "t"))


def write(project: Project, target: Any, app: str | None, position: int = 0, planned: str | None = None) -> int:
    """A commit that replaces all rows; without `app` one of somebody else; `planned`: what it says of its plan."""
    rows = pa.table({"id": [position]})
    if target.format == "delta":
        apps = [Transaction(app, position)] if app else []
        commit = CommitProperties(app_transactions=apps, custom_metadata={"userMetadata": planned} if planned else None)
        folder = str(project.silver_path(target))
        if app and (generation := app.rpartition(":")[2]) != "1":
            properties = {GENERATION_PROPERTY: generation}
            DeltaTable(folder).alter.set_table_properties(properties, raise_if_not_exists=False)
        write_deltalake(folder, rows, mode="overwrite", commit_properties=commit)
        return DeltaTable(folder).version()
    catalog = open_catalog(catalog_address(project))
    catalog.create_namespace_if_not_exists(target.namespace)
    table = catalog.create_table_if_not_exists((target.namespace, target.name), rows.schema)
    table.append(rows, snapshot_properties={APP_PROPERTY: app, POSITION_PROPERTY: str(position)} if app else {})
    head = table.current_snapshot()
    assert head is not None
    return head.snapshot_id
