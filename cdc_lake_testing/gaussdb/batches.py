"""Gathers encoded records into CopyData messages with their `w` header.

A transaction is encoded once into pieces, one per record; a message ends when it exceeds the size limit, header
included, or when the one-second timer fires, so it may be split at any record.
"""

from __future__ import annotations

import itertools
import time
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from cdc_lake.decode.gaussdb.records import Begin, Commit, Record, Row, Style
from cdc_lake_testing.gaussdb.encode import Print, binary_record, framed, statement
from cdc_lake_testing.gaussdb.ledger import LedgerTransaction
from cdc_lake_testing.gaussdb.shape import View, records_of
from cdc_lake_testing.gaussdb.slots import SlotOrder

UNIX_TO_2000: Final = 946_684_800_000_000
"""µs from 1970 to 2000, the epoch of every time on the wire."""

HEADER: Final = 25
"""Bytes of a `w` header, which count when a message's size is compared with the limit."""

_W: Final = Struct(">cIcQQq").pack


@dataclass(frozen=True, slots=True)
class Encoded:
    """A transaction in bytes: its pieces one behind the other, `ends` where they end, `lsns` their header LSNs.

    `lsns` hold 0 for BEGIN, the record's LSN for a row and the start of the commit record for COMMIT in parallel
    decoding; in serial decoding the LSN that stands in the line's own header. `highest` is the greatest of them.
    """

    csn: int
    commit_start: int
    data: bytes
    ends: array[int]
    lsns: array[int]
    highest: int


def encode(transaction: LedgerTransaction, view: View, how: Print) -> Encoded | None:
    """The transaction as the stream prints it; None where it is passed over."""
    records = records_of(transaction, view)
    if records is None:
        return None
    pieces = [_piece(record, view, how) for record in records]
    lsns = array("Q", [_header_lsn(record, transaction, view) for record in records])
    if view.options.skip_empty and not view.options.serial:
        lsns[0] = lsns[1]  # BEGIN is written when the first row is
    ends = array("Q", itertools.accumulate(map(len, pieces)))
    return Encoded(transaction.csn, transaction.commit_start, b"".join(pieces), ends, lsns, max(lsns))


def _piece(record: Record, view: View, how: Print) -> bytes:
    style = how.style
    if _text_rows(view) and not isinstance(record, Begin | Commit):
        # 3.0 without decode-style: BEGIN and COMMIT are binary, rows are text, and the letter follows all of them.
        return statement(record, Print(Style.TEXT, how.encoding)) + b"P"
    if style is Style.BINARY:
        return binary_record(record, how.encoding) + b"P"
    return framed(record, how) if view.options.batch else statement(record, how)


def _text_rows(view: View) -> bool:
    return view.dialect.garbage_lsn and not view.options.style_given


def _header_lsn(record: Record, transaction: LedgerTransaction, view: View) -> int:
    match record:
        case Begin():
            return transaction.first_lsn if view.options.serial and not view.options.skip_empty else 0
        case Commit():
            return transaction.commit_end if view.options.serial else transaction.commit_start
        case Row():
            return record.lsn or 0
        case _:
            return record.lsn or 0


class Batcher:
    """Gathers one stream's pieces into messages; every method gives complete CopyData messages.

    `cuts`: counts of records after which a message is closed whatever its size, taken in turn; none: by size only.
    """

    def __init__(self, view: View, order: SlotOrder, limit: int, cuts: Sequence[int] = ()) -> None:
        self._options = view.options
        self._running = view.dialect.running_header
        self._order = order
        self._limit = limit if view.options.batch else 0
        self._cuts: Iterator[int] | None = itertools.cycle(cuts) if cuts else None
        self._left = next(self._cuts) if self._cuts is not None else 0
        self._parts: list[bytes] = []
        self._size = 0
        self._first: Encoded | None = None
        self._highest = 0

    @property
    def waiting(self) -> bool:
        """True while something is gathered that was not sent."""
        return bool(self._parts)

    def add(self, transaction: Encoded) -> Iterator[bytes]:
        """Take a transaction; gives the messages that it fills."""
        if self._options.serial:
            yield from self._lines(transaction)
            return
        room = self._limit - HEADER - self._size
        if self._cuts is None and len(transaction.data) <= room:
            self._gather(transaction, transaction.data)
            self._highest = max(self._highest, transaction.highest)
        else:
            yield from self._pieces(transaction)
        if self._order is SlotOrder.CSN and self._parts:
            yield self.flush()  # in CSN order a batch never spans transactions

    def flush(self) -> bytes:
        """Close what waits as the one-second timer does."""
        assert self._first is not None
        lsn = self._first.csn if self._order is SlotOrder.CSN else self._first.commit_start
        return self._close(b"\0\0\0\0", lsn)

    def _lines(self, transaction: Encoded) -> Iterator[bytes]:
        start = 0
        for end, lsn in zip(transaction.ends, transaction.lsns, strict=True):
            yield message(transaction.data[start:end], transaction.csn if self._order is SlotOrder.CSN else lsn)
            start = end

    def _pieces(self, transaction: Encoded) -> Iterator[bytes]:
        nth = start = 0
        while nth < len(transaction.ends):
            behind = nth + 1 if self._cuts is not None else self._filled_by(transaction, nth, start)
            end = transaction.ends[behind - 1]
            self._gather(transaction, transaction.data[start:end])
            self._highest = max(self._highest, *transaction.lsns[nth:behind])
            nth, start = behind, end
            if self._full():
                yield self._close_by_size(transaction)

    def _filled_by(self, transaction: Encoded, first: int, start: int) -> int:
        """Behind the record, from the first on, whose piece fills the message; behind the last one if none does."""
        most = self._limit - HEADER - self._size + start
        return min(bisect_right(transaction.ends, most, lo=first), len(transaction.ends) - 1) + 1

    def _gather(self, transaction: Encoded, data: bytes) -> None:
        if not self._parts:
            self._first = transaction
        self._parts.append(data)
        self._size += len(data)

    def _full(self) -> bool:
        if self._cuts is None:
            return self._size + HEADER > self._limit
        self._left -= 1
        if self._left <= 0:
            self._left = next(self._cuts)
            return True
        return self._size + HEADER > self._limit

    def _close_by_size(self, transaction: Encoded) -> bytes:
        first = self._first or transaction
        if self._order is SlotOrder.CSN:
            lsn = transaction.csn
        elif self._running:
            lsn = self._highest or first.commit_start
        else:
            lsn = first.commit_start
        if self._options.style is Style.BINARY:
            self._parts[-1] = self._parts[-1][:-1]
            return self._close(b"F", lsn)
        return self._close(b"\0\0\0\0" if self._options.batch else b"", lsn)

    def _close(self, ending: bytes, lsn: int) -> bytes:
        parts = [*self._parts, ending]
        self._parts = []
        self._size = 0
        self._first = None
        return b"".join([_header(sum(map(len, parts)), lsn, timed=self._running), *parts])


def message(payload: bytes, lsn: int, *, timed: bool = True) -> bytes:
    """A CopyData message of a `w` header and this payload; `timed`: with the time of sending."""
    return _header(len(payload), lsn, timed=timed) + payload


def _header(size: int, lsn: int, *, timed: bool) -> bytes:
    now = time.time_ns() // 1000 - UNIX_TO_2000 if timed else 0
    return _W(b"d", 4 + HEADER + size, b"w", lsn, lsn, now)
