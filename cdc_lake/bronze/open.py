"""Opens the bronze table of a pipeline, in its format and location."""

from __future__ import annotations

from cdc_lake.bronze.compaction import MaintainedTable
from cdc_lake.bronze.delta_table import DeltaBronzeTable
from cdc_lake.bronze.reader import BronzeReader, LateDecoded
from cdc_lake.bronze.writer import BesideBronze, TableBronze
from cdc_lake.config.project import Project
from cdc_lake.errors import IcebergMissing
from cdc_lake.tables.catalog import catalog_address
from cdc_lake.tables.control_files import control_files
from cdc_lake.tables.control_tables import control_tables
from cdc_lake.tables.delta_storage import LocalDeltaStorage, ObjectStoreDeltaStorage
from cdc_lake.tables.object_store import object_store


def bronze_table(project: Project) -> MaintainedTable:
    """The table, whether it exists or not. Raises IcebergMissing, CatalogUnreachable."""
    if project.pipeline.bronze.format == "iceberg":
        try:
            from cdc_lake.bronze.iceberg_table import IcebergBronzeTable  # noqa: PLC0415 - an extra
        except ImportError as cause:
            raise IcebergMissing from cause
        durable = project.pipeline.bronze.durability == "fsync"
        return IcebergBronzeTable(catalog_address(project, durable=durable), project.name)
    if (address := project.bronze_address) is not None:
        return DeltaBronzeTable(ObjectStoreDeltaStorage(object_store(project), address))
    return DeltaBronzeTable(LocalDeltaStorage(project.bronze, durable=project.pipeline.bronze.durability == "fsync"))


def bronze_reader(project: Project) -> BronzeReader:
    """A reader of it, for one thread."""
    return BronzeReader(bronze_table(project), decoded_transactions(project))


def decoded_transactions(project: Project) -> LateDecoded:
    """The results of decoding its undecodable transactions later."""
    return LateDecoded(control_tables(project), control_files(project, "decoded_rows"))


def bronze_writer(project: Project) -> TableBronze:
    """Its writer, for one receiver."""
    return TableBronze(bronze_table(project))


def bronze_beside(project: Project) -> BesideBronze:
    """A writer that runs in parallel with the receiver, for one thread."""
    return BesideBronze(bronze_table(project))
