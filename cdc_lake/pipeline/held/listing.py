"""What is held: changes that rules keep back, and transactions that could not be decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.port import BronzeState
from cdc_lake.config.project import Project, Target
from cdc_lake.lake.control import control_tables
from cdc_lake.lake.marker import read_marker
from cdc_lake.model.decision import ON, Place, place_of
from cdc_lake.model.relation import TableName
from cdc_lake.model.span import Span
from cdc_lake.pipeline.state.cuts import Cut, last_cut
from cdc_lake.pipeline.state.holds import FAILED, HoldLog, hold_log, open_holds
from cdc_lake.pipeline.state.waiting import UndecodedTransaction, waiting
from cdc_lake.source.stream import shown

_FAR = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class HeldChange:
    """A change that is kept back. `rules`: those it breaks, none where it waits behind another change of its key.

    `key`: after the change, of a delete before it. `decided`: what was decided and is not in force yet, `release` or
    `discard`. `group`: the group of tables that holds its transaction whole, None where it is held by itself.
    """

    table: str
    source: str
    position: str
    ordinal: int
    op: str
    rules: tuple[str, ...]
    key: tuple[str | None, ...]
    decided: str | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True)
class HeldList:
    """Everything that waits, in order. `behind`: transactions that wait behind the first undecodable one."""

    undecodable: tuple[UndecodedTransaction, ...]
    behind: int
    changes: tuple[HeldChange, ...]


def held_list(project: Project) -> HeldList:
    """What waits now. Raises LakeError."""
    reader, control = bronze_reader(project), control_tables(project)
    state = reader.state()
    if state is None:
        return HeldList((), 0, ())
    cut = last_cut(control, state.stream)
    ahead = Span(state.epoch, cut.position if cut is not None else -1, max(state.upto, cut.position if cut else -1))
    found = reader.undecodable(ahead)
    behind = 0
    if found:
        behind = len(reader.commits(Span(state.epoch, found[0].position, ahead.upto)))
    log = hold_log(control)
    changes: list[HeldChange] = []
    for relation in sorted(set(log.held["relation"].to_pylist())):
        mine = held_of(project, log, state, cut, project.target(TableName.parse(relation)))
        changes += [mine.shown(row) for row in mine.rows]
    return HeldList(waiting(reader, ahead, state.stream), behind, tuple(changes))


@dataclass(frozen=True)
class HeldOf:
    """What is held of one table at its watermark, as rows of the control table; `pending`: place → what was decided
    and is not in force yet.
    """

    target: Target
    stream: str
    watermark: int
    layout: int | None
    rows: Sequence[Mapping[str, Any]]
    pending: Mapping[Place, str]
    group: str | None = None

    def shown(self, row: Mapping[str, Any]) -> HeldChange:
        """One of its rows as it is listed."""
        return HeldChange(
            table=self.target.label,
            source=str(self.target.source),
            position=shown(self.stream, row["position"]),
            ordinal=row["ordinal"],
            op=row["op"],
            rules=tuple(row["rules"] or ()) if row["reason"] == FAILED else (),
            key=tuple(row["key"] or row["from_key"] or ()),
            decided=self.pending.get(place_of(row)),
            group=self.group,
        )


def held_of(project: Project, log: HoldLog, state: BronzeState, cut: Cut | None, target: Target) -> HeldOf:
    """What is held of one table now."""
    relation = str(target.source)
    marker = read_marker(project, target, state.stream)
    listed = None if cut is None else cut.tables.get(relation)
    known = -1 if listed is None else listed.position
    watermark = max(known, -1 if marker.position is None else marker.position)
    rows = open_holds(log, relation, state.epoch, marker.generation, watermark).rows.to_pylist()
    ahead = log.decided(relation, Span(state.epoch, watermark, _FAR)).rows
    pending = {place_of(row, ON): row["verb"] for row in ([] if ahead is None else ahead.to_pylist())}
    layout = None if listed is None else listed.layout
    if layout is None:  # also where the cut is of a version that did not say
        layout = max((row["layout"] for row in rows), default=None)
    group = project.group(target.source)
    return HeldOf(target, state.stream, watermark, layout, rows, pending, None if group is None else group.name)
