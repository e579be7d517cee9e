"""Finds commits of other writers to a silver table since its last known version, and reads metrics of our own commits.

A commit without our marker that changes rows is foreign; compaction and column changes are not. A restore to an older
version is distinguished from a write: on Delta the log contains RESTORE (the marker remains the newest one, tried); on
Iceberg the known version is no longer an ancestor of the newest.

On Delta our commits record the watermark for which they were planned, because Delta checks the marker only from the
moment a statement begins: this shows a commit that followed another applier's.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdc_lake.config.project import Project, Target
from cdc_lake.tables.delta_log import entry_at, json_lines, log_entry
from cdc_lake.tables.silver_table import APP_PROPERTY, iceberg_table, laid_out_by, planned_for, written_by

if TYPE_CHECKING:
    from pyiceberg.table.snapshots import Snapshot


@dataclass(frozen=True, slots=True)
class ForeignCommit:
    """`put_back`: the table has older content again; otherwise rows were written. `text` describes the commit."""

    put_back: bool
    text: str


def is_latest_version(project: Project, target: Target, version: int) -> bool:
    """Whether `version` is certainly the newest: a quick check for every table at every start."""
    if target.format == "delta":
        folder = project.silver_path(target)
        return (folder / "_delta_log").exists() and not log_entry(folder, version + 1).exists()
    table = iceberg_table(project, target)
    head = table.current_snapshot() if table is not None else None
    return head is not None and head.snapshot_id == version


def is_version_replaced(project: Project, target: Target, stream: str, version: int, position: int) -> bool:
    """Whether our merge of `position`, committed as `version`, was replaced by another commit: in a local folder, a
    program that commits at the same time may overwrite its log entry. A version no longer in the log is not checked.
    """
    if target.format != "delta":
        return False  # a catalog assigns a version to one writer only
    entries = _entries(project.silver_path(target), (written_by(stream, target),), version - 1, version)
    return any(entry.position != position for entry in entries)


def find_foreign_commit(
    project: Project, target: Target, stream: str, known_version: int, now: int, generation: int
) -> ForeignCommit | None:
    """A foreign commit between `known_version`, which had `generation`, and `now`; None if there is none.

    Commits before the first commit of a later generation do not count.
    """
    writers = (written_by(stream, target), laid_out_by(stream, target))
    if target.format == "delta":
        return _on_delta(project.silver_path(target), writers, known_version, now)
    table = iceberg_table(project, target)
    return None if table is None else _on_iceberg(table, writers, known_version, generation)


def find_concurrent_commit(
    project: Project, target: Target, stream: str, planned_on: int, committed_version: int
) -> ForeignCommit | None:
    """Another applier's commit to a Delta table between the version that a commit was planned on and its own."""
    folder = project.silver_path(target)
    return _out_of_turn(list(_entries(folder, (written_by(stream, target),), planned_on, committed_version)))


# ── Delta ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Entry:
    version: int
    operation: str
    is_own: bool
    position: int | None
    planned_for: str | None
    changes: bool
    files: tuple[tuple[tuple[str, str], int], ...]


def _on_delta(folder: Path, writers: tuple[str, ...], known_version: int, now: int) -> ForeignCommit | None:
    if now < known_version:
        return ForeignCommit(
            put_back=True, text=f"it is at version {now}, but the latest cut lists version {known_version}"
        )
    net: Counter[tuple[str, str]] = Counter()
    foreign_entries: list[_Entry] = []
    own: list[_Entry] = []
    for entry in _entries(folder, writers, known_version, now):
        if entry.is_own:
            own.append(entry)
            if entry.operation.endswith("AS SELECT"):
                break  # new content: commits to the previous content no longer matter
            continue
        net.update(dict(entry.files))
        if entry.changes:
            foreign_entries.append(entry)
    else:
        own += islice((entry for entry in _entries(folder, writers[:1], -1, known_version) if entry.is_own), 1)
    if (twice := _out_of_turn(own)) is not None:
        return twice
    if not foreign_entries or not any(net.values()):  # changes that were undone do not count
        return None
    back = next((entry for entry in foreign_entries if entry.operation == "RESTORE"), None)
    foreign_entry = back or foreign_entries[0]
    return ForeignCommit(
        put_back=back is not None,
        text=f"version {foreign_entry.version} is a commit of another writer ({foreign_entry.operation})",
    )


def _out_of_turn(entries: Sequence[_Entry]) -> ForeignCommit | None:
    """The newest of our commits, newest first, that followed another watermark than the one it was planned for."""
    own = [entry for entry in entries if entry.position is not None]
    for later, earlier in pairwise(own):
        if later.planned_for not in (None, planned_for(earlier.position)):
            text = (
                f"version {later.version} was planned before version {earlier.version}, which another apply process "
                "committed"
            )
            return ForeignCommit(put_back=False, text=text)
    return None


def _entries(folder: Path, writers: tuple[str, ...], known_version: int, now: int) -> Iterator[_Entry]:
    """Log entries after `known_version`, newest first, as far as the log has them."""
    for version in range(now, known_version, -1):
        text = entry_at(folder, version)
        if text is None:
            return
        operation, is_own, changes = "unknown", False, False
        position, plan = None, None
        files: dict[tuple[str, str], int] = {}
        for action in json_lines(text):
            information, mark = action.get("commitInfo", {}), action.get("txn", {})
            operation, plan = information.get("operation", operation), information.get("userMetadata", plan)
            if (app := mark.get("appId", "")).startswith(writers):
                is_own, position = True, mark["version"] if app.startswith(writers[0]) else position
            for kind, step in (("add", 1), ("remove", -1)):
                if (file := action.get(kind)) is not None:
                    files[file["path"], json.dumps(file.get("deletionVector"), sort_keys=True)] = step
                    changes = changes or bool(file.get("dataChange", True))
        yield _Entry(version, operation, is_own, position, plan, changes, tuple(files.items()))


# ── Iceberg ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _on_iceberg(table: Any, writers: tuple[str, str], known_version: int, generation: int) -> ForeignCommit | None:
    version: Snapshot | None = table.current_snapshot()
    foreign_commit: ForeignCommit | None = None
    while version is not None and version.snapshot_id != known_version:
        summary = version.summary.additional_properties if version.summary else {}
        operation = version.summary.operation.value if version.summary else "unknown"
        app = summary.get(APP_PROPERTY, "")
        if app.startswith(writers):
            if int(app.rpartition(":")[2]) > generation and version.parent_snapshot_id is None:
                return foreign_commit  # new content: commits to the previous content no longer matter
        elif operation != "replace":
            foreign_commit = ForeignCommit(
                put_back=False, text=f"version {version.snapshot_id} is a commit of another writer ({operation})"
            )
        if version.parent_snapshot_id is None:
            return _put_back(known_version)
        version = table.snapshot_by_id(version.parent_snapshot_id)
    if version is None and table.snapshot_by_id(known_version) is not None:
        return _put_back(known_version)
    return foreign_commit


def _put_back(known_version: int) -> ForeignCommit:
    return ForeignCommit(
        put_back=True, text=f"version {known_version}, which the latest cut lists, is no longer in its history"
    )


@dataclass(frozen=True, slots=True)
class CommitMetrics:
    """What one commit wrote. `files`, `size`: data files added and all bytes written; `replaced`, `replaced_size`: data
    files removed, and all bytes removed; `marked`: data files with rows marked as deleted (Delta), or delete files
    (Iceberg).
    """

    files: int
    size: int
    replaced: int
    replaced_size: int
    marked: int

    @property
    def facts(self) -> dict[str, int]:
        """The metrics for progress and the control table `runs`."""
        return {
            "files_written": self.files,
            "bytes_written": self.size,
            "files_replaced": self.replaced,
            "bytes_replaced": self.replaced_size,
            "files_marked": self.marked,
        }


def read_commit_metrics(project: Project, target: Target, version: int) -> CommitMetrics:
    """What the commit that made `version` wrote; the commit must be recent."""
    if target.format == "delta":
        return _delta(log_entry(project.silver_path(target), version))
    table = iceberg_table(project, target)
    snapshot = table.snapshot_by_id(version) if table is not None else None
    summary = snapshot.summary.additional_properties if snapshot is not None and snapshot.summary is not None else {}

    def read_count(name: str) -> int:
        return int(summary.get(name, 0))

    return CommitMetrics(
        files=read_count("added-data-files"),
        size=read_count("added-files-size"),
        replaced=read_count("deleted-data-files"),
        replaced_size=read_count("removed-files-size"),
        marked=read_count("added-delete-files"),
    )


def _delta(entry: Path) -> CommitMetrics:
    """Metrics of a log entry: a file removed and added again got a new deletion vector and was not rewritten."""
    actions = json_lines(entry.read_bytes())
    added: dict[str, Mapping[str, Any]] = {a["add"]["path"]: a["add"] for a in actions if "add" in a}
    removed: dict[str, Mapping[str, Any]] = {a["remove"]["path"]: a["remove"] for a in actions if "remove" in a}
    marked = added.keys() & removed.keys()
    marks = sum((added[path].get("deletionVector") or {}).get("sizeInBytes", 0) for path in marked)
    fresh, gone = added.keys() - marked, removed.keys() - marked
    return CommitMetrics(
        files=len(fresh),
        size=sum(added[path]["size"] for path in fresh) + marks,
        replaced=len(gone),
        replaced_size=sum(removed[path].get("size") or 0 for path in gone),
        marked=len(marked),
    )
