"""Commits to silver tables without Spark, as ours or as somebody else's, on both formats."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from cdc_lake.config.project import Project
from cdc_lake.model.relation import TableName
from cdc_lake.tables.catalog import catalog_address, open_catalog
from cdc_lake.tables.iceberg_table_log import iceberg_table
from cdc_lake.tables.object_store import object_store
from cdc_lake.tables.silver_table import APP_PROPERTY, GENERATION_PROPERTY, POSITION_PROPERTY, table_ref
from tests.pipeline_file import make_project

FORMATS = pytest.mark.parametrize("fmt", ["delta", "iceberg"])
STREAM = "postgres:7:slot"


def make(root: Path, fmt: str) -> tuple[Project, Any]:
    project = make_project(root, silver={"defaults": {"format": fmt}})
    return project, project.target(TableName("public", "t"))


def silver_files(project: Project, name: TableName) -> tuple[list[str], pafs.FileSystem]:
    """The Parquet files below a silver table that are not of its log, and where they are."""
    target = project.target(name)
    if target.format == "delta":
        place = table_ref(project, target).address
    else:
        table = iceberg_table(project, target)
        place = None if table is None else table.location()
    if project.lake_address is None:
        filesystem: pafs.FileSystem = pafs.LocalFileSystem()
    else:
        filesystem = object_store(project).filesystem
    if place is None:
        return [], filesystem
    folder = pafs.FileSelector(re.sub(r"^(file|s3)://", "", place), recursive=True, allow_not_found=True)
    found = sorted(info.path for info in filesystem.get_file_info(folder) if info.extension == "parquet")
    return [path for path in found if "/_delta_log/" not in path], filesystem


def write(project: Project, target: Any, app: str | None, position: int = 0, planned: str | None = None) -> int:
    """A commit that replaces all rows; without `app` one of somebody else; `planned`: what it says of its plan."""
    rows = pa.table({"id": [position]})
    if target.format == "delta":
        apps = [Transaction(app, position)] if app else []
        if app and (planned is None or planned.startswith("{")):
            note = json.loads(planned or '{"cdc_lake": {}}')["cdc_lake"]
            planned = json.dumps({"cdc_lake": {**note, "app": app, "position": position}})
        commit = CommitProperties(app_transactions=apps, custom_metadata={"userMetadata": planned} if planned else None)
        folder, options = table_ref(project, target).address, delta_options(project)
        assert folder is not None
        if app and (generation := app.rpartition(":")[2]) != "1":
            properties = {GENERATION_PROPERTY: generation}
            DeltaTable(folder, storage_options=options).alter.set_table_properties(
                properties, raise_if_not_exists=False
            )
        write_deltalake(folder, rows, mode="overwrite", commit_properties=commit, storage_options=options)
        return DeltaTable(folder, storage_options=options).version()
    catalog = open_catalog(catalog_address(project))
    catalog.create_namespace_if_not_exists(target.namespace)
    table = catalog.create_table_if_not_exists((target.namespace, target.name), rows.schema)
    table.append(rows, snapshot_properties={APP_PROPERTY: app, POSITION_PROPERTY: str(position)} if app else {})
    head = table.current_snapshot()
    assert head is not None
    return head.snapshot_id


def delta_options(project: Project) -> dict[str, str] | None:
    """What delta-rs needs to reach the lake."""
    return None if project.lake_address is None else dict(object_store(project).delta_options)
