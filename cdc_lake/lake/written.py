"""What a commit of a silver table wrote: files and bytes, from the table's own metadata, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdc_lake.config.project import Project, Target
from cdc_lake.lake.json_lines import json_lines
from cdc_lake.lake.marker import iceberg_table


@dataclass(frozen=True, slots=True)
class Written:
    """Of one commit. `files`, `size`: data files it added and all bytes it wrote; `replaced`, `replaced_size`: data
    files that left, and all bytes that did; `marked`: data files of which rows were marked as gone (Delta), or files of
    marks (Iceberg).
    """

    files: int
    size: int
    replaced: int
    replaced_size: int
    marked: int

    @property
    def facts(self) -> dict[str, int]:
        """As progress and the control table `runs` have it."""
        return {
            "files_written": self.files,
            "bytes_written": self.size,
            "files_replaced": self.replaced,
            "bytes_replaced": self.replaced_size,
            "files_marked": self.marked,
        }


def written(project: Project, target: Target, version: int) -> Written:
    """What the commit that made `version` wrote; it was just made."""
    if target.format == "delta":
        return _delta(project.silver_path(target) / "_delta_log" / f"{version:020}.json")
    table = iceberg_table(project, target)
    snapshot = table.snapshot_by_id(version) if table is not None else None
    summary = snapshot.summary.additional_properties if snapshot is not None and snapshot.summary is not None else {}
    return _iceberg(summary)


def _delta(entry: Path) -> Written:
    """Of a log entry: a file that is removed and added again got new marks and was not rewritten."""
    actions = json_lines(entry.read_bytes())
    added: dict[str, Mapping[str, Any]] = {a["add"]["path"]: a["add"] for a in actions if "add" in a}
    removed: dict[str, Mapping[str, Any]] = {a["remove"]["path"]: a["remove"] for a in actions if "remove" in a}
    marked = added.keys() & removed.keys()
    marks = sum((added[path].get("deletionVector") or {}).get("sizeInBytes", 0) for path in marked)
    fresh, gone = added.keys() - marked, removed.keys() - marked
    return Written(
        files=len(fresh),
        size=sum(added[path]["size"] for path in fresh) + marks,
        replaced=len(gone),
        replaced_size=sum(removed[path].get("size") or 0 for path in gone),
        marked=len(marked),
    )


def _iceberg(summary: Mapping[str, str]) -> Written:
    def of(name: str) -> int:
        return int(summary.get(name, 0))

    return Written(
        files=of("added-data-files"),
        size=of("added-files-size"),
        replaced=of("deleted-data-files"),
        replaced_size=of("removed-files-size"),
        marked=of("added-delete-files"),
    )
