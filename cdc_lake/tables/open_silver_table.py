"""Opens a silver table in its format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc_lake.config.project import Project, Target
from cdc_lake.tables.delta_silver import DeltaSilver
from cdc_lake.tables.iceberg_silver import IcebergSilver
from cdc_lake.tables.silver_table import SilverStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def store(spark: SparkSession, project: Project, target: Target) -> SilverStore:
    """The store of a target's format; `spark` must be a session used for nothing else meanwhile."""
    if target.format == "delta":
        return DeltaSilver(spark, project, target)
    return IcebergSilver(spark, project, target)
