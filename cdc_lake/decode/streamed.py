"""Streamed transactions: what came of each one that is still under way at the server.

Its frames are in a store, without the transaction ids of their blocks. What a subtransaction that is rolled back did is
cut off from its first message on: whatever came behind that is of it or of one inside it (PostgreSQL's own subscriber
relies on the same, `stream_abort_internal` in worker.c). Announcements of tables are kept until the COMMIT and only
then looked up: before, nobody else sees in the catalog what the transaction itself made.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias

import numpy as np

from cdc_lake.decode.announced import Announced
from cdc_lake.decode.frames import FrameStore
from cdc_lake.decode.large import Mark
from cdc_lake.decode.parking import Announcement, Parked
from cdc_lake.errors import DecodeError
from cdc_lake.model.relation import Relation

_HALF: Final = 1 << 31

Resolve: TypeAlias = Callable[[bytes, int, tuple[int, int]], Relation | DecodeError]
"""The layout that a relation message announces, which came with an LSN at a place (`announced.Announced.resolved`); or
why it cannot be taken in.
"""

Put: TypeAlias = Callable[[bytes, Relation | None, int, bytes, int], None]
"""See `announced.Announced.put`."""


class Subtransactions:
    """Where the first message of each subtransaction stands; 20 bytes for each, whatever their number."""

    def __init__(self) -> None:
        self._xids = array("I")
        self._frames = array("Q")
        self._announcements = array("Q")
        self._greatest: int | None = None
        self._again: set[int] = set()  # that came back after others: few, the outer ones

    def begins(self, xid: int, frames: int, announcements: int) -> None:
        """A message of `xid` comes behind so many frames and announcements; only its first one counts."""
        if self._greatest is not None and (xid - self._greatest) % (2 * _HALF) >= _HALF:
            # an outer one: it may have been here, ids are given in ascending order
            if xid in self._again or self._first(xid) is not None:
                self._again.add(xid)
                return
        elif xid == self._greatest:
            return
        else:
            self._greatest = xid
        self._xids.append(xid)
        self._frames.append(frames)
        self._announcements.append(announcements)

    def cut(self, xid: int) -> tuple[int, int] | None:
        """Forget `xid` and what began behind it; how many frames and announcements stand before. None: nothing did."""
        at = len(self._xids) - 1 if len(self._xids) and self._xids[-1] == xid else self._first(xid)
        if at is None:
            return None
        before = self._frames[at], self._announcements[at]
        del self._xids[at:], self._frames[at:], self._announcements[at:]
        self._again.discard(xid)
        return before

    def _first(self, xid: int) -> int | None:
        places: Any = np.flatnonzero(np.asarray(self._xids) == xid)
        return int(places[0]) if len(places) else None


@dataclass(slots=True)
class _Announcement:
    """A relation message before frame number `at`, as version 1 has it; `arrival`: when it came last."""

    at: int
    oid: bytes
    payload: bytes
    lsn: int
    arrival: int


class Streamed:
    """One transaction under way. `announced`: its tables, by OID as four bytes. `fault`: see `RawTransaction`."""

    def __init__(self, xid: int, frames: FrameStore) -> None:
        self.xid = xid
        self.frames = frames
        self.origin: str | None = None
        self.fault: DecodeError | None = None
        self.announced: dict[bytes, _Announcement] = {}
        self.told: list[tuple[int, bytes]] = []  # messages about altered tables, each before frame number so
        self._announcements: list[_Announcement] = []
        self._subtransactions = Subtransactions()
        self._top = xid.to_bytes(4, "big")
        self._last = self._top

    @classmethod
    def of(cls, xid: int, parked: Parked) -> Self:
        """One that was parked, for its end."""
        one = cls(xid, parked.frames)
        one.origin, one.fault = parked.origin, parked.fault
        one.told = [(0, content) for content in parked.told]
        for said in parked.announcements:
            one._announcements.append(_Announcement(said.at, said.payload[1:5], said.payload, said.lsn, 0))
        return one

    def parked(self) -> Parked:
        """What is to be kept of it until its end."""
        said = [Announcement(one.at, one.payload, one.lsn) for one in self._announcements]
        return Parked(self.frames, said, [content for _, content in self.told], self.origin, self.fault)

    def enter(self, xid: bytes) -> None:
        """The next message is of this subtransaction, or of the transaction itself."""
        if xid != self._last:
            self._last = xid
            if xid != self._top:
                number = int.from_bytes(xid, "big")
                self._subtransactions.begins(number, len(self.frames), len(self._announcements))

    def announce(self, payload: bytes, lsn: int, arrival: int) -> None:
        """A relation message of at least five bytes; one that comes again at its place only comes later."""
        oid = payload[1:5]
        known = self.announced.get(oid)
        if known is not None and known.payload == payload and known.at == len(self.frames):
            known.arrival = arrival
            return
        self.announced[oid] = _Announcement(len(self.frames), oid, payload, lsn, arrival)
        self._announcements.append(self.announced[oid])

    def tell(self, content: bytes) -> None:
        """A message about tables that it altered (`decode.told`)."""
        self.told.append((len(self.frames), content))

    def roll_back(self, subxid: int) -> None:
        """Forget what a subtransaction did."""
        self._last = self._top
        before = self._subtransactions.cut(subxid)
        if before is None:
            return
        frames, announcements = before
        self.frames.truncate(frames)
        self.told = [one for one in self.told if one[0] < frames]
        if announcements < len(self._announcements):
            del self._announcements[announcements:]
            self.announced = {one.oid: one for one in self._announcements}

    def marks(self, resolve: Resolve, put: Put, announced: Announced) -> list[Mark]:
        """The layouts of its frames, looked up now that it is committed; each is `put` for what comes behind. What a
        partition says of its root counts from there on.

        `resolve` of one that cannot be taken in gives why, which then is the transaction's fault.
        """
        marks: list[Mark] = []
        latest: dict[bytes, tuple[bytes, Relation | None]] = {}
        for one in self._announcements:
            payload, relation = latest.get(one.oid, (b"", None))
            if relation is not None and payload == one.payload:
                announced.repeated(one.oid, (self.xid, one.at))
            else:
                found = resolve(one.payload, one.lsn, (self.xid, one.at))
                relation = None if isinstance(found, DecodeError) else found
                self.fault = self.fault or (found if isinstance(found, DecodeError) else None)
                marks.append(Mark(one.at, one.oid, relation, (one.payload, one.lsn) if relation is None else None))
            put(one.oid, relation, one.arrival, one.payload, one.lsn)
            latest[one.oid] = one.payload, relation
            if (root := announced.root_of(one.oid)) is not None:
                marks.append(Mark(one.at, *root))
                latest[root[0]] = latest.get(root[0], (b"", None))[0], root[1]
        return [mark for mark in marks if mark.at < len(self.frames)]
