"""The extent of a silver table: its columns and its exact number of rows, without a JVM.

Rows are counted by reading one column: statistics of files know nothing of rows that a MERGE marked as deleted.
"""

from __future__ import annotations

import json
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from cdc_lake.config.project import Project, Target
from cdc_lake.errors import LakeError
from cdc_lake.lake.marker import iceberg_table
from cdc_lake.lake.store import SilverColumn


def silver_columns(project: Project, target: Target) -> tuple[str, ...] | None:
    """Column names in the table's order; None where the table does not exist."""
    if target.format == "delta":
        table = _delta(project, target)
        return tuple(field.name for field in table.schema().fields) if table is not None else None
    iceberg = iceberg_table(project, target)
    return tuple(field.name for field in iceberg.schema().fields) if iceberg is not None else None


def silver_shape(project: Project, target: Target) -> tuple[SilverColumn, ...] | None:
    """The columns with their types as Spark names them; None where the table does not exist."""
    if target.format == "delta":
        table = _delta(project, target)
        if table is None:
            return None
        fields = json.loads(table.schema().to_json())["fields"]
        return tuple(SilverColumn(f["name"], _of_delta(f["type"])) for f in fields)
    iceberg = iceberg_table(project, target)
    if iceberg is None:
        return None
    return tuple(SilverColumn(field.name, _of_iceberg(str(field.field_type))) for field in iceberg.schema().fields)


_DELTA: Final = {"short": "smallint", "integer": "int", "long": "bigint"}
_ICEBERG: Final = {"long": "bigint", "timestamp": "timestamp_ntz", "timestamptz": "timestamp"}


def _of_delta(kind: Any) -> str:
    """Spark's name of a type that Delta's schema names."""
    if isinstance(kind, dict):
        return f"array<{_of_delta(kind['elementType'])}>" if kind["type"] == "array" else str(kind["type"])
    return _DELTA.get(kind, str(kind))


def _of_iceberg(text: str) -> str:
    """Spark's name of a type that Iceberg's schema names."""
    if text.startswith("list<"):
        return f"array<{_of_iceberg(text[len('list<') : -1])}>"
    return _ICEBERG.get(text, text.replace(", ", ","))


def silver_rows(project: Project, target: Target, where: tuple[str, bool] | None = None) -> int | None:
    """How many rows the table holds now; None where it does not exist.

    Args:
        project: The pipeline.
        target: The table.
        where: A boolean column and the value that it has in the rows to be counted; None counts all.

    Raises:
        LakeError: The table cannot be read.
    """
    if target.format == "delta":
        table = _delta(project, target)
        if table is None:
            return None
        try:
            name = table.schema().fields[0].name if where is None else where[0]
            batches = table.scan(columns=[name])
            return sum(_count(batch.column(name), where) for batch in map(pa.record_batch, batches))
        except (DeltaError, OSError) as cause:
            raise LakeError("the rows of the table could not be counted", where=target.label) from cause
    iceberg = iceberg_table(project, target)
    if iceberg is None:
        return None
    from pyiceberg.expressions import EqualTo  # noqa: PLC0415 - an extra: a lake of Delta tables needs none

    return int((iceberg.scan() if where is None else iceberg.scan(row_filter=EqualTo(*where))).count())


def _count(column: pa.Array, where: tuple[str, bool] | None) -> int:
    return len(column) if where is None else int(pc.sum(pc.equal(column, where[1])).as_py() or 0)


def _delta(project: Project, target: Target) -> DeltaTable | None:
    try:
        return DeltaTable(str(project.silver_path(target)))
    except TableNotFoundError:
        return None
