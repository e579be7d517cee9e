"""Rows that silver never had, read again at the source (`missing_row: reread`).

A change that does not say all of a row which silver lacks is held, and later changes of its key with it. Nothing in the
stream will tell the rest: so the row is read at the source, and lands in bronze beside the stream as it is right before
a position (`model.reread`). The span that passes this position takes it for what its key has, and the hold ends.

The row that a snapshot shows is the row at silver's watermark only where both know the same changes of it. That is
asked transaction by transaction and key by key (`pipeline.applying.point`), after bronze has what the snapshot shows;
where it is not so, the row is read anew. Apply is the only writer here, and it writes only between spans: so what it
wrote is in force for the next one, and for every rebuild.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from cdc_lake.bronze.contract import SNAPSHOT
from cdc_lake.bronze.open import bronze_writer
from cdc_lake.bronze.port import BronzeState
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.touching import KeysOf
from cdc_lake.config.project import Project, Target
from cdc_lake.errors import AnotherReceiver, CdcLakeError, SourceError, StateError
from cdc_lake.lake.casts import key_text
from cdc_lake.lake.control import ControlTables
from cdc_lake.lake.control_rows import SnapshotRow
from cdc_lake.lake.types import column_type
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.model.reread import Reread, rereads_in
from cdc_lake.model.span import Span
from cdc_lake.observe.failpoint import REREAD_LANDED, failpoint
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.applying.point import landed_near
from cdc_lake.pipeline.applying.read_again import KEYS_AT_MOST, as_printed, changed_keys, rows_of_keys, same_columns
from cdc_lake.pipeline.held.groups import connected
from cdc_lake.pipeline.ports.side import CompareSource
from cdc_lake.pipeline.server import compare_source
from cdc_lake.pipeline.state.cuts import IN, TableState
from cdc_lake.pipeline.state.holds import hold_log, open_holds
from cdc_lake.pipeline.stream.redaction import RedactedSource, redaction_of, rules_of
from cdc_lake.silver.row_events import DISCARDED, MISSING, Key
from cdc_lake.silver.shape import default_keys
from cdc_lake.source.captured import Published, Shown, Unlanded

FAR: Final = (1 << 63) - 1
"""Behind every position."""
REPAIR: Final = "compare --repair"
"""What the control table `snapshots` says of rows that a repair read again."""
_AGAIN = 5.0  # seconds between two looks at the source
_TRIES = 10
_STATE = "reread"


def rereads_of(rows: Iterable[SnapshotRow], stream: str, relation: str, span: Span) -> tuple[Reread, ...]:
    """What was read again of a table and comes into force in a span; `rows`: the control table `snapshots`."""
    found = []
    for row in rows:
        if row.state == _STATE and (row.stream, row.epoch) == (stream, span.epoch):
            told = json.loads(row.tables)
            if told["relation"] == relation:
                found.append(Reread(row.position, int(told["first"]), int(told["rows"])))
    return rereads_in(found, span)


def reread_tables(rows: Iterable[SnapshotRow], stream: str, span: Span) -> frozenset[str]:
    """The tables of which something that was read again comes into force in a span."""
    mine = [row for row in rows if row.state == _STATE and (row.stream, row.epoch) == (stream, span.epoch)]
    return frozenset(json.loads(row.tables)["relation"] for row in mine if row.position in span)


def read_again_note(rows: Iterable[SnapshotRow], stream: str, position: int, ordinal: int, op: str) -> str:
    """What is to be said of a row of bronze that was read again; empty for every other."""
    if op != SNAPSHOT or ordinal >= 0:
        return ""
    for row in rows:
        if row.state == _STATE and (row.stream, row.position) == (stream, position):
            told = json.loads(row.tables)
            if told["first"] <= ordinal < told["first"] + told["rows"]:
                by = told.get("by")
                return f"read again at the source by {by}" if by else "read again at the source"
    return "read again at the source, and never in force: the process ended before it was recorded"


def wanted_keys(held: Sequence[Mapping[str, Any]]) -> frozenset[Key]:
    """Of the open held changes of a table: the keys that wait for nothing but rows which silver lacks.

    Keys that one held change touches wait together.
    """
    wanted = {MISSING, DISCARDED}
    return frozenset(key for group in connected(held) if group.broken and group.broken <= wanted for key in group.keys)


def land_reread(
    project: Project,
    control: ControlTables,
    state: BronzeState,
    layout: Relation,
    names: Sequence[str],
    rows: Mapping[Key, Sequence[str | None] | None],
    position: int,
    *,
    by: str | None = None,
) -> bool:
    """Land what keys, values of the columns `names`, have right before a position: a row, None for no row.

    `by`: who asked for it, where no change did. False where the receiver came first each time.
    """
    kind = pa.list_(pa.string())
    keys = sorted(rows, key=repr)
    there = pa.array([row for key in keys if (row := rows[key]) is not None], kind)
    gone = [dict(zip(names, key, strict=True)) for key in keys if rows[key] is None]
    absent = pa.array([[key.get(name) for name in layout.names] for key in gone], kind)
    for _ in range(_TRIES):
        try:
            landed = bronze_writer(project).append_reread(layout, there, absent, position)
            break
        except AnotherReceiver:  # its commit came first: what is to be written is the same
            continue
    else:
        return False
    failpoint(REREAD_LANDED)
    told = {"relation": str(layout.table), "first": landed.first, "rows": landed.rows} | ({"by": by} if by else {})
    name, now = f"{_STATE}-{landed.first}", datetime.now(UTC)
    control.record(SnapshotRow(name, state.stream, state.epoch, position, json.dumps(told), _STATE, now))
    return True


@dataclass(frozen=True)
class _Taken:
    """What was read of one table in a snapshot: keys that wait, and the rows that some of them have.

    `layout`: what the rows follow; `ahead`: transactions that bronze did not have then, None: nobody could say.
    """

    shown: Shown
    target: Target
    layout: Relation
    names: tuple[str, ...]
    keys: frozenset[Key]
    rows: dict[Key, list[str | None]]
    ahead: Sequence[Unlanded] | None


class Rereader:
    """Reads again what waits for it, a little at a time, between spans."""

    def __init__(self, project: Project, bronze: BronzeReader, control: ControlTables, tell: Tell) -> None:
        self._project = project
        self._bronze = bronze
        self._control = control
        self._tell = tell
        self._taken: list[_Taken] = []
        self._next = 0.0
        self._told: set[str] = set()

    def step(self, state: BronzeState, tables: Mapping[str, TableState]) -> None:
        """Go on with the tables as the last cut has them. Where the source cannot be asked now, this is told."""
        if not self._taken and time.monotonic() >= self._next:
            wanted = self._wanted(state, tables)
            if wanted:
                try:
                    self._taken = self._take(state, tables, wanted)
                except (SourceError, StateError) as error:
                    self._say(f"held rows cannot be read again: {error.message}", error)
                self._next = time.monotonic() + _AGAIN
        self._taken = [one for one in self._taken if not self._settled(state, tables, one)]

    def _wanted(self, state: BronzeState, tables: Mapping[str, TableState]) -> dict[TableName, frozenset[Key]]:
        """The keys to be read, by table; what was read and is not in force yet is not read once more."""
        waiting = {
            relation: table
            for relation, table in tables.items()
            if table.state == IN and table.held and table.layout is not None
            if self._project.target(TableName.parse(relation)).missing_row == "reread"
        }
        if not waiting:
            return {}
        held, done = hold_log(self._control), self._control.snapshots()
        out = {}
        for relation, table in waiting.items():
            if rereads_of(done, state.stream, relation, Span(state.epoch, table.position, FAR)):
                continue
            rows = open_holds(held, relation, state.epoch, table.generation, table.position).rows
            if keys := wanted_keys(rows.select(["reason", "rules", "key", "from_key"]).to_pylist()):
                out[TableName.parse(relation)] = frozenset(sorted(keys, key=repr)[:KEYS_AT_MOST])
        return out

    def _take(
        self, state: BronzeState, tables: Mapping[str, TableState], wanted: Mapping[TableName, frozenset[Key]]
    ) -> list[_Taken]:
        with compare_source(self._project, state) as opened:
            source = RedactedSource(opened, redaction_of(self._project))
            there = [one for one in source.captured() if one.table in wanted]
            with source.snapshot([one.table for one in there]) as shown:
                found = [self._read(source, shown, one, wanted[one.table], tables[str(one.table)]) for one in there]
                ahead = source.ahead(shown, state.upto) if state.upto < shown.position else ()
        return [replace(one, ahead=ahead) for one in found if one is not None]

    def _read(
        self, source: CompareSource, shown: Shown, one: Published, keys: frozenset[Key], table: TableState
    ) -> _Taken | None:
        """The rows of keys in the snapshot; None where the source's layout is not the one that silver follows yet."""
        target, now = self._project.target(one.table), source.relation_of(one)
        assert table.layout is not None, "it was asked for"
        layout = self._bronze.layouts([one.table])[table.layout]
        if not same_columns(layout, now):
            self._say(f"held rows of {one.table} are read again once a change brings its new layout", None)
            return None
        names = target.keys or default_keys(now)
        rules = rules_of(self._project)
        if any(rules(one.table, name) is not None for name in names):
            self._say(f"held rows of {one.table} cannot be read again: its key is redacted", None)
            return None
        keys_of = _by_value(target, layout, names)
        parts = zip(*keys, strict=True)
        recorded = {n: pa.array(part, pa.large_string()) for n, part in zip(names, parts, strict=True)}
        keys = frozenset(keys_of(pa.table(recorded)))
        found = rows_of_keys(source, one, layout, names, keys, keys_of)
        return _Taken(shown, target, layout, tuple(names), keys, found, None)

    def _settled(self, state: BronzeState, tables: Mapping[str, TableState], one: _Taken) -> bool:
        """Land what was read where it is the row at silver's watermark; whether there is nothing left to wait for."""
        table = tables.get(str(one.target.source))
        if table is None or table.state != IN:
            return True
        if one.ahead is None and state.upto < one.shown.position:
            return False  # what the snapshot shows has not all landed
        ahead = one.ahead or ()
        if any(
            t.position > state.upto and one.shown.shows(t.number, t.position) and one.target.source in t.tables
            for t in ahead
        ):
            return False
        differs = [
            touch
            for touch in landed_near(self._bronze, state, one.shown, table.position)
            if one.shown.shows(touch.number, touch.position) != (touch.position <= table.position)
            and changed_keys(
                self._bronze,
                state.epoch,
                [touch],
                one.layout,
                one.names,
                one.keys,
                _by_value(one.target, one.layout, one.names),
            )
        ]
        if any(touch.position > table.position for touch in differs):
            return False  # they are applied first
        if differs:
            return True  # silver is ahead of what was read: it is read anew
        self._land(state, one, table.position + 1)
        return True

    def _land(self, state: BronzeState, one: _Taken, position: int) -> None:
        rows = {key: one.rows.get(key) for key in one.keys}
        if land_reread(self._project, self._control, state, one.layout, one.names, rows, position):
            text, facts = f"{one.target.label}: read again at the source", {"table": one.target.label}
            self._tell(Progress(_STATE, text, len(one.keys), unit="keys", facts=facts))
        else:
            self._say(f"rows of {one.target.source} that were read again could not be landed: bronze is busy", None)

    def _say(self, text: str, error: CdcLakeError | None) -> None:
        """Tell once."""
        if text not in self._told:
            self._told.add(text)
            self._tell(Progress("warning", text, facts={} if error is None else {"code": error.code}))


def _by_value(target: Target, layout: Relation, names: Sequence[str]) -> KeysOf:
    """Keys by the text that all texts of their value share, as they are recorded (`silver.shape`)."""
    kinds = [column_type(layout.columns[layout.names.index(name)], target.types) for name in names]
    return lambda columns: [tuple(map(key_text, key, kinds)) for key in as_printed(columns)]
