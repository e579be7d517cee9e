"""Follows rows through bronze: the history of one key, and the state after all changes.

A row is followed from key to key. Two rows may have had one key in turn, and with a deferred constraint at once: then a
change belongs to the row that its whole old tuple equals (`model.quarantine`).

Replaying works change by change, in memory, on the texts that the server sent: slow, and independent of the code that
merges silver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze.contract import DELETE, INSERT, SNAPSHOT, TRUNCATE, UPDATE
from cdc_lake.bronze.reader import BronzeReader, in_order
from cdc_lake.errors import BronzeDamaged, NotInBronze
from cdc_lake.model.quarantine import Key, RowsByKey
from cdc_lake.model.relation import Relation, TableName


@dataclass(frozen=True, slots=True)
class RowEvent:
    """One change of a row. Tuples are by column name; `unchanged` names columns of `new` that were not sent."""

    stream: str
    epoch: int
    position: int
    ordinal: int
    op: str
    commit_ts: datetime | None
    xid: int | None
    key: dict[str, str | None] | None  # after the change; for a delete before it; None for a truncate
    new: dict[str, str | None] | None
    old: dict[str, str | None] | None
    old_kind: str | None
    unchanged: tuple[str, ...]
    note: str = ""
    """The origin of the row, if not the stream."""


@dataclass(frozen=True, slots=True)
class _Step:
    """How one bronze row moves keys. `again`: it is the state of the key as read at the source."""

    row: int
    op: str
    before: Key | None
    after: Key | None
    again: bool = False


@dataclass(frozen=True, slots=True)
class _Row:
    """A row: the number of the event that inserted it, and its values after its last one."""

    number: int = field(compare=False)
    values: dict[str, str | None]


def history(
    reader: BronzeReader,
    table: TableName,
    key: Mapping[str, str],
    copied: Mapping[int, frozenset[int]] = MappingProxyType({}),
) -> list[RowEvent]:
    """All changes of the rows that ever had `key` (column name → text), in order. Raises NotInBronze.

    `copied`: epoch → the positions of complete copies of the table; rows of interrupted ones are ignored.
    """
    rows = _without_broken_copies(reader.history_rows(table), copied)
    layouts = reader.layouts([table])
    if rows.num_rows == 0:
        raise NotInBronze(f"bronze has no changes of {table}")
    steps = _steps(rows, layouts, tuple(key), table)
    related = _related_steps(steps, tuple(key.values()))
    related_rows = rows.take(pa.array([step.row for step in related], pa.int64())).to_pylist()
    events = [_event(row, step, layouts, tuple(key)) for row, step in zip(related_rows, related, strict=True)]
    return _events_of_key(related, events, tuple(key.values()))


def _without_broken_copies(rows: pa.Table, copied: Mapping[int, frozenset[int]]) -> pa.Table:
    for epoch, positions in copied.items():
        of_copy = pc.and_(pc.equal(rows["op"], SNAPSHOT), pc.greater_equal(rows["ordinal"], 0))
        broken = pc.invert(pc.is_in(rows["position"], value_set=pa.array(positions, pa.int64())))
        broken = pc.and_(pc.and_(of_copy, broken), pc.equal(rows["epoch"], epoch))
        rows = rows.filter(pc.invert(pc.fill_null(broken, False)))
    return rows


def _steps(rows: pa.Table, layouts: Mapping[int, Relation], columns: Sequence[str], table: TableName) -> list[_Step]:
    keys: dict[int, tuple[Key | None, Key | None]] = {}
    for number in rows["layout"].drop_null().unique().to_pylist():
        if number not in layouts:
            raise BronzeDamaged(f"bronze has no description of layout {number} of {table}")
        names = layouts[number].names
        if missing := [column for column in columns if column not in names]:
            raise NotInBronze(f"{table} has no column {', '.join(missing)}")
        key_columns = [names.index(column) for column in columns]
        keys.update(_keys(rows, number, key_columns))
    again = pc.fill_null(pc.and_(pc.equal(rows["op"], SNAPSHOT), pc.less(rows["ordinal"], 0)), False).to_pylist()
    ops = rows["op"].to_pylist()
    return [_Step(row, op, *keys.get(row, (None, None)), again[row]) for row, op in enumerate(ops)]


def _keys(rows: pa.Table, layout: int, key_columns: Sequence[int]) -> dict[int, tuple[Key | None, Key | None]]:
    """Row number → key before and after the change, for the rows of one layout."""
    numbered = rows.select(["op", "new", "old"]).append_column("at", pa.array(range(rows.num_rows)))
    layout_rows = numbered.filter(pc.and_(pc.equal(rows["layout"], layout), pc.not_equal(rows["op"], TRUNCATE)))
    new = _tuples(layout_rows["new"], layout_rows["old"], key_columns)
    old = _tuples(layout_rows["old"], layout_rows["new"], key_columns)
    gone = pc.or_(pc.equal(layout_rows["op"], DELETE), pc.is_null(layout_rows["new"])).to_pylist()
    numbers, ops = layout_rows["at"].to_pylist(), layout_rows["op"].to_pylist()
    return {
        row: (before if goes or op not in {INSERT, SNAPSHOT} else None, None if goes else after)
        for row, op, before, after, goes in zip(numbers, ops, old, new, gone, strict=True)
    }


def _tuples(first: pa.ChunkedArray, second: pa.ChunkedArray, key_columns: Sequence[int]) -> list[Key]:
    """Values of the key columns, from the second tuple if the first has none (not sent, or not in the identity)."""
    parts = [pc.coalesce(pc.list_element(first, i), pc.list_element(second, i)).to_pylist() for i in key_columns]
    return list(zip(*parts, strict=True))


def _related_steps(steps: Sequence[_Step], asked: Key) -> list[_Step]:
    """The steps that touch the key or one connected to it by key changes, and the truncates."""
    moves = [step for step in steps if step.op == UPDATE and step.before != step.after]
    keys: set[Key | None] = {asked}
    size = 0
    while size != len(keys):
        size = len(keys)
        for move in moves:
            if move.before in keys or move.after in keys:
                keys |= {move.before, move.after}
    return [s for s in steps if s.op == TRUNCATE or s.before in keys - {None} or s.after in keys - {None}]


def _events_of_key(steps: Sequence[_Step], events: Sequence[RowEvent], asked: Key) -> list[RowEvent]:
    """The events of the rows that had the key at any time."""
    alive: RowsByKey[_Row] = RowsByKey()
    of_row: list[tuple[RowEvent, set[int]]] = []
    wanted: set[int] = set()
    for number, (step, event) in enumerate(zip(steps, events, strict=True)):
        if step.op == TRUNCATE:
            of_row.append((event, {row.number for row in alive}))
            alive.clear()
            continue
        leaves = step.after if step.again and step.before is None else step.before
        old = _Row(number, event.old) if event.old_kind == "full" and event.old is not None else None
        previous = None if leaves is None else alive.row_of(leaves, old)
        before = old or previous
        unchanged = {} if before is None else {name: before.values.get(name) for name in event.unchanged}
        row = _Row(number if previous is None else previous.number, {**(event.new or {}), **unchanged})
        alive.move(leaves, step.after, row, old)
        if asked in {step.before, step.after}:
            wanted.add(row.number)
        of_row.append((event, {row.number}))
    return [event for event, rows in of_row if rows & wanted]


def _event(row: dict[str, Any], step: _Step, layouts: Mapping[int, Relation], columns: Sequence[str]) -> RowEvent:
    layout = layouts[row["layout"]]
    names = layout.names
    key = step.after if step.after is not None else step.before
    return RowEvent(
        stream=row["stream"],
        epoch=row["epoch"],
        position=row["position"],
        ordinal=row["ordinal"],
        op=row["op"],
        commit_ts=row["commit_ts"],
        xid=row["xid"],
        key=None if key is None else dict(zip(columns, key, strict=True)),
        new=values_by_name(names, row["new"]),
        old=named_old(layout, row["old"], row["old_kind"]),
        old_kind=row["old_kind"],
        unchanged=tuple(names[index] for index in row["unchanged"] or ()),
    )


def values_by_name(names: Sequence[str], values: Sequence[str | None] | None) -> dict[str, str | None] | None:
    """A tuple by column name, None without one."""
    return None if values is None else dict(zip(names, values, strict=True))


def named_old(layout: Relation, values: Sequence[str | None] | None, kind: str | None) -> dict[str, str | None] | None:
    """An old tuple by column name; if it is a key, without the columns that were not sent."""
    if values is None or kind != "key":
        return values_by_name(layout.names, values)
    pairs = zip(layout.columns, values, strict=True)
    return {column.name: value for column, value in pairs if column.key or value is not None}


Row: TypeAlias = dict[str, str | None]

_COLUMNS = ["relation", "epoch", "position", "ordinal", "op", "layout", "new", "old", "old_kind", "unchanged"]


def replay_rows(
    reader: BronzeReader, epoch: int, keys: Mapping[str, Sequence[str]], copied: Mapping[str, int]
) -> dict[str, list[Row]]:
    """The rows of each table in `keys`, which maps to key columns, after all decoded changes of the epoch.

    `copied`: the position of each table's copy. Raises BronzeDamaged if the row of a change does not exist.
    """
    files = reader.applied_files()
    names = {number: layout.names for number, layout in reader.layouts().items()}
    tables: dict[str, RowsByKey[Row]] = {name: RowsByKey() for name in keys}
    wanted = (pc.field("epoch") == epoch) & pc.field("relation").isin(pa.array(list(keys), pa.string()))
    wanted &= pc.field("op").isin([SNAPSHOT, INSERT, UPDATE, DELETE, TRUNCATE])
    wanted &= pc.field("ordinal") >= 0  # rows that were read again do not belong to the stream
    paths, of_copy = files.select(epoch=epoch, relations=list(keys)), pc.field("op") == SNAPSHOT
    for op_filter in (of_copy, ~of_copy):  # a copy made during the stream is among its files
        for part in in_order(files, paths, _COLUMNS, wanted & op_filter):
            for row in part.to_pylist():
                table = row["relation"]
                begins, position = copied.get(table), row["position"]
                if begins is not None and (position != begins if row["op"] == SNAPSHOT else position <= begins):
                    continue  # of an interrupted copy, or already in the copy
                _change(tables[table], row, names[row["layout"]], keys[table])
    return {name: list(rows) for name, rows in tables.items()}


def _change(rows: RowsByKey[Row], row: Mapping[str, Any], names: Sequence[str], keys: Sequence[str]) -> None:
    new, old = values_by_name(names, row["new"]), values_by_name(names, row["old"])
    whole = old if row["old_kind"] == "full" else None
    match row["op"]:
        case "T":
            rows.clear()
        case "S" | "I" if new is not None:
            rows.move(None, _key(new, keys), new)
        case "U" if new is not None:
            left = _key(old or new, keys)
            before = _existing_row(rows, left, row, whole)
            for index in row["unchanged"] or ():
                new[names[index]] = before.get(names[index])
            rows.move(left, _key(new, keys), new, whole)
        case "D" if old is not None:
            left = _key(old, keys)
            _existing_row(rows, left, row, whole)
            rows.move(left, None, None, whole)
        case _:
            raise BronzeDamaged(f"a change of {row['relation']} at position {row['position']} does not identify a row")


def _existing_row(rows: RowsByKey[Row], key: Key, row: Mapping[str, Any], old: Row | None) -> Row:
    current = rows.row_of(key, old)
    if current is None:
        where = f"at position {row['position']}"
        raise BronzeDamaged(f"a change of {row['relation']} {where} refers to a row that no earlier change inserted")
    return current


def _key(row: Row, keys: Sequence[str]) -> Key:
    return tuple(row.get(name) for name in keys)
