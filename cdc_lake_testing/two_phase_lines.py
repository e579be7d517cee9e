"""The WAL of `cdc_lake_testing.two_phase` as test_decoding prints it: whole transactions, at their COMMIT or PREPARE.

The position of the lines of COMMIT, PREPARE and their ends is the end of the record; its beginning decides whether a
connection gets it.
"""

from __future__ import annotations

from collections.abc import Iterator

from cdc_lake.decode.gaussdb.batches import RecordTransaction
from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.model.change import Boundaries, Change, Delete, Insert, Message, Transaction, Truncate, Update
from cdc_lake_testing.messages import DEFAULT_COMMIT_TS
from cdc_lake_testing.two_phase import RECORD, Logged, TwoPhaseLog

_AT = b" (at 2026-01-01 00:00:00+00)"
_WORDS = {Insert: b"INSERT", Update: b"UPDATE", Delete: b"DELETE"}


def lines_of(log: TwoPhaseLog, start: int) -> Iterator[tuple[int, bytes]]:
    """What a connection that starts at this position is sent, each line with its LSN."""
    for one, what, number in log.events:
        first = one.end if one.prepared is None else one.prepared
        again = first is not None and first >= start
        if what == "prepare" and again and not one.silent:
            yield from _rows(one)
            yield number + RECORD, b"PREPARE TRANSACTION " + _named(one)
        elif what == "end" and number >= start:
            yield from _end(one, number)


def as_recorded(transaction: Transaction) -> RecordTransaction:
    """What the assembler makes of the lines of a transaction."""
    bounds = transaction.bounds
    numbered = zip(transaction.changes, transaction.lsns, strict=True)
    rows = [(line, lsn) for change, lsn in numbered if (line := _row(change, lsn)) is not None]
    said = Boundaries(bounds.position, bounds.confirm, xid=bounds.xid, commit_ts=DEFAULT_COMMIT_TS)
    records, lsns = [line for line, _ in rows], [lsn or 0 for _, lsn in rows]
    return RecordTransaction(said, Style.SERIAL, records, lsns, sum(map(len, records)))


def _end(one: Logged, lsn: int) -> Iterator[tuple[int, bytes]]:
    if one.prepared is not None:
        yield lsn + RECORD, (b"COMMIT PREPARED " if one.commits else b"ROLLBACK PREPARED ") + _named(one)
    elif one.commits:
        yield from _rows(one)
        yield lsn + RECORD, b"COMMIT %d" % one.xid + _AT


def _rows(one: Logged) -> Iterator[tuple[int, bytes]]:
    yield one.changes[0][1] if one.changes else 0, b"BEGIN %d" % one.xid
    for change, lsn in one.changes:
        line = _row(change, lsn)
        yield lsn, b"message: transactional: 1 prefix: p, sz: 7 content:content" if line is None else line


def _row(change: Change, lsn: int | None) -> bytes | None:
    """A line that no other row has; None for a message."""
    if isinstance(change, Message):
        return None
    table = str(change.relation.table).encode()
    if isinstance(change, Truncate):
        return b"table %s: TRUNCATE: (no-flags)" % table
    return b"table %s: %s: id[bigint]:%d note[text]:'it''s\n%d'" % (
        table,
        _WORDS[type(change)],
        lsn or 0,
        len(str(change)),
    )


def _named(one: Logged) -> bytes:
    gid = (one.gid or "").replace("'", "''")
    return f"'{gid}', txid {one.xid}".encode() + _AT
