"""The leases of a pipeline: one apply at a time on this machine, and one process that copies tables again.

A file lock that goes with its process, however that ends. It is not what keeps silver right, the markers in the tables
are: it keeps two runs from preparing the same span, and keeps the rows of `held`, which no marker fences, to one
writer. Two machines on one lake are refused by the markers only.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from cdc_lake.errors import AnotherApply, AnotherCopy, StateError

_APPLY, _COPY = "apply.lock", "copy.lock"


def lease(folder: Path) -> AbstractContextManager[None]:
    """Hold the lease of the pipeline whose control tables are in `folder`. Raises AnotherApply where it is taken."""
    return _held(folder, _APPLY, AnotherApply, "applies this pipeline already")


def copy_lease(folder: Path) -> AbstractContextManager[None]:
    """The same of copies beside the stream: a table has one at a time. Raises AnotherCopy."""
    return _held(folder, _COPY, AnotherCopy, "copies tables of this pipeline already")


@contextmanager
def _held(folder: Path, name: str, error: type[StateError], words: str) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    file = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as taken:
            holder = os.pread(file, 20, 0).decode("ascii", "replace").strip() or "unknown"
            raise error(f"process {holder} {words}", where=str(folder)) from taken
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(file)
