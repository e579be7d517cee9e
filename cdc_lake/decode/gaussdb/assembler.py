"""Assembles whole transactions from payloads of the GaussDB family, without decoding values.

A payload contains a part of a transaction, one, or many; rows remain bytes until a batch is closed. Transactions are
returned after their COMMIT; rows of the open transaction are in memory and, beyond a size, in a store. This is the hot
path of the receiver: in style b many rows of one payload are found together (`framing`), others cost one read of their
head, a slice and two appends.

Which LSN may be acknowledged depends on the format of the stream (openGauss 3.0.0 and 6.0.2, tested on servers):

* Style b, and t and j in batches: the COMMIT has the end of its commit record. 6.0.2 repeats a transaction that starts
  at or after the confirmed LSN, 3.0.0 one that starts after it: there, confirming the end loses the next transaction,
  while the end minus 1 loses and repeats nothing on either.
* Serial: the header of the COMMIT, which is that end too, is safe.
* t and j without batches: the header is the commit record's start; header plus 1 does not repeat it.
* A slot in CSN order is acknowledged by CSN.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb import framing, serial
from cdc_lake.decode.gaussdb import records as heartbeat
from cdc_lake.decode.gaussdb.batches import RecordTransaction, SpooledRecords, TableFilter
from cdc_lake.decode.gaussdb.binary import BODY, END, LEAST, MORE, following, record_end, record_of
from cdc_lake.decode.gaussdb.framing import Lsns, RecordRun, Rows, long_runs, verify
from cdc_lake.decode.gaussdb.records import Begin, Commit, Heartbeat, Style
from cdc_lake.decode.gaussdb.serial import micros
from cdc_lake.decode.transaction import FrameStore, FrameStoreFactory, InMemoryFrameStores
from cdc_lake.errors import DecodeError, MalformedMessage, NoOrderNumber, OutOfSequence
from cdc_lake.model.change import Boundaries
from cdc_lake.model.position import Lsn, OrderDomain

STORABLE: Final = 1 << 63
"""Bronze stores numbers of 63 bits; real LSNs, CSNs and xids are never larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPositionPolicy:
    """How to compute the boundaries of transactions of one stream. `confirms_csn`: its slot is in CSN order."""

    style: Style
    batch: bool
    domain: OrderDomain
    confirms_csn: bool

    def bounds(self, begin: Begin, commit: Commit, header_lsn: int, offset: int, *, has_rows: bool) -> Boundaries:
        """The boundaries; `header_lsn`: of the message with the COMMIT at `offset`. Raises DecodeError."""
        csn = begin.csn if begin.csn is not None else commit.csn
        commit_lsn = commit.lsn if commit.lsn is not None else header_lsn
        first_lsn = begin.first_lsn if begin.first_lsn is not None else begin.lsn  # serial: the LSN of BEGIN
        return Boundaries(
            position=self._position(csn, commit_lsn, offset),
            confirm=self._confirm(csn, commit_lsn, offset),
            commit_lsn=_storable(commit_lsn, "a COMMIT LSN", offset),
            # 3.0.x prints uninitialized memory for a transaction without rows
            first_lsn=first_lsn if has_rows and first_lsn and first_lsn < STORABLE else None,
            csn=_storable(csn, "a CSN", offset),
            xid=_storable(commit.xid if commit.xid is not None else begin.xid, "a transaction id", offset),
            commit_ts=_time(commit.time or begin.time, offset),
            user=begin.user,
            origin=str(begin.origin_id) if begin.origin_id else None,  # 0: this server
        )

    def _position(self, csn: int | None, commit_lsn: int, offset: int) -> int:
        number, name = (csn, "CSN") if self.domain is OrderDomain.CSN else (commit_lsn, "commit LSN")
        if number is None:
            raise NoOrderNumber(f"a transaction without a {name} in a stream that is ordered by {name}", offset=offset)
        if number >= STORABLE:
            raise NoOrderNumber(f"a transaction whose {name} exceeds 63 bits", offset=offset)
        return number

    def _confirm(self, csn: int | None, commit_lsn: int, offset: int) -> int:
        if self.confirms_csn:
            if csn is None:
                text = "a transaction without a CSN from a slot that is acknowledged by CSN"
                raise NoOrderNumber(text, offset=offset)
            return csn
        if self.style is Style.SERIAL:
            return commit_lsn
        if self.style is Style.BINARY or self.batch:
            return max(commit_lsn - 1, 0)
        return commit_lsn + 1


def _storable(number: int | None, what: str, offset: int) -> int | None:
    if number is not None and number >= STORABLE:
        raise MalformedMessage(f"{what} exceeds 63 bits", offset=offset)
    return number


def _time(text: str | None, offset: int) -> int | None:
    if not text:
        return None
    time = micros(text)
    if abs(time) >= STORABLE:
        raise MalformedMessage("a commit time that does not fit into 64 bits of microseconds", offset=offset)
    return time


Whole: TypeAlias = RecordTransaction | SpooledRecords
"""A committed transaction as the assemblers return it."""


def stored_transaction(bounds: Boundaries, style: Style, store: FrameStore, part: int) -> Whole:
    """The transaction of a sealed store, in parts if it is on disk and has `part` bytes or more. Raises LakeError."""
    if store.is_spilled and store.size >= part:
        return SpooledRecords(bounds, style, store, store.size, len(store))
    records: list[bytes] = []
    lsns: list[int] = []
    for rows, numbers in store.parts():
        records += rows
        lsns += numbers
    store.close()
    return RecordTransaction(bounds, style, records, lsns, sum(map(len, records)))


class TransactionBuffer:
    """Rows of one transaction at a time, without those that are not captured.

    Callers that append to `records` and `lsns` call `add_size`. `captured`: None disables the filter.
    """

    def __init__(self, style: Style, frames: FrameStoreFactory | None, captured: TableFilter | None = None) -> None:
        """`frames` makes stores for large transactions; None: all are in memory."""
        self._style = style
        self._new_store: FrameStoreFactory = frames or InMemoryFrameStores()
        self._part = self._new_store.part
        self._captured = captured
        self._store: FrameStore | None = None
        self.forget()

    def forget(self) -> None:
        """Drop all rows."""
        if self._store is not None:
            self._store.close()
        self._begin()

    def _begin(self) -> None:
        self._store = None
        self._start()

    def _start(self) -> None:
        self.records: list[bytes] = []
        self.lsns: list[int] = []
        self._before: list[tuple[list[bytes], list[int], RecordRun]] = []  # records and LSNs, followed by a run
        self._held = 0

    @property
    def size(self) -> int:
        """Bytes of the rows."""
        return self._held + (0 if self._store is None else self._store.size)

    @property
    def has_rows(self) -> bool:
        """Whether there were rows, captured or not."""
        return bool(self.records or self._before or self._store is not None)

    def keep(self, record: bytes, lsn: int) -> None:
        """Add a row. Raises LakeError, as the other methods that add rows."""
        self.records.append(record)
        self.lsns.append(lsn)
        self.add_size(len(record))

    def keep_run(self, run: RecordRun) -> None:
        """Add the rows of a run."""
        self._before.append((self.records, self.lsns, run))
        self.records, self.lsns = [], []
        self.add_size(run.size)

    def add_size(self, size: int) -> None:
        """Count bytes of added rows."""
        self._held += size
        if self._held > self._part:
            self._outgrown()

    def check(self, offset: int = 0) -> None:
        """Raise MalformedMessage if bronze could not store the LSN of a row."""
        for numbers in (self.lsns, *(earlier for _, earlier, _ in self._before)):
            if numbers and max(numbers) >= STORABLE:
                raise MalformedMessage("a row whose LSN exceeds 63 bits", offset=offset)

    def commit(self, bounds: Boundaries) -> Whole:
        """Return the committed transaction, and start an empty one. Raises LakeError."""
        if self._store is not None:
            self._outgrown()
        store, rows = self._store, self._captured_rows()
        self._begin()
        if store is None:
            return RecordTransaction(bounds, self._style, *rows)
        store.seal()
        return stored_transaction(bounds, self._style, store, self._part)

    def set_aside(self) -> FrameStore:
        """Return the rows of a prepared transaction in a store that the caller closes, and drop them. Raises
        LakeError.
        """
        self._outgrown()
        store = self._store
        assert store is not None, "made, where there was none"
        self._begin()
        store.seal()
        return store

    def _outgrown(self) -> None:
        """Move the transaction to a store."""
        self.check()
        if self._store is None:
            self._store = self._new_store()
        records, lsns, _ = self._captured_rows()
        self._store.extend(records, lsns)
        self._start()

    def _captured_rows(self) -> tuple[Sequence[bytes], Sequence[int], int]:
        """The captured rows in memory, their LSNs, and their bytes."""
        records, lsns = self._held_rows()
        if self._captured is None:
            return records, lsns, self._held
        return self._captured.rows(self._style, records, lsns, self._held)

    def _held_rows(self) -> tuple[Sequence[bytes], Sequence[int]]:
        if not self._before:
            return self.records, self.lsns
        rows: list[RecordRun | list[bytes]] = []
        lsns: list[Any] = []
        for records, numbers, run in self._before:
            rows += [records, run]
            lsns += [np.array(numbers, np.int64), run.lsn]
        return Rows([*rows, self.records]), Lsns([*lsns, np.array(self.lsns, np.int64)])


_HEAD: Final = struct.Struct(">IQB")
"""Length, LSN and letter of a record in style b."""
_ROWS: Final = frozenset(b"IUD")


class GaussDbAssembler:
    """Takes the payloads of one stream in order, returns transactions as they commit.

    After a DecodeError or a lost connection, call `reset` before `feed`: the server starts again with whole
    transactions. `heartbeats`, `ddl` and `others` count records that are no changes: heartbeats, DDL lines of serial
    decoding and unknown lines. `note` is called for the first ignored record of each kind, without its content.

    With `keeps`, an unreadable record of a transaction, whose end is certain, is kept as received, and decoding reports
    the error. Invalid BEGIN, COMMIT and framing are always errors; so is a record that hides one of them, once the next
    one does not fit.
    """

    def __init__(
        self,
        style: Style,
        *,
        batch: bool,
        domain: OrderDomain,
        codec: Codec | None = None,
        confirms_csn: bool = False,
        keeps: bool = False,
        note: Callable[[str], None] = lambda _: None,
        frames: FrameStoreFactory | None = None,
        captured: TableFilter | None = None,
    ) -> None:
        """`frames` and `captured`: see `TransactionBuffer`."""
        self.heartbeats = 0
        self.newest_decoded: int | None = None
        self.ddl = 0
        self.others = 0
        self._style = style
        self._batch = batch and style is not Style.SERIAL
        self._codec = codec or Codec()
        self._bounding = CommitPositionPolicy(style=style, batch=self._batch, domain=domain, confirms_csn=confirms_csn)
        self._keeps = keeps
        self._note = note
        self._noted: set[str] = set()
        self._open = TransactionBuffer(style, frames, captured)
        self.reset()

    def reset(self) -> None:
        """Drop the open transaction; the next payload is that of a new connection, whose style is verified."""
        self._verified = False
        self.completed_transactions: Sequence[Whole] = ()
        self._begin: Begin | None = None
        self._open.forget()

    @property
    def open_bytes(self) -> int:
        """Bytes of rows stored for the open transaction."""
        return self._open.size

    @property
    def open_csn(self) -> int | None:
        """The CSN of the transaction without its COMMIT so far; None between transactions, or if BEGIN has none."""
        return self._begin.csn if self._begin is not None else None

    @property
    def in_transaction(self) -> bool:
        """Whether a BEGIN came without its COMMIT."""
        return self._begin is not None

    def feed(self, payload: bytes, header_lsn: int) -> Sequence[Whole]:
        """Take one payload and the LSN of its header; returns the transactions it completes, in order, even empty ones.

        Raises DecodeError, whose `where` names the message and whose `completed` are the transactions that the payload
        completed before; LakeError if a store is full.
        """
        transactions: list[Whole] = []
        try:
            if not self._verified:
                verify(payload, self._style, batch=self._batch)
                self._verified = True
            if (beat := heartbeat.bare(payload)) is not None:
                self._beat(beat)
            elif self._style is Style.BINARY:
                self._feed_binary(payload, header_lsn, transactions)
            else:
                self._feed_text(payload, header_lsn, transactions)
        except DecodeError as error:
            self.completed_transactions = transactions
            error.where = error.where or f"the message at {Lsn(header_lsn)}"
            raise
        return transactions

    # ── style b ──

    def _feed_binary(self, payload: bytes, header_lsn: int, transactions: list[Whole]) -> None:
        offset, size = 0, len(payload)
        runs = long_runs(payload)
        while True:
            if self._begin is not None:
                if (long_run := runs.get(offset)) is not None:
                    run, offset = long_run
                    self._open.keep_run(run)
                offset = self._rows(payload, offset)
                if offset == size and offset and payload[-1] == END:
                    return
            if (end := record_end(payload, offset)) is None:
                return
            self._feed_other(payload, offset, end, header_lsn, transactions)
            if (after := following(payload, end)) is None:
                return
            offset = after

    def _rows(self, payload: bytes, start: int) -> int:
        """Keep consecutive rows; returns the position of the first record that is no row, or invalid."""
        records = self._open.records
        before = len(records)
        keep, note = records.append, self._open.lsns.append
        head, rows, offset = _HEAD.unpack_from, _ROWS, start
        with suppress(struct.error, IndexError):  # the end of the payload
            while True:
                length, lsn, letter = head(payload, offset)
                end = offset + 4 + length
                separator = payload[end]
                if letter not in rows or length < LEAST:
                    break
                if separator != MORE and (separator != END or end + 1 != len(payload)):
                    break
                keep(payload[offset + BODY : end])
                note(lsn)
                offset = end + 1
        self._open.add_size(offset - start - (BODY + 1) * (len(records) - before))
        return offset

    def _feed_other(self, payload: bytes, offset: int, end: int, header_lsn: int, transactions: list[Whole]) -> None:
        """Take a record that is no row of the open transaction, or that is invalid."""
        offset += BODY
        lsn = int.from_bytes(payload[offset - 8 : offset], "big")
        try:
            record = record_of(payload, self._codec, lsn=lsn, offset=offset, end=end)
        except DecodeError:
            if payload[offset : offset + 1] in (b"B", b"C") or not self._keep_unread(payload[offset:end], lsn):
                raise
            return
        match record:
            case Begin():
                self._note_skipped(record.skipped, "BEGIN")
                self._open_transaction(record, offset)
            case Commit():
                self._note_skipped(record.skipped, "COMMIT")
                transactions.append(self._close_transaction(record, header_lsn, offset))
            case Heartbeat():
                self._beat(record)
            case _:
                if self._begin is None:
                    raise OutOfSequence("a row outside a transaction", offset=offset)
                # a row with a wrong separator, which is reported next

    # ── text styles ──

    def _feed_text(self, payload: bytes, header_lsn: int, transactions: list[Whole]) -> None:
        for part in framing.parts_of_batch(payload) if self._batch else [(header_lsn, payload)]:
            if isinstance(part, RecordRun):
                if self._begin is None:
                    raise OutOfSequence("a row outside a transaction")
                self._open.keep_run(part)
                continue
            lsn, statement = part
            if statement.startswith((b"{", b"table ")):
                if self._begin is None:
                    raise OutOfSequence("a row outside a transaction")
                self._open.keep(statement, lsn)
                continue
            match serial.line_boundary(statement, lsn):
                case Begin() as begin:
                    self._open_transaction(begin, 0)
                case Commit() as commit:
                    transactions.append(self._close_transaction(commit, header_lsn, 0))
                case None:
                    self._no_change(statement, lsn)

    def _beat(self, beat: Heartbeat) -> None:
        """Process a heartbeat: the time of the newest decoded WAL shows the lag of decoding."""
        self.heartbeats += 1
        if beat.newest is not None:
            self.newest_decoded = beat.newest

    def _no_change(self, statement: bytes, lsn: int) -> None:
        if statement.startswith(heartbeat.LETTER):
            self._beat(beat := heartbeat.of_statement(statement, lsn))
            if beat.read is None:
                self._left_out("a heartbeat in an undocumented form")
        elif statement.startswith((b"ABORT", b"PREPARE")):
            raise OutOfSequence("an ABORT or PREPARE: only area decoding prints them")
        elif self._style is not Style.SERIAL:
            if not self._keep_unread(statement, lsn):
                raise MalformedMessage("a statement that is not a BEGIN, row, COMMIT or heartbeat")
        elif statement.startswith(serial.DDL_STARTS):
            self.ddl += 1
            self._left_out("a line of DDL")
        else:
            self.others += 1
            self._left_out(f"a line at {Lsn(lsn)} of an unknown kind")

    def _left_out(self, what: str) -> None:
        kind = what.partition(" at ")[0]
        if kind not in self._noted:
            self._noted.add(kind)
            self._note(f"{what} is omitted; more of its kind are not reported")

    def _note_skipped(self, option: str | None, where: str) -> None:
        if option is not None:
            self._left_out(f"option `{option}` of {where}, and what follows it there,")

    # ── transactions ──

    def _keep_unread(self, record: bytes, lsn: int) -> bool:
        """Keep an unreadable record of the open transaction; False if that is not allowed."""
        if not self._keeps or self._begin is None:
            return False
        self._open.keep(record, lsn)
        return True

    def _open_transaction(self, begin: Begin, offset: int) -> None:
        if self._begin is not None:
            raise OutOfSequence("a BEGIN inside a transaction", offset=offset)
        self._begin = begin

    def _close_transaction(self, commit: Commit, header_lsn: int, offset: int) -> Whole:
        begin = self._begin
        if begin is None:
            raise OutOfSequence("a COMMIT without a BEGIN", offset=offset)
        self._open.check(offset)
        bounds = self._bounding.bounds(begin, commit, header_lsn, offset, has_rows=self._open.has_rows)
        self._begin = None
        return self._open.commit(bounds)
