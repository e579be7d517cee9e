"""The cuts as people look at them: which there are, what one holds, which stay readable and until when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from cdc_lake.config.project import Project
from cdc_lake.lake.control import control_tables
from cdc_lake.lake.versions import is_readable
from cdc_lake.model.as_of import AsOf
from cdc_lake.model.relation import TableName
from cdc_lake.pipeline.judging.cut_verdict import Withheld, withheld
from cdc_lake.pipeline.state.cuts import IN, WrittenCut, placed, written
from cdc_lake.pipeline.state.find_cut import find_cut
from cdc_lake.pipeline.state.promises import Promise, promises, standing
from cdc_lake.source.stream import shown


@dataclass(frozen=True, slots=True)
class PromiseLine:
    """A promise of a cut. `until`: None where it has no end."""

    name: str
    scheduled: bool
    until: datetime | None


@dataclass(frozen=True, slots=True)
class CutLine:
    """A cut in a list. `behind`: tables that are not at its position; `held`: keys that wait in it; `withheld`: the
    promises of it that rules kept back.
    """

    epoch: int
    position: str
    commit_ts: datetime | None
    written_at: datetime
    tables: int
    behind: tuple[str, ...]
    held: int
    promises: tuple[PromiseLine, ...]
    withheld: tuple[Withheld, ...] = ()


@dataclass(frozen=True, slots=True)
class CutList:
    """Cuts, the newest first, and how many there are in all."""

    total: int
    cuts: tuple[CutLine, ...]


@dataclass(frozen=True, slots=True)
class CutTable:
    """A table in a cut. `readable`: whether its version is there."""

    source: str
    table: str
    format: str
    version: int | None
    generation: int
    position: str
    state: str
    held: int
    readable: bool


@dataclass(frozen=True, slots=True)
class CutView:
    """One cut with its tables."""

    epoch: int
    stream: str
    position: str
    commit_ts: datetime | None
    written_at: datetime
    promises: tuple[PromiseLine, ...]
    tables: tuple[CutTable, ...]
    withheld: tuple[Withheld, ...] = ()


def list_cuts(project: Project, limit: int, *, promised: bool = False) -> CutList:
    """The newest cuts, or the newest of those that are `promised`."""
    control = control_tables(project)
    places, stand = control.cut_places(), standing(promises(control), datetime.now(UTC))
    if promised:
        cuts = list({_key(one.cut): one.cut for one in stand}.values())[::-1]
    else:
        newest = places.slice(max(0, places.num_rows - limit))
        cuts = [written(row) for row in control.cuts(newest)][::-1] if newest.num_rows else []
    total = len(cuts) if promised else int(places.num_rows)
    kept_back = withheld(control)
    return CutList(total, tuple(_line(cut, stand, kept_back) for cut in cuts[:limit]))


def show_cut(project: Project, asked: AsOf, epoch: int | None) -> CutView:
    """The cut that is asked for. Raises BeforeFirstCut, CutNotReached, CutUnknown."""
    cut = find_cut(project, asked, epoch)
    control = control_tables(project)
    stand = standing(promises(control), datetime.now(UTC))
    tables = tuple(_table(project, cut, relation) for relation in sorted(cut.tables))
    back = _kept_back(cut, withheld(control))
    return CutView(cut.epoch, cut.stream, cut.shown, cut.commit_ts, cut.written_at, _of(cut, stand), tables, back)


def _line(cut: WrittenCut, stand: Iterable[Promise], kept_back: Iterable[Withheld]) -> CutLine:
    behind = tuple(table.table for table in cut.tables.values() if table.state != IN)
    held = sum(table.held for table in cut.tables.values())
    of, back = _of(cut, stand), _kept_back(cut, kept_back)
    return CutLine(cut.epoch, cut.shown, cut.commit_ts, cut.written_at, len(cut.tables), behind, held, of, back)


def _kept_back(cut: WrittenCut, every: Iterable[Withheld]) -> tuple[Withheld, ...]:
    """The promises of a cut that were not made."""
    return tuple(
        one for one in every if (one.epoch, one.position, one.cut_at) == (cut.epoch, cut.shown, cut.written_at)
    )


def _of(cut: WrittenCut, stand: Iterable[Promise]) -> tuple[PromiseLine, ...]:
    mine = (one for one in stand if _key(one.cut) == _key(cut))
    return tuple(PromiseLine(one.name, one.scheduled, one.until) for one in mine)


def _key(cut: WrittenCut) -> tuple[int, int, datetime]:
    return cut.epoch, cut.position, cut.written_at


def _table(project: Project, cut: WrittenCut, relation: str) -> CutTable:
    state = cut.tables[relation]
    target = placed(project.target(TableName.parse(relation)), state.table, state.format)
    readable = state.version is not None and is_readable(project, target, state.version)
    return CutTable(
        source=relation,
        table=state.table,
        format=state.format,
        version=state.version,
        generation=state.generation,
        position=shown(cut.stream, state.position),
        state=state.state,
        held=state.held,
        readable=readable,
    )
