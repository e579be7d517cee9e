"""Manifests: which data files an Iceberg version has, listed in few small files however many commits there were.

Each commit adds a manifest of its own. `TIER` manifests of one size class become one of the next, so a version lists
at most a few dozen of them and a commit rewrites each entry two times in its life, not every time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    read_manifest_list,
    write_manifest,
    write_manifest_list,
)

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

TIER = 32
"""Manifests of one class that become one of the next."""
CLASSES = 2
"""Size classes that are merged: a manifest of TIER ** CLASSES files stays as it is."""


class Manifests:
    """Reads and writes the manifests of one table; remembers those of a few files, which are merged next."""

    def __init__(self, table: Table) -> None:
        self.io = table.io
        self._schema = table.schema()
        self._spec = table.spec()
        self._format = table.metadata.format_version
        self._folder = f"{table.location().rstrip('/')}/metadata"
        self._small: dict[str, list[ManifestEntry]] = {}

    def of(self, version: Snapshot) -> tuple[ManifestFile, ...]:
        """The manifests of a version, as its list has them. Raises OSError where the list is not there any more."""
        return tuple(read_manifest_list(self.io.new_input(version.manifest_list)))

    def entries(self, manifest: ManifestFile) -> list[ManifestEntry]:
        """The data files that a manifest lists, without those it says were removed."""
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

    def without(
        self, manifests: Sequence[ManifestFile], gone: Collection[str], version: int, sequence: int
    ) -> tuple[list[ManifestFile], list[DataFile]]:
        """The manifests without the files at some locations, and these files; those that list any are written again."""
        out: list[ManifestFile] = []
        removed: list[DataFile] = []
        for manifest in manifests:
            entries = self.entries(manifest)
            mine = [entry for entry in entries if entry.data_file.file_path in gone]
            if not mine:
                out.append(manifest)
                continue
            for entry in entries:
                entry.status = ManifestEntryStatus.EXISTING
            for entry in mine:
                entry.status, entry.snapshot_id = ManifestEntryStatus.DELETED, version
            out.append(self._write(entries, version, sequence))
            removed += [entry.data_file for entry in mine]
            self._small.pop(manifest.manifest_path, None)
        return out, removed

    def merge(self, manifests: Sequence[ManifestFile], version: int, sequence: int) -> list[ManifestFile]:
        """The same data files in fewer manifests, where a size class is full."""
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
        """Write the list of a version; its location."""
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
        with self._writer(location, version) as writer:
            for entry in entries:
                writer.add_entry(entry)
        manifest = writer.to_manifest_file()
        manifest.sequence_number = sequence
        manifest.min_sequence_number = min((e.sequence_number or sequence for e in entries), default=sequence)
        return manifest

    def _writer(self, location: str, version: int) -> ManifestWriter:
        return write_manifest(
            format_version=self._format,
            spec=self._spec,
            schema=self._schema,
            output_file=self.io.new_output(location),
            snapshot_id=version,
            avro_compression="deflate",
        )


def _size_class(manifest: ManifestFile) -> int:
    files = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
    number = 0
    while files >= TIER ** (number + 1):
        number += 1
    return number
