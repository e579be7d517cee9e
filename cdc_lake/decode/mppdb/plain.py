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
from cdc_lake.model.change import Change, Delete, Insert, Truncate
from cdc_lake.model.relation import Relation
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

    One a table of a truncate; none for an INSERT that was taken back and the DELETE right behind it that did so. Any
    other DELETE without a key was made while the table had none: it names no row. Raises DecodeError, whose `where`
    names the transaction and the change; its offset counts from the record's start. UnmatchedDelete where the INSERT
    may be in the part before.
    """
    out: list[tuple[int, Change]] = []
    for at, data in enumerate(raw.records):
        try:
            for made in _changes_of(read_record(raw.style, data, layouts), layouts, raw.bounds.xid):
                if isinstance(made, Relation):
                    if not at and raw.part is not None and raw.part.movable:
                        raise UnmatchedDelete(f"a DELETE without a key on {made.table}, and no INSERT before it")
                    if out and _takes_back(made, at, *out[-1]):
                        out.pop()
                        continue
                out.append((at, Delete(made, None, None) if isinstance(made, Relation) else made))
        except DecodeError as error:
            error.where = error.where or where(raw, at)
            raise
    return out


def _takes_back(relation: Relation, at: int, before: int, change: Change) -> bool:
    """Whether a DELETE without a key takes back the change before it."""
    return before == at - 1 and isinstance(change, Insert) and change.relation.table == relation.table


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


def _changes_of(record: Record, layouts: Layouts, xid: int | None) -> Sequence[Change | Relation]:
    """What a record did; a layout stands for taking back the last INSERT of its table."""
    match record:
        case Row():
            change = layouts.change(record, xid)
            return (layouts.plan(record, xid).relation if change is None else change,)
        case Truncated(tables=tables, cascade=cascade, restart_identity=restart):
            # TRUNCATE is not filtered by the server
            taken = [table for table in tables if layouts.takes(table)]
            return [Truncate(layouts.relation_of(table), cascade, restart) for table in taken]
        case Begin() | Commit() | Ended() | Ddl() | Heartbeat() | Other():
            raise OutOfSequence(f"a record of kind {type(record).__name__} is not a change")
        case _ as never:
            assert_never(never)
