"""Finds rows of style b that differ only in their values, and reads them together, column by column.

A row contains its table's name and, before each value, the column's name and type. Rows of one shape are equal in all
of these, so the first one shows the position of everything that is not a value, and each such byte of the others is
compared with it, for whole columns: eight bytes of all rows at a time. Rows that differ have another shape and are
processed later. The row decoder reads each shape once; what it refuses has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from cdc_lake.decode.columnar_reader import FallBackToRowDecoder, FrameBuffer, require
from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb.binary import NULL, record_of
from cdc_lake.decode.gaussdb.records import Operation, Row
from cdc_lake.errors import DecodeError

FEW: Final = 16
"""Minimum rows of a shape: for fewer, the row decoder is faster; a few such shapes do not matter."""
SOME: Final = 8

_WORD: Final = 8
_COUNT: Final = 2  # bytes of a tuple's number of columns
_TAIL: Final = 8  # a column's type OID and its value's length
_NEW, _OLD = b"NO"
_NO_VALUE: Final = b"\xff\xff\xff\xff"
_UTF8: Final = Codec()


@dataclass(frozen=True, slots=True)
class Values:
    """The values of one tuple for each of r rows, w columns.

    `slots`: int32 ndarray (r, w, 2), start and end of the bytes; before the start is the length, before that the last
    byte of the type OID. `null`: bool ndarray (r, w), None without any NULL, whose start and end are equal. `unsent`:
    those of them that were not sent, None without any.
    """

    slots: Any
    null: Any
    unsent: Any = None


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of one shape: `row` is one with NULL for each value, `rows` are their indexes in the chunk, ascending."""

    row: Row
    rows: Any
    new: Values | None
    old: Values | None


@dataclass(frozen=True, slots=True)
class _Column:
    """What precedes each value of a column, as `words` of eight bytes, the last of them the OID and the length.

    `mask` selects the part of the first word that belongs to the column. Words are little-endian for fast comparison.
    """

    size: int  # bytes of name, OID and length
    words: tuple[np.uint64, ...]  # without the last one
    mask: np.uint64
    oid: np.uint32


@lru_cache(maxsize=4096)
def _column(name: bytes, oid: bytes) -> _Column:
    """Create it from the length and name, and the type OID, as they are in a row."""
    padded = name.rjust(-(-len(name) // _WORD) * _WORD, b"\0")
    return _Column(
        size=len(name) + _TAIL,
        words=tuple(np.frombuffer(padded, "<u8")),
        mask=np.uint64((1 << 64) - (1 << 8 * (len(padded) - len(name)))),
        oid=np.uint32(int.from_bytes(oid, "little")),
    )


@dataclass(frozen=True, slots=True)
class _Shape:
    """`head`: from the letter to the first tuple's count; `tuples`: letter, bytes before the columns, columns."""

    row: Row
    head: bytes
    tuples: tuple[tuple[int, bytes, tuple[_Column, ...]], ...]


def groups(chunk: FrameBuffer) -> Iterator[RowGroup]:
    """The rows of a chunk by shape, in the order of their first rows. Raises FallBackToRowDecoder if a row has none, or
    if there are so many shapes that the row decoder is faster.
    """
    left = np.arange(len(chunk.start))
    allowed = SOME + len(left) // FEW
    while len(left):
        require(allowed)
        allowed -= 1
        first = int(left[0])
        shape = _shape(memoryview(chunk.bytes)[chunk.start[first] : chunk.end[first]])
        alike = left[_alike(chunk, left, shape.head)]
        rows, new, old = _walk(chunk, alike, shape)
        yield RowGroup(shape.row, rows, new, old)
        if len(rows) == len(left):
            return
        gone = np.zeros(len(chunk.start), bool)
        gone[rows] = True
        left = left[~gone[left]]


def _shape(frame: memoryview) -> _Shape:
    """The shape of a row: everything but its values. Raises FallBackToRowDecoder if it is malformed."""
    head = 1
    for _ in range(2):
        head += _COUNT + int.from_bytes(frame[head : head + _COUNT], "big")
    tuples, offset, size = [], head, len(frame)
    while offset < size:
        before = bytes(frame[offset : offset + 1 + _COUNT])
        offset += 1 + _COUNT
        columns = []
        for _ in range(int.from_bytes(before[1:], "big")):
            name_end = offset + _COUNT + int.from_bytes(frame[offset : offset + _COUNT], "big")
            length = int.from_bytes(frame[name_end + 4 : name_end + _TAIL], "big")
            require(name_end + _TAIL <= size)
            columns.append((bytes(frame[offset:name_end]), bytes(frame[name_end : name_end + 4])))
            offset = name_end + _TAIL + (0 if length == NULL else length)
        tuples.append((before, tuple(columns)))
    require(offset == size)
    return _shape_of(bytes(frame[:head]), tuple(tuples))


@lru_cache(maxsize=4096)
def _shape_of(head: bytes, tuples: tuple[tuple[bytes, tuple[tuple[bytes, bytes], ...]], ...]) -> _Shape:
    """The shape of these parts, from the row decoder's result for a row of NULLs. Raises FallBackToRowDecoder."""
    bodies = [before + b"".join([name + oid + _NO_VALUE for name, oid in columns]) for before, columns in tuples]
    try:
        row = record_of(head + b"".join(bodies), _UTF8)
    except DecodeError:
        raise FallBackToRowDecoder from None  # the row decoder reports the error with its location
    require(isinstance(row, Row))
    assert isinstance(row, Row)
    match row.operation:
        case Operation.INSERT:
            require(row.new is not None and row.old is None)
        case Operation.UPDATE:
            require(row.new is not None and tuples[0][0][0] == _NEW)
        case Operation.DELETE:
            require(row.new is None)
    parsed_tuples = [(before[0], before, tuple(_column(*column) for column in columns)) for before, columns in tuples]
    return _Shape(row, head, tuple(parsed_tuples))


def _alike(chunk: FrameBuffer, rows: Any, wanted: bytes) -> Any:
    """Which rows begin with these bytes: a bool ndarray."""
    start = chunk.start[rows]
    fits = start + len(wanted) <= chunk.end[rows]
    if fits.all():
        return _equal(chunk, start, wanted)
    fits[fits] = _equal(chunk, start[fits], wanted)
    return fits


def _equal(chunk: FrameBuffer, offsets: Any, wanted: bytes) -> Any:
    """Whether these bytes are at each offset: a bool ndarray. They must not reach beyond the chunk's padding."""
    size = len(wanted)
    if size < _WORD:
        shift = np.uint64(8 * (_WORD - size))
        return (chunk.window[offsets].astype(np.uint64) >> shift) == np.uint64(int.from_bytes(wanted, "big"))
    count = -(-size // _WORD)
    words = chunk.words(count)[offsets].view("<u8").reshape(len(offsets), count)
    last = np.frombuffer(wanted.ljust(count * _WORD, b"\0"), "<u8")[-1]
    same = (words[:, -1] & np.uint64((1 << 8 * (size - _WORD * (count - 1))) - 1)) == last
    for nth, word in enumerate(np.frombuffer(wanted, "<u8", count - 1)):
        same &= words[:, nth] == word
    return same


def _walk(chunk: FrameBuffer, rows: Any, shape: _Shape) -> tuple[Any, Values | None, Values | None]:
    """The rows of this shape among those that begin like it, at least the first one, and their values."""
    while True:
        good, values_by_letter = _attempt(chunk, rows, shape)
        if good is None:
            return rows, values_by_letter.get(_NEW), values_by_letter.get(_OLD)
        rows = rows[good]  # restart each time, at most once per column


def _attempt(chunk: FrameBuffer, rows: Any, shape: _Shape) -> tuple[Any, dict[int, Values]]:
    """The tuples of these rows, or, at the first mismatch, which of them have this shape."""
    offsets, end = chunk.start[rows] + len(shape.head), chunk.end[rows]
    values_by_letter: dict[int, Values] = {}
    for letter, before, columns in shape.tuples:
        good = offsets + len(before) <= end
        if not good.all() or not (good := _equal(chunk, offsets, before)).all():
            return good, {}
        offsets += len(before)
        good, values_by_letter[letter], offsets = _columns(chunk, offsets, end, columns)
        if good is not None:
            return good, {}
    good = offsets == end
    return (None, values_by_letter) if good.all() else (good, {})


def _columns(chunk: FrameBuffer, offsets: Any, end: Any, columns: tuple[_Column, ...]) -> tuple[Any, Values, Any]:
    """Which rows have the columns up to the first mismatch, None for all rows and columns; values, and what follows."""
    slots = np.empty((len(offsets), len(columns), 2), np.int32)
    nulls = None
    words_of = {count: chunk.words(count) for count in {len(column.words) + 1 for column in columns}}
    # no column is read for which the frame is too short: each row still has what all following heads need
    room = end - sum(column.size for column in columns)
    if not (good := offsets <= room).all():
        return good, Values(slots, None), offsets
    for nth, column in enumerate(columns):
        count = len(column.words) + 1
        # one unaligned gather per column, of everything before the value (6 ns per row, a word alone is 5); what
        # precedes a tuple is longer than the seven bytes by which this may begin too early
        before = words_of[count][offsets + (column.size - count * _WORD)]
        words = before.view("<u8").reshape(len(offsets), count)
        halves = before.view("<u4").reshape(len(offsets), 2 * count)
        size = before.view(">u4").reshape(len(offsets), 2 * count)[:, -1].astype(np.int64)
        start = offsets + column.size
        room += column.size
        offsets = start + size
        if not (good := offsets <= room).all() and (null := size == NULL).any():  # as a length, NULL never fits
            nulls = np.zeros(slots.shape[:2], bool) if nulls is None else nulls
            nulls[:, nth] = null
            size[null] = 0
            offsets = start + size
            good = offsets <= room
        good &= halves[:, -2] == column.oid
        good &= (words[:, 0] & column.mask) == column.words[0]
        for further, word in enumerate(column.words[1:], 1):
            good &= words[:, further] == word
        if not good.all():
            return good, Values(slots, None), offsets
        slots[:, nth, 0], slots[:, nth, 1] = start, offsets
    return None, Values(slots, nulls), offsets
