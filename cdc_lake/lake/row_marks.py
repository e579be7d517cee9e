"""Row marks: rows of a large silver table that change are marked as gone in its files, which are not rewritten.

Delta calls the marks deletion vectors, Iceberg position deletes (merge-on-read). Without them a MERGE rewrites every
file that holds one changed row, so its cost is the table's; with them it is that of the changes. They cost readers a
little until the files are put together again, and readers that do not know them refuse the table: `lake.read`, Spark
and pyiceberg read them, pyarrow's own reader of Delta tables does not.

Iceberg's tables stay at format version 2: its deletion vectors of version 3 were not faster to write (measured), and
pyiceberg 0.12 cannot write properties or tags of such a table (decision 0022).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cdc_lake.config.project import Project, Target
from cdc_lake.lake.store import SilverStore
from cdc_lake.lake.weight import weight

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARKED_FROM: Final = {"delta": 64 << 20, "iceberg": 8 << 20}
"""Bytes from which a table's rows are marked. Below, rewriting is as fast (measured, docs/performance.md) and leaves
nothing to tidy up; Delta's MERGE needs a third pass and more jobs for its marks, Iceberg's does not.
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
    """Let a table that has grown large mark rows from its next commit on. It is never taken back: old versions have
    marks, and a reader of the table needs to know them anyway.
    """
    if project.pipeline.apply.row_marks == "never":
        return
    now = weight(project, target)
    if now.marked or now.size < MARKED_FROM[target.format]:
        return
    properties = ", ".join(f"'{name}' = '{value}'" for name, value in _PROPERTIES[target.format].items())
    spark.sql(f"ALTER TABLE {silver.name} SET TBLPROPERTIES ({properties})")
