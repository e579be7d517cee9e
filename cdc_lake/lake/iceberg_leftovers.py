"""What an Iceberg table leaves behind: files that no version in its metadata names any more.

Versions that are too old take their lists along when they leave (`lake.iceberg_log`); what is found here was left by a
process that ended in between, or are data files whose rows stand in others since a compaction. A file that was replaced
is touched when that happens, so its time says since when nobody new reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.io.pyarrow import PyArrowFileIO

from cdc_lake.lake import store_leftovers
from cdc_lake.lake.delta_leftovers import LOG_SECONDS, Leftovers, touch
from cdc_lake.lake.iceberg_files import filesystem
from cdc_lake.lake.iceberg_log import IcebergLog

if TYPE_CHECKING:
    from pyiceberg.table import Table


def leftovers(log: IcebergLog, now: float, files_seconds: float | None) -> Leftovers | None:
    """What can go at a moment, in seconds since 1970; None where the table is neither in a folder nor in a store.

    `files_seconds`: how long data files stay that no version names; None: the folders, which may be long, are not
    listed. Raises OSError where a version left meanwhile.
    """
    folder = local_path(log.table, log.table.location())
    if files_seconds is None:
        return Leftovers((), (), 0)
    if folder is None:
        return _in_store(log, now, files_seconds)
    entries = list(_unnamed(folder / "metadata", _named(log), now - LOG_SECONDS))
    files = list(
        _unnamed(folder / "data", {str(local_path(log.table, f)) for f in log.named_files()}, now - files_seconds)
    )
    size = sum(size for _, size in (*entries, *files))
    return Leftovers(tuple(path for path, _ in entries), tuple(path for path, _ in files), size)


def remove(log: IcebergLog, found: Leftovers) -> None:
    """Remove them. Raises OSError."""
    store = filesystem(log.table)
    if store is not None:
        store_leftovers.remove(store, found)
        return
    for path in (*found.entries, *found.files):
        Path(path).unlink(missing_ok=True)


def replaced(table: Table, paths: Sequence[str]) -> None:
    """Remember that data files are being replaced now, in a folder by their time, in a store by a note."""
    store = filesystem(table)
    if store is None:
        touch(map(Path, paths))
    else:
        store_leftovers.note_replaced(store, _folder(table), [path.rpartition("/")[2] for path in paths])


def local_path(table: Table, location: str) -> Path | None:
    """A file or folder of the table on this machine's disks, None where it is somewhere else."""
    scheme, _, path = PyArrowFileIO.parse_location(location, table.io.properties)
    return Path(path) if scheme == "file" else None


def _in_store(log: IcebergLog, now: float, files_seconds: float) -> Leftovers | None:
    store, folder = filesystem(log.table), _folder(log.table)
    if store is None:
        return None
    named = {location.rpartition("/")[2] for location in log.named_files()}
    files, size = store_leftovers.unnamed(store, folder, f"{folder}/data", named, now - files_seconds)
    described = {location.rpartition("/")[2] for location in _locations(log)}
    metadata, more = store_leftovers.metadata(store, f"{folder}/metadata", described, now)
    return Leftovers(metadata, files, size + more)


def _folder(table: Table) -> str:
    """The table's folder as the file system of its store has it."""
    return str(PyArrowFileIO.parse_location(table.location(), table.io.properties)[2]).rstrip("/")


def _named(log: IcebergLog) -> set[str]:
    return {str(local_path(log.table, location)) for location in _locations(log)}


def _locations(log: IcebergLog) -> set[str]:
    """Files of metadata that the table names."""
    metadata = log.table.metadata
    named = {log.table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    for version in metadata.snapshots:
        named |= {version.manifest_list, *(manifest.manifest_path for manifest in log.listed(version))}
    return named


def _unnamed(folder: Path, named: set[str], before: float) -> Iterator[tuple[Path, int]]:
    for path in folder.iterdir() if folder.exists() else ():
        if str(path) not in named and path.is_file():
            status = path.stat()
            if status.st_mtime < before:
                yield path, status.st_size
