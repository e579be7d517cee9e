r"""Prepared transactions of pgoutput, stored from their PREPARE to their COMMIT PREPARED or ROLLBACK PREPARED.

A prepared transaction counts where it is committed, at the position of its COMMIT PREPARED. An announcement in it also
applies to later whole transactions, as on the server, but is looked up only when one of them needs it: before the
commit, the catalog does not show what the prepared transaction created.

The stored form can be read by another process, on another machine::

    CDC_LAKE PREPARED 1\n   header: size, CRC, JSON   part: count, size, CRC, sizes, LSNs, frames   part …

The header contains the PREPARE's data, the announcements and the number of frames, so that truncation is noticed.
Numbers are little-endian. Pure.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias, assert_never

import numpy as np

from cdc_lake.decode.pgoutput import parser
from cdc_lake.decode.pgoutput.spooled import (
    Announcement,
    InProgressTransactions,
    PreparedContent,
    PreparedStorage,
    SpooledTransaction,
    StreamedTransaction,
    check_inside,
)
from cdc_lake.decode.transaction import BufferedTransaction, FrameStoreFactory, Part
from cdc_lake.errors import DecodeError, MalformedMessage, OutOfSequence, PreparedDamaged, PreparedUnknown
from cdc_lake.errors.base import kinds

Done: TypeAlias = tuple[BufferedTransaction | SpooledTransaction, ...]


class TwoPhaseAssembler:
    """Takes the messages of prepared transactions. `open`: the one without its PREPARE so far.

    `landed`: everything committed up to there is in bronze, and need not be stored any more.
    """

    def __init__(
        self,
        under_way: InProgressTransactions,
        frames: FrameStoreFactory,
        prepared_storage: PreparedStorage,
        landed: int,
    ) -> None:
        self._under_way = under_way
        self._announced = under_way.announced
        self._frames = frames
        self._prepared_storage = prepared_storage
        self._landed = landed
        self._prepared: parser.Prepared | None = None
        self.open: StreamedTransaction | None = None

    def forget(self) -> None:
        """Forget everything: the next connection starts over."""
        if self.open is not None:
            self.open.frames.close()
        self.open = None

    def takes(self, payload: bytes) -> bool:
        """Whether a non-empty message outside of blocks is for `feed`."""
        return self.open is not None or payload[0] in parser.PREPARED_LETTERS

    def feed(self, payload: bytes, lsn: int, streamed: dict[int, StreamedTransaction]) -> Done:
        """Take one message; returns what it completes. A streamed transaction that is prepared is removed from
        `streamed`. Raises DecodeError, LakeError, and errors of the catalog.
        """
        match parser.prepared_message(payload):
            case None:
                self._take(payload, lsn)
            case parser.BeginPrepare(prepared=prepared):
                self._require_none_open("a Begin Prepare")
                self._prepared, self.open = prepared, StreamedTransaction(prepared.xid, self._frames())
            case parser.Prepare(prepared=prepared, streamed=True):
                self._require_none_open("a Stream Prepare")
                if (transaction := streamed.pop(prepared.xid, None)) is None:
                    text = f"a PREPARE of the streamed transaction {prepared.xid}, of which nothing was received"
                    raise OutOfSequence(text, offset=1)
                self._park(prepared, transaction)
            case parser.Prepare(prepared=prepared):
                transaction, self.open = self.open, None
                if transaction is None:  # PostgreSQL 18 sends no beginning of one that only locked rows
                    transaction = StreamedTransaction(prepared.xid, self._frames())
                elif prepared != self._prepared:
                    raise MalformedMessage("a PREPARE of another transaction than the announced one", offset=2)
                self._park(prepared, transaction)
            case parser.CommitPrepared() as commit:
                self._require_none_open("a COMMIT PREPARED")
                return self._commit_prepared(commit)
            case parser.RollbackPrepared() as rollback:
                self._require_none_open("a ROLLBACK PREPARED")
                self._prepared_storage.rolled_back(rollback.xid, rollback.gid, rollback.end_lsn)
            case _ as never:
                assert_never(never)
        return ()

    def _require_none_open(self, what: str) -> None:
        if self.open is not None:
            raise OutOfSequence(f"{what} inside a transaction that is prepared", offset=0)

    # ── up to its PREPARE ──

    def _take(self, payload: bytes, lsn: int) -> None:
        transaction, letter = self.open, payload[:1]
        assert transaction is not None, "only what stands in one comes here without being a message of two-phase"
        if letter == b"O":
            self._under_way.take_origin(transaction, payload)
            return
        check_inside(letter, "a transaction that is prepared")
        if letter[0] in parser.ROW_CHANGES:
            oid = payload[1:5]
            self._introduce(transaction, oid)
            if oid in transaction.announced:
                transaction.frames.append(payload, lsn)
                return
        elif letter == b"T":
            for offset in range(parser.TRUNCATE_HEAD, len(payload), 4):
                self._introduce(transaction, payload[offset : offset + 4])
        self._under_way.take(transaction, payload, lsn)
        if letter == b"R":
            self._announced.defer(payload, lsn, (transaction.xid, len(transaction.frames)))

    def _introduce(self, transaction: StreamedTransaction, oid: bytes) -> None:
        """Add a table announced before it, with its partitions: readers of the stored form need them."""
        if oid in transaction.announced:
            return
        for table_oid in (oid, *self._announced.partitions_of(oid)):
            if (came := self._announced.came.get(table_oid)) is not None:
                transaction.announce(*came, arrival=0)

    def _park(self, prepared: parser.Prepared, transaction: StreamedTransaction) -> None:
        self._prepared_storage.park(prepared, transaction.to_prepared())
        transaction.frames.close()

    # ── its end ──

    def _commit_prepared(self, commit: parser.CommitPrepared) -> Done:
        content = self._prepared_storage.commit_prepared(commit.xid, commit.gid, commit.end_lsn)
        if content is None:
            if commit.end_lsn <= self._landed:
                return ()
            if self._prepared_storage.has_changes(commit.xid, commit.end_lsn):
                which = f"COMMIT PREPARED of `{commit.gid}` (xid {commit.xid})"
                raise PreparedUnknown(f"{which}, whose PREPARE was neither received nor stored", offset=0)
            # up to version 17 a server sends no PREPARE if it only locked rows
            content = PreparedContent(self._frames(), ())
        bounds = parser.bounds_of(commit, commit.xid, content.origin)
        transaction = StreamedTransaction.from_prepared(commit.xid, content)
        # for others its layouts apply from the PREPARE on
        return (self._under_way.commit_transaction(transaction, bounds, lambda *_: None, self._frames.part),)


MAGIC: Final = b"CDC_LAKE PREPARED 1\n"
_HEADER: Final = struct.Struct("<II")  # size and CRC of the JSON text
_PART: Final = struct.Struct("<IQI")  # frames, their bytes, CRC of the rest
_SIZE, _LSN = np.dtype("<u4"), np.dtype("<u8")

Read: TypeAlias = Callable[[int, int], bytes]
"""That many bytes from an offset on, fewer at the end. Raises LakeError."""


def encode_prepared(prepared: parser.Prepared, content: PreparedContent) -> Iterator[bytes]:
    """The bytes in blocks, none larger than a part of the frames."""
    fault = content.fault
    header = {
        "xid": prepared.xid,
        "gid": prepared.gid,
        "lsn": prepared.lsn,
        "end_lsn": prepared.end_lsn,
        "at": prepared.prepared_at,
        "origin": content.origin,
        "announcements": [[a.frame_index, a.lsn, base64.b64encode(a.payload).decode()] for a in content.announcements],
        "told": [base64.b64encode(message).decode() for message in content.ddl_messages],
        "tables": list(content.tables),
        "encoding": content.encoding,
        "fault": None if fault is None else [fault.code, fault.message, fault.offset, fault.where, fault.remedy],
        "frames": len(content.frames),
        "bytes": content.frames.size,
    }
    text = json.dumps(header).encode()
    yield MAGIC + _HEADER.pack(len(text), zlib.crc32(text)) + text
    for frames, lsns in content.frames.parts():
        body = np.array([len(frame) for frame in frames], _SIZE).tobytes() + np.array(lsns, _LSN).tobytes()
        body += b"".join(frames)
        yield _PART.pack(len(frames), sum(map(len, frames)), zlib.crc32(body))
        yield body


def read_back(read: Read, part: int, where: str) -> tuple[parser.Prepared, PreparedContent]:
    """Parse the transaction that `read` returns; `part`: see `FrameStoreFactory`. Raises PreparedDamaged."""
    head = read(0, len(MAGIC) + _HEADER.size)
    if len(head) < len(MAGIC) + _HEADER.size or not head.startswith(MAGIC):
        raise PreparedDamaged("the beginning of a prepared transaction's file is not valid", where=where)
    size, crc = _HEADER.unpack_from(head, len(MAGIC))
    text = read(len(head), size)
    if not text or len(text) != size or zlib.crc32(text) != crc:
        raise PreparedDamaged("the head of a prepared transaction's file is damaged", where=where)
    header: dict[str, Any] = json.loads(text)
    prepared = parser.Prepared(header["xid"], header["gid"], header["lsn"], header["end_lsn"], header["at"])
    announcements = [Announcement(index, base64.b64decode(data), lsn) for index, lsn, data in header["announcements"]]
    frames = PreparedFrames(read, len(head) + size, (header["frames"], header["bytes"]), part, where)
    ddl_messages = [base64.b64decode(data) for data in header["told"]]
    # files of versions that stored only messages lack the last two
    rest = header["origin"], _fault(header["fault"]), header.get("tables", ()), header.get("encoding")
    return prepared, PreparedContent(frames, announcements, ddl_messages, *rest)


class PreparedFrames:
    """Frames of a stored transaction, read from the storage (implements `decode.transaction.FrameStore`)."""

    is_spilled = True

    def __init__(self, read: Read, start: int, counted: tuple[int, int], part: int, where: str) -> None:
        """The parts begin at `start`; `counted`: number and bytes of the frames."""
        self._read = read
        self._start = start
        self._count, self.size = counted
        self._part = part
        self._where = where

    def __len__(self) -> int:
        return self._count

    def append(self, *_: object) -> None:
        """Not supported: a prepared transaction is complete."""
        raise NotImplementedError

    extend = truncate = append

    def seal(self) -> None:
        """Does nothing: it is sealed."""

    def parts(self) -> Iterator[Part]:
        """All frames in parts of about `part` bytes. Raises PreparedDamaged."""
        frames: list[bytes] = []
        lsns: list[int] = []
        offset, size, left = self._start, 0, self._count
        while left:
            part_frames, their_lsns, offset = self._read_part(offset)
            frames += part_frames
            lsns += their_lsns
            size, left = size + sum(map(len, part_frames)), left - len(part_frames)
            if size >= self._part or not left:
                yield frames, lsns
                frames, lsns, size = [], [], 0

    def close(self) -> None:
        """Does nothing: the file remains until it is landed."""

    def _read_part(self, offset: int) -> tuple[list[bytes], list[int], int]:
        """The frames and LSNs of the part at an offset, and the start of the next one."""
        head = self._read(offset, _PART.size)
        count, size, crc = _PART.unpack(head) if len(head) == _PART.size else (0, 0, 0)
        sizes_end = count * _SIZE.itemsize
        begins = sizes_end + count * _LSN.itemsize
        body = self._read(offset + _PART.size, begins + size)
        if not count or len(body) != begins + size or zlib.crc32(body) != crc:
            raise PreparedDamaged("the file of a prepared transaction ends early or is damaged", where=self._where)
        lsns: list[int] = np.frombuffer(body[sizes_end:begins], _LSN).tolist()
        frames = []
        for length in np.frombuffer(body[:sizes_end], _SIZE).tolist():
            frames.append(body[begins : begins + length])
            begins += length
        return frames, lsns, offset + _PART.size + len(body)


def _fault(description: list[Any] | None) -> DecodeError | None:
    """The recorded error, as the class with its code."""
    if description is None:
        return None
    code, message, offset, where, remedy = description
    kind = next((candidate for candidate in kinds(DecodeError) if candidate.code == code), DecodeError)
    error = kind.__new__(kind)
    DecodeError.__init__(error, message.removesuffix(f" (at byte {offset})"), offset=offset, where=where, hint=remedy)
    return error
