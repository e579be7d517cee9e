"""Streams: the transactions under way that a connection's blocks are of, each given back when it commits.

Blocks of several transactions take turns and never nest; whole transactions come between them. One that is rolled back
leaves no trace.
"""

from __future__ import annotations

from typing import Final

from cdc_lake.decode.announced import Announced
from cdc_lake.decode.commits import bounds_of
from cdc_lake.decode.frames import NewFrames
from cdc_lake.decode.large import LargeTransaction
from cdc_lake.decode.pgoutput import parse
from cdc_lake.decode.pgoutput_stream import (
    LETTERS,
    WITH_XID,
    StreamAbort,
    StreamCommit,
    StreamStart,
    StreamStop,
    stream_message,
    without_xid,
)
from cdc_lake.decode.raw import RawTransaction
from cdc_lake.decode.records import LogicalMessage, OriginMessage, RelationMessage, TruncateMessage, TypeMessage
from cdc_lake.decode.streamed import Streamed
from cdc_lake.errors import DecodeError, OutOfSequence, UnknownRelation
from cdc_lake.model.change import DDL_MESSAGES, OWN_MESSAGES
from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import Relation

_RELATION_HEAD: Final = 5  # bytes: letter and OID
_ROW_CHANGES: Final = frozenset(b"IUD")


class Streams:
    """What of one connection's streamed transactions has come. `block`: the transaction whose block is open.

    With `keeps`, what cannot be taken in is kept, and its transaction has a fault (`decode.assembler`).
    """

    def __init__(self, announced: Announced, frames: NewFrames, *, keeps: bool) -> None:
        self._announced = announced
        self._frames = frames
        self._keeps = keeps
        self._open: dict[int, Streamed] = {}
        self.block: Streamed | None = None
        self.outside_messages = 0

    @property
    def open_bytes(self) -> int:
        """Bytes of changes of transactions whose COMMIT has not come."""
        return sum(one.frames.size for one in self._open.values())

    def takes(self, payload: bytes) -> bool:
        """Whether a message is for `feed`: it opens, closes or ends something here, or stands inside a block."""
        return self.block is not None or (payload[:1] != b"" and payload[0] in LETTERS)

    def forget(self) -> None:
        """The next connection starts over."""
        for one in self._open.values():
            one.frames.close()
        self._open, self.block = {}, None

    def feed(self, payload: bytes, lsn: int) -> tuple[RawTransaction | LargeTransaction, ...]:
        """Take one message; what it completes. Raises DecodeError, LakeError, and what the catalog raises."""
        match stream_message(payload):
            case StreamStart() as start:
                self._start(start)
            case StreamStop():
                self._inside("the end of a streamed block")
                self.block = None
            case StreamCommit() as commit:
                return (self._commit(commit),)
            case StreamAbort() as abort:
                self._abort(abort)
            case None:
                self._take(self._inside("a change"), payload, lsn)
        return ()

    def _start(self, start: StreamStart) -> None:
        if self.block is not None:
            raise OutOfSequence("a streamed block inside another one", offset=0)
        if start.first == (start.xid in self._open):
            which = "again" if start.first else "without its first block"
            raise OutOfSequence(f"the streamed transaction {start.xid} comes {which}", offset=1)
        if start.first:
            self._open[start.xid] = Streamed(start.xid, self._frames())
        self.block = self._open[start.xid]

    def _inside(self, what: str) -> Streamed:
        if self.block is None:
            raise OutOfSequence(f"{what} outside a streamed block", offset=0)
        return self.block

    def _abort(self, abort: StreamAbort) -> None:
        self._between("an abort")
        if (one := self._open.get(abort.xid)) is None:
            return  # nothing came of it, so nothing is to be forgotten
        if abort.subxid != abort.xid:
            one.roll_back(abort.subxid)
            return
        one.frames.close()
        del self._open[abort.xid]

    def _between(self, what: str) -> None:
        if self.block is not None:
            raise OutOfSequence(f"{what} inside a streamed block", offset=0)

    # ── inside a block ──

    def _take(self, one: Streamed, payload: bytes, lsn: int) -> None:
        """A message of a block other than a change of a known table, which `Assembler.feed` takes itself."""
        letter = payload[:1]
        if letter == b"O":
            origin = parse(payload)
            assert isinstance(origin, OriginMessage)
            one.origin = origin.name
            return
        if not letter or letter[0] not in WITH_XID:
            raise OutOfSequence(f"a message `{letter.decode(errors='replace')}` inside a streamed block", offset=0)
        bare = without_xid(payload)
        one.enter(payload[1:5])
        if letter == b"R":
            if len(bare) < _RELATION_HEAD:
                parse(bare)  # says that it ends early
            one.announce(bare, lsn, self._announced.arrived())
        elif letter[0] in _ROW_CHANGES:
            oid = int.from_bytes(bare[1:5], "big")
            raise UnknownRelation(f"a change of table OID {oid}, which was not announced", offset=5)
        else:
            self._take_other(one, bare, lsn)

    def _take_other(self, one: Streamed, bare: bytes, lsn: int) -> None:
        try:
            match parse(bare):
                case TypeMessage() as named:
                    self._announced.type(named)
                    return
                case LogicalMessage(transactional=transactional, prefix=prefix, content=content):
                    if not transactional or prefix == OWN_MESSAGES:
                        self.outside_messages += not transactional
                        return
                    if prefix == DDL_MESSAGES:
                        one.tell(content)
                case TruncateMessage(oids=oids):
                    for at, oid in enumerate(oids):
                        if oid.to_bytes(4, "big") not in one.announced:
                            text = f"a truncate of table OID {oid}, which was not announced"
                            raise UnknownRelation(text, offset=10 + 4 * at)
        except DecodeError as error:
            if not self._keeps or isinstance(error, UnknownRelation):
                raise  # a table that was not announced is announced by a new connection
            error.where = error.where or f"the message at {Lsn(lsn)}"
            one.fault = one.fault or error
        one.frames.append(bare, lsn)

    # ── the end ──

    def _commit(self, commit: StreamCommit) -> RawTransaction | LargeTransaction:
        self._between("a COMMIT")
        if (one := self._open.get(commit.xid)) is None:
            raise OutOfSequence(f"a COMMIT of the streamed transaction {commit.xid}, of which nothing came", offset=1)
        bounds = bounds_of(commit, commit.xid, one.origin)
        for _, content in one.told:
            self._announced.take_told(content)
        marks = one.marks(self._resolved, self._announced.put)
        one.frames.seal()
        del self._open[commit.xid]
        large = LargeTransaction(bounds, one.frames, marks, one.fault)
        if one.frames.spilled and one.frames.size >= self._frames.part:
            return large
        whole = large.whole()
        large.release()
        return whole

    def _resolved(self, payload: bytes, lsn: int) -> Relation | DecodeError:
        try:
            message = parse(payload)
            assert isinstance(message, RelationMessage)
            return self._announced.resolved(message)
        except DecodeError as error:
            error.where = error.where or f"the message at {Lsn(lsn)}"
            if not self._keeps:
                raise
            return error
