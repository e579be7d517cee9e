"""The data of `cdc-lake inspect`: spans, transactions, the hash chain, and the history of one row.

Row values are shown on request; nothing here is logged.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze.change_reader import ChangeReader
from cdc_lake.bronze.contract import BEGIN, COMMIT, DELETE, INSERT, RELATION, SNAPSHOT, TRUNCATE
from cdc_lake.bronze.hash_chain import ChainVerdict
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.row_history import RowEvent, history, named_old, values_by_name
from cdc_lake.config.project import Project
from cdc_lake.control.cut_session import open_session
from cdc_lake.control.snapshots import refetch_note, whole_copies
from cdc_lake.errors import LakeError, NotInBronze, StateError
from cdc_lake.model.change import Undecoded
from cdc_lake.model.position import Latest, OrderDomain, Span
from cdc_lake.model.quarantine import RowsByKey
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.runtime.quarantine import QuarantinedChange, list_quarantine
from cdc_lake.silver.transforms import silver_names_of
from cdc_lake.source.base import domain_of, format_stream_position
from cdc_lake.tables.canonical_values import from_silver, from_source
from cdc_lake.tables.control_schema import SnapshotRow
from cdc_lake.tables.control_tables import control_tables


@dataclass(frozen=True, slots=True)
class ChangeView:
    """One change of a transaction; tuples by column name, `unchanged` names columns that were not sent."""

    ordinal: int
    op: str
    lsn: int | None
    relation: str | None
    new: dict[str, str | None] | None
    old: dict[str, str | None] | None
    old_kind: str | None
    unchanged: tuple[str, ...]
    info: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class TransactionView:
    """A landed transaction: boundaries from the source, its COMMIT row, its changes in order.

    `empty_before`: number of transactions without rows between the previous one and this one.
    """

    stream: str
    epoch: int
    position: int
    commit_lsn: int | None
    first_lsn: int | None
    csn: int | None
    xid: int | None
    commit_ts: datetime | None
    user: str | None
    origin: str | None
    counts: dict[str, dict[str, int]]
    size: int
    empty_before: int
    content: str
    hash: str
    changes: tuple[ChangeView, ...]
    undecodable: Undecoded | None = None


@dataclass(frozen=True, slots=True)
class RowView:
    """The history of the rows that had a key."""

    table: str
    key: dict[str, str]
    events: tuple[RowEvent, ...]


def inspect_transaction(reader: BronzeReader, position: int, epoch: int | None = None) -> TransactionView:
    """The transaction at a commit position, in the newest stream or in `epoch`. Raises NotInBronze."""
    table = reader.rows(position, epoch)
    rows = [row for row in table.to_pylist() if row["op"] not in {RELATION, SNAPSHOT}]
    commit = next((row for row in rows if row["op"] == COMMIT), None)
    if commit is None:
        state = reader.state()
        position_text = position if state is None else format_stream_position(state.stream, position)
        raise NotInBronze(f"no transaction was committed at position {position_text}", where=reader.place)
    begin = json.loads(next((row["info"] for row in rows if row["op"] == BEGIN), None) or "{}")
    info = json.loads(commit["info"])
    layouts = reader.layouts(span=Span(commit["epoch"], position - 1, position))
    return TransactionView(
        stream=commit["stream"],
        epoch=commit["epoch"],
        position=position,
        commit_lsn=commit["commit_lsn"],
        first_lsn=commit["first_lsn"],
        csn=commit["csn"],
        xid=commit["xid"],
        commit_ts=commit["commit_ts"],
        user=begin.get("user"),
        origin=begin.get("origin"),
        counts=info["counts"],
        size=info["bytes"],
        empty_before=info["empty_before"],
        content=info["content"],
        hash=info["hash"],
        changes=tuple(_change(row, layouts) for row in rows if row["op"] not in {BEGIN, COMMIT}),
        undecodable=Undecoded.from_description(info["undecodable"]) if "undecodable" in info else None,
    )


def inspect_row(
    reader: BronzeReader, table: TableName, key: Mapping[str, str], snapshots: Iterable[SnapshotRow] = ()
) -> RowView:
    """Every change of the rows that had `key` (column name → text as the server prints it). Raises NotInBronze.

    `snapshots`: the control table, which has the reason and the state of copied rows.
    """
    snapshot_rows = list(snapshots)
    events = (
        dataclasses.replace(e, note=refetch_note(snapshot_rows, e.stream, e.position, e.ordinal, e.op))
        for e in history(reader, table, key, whole_copies(snapshot_rows, table))
    )
    return RowView(str(table), dict(key), tuple(events))


def primary_key(reader: BronzeReader, table: TableName) -> tuple[str, ...]:
    """Key columns of a table from its layouts in bronze, for a key of plain values. Raises NotInBronze."""
    layouts = reader.layouts([table])
    if not layouts:
        raise NotInBronze(f"bronze has no changes of {table}", where=reader.place)
    keys = {layout.primary_key for layout in layouts.values() if layout.primary_key}
    if len(keys) != 1:
        raise NotInBronze(
            f"bronze has {len(keys)} primary keys of {table}", hint="name the key columns: `column=value`"
        )
    return keys.pop()


def row_key(reader: BronzeReader, table: TableName, values: Sequence[object]) -> dict[str, str]:
    """A key by column name, from values in primary key order. Raises NotInBronze."""
    columns = primary_key(reader, table)
    if len(columns) != len(values):
        raise NotInBronze(f"the key of {table} is ({', '.join(columns)}): give {len(columns)} values")
    return {column: str(value) for column, value in zip(columns, values, strict=True)}


def plain(view: TransactionView | RowView | ChainVerdict) -> dict[str, Any]:
    """A view as JSON; times are ISO 8601 with zone."""
    document = dataclasses.asdict(view, dict_factory=_jsonable)
    if isinstance(view, ChainVerdict):
        document["holds"] = view.holds
    return document


def _jsonable(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in items}


def _change(row: dict[str, Any], layouts: Mapping[int, Relation]) -> ChangeView:
    layout = None if row["layout"] is None else layouts[row["layout"]]
    names = () if layout is None else layout.names
    return ChangeView(
        ordinal=row["ordinal"],
        op=row["op"],
        lsn=row["lsn"],
        relation=row["relation"],
        new=values_by_name(names, row["new"]),
        old=None if layout is None else named_old(layout, row["old"], row["old_kind"]),
        old_kind=row["old_kind"],
        unchanged=tuple(names[index] for index in row["unchanged"] or ()),
        info=None if row["info"] is None else json.loads(row["info"]),
    )


Counts = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class TransactionLine:
    """One transaction of a span, from its BEGIN and COMMIT rows."""

    position: int
    csn: int | None
    xid: int | None
    commit_ts: datetime | None
    user: str | None
    origin: str | None
    counts: Counts
    bytes: int
    empty_before: int
    undecodable: bool

    @property
    def changes(self) -> int:
        """The number of row changes."""
        return sum(sum(kinds.values()) for kinds in self.counts.values())


@dataclass(frozen=True, slots=True)
class SpanView:
    """The transactions after `after` up to `upto`: the first ones (`listed`), and totals of all."""

    stream: str
    epoch: int
    after: int
    upto: int
    transactions: int
    changes: int
    bytes: int
    empty: int
    counts: Counts
    listed: tuple[TransactionLine, ...]


def asked_span(reader: BronzeReader, after: str | None, upto: str | None, epoch: int | None) -> Span:
    """The span between positions as users write them; by default the whole newest epoch.

    Raises MalformedPosition, NotInBronze.
    """
    span = ChangeReader(reader).span(after, upto, epoch=epoch)
    if any("/" in text for text in (after, upto) if text) and domain_of(reader.stream(span.epoch)) is OrderDomain.CSN:
        raise NotInBronze(
            f"epoch {span.epoch} is ordered by CSN, but an LSN was given",
            where=reader.place,
            hint="`cdc-lake status` shows its positions, which are plain numbers",
        )
    return span


def inspect_span(reader: BronzeReader, span: Span, limit: int) -> SpanView:
    """The first `limit` transactions of a span, and totals of all. Raises BronzeDamaged."""
    totals: defaultdict[str, Counter[str]] = defaultdict(Counter)
    listed: list[TransactionLine] = []
    transactions = size = empty = 0
    for batch in ChangeReader(reader).transaction_batches(span):
        for row in batch.to_pylist(maps_as_pydicts="strict"):
            transactions, size, empty = transactions + 1, size + row["bytes"], empty + row["empty_before"]
            for table, kinds in row["counts"].items():
                totals[table].update(kinds)
            if len(listed) < limit:
                listed.append(_line(row))
    changes = sum(kinds.total() for kinds in totals.values())
    counts = {table: dict(sorted(kinds.items())) for table, kinds in sorted(totals.items())}
    return SpanView(
        reader.stream(span.epoch),
        span.epoch,
        span.after,
        span.upto,
        transactions,
        changes,
        size,
        empty,
        counts,
        tuple(listed),
    )


def _line(row: Mapping[str, Any]) -> TransactionLine:
    names = ("position", "csn", "xid", "commit_ts", "user", "origin", "counts", "bytes", "empty_before")
    return TransactionLine(**{name: row[name] for name in names}, undecodable=row["undecodable"] is not None)


Values: TypeAlias = dict[str, str | None]
"""Column → text as the server prints it; columns with unknown values are omitted."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """The row after a change; None: it does not exist."""

    before: Values | None
    after: Values | None


@dataclass(frozen=True, slots=True)
class SilverRows:
    """Silver's rows of the key at the last cut. `position`: the table's; `reason`: why `rows` could not be read, empty
    if they were. Several rows are versions or changes, if the table keeps them.
    """

    table: str
    position: str
    state: str
    rows: tuple[Values, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RowEverywhere:
    """`events` are the changes of the rows that ever had the key and `changes` the row after each; `net`: the row of
    the key at the end of bronze, None if there is none; `silver`: None if no cut has the table yet.
    """

    table: str
    key: dict[str, str]
    events: tuple[RowEvent, ...]
    changes: tuple[RowChange, ...]
    net: Values | None
    quarantined: tuple[QuarantinedChange, ...]
    silver: SilverRows | None


def row_everywhere(project: Project, reader: BronzeReader, table: TableName, key: Mapping[str, str]) -> RowEverywhere:
    """Everything about the row of a key (column name → text). Raises NotInBronze, LakeError."""
    row_view = inspect_row(reader, table, key, control_tables(project).snapshots())
    rows: RowsByKey[Values] = RowsByKey()
    changes = tuple(_changes(row_view, rows))
    values = tuple(key.values())
    quarantined = tuple(
        change for change in list_quarantine(project).changes if change.source == str(table) and change.key == values
    )
    silver = _silver(project, reader, table, key)
    return RowEverywhere(row_view.table, row_view.key, row_view.events, changes, rows.last(values), quarantined, silver)


def _changes(row_view: RowView, rows: RowsByKey[Values]) -> Iterator[RowChange]:
    """Follow rows from key to key; `rows` has them by key at the end. Another stream begins without rows."""
    epoch = None
    for event in row_view.events:
        if event.epoch != epoch:
            rows.clear()
            epoch = event.epoch
        if event.op == TRUNCATE or event.key is None:
            before = next(iter(rows), None)
            rows.clear()
            yield RowChange(before, None)
            continue
        after = tuple(event.key.values())
        left = None if event.op == INSERT else _key_before(event, tuple(event.key)) or after
        old = event.old if event.old_kind == "full" else None
        current = None if left is None else rows.row_of(left, old)
        if event.op == DELETE or event.new is None:
            rows.move(left, None, None, old)
            yield RowChange(current or event.old, None)
            continue
        new = {
            name: current[name] if name in event.unchanged and current else value
            for name, value in event.new.items()
            if name not in event.unchanged or (current is not None and name in current)
        }
        rows.move(left, after, new, old)
        yield RowChange(current, new)


def _key_before(event: RowEvent, columns: Sequence[str]) -> tuple[str | None, ...] | None:
    if event.old is None or not set(columns) <= event.old.keys():
        return None
    return tuple(event.old[name] for name in columns)


def _silver(project: Project, reader: BronzeReader, table: TableName, key: Mapping[str, str]) -> SilverRows | None:
    """The rows of the key at the last cut."""
    try:
        session = open_session(project, Latest(), None, allow_behind=True)
    except StateError:
        return None  # there is no cut yet
    listed = session.tables.get(str(table))
    if listed is None:
        return None
    result = SilverRows(listed.table, format_stream_position(session.cut.stream, listed.position), listed.state)
    names: dict[str, str] = {}
    for layout in reader.layouts([table]).values():
        names |= silver_names_of(layout, project.target(table))
    if unknown := [name for name in key if name not in names]:
        return replace(result, reason=f"silver does not contain {', '.join(unknown)}")
    try:
        rows = session.read(str(table))
    except LakeError as error:
        return replace(result, reason=error.message)
    for name, text in key.items():
        column = rows[names[name]]
        rows = rows.filter(pc.equal(from_silver(column), from_source(pa.array([text]), column.type)[0]))
    return replace(result, rows=tuple(pa.table({n: _text(rows[n]) for n in rows.column_names}).to_pylist()))


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text as the server prints it; floats as Arrow does, because their canonical form is their bits."""
    return pc.cast(column, pa.large_string()) if pa.types.is_floating(column.type) else from_silver(column)
