r"""The form of a parked transaction: bytes that another process, on another machine, reads back.

::

    CDC_LAKE PREPARED 1\n   header: size, CRC, JSON   part: count, size, CRC, sizes, LSNs, frames   part …

The header has what the PREPARE said, the announcements and how many frames there are, so that what is cut off is
noticed. Numbers are little-endian. Pure.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from cdc_lake.decode.frames import Part
from cdc_lake.decode.parking import Announcement, Parked
from cdc_lake.decode.pgoutput_prepared import Prepared
from cdc_lake.errors import DecodeError, PreparedDamaged
from cdc_lake.errors.root import kinds

MAGIC: Final = b"CDC_LAKE PREPARED 1\n"
_HEADER: Final = struct.Struct("<II")  # size and CRC of the JSON text
_PART: Final = struct.Struct("<IQI")  # frames, their bytes, CRC of all that follows
_SIZE, _LSN = np.dtype("<u4"), np.dtype("<u8")

Read: TypeAlias = Callable[[int, int], bytes]
"""So many bytes from an offset on, fewer at the end. Raises LakeError."""


def written(prepared: Prepared, content: Parked) -> Iterator[bytes]:
    """The bytes, a block at a time, none larger than a part of the frames."""
    fault = content.fault
    said = {
        "xid": prepared.xid,
        "gid": prepared.gid,
        "lsn": prepared.lsn,
        "end_lsn": prepared.end_lsn,
        "at": prepared.at,
        "origin": content.origin,
        "announcements": [[a.at, a.lsn, base64.b64encode(a.payload).decode()] for a in content.announcements],
        "told": [base64.b64encode(told).decode() for told in content.told],
        "tables": list(content.tables),
        "encoding": content.encoding,
        "fault": None if fault is None else [fault.code, fault.message, fault.offset, fault.where, fault.remedy],
        "frames": len(content.frames),
        "bytes": content.frames.size,
    }
    text = json.dumps(said).encode()
    yield MAGIC + _HEADER.pack(len(text), zlib.crc32(text)) + text
    for frames, lsns in content.frames.parts():
        body = np.array([len(frame) for frame in frames], _SIZE).tobytes() + np.array(lsns, _LSN).tobytes()
        body += b"".join(frames)
        yield _PART.pack(len(frames), sum(map(len, frames)), zlib.crc32(body))
        yield body


def read_back(read: Read, part: int, where: str) -> tuple[Prepared, Parked]:
    """The transaction whose bytes `read` gives; `part`: see `decode.frames.NewFrames`. Raises PreparedDamaged."""
    head = read(0, len(MAGIC) + _HEADER.size)
    if len(head) < len(MAGIC) + _HEADER.size or not head.startswith(MAGIC):
        raise PreparedDamaged("the file of a prepared transaction begins as none does", where=where)
    size, crc = _HEADER.unpack_from(head, len(MAGIC))
    text = read(len(head), size)
    if not text or len(text) != size or zlib.crc32(text) != crc:
        raise PreparedDamaged("the head of a prepared transaction's file is damaged", where=where)
    said: dict[str, Any] = json.loads(text)
    prepared = Prepared(said["xid"], said["gid"], said["lsn"], said["end_lsn"], said["at"])
    announcements = [Announcement(at, base64.b64decode(data), lsn) for at, lsn, data in said["announcements"]]
    frames = ParkedFrames(read, len(head) + size, (said["frames"], said["bytes"]), part, where)
    told = [base64.b64decode(data) for data in said["told"]]
    # files of versions that parked messages only say nothing of the last two
    lines = said.get("tables", ()), said.get("encoding")
    return prepared, Parked(frames, announcements, told, said["origin"], _fault(said["fault"]), *lines)


class ParkedFrames:
    """Frames of a parked transaction, read where they are kept (implements `decode.frames.FrameStore`)."""

    spilled = True

    def __init__(self, read: Read, start: int, counted: tuple[int, int], part: int, where: str) -> None:
        """The parts begin at `start`; `counted`: how many frames there are, and their bytes."""
        self._read = read
        self._start = start
        self._count, self.size = counted
        self._part = part
        self._where = where

    def __len__(self) -> int:
        return self._count

    def append(self, payload: bytes, lsn: int) -> None:
        """Nothing more comes of a prepared transaction."""
        raise NotImplementedError

    def extend(self, payloads: Sequence[bytes], lsns: Sequence[int]) -> None:
        """Nothing more comes of a prepared transaction."""
        raise NotImplementedError

    def truncate(self, count: int) -> None:
        """Nothing of it is rolled back any more."""
        raise NotImplementedError

    def seal(self) -> None:
        """It is."""

    def parts(self) -> Iterator[Part]:
        """See FrameStore. Raises PreparedDamaged."""
        frames: list[bytes] = []
        lsns: list[int] = []
        at, size, left = self._start, 0, self._count
        while left:
            some, their_lsns, at = self._one(at)
            frames += some
            lsns += their_lsns
            size, left = size + sum(map(len, some)), left - len(some)
            if size >= self._part or not left:
                yield frames, lsns
                frames, lsns, size = [], [], 0

    def close(self) -> None:
        """What is kept stays until it is landed."""

    def _one(self, at: int) -> tuple[list[bytes], list[int], int]:
        """The frames and LSNs of the part at an offset, and where the next one begins."""
        head = self._read(at, _PART.size)
        count, size, crc = _PART.unpack(head) if len(head) == _PART.size else (0, 0, 0)
        sizes_end = count * _SIZE.itemsize
        begins = sizes_end + count * _LSN.itemsize
        body = self._read(at + _PART.size, begins + size)
        if not count or len(body) != begins + size or zlib.crc32(body) != crc:
            raise PreparedDamaged("the file of a prepared transaction ends early or is damaged", where=self._where)
        lsns: list[int] = np.frombuffer(body[sizes_end:begins], _LSN).tolist()
        frames = []
        for length in np.frombuffer(body[:sizes_end], _SIZE).tolist():
            frames.append(body[begins : begins + length])
            begins += length
        return frames, lsns, at + _PART.size + len(body)


def _fault(said: list[Any] | None) -> DecodeError | None:
    """The error that was noted, as the class that has its code."""
    if said is None:
        return None
    code, message, offset, where, remedy = said
    kind = next((one for one in kinds(DecodeError) if one.code == code), DecodeError)
    error = kind.__new__(kind)
    DecodeError.__init__(error, message.removesuffix(f" (at byte {offset})"), offset=offset, where=where, hint=remedy)
    return error
