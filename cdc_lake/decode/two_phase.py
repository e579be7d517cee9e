"""Two-phase: prepared transactions, parked from their PREPARE to their COMMIT PREPARED or ROLLBACK PREPARED.

What stands in one counts where it is committed, at the position of its COMMIT PREPARED. An announcement in it counts
for whole transactions behind it too, as the server counts, but is looked up only once one of them needs it: what the
prepared transaction made, the catalog shows nobody else.
"""

from __future__ import annotations

from typing import TypeAlias, assert_never

from cdc_lake.decode.commits import bounds_of
from cdc_lake.decode.frames import NewFrames
from cdc_lake.decode.large import LargeTransaction
from cdc_lake.decode.parking import Parked, Parking
from cdc_lake.decode.pgoutput import ROW_CHANGES, TRUNCATE_HEAD
from cdc_lake.decode.pgoutput_prepared import (
    PREPARED_LETTERS,
    BeginPrepare,
    CommitPrepared,
    Prepare,
    Prepared,
    RollbackPrepared,
    prepared_message,
)
from cdc_lake.decode.raw import RawTransaction
from cdc_lake.decode.streamed import Streamed
from cdc_lake.decode.underway import UnderWay, check_inside
from cdc_lake.errors import MalformedMessage, OutOfSequence, PreparedUnknown

Done: TypeAlias = tuple[RawTransaction | LargeTransaction, ...]


class TwoPhase:
    """Takes the messages of prepared transactions. `open`: the one whose PREPARE has not come.

    `landed`: what was committed up to there is in bronze, so nothing of it needs to be parked any more.
    """

    def __init__(self, under_way: UnderWay, frames: NewFrames, parking: Parking, landed: int) -> None:
        self._under_way = under_way
        self._announced = under_way.announced
        self._frames = frames
        self._parking = parking
        self._landed = landed
        self._prepared: Prepared | None = None
        self.open: Streamed | None = None

    def forget(self) -> None:
        """The next connection starts over."""
        if self.open is not None:
            self.open.frames.close()
        self.open = None

    def takes(self, payload: bytes) -> bool:
        """Whether a message, outside of blocks and not empty, is for `feed`."""
        return self.open is not None or payload[0] in PREPARED_LETTERS

    def feed(self, payload: bytes, lsn: int, streamed: dict[int, Streamed]) -> Done:
        """Take one message; what it completes. A streamed transaction that is prepared is taken out of `streamed`.

        Raises DecodeError, LakeError, and what the catalog raises.
        """
        match prepared_message(payload):
            case None:
                self._take(payload, lsn)
            case BeginPrepare(prepared=prepared):
                self._between("a Begin Prepare")
                self._prepared, self.open = prepared, Streamed(prepared.xid, self._frames())
            case Prepare(prepared=prepared, streamed=True):
                self._between("a Stream Prepare")
                if (one := streamed.pop(prepared.xid, None)) is None:
                    text = f"a PREPARE of the streamed transaction {prepared.xid}, of which nothing came"
                    raise OutOfSequence(text, offset=1)
                self._park(prepared, one)
            case Prepare(prepared=prepared):
                one, self.open = self.open, None
                if one is None:  # PostgreSQL 18 sends no beginning of one that did nothing but lock rows
                    one = Streamed(prepared.xid, self._frames())
                elif prepared != self._prepared:
                    raise MalformedMessage("a PREPARE of another transaction than was announced", offset=2)
                self._park(prepared, one)
            case CommitPrepared() as commit:
                self._between("a COMMIT PREPARED")
                return self._committed(commit)
            case RollbackPrepared() as rollback:
                self._between("a ROLLBACK PREPARED")
                self._parking.rolled_back(rollback.xid, rollback.gid, rollback.end_lsn)
            case _ as never:
                assert_never(never)
        return ()

    def _between(self, what: str) -> None:
        if self.open is not None:
            raise OutOfSequence(f"{what} inside a transaction that is prepared", offset=0)

    # ── up to its PREPARE ──

    def _take(self, payload: bytes, lsn: int) -> None:
        one, letter = self.open, payload[:1]
        assert one is not None, "only what stands in one comes here without being a message of two-phase"
        if letter == b"O":
            self._under_way.take_origin(one, payload)
            return
        check_inside(letter, "a transaction that is prepared")
        if letter[0] in ROW_CHANGES:
            oid = payload[1:5]
            self._introduce(one, oid)
            if oid in one.announced:
                one.frames.append(payload, lsn)
                return
        elif letter == b"T":
            for at in range(TRUNCATE_HEAD, len(payload), 4):
                self._introduce(one, payload[at : at + 4])
        self._under_way.take(one, payload, lsn)
        if letter == b"R":
            self._announced.defer(payload, lsn, (one.xid, len(one.frames)))

    def _introduce(self, one: Streamed, oid: bytes) -> None:
        """A table that was announced before it, and not in it, with its partitions: who reads what is parked knows
        nothing of that.
        """
        if oid in one.announced:
            return
        for known in (oid, *self._announced.partitions_of(oid)):
            if (came := self._announced.came.get(known)) is not None:
                one.announce(*came, arrival=0)

    def _park(self, prepared: Prepared, one: Streamed) -> None:
        self._parking.park(prepared, one.parked())
        one.frames.close()

    # ── its end ──

    def _committed(self, commit: CommitPrepared) -> Done:
        parked = self._parking.committed(commit.xid, commit.gid, commit.end_lsn)
        if parked is None:
            if commit.end_lsn <= self._landed:
                return ()
            if self._parking.changed(commit.xid, commit.end_lsn):
                text = f"COMMIT PREPARED of `{commit.gid}` (xid {commit.xid}), whose PREPARE neither came nor is kept"
                raise PreparedUnknown(text, offset=0)
            parked = Parked(self._frames(), ())  # up to version 17 a server sends no PREPARE of what only locked rows
        bounds = bounds_of(commit, commit.xid, parked.origin)
        one = Streamed.of(commit.xid, parked)
        # for others its layouts count from the PREPARE on
        return (self._under_way.ended(one, bounds, lambda *_: None, self._frames.part),)
