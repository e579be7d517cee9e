"""What is held: changes that rules keep back, and transactions that could not be decoded."""

from __future__ import annotations

from dataclasses import dataclass

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.lake.control import control_tables
from cdc_lake.lake.marker import read_marker
from cdc_lake.model.relation import TableName
from cdc_lake.model.span import Span
from cdc_lake.pipeline.cuts import last_cut
from cdc_lake.pipeline.holds import FAILED, open_holds
from cdc_lake.pipeline.waiting import UndecodedTransaction, waiting
from cdc_lake.source.stream import shown


@dataclass(frozen=True, slots=True)
class HeldChange:
    """A change that is kept back. `rules`: those it breaks, none where it waits behind another change of its key.

    `key`: after the change, of a delete before it.
    """

    table: str
    source: str
    position: str
    ordinal: int
    op: str
    rules: tuple[str, ...]
    key: tuple[str | None, ...]


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
    held = control.read("held")
    changes: list[HeldChange] = []
    for relation in sorted(set(held["relation"].to_pylist())):
        target = project.target(TableName.parse(relation))
        marker = read_marker(project, target, state.stream)
        known = cut.tables[relation].position if cut is not None and relation in cut.tables else -1
        at = max(known, -1 if marker.position is None else marker.position)
        rows = open_holds(held, relation, state.epoch, marker.generation, at).rows
        changes += [
            HeldChange(
                table=target.label,
                source=relation,
                position=shown(state.stream, row["position"]),
                ordinal=row["ordinal"],
                op=row["op"],
                rules=tuple(row["rules"] or ()) if row["reason"] == FAILED else (),
                key=tuple(row["key"] or row["from_key"] or ()),
            )
            for row in rows.to_pylist()
        ]
    return HeldList(waiting(reader, ahead, state.stream), behind, tuple(changes))
