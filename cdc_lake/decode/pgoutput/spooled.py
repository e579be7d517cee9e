"""Transactions of pgoutput whose frames are in a store: in progress, prepared, or too large for memory.

A large committed one is decoded in parts, each a transaction with some of the frames; marks define the layout of each
change. A rolled-back subtransaction is cut off from its first message on: everything after it belongs to it or to a
nested one (PostgreSQL's own subscriber relies on the same, `stream_abort_internal` in worker.c).

Other transactions come between the beginning and the end of one in progress. Announcements of tables are kept until its
COMMIT and only then looked up: before that, the catalog does not show what the transaction created.

`PreparedStorage` is the port for prepared transactions. Once the slot is confirmed beyond a PREPARE, the server sends
only the end of the transaction, so stored transactions must be as durable as bronze.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Final, Protocol, Self, TypeAlias

import numpy as np

from cdc_lake.decode.pgoutput import messages
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
    """From frame number `frame_index` on, changes of the table with this OID (four bytes) have the layout `relation`.

    None: its announcement could not be processed; `wrong`: that message and its LSN, if it is to be stored.
    """

    frame_index: int
    oid: bytes
    relation: Relation | None
    wrong: tuple[bytes, int] | None = None


@dataclass(frozen=True, slots=True)
class SpooledTransaction:
    """A committed transaction in parts (implements `decode.transaction.ReceivedTransaction`). `fault`: see
    `BufferedTransaction`.

    `marks` ascend, all of them before the end of `frames`, which are sealed.
    """

    in_order: ClassVar = False
    """Parts are self-contained, so transactions before and after it may be decoded at any time."""

    bounds: Boundaries
    frames: FrameStore
    marks: Sequence[RelationMark]
    fault: DecodeError | None = None

    @property
    def size(self) -> int:
        """Bytes of all frames, and of invalid announcements."""
        return self.frames.size + sum(len(mark.wrong[0]) for mark in self.marks if mark.wrong is not None)

    @property
    def count(self) -> int:
        """Number of data messages, and of invalid announcements."""
        return len(self.frames) + sum(mark.wrong is not None for mark in self.marks)

    def parts(self, fault: DecodeError | None = None) -> Iterator[BufferedTransaction]:
        """Its parts in order; with `fault`, to be stored as bytes. Repeatable.

        Raises LakeError, and UnknownRelation without `fault`.
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
            yield current.pop()  # no reference keeps it in memory

    def to_raw_transaction(self) -> BufferedTransaction:
        """The transaction as one raw transaction, if it is not large. Raises LakeError, UnknownRelation."""
        parts = list(self.parts()) or [self._part([], [], [], {}, self.fault)]
        assert len(parts) == 1, "frames in memory are one part"
        return replace(parts[0], part=False)

    def cut_otherwise(self, error: DecodeError) -> bool:  # noqa: ARG002 - as other formats have it
        """Whether its parts begin elsewhere now: no error is caused by where they begin."""
        return False

    def release(self) -> None:
        """Free its frames."""
        self.frames.close()

    def _part(
        self,
        frames: list[bytes],
        lsns: list[int],
        marks: Sequence[tuple[int, RelationMark]],
        force: dict[bytes, Relation | None],
        fault: DecodeError | None,
    ) -> BufferedTransaction:
        """A part with the marks of its frames. `force`: layouts at its start, then at its end."""
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
    """Add a truncate of its `tables`; None: they are not all known."""
    if tables is not None:
        payload, tables = of_its_own(payload, tables)
        if not tables:
            return
        raw.truncated[len(raw.frames)] = tables
    _append(raw, payload, lsn)
    raw.layouts[-1] = None if tables is None else tables[0]


def of_its_own(payload: bytes, tables: Sequence[Relation]) -> tuple[bytes, tuple[Relation, ...]]:
    """A truncate without partitions that are attributed to their root, and its remaining tables. It does not truncate
    the root: the server does not send which rows a partition had.
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
    """The tables of a truncate; None if they are not all known and the transaction is stored as bytes."""
    try:
        message = parse(frame)
        assert isinstance(message, messages.TruncateMessage)
        tables = []
        for nth, oid in enumerate(message.oids):
            if (relation := force.get(oid.to_bytes(4, "big"))) is None:
                raise _unknown("truncate", oid, TRUNCATE_HEAD + 4 * nth)
            tables.append(relation)
    except DecodeError:
        if fault is None:
            raise
        return None
    return tuple(tables)


class SpillingTransaction:
    """An open transaction that outgrew memory: its frames so far, and marks of their layouts."""

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
        """Add frames as in `BufferedTransaction`; `truncated` by their number from the transaction's start.

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


@dataclass(slots=True)
class Announcement:
    """A relation message in the form of version 1, with its LSN, valid from frame number `frame_index` on; `arrival`:
    its last one on this connection.
    """

    frame_index: int
    payload: bytes
    lsn: int
    arrival: int = field(default=0, compare=False)

    @property
    def oid(self) -> bytes:
        """The table's OID as four bytes."""
        return self.payload[1:5]


@dataclass(frozen=True, slots=True)
class PreparedContent:
    """The content of a prepared transaction. `frames` and `fault`: see `BufferedTransaction`.

    `ddl_messages`: its messages about tables that it altered (`decode.pgoutput.relations`). Every changed table is
    announced here, whatever the connection knew of it.

    Lines (test_decoding) have no announcements: `tables` are those that they change, `encoding` is theirs.
    """

    frames: FrameStore
    announcements: Sequence[Announcement]
    ddl_messages: Sequence[bytes] = ()
    origin: str | None = None
    fault: DecodeError | None = None
    tables: Sequence[str] = ()
    encoding: str | None = None


class PreparedStorage(Protocol):
    """Stores prepared transactions of one stream. Used by one thread. Raises LakeError."""

    def park(self, prepared: Prepared, content: PreparedContent) -> None:
        """Store one durably; one that is stored already is not stored twice."""

    def commit_prepared(self, xid: int, gid: str, end_lsn: int) -> PreparedContent | None:
        """Record a COMMIT PREPARED whose record ends at `end_lsn`; returns the stored content, None without one."""

    def has_changes(self, xid: int, end_lsn: int) -> bool:
        """Whether a transaction that is not stored changed anything, according to the server. Raises SourceError."""

    def rolled_back(self, xid: int, gid: str, end_lsn: int) -> None:
        """Record such a ROLLBACK PREPARED; does nothing if the transaction is not stored."""


_HALF: Final = 1 << 31

Resolve: TypeAlias = Callable[[bytes, int, tuple[int, int]], Relation | DecodeError]
"""The layout that a relation message with its LSN announces at a place of the stream, or its error
(`RelationCache.resolve_relation`).
"""

Put: TypeAlias = Callable[[bytes, Relation | None, int, bytes, int], None]
"""Records the layout of a table (`decode.pgoutput.relations.RelationCache.put`)."""


class Subtransactions:
    """The positions of each subtransaction's first message; 20 bytes for each, whatever their number."""

    def __init__(self) -> None:
        self._xids = array("I")
        self._frames = array("Q")
        self._announcements = array("Q")
        self._greatest: int | None = None
        self._again: set[int] = set()  # those that returned after others: few, the outer ones

    def begins(self, xid: int, frames: int, announcements: int) -> None:
        """Record a message of `xid` after so many frames and announcements; only its first one counts."""
        if self._greatest is not None and (xid - self._greatest) % (2 * _HALF) >= _HALF:
            # an outer one: it may have been recorded, because ids ascend
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
        """Forget `xid` and what began after it; returns the frames and announcements before. None: nothing began."""
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


class StreamedTransaction:
    """One transaction in progress. `announced`: its tables, by OID as four bytes. `fault`: see
    `BufferedTransaction`.
    """

    def __init__(self, xid: int, frames: FrameStore) -> None:
        self.xid = xid
        self.frames = frames
        self.origin: str | None = None
        self.fault: DecodeError | None = None
        self.announced: dict[bytes, Announcement] = {}
        self.ddl_messages: list[tuple[int, bytes]] = []  # messages about altered tables, each before frame number so
        self._announcements: list[Announcement] = []
        self._subtransactions = Subtransactions()
        self._top = xid.to_bytes(4, "big")
        self._last = self._top

    @classmethod
    def from_prepared(cls, xid: int, content: PreparedContent) -> Self:
        """A stored one, at its end."""
        transaction = cls(xid, content.frames)
        transaction.origin, transaction.fault = content.origin, content.fault
        transaction.ddl_messages = [(0, message) for message in content.ddl_messages]
        transaction._announcements = list(content.announcements)
        return transaction

    def to_prepared(self) -> PreparedContent:
        """What to store until its end."""
        ddl_messages = [content for _, content in self.ddl_messages]
        return PreparedContent(self.frames, self._announcements, ddl_messages, self.origin, self.fault)

    def enter(self, xid: bytes) -> None:
        """Start a message of this subtransaction, or of the transaction itself."""
        if xid != self._last:
            self._last = xid
            if xid != self._top:
                number = int.from_bytes(xid, "big")
                self._subtransactions.begins(number, len(self.frames), len(self._announcements))

    def announce(self, payload: bytes, lsn: int, arrival: int) -> None:
        """Record a relation message of at least five bytes; a repeated one only arrives later."""
        oid = payload[1:5]
        previous = self.announced.get(oid)
        if previous is not None and previous.payload == payload and previous.frame_index == len(self.frames):
            previous.arrival = arrival
            return
        self.announced[oid] = Announcement(len(self.frames), payload, lsn, arrival)
        self._announcements.append(self.announced[oid])

    def roll_back(self, subxid: int) -> None:
        """Drop what a subtransaction did."""
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
        """Look up the layouts of its frames, now that it is committed; each is `put` for later transactions. From there
        on the root has what a partition announces.

        If `resolve` fails for one, the returned error becomes the transaction's fault.
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
                wrong = (announcement.payload, announcement.lsn) if relation is None else None
                marks.append(RelationMark(announcement.frame_index, announcement.oid, relation, wrong))
            put(announcement.oid, relation, announcement.arrival, announcement.payload, announcement.lsn)
            latest[announcement.oid] = announcement.payload, relation
            if (root := announced.root_of(announcement.oid)) is not None:
                marks.append(RelationMark(announcement.frame_index, *root))
                latest[root[0]] = latest.get(root[0], (b"", None))[0], root[1]
        return [mark for mark in marks if mark.frame_index < len(self.frames)]


class InProgressTransactions:
    """Takes messages, in the form of version 1, of transactions in progress.

    With `keeps`, messages that cannot be processed are kept, and their transaction has a fault
    (`decode.pgoutput.assembler`).
    """

    def __init__(self, announced: RelationCache, *, keeps: bool) -> None:
        self.announced = announced
        self.outside_messages = 0
        self._keeps = keeps

    def take(self, transaction: StreamedTransaction, bare: bytes, lsn: int, *, left_out: int = 0) -> None:
        """Take a message other than a change of a table that `transaction` announced. Raises DecodeError.

        `left_out`: number of bytes after its letter that are not in `bare`, for the offset in an error.
        """
        letter = bare[:1]
        if letter == b"R":
            if len(bare) < 5:  # letter and OID
                parse(bare)  # reports that it ends early
            transaction.announce(bare, lsn, self.announced.next_arrival())
        elif letter and letter[0] in ROW_CHANGES:
            raise _unknown("change", int.from_bytes(bare[1:5], "big"), 1 + left_out)
        else:
            self._take_other(transaction, bare, lsn, left_out)

    def take_origin(self, transaction: StreamedTransaction, payload: bytes) -> None:
        """Record its origin. Raises DecodeError."""
        origin = parse(payload)
        assert isinstance(origin, messages.OriginMessage)
        transaction.origin = origin.name

    def _take_other(self, transaction: StreamedTransaction, bare: bytes, lsn: int, left_out: int) -> None:
        try:
            match parse(bare):
                case messages.TypeMessage() as named:
                    self.announced.type(named)
                    return
                case messages.LogicalMessage(transactional=transactional, prefix=prefix, content=content):
                    if not transactional or prefix == OWN_MESSAGES:
                        self.outside_messages += not transactional
                        return
                    if prefix == DDL_MESSAGES:
                        transaction.ddl_messages.append((len(transaction.frames), content))
                case messages.TruncateMessage(oids=oids):
                    for index, oid in enumerate(oids):
                        if oid.to_bytes(4, "big") not in transaction.announced:
                            raise _unknown("truncate", oid, TRUNCATE_HEAD + left_out + 4 * index)
        except DecodeError as error:
            if not self._keeps or isinstance(error, UnknownRelation):
                raise  # a new connection announces the table
            error.where = error.where or f"the message at {Lsn(lsn)}"
            transaction.fault = transaction.fault or error
        transaction.frames.append(bare, lsn)

    def commit_transaction(
        self, transaction: StreamedTransaction, bounds: Boundaries, put: Put, part: int
    ) -> BufferedTransaction | SpooledTransaction:
        """Commit it: its messages count now, and its layouts are looked up and `put`. Only one on disk of at least
        `part` bytes is returned in parts. Raises DecodeError, LakeError, and errors of the catalog.
        """
        for _, content in transaction.ddl_messages:
            self.announced.take_told(content)
        resolve = partial(self._resolve_relation, transaction.xid, bounds.position)
        marks = transaction.marks(resolve, put, self.announced)
        transaction.frames.seal()
        large = SpooledTransaction(bounds, transaction.frames, marks, transaction.fault)
        if large.frames.is_spilled and large.frames.size >= part:
            return large
        raw = large.to_raw_transaction()
        large.release()
        return raw

    def _resolve_relation(
        self, xid: int, position: int, payload: bytes, lsn: int, place: tuple[int, int]
    ) -> Relation | DecodeError:
        """The layout that a relation message announces; with `keeps`, or its error."""
        try:
            message = parse(payload)
            assert isinstance(message, messages.RelationMessage)
            return self.announced.resolve_relation(message, xid, place, position)
        except DecodeError as error:
            error.where = error.where or f"the message at {Lsn(lsn)}"
            if not self._keeps:
                raise
            return error


def check_inside(letter: bytes, where: str) -> None:
    """Raise OutOfSequence for a message that does not belong in a transaction."""
    if not letter or letter[0] not in WITH_XID:
        raise OutOfSequence(f"a message `{letter.decode(errors='replace')}` inside {where}", offset=0)


def _unknown(what: str, oid: int, offset: int) -> UnknownRelation:
    return UnknownRelation(f"a {what} of table OID {oid}, which was not announced", offset=offset)
