"""What a lake's folder must be able to do, tried before anything is made in it.

A commit to a Delta log here is a file that is made under its name only where nothing has that name; on a disk that is a
hard link. A mounted object store often has none, or has one that overwrites, and then two jobs could both believe that
they made the same version. It cannot be tried here whether two machines exclude each other; one that does not even
exclude itself is refused.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from pathlib import Path
from typing import Any

from cdc_lake.errors import LakeFolderUnfit


def require_folder(folder: Path) -> None:
    """Make the folder where it is not there. Raises LakeFolderUnfit where files in it do not exclude each other."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise LakeFolderUnfit(f"the folder cannot be made: {cause.strerror}", where=str(folder)) from cause
    draft, name = (folder / f"probe-{uuid.uuid4().hex}.{end}" for end in ("draft", "txt"))
    try:
        _exclusive(draft, name)
    except OSError as cause:
        said = f"files here cannot be made for good under a name of their own: {cause.strerror}"
        raise LakeFolderUnfit(said, where=str(folder)) from cause
    finally:
        draft.unlink(missing_ok=True)
        name.unlink(missing_ok=True)


def _exclusive(draft: Path, name: Path) -> None:
    with draft.open("wb") as file:
        file.write(b"probe\n")
        file.flush()
        os.fsync(file.fileno())
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.link(draft, name)
    try:
        os.link(draft, name)
    except FileExistsError:
        return
    raise LakeFolderUnfit("a second file took the name of the first", where=str(name.parent))


def require_seen(spark: Any, folder: Path) -> None:
    """Raise LakeFolderUnfit where Spark has another folder under the same path, as where its root is a store."""
    token = uuid.uuid4().hex
    file = folder / f"probe-{token}.txt"
    try:
        file.write_text(token, encoding="utf-8")
        rows = spark.read.text(str(file)).collect()
    except Exception as cause:
        said = f"Spark does not see this folder under its path: {type(cause).__name__}"
        raise LakeFolderUnfit(said, where=str(folder)) from cause
    finally:
        file.unlink(missing_ok=True)
    if [row[0] for row in rows] != [token]:
        raise LakeFolderUnfit("Spark has another folder under the same path", where=str(folder))
