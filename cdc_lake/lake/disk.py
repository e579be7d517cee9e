"""On disk: what survives a loss of power, a file's content once it is synced, its name once its folder is."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

_FOREIGN: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF}
)
"""What syncing a folder says that is not ours, or of a kind that knows no syncing."""

_ON_DISK: Final[set[tuple[Path, int]]] = set()
"""Folders, by path and inode, whose names this process has put on disk."""


def sync(path: Path) -> None:
    """Put a file or a folder on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, on disk; also what is there already, which somebody made who did not sync."""
    new = {one for one in (folder, *folder.parents) if not one.exists()}
    folder.mkdir(parents=True, exist_ok=True)
    for one in (folder, *folder.parents):
        known = (one, one.stat().st_ino)
        if one not in new and known in _ON_DISK:
            continue
        if one in new:
            sync(one)
        try:
            sync(one.parent)
        except OSError as refused:
            if one in new or refused.errno not in _FOREIGN:
                raise
        _ON_DISK.add(known)


def write_rows(rows: pa.Table, path: Path) -> None:
    """A Parquet file on disk under its name, whole, or not there; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    with beside.open("wb") as file:
        pq.write_table(rows, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync(path.parent)
