"""From payloads of the GaussDB family to whole transactions, without decoding a single value.

A payload holds a part of a transaction, one, or many; rows stay the bytes the server sent until a batch is closed. What
leaves has seen its COMMIT. This is the hot path of the receiver: in style b many rows in one payload are found together
(`runs`), others cost one read of their head, a slice and two appends.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from cdc_lake.decode.frames import NewFrames
from cdc_lake.decode.mppdb import framing, heartbeat, lines
from cdc_lake.decode.mppdb.binary import BODY, END, LEAST, MORE, following, record_end, record_of
from cdc_lake.decode.mppdb.bounding import Bounding
from cdc_lake.decode.mppdb.captured import Captured
from cdc_lake.decode.mppdb.codec import Codec
from cdc_lake.decode.mppdb.open_rows import OpenRows, Whole
from cdc_lake.decode.mppdb.records import Begin, Commit, Heartbeat, Style
from cdc_lake.decode.mppdb.runs import Run, long_runs
from cdc_lake.decode.mppdb.styles import verify
from cdc_lake.errors import DecodeError, MalformedMessage, OutOfSequence
from cdc_lake.model.position import Lsn, OrderDomain

_HEAD: Final = struct.Struct(">IQB")
"""Length, LSN and letter of a record in style b."""
_ROWS: Final = frozenset(b"IUD")


class FamilyAssembler:
    """Takes the payloads of one stream in order, gives transactions back as they commit.

    After a DecodeError, or when the connection is lost, `reset` before feeding again: the server starts over with whole
    transactions. `heartbeats`, `ddl` and `others` count records that are nobody's change: heartbeats, DDL lines of
    serial decoding and lines nobody knows; the last one's first bytes are not kept. `note` is told of the first one of
    each kind that is left out, never of what stands in it.

    With `keeps`, a record of a transaction that cannot be read and whose end is certain is kept as it came: whoever
    decodes the transaction says what is wrong with it. BEGIN, COMMIT and what frames them are errors as ever; so is a
    record that hides one of them, by the next that does not fit.
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
        frames: NewFrames | None = None,
        captured: Captured | None = None,
    ) -> None:
        """`frames` and `captured`: see `open_rows.OpenRows`."""
        self.heartbeats = 0
        self.newest_decoded: int | None = None
        self.ddl = 0
        self.others = 0
        self._style = style
        self._batch = batch and style is not Style.SERIAL
        self._codec = codec or Codec()
        self._bounding = Bounding(style=style, batch=self._batch, domain=domain, confirms_csn=confirms_csn)
        self._keeps = keeps
        self._note = note
        self._noted: set[str] = set()
        self._open = OpenRows(style, frames, captured)
        self.reset()

    def reset(self) -> None:
        """Forget the open transaction; the next payload is that of a new connection, whose style is verified."""
        self._verified = False
        self.completed: Sequence[Whole] = ()
        self._begin: Begin | None = None
        self._open.forget()

    @property
    def open_bytes(self) -> int:
        """Bytes of rows held for the open transaction."""
        return self._open.size

    @property
    def open_csn(self) -> int | None:
        """The CSN of the transaction whose COMMIT has not come yet; None between transactions, or if BEGIN has none."""
        return self._begin.csn if self._begin is not None else None

    @property
    def in_transaction(self) -> bool:
        """Whether a BEGIN came without its COMMIT."""
        return self._begin is not None

    def feed(self, payload: bytes, header_lsn: int) -> Sequence[Whole]:
        """Take one payload and the LSN of its header; the transactions it completes, in order, empty ones too.

        Raises DecodeError, whose `where` names the message; `completed` has what the payload completed before that.
        LakeError where a store has no room.
        """
        done: list[Whole] = []
        try:
            if not self._verified:
                verify(payload, self._style, batch=self._batch)
                self._verified = True
            if self._style is Style.BINARY:
                self._feed_binary(payload, header_lsn, done)
            else:
                self._feed_text(payload, header_lsn, done)
        except DecodeError as error:
            self.completed = done
            error.where = error.where or f"the message at {Lsn(header_lsn)}"
            raise
        return done

    # ── style b ──

    def _feed_binary(self, payload: bytes, header_lsn: int, done: list[Whole]) -> None:
        if (beat := heartbeat.bare(payload)) is not None:
            self._beat(beat)
            return
        at, size = 0, len(payload)
        runs = long_runs(payload)
        while True:
            if self._begin is not None:
                if (found := runs.get(at)) is not None:
                    run, at = found
                    self._open.keep_run(run)
                at = self._rows(payload, at)
                if at == size and at and payload[-1] == END:
                    return
            if (end := record_end(payload, at)) is None:
                return
            self._other(payload, at, end, header_lsn, done)
            if (after := following(payload, end)) is None:
                return
            at = after

    def _rows(self, payload: bytes, start: int) -> int:
        """Keep the rows that stand one behind the other; where the first record stands that is not one, or wrong."""
        records = self._open.records
        before = len(records)
        keep, note = records.append, self._open.lsns.append
        head, rows, at = _HEAD.unpack_from, _ROWS, start
        with suppress(struct.error, IndexError):  # the end of the payload: no record can be read, or none follows
            while True:
                length, lsn, letter = head(payload, at)
                end = at + 4 + length
                separator = payload[end]
                if letter not in rows or length < LEAST:
                    break
                if separator != MORE and (separator != END or end + 1 != len(payload)):
                    break
                keep(payload[at + BODY : end])
                note(lsn)
                at = end + 1
        self._open.grown(at - start - (BODY + 1) * (len(records) - before))
        return at

    def _other(self, payload: bytes, at: int, end: int, header_lsn: int, done: list[Whole]) -> None:
        """Take a record that is no row of the open transaction, or that is wrong."""
        at += BODY
        lsn = int.from_bytes(payload[at - 8 : at], "big")
        try:
            record = record_of(payload, self._codec, lsn=lsn, at=at, end=end)
        except DecodeError:
            if payload[at : at + 1] in (b"B", b"C") or not self._keep_unread(payload[at:end], lsn):
                raise
            return
        match record:
            case Begin():
                self._skipped(record.skipped, "BEGIN")
                self._opened(record, at)
            case Commit():
                self._skipped(record.skipped, "COMMIT")
                done.append(self._closed(record, header_lsn, at))
            case Heartbeat():
                self._beat(record)
            case _:
                if self._begin is None:
                    raise OutOfSequence("a row outside a transaction", offset=at)
                # a row whose separator is wrong, which is said next

    # ── text styles ──

    def _feed_text(self, payload: bytes, header_lsn: int, done: list[Whole]) -> None:
        if (beat := heartbeat.bare(payload)) is not None:
            self._beat(beat)
            return
        for part in framing.parts_of_batch(payload) if self._batch else [(header_lsn, payload)]:
            if isinstance(part, Run):
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
            match lines.boundary(statement, lsn):
                case Begin() as begin:
                    self._opened(begin, 0)
                case Commit() as commit:
                    done.append(self._closed(commit, header_lsn, 0))
                case None:
                    self._no_change(statement, lsn)

    def _beat(self, beat: Heartbeat) -> None:
        """The server is there: how new the log is that it has decoded says how far decoding lags."""
        self.heartbeats += 1
        if beat.newest is not None:
            self.newest_decoded = beat.newest

    def _no_change(self, statement: bytes, lsn: int) -> None:
        if statement.startswith(heartbeat.LETTER):
            self._beat(beat := heartbeat.of_statement(statement, lsn))
            if beat.read is None:
                self._left_out("a heartbeat of a form that no document describes")
        elif statement.startswith((b"ABORT", b"PREPARE")):
            raise OutOfSequence("an ABORT or PREPARE: only area decoding prints them")
        elif self._style is not Style.SERIAL:
            if not self._keep_unread(statement, lsn):
                raise MalformedMessage("a statement that is no BEGIN, row, COMMIT or heartbeat")
        elif statement.startswith(lines.DDL_STARTS):
            self.ddl += 1
            self._left_out("a line of DDL")
        else:
            self.others += 1
            self._left_out(f"a line at {Lsn(lsn)} of a kind that nobody knows")

    def _left_out(self, what: str) -> None:
        kind = what.partition(" at ")[0]
        if kind not in self._noted:
            self._noted.add(kind)
            self._note(f"{what} is left out; more of its kind are not mentioned")

    def _skipped(self, option: str | None, where: str) -> None:
        if option is not None:
            self._left_out(f"option `{option}` of {where}, and what follows it there,")

    # ── transactions ──

    def _keep_unread(self, record: bytes, lsn: int) -> bool:
        """Keep a record of the open transaction that cannot be read; False where that is not to be."""
        if not self._keeps or self._begin is None:
            return False
        self._open.keep(record, lsn)
        return True

    def _opened(self, begin: Begin, at: int) -> None:
        if self._begin is not None:
            raise OutOfSequence("a BEGIN inside a transaction", offset=at)
        self._begin = begin

    def _closed(self, commit: Commit, header_lsn: int, at: int) -> Whole:
        begin = self._begin
        if begin is None:
            raise OutOfSequence("a COMMIT without a BEGIN", offset=at)
        self._open.check(at)
        bounds = self._bounding.bounds(begin, commit, header_lsn, at, has_rows=self._open.some)
        self._begin = None
        return self._open.closed(bounds)
