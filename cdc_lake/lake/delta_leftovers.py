"""What a Delta table in a local folder leaves behind: log entries that a checkpoint replaces, files no version names.

The log is kept short, because each commit lists all of it (5 ms of processor time at 20 entries, 30 ms at 1,000,
measured); who reads the table as a stream may be that far behind. A file is touched when it is replaced, so its time
says since when nobody new reads it; one that no commit ever named is as old as it was written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from cdc_lake.lake.disk import sync

LOG_SECONDS = 600.0
"""Age of a log entry above which nobody needs it."""
LOG_VERSIONS = 300
"""Log entries that stay, the newest ones, however fast they come …"""
LOG_LEAST = 60.0
"""… but none younger than this goes."""

_VERSION = re.compile(r"([0-9]{20})\.(json|crc|checkpoint\.parquet)")
_DATA = ".parquet"
_UNFINISHED = re.compile(r"_commit_.*\.json\.tmp")  # a commit that deltalake did not get to make


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Files that can go, and their bytes: entries of the log, and data files."""

    entries: tuple[PurePath, ...]
    files: tuple[PurePath, ...]
    size: int


def leftovers(folder: Path, live: Collection[str], now: float, files_seconds: float | None) -> Leftovers:
    """What can go at a moment, in seconds since 1970. `live`: names of the data files of the newest version.

    Of the log a checkpoint stays that is older than what is kept, and everything behind it: every version since can be
    read. `files_seconds`: how long data files stay that no version names; None: the folder, which may be long, is not
    listed.
    """
    files = [] if files_seconds is None else list(_files(folder, set(live), now - files_seconds))
    entries = tuple(_entries(folder / "_delta_log", now))
    return Leftovers(entries, tuple(path for path, _ in files), sum(size for _, size in files))


def remove(folder: Path, found: Leftovers, *, durable: bool) -> None:
    """Remove them, the log from its oldest entry on; the checkpoint that replaces entries is on disk before."""
    log = folder / "_delta_log"
    if durable and found.entries:
        for name in (*log.glob("*.checkpoint.parquet"), log / "_last_checkpoint", log):
            sync(name)
    for path in (*sorted(found.entries), *found.files):
        Path(path).unlink(missing_ok=True)


def touch(paths: Iterable[Path]) -> None:
    """Say that files were replaced now."""
    for path in paths:
        os.utime(path)


def _files(folder: Path, live: set[str], before: float) -> Iterator[tuple[Path, int]]:
    with os.scandir(folder) as found:
        for file in found:
            if file.name.endswith(_DATA) and file.name not in live and file.is_file():
                status = file.stat()
                if status.st_mtime < before:
                    yield Path(file.path), status.st_size


def _entries(log: Path, now: float) -> Iterator[Path]:
    found: dict[int, list[tuple[str, Path, float]]] = {}
    with os.scandir(log) as files:
        for file in files:
            if match := _VERSION.fullmatch(file.name):
                found.setdefault(int(match[1]), []).append((match[2], Path(file.path), file.stat().st_mtime))
            elif _UNFINISHED.fullmatch(file.name) and file.stat().st_mtime < now - LOG_SECONDS:
                yield Path(file.path)
    newest = max(found)
    kept = min((v for v, of in found.items() if _is_kept(newest - v, now - max(t for *_, t in of))), default=newest)
    checkpoints = (v for v, of in found.items() if v <= kept and any(kind == "checkpoint.parquet" for kind, *_ in of))
    base = max(checkpoints, default=0)
    for version, of in found.items():
        if version < base:
            yield from (path for _, path, _ in of)


def _is_kept(behind: int, age: float) -> bool:
    return age < LOG_LEAST or (age < LOG_SECONDS and behind < LOG_VERSIONS)
