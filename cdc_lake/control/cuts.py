"""Cuts, positions at which all silver tables can be read together; and pinned cuts, which stay readable.

A row of the control table `cuts` states for each table its version, its number of quarantined keys, and whether it is
`active`, `failed`, `paused` or `resyncing`: a table in one of the last three states stays at its own position and does
not stop the cuts of the others.

A row of the control table `pins` pins a cut, by a name or by the schedule of `silver.cuts`, with the versions it
needs. Maintenance calls `kept_versions` before it removes anything; `runtime.cut_retention` configures the retention of
the table formats.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.config.project import Target
from cdc_lake.control.quarantine import QuarantineLog, open_quarantine
from cdc_lake.model.diagnostic import pluralize
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.source.base import format_stream_position
from cdc_lake.tables.control_schema import CONTROL_VERSION, RENAMED, CutRow, PinRow
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.silver_table import FIRST, Marker

ACTIVE, FAILED, PAUSED, RESYNCING = "active", "failed", "paused", "resyncing"
NOT_ADVANCING: Final = frozenset({FAILED, PAUSED, RESYNCING})
"""States of tables that no span advances."""

_FORMER: Final = {"in": ACTIVE, "broken": FAILED, "renewing": RESYNCING}
_KEYS, _FORMER_KEYS = "quarantined_keys", "held"
"""States, and the name of a count, in control tables of version 0 and 1. They remain readable; what is appended has the
words of the table."""

FILES = 500
"""Number of files from which on the table `cuts` is compacted: each cut is one file."""


@dataclass(frozen=True, slots=True)
class TableState:
    """A table in a cut. `version`: of the silver table, None without content; `quarantined_keys`: how many;
    `generation`: of its content, as in the version; cuts without it precede the first rebuild. `layout`: the layout of
    its rows, None if not recorded. `copied`: the position of the copy with which its content began, None for the
    initial one. `merged`: the position of its last merge, at `version` or before it, None if not recorded. `error`:
    code, message and remedy of a failed table.
    """

    table: str
    format: str
    version: int | None
    position: int
    state: str
    quarantined_keys: int
    generation: int = FIRST
    layout: int | None = None
    copied: int | None = None
    merged: int | None = None
    error: tuple[str, str, str] | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """A position and the tables at it, by source table as bronze writes its name."""

    position: int
    tables: dict[str, TableState]


@dataclass(frozen=True, slots=True)
class WrittenCut:
    """A cut as it is in the control tables. `commit_ts`: the latest commit time up to it, None if unknown."""

    epoch: int
    stream: str
    position: int
    commit_ts: datetime | None
    written_at: datetime
    tables: dict[str, TableState]

    @property
    def position_text(self) -> str:
        """Its position as commands print it."""
        return format_stream_position(self.stream, self.position)


def state_from_marker(
    target: Target, state: StreamCheckpoint, marker: Marker, position: int, quarantine: QuarantineLog
) -> TableState:
    """A table at `position` according to its marker, which is ahead of the last cut, because the process that merged it
    died before it wrote one. `quarantine`: the recorded changes.
    """
    keys = open_quarantine(quarantine, str(target.source), state.epoch, marker.generation, position).keys
    table = TableState(target.label, target.format, marker.version, position, ACTIVE, len(keys), marker.generation)
    return replace(table, merged=marker.position)


def last_cut(control: ControlTables, stream: str) -> Cut | None:
    """The newest cut of a stream."""
    row = control.last_cut(stream)
    return None if row is None else Cut(row.position, table_states(row.tables))


def content_before(control: ControlTables, state: StreamCheckpoint, relation: str) -> TableState | None:
    """A table in the last cut of an earlier stream, if silver has rows of it from there."""
    for row in reversed(control.streams()):
        cut = last_cut(control, row.stream) if row.epoch < state.epoch and row.stream != state.stream else None
        if cut is not None and (table := cut.tables.get(relation)) is not None and table.version is not None:
            return table
    return None


def parse_cut(row: CutRow) -> WrittenCut:
    """Parse a row of `cuts`."""
    return WrittenCut(row.epoch, row.stream, row.position, row.commit_ts, row.recorded_at, table_states(row.tables))


def relocate_target(target: Target, label: str, format_: str) -> Target:
    """A target with its location in a cut: the pipeline may have moved it since."""
    namespace, _, name = label.partition(".")
    return replace(target, namespace=namespace, name=name, format=format_)


def table_states(tables: str) -> dict[str, TableState]:
    """Parse the tables of a cut, by source table."""
    return {relation: _table_state(facts) for relation, facts in json.loads(tables).items()}


def _table_state(facts: dict[str, Any]) -> TableState:
    error = facts.pop("error", None)
    facts["state"] = _FORMER.get(facts["state"], facts["state"])
    if _FORMER_KEYS in facts:
        facts[_KEYS] = facts.pop(_FORMER_KEYS)
    return TableState(**facts, error=None if error is None else tuple(error))


def table_facts(tables: Mapping[str, TableState], version: int = CONTROL_VERSION) -> str:
    """The tables of a cut as JSON, in the words of a version of the control tables."""
    words = {_KEYS: _FORMER_KEYS, **{state: word for word, state in _FORMER.items()}} if version < RENAMED else {}
    return json.dumps({relation: _facts(table, words) for relation, table in sorted(tables.items())})


def _facts(table: TableState, words: Mapping[str, str]) -> dict[str, object]:
    later = {"copied", "merged", "error"}  # omitted without a value, as by versions that did not have them
    error = table.error if table.state == FAILED else None
    facts = asdict(replace(table, error=error, state=words.get(table.state, table.state)))
    return {words.get(name, name): fact for name, fact in facts.items() if fact is not None or name not in later}


def write_cut(
    control: ControlTables, state: StreamCheckpoint, cut: Cut, commit_ts: datetime | None, report: ProgressReporter
) -> WrittenCut:
    """Append a cut. Its time never decreases, whatever the source's clock did."""
    last = control.last_cut(state.stream)
    if last is not None and last.commit_ts is not None:
        commit_ts = max(last.commit_ts, commit_ts or last.commit_ts)
    now = datetime.now(UTC)
    recorded_at = control.record_in_turn(
        CutRow(
            state.epoch, state.stream, cut.position, commit_ts, table_facts(cut.tables, control.version("cuts")), now
        )
    )
    age = None if commit_ts is None else now - commit_ts
    facts = {"position": format_stream_position(state.stream, cut.position), "upto": cut.position}
    report(ProgressEvent("cut", _text(cut.tables, age), facts=facts))
    control.compact("cuts", FILES)
    return WrittenCut(state.epoch, state.stream, cut.position, commit_ts, recorded_at, dict(cut.tables))


def _text(tables: Mapping[str, TableState], age: timedelta | None) -> str:
    ago = "" if age is None else f"; its last transaction was committed {max(0.0, age.total_seconds()):.1f} s ago"
    waiting = sum(1 for table in tables.values() if table.state != ACTIVE)
    return f"{len(tables) - waiting} of {pluralize(len(tables), 'table')} at one position{ago}"


_SCHEDULED = "at_%Y%m%dT%H%M%SZ"


@dataclass(frozen=True, slots=True)
class PinnedCut:
    """A cut that stays readable `until` a time, None: until it is unpinned."""

    name: str
    scheduled: bool
    cut: WrittenCut
    until: datetime | None

    def stands(self, now: datetime) -> bool:
        """Whether it is valid at a time."""
        return self.until is None or self.until > now


def pinned_cuts(control: ControlTables) -> tuple[PinnedCut, ...]:
    """Every pin ever made, in its latest state, in the order of the cuts."""
    rows = [PinRow(**row) for row in control.read("pins").sort_by("recorded_at").to_pylist()]
    newest = {row.name: row for row in rows}.values()
    result = [
        PinnedCut(
            row.name,
            row.scheduled,
            WrittenCut(row.epoch, row.stream, row.position, row.commit_ts, row.cut_at, table_states(row.tables)),
            row.until,
        )
        for row in newest
    ]
    return tuple(sorted(result, key=lambda pin: (pin.cut.epoch, pin.cut.position, pin.cut.written_at, pin.name)))


def standing(candidates: Iterable[PinnedCut], now: datetime) -> tuple[PinnedCut, ...]:
    """Those that are valid at a time."""
    return tuple(pin for pin in candidates if pin.stands(now))


def kept_versions(control: ControlTables, now: datetime) -> Mapping[str, frozenset[int]]:
    """The versions of each silver table that must not be removed: those of pinned cuts and of each newest cut."""
    cuts = [pin.cut for pin in standing(pinned_cuts(control), now)]
    places = control.cut_places()
    newest = {stream: index for index, stream in enumerate(places["stream"].to_pylist())}  # ordered, so the last wins
    cuts += [parse_cut(row) for row in control.cuts(places.take(pa.array(sorted(newest.values()), pa.int64())))]
    result: dict[str, set[int]] = {}
    for cut in cuts:
        for relation, table in cut.tables.items():
            if table.version is not None:
                result.setdefault(relation, set()).add(table.version)
    return {relation: frozenset(versions) for relation, versions in result.items()}


def record(control: ControlTables, pin: PinnedCut, recorded_at: datetime) -> None:
    """Record a pin, or its new state."""
    cut = pin.cut
    control.record(
        PinRow(
            name=pin.name,
            scheduled=pin.scheduled,
            epoch=cut.epoch,
            stream=cut.stream,
            position=cut.position,
            commit_ts=cut.commit_ts,
            tables=table_facts(cut.tables, control.version("pins")),
            cut_at=cut.written_at,
            until=pin.until,
            recorded_at=recorded_at,
        )
    )


def due(
    earlier: Iterable[PinnedCut], cut: WrittenCut, every: timedelta, keep: timedelta, tried: datetime | None = None
) -> PinnedCut | None:
    """The scheduled pin of a new cut; None if the last one is younger than `every`.

    `tried`: time of the last cut whose pin was withheld, which is retried after the same interval.
    """
    times = [pin.cut.written_at for pin in earlier if pin.scheduled]
    last = max(times if tried is None else [*times, tried], default=None)
    if last is not None and cut.written_at - last < every:
        return None
    name = cut.written_at.astimezone(UTC).strftime(_SCHEDULED)
    return PinnedCut(name, scheduled=True, cut=cut, until=cut.written_at + keep)
