"""Changes of the GaussDB family as columns, one change after the other: the reference for `columnar`, and its fallback.

Every style is read here, and through the same records: what a change is does not depend on how it was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from cdc_lake.decode.changes import ChangeColumns
from cdc_lake.decode.mppdb.binary import record_of
from cdc_lake.decode.mppdb.layouts import Layouts
from cdc_lake.decode.mppdb.payload import parallel_record, serial_record
from cdc_lake.decode.mppdb.raw import RecordTransaction
from cdc_lake.decode.mppdb.records import Begin, Commit, Ddl, Ended, Heartbeat, Other, Record, Row, Style, Truncated
from cdc_lake.decode.mppdb.text import heads
from cdc_lake.decode.plain import columns_of, refuse_oversize
from cdc_lake.errors import DecodeError, OutOfSequence, UnmatchedDelete
from cdc_lake.model.change import Change, Insert, Truncate
from cdc_lake.model.relation import TableName
from cdc_lake.model.transaction import Transaction


def tabulate_plain(batch: Sequence[RecordTransaction], layouts: Layouts) -> ChangeColumns:
    """The changes of the transactions, in order. Raises the DecodeError of the first record that cannot be read."""
    refuse_oversize(sum(raw.size for raw in batch))
    return columns_of(
        [(nth, raw.lsns[at], change) for nth, raw in enumerate(batch) for at, change in changes(raw, layouts)]
    )


def transaction(raw: RecordTransaction, layouts: Layouts) -> Transaction:
    """The model's value of a raw transaction. Raises DecodeError."""
    decoded = changes(raw, layouts)
    return Transaction(raw.bounds, tuple(c for _, c in decoded), tuple(raw.lsns[at] for at, _ in decoded))


def changes(raw: RecordTransaction, layouts: Layouts) -> list[tuple[int, Change]]:
    """The changes of a raw transaction in order, each with the index of its record.

    One a table of a truncate; none for an INSERT that was taken back and the DELETE that did so. Raises DecodeError,
    whose `where` names the transaction and the change; its offset counts from the record's start.
    """
    out: list[tuple[int, Change] | None] = []
    inserts: dict[TableName, list[int]] = {}
    for at, data in enumerate(raw.records):
        try:
            for change in _changes_of(read_record(raw.style, data, layouts), layouts, raw.bounds.xid):
                if isinstance(change, TableName):
                    out[_taken_back(change, inserts)] = None
                    continue
                if isinstance(change, Insert):
                    inserts.setdefault(change.relation.table, []).append(len(out))
                out.append((at, change))
        except DecodeError as error:
            error.where = error.where or where(raw, at)
            raise
    return [one for one in out if one is not None]


def where(raw: RecordTransaction, at: int) -> str:
    """The place of a record, for an error."""
    before = 0 if raw.part is None else raw.part.before
    return f"change {before + at + 1} of the transaction at {raw.bounds.position}"


def read_record(style: Style, data: bytes, layouts: Layouts) -> Record:
    """One record of a raw transaction. Raises DecodeError."""
    match style:
        case Style.BINARY:
            return record_of(data, layouts.codec)
        case Style.SERIAL:
            return serial_record(data, layouts.codec)
        case Style.TEXT | Style.JSON:
            known = heads(layouts.tables, layouts.codec) if layouts.tables else None
            return parallel_record(data, style, layouts.codec, known=known, end_lsn=None)


def _changes_of(record: Record, layouts: Layouts, xid: int | None) -> Sequence[Change | TableName]:
    """What a record did; the name of a table stands for taking back its last INSERT."""
    match record:
        case Row():
            change = layouts.change(record, xid)
            return (record.table if change is None else change,)
        case Truncated(tables=tables, cascade=cascade, restart_identity=restart):
            # TRUNCATE is not filtered by the server
            taken = [table for table in tables if layouts.takes(table)]
            return [Truncate(layouts.relation_of(table), cascade, restart) for table in taken]
        case Begin() | Commit() | Ended() | Ddl() | Heartbeat() | Other():
            raise OutOfSequence(f"a record of kind {type(record).__name__} is not a change")
        case _ as never:
            assert_never(never)


def _taken_back(table: TableName, inserts: dict[TableName, list[int]]) -> int:
    if not (stack := inserts.get(table)):
        raise unmatched(table)
    return stack.pop()


def unmatched(table: TableName) -> UnmatchedDelete:
    """A DELETE without a key that cancels nothing."""
    return UnmatchedDelete(f"a DELETE without a key on {table}, which has one, and no INSERT before it")
