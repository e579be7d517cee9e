"""Frames of Spark: a version of a silver table, and a name in SQL for one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cdc_lake.config.project import Project, Target
from cdc_lake.lake.store import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FIRST = threading.Lock()
"""A session's first use of a catalog makes the catalog's tables, which it cannot do twice at once."""


def silver_frame(spark: SparkSession, project: Project, target: Target, version: int | None) -> DataFrame:
    """The rows of a silver table at a version, in the columns it had then; None: no rows, in those it has now."""
    if target.format == "delta":
        name = f"delta.{quoted(str(project.silver_path(target)))}"
    else:
        name = f"{project.pipeline.lake.iceberg.catalog}.{quoted(target.namespace)}.{quoted(target.name)}"
    with _FIRST:
        if target.format == "iceberg":
            spark.sql(f"REFRESH TABLE {name}")  # the catalog remembers a table for half a minute
        if version is None:
            return spark.table(name).where("false")
        return spark.sql(f"SELECT * FROM {name} VERSION AS OF {version}")


@contextmanager
def viewed(frame: DataFrame, name: str) -> Iterator[str]:
    """A frame under a name for SQL in the frame's session, which forgets it in the end."""
    frame.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        frame.sparkSession.catalog.dropTempView(name)
