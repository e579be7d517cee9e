"""Removes files that no table version refers to any more, and old log entries.

Delta in a local folder: the log is kept short, because each commit lists all of it (5 ms of processor time at 20
entries, 30 ms at 1,000, measured); a streaming reader of the table may be that far behind. A file is touched when it is
replaced, so its time shows since when it has no new readers; a file that no commit ever referred to is as old as its
write.

An object store: the time of an object is that of its write and cannot be set, so replaced files are listed in a note
(`_cdc_lake_replaced/`), whose time shows since when they have no new readers. A note only protects: a file is removed
if no version refers to it, it is old enough, and no recent note lists it. An outdated listing leaves files in place.

Iceberg: expired versions remove their own lists (`tables.iceberg_log`); the files found here were left by a process
that died in between, or are data files whose rows were compacted into others.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow.fs as pafs

from cdc_lake.tables.files import sync

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from cdc_lake.tables.iceberg_log import IcebergLog


LOG_SECONDS = 600.0
"""Age in seconds above which a log entry is not needed any more."""
LOG_VERSIONS = 300
"""Number of newest log entries that always stay …"""
LOG_LEAST = 60.0
"""… and the minimum age in seconds of those removed."""

_VERSION = re.compile(r"([0-9]{20})\.(json|crc|checkpoint\.parquet)")
_UNFINISHED = re.compile(r"_commit_.*\.json\.tmp")  # an unfinished commit of deltalake


@dataclass(frozen=True, slots=True)
class OrphanFiles:
    """Files that can be removed, and their bytes: log entries and data files."""

    entries: tuple[PurePath, ...]
    files: tuple[PurePath, ...]
    size: int


def delta_leftovers(folder: Path, live: Collection[str], now: float, files_seconds: float | None) -> OrphanFiles:
    """What can be removed at `now`, in seconds since 1970. `live`: names of the data files of the newest version.

    The log keeps a checkpoint older than the retention and everything after it: every version since can be read.
    `files_seconds`: how long unreferenced data files stay; None: the folder, which may be large, is not listed.
    """
    files = []
    if files_seconds is not None:
        named = {str(folder / name) for name in live}
        files = list(_find_unreferenced(folder, named, now - files_seconds, ".parquet"))
    entries = tuple(_entries(folder / "_delta_log", now))
    return OrphanFiles(entries, tuple(path for path, _ in files), sum(size for _, size in files))


def remove_from_folder(folder: Path, leftovers: OrphanFiles, *, durable: bool) -> None:
    """Remove them, the oldest log entries first; the checkpoint that replaces entries is synced before."""
    log = folder / "_delta_log"
    if durable and leftovers.entries:
        for name in (*log.glob("*.checkpoint.parquet"), log / "_last_checkpoint", log):
            sync(name)
    for path in (*sorted(leftovers.entries), *leftovers.files):
        Path(path).unlink(missing_ok=True)


def touch(paths: Iterable[Path]) -> None:
    """Record that files were replaced now."""
    for path in paths:
        os.utime(path)


def _entries(log: Path, now: float) -> Iterator[Path]:
    by_version: dict[int, list[tuple[str, Path, float]]] = {}
    with os.scandir(log) as files:
        for file in files:
            if match := _VERSION.fullmatch(file.name):
                by_version.setdefault(int(match[1]), []).append((match[2], Path(file.path), file.stat().st_mtime))
            elif _UNFINISHED.fullmatch(file.name) and file.stat().st_mtime < now - LOG_SECONDS:
                yield Path(file.path)
    newest = max(by_version)
    ages = {version: now - max(time for *_, time in of) for version, of in by_version.items()}
    young = (v for v, age in ages.items() if age < LOG_LEAST or (age < LOG_SECONDS and newest - v < LOG_VERSIONS))
    oldest_kept = min(young, default=newest)
    checkpoints = (
        v for v, of in by_version.items() if v <= oldest_kept and any(kind == "checkpoint.parquet" for kind, *_ in of)
    )
    base = max(checkpoints, default=0)
    for version, of in by_version.items():
        if version < base:
            yield from (path for _, path, _ in of)


ENTRY_SECONDS = 86_400.0
"""Age in seconds of removable log entries. Commits read only the log after the last checkpoint, so a long log is free,
and a suspended writer finds the entry that fences it.
"""

_NOTES = "_cdc_lake_replaced"


def note_replaced(filesystem: pafs.FileSystem, folder: str, names: Sequence[str]) -> None:
    """Record that files are being replaced now. Raises OSError."""
    with filesystem.open_output_stream(f"{folder}/{_NOTES}/{uuid4()}.json") as sink:
        sink.write(json.dumps(list(names)).encode())


def find_unreferenced(
    filesystem: pafs.FileSystem, folder: str, files: str, named: Collection[str], before: float
) -> tuple[tuple[PurePosixPath, ...], int]:
    """Removable data files in the folder `files`, by name, with expired notes; and their bytes.

    `folder`: contains the notes. `before`: in seconds since 1970.
    """
    notes = _list_files(filesystem, f"{folder}/{_NOTES}")
    young, old = ([n for n in notes if (_time(n) >= before) is wanted] for wanted in (True, False))
    protected = {name for note in young for name in _names(filesystem, note.path)} | set(named)
    gone = [
        info
        for info in _list_files(filesystem, files)
        if info.base_name.endswith(".parquet") and info.base_name not in protected and _time(info) < before
    ]
    paths = tuple(PurePosixPath(info.path) for info in (*gone, *old))
    return paths, sum(info.size for info in (*gone, *old))


def entries(filesystem: pafs.FileSystem, folder: str, now: float) -> tuple[PurePosixPath, ...]:
    """Log entries replaced by an old checkpoint: every version since can be read."""
    by_version: dict[int, list[tuple[str, pafs.FileInfo]]] = {}
    for info in _list_files(filesystem, f"{folder}/_delta_log"):
        if match := _VERSION.fullmatch(info.base_name):
            by_version.setdefault(int(match[1]), []).append((match[2], info))
    old = {v for v, of in by_version.items() if all(_time(info) < now - ENTRY_SECONDS for _, info in of)}
    oldest_kept = min(by_version.keys() - old, default=max(by_version, default=0))
    checkpoints = (
        v for v, of in by_version.items() if v <= oldest_kept and any(kind == "checkpoint.parquet" for kind, _ in of)
    )
    base = max(checkpoints, default=0)
    return tuple(PurePosixPath(info.path) for v in sorted(by_version) if v < base for _, info in by_version[v])


def remove_from_store(filesystem: pafs.FileSystem, leftovers: OrphanFiles) -> None:
    """Remove them, the oldest log entries first; files already removed are skipped. Raises OSError."""
    for path in (*leftovers.entries, *leftovers.files):
        with contextlib.suppress(FileNotFoundError):
            filesystem.delete_file(str(path))


def _list_files(filesystem: pafs.FileSystem, folder: str) -> list[pafs.FileInfo]:
    infos = filesystem.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
    return [info for info in infos if info.type is pafs.FileType.File]


def _names(filesystem: pafs.FileSystem, path: str) -> list[str]:
    with filesystem.open_input_stream(path) as opened:
        return [str(name) for name in json.loads(opened.read())]


def _time(info: pafs.FileInfo) -> float:
    return float(info.mtime_ns) / 1e9


def iceberg_leftovers(log: IcebergLog, now: float, files_seconds: float | None) -> OrphanFiles | None:
    """What can be removed at `now` (seconds since 1970); None if the table is neither in a folder nor in a store.

    `files_seconds`: how long unreferenced data files stay; None: the large folders are not listed. Raises OSError if a
    version was removed meanwhile.
    """
    folder = local_path(log.table, log.table.location())
    if files_seconds is None:
        return OrphanFiles((), (), 0)
    if folder is None:
        return _in_store(log, now, files_seconds)
    described, named = ({str(local_path(log.table, f)) for f in of} for of in (_locations(log), log.named_files()))
    entries = list(_find_unreferenced(folder / "metadata", described, now - LOG_SECONDS))
    files = list(_find_unreferenced(folder / "data", named, now - files_seconds))
    size = sum(size for _, size in (*entries, *files))
    return OrphanFiles(tuple(path for path, _ in entries), tuple(path for path, _ in files), size)


def remove_from_iceberg(log: IcebergLog, leftovers: OrphanFiles) -> None:
    """Remove them. Raises OSError."""
    from cdc_lake.tables.iceberg_io import filesystem  # noqa: PLC0415

    store = filesystem(log.table)
    if store is not None:
        remove_from_store(store, leftovers)
        return
    for path in (*leftovers.entries, *leftovers.files):
        Path(path).unlink(missing_ok=True)


def mark_replaced(table: Table, paths: Sequence[str]) -> None:
    """Record that data files are being replaced now: in a folder by their time, in a store by a note."""
    from cdc_lake.tables.iceberg_io import filesystem  # noqa: PLC0415

    store = filesystem(table)
    if store is None:
        touch(map(Path, paths))
    else:
        note_replaced(store, _folder(table), [path.rpartition("/")[2] for path in paths])


def local_path(table: Table, location: str) -> Path | None:
    """The local path of a file or folder of the table, None if it is not local."""
    from cdc_lake.tables.iceberg_io import arrow_io  # noqa: PLC0415

    scheme, _, path = arrow_io(table).parse_location(location, table.io.properties)
    return Path(path) if scheme == "file" else None


def _in_store(log: IcebergLog, now: float, files_seconds: float) -> OrphanFiles | None:
    from cdc_lake.tables.iceberg_io import filesystem  # noqa: PLC0415

    store, folder = filesystem(log.table), _folder(log.table)
    if store is None:
        return None
    named = {location.rpartition("/")[2] for location in log.named_files()}
    files, size = find_unreferenced(store, folder, f"{folder}/data", named, now - files_seconds)
    described = {location.rpartition("/")[2] for location in _locations(log)}
    old = [
        info
        for info in _list_files(store, f"{folder}/metadata")
        if info.base_name not in described and _time(info) < now - ENTRY_SECONDS
    ]
    metadata = tuple(PurePosixPath(info.path) for info in old)
    return OrphanFiles(metadata, files, size + sum(info.size for info in old))


def _folder(table: Table) -> str:
    """The table's folder as the file system of its store has it."""
    from cdc_lake.tables.iceberg_io import arrow_io  # noqa: PLC0415

    return str(arrow_io(table).parse_location(table.location(), table.io.properties)[2]).rstrip("/")


def _locations(log: IcebergLog) -> set[str]:
    """The metadata files that the table refers to."""
    metadata = log.table.metadata
    named = {log.table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    for version in metadata.snapshots:
        named |= {version.manifest_list, *(manifest.manifest_path for manifest in log.version_manifests(version))}
    return named


def _find_unreferenced(folder: Path, named: set[str], before: float, suffix: str = "") -> Iterator[tuple[Path, int]]:
    """Files that are not `named`, by their paths, and older than `before`; with their bytes."""
    for path in folder.iterdir() if folder.exists() else ():
        if path.name.endswith(suffix) and str(path) not in named and path.is_file():
            status = path.stat()
            if status.st_mtime < before:
                yield path, status.st_size
