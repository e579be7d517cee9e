"""From lines of PostgreSQL's `test_decoding` to whole transactions, without decoding a single value.

::

    BEGIN [xid]                         table s.t: INSERT|UPDATE|DELETE: …       kept as they came, where the table
    COMMIT [xid] [(at time)]            table s.t, s.u: TRUNCATE: …              is captured
    message: …                          left out, as pgoutput leaves messages out that are not asked for
    PREPARE TRANSACTION … and others of two-phase       stored, if the pipeline asks for it, else refused
    opening a streamed block … and others of streaming  refused

BEGIN, COMMIT, rows and TRUNCATE have the form of the GaussDB family and are parsed there. One message is one line, even
if its values contain line feeds. A line contains no position: that of a COMMIT's message is the end of its commit
record, which pgoutput sends inside its message; that of a row is the row's. A BEGIN's is 0 if empty transactions are
skipped, and the start of the commit record is unknown.

A PREPARE's line follows the rows, at the end of its record, whose start is unknown. The end of the transaction arrives
later, alone. A transaction prepared before the slot was created is printed as a whole at its end, PREPARE and COMMIT
PREPARED together. Specification: test_decoding.c of PostgreSQL 14 to 18 (contrib) and its regression results. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from cdc_lake import errors
from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb import serial
from cdc_lake.decode.gaussdb import text as identifiers
from cdc_lake.decode.gaussdb.assembler import STORABLE, TransactionBuffer, Whole, stored_transaction
from cdc_lake.decode.gaussdb.batches import RecordTransaction
from cdc_lake.decode.gaussdb.records import Style, Truncated
from cdc_lake.decode.gaussdb.serial import TIME, micros
from cdc_lake.decode.pgoutput.parser import Prepared
from cdc_lake.decode.pgoutput.spooled import PreparedContent, PreparedStorage
from cdc_lake.decode.transaction import FrameStore, FrameStoreFactory, InMemoryFrameStores
from cdc_lake.model.change import Boundaries
from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import TableName

TABLE: Final = b"table "
"""Prefix of the lines of rows and truncates."""
_HEAD: Final = re.compile(rf"table ({identifiers.NAME})\.({identifiers.NAME}): (?:INSERT|UPDATE|DELETE):")


class Head(NamedTuple):
    """The table of a row, and the bytes of its name."""

    text: bytes
    table: TableName


def head_of(line: bytes, codec: Codec) -> Head | None:
    """The head of a row; None for anything else. Raises DecodeError for an invalid name."""
    match = _HEAD.match(line.decode("latin-1"))
    if match is None:
        return None
    parts = (codec.name(part.encode("latin-1"), len(TABLE)) for part in match.groups())
    schema, name = map(identifiers.unquote, parts)
    return Head(line[len(TABLE) : match.end(2)], TableName(schema, name))


def tables_of(line: bytes, codec: Codec) -> tuple[TableName, ...] | None:
    """The tables that a row or truncate changes; None for any other line. Raises DecodeError."""
    head = head_of(line, codec)
    if head is not None:
        return (head.table,)
    record = serial.table_line(line, codec, None)
    return record.tables if isinstance(record, Truncated) else None


@dataclass(frozen=True, slots=True)
class MessageLine:
    """A logical message; `content` is None if it was streamed, which omits it."""

    transactional: bool
    prefix: str
    content: str | None


@dataclass(frozen=True, slots=True)
class PhaseLine:
    """A line of two-phase or streamed decoding: `kind` names it; missing parts are None."""

    kind: str
    gid: str | None = None
    xid: int | None = None
    time: str | None = None


_TIME: Final = rb"(?: \(at (?P<time>[^)]*)\))?"
_TXN: Final = rb"(?: TXN (?P<xid>\d+))?"
_GID: Final = rb" (?P<gid>E?'(?:[^']|'')*')(?:, txid (?P<xid>\d+))?"
_PHASES: Final = tuple(
    (re.compile(form, re.DOTALL), kind)
    for form, kind in (
        (rb"PREPARE TRANSACTION" + _GID + _TIME, "prepare"),
        (rb"COMMIT PREPARED" + _GID + _TIME, "commit_prepared"),
        (rb"ROLLBACK PREPARED" + _GID + _TIME, "rollback_prepared"),
        (rb"opening a streamed block for transaction" + _TXN, "stream_start"),
        (rb"closing a streamed block for transaction" + _TXN, "stream_stop"),
        (rb"aborting streamed \(sub\)transaction" + _TXN, "stream_abort"),
        (rb"preparing streamed transaction(?: TXN)?" + _GID + _TIME, "stream_prepare"),
        (rb"committing streamed transaction" + _TXN + _TIME, "stream_commit"),
        (rb"streaming change for (?:transaction|TXN (?P<xid>\d+))", "stream_change"),
        (rb"streaming truncate for (?:transaction|TXN (?P<xid>\d+))", "stream_truncate"),
    )
)
_MESSAGE: Final = re.compile(rb"(?:streaming )?message: transactional: ([01]) prefix: ")
_ENDS: Final = (b"", b"\n", b"\r\n")  # what a program that printed the line may have appended
_SIZE: Final = re.compile(rb", sz: (\d+)(?: content:|\Z)")


def line(payload: bytes, decode: Callable[[bytes], str]) -> MessageLine | PhaseLine | None:
    """Parse a line; None if it is none of these. `decode` converts text from the stream's encoding."""
    if (head := _MESSAGE.match(payload)) is not None:
        return _message(payload, head, decode)
    for form, kind in _PHASES:
        if (match := form.fullmatch(payload)) is not None:
            gid, xid, time = map(match.groupdict().get, ("gid", "xid", "time"))
            name = None if gid is None else _unquote_literal(decode(gid))
            return PhaseLine(kind, name, None if xid is None else int(xid), None if time is None else decode(time))
    return None


def _message(payload: bytes, head: re.Match[bytes], decode: Callable[[bytes], str]) -> MessageLine | None:
    """The size determines which `, sz: ` ends the prefix, because prefix and content may contain these words."""
    for size_match in _SIZE.finditer(payload, head.end()):
        size, rest = int(size_match[1]), payload[size_match.end() :]
        streamed = not size_match[0].endswith(b":")
        if streamed or (len(rest) >= size and rest[size:] in _ENDS):
            prefix = decode(payload[head.end() : size_match.start()])
            return MessageLine(head[1] == b"1", prefix, None if streamed else decode(rest[:size]))
    return None


def _unquote_literal(literal: str) -> str:
    """The text of a string constant: quotes are doubled; backslashes too if it begins with E."""
    text = literal[literal.index("'") + 1 : -1].replace("''", "'")
    return text.replace("\\\\", "\\") if literal.startswith("E") else text


PREPARED: Final = frozenset({"prepare", "commit_prepared", "rollback_prepared"})
"""Kinds of lines that are processed here."""


class Phases:
    """Processes the lines of prepared transactions. `landed`: everything committed up to there is in bronze."""

    def __init__(
        self, codec: Codec, prepared_storage: PreparedStorage, landed: int, frames: FrameStoreFactory | None
    ) -> None:
        """`frames` makes stores for large transactions; None: all are in memory."""
        self._codec = codec
        self._prepared_storage = prepared_storage
        self._landed = landed
        self._frames: FrameStoreFactory = frames or InMemoryFrameStores()

    def park(self, phase: PhaseLine, end: int, rows: TransactionBuffer) -> None:
        """Store a transaction whose PREPARE ends at `end`, with its `rows`. Raises DecodeError, LakeError."""
        xid, gid = _prepared_id(phase, end)
        prepared_at = 0 if phase.time is None else micros(phase.time)
        rows.check()
        store = rows.set_aside()
        try:
            tables = sorted(set(_tables(store, self._codec)))
            content = PreparedContent(store, (), tables=tables, encoding=self._codec.encoding)
            self._prepared_storage.park(Prepared(xid, gid, end, end, prepared_at), content)
        finally:
            store.close()

    def finish(self, phase: PhaseLine, end: int) -> tuple[Whole, ...]:
        """Process an end of a prepared transaction, at `end`; returns a committed transaction. Raises DecodeError,
        LakeError, and SourceError if the server had to be queried.
        """
        xid, gid = _prepared_id(phase, end)
        if phase.kind == "rollback_prepared":
            self._prepared_storage.rolled_back(xid, gid, end)
            return ()
        time = None if phase.time is None else micros(phase.time)
        bounds = Boundaries(position=end, confirm=end, xid=xid, commit_ts=time)
        content = self._prepared_storage.commit_prepared(xid, gid, end)
        if content is not None:
            return (self._build_transaction(bounds, content),)
        if end <= self._landed:
            return ()
        if self._prepared_storage.has_changes(xid, end):
            text = f"COMMIT PREPARED of `{gid}` (xid {xid}), whose PREPARE was neither received nor stored"
            raise errors.PreparedUnknown(text)
        return (RecordTransaction(bounds, Style.SERIAL, [], [], 0),)

    def _build_transaction(self, bounds: Boundaries, content: PreparedContent) -> Whole:
        store = content.frames
        if content.encoding is not None and Codec(content.encoding).python != self._codec.python:
            # to the encoding of this connection: SQL functions and streams use different ones
            before, store = Codec(content.encoding), self._frames()
            for lines, lsns in content.frames.parts():
                store.extend([self._codec.encode(before.text(line)) for line in lines], lsns)
            store.seal()
        return stored_transaction(bounds, Style.SERIAL, store, self._frames.part)


def _prepared_id(phase: PhaseLine, end: int) -> tuple[int, str]:
    """The id and name by which the storage knows it."""
    if phase.xid is None or phase.gid is None:
        raise errors.MalformedMessage("a prepared transaction without its id: `include-xids` is off")
    if not 0 < end < STORABLE:
        raise errors.NoOrderNumber("the end of a prepared transaction without the position that orders the stream")
    return phase.xid, phase.gid


def _tables(store: FrameStore, codec: Codec) -> Iterator[str]:
    """The tables that lines change, if they can be parsed."""
    known_heads: set[bytes] = set()
    for lines, _ in store.parts():
        for line in lines:
            head = line[: line.find(b": ", len(TABLE))]
            if head in known_heads and b'"' not in head:  # it may be a part of a name with a colon
                continue
            known_heads.add(head)
            try:
                yield from map(str, tables_of(line, codec) or ())
            except errors.DecodeError:
                continue  # decoding reports the error


_BEHIND: Final = b": "
_BEGIN: Final = re.compile(rb"BEGIN(?: ([0-9]{1,10}))?")
_COMMIT: Final = re.compile(rb"COMMIT(?: ([0-9]{1,10}))?(?: \(at (" + TIME.encode() + rb")\))?")


class LineAssembler:
    """Takes the lines of one stream in order, returns transactions as they commit
    (implements `source.base.TransactionAssembler`).

    After a DecodeError or a lost connection, call `reset` before `feed`. `takes` is called once for each table; rows of
    tables that are not captured are dropped here, before anything is counted. `messages` counts logical messages.

    With `keeps`, an unknown line inside a transaction is kept as received, and decoding reports the error. With
    `prepared_storage`, prepared transactions are stored there until their end; `landed`: everything committed up to
    there is in bronze.
    """

    open_csn: Final = None  # PostgreSQL has no CSNs
    completed_transactions: Final[tuple[Whole, ...]] = ()  # an unreadable line completes none

    def __init__(
        self,
        codec: Codec,
        takes: Callable[[TableName], bool],
        *,
        keeps: bool = False,
        frames: FrameStoreFactory | None = None,
        prepared_storage: PreparedStorage | None = None,
        landed: int = 0,
    ) -> None:
        """`frames`: see `decode.gaussdb.assembler.TransactionBuffer`."""
        self._codec = codec
        self._takes = takes
        self._keeps = keeps
        self._wanted: dict[bytes, bool] = {}
        self.messages = 0
        self._rows = TransactionBuffer(Style.SERIAL, frames)
        self._phases = None if prepared_storage is None else Phases(codec, prepared_storage, landed, frames)
        self.reset()

    def reset(self) -> None:
        """Drop the open transaction."""
        self.in_transaction = False
        self._xid: int | None = None
        self._rows.forget()

    @property
    def open_bytes(self) -> int:
        """Bytes of rows stored for the open transaction."""
        return self._rows.size

    def feed(self, payload: bytes, lsn: int) -> tuple[Whole, ...]:
        """Take one line and its position; returns the transaction that it completes, if any, even without rows.

        Raises DecodeError, whose `where` names the position; LakeError if a store is full, or a prepared transaction
        cannot be stored; SourceError if the server had to be queried.
        """
        if self.in_transaction and payload[:6] == TABLE:
            wanted = self._wanted.get(payload[6 : payload.find(_BEHIND, 6)])
            if wanted is None:
                wanted = self._is_captured(payload)
            if wanted:
                self._rows.keep(payload, lsn)
            return ()
        try:
            return self._feed_other(payload, lsn)
        except errors.DecodeError as error:
            error.where = error.where or f"the line at {Lsn(lsn)}"
            raise

    def _feed_other(self, payload: bytes, lsn: int) -> tuple[Whole, ...]:
        """Process everything but a row of the open transaction."""
        if (begin := _BEGIN.fullmatch(payload)) is not None:
            if self.in_transaction:
                raise errors.OutOfSequence("a BEGIN inside a transaction")
            self.in_transaction, self._xid = True, _number(begin[1])
            return ()
        if (commit := _COMMIT.fullmatch(payload)) is not None:
            return (self._close_transaction(commit, lsn),)
        if payload[:6] == TABLE:
            raise errors.OutOfSequence("a row outside a transaction")
        match line(payload, self._codec.text):
            case MessageLine(content=str()):
                self.messages += 1
            case MessageLine():
                raise _streamed_block_error()
            case PhaseLine() as phase:
                return self._phase(phase, lsn)
            case None:
                if not self._keeps or not self.in_transaction:
                    raise errors.UnknownStatement("an unknown line of test_decoding")
                self._rows.keep(payload, lsn)
        return ()

    def _phase(self, phase: PhaseLine, lsn: int) -> tuple[Whole, ...]:
        """Process a line of two-phase decoding, or of streaming."""
        if phase.kind not in PREPARED:
            raise _streamed_block_error()
        if self._phases is None:
            raise errors.PreparedUnread(
                "a line of a prepared transaction, but the pipeline does not ask for `two_phase`"
            )
        if phase.kind == "prepare":
            if self._xid not in (None, phase.xid):
                raise errors.MalformedMessage(f"a PREPARE of transaction {phase.xid} for a BEGIN of {self._xid}")
            self._phases.park(phase, lsn, self._rows)  # PostgreSQL 18 prints no BEGIN if it only locked rows
            self.in_transaction, self._xid = False, None
            return ()
        if self.in_transaction:
            raise errors.OutOfSequence("the end of a prepared transaction inside another one")
        return self._phases.finish(phase, lsn)

    def _close_transaction(self, commit: re.Match[bytes], end: int) -> Whole:
        if not self.in_transaction:
            raise errors.OutOfSequence("a COMMIT without a BEGIN")
        xid = _number(commit[1])
        if self._xid is not None and xid is not None and self._xid != xid:
            raise errors.MalformedMessage(f"a COMMIT of transaction {xid} for a BEGIN of {self._xid}")
        if not 0 < end < STORABLE:
            raise errors.NoOrderNumber("a COMMIT without the position that orders the stream")
        self._rows.check()
        time = None if commit[2] is None else micros(commit[2].decode())
        bounds = Boundaries(position=end, confirm=end, xid=self._xid if xid is None else xid, commit_ts=time)
        self.in_transaction, self._xid = False, None
        return self._rows.commit(bounds)

    # ── which rows are captured ──

    def _is_captured(self, payload: bytes) -> bool:
        """Whether a row's table is captured; unreadable lines are kept, so that decoding reports the error."""
        head = head_of(payload, self._codec)
        if head is None:
            truncated = tables_of(payload, self._codec)
            return truncated is None or any(map(self._takes, truncated))
        captured = self._takes(head.table)
        if head.text == payload[6 : payload.find(_BEHIND, 6)]:  # otherwise a name contains a colon
            if len(self._wanted) >= 4096:
                self._wanted.clear()
            self._wanted[head.text] = captured
        return captured


def _number(digits: bytes | None) -> int | None:
    return None if digits is None else int(digits)


def _streamed_block_error() -> errors.StreamedBlock:
    return errors.StreamedBlock("a line of a transaction that is streamed before its commit, without values")
