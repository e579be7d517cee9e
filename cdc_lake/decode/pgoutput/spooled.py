"""Transactions of pgoutput whose frames are in a store: in progress at the server, prepared, or too large for memory.

A large committed one is decoded a part at a time, each a transaction of some of the frames; marks say which layout
each change follows. What a rolled back subtransaction did is cut off from its first message on: whatever came behind
that is of it or of one inside it (PostgreSQL's own subscriber relies on the same, `stream_abort_internal` in
worker.c).

Other transactions come between the beginning and the end of one in progress. Announcements of tables are kept until
its COMMIT and only then looked up: before, nobody else sees in the catalog what the transaction itself made.

`PreparedStorage` is the port for prepared transactions. Once the slot is confirmed beyond a PREPARE, the server sends
only what became of the transaction: so what is stored survives everything that bronze survives.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Final, Protocol, Self, TypeAlias

import numpy as np

from cdc_lake.decode.pgoutput.messages import (
    LogicalMessage,
    OriginMessage,
    RelationMessage,
    TruncateMessage,
    TypeMessage,
)
from cdc_lake.decode.pgoutput.parser import ROW_CHANGES, TRUNCATE_HEAD, WITH_XID, Prepared, parse
from cdc_lake.decode.pgoutput.relations import RelationCache
from cdc_lake.decode.transaction import BufferedTransaction, FrameStore
from cdc_lake.errors import DecodeError, OutOfSequence, UnknownRelation
from cdc_lake.model.change import DDL_MESSAGES, OWN_MESSAGES, Boundaries
from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import Relation

_TRUNCATE: Final = ord("T")


@dataclass(frozen=True, slots=True)
class RelationMark:
    """From frame number `frame_index` on, changes of the table with this OID (four bytes) follow `relation`.

    None: its announcement could not be taken in; `wrong` has that message and its LSN, where it is to be kept.
    """

    frame_index: int
    oid: bytes
    relation: Relation | None
    wrong: tuple[bytes, int] | None = None


@dataclass(frozen=True, slots=True)
class SpooledTransaction:
    """A committed transaction in parts (implements `decode.transaction.ReceivedTransaction`). `fault`: as
    `BufferedTransaction` has it.

    `marks` ascend, all of them before the end of `frames`, which are sealed.
    """

    in_order: ClassVar = False
    """What is decoded before and behind it may be so at any time: a part has all that decoding it takes."""

    bounds: Boundaries
    frames: FrameStore
    marks: Sequence[RelationMark]
    fault: DecodeError | None = None

    @property
    def size(self) -> int:
        """Bytes of all frames, and of announcements that were wrong."""
        return self.frames.size + sum(len(mark.wrong[0]) for mark in self.marks if mark.wrong is not None)

    @property
    def count(self) -> int:
        """How many data messages it has, and announcements that were wrong."""
        return len(self.frames) + sum(mark.wrong is not None for mark in self.marks)

    def parts(self, fault: DecodeError | None = None) -> Iterator[BufferedTransaction]:
        """Its parts in order; with `fault`, to be kept as bytes. Can be asked for again.

        Raises LakeError, and UnknownRelation where there is no `fault`.
        """
        fault = fault or self.fault
        force: dict[bytes, Relation | None] = {}
        first, next_mark = 0, 0
        for frames, lsns in self.frames.parts():
            end, start = first + len(frames), next_mark
            while next_mark < len(self.marks) and self.marks[next_mark].frame_index < end:
                next_mark += 1
            marks = [(mark.frame_index - first, mark) for mark in self.marks[start:next_mark]]
            current = [self._part(frames, lsns, marks, force, fault)]
            first = end
            del frames
            yield current.pop()  # nothing here keeps it in memory

    def to_raw_transaction(self) -> BufferedTransaction:
        """It as one raw transaction, where it is not large. Raises LakeError, UnknownRelation."""
        parts = list(self.parts()) or [self._part([], [], [], {}, self.fault)]
        assert len(parts) == 1, "frames in memory are one part"
        return replace(parts[0], part=False)

    def cut_otherwise(self, error: DecodeError) -> bool:  # noqa: ARG002 - as other formats have it
        """Whether its parts begin elsewhere now: no error comes of where they begin."""
        return False

    def release(self) -> None:
        """It is landed: its frames are not needed any more."""
        self.frames.close()

    def _part(
        self,
        frames: list[bytes],
        lsns: list[int],
        marks: Sequence[tuple[int, RelationMark]],
        force: dict[bytes, Relation | None],
        fault: DecodeError | None,
    ) -> BufferedTransaction:
        """A part whose marks are at these of its frames. `force`: layouts in force at its start, then at its end."""
        size = sum(map(len, frames)) + sum(len(mark.wrong[0]) for _, mark in marks if mark.wrong is not None)
        raw = BufferedTransaction(self.bounds, [], [], [], {}, size, fault, part=True)
        starts = sorted({0, len(frames), *(index for index, _ in marks)})
        waiting = iter([*marks, (len(frames), None)])
        index, mark = next(waiting)
        for start, end in pairwise(starts):
            while mark is not None and index == start:
                force[mark.oid] = mark.relation
                if mark.wrong is not None:
                    _append(raw, *mark.wrong)
                index, mark = next(waiting)
            first = start
            while first < end:
                stop = next((nth for nth in range(first, end) if frames[nth][0] == _TRUNCATE), end)
                raw.frames.extend(frames[first:stop])
                raw.lsns.extend(lsns[first:stop])
                raw.layouts.extend([force.get(f[1:5]) if f[0] in ROW_CHANGES else None for f in frames[first:stop]])
                if stop < end:
                    _truncate(raw, frames[stop], lsns[stop], _truncated_tables(frames[stop], force, fault))
                first = stop + 1
        return raw


def _truncate(raw: BufferedTransaction, payload: bytes, lsn: int, tables: tuple[Relation, ...] | None) -> None:
    """Add a truncate, so far as it is one of its `tables`; None: they are not all known."""
    if tables is not None:
        payload, tables = of_its_own(payload, tables)
        if not tables:
            return
        raw.truncated[len(raw.frames)] = tables
    _append(raw, payload, lsn)
    raw.layouts[-1] = None if tables is None else tables[0]


def of_its_own(payload: bytes, tables: Sequence[Relation]) -> tuple[bytes, tuple[Relation, ...]]:
    """A truncate without the partitions that are taken for their root, and the tables that are left: it is none of the
    root's, as the server does not send which rows go with a partition.
    """
    oids = [payload[offset : offset + 4] for offset in range(TRUNCATE_HEAD, len(payload), 4)]
    own = [nth for nth, table in enumerate(tables) if table.oid in (None, int.from_bytes(oids[nth], "big"))]
    if len(own) < len(tables):
        head = payload[:1] + len(own).to_bytes(4, "big") + payload[5:TRUNCATE_HEAD]
        payload = head + b"".join(oids[nth] for nth in own)
    return payload, tuple(tables[nth] for nth in own)


def _append(raw: BufferedTransaction, payload: bytes, lsn: int) -> None:
    raw.frames.append(payload)
    raw.lsns.append(lsn)
    raw.layouts.append(None)


def _truncated_tables(
    frame: bytes, force: Mapping[bytes, Relation | None], fault: DecodeError | None
) -> tuple[Relation, ...] | None:
    """The tables of a truncate; None where they are not all known and the transaction is kept as bytes."""
    try:
        message = parse(frame)
        assert isinstance(message, TruncateMessage)
        tables = []
        for nth, oid in enumerate(message.oids):
            if (relation := force.get(oid.to_bytes(4, "big"))) is None:
                raise UnknownRelation(
                    f"a truncate of table OID {oid}, which was not announced", offset=TRUNCATE_HEAD + 4 * nth
                )
            tables.append(relation)
    except DecodeError:
        if fault is None:
            raise
        return None
    return tuple(tables)


class SpillingTransaction:
    """An open transaction that outgrew memory: its frames so far, and marks of the layouts that they followed."""

    def __init__(self, frames: FrameStore) -> None:
        self.frames = frames
        self.marks: list[RelationMark] = []
        self._force: dict[bytes, Relation | None] = {}

    def extend(
        self,
        frames: Sequence[bytes],
        lsns: Sequence[int],
        layouts: Sequence[Relation | None],
        truncated: Mapping[int, tuple[Relation, ...]],
    ) -> None:
        """Add frames as `BufferedTransaction` has them; `truncated` by their number from the transaction's start.

        Raises LakeError.
        """
        append, force = self.frames.append, self._force
        for frame, lsn, layout in zip(frames, lsns, layouts, strict=True):
            if frame[0] in ROW_CHANGES:
                oid = frame[1:5]
                if oid not in force or force[oid] is not layout:
                    self._mark(oid, layout)
            elif tables := truncated.get(len(self.frames)):
                for nth, table in enumerate(tables):
                    oid = frame[TRUNCATE_HEAD + 4 * nth : TRUNCATE_HEAD + 4 * nth + 4]
                    if force.get(oid) is not table:
                        self._mark(oid, table)
            append(frame, lsn)

    def _mark(self, oid: bytes, layout: Relation | None) -> None:
        self._force[oid] = layout
        self.marks.append(RelationMark(len(self.frames), oid, layout))


@dataclass(frozen=True, slots=True)
class Announcement:
    """A relation message as version 1 has it, with its LSN: changes from frame number `frame_index` on follow it."""

    frame_index: int
    payload: bytes
    lsn: int


@dataclass(frozen=True, slots=True)
class PreparedContent:
    """What came of a prepared transaction. `frames` are as `BufferedTransaction` has them; so is `fault`.

    `ddl_messages`: what its messages say about tables that it altered (`decode.pgoutput.relations`). Every table that
    messages change is announced here, whatever the connection knew of it.

    Lines (test_decoding) announce nothing: `tables` are those that they change, `encoding` is what they are in.
    """

    frames: FrameStore
    announcements: Sequence[Announcement]
    ddl_messages: Sequence[bytes] = ()
    origin: str | None = None
    fault: DecodeError | None = None
    tables: Sequence[str] = ()
    encoding: str | None = None


class PreparedStorage(Protocol):
    """Keeps prepared transactions of one stream. Used by one thread. Raises LakeError."""

    def park(self, prepared: Prepared, content: PreparedContent) -> None:
        """Keep one, durably when this returns; one that is kept already is not kept twice."""

    def commit_prepared(self, xid: int, gid: str, end_lsn: int) -> PreparedContent | None:
        """It committed by a record that ends at `end_lsn`: what was stored, None where nothing was."""

    def has_changes(self, xid: int, end_lsn: int) -> bool:
        """Whether one of which nothing is stored changed anything, by what the server says. Raises SourceError."""

    def rolled_back(self, xid: int, gid: str, end_lsn: int) -> None:
        """It was rolled back by such a record; nothing happens where nothing was stored."""


_HALF: Final = 1 << 31

Resolve: TypeAlias = Callable[[bytes, int, tuple[int, int]], Relation | DecodeError]
"""The layout that a relation message with its LSN announces at a place of the stream, or why it cannot be read
(`RelationCache.resolve_relation`).
"""

Put: TypeAlias = Callable[[bytes, Relation | None, int, bytes, int], None]
"""Notes the layout of a table (`decode.pgoutput.relations.RelationCache.put`)."""


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
        index = len(self._xids) - 1 if len(self._xids) and self._xids[-1] == xid else self._first(xid)
        if index is None:
            return None
        before = self._frames[index], self._announcements[index]
        del self._xids[index:], self._frames[index:], self._announcements[index:]
        self._again.discard(xid)
        return before

    def _first(self, xid: int) -> int | None:
        places: Any = np.flatnonzero(np.asarray(self._xids) == xid)
        return int(places[0]) if len(places) else None


@dataclass(slots=True)
class _Announcement:
    """A relation message before frame number `frame_index`, as version 1 has it; `arrival`: when it came last."""

    frame_index: int
    oid: bytes
    payload: bytes
    lsn: int
    arrival: int


class StreamedTransaction:
    """One transaction under way. `announced`: its tables, by OID as four bytes. `fault`: see `BufferedTransaction`."""

    def __init__(self, xid: int, frames: FrameStore) -> None:
        self.xid = xid
        self.frames = frames
        self.origin: str | None = None
        self.fault: DecodeError | None = None
        self.announced: dict[bytes, _Announcement] = {}
        self.ddl_messages: list[tuple[int, bytes]] = []  # messages about altered tables, each before frame number so
        self._announcements: list[_Announcement] = []
        self._subtransactions = Subtransactions()
        self._top = xid.to_bytes(4, "big")
        self._last = self._top

    @classmethod
    def from_prepared(cls, xid: int, content: PreparedContent) -> Self:
        """One that was stored, for its end."""
        transaction = cls(xid, content.frames)
        transaction.origin, transaction.fault = content.origin, content.fault
        transaction.ddl_messages = [(0, message) for message in content.ddl_messages]
        for announcement in content.announcements:
            transaction._announcements.append(
                _Announcement(
                    announcement.frame_index, announcement.payload[1:5], announcement.payload, announcement.lsn, 0
                )
            )
        return transaction

    def to_prepared(self) -> PreparedContent:
        """What is to be kept of it until its end."""
        announcements = [
            Announcement(announcement.frame_index, announcement.payload, announcement.lsn)
            for announcement in self._announcements
        ]
        return PreparedContent(
            self.frames, announcements, [content for _, content in self.ddl_messages], self.origin, self.fault
        )

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
        previous = self.announced.get(oid)
        if previous is not None and previous.payload == payload and previous.frame_index == len(self.frames):
            previous.arrival = arrival
            return
        self.announced[oid] = _Announcement(len(self.frames), oid, payload, lsn, arrival)
        self._announcements.append(self.announced[oid])

    def add_ddl_message(self, content: bytes) -> None:
        """A message about tables that it altered (`decode.pgoutput.relations`)."""
        self.ddl_messages.append((len(self.frames), content))

    def roll_back(self, subxid: int) -> None:
        """Forget what a subtransaction did."""
        self._last = self._top
        before = self._subtransactions.cut(subxid)
        if before is None:
            return
        frames, announcements = before
        self.frames.truncate(frames)
        self.ddl_messages = [item for item in self.ddl_messages if item[0] < frames]
        if announcements < len(self._announcements):
            del self._announcements[announcements:]
            self.announced = {item.oid: item for item in self._announcements}

    def marks(self, resolve: Resolve, put: Put, announced: RelationCache) -> list[RelationMark]:
        """The layouts of its frames, looked up now that it is committed; each is `put` for what comes behind. What a
        partition says of its root counts from there on.

        `resolve` of one that cannot be taken in gives why, which then is the transaction's fault.
        """
        marks: list[RelationMark] = []
        latest: dict[bytes, tuple[bytes, Relation | None]] = {}
        for announcement in self._announcements:
            payload, relation = latest.get(announcement.oid, (b"", None))
            if relation is not None and payload == announcement.payload:
                announced.note_repeat(announcement.oid, (self.xid, announcement.frame_index))
            else:
                resolved = resolve(announcement.payload, announcement.lsn, (self.xid, announcement.frame_index))
                relation = None if isinstance(resolved, DecodeError) else resolved
                self.fault = self.fault or (resolved if isinstance(resolved, DecodeError) else None)
                marks.append(
                    RelationMark(
                        announcement.frame_index,
                        announcement.oid,
                        relation,
                        (announcement.payload, announcement.lsn) if relation is None else None,
                    )
                )
            put(announcement.oid, relation, announcement.arrival, announcement.payload, announcement.lsn)
            latest[announcement.oid] = announcement.payload, relation
            if (root := announced.root_of(announcement.oid)) is not None:
                marks.append(RelationMark(announcement.frame_index, *root))
                latest[root[0]] = latest.get(root[0], (b"", None))[0], root[1]
        return [mark for mark in marks if mark.frame_index < len(self.frames)]


_RELATION_HEAD: Final = 5  # bytes: letter and OID


class InProgressTransactions:
    """Takes messages, as version 1 has them, of transactions that are not committed.

    With `keeps`, what cannot be taken in is kept, and its transaction has a fault (`decode.pgoutput.assembler`).
    """

    def __init__(self, announced: RelationCache, *, keeps: bool) -> None:
        self.announced = announced
        self.outside_messages = 0
        self._keeps = keeps

    def take(self, transaction: StreamedTransaction, bare: bytes, lsn: int, *, left_out: int = 0) -> None:
        """A message other than a change of a table that `transaction` announced. Raises DecodeError.

        `left_out`: bytes behind its letter that are not in `bare`, for what an error says of its place.
        """
        letter = bare[:1]
        if letter == b"R":
            if len(bare) < _RELATION_HEAD:
                parse(bare)  # says that it ends early
            transaction.announce(bare, lsn, self.announced.next_arrival())
        elif letter and letter[0] in ROW_CHANGES:
            raise _unknown("change", int.from_bytes(bare[1:5], "big"), 1 + left_out)
        else:
            self._take_other(transaction, bare, lsn, left_out)

    def take_origin(self, transaction: StreamedTransaction, payload: bytes) -> None:
        """Where it came from. Raises DecodeError."""
        origin = parse(payload)
        assert isinstance(origin, OriginMessage)
        transaction.origin = origin.name

    def _take_other(self, transaction: StreamedTransaction, bare: bytes, lsn: int, left_out: int) -> None:
        try:
            match parse(bare):
                case TypeMessage() as named:
                    self.announced.type(named)
                    return
                case LogicalMessage(transactional=transactional, prefix=prefix, content=content):
                    if not transactional or prefix == OWN_MESSAGES:
                        self.outside_messages += not transactional
                        return
                    if prefix == DDL_MESSAGES:
                        transaction.add_ddl_message(content)
                case TruncateMessage(oids=oids):
                    for index, oid in enumerate(oids):
                        if oid.to_bytes(4, "big") not in transaction.announced:
                            raise _unknown("truncate", oid, TRUNCATE_HEAD + left_out + 4 * index)
        except DecodeError as error:
            if not self._keeps or isinstance(error, UnknownRelation):
                raise  # a table that was not announced is announced by a new connection
            error.where = error.where or f"the message at {Lsn(lsn)}"
            transaction.fault = transaction.fault or error
        transaction.frames.append(bare, lsn)

    def commit_transaction(
        self, transaction: StreamedTransaction, bounds: Boundaries, put: Put, part: int
    ) -> BufferedTransaction | SpooledTransaction:
        """It committed: what its messages tell counts now, and its layouts are looked up; each is `put`. `part`: see
        `decode.transaction.FrameStoreFactory`. Raises DecodeError, LakeError, and what the catalog raises.
        """
        for _, content in transaction.ddl_messages:
            self.announced.take_told(content)
        marks = transaction.marks(
            partial(self._resolve_relation, transaction.xid, bounds.position), put, self.announced
        )
        transaction.frames.seal()
        return _given_back(SpooledTransaction(bounds, transaction.frames, marks, transaction.fault), part)

    def _resolve_relation(
        self, xid: int, position: int, payload: bytes, lsn: int, place: tuple[int, int]
    ) -> Relation | DecodeError:
        """The layout that a relation message announces; with `keeps`, why it cannot be taken in."""
        try:
            message = parse(payload)
            assert isinstance(message, RelationMessage)
            return self.announced.resolve_relation(message, xid, place, position)
        except DecodeError as error:
            error.where = error.where or f"the message at {Lsn(lsn)}"
            if not self._keeps:
                raise
            return error


def check_inside(letter: bytes, where: str) -> None:
    """Raise OutOfSequence for a message that does not belong into a transaction."""
    if not letter or letter[0] not in WITH_XID:
        raise OutOfSequence(f"a message `{letter.decode(errors='replace')}` inside {where}", offset=0)


def _given_back(large: SpooledTransaction, part: int) -> BufferedTransaction | SpooledTransaction:
    """A committed transaction as it goes on: whole, where less than `part` bytes are a part, or memory holds it."""
    if large.frames.is_spilled and large.frames.size >= part:
        return large
    raw = large.to_raw_transaction()
    large.release()
    return raw


def _unknown(what: str, oid: int, offset: int) -> UnknownRelation:
    return UnknownRelation(f"a {what} of table OID {oid}, which was not announced", offset=offset)
