"""Watermarks over time: in each version of silver tables, and as seen by a running test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project, Target
from cdc_lake.errors import SilverMissing
from cdc_lake.model.relation import TableName
from cdc_lake.source.base import format_stream_position
from cdc_lake.tables.control_tables import control_tables
from cdc_lake.tables.iceberg_table_log import iceberg_table
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.silver_table import Marker


def targets(project: Project) -> list[Target]:
    """The silver tables of what bronze has layouts of."""
    names = {relation.table for relation in bronze_reader(project).layouts().values()}
    return [project.target(name) for name in sorted(names, key=str)]


def gone_back(project: Project, stream: str) -> Iterator[str]:
    """Where the watermark of a silver table or the position of a cut lies below the one before it."""
    for target in targets(project):
        for before, after in pairwise(_markers(project, target, stream)):
            if _place(after) < _place(before):
                at = format_stream_position(stream, after.position or 0)
                yield f"{target.label} went back from {format_stream_position(stream, before.position or 0)} to {at}"
    cuts = control_tables(project).read("cuts").sort_by("recorded_at").to_pylist()
    positions = [cut["position"] for cut in cuts if cut["stream"] == stream]
    yield from (f"a cut at {b} was written after one at {a}" for a, b in pairwise(positions) if b < a)


def _markers(project: Project, target: Target, stream: str) -> list[Marker]:
    """The marker of every version there is, oldest first."""
    found = []
    for version in _versions(project, target):
        try:
            found.append(table_log(project, target).marker(stream, version))
        except SilverMissing:  # its log entry, or the version itself, was let go
            continue
    return found


def _versions(project: Project, target: Target) -> list[int]:
    if target.format == "delta":
        newest = table_log(project, target).version()
        return [] if newest is None else list(range(newest + 1))
    table = iceberg_table(project, target)
    return [] if table is None else [entry.snapshot_id for entry in table.history()]


def _place(marker: Marker) -> tuple[int, int]:
    return marker.generation, -1 if marker.position is None else marker.position


@dataclass
class Watch:
    """What is looked at after every fault: bronze's two positions, and the watermark of each silver table."""

    project: Project
    looks: int = 0
    wrong: list[str] = field(default_factory=list)
    _bronze: tuple[int, int, int] = (0, -1, -1)
    _silver: dict[TableName, Marker] = field(default_factory=dict)

    def look(self) -> None:
        """See what there is now, and remember what went back."""
        self.looks += 1
        state = bronze_reader(self.project).state()
        if state is None:
            if self.looks > 1 and self._bronze[0]:
                self.wrong.append("bronze held a stream, and holds none")
            return
        epoch, upto, confirm = now = (state.epoch, state.upto, state.confirm)
        if now[:2] < self._bronze[:2] or (epoch == self._bronze[0] and confirm < self._bronze[2]):
            self.wrong.append(f"bronze went back from {self._bronze[1:]} to {(upto, confirm)}")
        self._bronze = now
        for target in targets(self.project):
            marker = table_log(self.project, target).marker(state.stream)
            before = self._silver.get(target.source)
            if before is not None and _place(marker) < _place(before):
                self.wrong.append(f"{target.label} went back from {before.position} to {marker.position}")
            self._silver[target.source] = marker
