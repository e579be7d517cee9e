"""What a Delta table in a local folder leaves behind: log entries that a checkpoint replaces, files no version names.

Removed is only what is older than a moment the caller gives. A file that was replaced is touched when that happens, so
its time says since when nobody new reads it; one that no commit ever named is as old as it was written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_VERSION = re.compile(r"([0-9]{20})\.(json|crc|checkpoint\.parquet)")
_DATA = ".parquet"
_UNFINISHED = re.compile(r"_commit_.*\.json\.tmp")  # a commit that deltalake did not get to make


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Files that can go, and their bytes: entries of the log, and data files."""

    entries: tuple[Path, ...]
    files: tuple[Path, ...]
    size: int


def leftovers(folder: Path, live: Collection[str], *, entries_before: float, files_before: float) -> Leftovers:
    """What can go, by time of change in seconds since 1970. `live`: names of the data files of the newest version.

    Of the log a checkpoint stays that is older than what is asked for, and everything behind it: every version since
    can still be read.
    """
    entries = tuple(_entries(folder / "_delta_log", entries_before))
    named = set(live)
    files, size = [], 0
    with os.scandir(folder) as found:
        for file in found:
            if file.name.endswith(_DATA) and file.name not in named and file.is_file():
                status = file.stat()
                if status.st_mtime < files_before:
                    files.append(Path(file.path))
                    size += status.st_size
    return Leftovers(entries, tuple(files), size)


def remove(folder: Path, found: Leftovers, *, durable: bool) -> None:
    """Remove them, the log from its oldest entry on; the checkpoint that replaces entries is on disk before."""
    log = folder / "_delta_log"
    if durable and found.entries:
        for name in (*log.glob("*.checkpoint.parquet"), log / "_last_checkpoint", log):
            _sync(name)
    for path in (*sorted(found.entries), *found.files):
        path.unlink(missing_ok=True)


def touch(paths: Iterable[Path]) -> None:
    """Say that files were replaced now."""
    for path in paths:
        os.utime(path)


def _entries(log: Path, before: float) -> Iterator[Path]:
    found: dict[int, list[tuple[str, Path, float]]] = {}
    with os.scandir(log) as files:
        for file in files:
            if match := _VERSION.fullmatch(file.name):
                found.setdefault(int(match[1]), []).append((match[2], Path(file.path), file.stat().st_mtime))
            elif _UNFINISHED.fullmatch(file.name) and file.stat().st_mtime < before:
                yield Path(file.path)
    recent = min((v for v, of in found.items() if any(when >= before for _, _, when in of)), default=max(found))
    checkpoints = [v for v, of in found.items() if v <= recent and any(kind == "checkpoint.parquet" for kind, *_ in of)]
    base = max(checkpoints, default=0)
    for version, of in found.items():
        if version < base:
            yield from (path for _, path, _ in of)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
