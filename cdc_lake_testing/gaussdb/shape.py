"""Decides what a stream prints of a transaction, according to its options, mode and version.

It implements the servers' own traps: empty pairs for filtered transactions, rows lost after a catalog change, TRUNCATE
that parallel decoding never prints, old rows without their NULLs, DELETEs without a key that are not sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeAlias

from cdc_lake.decode.gaussdb.records import Begin, Commit, Ddl, Field, Operation, Record, Row, Truncated
from cdc_lake_testing.gaussdb.dialect import Dialect
from cdc_lake_testing.gaussdb.ledger import LedgerTransaction
from cdc_lake_testing.gaussdb.live_rows import GeneratedField
from cdc_lake_testing.gaussdb.options import StreamOptions

Plugin: TypeAlias = Literal["mppdb_decoding", "test_decoding"]
"""The output plugins whose serial lines are known."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_STALE: Final = (0, 0x6D6F6320656C6269, 0x2F62696C2F727375)
"""Memory a 3.0 server prints as the LSN of an empty transaction; text, as seen in its recordings."""


@dataclass(frozen=True, slots=True)
class View:
    """From where a stream looks: its database, output plugin, options and dialect."""

    database: str
    plugin: Plugin
    options: StreamOptions
    dialect: Dialect


def records_of(transaction: LedgerTransaction, view: View) -> list[Record] | None:
    """BEGIN, the changes that are printed, COMMIT; None where the stream passes the transaction over."""
    options, dialect = view.options, view.dialect
    filtered = _filtered(transaction, options)
    elsewhere = transaction.database != view.database
    if options.serial:
        if elsewhere or filtered:
            return None
        printable = list(_serial_changes(transaction.changes, options, dialect))
        changes = [c for c in printable if not isinstance(c, Row) or options.wants(c.table.schema, c.table.name)]
        if options.skip_empty and not printable:
            return None
    else:
        seen = () if elsewhere or filtered else transaction.changes
        changes = list(_parallel_changes(seen, options, dialect))
        if options.skip_empty and not changes:
            return None
    time = timestamp_text(transaction.time_us) if options.timestamps else None
    return [_begin(transaction, view, time, empty=not changes), *changes, _commit(transaction, options, time)]


def timestamp_text(time_us: int) -> str:
    """µs since 1970 as the server writes a time in UTC: a fraction without trailing zeros, none where it is zero."""
    moment = _EPOCH + timedelta(microseconds=time_us)
    text = f"{moment:%Y-%m-%d %H:%M:%S}"
    if moment.microsecond:
        text += f".{moment.microsecond:06d}".rstrip("0")
    return text + "+00"


def _filtered(transaction: LedgerTransaction, options: StreamOptions) -> bool:
    if options.only_local and transaction.origin_id:
        return True
    return transaction.user is not None and transaction.user in options.excluded_users


def _begin(transaction: LedgerTransaction, view: View, time: str | None, *, empty: bool) -> Begin:
    options, dialect = view.options, view.dialect
    xid = transaction.xid if options.xids else None
    origin = (transaction.origin_id or 0) if options.origins else None
    if options.serial:
        if view.plugin == "test_decoding":
            origin = None
        return Begin(lsn=transaction.first_lsn, first_lsn=transaction.first_lsn, xid=xid, origin_id=origin)
    first = transaction.first_lsn
    if empty and dialect.garbage_lsn and transaction.csn % 2:
        first = _STALE[transaction.csn // 2 % len(_STALE)]
    return Begin(
        lsn=first,
        csn=transaction.csn,
        first_lsn=first,
        xid=xid if dialect.begin_xid else None,
        time=time,
        origin_id=origin,
        user=transaction.user if options.users else None,
    )


def _commit(transaction: LedgerTransaction, options: StreamOptions, time: str | None) -> Commit:
    return Commit(
        lsn=transaction.commit_end,
        csn=transaction.csn if options.serial else None,
        xid=transaction.xid if options.xids else None,
        time=time,
    )


def _serial_changes(changes: Iterable[Record], options: StreamOptions, dialect: Dialect) -> Iterator[Record]:
    for change in changes:
        match change:
            case Row():
                yield _shown(change, options, dialect)
            case Truncated():
                if not dialect.truncate_lines:
                    return  # rows behind it are dropped as well
                yield change
            case Ddl():
                if not dialect.truncate_lines:
                    return
                if change.content:  # otherwise nobody logs it: no publication asks for DDL
                    yield change


def _parallel_changes(changes: Iterable[Record], options: StreamOptions, dialect: Dialect) -> Iterator[Record]:
    for change in changes:
        if not isinstance(change, Row):
            return  # a change of the catalog: every later row of the transaction is lost
        if not options.wants(change.table.schema, change.table.name):
            continue
        if change.operation is Operation.DELETE and change.old is None and not dialect.keyless_delete:
            continue
        yield _shown(change, options, dialect)


def _shown(row: Row, options: StreamOptions, dialect: Dialect) -> Row:
    if options.skip_generated and row.new is not None:
        row = replace(row, new=tuple(field for field in row.new if not isinstance(field, GeneratedField)))
    return _old_without_nulls(row, dialect)


def _old_without_nulls(row: Row, dialect: Dialect) -> Row:
    if dialect.null_in_old or row.old is None:
        return row
    kept: tuple[Field, ...] = tuple(field for field in row.old if field.value is not None)
    return row if len(kept) == len(row.old) else replace(row, old=kept)
