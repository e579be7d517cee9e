"""The columns of a silver table as they stand now, by name, read from its metadata without a JVM."""

from __future__ import annotations

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from cdc_lake.config.project import Project, Target
from cdc_lake.lake.marker import iceberg_table


def silver_columns(project: Project, target: Target) -> tuple[str, ...] | None:
    """Column names in table order, None where the table does not exist."""
    if target.format == "delta":
        try:
            table = DeltaTable(str(project.silver_path(target)))
        except TableNotFoundError:
            return None
        return tuple(field.name for field in table.schema().fields)
    found = iceberg_table(project, target)
    return None if found is None else tuple(field.name for field in found.schema().fields)
