"""Cuts: one position across all silver tables, as rows of the control table `cuts`.

A cut says of each table which version holds it, how many keys of it wait, and whether it is `in`, `broken`, `paused` or
`renewing`: a table that cannot or shall not go on, or whose content is made anew, stays behind at its own position and
does not stop the cuts of the others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cdc_lake.bronze.port import BronzeState
from cdc_lake.config.project import Target
from cdc_lake.lake.control import ControlTables
from cdc_lake.lake.control_rows import CutRow
from cdc_lake.lake.marker import FIRST, Marker
from cdc_lake.model.counting import counted
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.state.holds import HoldLog, open_holds
from cdc_lake.source.stream import shown

IN, BROKEN, PAUSED, RENEWING = "in", "broken", "paused", "renewing"
STAYS: Final = frozenset({BROKEN, PAUSED, RENEWING})
"""States of tables that no span takes further."""

FILES = 500
"""Files of the table `cuts` that are put together when there are more: each cut is one."""


@dataclass(frozen=True, slots=True)
class TableState:
    """A table in a cut. `version`: of the silver table, None where it holds nothing yet; `held`: keys that wait;
    `generation`: of its content, as the version has it. Cuts that do not say it were written when there was only the
    first. `layout`: the layout that its rows follow, None where nobody noted it. `copied`: the position of the copy
    that its content began with, None for the initial one. `merged`: the position of the last merge of it, which
    `version` or one before it is, None where nobody noted it. `error`: code, message and remedy of what a broken table
    could not go on for.
    """

    table: str
    format: str
    version: int | None
    position: int
    state: str
    held: int
    generation: int = FIRST
    layout: int | None = None
    copied: int | None = None
    merged: int | None = None
    error: tuple[str, str, str] | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """A position and the tables at it, by source table as bronze writes it."""

    position: int
    tables: dict[str, TableState]


@dataclass(frozen=True, slots=True)
class WrittenCut:
    """A cut as it stands in the control tables. `commit_ts`: the latest commit time up to it, None: not known."""

    epoch: int
    stream: str
    position: int
    commit_ts: datetime | None
    written_at: datetime
    tables: dict[str, TableState]

    @property
    def shown(self) -> str:
        """Its position as people paste it."""
        return shown(self.stream, self.position)


def found(target: Target, state: BronzeState, marker: Marker, position: int, held: HoldLog) -> TableState:
    """A table at `position` as its marker has it, which is further than the last cut says: who merged it did not live
    to write the next one. `held`: what is recorded.
    """
    keys = open_holds(held, str(target.source), state.epoch, marker.generation, position).keys
    there = TableState(target.label, target.format, marker.version, position, IN, len(keys), marker.generation)
    return replace(there, merged=marker.position)


def last_cut(control: ControlTables, stream: str) -> Cut | None:
    """The newest cut of a stream."""
    row = control.last_cut(stream)
    if row is None:
        return None
    return Cut(row.position, table_states(row.tables))


def content_before(control: ControlTables, state: BronzeState, relation: str) -> TableState | None:
    """A table as the last cut of an earlier stream lists it, where silver holds rows of it from there."""
    for row in reversed(control.streams()):
        cut = last_cut(control, row.stream) if row.epoch < state.epoch and row.stream != state.stream else None
        if cut is not None and (one := cut.tables.get(relation)) is not None and one.version is not None:
            return one
    return None


def written(row: CutRow) -> WrittenCut:
    """A row of `cuts` as a value."""
    return WrittenCut(row.epoch, row.stream, row.position, row.commit_ts, row.recorded_at, table_states(row.tables))


def placed(target: Target, label: str, format_: str) -> Target:
    """A target where a cut says that it was: the pipeline may have moved it since."""
    namespace, _, name = label.partition(".")
    return replace(target, namespace=namespace, name=name, format=format_)


def table_states(tables: str) -> dict[str, TableState]:
    """The tables of a cut, by source table, from their JSON."""
    return {relation: _table_state(facts) for relation, facts in json.loads(tables).items()}


def _table_state(facts: dict[str, Any]) -> TableState:
    error = facts.pop("error", None)
    return TableState(**facts, error=None if error is None else tuple(error))


def table_facts(tables: Mapping[str, TableState]) -> str:
    """The tables of a cut as JSON."""
    return json.dumps({relation: _facts(table) for relation, table in sorted(tables.items())})


def _facts(table: TableState) -> dict[str, object]:
    later = {"copied", "merged", "error"}  # where there is nothing to say, as versions wrote it that did not know them
    table = table if table.state == BROKEN else replace(table, error=None)
    return {name: fact for name, fact in asdict(table).items() if fact is not None or name not in later}


def write_cut(
    control: ControlTables, state: BronzeState, cut: Cut, commit_ts: datetime | None, tell: Tell
) -> WrittenCut:
    """Append a cut. Its time never goes back, whatever the source's clock did."""
    last = control.last_cut(state.stream)
    if last is not None and last.commit_ts is not None:
        commit_ts = max(last.commit_ts, commit_ts or last.commit_ts)
    now = datetime.now(UTC)
    at = control.record_in_turn(
        CutRow(state.epoch, state.stream, cut.position, commit_ts, table_facts(cut.tables), now)
    )
    age = None if commit_ts is None else now - commit_ts
    facts = {"position": shown(state.stream, cut.position), "upto": cut.position}
    tell(Progress("cut", _text(cut.tables, age), facts=facts))
    control.compact("cuts", FILES)
    return WrittenCut(state.epoch, state.stream, cut.position, commit_ts, at, dict(cut.tables))


def _text(tables: Mapping[str, TableState], age: timedelta | None) -> str:
    ago = "" if age is None else f"; its last transaction was committed {max(0.0, age.total_seconds()):.1f} s ago"
    waiting = sum(1 for table in tables.values() if table.state != IN)
    return f"{len(tables) - waiting} of {counted(len(tables), 'table')} at one position{ago}"
