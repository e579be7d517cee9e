"""What an Iceberg silver table itself says, read by pyiceberg from the catalog and the table's metadata.

The version of a compaction has no marker, so ancestors are walked until one has it. A table was restored if the known
version is no longer an ancestor of the newest.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    SqlTable,
    TableLayout,
    TableStatistics,
    column_names,
    group_batches,
    laid_out_by,
    parse_layout,
    stream_of,
    written_by,
)
from cdc_lake.tables.types import SilverColumn, quote_identifier

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import DataScan, Table

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


@dataclass(frozen=True, slots=True)
class _Snapshot:
    id: int
    parent: int | None
    operation: str
    summary: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _History:
    """`head`: the id of the newest version, None if there is none."""

    head: int | None
    snapshot: Callable[[int], _Snapshot | None]

    def ancestors(self, version: int | None) -> Iterator[_Snapshot]:
        """A version and its ancestors, newest first, as far as the table has them."""
        while version is not None and (snapshot := self.snapshot(version)) is not None:
            yield snapshot
            version = snapshot.parent


class IcebergLog(ABC):
    """What the snapshots and properties of an Iceberg silver table mean, wherever they are read
    (`tables.silver_table.TableLog`).
    """

    _target: Target

    @abstractmethod
    def _history(self) -> _History | None:
        """The snapshots of the table, None if it does not exist."""

    @abstractmethod
    def _properties(self) -> Mapping[str, str]:
        """The properties of the existing table, its comment among them."""

    @abstractmethod
    def _partitions(self) -> tuple[Partition, ...]:
        """The partition fields of the existing table."""

    def version(self) -> int | None:
        """The id of the current snapshot."""
        history = self._history()
        return None if history is None else history.head

    def marker(self, stream: str, version: int | None = None) -> Marker:
        """Properties of the newest snapshot that has them."""
        history = self._history()
        if history is None:
            return Marker(None, None)
        head = history.head if version is None else version
        if version is not None and history.snapshot(version) is None:
            raise SilverMissing(self._target.label, version)
        writer = written_by(stream, self._target)
        for snapshot in history.ancestors(head):
            app = snapshot.summary.get(APP_PROPERTY, "")
            if app.startswith(writer):
                return Marker(int(snapshot.summary[POSITION_PROPERTY]), head, int(app.removeprefix(writer)))
        return Marker(None, head)

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
        history = self._history()
        if history is None:
            return None
        writers = (written_by(stream, self._target), laid_out_by(stream, self._target))
        foreign_commit: ForeignCommit | None = None
        for snapshot in history.ancestors(history.head):
            if snapshot.id == known_version:
                return foreign_commit
            app = snapshot.summary.get(APP_PROPERTY, "")
            if app.startswith(writers):
                if int(app.rpartition(":")[2]) > generation and snapshot.parent is None:
                    return foreign_commit  # new content: commits to the previous content no longer matter
            elif snapshot.operation != "replace":
                text = f"version {snapshot.id} is a commit of another writer ({snapshot.operation})"
                foreign_commit = ForeignCommit(put_back=False, text=text)
            if snapshot.parent is None:
                return _put_back(known_version)
        return foreign_commit if history.snapshot(known_version) is None else _put_back(known_version)

    def commit_metrics(self, version: int) -> CommitMetrics:
        """From the summary of the snapshot."""
        history = self._history()
        snapshot = None if history is None else history.snapshot(version)
        summary = {} if snapshot is None else snapshot.summary

        def read_count(name: str) -> int:
            return int(summary.get(name, 0))

        return CommitMetrics(
            files=read_count("added-data-files"),
            size=read_count("added-files-size"),
            replaced=read_count("deleted-data-files"),
            replaced_size=read_count("removed-files-size"),
            marked=read_count("added-delete-files"),
        )

    def statistics(self) -> TableStatistics:
        """From the totals in the summary of the current snapshot."""
        if (history := self._history()) is None:
            return TableStatistics(0, 0, marked=False)
        marked = self._properties().get("write.merge.mode") == "merge-on-read"
        totals = next((snapshot.summary for snapshot in history.ancestors(history.head)), {})
        return TableStatistics(int(totals.get("total-data-files", 0)), int(totals.get("total-files-size", 0)), marked)

    def layout(self) -> TableLayout | None:
        """From the table's properties and partition specification."""
        if self._history() is None:
            return None
        return parse_layout(self._properties(), tuple(map(str, self._partitions())))

    def was_clustered(self) -> bool:
        """Never: a sort order excludes nothing."""
        return False

    def owner(self) -> Owner | None:
        """From the table's properties; of an older table from the markers of its snapshots."""
        if (history := self._history()) is None:
            return None
        properties = self._properties()
        pipeline, stream = properties.get(PIPELINE), properties.get(STREAM)
        if stream is None:
            apps = (snapshot.summary.get(APP_PROPERTY, "") for snapshot in history.ancestors(history.head))
            stream = next(filter(None, map(stream_of, apps)), None)
        made_here = COMMENT.fullmatch(properties.get("comment", ""))
        unused = made_here is not None and stream is None and history.head is None
        return Owner(pipeline, stream, unused, made_here and made_here["source"])


class IcebergTableLog(IcebergLog):
    """The log of an Iceberg silver table, read by pyiceberg."""

    def __init__(self, project: Project, target: Target) -> None:
        self._project = project
        self._target = target

    def open(self) -> Table | None:
        """The newest version of the table, None if it does not exist."""
        return iceberg_table(self._project, self._target)

    def exists(self) -> bool:
        """By asking the catalog."""
        return self.open() is not None

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

    def _history(self) -> _History | None:
        if (table := self.open()) is None:
            return None

        def snapshot(version: int) -> _Snapshot | None:
            if (entry := table.snapshot_by_id(version)) is None:
                return None
            summary = {} if entry.summary is None else entry.summary.additional_properties
            operation = "unknown" if entry.summary is None else entry.summary.operation.value
            return _Snapshot(version, entry.parent_snapshot_id, operation, summary)

        return _History(table.metadata.current_snapshot_id, snapshot)

    def _properties(self) -> Mapping[str, str]:
        properties: dict[str, str] = self._loaded_table().properties
        return properties

    def _partitions(self) -> tuple[Partition, ...]:
        table = self._loaded_table()
        names = {field.field_id: field.name for field in table.schema().fields}
        return tuple(_partition(str(field.transform), names[field.source_id]) for field in table.spec().fields)

    def _loaded_table(self) -> Table:
        if (table := self.open()) is None:
            raise SilverMissing(self._target.label)
        return table


class IcebergSqlLog(SqlTable, IcebergLog):
    """The log of an Iceberg silver table, by the metadata tables that SQL of a Spark session shows.

    SQL does not show whether the data files of a version are present.
    """

    def is_readable(self, version: int) -> bool:
        """By its metadata alone."""
        history = self._history()
        return history is not None and history.snapshot(version) is not None

    def all_below(self, version: int | None, column: str, low: int) -> bool:
        """By the bounds in its metadata table of files."""
        if version is None or not self.is_readable(version) or column not in column_names(self):
            return version is None
        bound = f"readable_metrics.{quote_identifier(column)}.upper_bound"
        files = self._spark.sql(f"SELECT * FROM {self._name}.files VERSION AS OF {version}").where("content = 0")
        return not files.where(f"NOT coalesce({bound} < {low}, false)").take(1)

    def _history(self) -> _History | None:
        if not self.exists():
            return None
        self._spark.sql(f"REFRESH TABLE {self._name}")
        columns = "snapshot_id, parent_id, operation, summary"
        rows = self._spark.sql(f"SELECT {columns} FROM {self._name}.snapshots").collect()
        snapshots = {row[0]: _Snapshot(row[0], row[1], row[2] or "unknown", row[3] or {}) for row in rows}
        head = self._spark.sql(f"SELECT snapshot_id FROM {self._name}.refs WHERE name = 'main'").first()
        return _History(None if head is None else head[0], snapshots.get)

    def _properties(self) -> Mapping[str, str]:
        rows = self._spark.sql(f"SHOW TBLPROPERTIES {self._name}").collect()
        comments = [("comment", text) for name, text in self._description() if name == "Comment"]
        return dict([*((row["key"], row["value"]) for row in rows), *comments])

    def _partitions(self) -> tuple[Partition, ...]:
        return tuple(Partition.parse(text) for name, text in self._description() if re.fullmatch(r"Part [0-9]+", name))

    def _description(self) -> list[tuple[str, str]]:
        rows = self._spark.sql(f"DESCRIBE TABLE EXTENDED {self._name}").collect()
        return [(row["col_name"], row["data_type"]) for row in rows]


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
