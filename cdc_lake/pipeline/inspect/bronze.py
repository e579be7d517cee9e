"""Looking into bronze: one transaction, the history of one row, the chain. Values for `cdc-lake inspect`.

These show row values because that is what was asked for; nothing here is logged.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cdc_lake.bronze.chain import Beside, ChainVerdict, verify
from cdc_lake.bronze.contract import BEGIN, COMMIT, RELATION, SNAPSHOT
from cdc_lake.bronze.history import RowEvent, history, named, named_old
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.errors import NotInBronze
from cdc_lake.lake.control_rows import SnapshotRow
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.model.span import Span
from cdc_lake.model.undecoded import Undecoded
from cdc_lake.observe.progress import Tell, silent
from cdc_lake.pipeline.applying.reread import read_again_note
from cdc_lake.pipeline.state.copies import whole_copies
from cdc_lake.source.stream import shown


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
    """A landed transaction: boundaries as the source gave them, what its COMMIT row says, its changes in order.

    `empty_before`: transactions without rows between the one before it and this one.
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
    """The transaction at a commit position, of the newest stream unless `epoch` says otherwise. Raises NotInBronze."""
    table = reader.rows(position, epoch)
    rows = [row for row in table.to_pylist() if row["op"] not in {RELATION, SNAPSHOT}]
    commit = next((row for row in rows if row["op"] == COMMIT), None)
    if commit is None:
        state = reader.state()
        at = position if state is None else shown(state.stream, position)
        raise NotInBronze(f"no transaction was committed at position {at}", where=reader.place)
    begin = json.loads(next((row["info"] for row in rows if row["op"] == BEGIN), None) or "{}")
    said = json.loads(commit["info"])
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
        counts=said["counts"],
        size=said["bytes"],
        empty_before=said["empty_before"],
        content=said["content"],
        hash=said["hash"],
        changes=tuple(_change(row, layouts) for row in rows if row["op"] not in {BEGIN, COMMIT}),
        undecodable=Undecoded.from_description(said["undecodable"]) if "undecodable" in said else None,
    )


def inspect_row(
    reader: BronzeReader, table: TableName, key: Mapping[str, str], snapshots: Iterable[SnapshotRow] = ()
) -> RowView:
    """Every change of the rows that had `key` (column name → text as the server prints it). Raises NotInBronze.

    `snapshots`: the control table, which says of rows that were read again by whom, and whether they are in force.
    """
    known = list(snapshots)
    events = (
        dataclasses.replace(e, note=read_again_note(known, e.stream, e.position, e.ordinal, e.op))
        for e in history(reader, table, key, whole_copies(known, table))
    )
    return RowView(str(table), dict(key), tuple(events))


def primary_key(reader: BronzeReader, table: TableName) -> tuple[str, ...]:
    """Key columns of a table by its layouts in bronze, for a key given as bare values. Raises NotInBronze."""
    layouts = reader.layouts([table])
    if not layouts:
        raise NotInBronze(f"bronze has no changes of {table}", where=reader.place)
    keys = {layout.primary_key for layout in layouts.values() if layout.primary_key}
    if len(keys) != 1:
        raise NotInBronze(
            f"bronze knows {len(keys)} primary keys of {table}", hint="name the key columns: `column=value`"
        )
    return keys.pop()


def row_key(reader: BronzeReader, table: TableName, given: Sequence[object]) -> dict[str, str]:
    """A key by column name, from values in the order of the primary key. Raises NotInBronze."""
    columns = primary_key(reader, table)
    if len(columns) != len(given):
        raise NotInBronze(f"the key of {table} is ({', '.join(columns)}): give {len(columns)} values")
    return {column: str(value) for column, value in zip(columns, given, strict=True)}


def inspect_chain(
    reader: BronzeReader,
    span: Span | None = None,
    beside: Callable[[], Mapping[int, Beside]] = dict,
    tell: Tell = silent,
) -> ChainVerdict:
    """Whether bronze holds what was landed, all of it, once and unedited."""
    return verify(reader, span, beside=beside, tell=tell)


def plain(view: TransactionView | RowView | ChainVerdict) -> dict[str, Any]:
    """A view as JSON takes it; times are ISO 8601 with zone."""
    out = dataclasses.asdict(view, dict_factory=_jsonable)
    if isinstance(view, ChainVerdict):
        out["holds"] = view.holds
    return out


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
        new=named(names, row["new"]),
        old=None if layout is None else named_old(layout, row["old"], row["old_kind"]),
        old_kind=row["old_kind"],
        unchanged=tuple(names[at] for at in row["unchanged"] or ()),
        info=None if row["info"] is None else json.loads(row["info"]),
    )
