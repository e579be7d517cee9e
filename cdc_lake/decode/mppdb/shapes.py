"""Shapes: rows of style b that differ in nothing but their values, found and walked together.

A row brings its table's name and, before each value, the column's name and type. Rows of one shape agree in all of
these, so the first one tells where everything stands that is not a value, and of the others each such byte is
compared with it, for whole columns: eight bytes of all rows at a time. What differs is of another shape and waits for
its turn; what is of no shape at all fails in the plain decoder, which reads the first row of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from cdc_lake.decode.mppdb.binary import NULL, record_of
from cdc_lake.decode.mppdb.codec import Codec
from cdc_lake.decode.mppdb.records import Operation, Row
from cdc_lake.decode.walk import Chunk, Irregular, require
from cdc_lake.errors import DecodeError

FEW: Final = 16
"""Rows of a shape below which a walk costs more than the plain decoder; a few such shapes do not matter."""
SOME: Final = 8

_WORD: Final = 8
_COUNT: Final = 2  # bytes of a tuple's number of columns
_TAIL: Final = 8  # a column's type OID and its value's length
_NEW, _OLD = b"NO"


@dataclass(frozen=True, slots=True)
class Values:
    """The values of one tuple for each of r rows, w columns.

    `slots`: int32 ndarray (r, w, 2), start and end of the bytes; before the start stands the length, before that the
    last byte of the type OID. `null`: bool ndarray (r, w), None where there is no NULL; its start and end are the same.
    """

    slots: Any
    null: Any


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one shape: `row` is the first one, `rows` where they are in the chunk, ascending."""

    row: Row
    rows: Any
    new: Values | None
    old: Values | None


@dataclass(frozen=True, slots=True)
class _Column:
    """What stands before each value of a column, as `words` of eight bytes, the last of them the OID and the length.

    `mask` is what of the first word belongs to the column. Words are little-endian, as numbers are compared fastest.
    """

    size: int  # bytes of name, OID and length
    words: tuple[np.uint64, ...]  # without the last one
    mask: np.uint64
    oid: np.uint32


@lru_cache(maxsize=4096)
def _column(name: bytes, oid: bytes) -> _Column:
    """From the length and the name, and the type OID, as they stand in a row."""
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


def groups(chunk: Chunk, codec: Codec) -> Iterator[Group]:
    """The rows of a chunk by shape, in the order of their first rows. Raises Irregular where there is none,
    or where shapes are so many that the plain decoder is faster.
    """
    left = np.arange(len(chunk.start))
    allowed = SOME + len(left) // FEW
    while len(left):
        require(allowed)
        allowed -= 1
        first = int(left[0])
        shape = _shape(bytes(chunk.bytes[chunk.start[first] : chunk.end[first]]), codec)
        alike = left[_alike(chunk, left, shape.head)]
        rows, new, old = _walk(chunk, alike, shape)
        yield Group(shape.row, rows, new, old)
        if len(rows) == len(left):
            return
        gone = np.zeros(len(chunk.start), bool)
        gone[rows] = True
        left = left[~gone[left]]


def _shape(frame: bytes, codec: Codec) -> _Shape:
    """The shape of a row. The plain decoder reads it first, so every length below is known to fit."""
    try:
        row = record_of(frame, codec)
    except DecodeError:
        raise Irregular from None  # the plain decoder says it again, with its place
    require(isinstance(row, Row))
    assert isinstance(row, Row)
    new, old = row.new is not None, row.old is not None
    match row.operation:
        case Operation.INSERT:
            require(new and not old)
        case Operation.UPDATE:
            require(new)
        case Operation.DELETE:
            require(not new)
    at = 1
    for _ in range(2):
        at += _COUNT + int.from_bytes(frame[at : at + _COUNT], "big")
    tuples = []
    head = at
    while at < len(frame):
        letter, start = frame[at], at
        at += 1 + _COUNT
        columns = []
        before = frame[start:at]
        for _ in range(int.from_bytes(before[1:], "big")):
            name = at
            at += _COUNT + int.from_bytes(frame[at : at + _COUNT], "big")
            columns.append(_column(frame[name:at], frame[at : at + 4]))
            size = int.from_bytes(frame[at + 4 : at + _TAIL], "big")
            at += _TAIL + (0 if size == NULL else size)
        tuples.append((letter, before, tuple(columns)))
    if new:
        require(tuples[0][0] == _NEW)
    return _Shape(row, frame[:head], tuple(tuples))


def _alike(chunk: Chunk, rows: Any, wanted: bytes) -> Any:
    """Which rows begin with these bytes: a bool ndarray."""
    start = chunk.start[rows]
    fits = start + len(wanted) <= chunk.end[rows]
    if fits.all():
        return _equal(chunk, start, wanted)
    fits[fits] = _equal(chunk, start[fits], wanted)
    return fits


def _equal(chunk: Chunk, at: Any, wanted: bytes) -> Any:
    """Whether these bytes stand at each place: a bool ndarray. They must not reach beyond the chunk's padding."""
    size = len(wanted)
    if size < _WORD:
        shift = np.uint64(8 * (_WORD - size))
        return (chunk.window[at].astype(np.uint64) >> shift) == np.uint64(int.from_bytes(wanted, "big"))
    count = -(-size // _WORD)
    words = chunk.words(count)[at].view("<u8").reshape(len(at), count)
    same = (words[:, -1] & np.uint64((1 << 8 * (size - _WORD * (count - 1))) - 1)) == np.frombuffer(
        wanted.ljust(count * _WORD, b"\0"), "<u8"
    )[-1]
    for nth, word in enumerate(np.frombuffer(wanted, "<u8", count - 1)):
        same &= words[:, nth] == word
    return same


def _walk(chunk: Chunk, rows: Any, shape: _Shape) -> tuple[Any, Values | None, Values | None]:
    """The rows of this shape among those that begin like it, the first of them at least, and their values."""
    while True:
        good, found = _attempt(chunk, rows, shape)
        if good is None:
            return rows, found.get(_NEW), found.get(_OLD)
        rows = rows[good]  # each time from the start: it happens once a column at most


def _attempt(chunk: Chunk, rows: Any, shape: _Shape) -> tuple[Any, dict[int, Values]]:
    """The tuples of these rows, or, at the first place where some are of another shape, which are of this one."""
    at, end = chunk.start[rows] + len(shape.head), chunk.end[rows]
    found: dict[int, Values] = {}
    for letter, before, columns in shape.tuples:
        good = at + len(before) <= end
        if not good.all() or not (good := _equal(chunk, at, before)).all():
            return good, {}
        at += len(before)
        good, found[letter], at = _columns(chunk, at, end, columns)
        if good is not None:
            return good, {}
    good = at == end
    return (None, found) if good.all() else (good, {})


def _columns(chunk: Chunk, at: Any, end: Any, columns: tuple[_Column, ...]) -> tuple[Any, Values, Any]:
    """Which rows have the columns as far as all have them, None for all rows and columns; values, and what follows."""
    slots = np.empty((len(at), len(columns), 2), np.int32)
    nulls = None
    # no column is read that the frame has no room for: of every row there is left what all heads to come need
    room = end - sum(column.size for column in columns)
    if not (good := at <= room).all():
        return good, Values(slots, None), at
    for nth, column in enumerate(columns):
        count = len(column.words) + 1
        # one unaligned gather a column, of everything before the value (6 ns a row, a word alone is 5); what a tuple
        # stands behind is longer than the seven bytes by which this may begin too early
        before = chunk.words(count)[at + (column.size - count * _WORD)]
        words = before.view("<u8").reshape(len(at), count)
        halves = before.view("<u4").reshape(len(at), 2 * count)
        size = before.view(">u4").reshape(len(at), 2 * count)[:, -1].astype(np.int64)
        start = at + column.size
        room += column.size
        at = start + size
        if not (good := at <= room).all() and (null := size == NULL).any():  # read as a length, NULL fits nowhere
            nulls = np.zeros(slots.shape[:2], bool) if nulls is None else nulls
            nulls[:, nth] = null
            size[null] = 0
            at = start + size
            good = at <= room
        good &= halves[:, -2] == column.oid
        good &= (words[:, 0] & column.mask) == column.words[0]
        for further, word in enumerate(column.words[1:], 1):
            good &= words[:, further] == word
        if not good.all():
            return good, Values(slots, None), at
        slots[:, nth, 0], slots[:, nth, 1] = start, at
    return None, Values(slots, nulls), at
