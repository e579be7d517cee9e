"""Markers: the watermark of a silver table, read from the table's own commits and from nowhere else.

Delta keeps it as the version of an application transaction, Iceberg as a property of the version's summary. Both are
read without a JVM. A compaction's version carries no property, so Iceberg's ancestors are walked until one has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from cdc_lake.config.project import Project, Target
from cdc_lake.lake.catalog import catalog_address, is_there, open_catalog, reaching

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

GENERATION = 1
"""Number of a silver table's content; rebuild and resync will start new ones."""

POSITION_PROPERTY = "cdc-lake.position"
APP_PROPERTY = "cdc-lake.app"


@dataclass(frozen=True, slots=True)
class Marker:
    """What a silver table says of itself: its watermark for one stream (None: never merged), and its version."""

    position: int | None
    version: int | None


def app_id(stream: str, target: Target, generation: int = GENERATION) -> str:
    """The application id under which a stream writes a silver table."""
    return f"cdc_lake:{stream}:{target.label}:{generation}"


def read_marker(project: Project, target: Target, stream: str) -> Marker:
    """The watermark and version of a silver table; both None where the table does not exist."""
    if target.format == "delta":
        return _delta_marker(str(project.silver_path(target)), app_id(stream, target))
    table = iceberg_table(project, target)
    if table is None:
        return Marker(None, None)
    return _iceberg_marker(table, app_id(stream, target))


def iceberg_catalog(project: Project) -> Catalog:
    """The pipeline's Iceberg catalog, the same that Spark opens."""
    return open_catalog(catalog_address(project))


def iceberg_table(project: Project, target: Target) -> Table | None:
    """An Iceberg silver table as it is now, None where it does not exist. Raises CatalogUnreachable."""
    address = catalog_address(project)
    if not is_there(address):
        return None
    catalog = open_catalog(address)
    from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415 - an extra: a lake of Delta tables needs none

    with reaching(address):
        try:
            return catalog.load_table((target.namespace, target.name))
        except NoSuchTableError:
            return None


def _delta_marker(path: str, app: str) -> Marker:
    try:
        table = DeltaTable(path)
    except TableNotFoundError:
        return Marker(None, None)
    return Marker(table.transaction_version(app), table.version())


def _iceberg_marker(table: Table, app: str) -> Marker:
    head = version = table.current_snapshot()
    while version is not None:
        summary = version.summary.additional_properties if version.summary else {}
        if summary.get(APP_PROPERTY) == app:
            return Marker(int(summary[POSITION_PROPERTY]), head.snapshot_id if head else None)
        version = table.snapshot_by_id(version.parent_snapshot_id) if version.parent_snapshot_id else None
    return Marker(None, head.snapshot_id if head else None)
