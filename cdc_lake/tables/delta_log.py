"""Writes Delta tables in a local folder without Spark; data file and commit are durable before a call returns.

A commit makes a file of ours part of the table by an `add` action, with bounds as Delta's per-file statistics.
`deltalake` never calls fsync (tried), so the data file, the log entry and their folders are synced here if `durable` is
set. A failed call may have committed: each commit has its own id, by which it is looked up in the log. Commits of
others are checked for added or removed data files.

An entry is complete when it gets its name, so an incomplete one was truncated by a power failure before it was durable
and before anybody was notified. The same holds for checkpoints, which replace nothing until they are durable, and for a
checkpoint without its own entry. Truncated files are renamed, never removed; the table is then at the previous commit.

Log lines end only at line feeds: `str.splitlines` also splits at other Unicode line breaks (U+0085, U+2028, U+2029 and
more), which JSON allows inside strings and Spark writes into statistics.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.transaction import AddAction, RemoveAction

from cdc_lake.errors import CommitNotOnDisk
from cdc_lake.observability.failpoints import COMMIT_DOUBTED, COMMIT_WRITTEN, failpoint
from cdc_lake.tables.files import Bounds, Rows, make_folder, sync, write_parquet


def statistics(bounds: Bounds) -> str:
    """The statistics as JSON; without columns only the number of rows."""
    if not bounds.columns:
        return json.dumps({"numRecords": bounds.rows})
    return json.dumps(
        {"numRecords": bounds.rows, "minValues": bounds.low, "maxValues": bounds.high, "nullCount": bounds.nulls},
        ensure_ascii=False,
        default=_time,
    )


def _time(value: object) -> str:
    if not isinstance(value, datetime):
        msg = f"statistics of {type(value).__name__} have no form in Delta"
        raise TypeError(msg)
    return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def json_lines(text: str | bytes) -> list[dict[str, Any]]:
    """The objects of a JSON lines text, in order, skipping empty lines. Raises ValueError."""
    lines = text.split("\n") if isinstance(text, str) else text.split(b"\n")
    return [json.loads(line) for line in lines if line.strip()]


NOTE = "cdc_lake"
"""Key of our own entry in a commit's `commitInfo`."""

LINES = "lines"
"""Key in our entry: the number of lines of the log entry."""

_ENTRY = re.compile(r"[0-9]{20}\.json")
_CHECKPOINT = re.compile(r"[0-9]{20}\.checkpoint\.parquet")


def mend(folder: Path) -> list[str]:
    """Rename truncated files in the log of the table in `folder`; returns their former names."""
    log = folder / "_delta_log"
    try:
        names = sorted(entry.name for entry in os.scandir(log))
    except FileNotFoundError:
        return []
    newest = (name for name in reversed(names) if _ENTRY.fullmatch(name))
    entries = list(itertools.takewhile(lambda name: not _is_whole((log / name).read_bytes()), newest))
    cut = [*_cut_checkpoints(log, names, entries), *entries]
    for name in cut:
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            (log / name).rename(log / f"{name}.cut")
    return cut


def _cut_checkpoints(log: Path, names: list[str], entries: list[str]) -> Iterator[str]:
    """The newest checkpoints, and pointers to one, if they are unreadable or belong to a truncated entry."""
    checkpoints = [name for name in names if _CHECKPOINT.fullmatch(name)][-2:]
    cut = [name for name in checkpoints if not _is_parquet(log / name) or _is_alone(log, int(name[:20]), entries)]
    yield from cut
    if "_last_checkpoint" in names:
        try:
            version = int(json.loads((log / "_last_checkpoint").read_text())["version"])
        except (ValueError, TypeError, KeyError):
            version = -1
        named = f"{version:020d}.checkpoint.parquet"
        if named in cut or not _is_parquet(log / named):
            yield "_last_checkpoint"


def _is_alone(log: Path, version: int, cut: list[str]) -> bool:
    """Whether a checkpoint's entry is missing but the previous one exists: maintenance removes older entries first."""
    own, before = (f"{number:020d}.json" for number in (version, version - 1))
    return (own in cut or not (log / own).exists()) and (log / before).exists() and before not in cut


def _is_whole(entry: bytes) -> bool:
    try:
        actions = json_lines(entry)
    except ValueError:
        return False
    note = next((action["commitInfo"].get(NOTE) for action in actions if "commitInfo" in action), None)
    return bool(actions) and (not isinstance(note, dict) or note.get(LINES, len(actions)) == len(actions))


def _is_parquet(path: Path) -> bool:
    try:
        pq.read_metadata(path)
    except (pa.ArrowException, OSError):
        return False
    return True


CHECKPOINT_INTERVAL = 20
"""Commits between checkpoints. A commit reads the log since the last one: 12 ms with 20, 25 ms with 100 (measured)."""

Note: TypeAlias = Mapping[str, object]
"""Our own part of a commit's metadata."""

ReadEntry: TypeAlias = Callable[[int], str | None]
"""Reads the log entry of a version, None if there is none."""


class DeltaCommitFailed(Exception):
    """A commit failed and is not in the log. `overtaken`: another writer took its version."""

    def __init__(self, *, overtaken: bool) -> None:
        super().__init__("the commit is not in the log")
        self.overtaken = overtaken


CREATION: Final = CommitProperties(max_commit_retries=0)
"""Of the commit that creates a table: delta-rs would repeat it as version 1, after the one of somebody else (tried)."""


def create_table(folder: Path, schema: pa.Schema, properties: Mapping[str, str], *, durable: bool) -> DeltaTable:
    """Create an empty table. Raises DeltaError if one exists already."""
    make_folder(folder, durable=durable)
    table = DeltaTable.create(
        str(folder),
        schema=Schema.from_arrow(schema),
        mode="error",
        configuration={"delta.checkpointInterval": str(CHECKPOINT_INTERVAL), **properties},
        raise_if_key_not_exists=False,  # properties of our own are not Delta's
        commit_properties=CREATION,
    )
    if durable:
        sync_log(folder, 0)
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
    """Write one Parquet file and return the action that makes it part of the table.

    `stats` are the columns whose minimum and maximum readers prune by: none, or all of scalar type, because
    `DeltaTable.to_pyarrow_dataset` treats a missing bound as a file without matches (deltalake 1.6.6, tried). `loose`
    has bounds of columns whose real ones are too long; `plain` names columns with few repeated values, which a
    dictionary would only slow down.
    """
    path = folder / f"{uuid4()}.zstd.parquet"
    bounds = Bounds(stats, loose)
    with path.open("xb") as file:
        with pa.OSFile(str(path), "wb") as sink:  # it writes pages directly, while a Python file copies them first
            write_parquet(bounds.observe_rows(rows), sink, stats=stats, plain=plain)
            size = sink.tell()
        if durable:
            os.fsync(file.fileno())
    if durable:
        sync(folder)
    return _add_action(path.name, size, bounds)


def build_add_action(
    name: str, size: int, rows: Rows, stats: Sequence[str], loose: Mapping[str, tuple[str, str]] | None
) -> AddAction:
    """The action that adds a file of these rows, with their bounds."""
    bounds = Bounds(stats, loose)
    for _ in bounds.observe_rows(rows):
        pass
    return _add_action(name, size, bounds)


def _add_action(name: str, size: int, bounds: Bounds) -> AddAction:
    return AddAction(name, size, {}, time.time_ns() // 1_000_000, data_change=True, stats=statistics(bounds))


def submit(
    table: DeltaTable,
    actions: Sequence[AddAction | RemoveAction],
    *,
    apps: Mapping[str, int],
    note: Note,
    fenced: bool,
    mark: str,
    read: ReadEntry,
    hooks: PostCommitHookProperties | None = None,
) -> int:
    """Commit, and find the version in the log by `mark` whatever the call returned. Raises DeltaCommitFailed.

    `table` is not moved. Repeated with the same mark, table and `fenced`, a commit lands once.
    """
    properties = CommitProperties(
        app_transactions=[Transaction(app, version) for app, version in apps.items()],
        custom_metadata={NOTE: {**note, "commit": mark, LINES: 1 + len(actions) + len(apps)}},
        max_commit_retries=0 if fenced else None,
    )

    call = partial(table.create_write_transaction, list(actions), "append", table.schema())
    return _run_commit(
        partial(call, commit_properties=properties, post_commithook_properties=hooks), table.version(), mark, read
    )


def submit_properties(
    table: DeltaTable, properties: Mapping[str, str], *, note: Note, mark: str, read: ReadEntry
) -> int:
    """As `submit`, for properties of the table."""
    own = CommitProperties(custom_metadata={NOTE: {**note, "commit": mark}}, max_commit_retries=0)
    call = partial(table.alter.set_table_properties, raise_if_not_exists=False, commit_properties=own)
    return _run_commit(partial(call, dict(properties)), table.version(), mark, read)


def _run_commit(call: Callable[[], object], base: int, mark: str, read: ReadEntry) -> int:
    """Make the call, and find its commit. Raises DeltaCommitFailed."""
    failure: Exception | None = None
    try:
        call()
    except Exception as cause:  # noqa: BLE001 - any failure may have committed: the log decides
        failure = cause
    failpoint(COMMIT_WRITTEN)
    if failure is not None:
        failpoint(COMMIT_DOUBTED)
    version = base + 1
    while (text := read(version)) is not None:
        note = note_in(text)
        if note is not None and note.get("commit") == mark:
            return version
        version += 1
    raise DeltaCommitFailed(overtaken=version > base + 1) from failure


def note_in(text: str) -> dict[str, Any] | None:
    """Our own part of a log entry, None if another writer made it."""
    for action in json_lines(text):
        info = action.get("commitInfo")
        if info is not None:
            note = info.get(NOTE)
            return note if isinstance(note, dict) else None
    return None


def stand_at(table: DeltaTable, version: int) -> None:
    """Move an open table to the version it made, and not to later ones, which were not checked yet."""
    table.update_incremental()
    if table.version() > version:
        table.load_as_version(version)


def refresh(table: DeltaTable, folder: Path) -> None:
    """Move an open table to the newest version; almost free if it is there already.

    `update_incremental` costs 5 to 20 ms even then (measured). A newer version has a log entry, unless it was cleaned
    up, which requires a later checkpoint.
    """
    version = table.version()
    if log_entry(folder, version + 1).exists() or _last_checkpoint(folder) > version:
        table.update_incremental()


def sync_version(folder: Path, version: int) -> None:
    """Sync a version that a library call made: its log entry and the data files it added."""
    for action in json_lines(log_entry(folder, version).read_bytes()):
        added = action.get("add")
        if added is not None:
            sync(folder / added["path"])
    sync(folder)
    sync_log(folder, version)


def entry_at(folder: Path, version: int) -> str | None:
    """The log entry of a version; None if it does not exist or was cleaned up."""
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


def sync_log(folder: Path, version: int) -> None:
    """Raises CommitNotOnDisk: readers can already see the version."""
    entry = log_entry(folder, version)
    checkpoint = entry.with_name(f"{version:020d}.checkpoint.parquet")
    try:
        sync(entry)
        if checkpoint.exists():
            sync(checkpoint)
            sync(entry.with_name("_last_checkpoint"))
        sync(entry.parent)
    except OSError as failed:
        msg = f"version {version} is in the log, but the disk failed to store it durably: {failed.strerror}"
        raise CommitNotOnDisk(msg, where=str(folder)) from failed


def changed_by(entries: Sequence[tuple[int, str]]) -> str | None:
    """The change of data files in log entries, newest first and each with its version; None if they are the same.

    Undone changes do not count: a RESTORE cancels a change. A file with other deleted rows is another file.
    """
    net: Counter[tuple[str, str]] = Counter()
    newest: tuple[int, str] | None = None
    for version, entry in entries:
        operation, files = _read(entry)
        net.update(files)
        if files and newest is None:
            newest = version, operation
    came, left = sum(1 for count in net.values() if count > 0), sum(1 for count in net.values() if count < 0)
    if newest is None or not came + left:
        return None
    version, operation = newest
    return (
        f"bronze was modified outside cdc_lake: version {version} ({operation}) removed {left} data "
        f"file{'' if left == 1 else 's'} and added {came}"
    )


def _read(entry: str) -> tuple[str, dict[tuple[str, str], int]]:
    """The operation of a log entry, and the files it adds (1) and removes (-1), by path and deletion vector."""
    operation, files = "unknown", dict[tuple[str, str], int]()
    for action in json_lines(entry):
        operation = action.get("commitInfo", {}).get("operation", operation)
        for kind, step in (("add", 1), ("remove", -1)):
            if (file := action.get(kind)) is not None:
                files[file["path"], json.dumps(file.get("deletionVector"), sort_keys=True)] = step
    return operation, files
