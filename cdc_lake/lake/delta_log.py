"""Delta tables in a local folder, written without Spark: data file, commit, and both on disk before anything is said.

A commit here is a file of ours made known by an `add` action. `deltalake` itself never calls fsync (tried), so the
data file, the log entry and their folders are synced here when `durable` is set. A failed call may have committed: each
commit carries an id of its own, and the log says whether it is there.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from cdc_lake.errors import CommitNotOnDisk
from cdc_lake.lake.bounds import Bounds
from cdc_lake.lake.delta_mend import LINES, NOTE, mend
from cdc_lake.lake.delta_stats import statistics
from cdc_lake.lake.disk import make_folder, sync
from cdc_lake.lake.json_lines import json_lines
from cdc_lake.lake.parquet_file import Rows, write_parquet
from cdc_lake.observe.failpoint import COMMIT_DOUBTED, COMMIT_WRITTEN, failpoint

CHECKPOINT_INTERVAL = 20
"""Commits between checkpoints. A commit reads the log since the last one: 12 ms with 20, 25 ms with 100 (measured)."""

ReadEntry: TypeAlias = Callable[[int], str | None]
"""Reads the log entry of a version, None where there is none."""


class NotLanded(Exception):
    """A commit failed and is not in the log. `overtaken`: another writer took its version."""

    def __init__(self, *, overtaken: bool) -> None:
        super().__init__("the commit is not in the log")
        self.overtaken = overtaken


def open_table(folder: Path) -> DeltaTable | None:
    """The newest version of the table, None where there is none. What a loss of power cut is mended first."""
    mend(folder)
    try:
        return DeltaTable(str(folder))
    except TableNotFoundError:
        return None


def create_table(folder: Path, schema: pa.Schema, properties: Mapping[str, str], *, durable: bool) -> DeltaTable:
    """Make an empty table. Raises DeltaError where one stands already."""
    if durable:
        make_folder(folder)
    else:
        folder.mkdir(parents=True, exist_ok=True)
    table = DeltaTable.create(
        str(folder),
        schema=Schema.from_arrow(schema),
        mode="error",
        configuration={"delta.checkpointInterval": str(CHECKPOINT_INTERVAL), **properties},
        raise_if_key_not_exists=False,  # properties of our own are not Delta's
    )
    if durable:
        _sync_log(folder, 0)
        sync(folder)
    return table


def write_file(
    folder: Path,
    rows: Rows,
    *,
    stats: Sequence[str] = (),
    loose: Mapping[str, tuple[str, str]] | None = None,
    plain: Sequence[str] = (),
    durable: bool,
) -> AddAction:
    """Write one Parquet file and give the action that makes it part of the table.

    `stats` are the columns whose smallest and greatest value readers prune by: none, or all of scalar type, because
    `DeltaTable.to_pyarrow_dataset` takes a missing bound for a file without matches (deltalake 1.6.6, tried). `loose`
    gives bounds of columns whose real ones are too long; `plain` names columns whose values hardly repeat and that a
    dictionary would only slow down.
    """
    path = folder / f"{uuid4()}.zstd.parquet"
    bounds = Bounds(stats, loose)
    with path.open("xb") as file:
        with pa.OSFile(str(path), "wb") as sink:  # it writes pages as they are, which a file of Python's copies first
            write_parquet(bounds.seen(rows), sink, stats=stats, plain=plain)
            size = sink.tell()
        if durable:
            os.fsync(file.fileno())
    if durable:
        sync(folder)
    return _added(path.name, size, bounds)


def added(
    name: str, size: int, rows: Rows, stats: Sequence[str], loose: Mapping[str, tuple[str, str]] | None
) -> AddAction:
    """The action that makes a file of these rows known, with their bounds."""
    bounds = Bounds(stats, loose)
    for _ in bounds.seen(rows):
        pass
    return _added(name, size, bounds)


def _added(name: str, size: int, bounds: Bounds) -> AddAction:
    return AddAction(name, size, {}, time.time_ns() // 1_000_000, data_change=True, stats=statistics(bounds))


def commit(
    table: DeltaTable,
    folder: Path,
    actions: Sequence[AddAction | RemoveAction],
    *,
    apps: Mapping[str, int],
    note: Mapping[str, object],
    fenced: bool,
    durable: bool,
) -> int:
    """Commit actions and application transactions at once; the version made. Raises NotLanded.

    `fenced`: only as the very next version after the one `table` stands at, so nothing read from it can be stale;
    otherwise Delta may place the append after other writers' commits. `table` moves to the version made.
    """
    version = submit(
        table, actions, apps=apps, note=note, fenced=fenced, mark=str(uuid4()), read=lambda at: entry_at(folder, at)
    )
    if durable:
        _sync_log(folder, version)
    stand_at(table, version)
    return version


def submit(
    table: DeltaTable,
    actions: Sequence[AddAction | RemoveAction],
    *,
    apps: Mapping[str, int],
    note: Mapping[str, object],
    fenced: bool,
    mark: str,
    read: ReadEntry,
    hooks: PostCommitHookProperties | None = None,
) -> int:
    """Commit, and find the commit in the log by its `mark` whatever the call said; its version. Raises NotLanded.

    `table` stays where it is. Tried again with the same mark, table and `fenced`, a commit lands once.
    """
    properties = CommitProperties(
        app_transactions=[Transaction(app, version) for app, version in apps.items()],
        custom_metadata={NOTE: {**note, "commit": mark, LINES: 1 + len(actions) + len(apps)}},
        max_commit_retries=0 if fenced else None,
    )

    def call() -> None:
        table.create_write_transaction(
            list(actions),
            "append",
            table.schema(),
            commit_properties=properties,
            post_commithook_properties=hooks,
        )

    return _made(call, table.version(), mark, read)


def set_properties(
    table: DeltaTable, folder: Path, properties: Mapping[str, str], *, note: Mapping[str, object], durable: bool
) -> int:
    """Set table properties as the very next version; which it is. Raises NotLanded."""
    version = submit_properties(table, properties, note=note, mark=str(uuid4()), read=lambda at: entry_at(folder, at))
    if durable:
        _sync_log(folder, version)
    stand_at(table, version)
    return version


def submit_properties(
    table: DeltaTable, properties: Mapping[str, str], *, note: Mapping[str, object], mark: str, read: ReadEntry
) -> int:
    """As `submit`, for properties of the table."""
    own = CommitProperties(custom_metadata={NOTE: {**note, "commit": mark}}, max_commit_retries=0)

    def call() -> None:
        table.alter.set_table_properties(dict(properties), raise_if_not_exists=False, commit_properties=own)

    return _made(call, table.version(), mark, read)


def create_checkpoint(table: DeltaTable, folder: Path, *, durable: bool) -> None:
    """Write the checkpoint of the version that `table` stands at."""
    table.create_checkpoint()
    if durable:
        _sync_log(folder, table.version())


def _made(call: Callable[[], None], base: int, mark: str, read: ReadEntry) -> int:
    """Make the call, and find what it committed. Raises NotLanded."""
    failure: Exception | None = None
    try:
        call()
    except Exception as cause:  # noqa: BLE001 - any failure may have committed: the log decides
        failure = cause
    failpoint(COMMIT_WRITTEN)
    if failure is not None:
        failpoint(COMMIT_DOUBTED)
    version, overtaken = _find(read, base, mark)
    if version is None:
        raise NotLanded(overtaken=overtaken) from failure
    return version


def note_in(text: str) -> dict[str, Any] | None:
    """Our own part of a log entry, None where it is somebody else's."""
    for action in json_lines(text):
        info = action.get("commitInfo")
        if info is not None:
            note = info.get(NOTE)
            return note if isinstance(note, dict) else None
    return None


def stand_at(table: DeltaTable, version: int) -> None:
    """Move an open table to the version it made, and not to what came right behind: that was not looked at yet."""
    table.update_incremental()
    if table.version() > version:
        table.load_as_version(version)


def refresh(table: DeltaTable, folder: Path) -> None:
    """Move an open table to the newest version; next to nothing where it stands there already.

    `update_incremental` costs 5 to 20 ms even then (measured). A newer version has a log entry, or it was cleaned up,
    which only a later checkpoint allows.
    """
    version = table.version()
    if log_entry(folder, version + 1).exists() or _last_checkpoint(folder) > version:
        table.update_incremental()


def sync_version(folder: Path, version: int) -> None:
    """Put a version on disk that a library call made: its log entry and the data files it added."""
    for action in json_lines(log_entry(folder, version).read_bytes()):
        added = action.get("add")
        if added is not None:
            sync(folder / added["path"])
    sync(folder)
    _sync_log(folder, version)


def _find(read: ReadEntry, base: int, mark: str) -> tuple[int | None, bool]:
    """The version after `base` that carries the mark, and whether there is any version after `base`."""
    version = base + 1
    while (text := read(version)) is not None:
        note = note_in(text)
        if note is not None and note.get("commit") == mark:
            return version, version > base + 1
        version += 1
    return None, version > base + 1


def entry_at(folder: Path, version: int) -> str | None:
    """The log entry of a version; None where there is none, or it was cleaned up."""
    try:
        return log_entry(folder, version).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def _last_checkpoint(folder: Path) -> int:
    try:
        return int(json.loads((folder / "_delta_log" / "_last_checkpoint").read_text())["version"])
    except FileNotFoundError:
        return -1


def log_entry(folder: Path, version: int) -> Path:
    """The file of a version's log entry."""
    return folder / "_delta_log" / f"{version:020d}.json"


def _sync_log(folder: Path, version: int) -> None:
    """Raises CommitNotOnDisk: readers see the version by now."""
    entry = log_entry(folder, version)
    checkpoint = entry.with_name(f"{version:020d}.checkpoint.parquet")
    try:
        sync(entry)
        if checkpoint.exists():
            sync(checkpoint)
            sync(entry.with_name("_last_checkpoint"))
        sync(entry.parent)
    except OSError as failed:
        msg = f"version {version} is in the log, and the disk failed to keep it: {failed.strerror}"
        raise CommitNotOnDisk(msg, where=str(folder)) from failed
