"""From lines of PostgreSQL's `test_decoding` to whole transactions, without decoding a single value.

::

    BEGIN [xid]                         table s.t: INSERT|UPDATE|DELETE: …       kept as they came, where the table
    COMMIT [xid] [(at time)]            table s.t, s.u: TRUNCATE: …              is captured
    message: …                          left out, as pgoutput leaves messages out that are not asked for
    PREPARE TRANSACTION … and others of two-phase, opening a streamed block … and others of streaming: refused

One message is one line, whatever line feeds its values have. A line carries no position: that of a COMMIT's message is
the end of its commit record, which pgoutput says inside its own; of a row it is the row's. A BEGIN's is 0 where empty
transactions are skipped, and where the commit record starts nobody says. Specification: test_decoding.c of PostgreSQL
14 to 18 (contrib). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from cdc_lake.decode.mppdb.bounding import STORABLE
from cdc_lake.decode.mppdb.codec import Codec
from cdc_lake.decode.mppdb.raw import RecordTransaction
from cdc_lake.decode.mppdb.records import Style
from cdc_lake.decode.mppdb.timestamps import TIME, micros
from cdc_lake.decode.postgres_lines import MessageLine, PhaseLine, line
from cdc_lake.decode.test_decoding.heads import TABLE, head_of, tables_of
from cdc_lake.errors import (
    DecodeError,
    MalformedMessage,
    NoOrderNumber,
    OutOfSequence,
    PreparedUnread,
    StreamedBlock,
    UnknownStatement,
)
from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import TableName
from cdc_lake.model.transaction import Boundaries

_BEHIND: Final = b": "
_BEGIN: Final = re.compile(rb"BEGIN(?: ([0-9]{1,10}))?")
_COMMIT: Final = re.compile(rb"COMMIT(?: ([0-9]{1,10}))?(?: \(at (" + TIME.encode() + rb")\))?")
_PREPARED: Final = frozenset({"prepare", "commit_prepared", "rollback_prepared", "stream_prepare"})
_HEADS: Final = 4096


class LineAssembler:
    """Takes the lines of one stream in order, gives transactions back as they commit
    (implements `source.stream.TransactionAssembler`).

    After a DecodeError, or when the connection is lost, `reset` before feeding again. `takes` is asked once of each
    table; rows of others are left out here, before anything is counted. `messages` counts logical messages.

    With `keeps`, a line inside a transaction that nobody knows is kept as it came: whoever decodes the transaction says
    what is wrong with it.
    """

    def __init__(self, codec: Codec, takes: Callable[[TableName], bool], *, keeps: bool = False) -> None:
        self._codec = codec
        self._takes = takes
        self._keeps = keeps
        self._wanted: dict[bytes, bool] = {}
        self.messages = 0
        self.reset()

    def reset(self) -> None:
        """Forget the open transaction."""
        self._open = False
        self._xid: int | None = None
        self._records: list[bytes] = []
        self._lsns: list[int] = []
        self._bytes = 0

    @property
    def in_transaction(self) -> bool:
        """True between a BEGIN and its COMMIT."""
        return self._open

    @property
    def open_csn(self) -> None:
        """PostgreSQL has no CSNs."""
        return

    @property
    def open_bytes(self) -> int:
        """Bytes of rows held for the open transaction."""
        return self._bytes

    @property
    def completed(self) -> tuple[RecordTransaction, ...]:
        """None: a line that cannot be read completes no transaction before that."""
        return ()

    def feed(self, payload: bytes, lsn: int) -> tuple[RecordTransaction, ...]:
        """Take one line and the position it came with; the transaction it completes, where it completes one.

        Transactions without rows come out too. Raises DecodeError, whose `where` names the position.
        """
        if self._open and payload[:6] == TABLE:
            wanted = self._wanted.get(payload[6 : payload.find(_BEHIND, 6)])
            if wanted is None:
                wanted = self._judged(payload)
            if wanted:
                self._keep(payload, lsn)
            return ()
        try:
            return self._other(payload, lsn)
        except DecodeError as error:
            error.where = error.where or f"the line at {Lsn(lsn)}"
            raise

    def _other(self, payload: bytes, lsn: int) -> tuple[RecordTransaction, ...]:
        """Everything but a row of the open transaction."""
        if (begin := _BEGIN.fullmatch(payload)) is not None:
            if self._open:
                raise OutOfSequence("a BEGIN inside a transaction")
            self._open, self._xid = True, _number(begin[1])
            return ()
        if (commit := _COMMIT.fullmatch(payload)) is not None:
            return (self._closed(commit, lsn),)
        if payload[:6] == TABLE:
            raise OutOfSequence("a row outside a transaction")
        match line(payload, self._codec.decode):
            case MessageLine(content=str()):
                self.messages += 1
            case MessageLine():
                raise _streamed()
            case PhaseLine(kind=kind):
                raise _prepared() if kind in _PREPARED else _streamed()
            case None:
                self._unknown(payload, lsn)
        return ()

    def _unknown(self, payload: bytes, lsn: int) -> None:
        if not self._keeps or not self._open:
            raise UnknownStatement("a line that test_decoding is not known to print")
        self._keep(payload, lsn)

    def _keep(self, payload: bytes, lsn: int) -> None:
        self._records.append(payload)
        self._lsns.append(lsn)
        self._bytes += len(payload)

    def _closed(self, commit: re.Match[bytes], end: int) -> RecordTransaction:
        if not self._open:
            raise OutOfSequence("a COMMIT without a BEGIN")
        xid = _number(commit[1])
        if self._xid is not None and xid is not None and self._xid != xid:
            raise MalformedMessage(f"a COMMIT of transaction {xid} for a BEGIN of {self._xid}")
        if not 0 < end < STORABLE:
            raise NoOrderNumber("a COMMIT without the position that orders the stream")
        if max(self._lsns, default=0) >= STORABLE:
            raise MalformedMessage("a row whose LSN is above 63 bits")
        time = None if commit[2] is None else micros(commit[2].decode())
        bounds = Boundaries(position=end, confirm=end, xid=self._xid if xid is None else xid, commit_ts=time)
        done = RecordTransaction(bounds, Style.SERIAL, self._records, self._lsns, self._bytes)
        self.reset()
        return done

    # ── which rows are captured ──

    def _judged(self, payload: bytes) -> bool:
        """Whether a row's table is captured; what cannot be read is kept, to be an error where it is decoded."""
        head = head_of(payload, self._codec)
        if head is None:
            truncated = tables_of(payload, self._codec)
            return truncated is None or any(map(self._takes, truncated))
        taken = self._takes(head.table)
        if head.text == payload[6 : payload.find(_BEHIND, 6)]:  # otherwise a name has a colon in it
            if len(self._wanted) >= _HEADS:
                self._wanted.clear()
            self._wanted[head.text] = taken
        return taken


def _number(digits: bytes | None) -> int | None:
    return None if digits is None else int(digits)


def _streamed() -> StreamedBlock:
    return StreamedBlock("a line of a transaction that is streamed before its commit, which has no values")


def _prepared() -> PreparedUnread:
    return PreparedUnread("a line of a prepared transaction: the slot was made with two-phase decoding")
