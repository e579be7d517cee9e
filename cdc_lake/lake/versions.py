"""Versions of silver tables: whether one can still be read, and the tags that keep one on Iceberg."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from cdc_lake.config.project import Project, Target
from cdc_lake.errors import TableChangedMeanwhile
from cdc_lake.lake.marker import iceberg_table

if TYPE_CHECKING:
    from pyiceberg.table import Table

TAG_PREFIX = "cut_"
"""Tags of ours are `cut_<name of the promise>`."""

_TRIES = 5  # of a commit that another one overtakes in the catalog


def is_readable(project: Project, target: Target, version: int) -> bool:
    """Whether a version of a table is described and, on a disk, its data files are there."""
    if target.format == "delta":
        try:
            files = DeltaTable(str(project.silver_path(target)), version=version).file_uris()
        except (TableNotFoundError, DeltaError):
            return False
        return all(_there(file) for file in files)
    table = iceberg_table(project, target)
    if table is None or table.snapshot_by_id(version) is None:
        return False
    try:
        tasks = table.scan(snapshot_id=version).plan_files()
        return all(_there(file.file_path) for task in tasks for file in (task.file, *task.delete_files))
    except FileNotFoundError:  # a manifest is gone
        return False


def set_tags(project: Project, target: Target, wanted: Mapping[str, int]) -> tuple[str, ...]:
    """Make an Iceberg table's tags of cuts exactly these, tag → version; those whose version is not there any more.

    Raises TableChangedMeanwhile where others commit to the table all the time.
    """
    from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415 - an extra

    overtaken: Exception | None = None
    for _ in range(_TRIES):
        table = iceberg_table(project, target)
        if table is None:
            return tuple(wanted)
        try:
            return _set(table, wanted)
        except CommitFailedException as cause:
            overtaken = cause
    raise TableChangedMeanwhile(f"another writer commits to {target.label}") from overtaken


def _set(table: Table, wanted: Mapping[str, int]) -> tuple[str, ...]:
    there = {name: ref.snapshot_id for name, ref in table.refs().items() if name.startswith(TAG_PREFIX)}
    gone = tuple(name for name, version in wanted.items() if table.snapshot_by_id(version) is None)
    made = {name: version for name, version in wanted.items() if name not in gone and there.get(name) != version}
    left = [name for name in there if name in made or name not in wanted]
    for name in left:
        table.manage_snapshots().remove_tag(name).commit()
    for name, version in made.items():
        table.manage_snapshots().create_tag(version, name).commit()
    return gone


def _there(uri: str) -> bool:
    """Whether a data file is there; one in an object store is taken to be."""
    parts = urlsplit(uri)
    if parts.scheme not in {"", "file"}:
        return True
    return Path(unquote(parts.path) if parts.scheme else uri).exists()
