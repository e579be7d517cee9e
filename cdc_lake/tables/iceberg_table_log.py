"""What an Iceberg silver table itself says, read by pyiceberg from the catalog and the table's metadata.

The version of a compaction has no marker, so ancestors are walked until one has it. A table was restored if the known
version is no longer an ancestor of the newest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from cdc_lake.config.project import Project, Target
from cdc_lake.config.silver_tables import Partition
from cdc_lake.errors import SilverMissing
from cdc_lake.tables.catalog import catalog_address, is_there, open_catalog, reaching
from cdc_lake.tables.silver_table import (
    APP_PROPERTY,
    COMMENT,
    PIPELINE,
    POSITION_PROPERTY,
    STREAM,
    CommitMetrics,
    ForeignCommit,
    Marker,
    Owner,
    TableLayout,
    TableStatistics,
    group_batches,
    laid_out_by,
    parse_layout,
    stream_of,
    written_by,
)
from cdc_lake.tables.types import SilverColumn

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import DataScan, Table
    from pyiceberg.table.snapshots import Snapshot

_NOTHING: Final = -(1 << 63)  # lower than every value: for files without rows
_TOPS: dict[tuple[str, int], int | None] = {}
_TOPS_KEPT: Final = 10_000
_TYPES: Final = {"long": "bigint", "timestamp": "timestamp_ntz", "timestamptz": "timestamp"}
_TRANSFORMS: Final = {"year": "years", "month": "months", "day": "days", "hour": "hours"}


def iceberg_table(project: Project, target: Target) -> Table | None:
    """The current Iceberg silver table, None if it does not exist. Raises CatalogUnreachable."""
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


class IcebergTableLog:
    """The log of an Iceberg silver table (`tables.silver_table.TableLog`)."""

    def __init__(self, project: Project, target: Target) -> None:
        self._project = project
        self._target = target

    def open(self) -> Table | None:
        """The newest version of the table, None if it does not exist."""
        return iceberg_table(self._project, self._target)

    def exists(self) -> bool:
        """By asking the catalog."""
        return self.open() is not None

    def version(self) -> int | None:
        """The id of the current snapshot."""
        table = self.open()
        head = table.current_snapshot() if table is not None else None
        return None if head is None else head.snapshot_id

    def marker(self, stream: str, version: int | None = None) -> Marker:
        """Properties of the newest snapshot that has them."""
        table = self.open()
        if table is None:
            return Marker(None, None)
        head = table.current_snapshot() if version is None else table.snapshot_by_id(version)
        if head is None and version is not None:
            raise SilverMissing(self._target.label, version)
        writer = written_by(stream, self._target)
        for snapshot in _ancestors(table, head):
            summary = _summary(snapshot)
            app = summary.get(APP_PROPERTY, "")
            if app.startswith(writer) and head is not None:
                return Marker(int(summary[POSITION_PROPERTY]), head.snapshot_id, int(app.removeprefix(writer)))
        return Marker(None, head.snapshot_id if head else None)

    def is_latest(self, version: int) -> bool:
        """By the id of the current snapshot."""
        return self.version() == version

    def is_replaced(self, stream: str, version: int, position: int) -> bool:
        """Never: a catalog assigns a version to one writer only."""
        del stream, version, position
        return False

    def foreign_commit(self, stream: str, known_version: int, now: int, generation: int) -> ForeignCommit | None:
        """By the ancestors of the current snapshot."""
        del now
        table = self.open()
        if table is None:
            return None
        writers = (written_by(stream, self._target), laid_out_by(stream, self._target))
        foreign_commit: ForeignCommit | None = None
        for snapshot in _ancestors(table, table.current_snapshot()):
            if snapshot.snapshot_id == known_version:
                return foreign_commit
            operation = snapshot.summary.operation.value if snapshot.summary else "unknown"
            app = _summary(snapshot).get(APP_PROPERTY, "")
            if app.startswith(writers):
                if int(app.rpartition(":")[2]) > generation and snapshot.parent_snapshot_id is None:
                    return foreign_commit  # new content: commits to the previous content no longer matter
            elif operation != "replace":
                foreign_commit = ForeignCommit(
                    put_back=False, text=f"version {snapshot.snapshot_id} is a commit of another writer ({operation})"
                )
            if snapshot.parent_snapshot_id is None:
                return _put_back(known_version)
        return foreign_commit if table.snapshot_by_id(known_version) is None else _put_back(known_version)

    def commit_metrics(self, version: int) -> CommitMetrics:
        """From the summary of the snapshot."""
        table = self.open()
        snapshot = table.snapshot_by_id(version) if table is not None else None
        summary = {} if snapshot is None else _summary(snapshot)

        def read_count(name: str) -> int:
            return int(summary.get(name, 0))

        return CommitMetrics(
            files=read_count("added-data-files"),
            size=read_count("added-files-size"),
            replaced=read_count("deleted-data-files"),
            replaced_size=read_count("removed-files-size"),
            marked=read_count("added-delete-files"),
        )

    def is_readable(self, version: int) -> bool:
        """By the presence of manifests, data files and delete files."""
        table = self.open()
        if table is None or table.snapshot_by_id(version) is None:
            return False
        try:
            tasks = table.scan(snapshot_id=version).plan_files()
            files = (file.file_path for task in tasks for file in (task.file, *task.delete_files))
            return all(table.io.new_input(file).exists() for file in files)
        except FileNotFoundError:  # a manifest is missing
            return False

    def statistics(self) -> TableStatistics:
        """From the totals in the summary of the current snapshot."""
        table = self.open()
        if table is None:
            return TableStatistics(0, 0, marked=False)
        marked = table.properties.get("write.merge.mode") == "merge-on-read"
        head = table.current_snapshot()
        totals = {} if head is None else _summary(head)
        return TableStatistics(int(totals.get("total-data-files", 0)), int(totals.get("total-files-size", 0)), marked)

    def all_below(self, version: int | None, column: str, low: int) -> bool:
        """By the bounds in manifests."""
        table = None if version is None else self.open()
        if table is None or version is None:
            return version is None
        from pyiceberg.manifest import ManifestContent  # noqa: PLC0415 - an extra

        snapshot = table.snapshot_by_id(version)
        field = next((f.field_id for f in table.schema().fields if f.name == column), None)
        if snapshot is None or field is None:
            return False
        manifests = [m for m in snapshot.manifests(table.io) if m.content == ManifestContent.DATA]
        tops = [_top(table.io, manifest, field) for manifest in manifests]
        return all(top is not None and top < low for top in tops)

    def layout(self) -> TableLayout | None:
        """From the table's properties and partition specification."""
        table = self.open()
        if table is None:
            return None
        names = {field.field_id: field.name for field in table.schema().fields}
        parts = [_partition(str(field.transform), names[field.source_id]) for field in table.spec().fields]
        return parse_layout(table.properties, tuple(map(str, parts)))

    def was_clustered(self) -> bool:
        """Never: a sort order excludes nothing."""
        return False

    def owner(self) -> Owner | None:
        """From the table's properties; of an older table from the markers of its snapshots."""
        table = self.open()
        if table is None:
            return None
        pipeline, stream = table.properties.get(PIPELINE), table.properties.get(STREAM)
        head = table.current_snapshot()
        if stream is None:
            apps = (_summary(snapshot).get(APP_PROPERTY, "") for snapshot in _ancestors(table, head))
            stream = next(filter(None, map(stream_of, apps)), None)
        made_here = COMMENT.fullmatch(table.properties.get("comment", ""))
        unused = made_here is not None and stream is None and head is None
        return Owner(pipeline, stream, unused, made_here and made_here["source"])

    def columns(self) -> tuple[SilverColumn, ...] | None:
        """From the current schema."""
        table = self.open()
        if table is None:
            return None
        return tuple(SilverColumn(field.name, _spark_type(str(field.field_type))) for field in table.schema().fields)

    def read(self, version: int | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """By a scan."""
        return self._scan(version, columns).to_arrow()

    def read_empty(self) -> pa.Table:
        """The current schema: a table without a snapshot has it too."""
        table = self.open()
        if table is None:
            raise SilverMissing(self._target.label)
        return table.schema().as_arrow().empty_table()

    def read_blocks(self, version: int | None = None) -> tuple[pa.Schema, Iterator[pa.Table]]:
        """By a scan, batch by batch."""
        reader = self._scan(version).to_arrow_batch_reader()
        return reader.schema, group_batches(reader, reader.schema)

    def count_rows(self, version: int | None = None, where: tuple[str, bool] | None = None) -> int:
        """By file statistics, where they suffice."""
        scan = self._scan(version)
        if where is not None:
            from pyiceberg.expressions import EqualTo  # noqa: PLC0415 - an extra

            scan = scan.filter(EqualTo(*where))
        return int(scan.count())

    def _scan(self, version: int | None, columns: Sequence[str] | None = None) -> DataScan:
        table = self.open()
        if table is None or (version is not None and table.snapshot_by_id(version) is None):
            raise SilverMissing(self._target.label, version)
        return table.scan(snapshot_id=version, selected_fields=tuple(columns) if columns is not None else ("*",))


def _ancestors(table: Table, head: Snapshot | None) -> Iterator[Snapshot]:
    """A snapshot and its ancestors, newest first, as far as the table has them."""
    while head is not None:
        yield head
        head = table.snapshot_by_id(head.parent_snapshot_id) if head.parent_snapshot_id else None


def _summary(snapshot: Snapshot) -> dict[str, str]:
    return snapshot.summary.additional_properties if snapshot.summary else {}


def _put_back(known_version: int) -> ForeignCommit:
    return ForeignCommit(
        put_back=True, text=f"version {known_version}, which the latest cut lists, is no longer in its history"
    )


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


def _partition(transform: str, column: str) -> Partition:
    """Iceberg's name of a transform: `day`, `bucket[16]`, `identity`."""
    name, _, number = transform.rstrip("]").partition("[")
    if name == "identity":
        return Partition(column)
    return Partition(column, _TRANSFORMS.get(name, name), int(number or 0))


def _spark_type(text: str) -> str:
    """Spark's name of a type in Iceberg's schema."""
    if text.startswith("list<"):
        return f"array<{_spark_type(text[len('list<') : -1])}>"
    return _TYPES.get(text, text.replace(", ", ","))
