from __future__ import annotations

from typing import TYPE_CHECKING

from cdc_lake.config.project import Project, Target
from cdc_lake.tables.silver_table import SilverStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def store(spark: SparkSession, project: Project, target: Target) -> SilverStore:
    """The store of a target's format; `spark` must be a session used for nothing else meanwhile."""
    if target.format == "delta":
        from cdc_lake.tables.delta_silver import DeltaSilver  # noqa: PLC0415 - formats know the port, the port names them once

        return DeltaSilver(spark, project, target)
    from cdc_lake.tables.iceberg_silver import IcebergSilver  # noqa: PLC0415 - as above

    return IcebergSilver(spark, project, target)
