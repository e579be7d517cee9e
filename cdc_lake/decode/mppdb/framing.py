"""Batches of styles t and j: statements one behind the other, each with its length and LSN.

::

    batch := { u32 length  u64 lsn  statement }  u32 0        length: of lsn and statement; big-endian

Where a heartbeat is involved the end is not documented: it may also be a zero byte, the digit, or missing, and a
heartbeat may stand without length and LSN.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final

import numpy as np

from cdc_lake.decode.mppdb.heartbeat import END_MARKS, LETTER, SIZE
from cdc_lake.decode.mppdb.runs import LONG, SMALL, Run
from cdc_lake.errors import MalformedMessage, TruncatedMessage

HEAD: Final = 12
"""Bytes before a statement: its length and its LSN."""

_HEAD: Final = struct.Struct(">IQ")
_LENGTH: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_LSN: Final = 8
_END: Final = b"\0\0\0\0"
_TOP: Final = 1 << 63  # above every LSN that bronze holds
_TABLE: Final = b"table "
_TABLE_WORD: Final = int.from_bytes(_TABLE, "big")
_BRACE: Final = ord("{")


def records_of_batch(payload: bytes) -> list[tuple[int, bytes]]:
    """LSN and statement of each record, in order. A heartbeat without an LSN comes with the position it says it read.

    Raises DecodeError, whose offset counts from the payload's start.
    """
    found: list[tuple[int, bytes]] = []
    keep, unpack = found.append, _HEAD.unpack_from
    size, at = len(payload), 0
    with suppress(struct.error):  # the end of the payload has no room for a head
        while True:
            length, lsn = unpack(payload, at)
            end = at + 4 + length
            if length < _LSN or end > size:
                break
            keep((lsn, payload[at + HEAD : end]))
            at = end
    if payload[at:] == _END:
        return found
    return [(lsn, statement) for _, lsn, statement in frames(payload)]


def parts_of_batch(payload: bytes) -> Sequence[Run | tuple[int, bytes]]:
    """As `records_of_batch`, with long sequences of rows as runs."""
    if len(payload) < SMALL:
        return records_of_batch(payload)
    starts: list[int] = []
    at, size, unpack = 0, len(payload) - HEAD, _LENGTH.unpack_from
    append = starts.append
    while at <= size:
        append(at)
        at += 4 + unpack(payload, at)[0]
    if payload[at:] != _END or len(starts) < LONG:
        return records_of_batch(payload)  # a heartbeat is in it, or something is wrong
    return _by_runs(payload, np.array([*starts, at]))


def _by_runs(payload: bytes, border: Any) -> Sequence[Run | tuple[int, bytes]]:
    """The records that stand between these places (int64 ndarray), each at least twelve bytes behind the one before."""
    words = np.ndarray((len(payload) - 7,), ">u8", payload, strides=(1,))
    first, behind = border[:-1] + HEAD, border[1:]
    if (behind < first).any() or (lsn := words[first - 8]).max() >= _TOP:
        return records_of_batch(payload)
    # six bytes of a row stand before its end, and two more before the payload's
    start = words[np.minimum(first, len(payload) - 8)]
    row = (behind - first > len(_TABLE)) & ((start >> 16 == _TABLE_WORD) | (start >> 56 == _BRACE))
    edges = np.flatnonzero(row[1:] != row[:-1]) + 1
    found: list[Run | tuple[int, bytes]] = []
    for begin, end in pairwise([0, *edges.tolist(), len(row)]):
        part = slice(begin, end)
        if row[begin] and end - begin >= LONG:
            found.append(Run(payload, first[part], behind[part], lsn[part].astype(np.int64)))
        else:
            places = zip(lsn[part].tolist(), first[part].tolist(), behind[part].tolist(), strict=True)
            found += [(number, payload[here:there]) for number, here, there in places]
    return found


def frames(payload: bytes) -> list[tuple[int, int, bytes]]:
    """As `records_of_batch`, each with the byte its statement starts at in front."""
    found: list[tuple[int, int, bytes]] = []
    size, at, unpack = len(payload), 0, _HEAD.unpack_from
    while at + HEAD <= size:
        length, lsn = unpack(payload, at)
        end = at + 4 + length
        if length >= _LSN and end <= size:
            found.append((at + HEAD, lsn, payload[at + HEAD : end]))
            at = end
        elif payload[at : at + 2] == b"h\0" and at + SIZE <= size:
            found.append((at, _U64.unpack_from(payload, at + 1)[0], payload[at : at + SIZE]))
            at += SIZE
        else:
            break
    rest = payload[at:]
    if rest == _END or (rest in END_MARKS and found and found[-1][2][:1] == LETTER):
        return found
    raise _error(payload, at)


def _error(payload: bytes, at: int) -> MalformedMessage | TruncatedMessage:
    left = len(payload) - at - 4
    if left < 0:
        return TruncatedMessage(need=4, left=left + 4, at=at)
    (length,) = _LENGTH.unpack_from(payload, at)
    if not length:
        return MalformedMessage(f"{left} bytes after the length of zero that ends a batch", offset=at + 4)
    if length < _LSN:
        return MalformedMessage(f"a record of {length} bytes: its LSN alone has {_LSN}", offset=at)
    return TruncatedMessage(need=length, left=left, at=at + 4)
