"""What a lake's folder must be able to do, tried before anything is made in it.

Where bronze or the control tables are in it, their commits are files that are made under their names only where nothing
has them; on a disk that is a hard link. A mounted object store often has none, or has one that overwrites, and then two
jobs could both believe that they made the same version. It cannot be tried here whether two machines exclude each
other; one that does not even exclude itself is refused. Silver is committed to by Spark, which has ways of its own.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from pathlib import Path
from typing import Any

from cdc_lake.config.project import Project
from cdc_lake.errors import LakeFolderUnfit


def require_folder(project: Project) -> None:
    """Make the lake's folder where it is not there. Raises LakeFolderUnfit where its files cannot be relied on."""
    folder = project.lake
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise LakeFolderUnfit(f"the folder cannot be made: {cause.strerror}", where=str(folder)) from cause
    draft, name = (folder / f"probe-{uuid.uuid4().hex}.{end}" for end in ("draft", "txt"))
    try:
        _whole(draft, name)
        if project.control_address is None or project.bronze_address is None:
            _exclusive(draft, name)
    except OSError as cause:
        said = f"files here cannot be made for good under a name of their own: {cause.strerror}"
        raise LakeFolderUnfit(said, where=str(folder)) from cause
    finally:
        draft.unlink(missing_ok=True)
        name.unlink(missing_ok=True)


def _whole(draft: Path, name: Path) -> None:
    """A file that takes its name whole, as reports and rows that were read again do."""
    draft.write_bytes(b"probe\n")
    draft.replace(name)
    if name.read_bytes() != b"probe\n":
        raise LakeFolderUnfit("a file that was written is another one", where=str(name.parent))
    name.unlink()


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
