"""On disk: what survives a loss of power, a file's content once it is synced, its name once its folder is."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def sync(path: Path) -> None:
    """Put a file or a folder on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, on disk."""
    new = [f for f in (folder, *folder.parents) if not f.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in new:
        sync(made)
        sync(made.parent)


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
