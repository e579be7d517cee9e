"""From lines of PostgreSQL's `test_decoding` to whole transactions, without decoding a single value.

::

    BEGIN [xid]                         table s.t: INSERT|UPDATE|DELETE: …       kept as they came, where the table
    COMMIT [xid] [(at time)]            table s.t, s.u: TRUNCATE: …              is captured
    message: …                          left out, as pgoutput leaves messages out that are not asked for
    PREPARE TRANSACTION … and others of two-phase       parked, where the pipeline asks for it, else refused
    opening a streamed block … and others of streaming  refused

One message is one line, whatever line feeds its values have. A line carries no position: that of a COMMIT's message is
the end of its commit record, which pgoutput says inside its own; of a row it is the row's. A BEGIN's is 0 where empty
transactions are skipped, and where the commit record starts nobody says. Specification: test_decoding.c of PostgreSQL
14 to 18 (contrib). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from cdc_lake.decode.frames import NewFrames
from cdc_lake.decode.mppdb.bounding import STORABLE
from cdc_lake.decode.mppdb.codec import Codec
from cdc_lake.decode.mppdb.open_rows import OpenRows, Whole
from cdc_lake.decode.mppdb.records import Style
from cdc_lake.decode.mppdb.timestamps import TIME, micros
from cdc_lake.decode.parking import Parking
from cdc_lake.decode.postgres_lines import MessageLine, PhaseLine, line
from cdc_lake.decode.test_decoding.heads import TABLE, head_of, tables_of
from cdc_lake.decode.test_decoding.phases import PREPARED, Phases
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
_HEADS: Final = 4096


class LineAssembler:
    """Takes the lines of one stream in order, gives transactions back as they commit
    (implements `source.stream.TransactionAssembler`).

    After a DecodeError, or when the connection is lost, `reset` before feeding again. `takes` is asked once of each
    table; rows of others are left out here, before anything is counted. `messages` counts logical messages.

    With `keeps`, a line inside a transaction that nobody knows is kept as it came: whoever decodes the transaction says
    what is wrong with it. With `parking`, prepared transactions wait there for their end; `landed`: what was committed
    up to there is in bronze.
    """

    def __init__(
        self,
        codec: Codec,
        takes: Callable[[TableName], bool],
        *,
        keeps: bool = False,
        frames: NewFrames | None = None,
        parking: Parking | None = None,
        landed: int = 0,
    ) -> None:
        """`frames`: see `mppdb.open_rows.OpenRows`."""
        self._codec = codec
        self._takes = takes
        self._keeps = keeps
        self._wanted: dict[bytes, bool] = {}
        self.messages = 0
        self._rows = OpenRows(Style.SERIAL, frames)
        self._phases = None if parking is None else Phases(codec, parking, landed, frames)
        self.reset()

    def reset(self) -> None:
        """Forget the open transaction."""
        self._open = False
        self._xid: int | None = None
        self._rows.forget()

    @property
    def in_transaction(self) -> bool:
        """True between a BEGIN and its COMMIT or PREPARE."""
        return self._open

    @property
    def open_csn(self) -> None:
        """PostgreSQL has no CSNs."""
        return

    @property
    def open_bytes(self) -> int:
        """Bytes of rows held for the open transaction."""
        return self._rows.size

    @property
    def completed(self) -> tuple[Whole, ...]:
        """None: a line that cannot be read completes no transaction before that."""
        return ()

    def feed(self, payload: bytes, lsn: int) -> tuple[Whole, ...]:
        """Take one line and the position it came with; the transaction it completes, where it completes one.

        Transactions without rows come out too. Raises DecodeError, whose `where` names the position; LakeError where a
        store has no room, or nothing can be parked; SourceError where the server had to be asked.
        """
        if self._open and payload[:6] == TABLE:
            wanted = self._wanted.get(payload[6 : payload.find(_BEHIND, 6)])
            if wanted is None:
                wanted = self._judged(payload)
            if wanted:
                self._rows.keep(payload, lsn)
            return ()
        try:
            return self._other(payload, lsn)
        except DecodeError as error:
            error.where = error.where or f"the line at {Lsn(lsn)}"
            raise

    def _other(self, payload: bytes, lsn: int) -> tuple[Whole, ...]:
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
            case PhaseLine() as phase:
                return self._phase(phase, lsn)
            case None:
                self._unknown(payload, lsn)
        return ()

    def _phase(self, phase: PhaseLine, lsn: int) -> tuple[Whole, ...]:
        """A line of two-phase decoding, or of streaming."""
        if phase.kind not in PREPARED:
            raise _streamed()
        if self._phases is None:
            raise PreparedUnread("a line of a prepared transaction, and the pipeline does not ask for `two_phase`")
        if phase.kind == "prepare":
            if self._xid not in (None, phase.xid):
                raise MalformedMessage(f"a PREPARE of transaction {phase.xid} for a BEGIN of {self._xid}")
            self._phases.park(phase, lsn, self._rows)  # PostgreSQL 18 prints no BEGIN of what only locked rows
            self._open, self._xid = False, None
            return ()
        if self._open:
            raise OutOfSequence("the end of a prepared transaction inside another one")
        return self._phases.ended(phase, lsn)

    def _unknown(self, payload: bytes, lsn: int) -> None:
        if not self._keeps or not self._open:
            raise UnknownStatement("a line that test_decoding is not known to print")
        self._rows.keep(payload, lsn)

    def _closed(self, commit: re.Match[bytes], end: int) -> Whole:
        if not self._open:
            raise OutOfSequence("a COMMIT without a BEGIN")
        xid = _number(commit[1])
        if self._xid is not None and xid is not None and self._xid != xid:
            raise MalformedMessage(f"a COMMIT of transaction {xid} for a BEGIN of {self._xid}")
        if not 0 < end < STORABLE:
            raise NoOrderNumber("a COMMIT without the position that orders the stream")
        self._rows.check()
        time = None if commit[2] is None else micros(commit[2].decode())
        bounds = Boundaries(position=end, confirm=end, xid=self._xid if xid is None else xid, commit_ts=time)
        self._open, self._xid = False, None
        return self._rows.closed(bounds)

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
