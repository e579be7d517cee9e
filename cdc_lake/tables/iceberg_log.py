"""Commits to Iceberg tables without Spark: data file, manifest, list, and the catalog's swap, in that order.

A commit succeeds only on the version that was read: the catalog checks that it is still the head of the branch, and
nothing is retried. A commit whose call failed is looked up in the summaries by its own id; files are never deleted for
it. Each commit removes versions older than the newest `KEEP` from the metadata, and the lists that only they used, so
that the cost of opening and committing does not grow over the years; data files always stay.

Each commit adds a manifest. `TIER` manifests of one size class are merged into one of the next, so a version lists at
most a few dozen and each entry is rewritten twice in its life, not with every commit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    read_manifest_list,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    ancestors_of,
    update_snapshot_summaries,
)
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from cdc_lake.observability.failpoints import COMMIT_DOUBTED, COMMIT_WRITTEN, failpoint
from cdc_lake.tables.files import Rows
from cdc_lake.tables.iceberg_io import new_file

if TYPE_CHECKING:
    from pyiceberg.table import Table


TIER = 32
"""Number of manifests of one class that are merged into one of the next."""
CLASSES = 2
"""Size classes that are merged: a manifest of TIER ** CLASSES files stays as it is."""


class Manifests:
    """Reads and writes the manifests of one table; caches those with few files, which are merged next."""

    def __init__(self, table: Table) -> None:
        self.io = table.io
        self._schema = table.schema()
        self._spec = table.spec()
        self._format = table.metadata.format_version
        self._folder = f"{table.location().rstrip('/')}/metadata"
        self._small: dict[str, list[ManifestEntry]] = {}

    def entries(self, manifest: ManifestFile) -> list[ManifestEntry]:
        """The data files that a manifest lists, without removed ones."""
        return self._small.get(manifest.manifest_path) or manifest.fetch_manifest_entry(self.io)

    def add(self, files: Sequence[DataFile], version: int, sequence: int) -> ManifestFile:
        """Write the manifest of a commit's new files."""
        entries = [
            ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=version, data_file=file)
            for file in files
        ]
        manifest = self._write(entries, version, sequence)
        for entry in entries:
            entry.status, entry.sequence_number = ManifestEntryStatus.EXISTING, sequence
            entry.file_sequence_number = sequence
        self._small[manifest.manifest_path] = entries
        return manifest

    def remove_files(
        self, manifests: Sequence[ManifestFile], gone: Collection[str], version: int, sequence: int
    ) -> tuple[list[ManifestFile], list[DataFile]]:
        """The manifests without the files at some locations, and these files; manifests that list any are rewritten."""
        remaining: list[ManifestFile] = []
        removed: list[DataFile] = []
        for manifest in manifests:
            entries = self.entries(manifest)
            removed_entries = [entry for entry in entries if entry.data_file.file_path in gone]
            if not removed_entries:
                remaining.append(manifest)
                continue
            for entry in entries:
                entry.status = ManifestEntryStatus.EXISTING
            for entry in removed_entries:
                entry.status, entry.snapshot_id = ManifestEntryStatus.DELETED, version
            remaining.append(self._write(entries, version, sequence))
            removed += [entry.data_file for entry in removed_entries]
            self._small.pop(manifest.manifest_path, None)
        return remaining, removed

    def merge(self, manifests: Sequence[ManifestFile], version: int, sequence: int) -> list[ManifestFile]:
        """The same data files in fewer manifests, if a size class is full."""
        manifests = [m for m in manifests if m.has_added_files() or m.has_existing_files()]
        full: list[ManifestFile] = []
        for number in range(CLASSES):
            same = [m for m in manifests if m.content == ManifestContent.DATA and _size_class(m) == number]
            if len(same) + bool(full) < TIER:
                break
            full += same
        if not full:
            return manifests
        entries = [entry for manifest in full for entry in self.entries(manifest)]
        for entry in entries:
            entry.status = ManifestEntryStatus.EXISTING
        gone = {manifest.manifest_path for manifest in full}
        self._small = {path: listed for path, listed in self._small.items() if path not in gone}
        return [self._write(entries, version, sequence), *(m for m in manifests if m.manifest_path not in gone)]

    def write_list(self, manifests: Iterable[ManifestFile], version: int, parent: int | None, sequence: int) -> str:
        """Write the list of a version; returns its location."""
        location = f"{self._folder}/snap-{version}-{uuid4()}.avro"
        with write_manifest_list(
            format_version=self._format,
            output_file=self.io.new_output(location),
            snapshot_id=version,
            parent_snapshot_id=parent,
            sequence_number=sequence,
            avro_compression="deflate",
        ) as writer:
            writer.add_manifests(list(manifests))
        return location

    def _write(self, entries: Sequence[ManifestEntry], version: int, sequence: int) -> ManifestFile:
        location = f"{self._folder}/{uuid4()}-m0.avro"
        with write_manifest(
            format_version=self._format,
            spec=self._spec,
            schema=self._schema,
            output_file=self.io.new_output(location),
            snapshot_id=version,
            avro_compression="deflate",
        ) as writer:
            for entry in entries:
                writer.add_entry(entry)
        manifest = writer.to_manifest_file()
        manifest.sequence_number = sequence
        manifest.min_sequence_number = min((e.sequence_number or sequence for e in entries), default=sequence)
        return manifest


def _size_class(manifest: ManifestFile) -> int:
    files = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
    number = 0
    while files >= TIER ** (number + 1):
        number += 1
    return number


KEEP = 50
"""Versions kept in the metadata: a version that a reader opened stays for at least this many commits."""

COMMIT_PROPERTY = "cdc-lake.commit"

_PROPERTIES = {
    "format-version": "2",
    "commit.retry.num-retries": "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.metadata.metrics.default": "full",
    "write.parquet.compression-codec": "zstd",
    "write.parquet.compression-level": "1",
}


@dataclass(frozen=True, slots=True)
class Change:
    """What a version does: files it adds, locations of files it removes, table properties it sets.

    `operation`: `REPLACE` if the added files contain the rows of the removed ones, `DELETE` if rows are removed.
    """

    added: Sequence[DataFile] = ()
    removed: Collection[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    operation: Operation = Operation.APPEND


class IcebergCommitFailed(Exception):
    """A commit failed and is not in the table. `overtaken`: another version is the head now."""

    def __init__(self, *, overtaken: bool) -> None:
        super().__init__("the commit is not in the table")
        self.overtaken = overtaken


class CommitOutcomeUnknown(Exception):
    """A commit failed, and the catalog could not be asked whether it landed."""


class IcebergLog:
    """One Iceberg table at the version that was read last."""

    def __init__(self, catalog: Catalog, identifier: tuple[str, str]) -> None:
        self._catalog = catalog
        self._identifier = identifier
        self._table: Table | None = None
        self.head: Snapshot | None = None
        """The version that was read; None if the table has none yet."""
        self._manifests: Manifests | None = None
        self._lists: dict[int, tuple[ManifestFile, ...]] = {}

    @property
    def table(self) -> Table:
        """The table as the catalog last returned it."""
        assert self._table is not None, "look first"
        return self._table

    def refresh(self) -> bool:
        """Move to the newest version; False if there is no table."""
        try:
            self._stand(self._catalog.load_table(self._identifier))
        except (NoSuchTableError, NoSuchNamespaceError):
            return False
        return True

    def create(self, schema: pa.Schema, properties: Mapping[str, str]) -> None:
        """Create the empty table. Raises TableAlreadyExistsError."""
        with contextlib.suppress(NamespaceAlreadyExistsError):  # somebody created it at the same moment
            self._catalog.create_namespace_if_not_exists(self._identifier[:-1])
        self._stand(
            self._catalog.create_table(self._identifier, schema=schema, properties={**_PROPERTIES, **properties})
        )

    def write(self, rows: Rows, *, stats: Sequence[str], plain: Sequence[str]) -> DataFile:
        """Write one data file that no version refers to yet."""
        return new_file(self.table, rows, stats=stats, plain=plain)

    def summary(self, key: str) -> Mapping[str, str] | None:
        """The summary of the newest version at or before the head that has `key`."""
        if self.head is None:
            return None
        for version in ancestors_of(self.head, self.table.metadata):
            properties = _summary_properties(version)
            if key in properties:
                return properties
        return None

    @property
    def stands_at_main(self) -> bool:
        """Whether the version is the head as the catalog last returned it: not so after a lost reply."""
        now: int | None = self.table.metadata.current_snapshot_id
        return now == (None if self.head is None else self.head.snapshot_id)

    def newest(self, key: str) -> Snapshot | None:
        """The newest version of any branch whose summary has `key`."""
        candidates = (version for version in self.table.metadata.snapshots if key in _summary_properties(version))
        return max(candidates, key=lambda version: version.sequence_number or 0, default=None)

    def ancestors(self) -> set[int]:
        """The head and its known ancestors."""
        return {version.snapshot_id for version in ancestors_of(self.head, self.table.metadata)}

    def file_locations(self, version: Snapshot) -> set[str]:
        """Locations of the files of a version. Raises OSError if its lists were removed."""
        return {file.file_path for manifest in self.version_manifests(version) for file in self.entries(manifest)}

    def manifests(self) -> tuple[ManifestFile, ...]:
        """The manifests of the head. Raises OSError if it was removed by now."""
        return () if self.head is None else self.version_manifests(self.head)

    def version_manifests(self, version: Snapshot) -> tuple[ManifestFile, ...]:
        """The manifests of a version. Raises OSError if they were removed with it."""
        if version.snapshot_id not in self._lists:
            listed = read_manifest_list(self._files.io.new_input(version.manifest_list))
            self._lists[version.snapshot_id] = tuple(listed)
        return self._lists[version.snapshot_id]

    def named_files(self) -> set[str]:
        """Locations of the data files of all versions. Raises OSError if one was removed meanwhile."""
        manifests = {
            m.manifest_path: m for version in self.table.metadata.snapshots for m in self.version_manifests(version)
        }
        return {file.file_path for manifest in manifests.values() for file in self.entries(manifest)}

    def entries(self, manifest: ManifestFile) -> list[DataFile]:
        """The data files that a manifest lists."""
        return [entry.data_file for entry in self._files.entries(manifest)]

    def commit(self, change: Change, note: Mapping[str, str]) -> Snapshot:
        """Create a version whose summary carries the note. Raises IcebergCommitFailed, CommitOutcomeUnknown."""
        table, parent, mark = self.table, self.head, uuid4().hex
        version, sequence = table.metadata.new_snapshot_id(), table.metadata.next_sequence_number()
        manifests, removed = list(self.manifests()), list[DataFile]()
        if change.removed:
            manifests, removed = self._files.remove_files(manifests, change.removed, version, sequence)
        else:
            manifests = self._files.merge(manifests, version, sequence)
        if change.added:
            manifests.append(self._files.add(change.added, version, sequence))
        parent_id = None if parent is None else parent.snapshot_id
        snapshot = Snapshot(
            snapshot_id=version,
            parent_snapshot_id=parent_id,
            manifest_list=self._files.write_list(manifests, version, parent_id, sequence),
            sequence_number=sequence,
            summary=_summary(table, parent, change, removed, {**note, COMMIT_PROPERTY: mark}),
            schema_id=table.metadata.current_schema_id,
        )
        old = self._old()
        updates: tuple[TableUpdate, ...] = (
            AddSnapshotUpdate(snapshot=snapshot),
            SetSnapshotRefUpdate(
                snapshot_id=version, parent_snapshot_id=parent_id, ref_name=MAIN_BRANCH, type=SnapshotRefType.BRANCH
            ),
            *([RemoveSnapshotsUpdate(snapshot_ids=[v.snapshot_id for v in old])] if old else []),
            *([SetPropertiesUpdate(updates=dict(change.properties))] if change.properties else []),
        )
        landed = self._swap(updates, parent_id, mark)
        if landed:
            self._lists[version] = tuple(manifests)
            self._forget(old)
        self.head = snapshot
        return snapshot

    # ── the steps of a commit ──

    def _swap(self, updates: tuple[TableUpdate, ...], parent: int | None, mark: str) -> bool:
        """Let the catalog swap; False if the call failed but the version landed."""
        table = self.table
        requirements: tuple[TableRequirement, ...] = (
            AssertTableUUID(uuid=table.metadata.table_uuid),
            AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=parent),
        )
        before = {entry.metadata_file for entry in table.metadata.metadata_log}
        try:
            response = self._catalog.commit_table(table, requirements, updates)
            failpoint(COMMIT_WRITTEN)
        except Exception as cause:
            failpoint(COMMIT_DOUBTED)
            now = self._reload_table()
            if now is not None and any(
                _summary_properties(v).get(COMMIT_PROPERTY) == mark for v in now.metadata.snapshots
            ):
                self._table = now
                return False
            head = None if now is None else now.current_snapshot()
            overtaken = now is None or (None if head is None else head.snapshot_id) != parent
            raise IcebergCommitFailed(overtaken=overtaken) from cause
        table.metadata, table.metadata_location = response.metadata, response.metadata_location
        self._remove(before - {entry.metadata_file for entry in response.metadata.metadata_log})
        return True

    def _reload_table(self) -> Table | None:
        """The table after a failed call, None if it does not exist. Raises CommitOutcomeUnknown."""
        try:
            return self._catalog.load_table(self._identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except Exception as silence:
            raise CommitOutcomeUnknown from silence

    def _old(self) -> list[Snapshot]:
        """The versions that the next commit removes: older than the newest `KEEP`, and without a branch or tag."""
        metadata = self.table.metadata
        named = {ref.snapshot_id for ref in metadata.refs.values()}
        beyond = max(0, len(metadata.snapshots) + 1 - KEEP)
        return [version for version in metadata.snapshots[:beyond] if version.snapshot_id not in named]

    def _forget(self, old: Sequence[Snapshot]) -> None:
        """Remove the lists and manifests that only removed versions used."""
        if not old:
            return
        try:
            gone = {manifest.manifest_path for version in old for manifest in self.version_manifests(version)}
            for version in self.table.metadata.snapshots:
                gone -= {manifest.manifest_path for manifest in self.version_manifests(version)}
        except OSError:
            return  # a list of them is unreadable: the commit has landed, and extra files are harmless
        self._remove(gone | {version.manifest_list for version in old})
        for version in old:
            self._lists.pop(version.snapshot_id, None)

    def _remove(self, locations: set[str]) -> None:
        for location in locations:
            with contextlib.suppress(OSError):  # an orphan file is harmless
                self.table.io.delete(location)

    def _stand(self, table: Table) -> None:
        if self._table is not None and self._table.metadata.table_uuid != table.metadata.table_uuid:
            self._manifests, self._lists = None, {}
        elif self._manifests is not None:
            self._manifests.io = table.io  # a REST server may hand out new credentials each time
        version_ids = {version.snapshot_id for version in table.metadata.snapshots}
        self._lists = {version: listed for version, listed in self._lists.items() if version in version_ids}
        self._table, self.head = table, table.current_snapshot()

    @property
    def _files(self) -> Manifests:
        if self._manifests is None:
            self._manifests = Manifests(self.table)
        return self._manifests


def _summary_properties(version: Snapshot) -> Mapping[str, str]:
    return {} if version.summary is None else version.summary.additional_properties


def _summary(
    table: Table, parent: Snapshot | None, change: Change, removed: Sequence[DataFile], note: Mapping[str, str]
) -> Summary:
    collector = SnapshotSummaryCollector()
    for file in change.added:
        collector.add_file(data_file=file, partition_spec=table.spec(), schema=table.schema())
    for file in removed:
        collector.remove_file(data_file=file, partition_spec=table.spec(), schema=table.schema())
    counted = update_snapshot_summaries(  # it refuses `replace`, which is counted like the others
        summary=Summary(operation=Operation.OVERWRITE, **collector.build(), **note),
        previous_summary=None if parent is None else parent.summary,
    )
    return Summary(operation=change.operation, **counted.additional_properties)
