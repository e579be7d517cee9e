"""Strangers: what others did to a silver table since the last version of it that is known to be ours.

A commit without our marker that changes rows is a stranger's; putting files together without changing rows is not, nor
is a change of columns. A table that was put back to an older version is told from one that was written to: on Delta its
log says RESTORE, and the marker says nothing (it stays the newest one, tried); on Iceberg the version that we know is
no ancestor of the newest any more.

On Delta a commit of ours says which watermark it was planned for, because Delta looks at the marker only from the
moment at which a statement begins: one that came behind another applier's is told by that.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdc_lake.config.project import Project, Target
from cdc_lake.lake.json_lines import json_lines
from cdc_lake.lake.marker import APP_PROPERTY, iceberg_table, laid_out_by, planned_for, written_by

if TYPE_CHECKING:
    from pyiceberg.table.snapshots import Snapshot


@dataclass(frozen=True, slots=True)
class Stranger:
    """`put_back`: the table is at an older content again; otherwise rows were written. `text` says what was seen."""

    put_back: bool
    text: str


def untouched(project: Project, target: Target, version: int) -> bool:
    """Whether `version` is certainly the newest: the quick question, asked of every table at every start."""
    if target.format == "delta":
        log = project.silver_path(target) / "_delta_log"
        return log.exists() and not _entry(log, version + 1).exists()
    table = iceberg_table(project, target)
    head = table.current_snapshot() if table is not None else None
    return head is not None and head.snapshot_id == version


def taken(project: Project, target: Target, stream: str, version: int, position: int) -> bool:
    """Whether the log has another commit as a version than our merge of a position, which it was or one before it: in a
    folder one that another program makes at the same time may take its place. What left the log is not asked for.
    """
    if target.format != "delta":
        return False  # the catalog gives a version to one
    log = project.silver_path(target) / "_delta_log"
    return any(one.position != position for one in _entries(log, (written_by(stream, target),), version - 1, version))


def stranger(project: Project, target: Target, stream: str, known: int, now: int, generation: int) -> Stranger | None:
    """What others did to a table between its versions `known`, which held `generation`, and `now`; None: nothing.

    What came before the first commit of a later generation is of no account any more.
    """
    ours = (written_by(stream, target), laid_out_by(stream, target))
    if target.format == "delta":
        return _on_delta(project.silver_path(target) / "_delta_log", ours, known, now)
    table = iceberg_table(project, target)
    return None if table is None else _on_iceberg(table, ours, known, generation)


def overtaken(project: Project, target: Target, stream: str, planned_on: int, made: int) -> Stranger | None:
    """Another applier's commit to a Delta table between the version that a commit was planned on and its own."""
    log = project.silver_path(target) / "_delta_log"
    return _out_of_turn(list(_entries(log, (written_by(stream, target),), planned_on, made)))


# ── Delta ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Entry:
    version: int
    operation: str
    ours: bool
    position: int | None
    planned_for: str | None
    changes: bool
    files: tuple[tuple[tuple[str, str], int], ...]


def _on_delta(log: Path, writers: tuple[str, ...], known: int, now: int) -> Stranger | None:
    if now < known:
        return Stranger(put_back=True, text=f"it is at version {now}, and the last cut lists version {known}")
    net: Counter[tuple[str, str]] = Counter()
    seen: list[_Entry] = []
    own: list[_Entry] = []
    for entry in _entries(log, writers, known, now):
        if entry.ours:
            own.append(entry)
            if entry.operation.endswith("AS SELECT"):
                break  # a new content: what was done to the one before it is gone
            continue
        net.update(dict(entry.files))
        if entry.changes:
            seen.append(entry)
    else:
        own += islice((entry for entry in _entries(log, writers[:1], -1, known) if entry.ours), 1)
    if (twice := _out_of_turn(own)) is not None:
        return twice
    if not seen or not any(net.values()):  # what was taken back is no change
        return None
    back = next((entry for entry in seen if entry.operation == "RESTORE"), None)
    one = back or seen[0]
    return Stranger(put_back=back is not None, text=f"version {one.version} was not made here ({one.operation})")


def _out_of_turn(entries: Sequence[_Entry]) -> Stranger | None:
    """The newest of our commits, newest first, that was planned for another watermark than it came behind."""
    own = [entry for entry in entries if entry.position is not None]
    for later, earlier in pairwise(own):
        if later.planned_for not in (None, planned_for(earlier.position)):
            text = f"version {later.version} was planned before version {earlier.version}, which another applier made"
            return Stranger(put_back=False, text=text)
    return None


def _entries(log: Path, writers: tuple[str, ...], known: int, now: int) -> Iterator[_Entry]:
    """Entries above `known`, newest first, as far as the log has them."""
    for version in range(now, known, -1):
        try:
            actions = json_lines(_entry(log, version).read_bytes())
        except FileNotFoundError:
            return
        operation, ours, changes = "unknown", False, False
        position, plan = None, None
        files: dict[tuple[str, str], int] = {}
        for action in actions:
            information, mark = action.get("commitInfo", {}), action.get("txn", {})
            operation, plan = information.get("operation", operation), information.get("userMetadata", plan)
            if (app := mark.get("appId", "")).startswith(writers):
                ours, position = True, mark["version"] if app.startswith(writers[0]) else position
            for kind, step in (("add", 1), ("remove", -1)):
                if (file := action.get(kind)) is not None:
                    files[file["path"], json.dumps(file.get("deletionVector"), sort_keys=True)] = step
                    changes = changes or bool(file.get("dataChange", True))
        yield _Entry(version, operation, ours, position, plan, changes, tuple(files.items()))


def _entry(log: Path, version: int) -> Path:
    return log / f"{version:020}.json"


# ── Iceberg ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _on_iceberg(table: Any, writers: tuple[str, str], known: int, generation: int) -> Stranger | None:
    version: Snapshot | None = table.current_snapshot()
    found: Stranger | None = None
    while version is not None and version.snapshot_id != known:
        summary = version.summary.additional_properties if version.summary else {}
        operation = version.summary.operation.value if version.summary else "unknown"
        app = summary.get(APP_PROPERTY, "")
        if app.startswith(writers):
            if int(app.rpartition(":")[2]) > generation and version.parent_snapshot_id is None:
                return found  # a new content: what was done to the one before it is gone
        elif operation != "replace":
            found = Stranger(put_back=False, text=f"version {version.snapshot_id} was not made here ({operation})")
        if version.parent_snapshot_id is None:
            return _put_back(known)
        version = table.snapshot_by_id(version.parent_snapshot_id)
    if version is None and table.snapshot_by_id(known) is not None:
        return _put_back(known)
    return found


def _put_back(known: int) -> Stranger:
    return Stranger(put_back=True, text=f"version {known}, which the last cut lists, is not in its past any more")
