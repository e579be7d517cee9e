"""What a Delta silver table itself says, read by delta-rs and from its log entries, in a folder or an object store.

Our commits record the watermark for which they were planned, because Delta checks the marker only from the moment a
statement begins: this shows a commit that followed another applier's. A restore has an entry of its own, and the marker
remains the newest one (tried).

Rows are read by delta-rs' query engine, which supports deletion vectors. Spark writes instants as INT96, which delta-rs
reads as nanoseconds that wrap outside the years 1677 to 2262 (seen: 0001-01-01 became 1754); the engine is configured
to use microseconds.
"""

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from cdc_lake.config.project import Project, Target
from cdc_lake.errors import LakeError, MarkerGone, SilverMissing
from cdc_lake.tables.delta_log import json_lines
from cdc_lake.tables.delta_storage import DeltaStorage, LocalDeltaStorage, ObjectStoreDeltaStorage
from cdc_lake.tables.object_store import object_store
from cdc_lake.tables.silver_table import (
    COMMENT,
    FIRST,
    GENERATION_PROPERTY,
    PIPELINE,
    STREAM,
    CommitMetrics,
    ForeignCommit,
    Marker,
    Owner,
    SqlTable,
    TableLayout,
    TableStatistics,
    app_id,
    group_batches,
    laid_out_by,
    noted_app,
    parse_layout,
    planned_for,
    stream_of,
    written_by,
)
from cdc_lake.tables.types import SilverColumn

if TYPE_CHECKING:
    from pyspark.sql import Row

_ENGINE: Final = {
    "datafusion.execution.parquet.coerce_int96": "us",
    "datafusion.execution.parquet.schema_force_view_types": "false",  # views would be converted to plain texts here
}
_MAPPED: Final = "delta.columnMapping.physicalName"
_TYPES: Final = {"short": "smallint", "integer": "int", "long": "bigint"}


def silver_storage(project: Project, target: Target) -> DeltaStorage:
    """The storage of a Delta silver table."""
    address = project.silver_address(target)
    if address is None:
        return LocalDeltaStorage(project.silver_path(target))
    return ObjectStoreDeltaStorage(object_store(project), address)


def remove_drafts(project: Project, namespace: str) -> None:
    """Remove the Delta tables below a namespace, and everything else there; nothing if there is nothing."""
    address = project.lake_address
    if address is None:
        shutil.rmtree(project.lake / namespace, ignore_errors=True)
        return
    store, folder = object_store(project), (address / namespace).path
    store.persist(lambda: store.filesystem.delete_dir_contents(folder, missing_dir_ok=True), str(address / namespace))


@dataclass(frozen=True, slots=True)
class _Metadata:
    properties: Mapping[str, str]
    comment: str
    partition_columns: tuple[str, ...]
    features: Collection[str]
    count_files: Callable[[], int]


class DeltaLog(ABC):
    """What the log of a Delta silver table means, wherever its entries are read (`tables.silver_table.TableLog`)."""

    _target: Target

    @abstractmethod
    def _entries(self, writers: tuple[str, ...], known_version: int, now: int) -> Iterator[_Entry]:
        """Log entries after `known_version`, newest first, as far as the log has them. `writers`: prefixes of our
        application ids, that of merges first.
        """

    @abstractmethod
    def _metadata(self) -> _Metadata | None:
        """The newest metadata, None if the table does not exist."""

    @abstractmethod
    def _streams(self) -> Iterator[str]:
        """The streams of the markers in the log, newest commit first."""

    def properties(self) -> Mapping[str, str] | None:
        """The table's properties; None if it does not exist."""
        metadata = self._metadata()
        return None if metadata is None else metadata.properties

    def layout(self) -> TableLayout | None:
        """From the table's properties and partition columns."""
        metadata = self._metadata()
        return None if metadata is None else parse_layout(metadata.properties, metadata.partition_columns)

    def was_clustered(self) -> bool:
        """By its table feature: Delta then refuses to partition it (tried)."""
        metadata = self._metadata()
        return metadata is not None and "clustering" in metadata.features

    def owner(self) -> Owner | None:
        """From the table's properties; of an older table from the markers in its log."""
        if (metadata := self._metadata()) is None:
            return None
        pipeline, stream = metadata.properties.get(PIPELINE), metadata.properties.get(STREAM)
        if stream is None:
            stream = next(self._streams(), None)
        made_here = COMMENT.fullmatch(metadata.comment)
        unused = made_here is not None and stream is None and not metadata.count_files()
        return Owner(pipeline, stream, unused, made_here and made_here["source"])

    def is_replaced(self, stream: str, version: int, position: int) -> bool:
        """By the marker in its log entry."""
        entries = self._entries((written_by(stream, self._target),), version - 1, version)
        return any(entry.position != position for entry in entries)

    def foreign_commit(self, stream: str, known_version: int, now: int, generation: int) -> ForeignCommit | None:
        """By the log entries between the versions."""
        del generation
        if now < known_version:
            return ForeignCommit(
                put_back=True, text=f"it is at version {now}, but the latest cut lists version {known_version}"
            )
        writers = (written_by(stream, self._target), laid_out_by(stream, self._target))
        net: Counter[tuple[str, str]] = Counter()
        foreign_entries: list[_Entry] = []
        own: list[_Entry] = []
        for entry in self._entries(writers, known_version, now):
            if entry.is_own:
                own.append(entry)
                if entry.operation.endswith("AS SELECT"):
                    break  # new content: commits to the previous content no longer matter
                continue
            net.update(dict(entry.files))
            if entry.changes:
                foreign_entries.append(entry)
        else:
            own += islice((entry for entry in self._entries(writers[:1], -1, known_version) if entry.is_own), 1)
        if (twice := _out_of_turn(own)) is not None:
            return twice
        if not foreign_entries or not any(net.values()):  # changes that were undone do not count
            return None
        back = next((entry for entry in foreign_entries if entry.operation == "RESTORE"), None)
        foreign_entry = back or foreign_entries[0]
        return ForeignCommit(
            put_back=back is not None,
            text=f"version {foreign_entry.version} is a commit of another writer ({foreign_entry.operation})",
        )

    def concurrent_commit(self, stream: str, planned_on: int, committed_version: int) -> ForeignCommit | None:
        """Another applier's commit between the version that a commit was planned on and its own."""
        return _out_of_turn(list(self._entries((written_by(stream, self._target),), planned_on, committed_version)))


class DeltaTableLog(DeltaLog):
    """The log of a Delta silver table, in a folder or an object store whose address is known."""

    def __init__(self, project: Project, target: Target) -> None:
        self._target = target
        self.storage = silver_storage(project, target)

    def open(self) -> DeltaTable | None:
        """The newest version of the table, None if it does not exist."""
        return self.storage.read()

    def exists(self) -> bool:
        """By reading the log."""
        return self.open() is not None

    def version(self) -> int | None:
        """The version of the newest log entry."""
        table = self.open()
        return None if table is None else int(table.version())

    def marker(self, stream: str, version: int | None = None) -> Marker:
        """The version of the application transaction of the newest generation."""
        table = self._open_at(version)
        if table is None:
            return Marker(None, None)
        generation = int(table.metadata().configuration.get(GENERATION_PROPERTY, FIRST))
        return Marker(table.transaction_version(app_id(stream, self._target, generation)), table.version(), generation)

    def is_latest(self, version: int) -> bool:
        """By the presence of log entries."""
        return self.storage.entry(version + 1) is None and self.storage.entry(version) is not None

    def commit_metrics(self, version: int) -> CommitMetrics:
        """A file removed and added again got a new deletion vector and was not rewritten."""
        entry = self.storage.entry(version)
        assert entry is not None, "log clean-up keeps recent entries"
        actions = json_lines(entry)
        added: dict[str, Mapping[str, Any]] = {a["add"]["path"]: a["add"] for a in actions if "add" in a}
        removed: dict[str, Mapping[str, Any]] = {a["remove"]["path"]: a["remove"] for a in actions if "remove" in a}
        marked = added.keys() & removed.keys()
        marks = sum((added[path].get("deletionVector") or {}).get("sizeInBytes", 0) for path in marked)
        fresh, gone = added.keys() - marked, removed.keys() - marked
        return CommitMetrics(
            files=len(fresh),
            size=sum(added[path]["size"] for path in fresh) + marks,
            replaced=len(gone),
            replaced_size=sum(removed[path].get("size") or 0 for path in gone),
            marked=len(marked),
        )

    def committed_at(self, version: int) -> datetime | None:
        """The time in the log entry of a version; None if the log does not have it any more."""
        actions = json_lines(self.storage.entry(version) or "")
        info = next((action["commitInfo"] for action in actions if "commitInfo" in action), None)
        return None if info is None else datetime.fromtimestamp(info["timestamp"] / 1000, UTC)

    def is_readable(self, version: int) -> bool:
        """By the presence of its data files; those of a cloned table, which are elsewhere, are not checked."""
        try:
            table = self._open_at(version)
        except SilverMissing:
            return False
        if table is None:
            return False
        files = pa.table(table.get_add_actions(flatten=True))["path"].to_pylist()
        paths = [self.storage.path(unquote(file)) for file in files if not urlsplit(file).scheme]
        present = self.storage.ask(lambda: self.storage.filesystem.get_file_info(paths))
        return all(info.type == pafs.FileType.File for info in present)

    def statistics(self) -> TableStatistics:
        """From the add actions of the newest version."""
        table = self.open()
        if table is None:
            return TableStatistics(0, 0, marked=False)
        sizes = pa.table(table.get_add_actions(flatten=True))["size_bytes"]
        marked = table.metadata().configuration.get("delta.enableDeletionVectors") == "true"
        return TableStatistics(len(sizes), int(pc.sum(sizes).as_py() or 0), marked)

    def all_below(self, version: int | None, column: str, low: int) -> bool:
        """By the statistics in add actions."""
        table = None if version is None else self._open_at(version)
        if table is None:
            return version is None
        actions = pa.table(table.get_add_actions(flatten=True))
        if actions.num_rows == 0:
            return True
        fields = json.loads(table.schema().to_json())["fields"]
        physical = next((f["metadata"].get(_MAPPED, column) for f in fields if f["name"] == column), None)
        # With column mapping, bounds may be listed under another column's name.
        if physical != column or f"max.{column}" not in actions.column_names:
            return False
        below = pc.less(actions[f"max.{column}"], low)
        return bool(pc.all(pc.fill_null(below, fill_value=False)).as_py())

    def columns(self) -> tuple[SilverColumn, ...] | None:
        """From the table's schema."""
        table = self.open()
        if table is None:
            return None
        fields = json.loads(table.schema().to_json())["fields"]
        return tuple(SilverColumn(field["name"], _spark_type(field["type"])) for field in fields)

    def read(self, version: int | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """By a query."""
        table = pa.table(self._query(version, columns))
        return table.cast(_plain_schema(table.schema))

    def read_empty(self) -> pa.Table:
        """The schema of a query."""
        return _plain_schema(pa.schema(self._query(None, None).schema)).empty_table()

    def read_blocks(self, version: int | None = None) -> tuple[pa.Schema, Iterator[pa.Table]]:
        """By a query, batch by batch."""
        batches = self._query(version, None)
        schema = _plain_schema(pa.schema(batches.schema))
        return schema, group_batches((pa.record_batch(batch) for batch in batches), schema)

    def count_rows(self, version: int | None = None, where: tuple[str, bool] | None = None) -> int:
        """By a query: file statistics ignore rows that a MERGE marked as deleted."""
        try:
            counted = self._query(version, "count(*)", "" if where is None else f' WHERE "{where[0]}" = {where[1]}')
            return int(pa.table(counted)[0][0].as_py())
        except (DeltaError, OSError) as cause:
            raise LakeError("the rows of the table could not be counted", where=self._target.label) from cause

    def _open_at(self, version: int | None) -> DeltaTable | None:
        """A version of the table, None if there is no table. Raises SilverMissing."""
        try:
            return self.storage.read(version)
        except DeltaError as cause:
            if version is None:
                raise
            raise SilverMissing(self._target.label, version) from cause

    def _query(self, version: int | None, columns: Sequence[str] | str | None, condition: str = "") -> Any:
        """`columns`: names, None for all, or an expression."""
        table = self._open_at(version)
        if table is None:
            raise SilverMissing(self._target.label, version)
        names = columns if columns is not None else [field.name for field in table.schema().fields]
        listed = names if isinstance(names, str) else ", ".join('"' + name.replace('"', '""') + '"' for name in names)
        engine = QueryBuilder(_ENGINE).register("silver", table)
        return engine.execute(f"SELECT {listed} FROM silver{condition}")

    def _entries(self, writers: tuple[str, ...], known_version: int, now: int) -> Iterator[_Entry]:
        """By the files of the log."""
        for version in range(now, known_version, -1):
            text = self.storage.entry(version)
            if text is None:
                return
            yield _parse_entry(version, text, writers)

    def _metadata(self) -> _Metadata | None:
        if (table := self.open()) is None:
            return None
        metadata, features = table.metadata(), table.protocol().writer_features or ()
        columns = tuple(metadata.partition_columns)
        return _Metadata(
            metadata.configuration, metadata.description or "", columns, features, lambda: len(table.file_uris())
        )

    def _streams(self) -> Iterator[str]:
        """From log entries, then from the newest checkpoint."""
        version = self.version()
        for number in range(-1 if version is None else version, -1, -1):
            text = self.storage.entry(number)
            if text is None:
                break
            for line in text.split("\n"):
                if '"txn"' in line and (stream := stream_of(json.loads(line).get("txn", {}).get("appId", ""))):
                    yield stream
        filesystem = self.storage.filesystem
        listed = self.storage.ask(lambda: filesystem.get_file_info(pafs.FileSelector(self.storage.path("_delta_log"))))
        checkpoints = sorted(
            (info for info in listed if ".checkpoint" in info.base_name and info.base_name.endswith(".parquet")),
            key=lambda info: str(info.base_name),
        )
        newest = [info.path for info in checkpoints if info.base_name[:20] == checkpoints[-1].base_name[:20]]
        marks: list[tuple[int, str]] = []
        for part in newest:
            if "txn" in pq.read_schema(part, filesystem=filesystem).names:
                column = pq.read_table(part, columns=["txn"], filesystem=filesystem)["txn"]
                rows = [row for row in column.to_pylist() if row is not None]
                marks += [(row.get("lastUpdated") or 0, row.get("appId") or "") for row in rows]
        yield from (stream for _, app in sorted(marks, reverse=True) if (stream := stream_of(app)))


@dataclass(frozen=True, slots=True)
class _Entry:
    version: int
    operation: str
    is_own: bool
    position: int | None
    planned_for: tuple[int | None] | None
    changes: bool
    files: tuple[tuple[tuple[str, str], int], ...]


def _parse_entry(version: int, text: str, writers: tuple[str, ...]) -> _Entry:
    """What a log entry did. `writers`: prefixes of our application ids, that of merges first."""
    operation, is_own, changes = "unknown", False, False
    position, plan = None, None
    files: dict[tuple[str, str], int] = {}
    for action in json_lines(text):
        information, mark = action.get("commitInfo", {}), action.get("txn", {})
        operation = information.get("operation", operation)
        note = information.get("userMetadata") or ""
        plan, is_own = planned_for(note) or plan, is_own or noted_app(note)[0].startswith(writers)
        if (app := mark.get("appId", "")).startswith(writers):
            is_own, position = True, mark["version"] if app.startswith(writers[0]) else position
        for kind, step in (("add", 1), ("remove", -1)):
            if (file := action.get(kind)) is not None:
                files[file["path"], json.dumps(file.get("deletionVector"), sort_keys=True)] = step
                changes = changes or bool(file.get("dataChange", True))
    return _Entry(version, operation, is_own, position, plan, changes, tuple(files.items()))


_METADATA: Final = frozenset({
    "ADD COLUMN", "ADD COLUMNS", "ADD CONSTRAINT", "ADD FEATURE", "CHANGE COLUMN", "CHANGE COLUMNS", "CLUSTER BY",
    "COMPUTE STATS", "CREATE TABLE", "DROP COLUMNS", "DROP CONSTRAINT", "RENAME COLUMN", "REPLACE COLUMNS",
    "SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "UPDATE SCHEMA", "UPGRADE PROTOCOL", "VACUUM END", "VACUUM START",
})  # fmt: skip
"""Operations that add and remove no data file."""
_HARMLESS: Final = _METADATA | {"OPTIMIZE", "REORG"}
_RECENT: Final = 32  # entries of a history that are asked for first


class DeltaSqlLog(SqlTable, DeltaLog):
    """The log of a Delta silver table whose place may be known to a catalog alone: by SQL of a Spark session.

    A commit is ours by the JSON in its metadata, which schema changes have since version 0.5. SQL does not show
    bounds of data files, nor whether they are present. Delta removes entries of the history that are older than
    `delta.logRetentionDuration`; a history without a marker, whose beginning is missing, is refused.
    """

    def exists(self) -> bool:
        """By asking the catalog."""
        try:
            return super().exists()
        except Exception as cause:
            if "DELTA_MISSING_DELTA_TABLE" in str(cause):  # by its path
                return False
            raise

    def version(self) -> int | None:
        """The version of the newest entry."""
        return next((row["version"] for row in self._history()), None)

    def marker(self, stream: str, version: int | None = None) -> Marker:
        """By the newest entries with a marker: of anybody for the generation, of the stream. Raises MarkerGone."""
        newest = oldest = generation = None
        for row in self._history():
            oldest = row["version"]
            if version is not None and oldest > version:
                continue
            newest = oldest if newest is None else newest
            if version not in (None, newest):
                break
            app, position = noted_app(row["userMetadata"])
            if stream_of(app) is None:
                continue
            begun = int(app.rpartition(":")[2])
            generation = begun if generation is None else generation
            if begun < generation:
                return Marker(None, newest, generation)
            if app == app_id(stream, self._target, generation):
                return Marker(position, newest, generation)
        if oldest is not None and version not in (None, newest):
            raise SilverMissing(self._target.label, version)
        if oldest:
            label = self._target.label
            raise MarkerGone(f"the history of {label} begins at version {oldest}, and has no watermark", where=label)
        return Marker(None, newest, FIRST if generation is None else generation)

    def is_latest(self, version: int) -> bool:
        """By the newest entry."""
        return self.version() == version

    def commit_metrics(self, version: int) -> CommitMetrics:
        """By the metrics of its entry."""
        metrics = next(row["operationMetrics"] for row in self._history() if row["version"] == version)

        def read_count(*names: str) -> int:
            return sum(int(metrics.get(name) or 0) for name in names)

        return CommitMetrics(
            files=read_count("numTargetFilesAdded", "numFiles"),
            size=read_count("numTargetBytesAdded", "numOutputBytes"),
            replaced=read_count("numTargetFilesRemoved", "numRemovedFiles"),
            replaced_size=read_count("numTargetBytesRemoved", "numRemovedBytes"),
            marked=read_count("numTargetDeletionVectorsAdded", "numTargetDeletionVectorsUpdated"),
        )

    def is_readable(self, version: int) -> bool:
        """By its metadata alone."""
        if not self.exists():
            return False
        try:
            self._spark.sql(f"SELECT * FROM {self._name} VERSION AS OF {version}")
        except Exception as cause:
            if "DELTA_VERSION_NOT_FOUND" in str(cause) or "DELTA_TRUNCATED_TRANSACTION_LOG" in str(cause):
                return False
            raise
        return True

    def statistics(self) -> TableStatistics:
        """By DESCRIBE DETAIL."""
        if (detail := self._detail()) is None:
            return TableStatistics(0, 0, marked=False)
        marked = detail["properties"].get("delta.enableDeletionVectors") == "true"
        return TableStatistics(detail["numFiles"], detail["sizeInBytes"], marked)

    def all_below(self, version: int | None, column: str, low: int) -> bool:
        """Unknown unless the table is empty."""
        del column, low
        return version is None

    def _entries(self, writers: tuple[str, ...], known_version: int, now: int) -> Iterator[_Entry]:
        """By the history. In place of its files, an entry adds itself; a restore adds and removes entries."""
        for row in self._history():
            version, operation = row["version"], row["operation"]
            if version <= known_version:
                return
            if version > now:
                continue
            app, position = noted_app(row["userMetadata"])
            changes: dict[int, int] = {} if operation in _METADATA else {version: 1}
            if operation == "RESTORE" and (restored := row["operationParameters"].get("version")) is not None:
                before, after = self._content(version - 1), self._content(int(restored))
                changes = {**dict.fromkeys(after - before, 1), **dict.fromkeys(before - after, -1)}
            yield _Entry(
                version,
                operation,
                app.startswith(writers),
                position if app.startswith(writers[0]) else None,
                planned_for(row["userMetadata"] or ""),
                operation not in _HARMLESS,
                tuple(((str(changed), ""), step) for changed, step in changes.items()),
            )

    def _metadata(self) -> _Metadata | None:
        if (detail := self._detail()) is None:
            return None
        columns, features = tuple(detail["partitionColumns"]), detail["tableFeatures"]
        comment, files = detail["description"] or "", detail["numFiles"]
        return _Metadata(detail["properties"], comment, columns, features, lambda: files)

    def _streams(self) -> Iterator[str]:
        streams = (stream_of(noted_app(row["userMetadata"])[0]) for row in self._history())
        yield from (stream for stream in streams if stream is not None)

    def _content(self, version: int) -> set[int]:
        """The versions that made the rows of a version, as far as the history goes."""
        rows = {row["version"]: row for row in self._history()}
        content = set()
        while (row := rows.get(version)) is not None:
            restored = row["operationParameters"].get("version") if row["operation"] == "RESTORE" else None
            if restored is None and row["operation"] not in _METADATA:
                content.add(version)
            version = version - 1 if restored is None else int(restored)
        return content

    def _history(self) -> Iterator[Row]:
        """The entries of the history, newest first; none if the table does not exist."""
        if not self.exists():
            return
        recent = self._spark.sql(f"DESCRIBE HISTORY {self._name} LIMIT {_RECENT}").collect()
        yield from recent
        if len(recent) == _RECENT:
            yield from (
                self._spark.sql(f"DESCRIBE HISTORY {self._name}").where(f"version < {recent[-1]['version']}").collect()
            )

    def _detail(self) -> Row | None:
        return self._spark.sql(f"DESCRIBE DETAIL {self._name}").first() if self.exists() else None


def _out_of_turn(entries: Sequence[_Entry]) -> ForeignCommit | None:
    """The newest of our commits, newest first, that followed another watermark than the one it was planned for."""
    own = [entry for entry in entries if entry.position is not None]
    for later, earlier in pairwise(own):
        if later.planned_for not in (None, (earlier.position,)):
            text = (
                f"version {later.version} was planned before version {earlier.version}, which another apply process "
                "committed"
            )
            return ForeignCommit(put_back=False, text=text)
    return None


def _spark_type(kind: Any) -> str:
    """Spark's name of a type in Delta's schema."""
    if isinstance(kind, dict):
        return f"array<{_spark_type(kind['elementType'])}>" if kind["type"] == "array" else str(kind["type"])
    return _TYPES.get(kind, str(kind))


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with large strings and binaries instead of views, which few kernels support."""
    return pa.schema([f.with_type(_without_views(f.type)) for f in schema])


def _without_views(kind: pa.DataType) -> pa.DataType:
    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_views(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_without_views(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_views(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_without_views(kind.key_type), kind.item_field.with_type(_without_views(kind.item_type)))
    return plain.get(kind, kind)
