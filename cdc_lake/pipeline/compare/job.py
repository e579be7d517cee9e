"""What comparing one table needs: its two sides pinned, and where they are read from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from cdc_lake.bronze.port import BronzeState
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.config.project import Project, Target
from cdc_lake.lake.control import ControlTables
from cdc_lake.lake.marker import Marker, read_marker
from cdc_lake.lake.versions import is_readable
from cdc_lake.model.span import Span
from cdc_lake.pipeline.compare.sample import Sample
from cdc_lake.pipeline.ports.side import CompareSource
from cdc_lake.pipeline.state.cuts import BROKEN, IN, Cut, TableState, WrittenCut, last_cut
from cdc_lake.pipeline.state.pauses import stopped_tables
from cdc_lake.source.captured import Published


@dataclass(frozen=True, slots=True)
class Pinned:
    """A table as the comparison takes it: what is published of it, and its silver table at one version.

    `readable`: not where a cut was asked for that does not have the table, or whose version of it is gone.
    `waits`: why the silver table does not follow its source now, and the next command; None if it does.
    """

    published: Published
    target: Target
    marker: Marker
    watermark: int
    readable: bool = True
    waits: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked for besides a verdict. `repairs`: a repair of what differs; `lands`: it is also done; `values`:
    rows that differ are told with their values; `full`: rows are matched, not hashed first; `sample`: of so many;
    `now`: silver as it is, and not as a cut has it.
    """

    repairs: bool = False
    lands: bool = False
    values: bool = False
    full: bool = False
    sample: Sample | None = None
    now: bool = True


@dataclass(frozen=True)
class Job:
    """What comparing one table needs."""

    project: Project
    bronze: BronzeReader
    control: ControlTables
    state: BronzeState
    source: CompareSource
    pinned: Pinned
    asked: Asked


def next_step(job: Job) -> str:
    """How silver of a table comes to the layout that the source has: what it waits for, if that is known."""
    pinned, table = job.pinned, str(job.pinned.target.source)
    if pinned.waits is not None:
        return "; ".join(pinned.waits)
    ahead = Span(job.state.epoch, pinned.watermark, max(pinned.watermark, job.state.upto))
    if any(table in commit.counts for commit in job.bronze.commits(ahead)):
        return "its change waits in bronze: `cdc-lake run --once`, then compare again"
    return "run `cdc-lake run --once`; if that changes nothing, change a row of the table and run it again"


def pin(project: Project, control: ControlTables, state: BronzeState, tables: Iterable[Published]) -> list[Pinned]:
    """Silver as it is now, before the snapshot is taken: so it cannot run ahead of it.

    A table stands at the later of its own marker and the last cut, which knows of one that nothing was merged into.
    """
    cut, paused = last_cut(control, state.stream), stopped_tables(project, control)
    return [_pinned(project, cut, state, one, paused.get(str(one.table))) for one in tables]


def pin_at(project: Project, cut: WrittenCut, tables: Iterable[Published]) -> list[Pinned]:
    """Silver as a cut has it; a table that the cut does not have is at no version."""
    found = []
    for one in tables:
        table, target = cut.tables.get(str(one.table)), project.target(one.table)
        if table is None or table.version is None or not is_readable(project, target, table.version):
            found.append(Pinned(one, target, Marker(None, None), -1, readable=False))
        else:
            found.append(Pinned(one, target, Marker(table.position, table.version, table.generation), table.position))
    return found


def _pinned(
    project: Project, cut: Cut | None, state: BronzeState, one: Published, paused_at: datetime | None
) -> Pinned:
    target = project.target(one.table)
    marker = read_marker(project, target, state.stream)  # after the cut was read: it is no older
    listed = None if cut is None else cut.tables.get(str(one.table))
    reached = [-1] if marker.position is None else [marker.position]
    if listed is not None and listed.state == IN and listed.generation == marker.generation:
        reached.append(listed.position)
    return Pinned(one, target, marker, max(reached), waits=_waits(listed, target, paused_at))


def _waits(listed: TableState | None, target: Target, paused_at: datetime | None) -> tuple[str, str] | None:
    """Why a table does not follow its source, and the next command."""
    if paused_at is not None:
        since = paused_at.isoformat(timespec="seconds")
        return f"the table is paused since {since}", f"`cdc-lake resume {target.source}`"
    if listed is None or listed.state != BROKEN or listed.error is None:
        return None
    code, why, remedy = listed.error
    return f"the table waits: {why} [{code}]", remedy
