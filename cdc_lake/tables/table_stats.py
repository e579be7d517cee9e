"""Reads statistics of a silver table without Spark: size, columns, row count, and values it cannot contain.

Rows are counted by reading one column: file statistics ignore rows that a MERGE marked as deleted.

Merge-on-read: changed rows of a large table are marked as deleted in their files, which are not rewritten. Delta calls
the marks deletion vectors, Iceberg position deletes. Without them a MERGE rewrites every file with a changed row, so
its cost depends on the size of the table; with them it depends on the number of changes. They slow readers a little
until the files are compacted, and readers without support refuse the table: `tables.silver_reader`, Spark and pyiceberg
read them, pyarrow's own reader of Delta tables does not. Iceberg tables stay at format version 2: the deletion vectors
of version 3 were not faster to write (measured), and pyiceberg 0.12 cannot write properties or tags of such a table
(decision 0022).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from cdc_lake.config.project import Project, Target
from cdc_lake.errors import LakeError
from cdc_lake.tables.silver_table import SilverStore, delta_table, iceberg_table
from cdc_lake.tables.types import SilverColumn, properties_sql

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession


_MAPPED = "delta.columnMapping.physicalName"
_NOTHING = -(1 << 63)  # lower than every value: for files without rows
_TOPS: dict[tuple[str, int], int | None] = {}
_TOPS_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """Data files of the newest version, their bytes, and whether deleted rows are marked in them."""

    files: int
    size: int
    marked: bool


def weight(project: Project, target: Target) -> TableStatistics:
    """The statistics of a silver table; zeros if it does not exist or is empty."""
    if target.format == "delta":
        delta = delta_table(project, target)
        if delta is None:
            return TableStatistics(0, 0, marked=False)
        sizes = pa.table(delta.get_add_actions(flatten=True))["size_bytes"]
        marked = delta.metadata().configuration.get("delta.enableDeletionVectors") == "true"
        return TableStatistics(len(sizes), int(pc.sum(sizes).as_py() or 0), marked)
    table = iceberg_table(project, target)
    if table is None:
        return TableStatistics(0, 0, marked=False)
    marked = table.properties.get("write.merge.mode") == "merge-on-read"
    head = table.current_snapshot()
    totals = head.summary.additional_properties if head is not None and head.summary is not None else {}
    return TableStatistics(int(totals.get("total-data-files", 0)), int(totals.get("total-files-size", 0)), marked)


def all_below(project: Project, target: Target, version: int | None, column: str, low: int) -> bool:
    """Whether every value of an integer column at `version` (None: the table is empty) is known to be below `low`.

    Proven by the bounds of each data file; a file without bounds proves nothing.
    """
    if version is None:
        return True
    if target.format == "delta":
        return _delta_below(DeltaTable(str(project.silver_path(target)), version=version), column, low)
    table = iceberg_table(project, target)
    return table is not None and _iceberg_below(table, version, column, low)


def _delta_below(table: DeltaTable, column: str, low: int) -> bool:
    actions = pa.table(table.get_add_actions(flatten=True))
    if actions.num_rows == 0:
        return True
    fields = json.loads(table.schema().to_json())["fields"]
    physical = next((f["metadata"].get(_MAPPED, column) for f in fields if f["name"] == column), None)
    # With column mapping, bounds may be listed under another column's name.
    if physical != column or f"max.{column}" not in actions.column_names:
        return False
    below = pc.less(actions[f"max.{column}"], low)
    return bool(pc.all(pc.fill_null(below, fill_value=False)).as_py())


def _iceberg_below(table: Table, version: int, column: str, low: int) -> bool:
    from pyiceberg.manifest import ManifestContent  # noqa: PLC0415 - an extra: a lake of Delta tables needs none

    snapshot = table.snapshot_by_id(version)
    field = next((f.field_id for f in table.schema().fields if f.name == column), None)
    if snapshot is None or field is None:
        return False
    manifests = [m for m in snapshot.manifests(table.io) if m.content == ManifestContent.DATA]
    tops = [_top(table.io, manifest, field) for manifest in manifests]
    return all(top is not None and top < low for top in tops)


def _top(io: FileIO, manifest: ManifestFile, field: int) -> int | None:
    """The greatest upper bound of an integer field in a manifest's files, None if one has none.

    A manifest never changes, and reading one takes milliseconds, so the result is cached.
    """
    key = (manifest.manifest_path, field)
    if key not in _TOPS:
        if len(_TOPS) >= _TOPS_KEPT:
            _TOPS.clear()
        bounds = [(e.data_file.upper_bounds or {}).get(field) for e in manifest.fetch_manifest_entry(io)]
        upper_bounds = [None if bound is None else int.from_bytes(bound, "little", signed=True) for bound in bounds]
        _TOPS[key] = None if None in upper_bounds else max((b for b in upper_bounds if b is not None), default=_NOTHING)
    return _TOPS[key]


def silver_columns(project: Project, target: Target) -> tuple[str, ...] | None:
    """Column names in the table's order; None if the table does not exist."""
    columns = silver_shape(project, target)
    return None if columns is None else tuple(column.name for column in columns)


def silver_shape(project: Project, target: Target) -> tuple[SilverColumn, ...] | None:
    """The columns with Spark's type names; None if the table does not exist."""
    if target.format == "delta":
        table = delta_table(project, target)
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
    """Spark's name of a type in Delta's schema."""
    if isinstance(kind, dict):
        return f"array<{_of_delta(kind['elementType'])}>" if kind["type"] == "array" else str(kind["type"])
    return _DELTA.get(kind, str(kind))


def _of_iceberg(text: str) -> str:
    """Spark's name of a type in Iceberg's schema."""
    if text.startswith("list<"):
        return f"array<{_of_iceberg(text[len('list<') : -1])}>"
    return _ICEBERG.get(text, text.replace(", ", ","))


def silver_rows(project: Project, target: Target, where: tuple[str, bool] | None = None) -> int | None:
    """The current number of rows of the table; None if it does not exist.

    Args:
        project: The pipeline.
        target: The table.
        where: A boolean column and the value that it has in the rows to be counted; None counts all.

    Raises:
        LakeError: The table cannot be read.
    """
    if target.format == "delta":
        table = delta_table(project, target)
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


MARKED_FROM: Final = {"delta": 64 << 20, "iceberg": 8 << 20}
"""Size in bytes from which a table uses merge-on-read. Below, rewriting is as fast (measured, docs/performance.md) and
leaves nothing to clean up; Delta's MERGE needs a third pass and more jobs for it, Iceberg's does not.
"""

_PROPERTIES: Final = {
    "delta": {"delta.enableDeletionVectors": "true"},
    "iceberg": {
        "write.merge.mode": "merge-on-read",
        "write.update.mode": "merge-on-read",
        "write.delete.mode": "merge-on-read",
        "write.delete.granularity": "file",
    },
}


def mark_when_large(spark: SparkSession, silver: SilverStore, project: Project, target: Target) -> None:
    """Enable merge-on-read for a large table from its next commit on; never undone: old versions have marks."""
    if project.pipeline.apply.merge_on_read == "never":
        return
    now = weight(project, target)
    if now.marked or now.size < MARKED_FROM[target.format]:
        return
    spark.sql(f"ALTER TABLE {silver.name} SET TBLPROPERTIES ({properties_sql(_PROPERTIES[target.format])})")
