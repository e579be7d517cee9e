"""Streams: the transactions under way that a connection's blocks are of, each given back when it commits.

Blocks of several transactions take turns and never nest; whole transactions come between them. One that is rolled back
leaves no trace.
"""

from __future__ import annotations

from cdc_lake.decode.announced import Announced
from cdc_lake.decode.commits import bounds_of
from cdc_lake.decode.frames import NewFrames
from cdc_lake.decode.large import LargeTransaction
from cdc_lake.decode.parking import Parking
from cdc_lake.decode.pgoutput_stream import (
    LETTERS,
    StreamAbort,
    StreamCommit,
    StreamStart,
    StreamStop,
    stream_message,
    without_xid,
)
from cdc_lake.decode.raw import RawTransaction
from cdc_lake.decode.streamed import Streamed
from cdc_lake.decode.two_phase import TwoPhase
from cdc_lake.decode.underway import UnderWay, check_inside
from cdc_lake.errors import OutOfSequence


class Streams:
    """What of one connection's streamed transactions has come, and of prepared ones where there is a `parking`.

    `block`: the transaction whose block is open. `landed`: see `TwoPhase`. With `keeps`, what cannot be taken in is
    kept, and its transaction has a fault (`decode.assembler`).
    """

    def __init__(
        self, announced: Announced, frames: NewFrames, *, keeps: bool, parking: Parking | None = None, landed: int = 0
    ) -> None:
        self._under_way = UnderWay(announced, keeps=keeps)
        self._frames = frames
        self._open: dict[int, Streamed] = {}
        self._two_phase = None if parking is None else TwoPhase(self._under_way, frames, parking, landed)
        self.block: Streamed | None = None

    @property
    def open_bytes(self) -> int:
        """Bytes of changes of transactions whose COMMIT has not come, but for those that are parked."""
        preparing = 0 if (one := self._preparing) is None else one.frames.size
        return preparing + sum(one.frames.size for one in self._open.values())

    @property
    def outside_messages(self) -> int:
        """Logical messages in blocks that belong to no transaction, which were dropped."""
        return self._under_way.outside_messages

    @property
    def inside(self) -> bool:
        """Whether a block is open, or a transaction whose PREPARE has not come."""
        return self.block is not None or self._preparing is not None

    @property
    def _preparing(self) -> Streamed | None:
        return None if self._two_phase is None else self._two_phase.open

    def takes(self, payload: bytes) -> bool:
        """Whether a message is for `feed`: it opens, closes or ends something here, or stands inside of it."""
        if payload[:1] == b"":
            return self.inside
        if payload[0] in LETTERS or self.block is not None:
            return True
        return self._two_phase is not None and self._two_phase.takes(payload)

    def forget(self) -> None:
        """The next connection starts over."""
        for one in self._open.values():
            one.frames.close()
        self._open, self.block = {}, None
        if self._two_phase is not None:
            self._two_phase.forget()

    def feed(self, payload: bytes, lsn: int) -> tuple[RawTransaction | LargeTransaction, ...]:
        """Take one message; what it completes. Raises DecodeError, LakeError, and what the catalog raises."""
        if self.block is None and self._two_phase is not None and self._two_phase.takes(payload):
            return self._two_phase.feed(payload, lsn, self._open)
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
            self._under_way.take_origin(one, payload)
            return
        check_inside(letter, "a streamed block")
        bare = without_xid(payload)
        one.enter(payload[1:5])
        self._under_way.take(one, bare, lsn, left_out=4)

    # ── the end ──

    def _commit(self, commit: StreamCommit) -> RawTransaction | LargeTransaction:
        self._between("a COMMIT")
        if (one := self._open.get(commit.xid)) is None:
            raise OutOfSequence(f"a COMMIT of the streamed transaction {commit.xid}, of which nothing came", offset=1)
        bounds = bounds_of(commit, commit.xid, one.origin)
        whole = self._under_way.ended(one, bounds, self._under_way.announced.put, self._frames.part)
        del self._open[commit.xid]
        return whole
