"""GaussDB's heartbeat, in every reading its documents allow.

They say that it begins with the letter h, then two positions and a time of eight bytes each, big-endian; not whether a
length and an LSN stand in front, nor in what unit the time is, nor what the text form looks like. So: a payload of the
letter and 24 bytes, with or without an end mark, is one; so is a record of that letter inside a batch; the unit is told
by magnitude; and a statement that begins with `h` and is no known one is a heartbeat nothing is known about.
"""

from __future__ import annotations

import struct
from typing import Final

from cdc_lake.decode.mppdb.records import Heartbeat

LETTER: Final = b"h"
SIZE: Final = 25
"""Bytes of the letter and its three numbers."""
END_MARKS: Final = (b"", b"F", b"0", b"\0", b"\0\0\0\0")
"""What may follow: `F` in style b, in batches of t and j a zero of an undocumented width, or the digit, or nothing."""

_NUMBERS: Final = struct.Struct(">QQq")
_SECONDS_BELOW: Final = 10**11
_MILLISECONDS_BELOW: Final = 10**14


def bare(payload: bytes) -> Heartbeat | None:
    """The heartbeat a payload is, without length and LSN; None where it is something else.

    A framed record cannot be mistaken for it: its length would be above 1.7 GB. Nor can text: no position is so far on.
    """
    if payload[:2] == b"h\0" and payload[SIZE:] in END_MARKS and len(payload) >= SIZE:
        return _of(payload, None)
    return None


def of_statement(statement: bytes, lsn: int | None) -> Heartbeat:
    """The heartbeat a statement of style t or j is. Never fails: one that cannot be read has no numbers."""
    if statement[:2] == b"h\0" and len(statement) == SIZE:
        return _of(statement, lsn)
    return Heartbeat(lsn=lsn)


def micros(time: int) -> int:
    """A time since 1970 in microseconds; its unit is told by its magnitude."""
    if abs(time) < _SECONDS_BELOW:
        return time * 1_000_000
    return time * 1_000 if abs(time) < _MILLISECONDS_BELOW else time


def _of(data: bytes, lsn: int | None) -> Heartbeat:
    read, flushed, newest = _NUMBERS.unpack_from(data, 1)
    return Heartbeat(read=read, flushed=flushed, newest=micros(newest), lsn=lsn)
