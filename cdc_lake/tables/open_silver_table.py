"""Opens a silver table in its format: its log, its rows in Spark, and its store for writing."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from cdc_lake.config.project import Project, Target
from cdc_lake.tables.delta_silver import DeltaSilver, register
from cdc_lake.tables.delta_table_log import DeltaTableLog
from cdc_lake.tables.iceberg_silver import IcebergSilver
from cdc_lake.tables.iceberg_table_log import IcebergTableLog
from cdc_lake.tables.silver_table import SilverStore, TableLog, table_ref
from cdc_lake.tables.types import properties_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def table_log(project: Project, target: Target) -> TableLog:
    """The log of the silver table of a target."""
    return DeltaTableLog(project, target) if target.format == "delta" else IcebergTableLog(project, target)


def store(spark: SparkSession, project: Project, target: Target) -> SilverStore:
    """The store of a target's format; `spark` must be a session used for nothing else meanwhile."""
    if target.format == "delta":
        register(spark, project, target)
        return DeltaSilver(spark, project, target)
    return IcebergSilver(spark, project, target)


_FIRST = threading.Lock()
"""A session's first use of a catalog creates the catalog's tables, which must not happen concurrently."""


def silver_frame(spark: SparkSession, project: Project, target: Target, version: int | None) -> DataFrame:
    """The rows of a silver table at a version, in its columns; None: no rows, in the current columns."""
    name = table_ref(project, target).by_address
    with _FIRST:
        if target.format == "iceberg":
            spark.sql(f"REFRESH TABLE {name}")  # the catalog caches a table for half a minute
        if version is None:
            return spark.table(name).where("false")
        return spark.sql(f"SELECT * FROM {name} VERSION AS OF {version}")


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


def mark_when_large(spark: SparkSession, project: Project, target: Target) -> None:
    """Enable merge-on-read for a large table from its next commit on; never undone: old versions have marks.

    Changed rows are then marked as deleted in their files, which are not rewritten. Delta calls the marks deletion
    vectors, Iceberg position deletes. Without them a MERGE rewrites every file with a changed row, so its cost depends
    on the size of the table; with them it depends on the number of changes. They slow readers a little until the files
    are compacted, and readers without support refuse the table: `tables.silver_table`, Spark and pyiceberg read them,
    pyarrow's own reader of Delta tables does not. Iceberg tables stay at format version 2: the deletion vectors of
    version 3 were not faster to write (measured), and pyiceberg 0.12 cannot write properties or tags of such a table
    (decision 0022).
    """
    if project.pipeline.apply.merge_on_read == "never":
        return
    now = table_log(project, target).statistics()
    if now.marked or now.size < MARKED_FROM[target.format]:
        return
    name, properties = table_ref(project, target).by_address, properties_sql(_PROPERTIES[target.format])
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({properties})")
