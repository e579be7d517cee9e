"""Rows of the text formats, many at once: from where their literals stand to a chunk the columnar decoder reads.

Two walks, `text_walk` and `json_walk`, find the bytes of each literal for all rows of a shape. What a literal stands
for is told here for all of them together: quotes come off, `null` is NULL, `true` is `t`. Then each value gets before
itself what it has in style b, so that layouts, lists and digests are made by the same code: in place, where values are
as they stand there and name and type leave room for it; else in a new chunk. What is not regular is left to the plain
decoder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.decode.mppdb.literals import BITS, NUMBER
from cdc_lake.decode.mppdb.numbers import are_plain
from cdc_lake.decode.mppdb.records import Row
from cdc_lake.decode.mppdb.shapes import Group, Values
from cdc_lake.decode.mppdb.statements import ROOM, Statements
from cdc_lake.decode.walk import Chunk, Irregular, require

_LETTERS: Final = b"IUD"
_FEW: Final = 16
_SOME: Final = 8
_DOUBLED: Final = r"^(?:[^']|'')*$"
_NO_BYTE: Final = re.compile(rb"\\u(?!00[0-7])")  # the server escapes bytes below 0x20 so, and no others
_QUOTE, _B = b"'B"
_NULL, _TRUE, _FALSE = (np.uint64(int.from_bytes(word, "little")) for word in (b"null", b"true", b"false"))
_FOUR, _FIVE = (np.uint64((1 << 8 * size) - 1) for size in (4, 5))


@dataclass(frozen=True, slots=True)
class Literals:
    """The literals of one tuple for each of r rows, w columns: int64 ndarrays (r, w), quotes included."""

    start: Any
    end: Any


@dataclass(frozen=True, slots=True)
class Found:
    """Rows of one shape: `row` is the first one, `rows` where they are among the statements, ascending."""

    row: Row
    rows: Any
    new: Literals | None
    old: Literals | None

    def parts(self) -> list[Literals]:
        """Its tuples, the new one first."""
        return [part for part in (self.new, self.old) if part is not None]


def by_shape(count: int, next_shape: Callable[[Any], Found]) -> list[Found]:
    """All of `count` rows by shape, in the order of their first rows. Raises Irregular where too few share one.

    `next_shape` takes the rows that are left, ascending, and finds those of the first one's shape, itself among them.
    """
    left = np.arange(count)
    found: list[Found] = []
    allowed = _SOME + count // _FEW
    while len(left):
        require(len(found) < allowed)
        one = next_shape(left)
        found.append(one)
        if len(one.rows) == len(left):
            break
        gone = np.zeros(count, bool)
        gone[one.rows] = True
        left = left[~gone[left]]
    return found


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Values in the order of the chunk: int64 ndarrays of their bounds, without quotes.

    `null`: bool ndarray; `closed`: how many literals have quotes.
    """

    start: Any
    end: Any
    null: Any
    closed: int


def regular_chunk(source: Statements, found: Sequence[Found], *, escaped: bool) -> tuple[Chunk, list[Group]]:
    """A chunk of the values, in the form of style b, and the groups in it. `escaped`: backslashes are JSON's.

    Its `start` is where a letter stands that is the row's operation. Raises Irregular where a literal is none, or where
    a value was not sent. The statements are of no other use afterwards.
    """
    parts = [part for each in found for part in each.parts()]
    start, end = (
        np.concatenate([edge.ravel() for edge in edges])
        for edges in zip(*((part.start, part.end) for part in parts), strict=True)
    )
    bounds = _unquoted(source, start, end)
    inner = np.count_nonzero(source.data == _QUOTE) != 2 * bounds.closed
    if escaped or inner:
        chunk, slots = _rewritten(source, bounds, _row_order(found), escaped=escaped, inner=inner)
    else:
        chunk, slots = _in_place(source, bounds)
    letters = np.zeros(len(source.start), np.int64)
    for each in found:
        letters[each.rows] = _LETTERS.index(each.row.operation.value.encode())
    chunk.start = chunk.start + letters
    return chunk, list(_groups(found, slots, bounds.null))


def _groups(found: Sequence[Found], slots: Any, null: Any) -> Iterator[Group]:
    first = 0
    for each in found:
        values = []
        for part in each.parts():
            behind = first + part.start.size
            absent = null[first:behind].reshape(part.start.shape)
            values.append(Values(slots[first:behind].reshape(*part.start.shape, 2), absent if absent.any() else None))
            first = behind
        new = values.pop(0) if each.new is not None else None
        yield Group(each.row, each.rows, new, values.pop(0) if each.old is not None else None)


def _in_place(source: Statements, bounds: _Bounds) -> tuple[Chunk, Any]:
    """The statements themselves as the chunk: before each value there is room, as its name and type stand there."""
    require(len(source.bytes) < 1 << 31)
    source.data[: len(_LETTERS)] = np.frombuffer(_LETTERS, np.uint8)
    slots = np.empty((len(bounds.start), 2), np.int32)
    slots[:, 0], slots[:, 1] = bounds.start, bounds.end
    chunk = Chunk.of(source.bytes, np.zeros(len(source.start), np.int64), source.end)
    _write_lengths(chunk, bounds.start, bounds.end - bounds.start)
    return chunk, slots


def _row_order(found: Sequence[Found]) -> Any:
    """The order of the values by row, of each the new ones first: int64 ndarray of their numbers."""
    rows = np.concatenate([np.repeat(each.rows, part.start.shape[1]) for each in found for part in each.parts()])
    return np.argsort(rows, kind="stable")


def _rewritten(source: Statements, bounds: _Bounds, order: Any, *, escaped: bool, inner: bool) -> tuple[Chunk, Any]:
    """A new chunk of the values in this order, quotes and escapes undone, and their slots as they were given."""
    ordered = _Bounds(bounds.start[order], bounds.end[order], bounds.null[order], bounds.closed)
    chunk, placed = _chunk(_data(source, ordered, escaped=escaped, inner=inner))
    slots = np.empty_like(placed)
    slots[order] = placed
    return chunk, slots


def _unquoted(source: Statements, start: Any, end: Any) -> _Bounds:
    """What the literals between these bounds stand for; of NULL nothing is left."""
    data, size = source.data, end - start
    require((size > 0).all())
    letter = data[start]
    quoted = letter == _QUOTE
    if quoted.all():
        require((size > 1).all() and (data[end - 1] == _QUOTE).all())
        return _Bounds(start + 1, end - 1, np.zeros(len(start), bool), len(start))
    bits = (letter == _B) & (data[start + 1] == _QUOTE)
    closed = quoted | bits
    bare = np.flatnonzero(~closed)
    require(((size > 1 + bits) & (data[end - 1] == _QUOTE))[closed].all())
    word, length = source.little[start[bare]], size[bare]
    null = (length == 4) & ((word & _FOUR) == _NULL)
    truth = ((length == 4) & ((word & _FOUR) == _TRUE)) | ((length == 5) & ((word & _FIVE) == _FALSE))
    number = bare[~(null | truth)]
    odd = number[~are_plain(source, start[number], size[number])]
    _require_all(source, start[odd], end[odd], NUMBER)
    start, end = start + closed + bits, end - closed
    _require_all(source, start[bits], end[bits], BITS)
    end[bare[null]], end[bare[truth]] = start[bare[null]], start[bare[truth]] + 1
    absent = np.zeros(len(start), bool)
    absent[bare[null]] = True
    return _Bounds(start, end, absent, int(np.count_nonzero(closed)))


def _require_all(source: Statements, start: Any, end: Any, pattern: str) -> None:
    if len(start):
        texts, _ = _texts(source, start, end)
        require(pc.all(pc.match_substring_regex(texts, f"^(?:{pattern})$")).as_py())


def _data(source: Statements, bounds: _Bounds, *, escaped: bool, inner: bool) -> tuple[Any, Any]:
    """The values one behind the other with room before each, and the length of each (int64 ndarray)."""
    if inner or (escaped and b"\\" in source.bytes):
        texts, places = _texts(source, bounds.start, bounds.end)
        texts = _undoubled(_unescaped(texts) if escaped else texts)
        return _with_room(texts.take(pa.array(places)) if places is not None else texts)
    count = len(bounds.start)
    every, places = _pieces(source, bounds.start, bounds.end)
    take = np.empty((count, 2), np.int64)
    take[:, 0], take[:, 1] = 2 * count, np.arange(0, 2 * count, 2) if places is None else 2 * places
    _, _, data = every.take(pa.array(take.ravel())).buffers()
    return data, bounds.end - bounds.start


def _pieces(source: Statements, start: Any, end: Any) -> tuple[pa.Array, Any]:
    """The bytes between these bounds, of which every second piece is a value, the last piece room for a length.

    Also where the values are, in the order that was asked for; None where they are in it.
    """
    require(len(source.bytes) < 1 << 31)
    places = None
    if not (start[1:] >= start[:-1]).all():  # of an update the old row stands first
        order = np.argsort(start, kind="stable")
        start, end, places = start[order], end[order], np.empty(len(start), np.int64)
        places[order] = np.arange(len(start))
    offsets = np.empty(2 * len(start) + 2, np.int32)
    offsets[:-2:2], offsets[1:-2:2] = start, end
    offsets[-2:] = source.room, source.room + ROOM
    require((offsets[1:] >= offsets[:-1]).all())
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(source.bytes)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(offsets) - 1, buffers), places


def _texts(source: Statements, start: Any, end: Any) -> tuple[pa.Array, Any]:
    """The values as they ascend, and where they are in the order that was asked for; None where they are in it."""
    every, places = _pieces(source, start, end)
    return every.take(pa.array(np.arange(0, 2 * len(start), 2))), places


def _unescaped(texts: pa.Array) -> pa.Array:
    """The texts with JSON's escapes undone."""
    with_escape = pc.match_substring(texts, "\\")
    if not pc.any(with_escape).as_py():
        return texts
    strings = texts.filter(with_escape).to_pylist()
    joined = b'","'.join(strings)
    require(_NO_BYTE.search(joined.replace(b"\\\\", b"")) is None)
    try:
        found = json.loads(f'["{joined.decode()}"]', strict=False)
        replaced = pa.array([text.encode() for text in found], pa.binary())
    except (ValueError, RecursionError):  # UnicodeError is one: half a character, or half of a pair
        raise Irregular from None
    require(len(found) == len(strings))
    return pc.replace_with_mask(texts, with_escape, replaced)


def _undoubled(texts: pa.Array) -> pa.Array:
    """The texts with doubled quotes made single."""
    with_quote = pc.match_substring(texts, "'")
    if not pc.any(with_quote).as_py():
        return texts
    some = texts.filter(with_quote)
    require(pc.all(pc.match_substring_regex(some, _DOUBLED)).as_py())
    return pc.replace_with_mask(texts, with_quote, pc.replace_substring(some, "''", "'"))


def _with_room(texts: pa.Array) -> tuple[Any, Any]:
    room = pa.scalar(b"\0" * ROOM, pa.binary())
    _, ends, _ = texts.buffers()
    sizes = np.diff(np.frombuffer(ends, np.int32, len(texts) + 1, 4 * texts.offset)).astype(np.int64)
    _, _, data = pc.binary_join_element_wise(room, texts, pa.scalar(b"", pa.binary())).buffers()
    return data, sizes


def _chunk(values: tuple[Any, Any]) -> tuple[Chunk, Any]:
    """A chunk of the values with their lengths before them, behind the letters of operations; slots (n, 2) in it."""
    data, sizes = values
    end = len(_LETTERS) + np.cumsum(sizes + ROOM)
    content: Any = memoryview(data)[: int(end[-1]) - len(_LETTERS)] if len(sizes) else b""
    chunk = Chunk([_LETTERS, content], writable=True)
    chunk.start = np.zeros(1, np.int64)
    start = end - sizes
    _write_lengths(chunk, start, sizes)
    return chunk, np.stack([start, end], axis=1).astype(np.int32)


def _write_lengths(chunk: Chunk, start: Any, sizes: Any) -> None:
    """Each value's length before it, as in style b."""
    lengths: Any = np.ndarray((len(chunk.bytes) - 3,), ">u4", chunk.bytes, strides=(1,))
    lengths[start - 4] = sizes
