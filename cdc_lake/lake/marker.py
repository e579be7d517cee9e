"""Markers: the watermark of a silver table, read from the table's own commits and from nowhere else.

Delta keeps it as the version of an application transaction, Iceberg as a property of the version's summary. Both are
read without a JVM. A compaction's version carries no property, so Iceberg's ancestors are walked until one has it.

The application id names stream, table and **generation**: the number of the table's content. A rebuild's one commit
begins the next generation, so which one is in force stands in the table itself: on Delta as a property that this commit
sets (asking for ids that the table does not know would read its log anew, tried), on Iceberg in our newest version.
Nothing else says it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from cdc_lake.config.project import Project, Target
from cdc_lake.errors import SilverMissing
from cdc_lake.lake.catalog import catalog_address, is_there, open_catalog, reaching

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

FIRST = 1
"""The generation that a stream's first content begins."""

GENERATION_PROPERTY = "cdc_lake.generation"
"""Property of a Delta table whose content is not the first."""

POSITION_PROPERTY = "cdc-lake.position"
APP_PROPERTY = "cdc-lake.app"


@dataclass(frozen=True, slots=True)
class Marker:
    """What a silver table says of itself: its watermark for one stream (None: never merged), its version, and the
    generation of its content.
    """

    position: int | None
    version: int | None
    generation: int = FIRST


def app_id(stream: str, target: Target, generation: int) -> str:
    """The application id under which a stream writes a generation of a silver table."""
    return f"{written_by(stream, target)}{generation}"


def layout_app_id(stream: str, target: Target, generation: int) -> str:
    """The application id under which what a stream's layouts ask of a table is done, each once, at its position."""
    return f"{laid_out_by(stream, target)}{generation}"


def laid_out_by(stream: str, target: Target) -> str:
    """What the application ids of what a stream's layouts ask of a table begin with."""
    return f"cdc_lake_layout:{stream}:{target.label}:"


def written_by(stream: str, target: Target) -> str:
    """What the application ids of a stream's commits to a silver table begin with."""
    return f"cdc_lake:{stream}:{target.label}:"


def planned_for(position: int | None) -> str:
    """What a commit to a Delta table says of the watermark that it was planned for."""
    return f"cdc_lake: planned for {'no watermark' if position is None else position}"


def read_marker(project: Project, target: Target, stream: str, version: int | None = None) -> Marker:
    """The watermark and version of a silver table, now or at a version; both None where the table does not exist.

    Raises SilverMissing where it is there and the version is not.
    """
    if target.format == "delta":
        return _delta_marker(project, target, stream, version)
    table = iceberg_table(project, target)
    if table is None:
        return Marker(None, None)
    head = table.current_snapshot() if version is None else table.snapshot_by_id(version)
    if head is None and version is not None:
        raise SilverMissing(target.label, version)
    return _iceberg_marker(table, head, written_by(stream, target))


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


def _delta_marker(project: Project, target: Target, stream: str, version: int | None) -> Marker:
    try:
        table = DeltaTable(str(project.silver_path(target)), version=version)
    except TableNotFoundError:
        return Marker(None, None)
    except DeltaError as cause:
        if version is None:
            raise
        raise SilverMissing(target.label, version) from cause
    generation = int(table.metadata().configuration.get(GENERATION_PROPERTY, FIRST))
    return Marker(table.transaction_version(app_id(stream, target, generation)), table.version(), generation)


def _iceberg_marker(table: Table, head: Snapshot | None, writer: str) -> Marker:
    version = head
    while version is not None:
        summary = version.summary.additional_properties if version.summary else {}
        app = summary.get(APP_PROPERTY, "")
        if app.startswith(writer) and head is not None:
            return Marker(int(summary[POSITION_PROPERTY]), head.snapshot_id, int(app.removeprefix(writer)))
        version = table.snapshot_by_id(version.parent_snapshot_id) if version.parent_snapshot_id else None
    return Marker(None, head.snapshot_id if head else None)
