"""What a table in an object store leaves behind: data files no version names any more, log and metadata of long ago.

An object's time is when it was written and cannot be set, so files that are replaced are named in a note of their own
(`_cdc_lake_replaced/`), whose time says since when nobody new reads them. A note only protects: a file goes where no
version names it, it is old enough, and no young note has it. A listing that is behind leaves files in place, no more.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import PurePosixPath
from uuid import uuid4

import pyarrow.fs as pafs

from cdc_lake.lake.delta_leftovers import Leftovers

ENTRY_SECONDS = 86_400.0
"""Age of a log entry that may go. Commits here read behind the last checkpoint only, so a long log costs them nothing,
and a writer that slept finds the entry that fences it."""

_NOTES = "_cdc_lake_replaced"
_VERSION = re.compile(r"([0-9]{20})\.(json|crc|checkpoint\.parquet)")


def note_replaced(filesystem: pafs.FileSystem, folder: str, names: Sequence[str]) -> None:
    """Say that files are being replaced now. Raises OSError."""
    with filesystem.open_output_stream(f"{folder}/{_NOTES}/{uuid4()}.json") as sink:
        sink.write(json.dumps(list(names)).encode())


def unnamed(
    filesystem: pafs.FileSystem, folder: str, files: str, named: Collection[str], before: float
) -> tuple[tuple[PurePosixPath, ...], int]:
    """Data files in the folder `files` that can go, by name, with notes that protect nothing any more; their bytes.

    `folder`: where the notes are. `before`: in seconds since 1970.
    """
    notes = list(_listed(filesystem, f"{folder}/{_NOTES}"))
    young, old = ([n for n in notes if (_time(n) >= before) is wanted] for wanted in (True, False))
    kept = {name for note in young for name in _names(filesystem, note.path)} | set(named)
    gone = [
        info
        for info in _listed(filesystem, files)
        if info.base_name.endswith(".parquet") and info.base_name not in kept and _time(info) < before
    ]
    paths = tuple(PurePosixPath(info.path) for info in (*gone, *old))
    return paths, sum(info.size for info in (*gone, *old))


def metadata(
    filesystem: pafs.FileSystem, folder: str, named: Collection[str], now: float
) -> tuple[tuple[PurePosixPath, ...], int]:
    """Files of Iceberg's metadata in a folder that no version names, long enough ago; their bytes."""
    old = [i for i in _listed(filesystem, folder) if i.base_name not in named and _time(i) < now - ENTRY_SECONDS]
    return tuple(PurePosixPath(info.path) for info in old), sum(info.size for info in old)


def entries(filesystem: pafs.FileSystem, folder: str, now: float) -> tuple[PurePosixPath, ...]:
    """Log entries that an old checkpoint replaces: every version since can be read."""
    found: dict[int, list[tuple[str, pafs.FileInfo]]] = {}
    for info in _listed(filesystem, f"{folder}/_delta_log"):
        if match := _VERSION.fullmatch(info.base_name):
            found.setdefault(int(match[1]), []).append((match[2], info))
    old = {v for v, of in found.items() if all(_time(info) < now - ENTRY_SECONDS for _, info in of)}
    kept = min(found.keys() - old, default=max(found, default=0))
    checkpoints = (v for v, of in found.items() if v <= kept and any(kind == "checkpoint.parquet" for kind, _ in of))
    base = max(checkpoints, default=0)
    return tuple(PurePosixPath(info.path) for v in sorted(found) if v < base for _, info in found[v])


def remove(filesystem: pafs.FileSystem, found: Leftovers) -> None:
    """Remove them, the log from its oldest entry on; what is gone already is passed over. Raises OSError."""
    for path in (*found.entries, *found.files):
        with contextlib.suppress(FileNotFoundError):
            filesystem.delete_file(str(path))


def _listed(filesystem: pafs.FileSystem, folder: str) -> Iterator[pafs.FileInfo]:
    for info in filesystem.get_file_info(pafs.FileSelector(folder, allow_not_found=True)):
        if info.type is pafs.FileType.File:
            yield info


def _names(filesystem: pafs.FileSystem, path: str) -> list[str]:
    with filesystem.open_input_stream(path) as opened:
        return [str(name) for name in json.loads(opened.read())]


def _time(info: pafs.FileInfo) -> float:
    return float(info.mtime_ns) / 1e9
