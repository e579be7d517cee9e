"""Rows of some keys, read in a snapshot of the source, and whether they are the rows at silver's watermark.

That is so where the snapshot and silver know the same transactions of these keys, whatever happened to others.

Rows that silver never had, read again at the source (`missing_row: reread`).

A change that does not say all of a row which silver lacks is held, and later changes of its key with it. Nothing in the
stream will tell the rest: so the row is read at the source, and lands in bronze beside the stream as it is right before
a position (`model.quarantine`). The span that passes this position takes it for what its key has, and the hold ends.

The row that a snapshot shows is the row at silver's watermark only where both know the same changes of it. That is
asked transaction by transaction and key by key (`runtime.apply.snapshot_alignment`), after bronze has what the snapshot
shows; where it is not so, the row is read anew. Apply is the only writer here, and it writes only between spans: so
what it wrote is in force for the next one, and for every rebuild.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from cdc_lake.bronze.contract import SNAPSHOT, TRUNCATE, StreamCheckpoint
from cdc_lake.bronze.open import bronze_writer
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.span_index import KeysOf, TextsOf
from cdc_lake.config.project import Project, Target
from cdc_lake.connectors.base import ComparisonSource
from cdc_lake.connectors.factory import compare_source
from cdc_lake.connectors.redaction import RedactedComparison, redaction_of, rules_of
from cdc_lake.control.cuts import IN, TableState
from cdc_lake.control.quarantine import hold_log, open_holds
from cdc_lake.errors import AnotherReceiver, CdcLakeError, SourceError, StateError
from cdc_lake.model.position import Span
from cdc_lake.model.quarantine import RefetchedRows, rereads_in
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.observability.failpoints import REREAD_LANDED, failpoint
from cdc_lake.runtime.apply.snapshot_alignment import SnapshotTransaction, landed_near
from cdc_lake.runtime.quarantine import group_by_key
from cdc_lake.silver.layout_mapping import default_keys
from cdc_lake.silver.row_tracing import DISCARDED, MISSING, Key
from cdc_lake.source.base import PendingTransaction, PublishedTable, SnapshotVisibility
from cdc_lake.source.sql_text import identifier, literal
from cdc_lake.tables.canonical_values import from_source
from cdc_lake.tables.casts import key_text
from cdc_lake.tables.control_schema import SnapshotRow
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.types import column_type

KEYS_AT_MOST = 5_000
"""Keys of a table that are read at a time: a statement names them."""


def as_printed(columns: pa.Table) -> list[Key]:
    """Keys in the server's own text."""
    return list(zip(*(column.to_pylist() for column in columns.columns), strict=True))


def canonical(names: Sequence[str], types: Mapping[str, pa.DataType]) -> KeysOf:
    """Keys in canonical form (`tables.canonical_values`) beside silver's columns of these types."""
    texts_of = canonical_texts(names, types)
    return lambda columns: as_printed(texts_of(columns))


def canonical_texts(names: Sequence[str], types: Mapping[str, pa.DataType]) -> TextsOf:
    """The same, as columns."""
    return lambda columns: pa.table({name: from_source(columns[name], types[name]) for name in names})


def same_columns(relation: Relation, other: Relation) -> bool:
    """Whether rows of one layout may be landed under another."""
    return [(c.name, c.type_oid) for c in relation.columns] == [(c.name, c.type_oid) for c in other.columns]


def rows_of_keys(
    source: ComparisonSource,
    published: PublishedTable,
    layout: Relation,
    names: Sequence[str],
    keys: frozenset[Key],
    keys_of: KeysOf = as_printed,
) -> dict[Key, list[str | None]]:
    """The rows that keys have in the source's snapshot, by position in the layout; keys without a row are left out."""
    rows = source.rows(source.relation_of(published), replace(published, row_filter=key_filter(published, names, keys)))
    values = rows.select(list(layout.names)).to_pylist()
    pairs = zip(keys_of(rows.select(list(names))), values, strict=True)
    return {key: list(row.values()) for key, row in pairs if key in keys}


def changed_keys(
    bronze: BronzeReader,
    epoch: int,
    touches: Iterable[SnapshotTransaction],
    layout: Relation,
    names: Sequence[str],
    keys: frozenset[Key],
    keys_of: KeysOf = as_printed,
) -> frozenset[Key]:
    """The keys that some of the landed transactions change; all of them where nobody can tell."""
    changed: set[Key] = set()
    for touch in touches:
        if touch.undecoded:
            return keys
        if layout.table in touch.tables:
            touched = _touched_keys(bronze, Span(epoch, touch.position - 1, touch.position), layout, names, keys_of)
            if touched is None:
                return keys
            changed |= touched
    return keys & changed


def _touched_keys(
    bronze: BronzeReader, span: Span, layout: Relation, names: Sequence[str], keys_of: KeysOf
) -> set[Key] | None:
    """The keys before and after each change of a transaction, as far as they are told; None: all of the table."""
    layouts, key_rows = bronze.layouts([layout.table]), []
    for row in bronze.changes(layout.table, span).to_pylist():
        if row["op"] == TRUNCATE:
            return None
        for values in (row["new"], row["old"]):
            if values is not None:
                by_name = dict(zip(layouts[row["layout"]].names, values, strict=True))
                key_rows.append([by_name.get(name) for name in names])
    parts = list(zip(*key_rows, strict=True)) or [()] * len(names)
    columns = {name: pa.array(part, pa.large_string()) for name, part in zip(names, parts, strict=True)}
    return set(keys_of(pa.table(columns)))


def key_filter(published: PublishedTable, names: Sequence[str], keys: frozenset[Key]) -> str:
    """The condition that only rows of these keys meet, beside the one that the stream has."""
    complete_keys = sorted((key for key in keys if None not in key), key=repr)
    columns = ", ".join(identifier(name) for name in names)
    terms = [f"({columns}) IN ({', '.join(_row(key) for key in complete_keys)})"] if complete_keys else []
    for key in sorted(keys - {*complete_keys}, key=repr):
        pairs = zip((identifier(name) for name in names), key, strict=True)
        terms.append("(" + " AND ".join(f"{c} IS NULL" if v is None else f"{c} = {literal(v)}" for c, v in pairs) + ")")
    others = "" if published.row_filter is None else f"({published.row_filter}) AND "
    return f"{others}({' OR '.join(terms)})"


def _row(key: Key) -> str:
    return f"({', '.join(literal(text) for text in key if text is not None)})"


FAR: Final = (1 << 63) - 1
"""Behind every position."""
REPAIR: Final = "compare --repair"
"""What the control table `snapshots` says of rows that a repair read again."""
_AGAIN = 5.0  # seconds between two looks at the source
_TRIES = 10
_STATE = "reread"


def rereads_of(rows: Iterable[SnapshotRow], stream: str, relation: str, span: Span) -> tuple[RefetchedRows, ...]:
    """What was read again of a table and comes into force in a span; `rows`: the control table `snapshots`."""
    rereads = []
    for row in rows:
        if row.state == _STATE and (row.stream, row.epoch) == (stream, span.epoch):
            document = json.loads(row.tables)
            if document["relation"] == relation:
                rereads.append(RefetchedRows(row.position, int(document["first"]), int(document["rows"])))
    return rereads_in(rereads, span)


def reread_tables(rows: Iterable[SnapshotRow], stream: str, span: Span) -> frozenset[str]:
    """The tables of which something that was read again comes into force in a span."""
    own_rows = [row for row in rows if row.state == _STATE and (row.stream, row.epoch) == (stream, span.epoch)]
    return frozenset(json.loads(row.tables)["relation"] for row in own_rows if row.position in span)


def read_again_note(rows: Iterable[SnapshotRow], stream: str, position: int, ordinal: int, op: str) -> str:
    """What is to be said of a row of bronze that was read again; empty for every other."""
    if op != SNAPSHOT or ordinal >= 0:
        return ""
    for row in rows:
        if row.state == _STATE and (row.stream, row.position) == (stream, position):
            document = json.loads(row.tables)
            if document["first"] <= ordinal < document["first"] + document["rows"]:
                by = document.get("by")
                return f"read again at the source by {by}" if by else "read again at the source"
    return "read again at the source, and never in force: the process ended before it was recorded"


def wanted_keys(held: Sequence[Mapping[str, Any]]) -> frozenset[Key]:
    """Of the open held changes of a table: the keys that wait for nothing but rows which silver lacks.

    Keys that one held change touches wait together.
    """
    wanted = {MISSING, DISCARDED}
    return frozenset(
        key for group in group_by_key(held) if group.broken and group.broken <= wanted for key in group.keys
    )


def land_reread(
    project: Project,
    control: ControlTables,
    state: StreamCheckpoint,
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
    present = pa.array([row for key in keys if (row := rows[key]) is not None], kind)
    gone = [dict(zip(names, key, strict=True)) for key in keys if rows[key] is None]
    absent = pa.array([[key.get(name) for name in layout.names] for key in gone], kind)
    for _ in range(_TRIES):
        try:
            landed = bronze_writer(project).append_reread(layout, present, absent, position)
            break
        except AnotherReceiver:  # its commit came first: what is to be written is the same
            continue
    else:
        return False
    failpoint(REREAD_LANDED)
    document = {"relation": str(layout.table), "first": landed.first, "rows": landed.rows} | ({"by": by} if by else {})
    name, now = f"{_STATE}-{landed.first}", datetime.now(UTC)
    control.record(SnapshotRow(name, state.stream, state.epoch, position, json.dumps(document), _STATE, now))
    return True


@dataclass(frozen=True)
class _Taken:
    """What was read of one table in a snapshot: keys that wait, and the rows that some of them have.

    `layout`: what the rows follow; `ahead`: transactions that bronze did not have then, None: nobody could say.
    """

    shown: SnapshotVisibility
    target: Target
    layout: Relation
    names: tuple[str, ...]
    keys: frozenset[Key]
    rows: dict[Key, list[str | None]]
    ahead: Sequence[PendingTransaction] | None


class RowRefetcher:
    """Reads again what waits for it, a little at a time, between spans."""

    def __init__(
        self, project: Project, bronze: BronzeReader, control: ControlTables, report: ProgressReporter
    ) -> None:
        self._project = project
        self._bronze = bronze
        self._control = control
        self._report = report
        self._readings: list[_Taken] = []
        self._next = 0.0
        self._reported_texts: set[str] = set()

    def step(self, state: StreamCheckpoint, tables: Mapping[str, TableState]) -> None:
        """Go on with the tables as the last cut has them. Where the source cannot be asked now, this is told."""
        if not self._readings and time.monotonic() >= self._next:
            wanted = self._wanted_keys(state, tables)
            if wanted:
                try:
                    self._readings = self._take(state, tables, wanted)
                except (SourceError, StateError) as error:
                    self._say(f"held rows cannot be read again: {error.message}", error)
                self._next = time.monotonic() + _AGAIN
        self._readings = [reading for reading in self._readings if not self._land_if_current(state, tables, reading)]

    def _wanted_keys(
        self, state: StreamCheckpoint, tables: Mapping[str, TableState]
    ) -> dict[TableName, frozenset[Key]]:
        """The keys to be read, by table; what was read and is not in force yet is not read once more."""
        waiting = {
            relation: table
            for relation, table in tables.items()
            if table.state == IN and table.held and table.layout is not None
            if self._project.target(TableName.parse(relation)).missing_row == "reread"
        }
        if not waiting:
            return {}
        held, snapshots = hold_log(self._control), self._control.snapshots()
        keys_by_table = {}
        for relation, table in waiting.items():
            if rereads_of(snapshots, state.stream, relation, Span(state.epoch, table.position, FAR)):
                continue
            rows = open_holds(held, relation, state.epoch, table.generation, table.position).rows
            if keys := wanted_keys(rows.select(["reason", "rules", "key", "from_key"]).to_pylist()):
                keys_by_table[TableName.parse(relation)] = frozenset(sorted(keys, key=repr)[:KEYS_AT_MOST])
        return keys_by_table

    def _take(
        self, state: StreamCheckpoint, tables: Mapping[str, TableState], wanted: Mapping[TableName, frozenset[Key]]
    ) -> list[_Taken]:
        with compare_source(self._project, state) as opened:
            source = RedactedComparison(opened, redaction_of(self._project))
            captured = [table for table in source.captured_tables() if table.table in wanted]
            with source.snapshot([table.table for table in captured]) as shown:
                readings = [
                    self._read(source, shown, table, wanted[table.table], tables[str(table.table)])
                    for table in captured
                ]
                ahead = source.ahead(shown, state.upto) if state.upto < shown.position else ()
        return [replace(table, ahead=ahead) for table in readings if table is not None]

    def _read(
        self,
        source: ComparisonSource,
        shown: SnapshotVisibility,
        published: PublishedTable,
        keys: frozenset[Key],
        table: TableState,
    ) -> _Taken | None:
        """The rows of keys in the snapshot; None where the source's layout is not the one that silver follows yet."""
        target, now = self._project.target(published.table), source.relation_of(published)
        assert table.layout is not None, "it was asked for"
        layout = self._bronze.layouts([published.table])[table.layout]
        if not same_columns(layout, now):
            self._say(f"held rows of {published.table} are read again once a change brings its new layout", None)
            return None
        names = target.keys or default_keys(now)
        rules = rules_of(self._project)
        if any(rules(published.table, name) is not None for name in names):
            self._say(f"held rows of {published.table} cannot be read again: its key is redacted", None)
            return None
        keys_of = _by_value(target, layout, names)
        parts = zip(*keys, strict=True)
        recorded = {n: pa.array(part, pa.large_string()) for n, part in zip(names, parts, strict=True)}
        keys = frozenset(keys_of(pa.table(recorded)))
        rows = rows_of_keys(source, published, layout, names, keys, keys_of)
        return _Taken(shown, target, layout, tuple(names), keys, rows, None)

    def _land_if_current(self, state: StreamCheckpoint, tables: Mapping[str, TableState], reading: _Taken) -> bool:
        """Land what was read where it is the row at silver's watermark; whether there is nothing left to wait for."""
        table = tables.get(str(reading.target.source))
        if table is None or table.state != IN:
            return True
        if reading.ahead is None and state.upto < reading.shown.position:
            return False  # what the snapshot shows has not all landed
        ahead = reading.ahead or ()
        if any(
            t.position > state.upto and reading.shown.shows(t.number, t.position) and reading.target.source in t.tables
            for t in ahead
        ):
            return False
        differs = [
            touch
            for touch in landed_near(self._bronze, state, reading.shown, table.position)
            if reading.shown.shows(touch.number, touch.position) != (touch.position <= table.position)
            and changed_keys(
                self._bronze,
                state.epoch,
                [touch],
                reading.layout,
                reading.names,
                reading.keys,
                _by_value(reading.target, reading.layout, reading.names),
            )
        ]
        if any(touch.position > table.position for touch in differs):
            return False  # they are applied first
        if differs:
            return True  # silver is ahead of what was read: it is read anew
        self._land(state, reading, table.position + 1)
        return True

    def _land(self, state: StreamCheckpoint, reading: _Taken, position: int) -> None:
        rows = {key: reading.rows.get(key) for key in reading.keys}
        if land_reread(self._project, self._control, state, reading.layout, reading.names, rows, position):
            text, facts = f"{reading.target.label}: read again at the source", {"table": reading.target.label}
            self._report(ProgressEvent(_STATE, text, len(reading.keys), unit="keys", facts=facts))
        else:
            self._say(f"rows of {reading.target.source} that were read again could not be landed: bronze is busy", None)

    def _say(self, text: str, error: CdcLakeError | None) -> None:
        """Tell once."""
        if text not in self._reported_texts:
            self._reported_texts.add(text)
            self._report(ProgressEvent("warning", text, facts={} if error is None else {"code": error.code}))


def _by_value(target: Target, layout: Relation, names: Sequence[str]) -> KeysOf:
    """Keys by the text that all texts of their value share, as they are recorded (`silver.layout_mapping`)."""
    kinds = [column_type(layout.columns[layout.names.index(name)], target.types) for name in names]
    return lambda columns: [tuple(map(key_text, key, kinds)) for key in as_printed(columns)]
