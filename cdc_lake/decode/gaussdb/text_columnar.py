"""Reads rows of style t, test_decoding and JSON by column: the fast path besides `text` and `json`.

Quoted literals are found for all rows of a chunk at once: quotes alternately open and close, and two adjacent ones are
a doubled quote; in JSON every second unescaped quote opens a string. Rows of one template differ only in their
literals. A literal of text is therefore followed over its quotes, or to the next blank, and what is between two
literals is compared with the first row's; the n-th value of a JSON row is between the same two quotes of each row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np

from cdc_lake.decode.columnar_reader import FallBackToRowDecoder, FrameBuffer, require
from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb.json import JsonRowTemplate
from cdc_lake.decode.gaussdb.json import shape_of as json_shape_of
from cdc_lake.decode.gaussdb.literal_columnar import (
    ROOM,
    Literals,
    MatchedStatements,
    Statements,
    by_shape,
    regular_chunk,
)
from cdc_lake.decode.gaussdb.records import Row, Style
from cdc_lake.decode.gaussdb.row_templates import RowGroup
from cdc_lake.decode.gaussdb.text import TableHeads, TextRowTemplate
from cdc_lake.decode.gaussdb.text import shape_of as text_shape_of
from cdc_lake.errors import DecodeError

_LITERAL_QUOTE: Final = ord("'")
_BLANKS: Final = np.uint64(0x2020202020202020)
_ONES: Final = np.uint64(0x0101010101010101)
_TOPS: Final = np.uint64(0x8080808080808080)
_LONGEST: Final = 64  # words of eight bytes in an unquoted literal


@dataclass(frozen=True, slots=True)
class _LiteralQuotes:
    """The positions at which quoted literals open and close, in order, and the number before each statement."""

    opening: Any
    closing: Any
    before: Any

    def content_bounds(self, start: int, end: int) -> Any:
        """The bounds of the contents of a statement's quoted literals, which are not part of its shape."""
        selection = slice(*np.searchsorted(self.opening, [start, end]).tolist())
        return np.stack([self.opening[selection] + 1, self.closing[selection]], axis=1)


def text_rows(
    source: Statements, codec: Codec, table_heads: TableHeads | None, *, serial: bool
) -> list[MatchedStatements]:
    """The rows by shape, in the order of their first rows. Raises FallBackToRowDecoder."""
    quotes = _literal_quotes(source)
    shape_cache = _shape_cache(codec, table_heads, serial=serial)

    def next_shape(left: Any) -> MatchedStatements:
        statement = source.outline(int(left[0]), quotes.content_bounds)
        head = statement[: statement.find(b"]:")]
        row, shape = shape_cache.get(head) or _text_shape(statement, codec, table_heads, serial=serial)
        walked = _walk_text(source, quotes, left, shape)
        if walked is None:  # another shape with the same beginning
            row, shape = _text_shape(statement, codec, table_heads, serial=serial)
            walked = _walk_text(source, quotes, left, shape)
        require(walked is not None)
        assert walked is not None
        if len(shape_cache) >= 4096:
            shape_cache.clear()
        shape_cache[head] = row, shape
        rows, literals = walked
        old, new = literals.split(shape.old)
        return MatchedStatements(row, rows, None if row.new is None else new, None if row.old is None else old)

    return by_shape(len(source.start), next_shape)


@lru_cache(maxsize=16)
def _shape_cache(
    codec: Codec, table_heads: TableHeads | None, *, serial: bool
) -> dict[bytes, tuple[Row, TextRowTemplate]]:
    """Shapes by the beginning of their rows, which are tried first."""
    del codec, table_heads, serial
    return {}


def _text_shape(
    statement: bytes, codec: Codec, table_heads: TableHeads | None, *, serial: bool
) -> tuple[Row, TextRowTemplate]:
    """A row with NULL for each value, and its shape."""
    try:
        cells, shape = text_shape_of(statement, codec, table_heads, serial=serial)
    except DecodeError:
        raise FallBackToRowDecoder from None  # the row decoder reports the error with its location
    require(not any(b"'" in part for part in shape.between))
    require(all(len(part) > ROOM for part in shape.between[:-1]))  # a blank, name and type
    row = cells.record(None)
    new, old = (None if part is None else tuple(replace(f, value=None) for f in part) for part in (row.new, row.old))
    return replace(row, new=new, old=old), shape


def _literal_quotes(source: Statements) -> _LiteralQuotes:
    every = np.flatnonzero(source.data == _LITERAL_QUOTE)
    require(len(every) % 2 == 0)
    first, second = every[::2], every[1::2]
    # an adjacent closing and opening quote are together a quote inside the literal
    ends = np.ones(len(second), bool)
    ends[:-1] = second[:-1] + 1 != first[1:]
    begins = np.ones(len(first), bool)
    begins[1:] = ends[:-1]
    opening, closing = first[begins], second[ends]
    before = np.searchsorted(opening, source.start)
    beyond = np.full(1, len(source.bytes), np.int64)
    return _LiteralQuotes(np.concatenate([opening, beyond]), np.concatenate([closing, beyond]), before)


def _walk_text(
    source: Statements, quotes: _LiteralQuotes, rows: Any, shape: TextRowTemplate
) -> tuple[Any, Literals] | None:
    """The rows of this shape and their literals; None if the first row has another shape."""
    while True:
        good, literals = _attempt(source, quotes, rows, shape)
        if good is None:
            return rows, literals
        if not good[0]:
            return None
        rows = rows[good]


def _attempt(source: Statements, quotes: _LiteralQuotes, rows: Any, shape: TextRowTemplate) -> tuple[Any, Literals]:
    """The literals of these rows, or, at the first mismatch, which of them have this shape."""
    offsets, end = source.start[rows], source.end[rows]
    first, last = (np.empty((len(rows), len(shape.between) - 1), np.int64) for _ in range(2))
    quoted: list[int] = []
    literals = Literals(first, last, quoted)
    nth = quotes.before[rows]
    for column, before in enumerate(shape.between[:-1]):
        good = source.has(offsets, end, before)
        if not good.all():
            return good, literals
        offsets = offsets + len(before)
        closed = source.data[offsets] == _LITERAL_QUOTE
        if closed.all():
            quoted.append(column)
            good = quotes.opening[nth] == offsets
            first[:, column] = offsets + 1
            last[:, column] = offsets = quotes.closing[nth]
            offsets, nth = offsets + 1, nth + 1
        else:
            first[:, column] = offsets
            offsets, nth, good = _after_literal(source, quotes, offsets, nth, closed)
            last[:, column] = offsets
        if not good.all():
            return good, literals
    good = source.has(offsets, end, shape.between[-1])
    good &= offsets + len(shape.between[-1]) == end
    return (None if good.all() else good), literals


def _after_literal(
    source: Statements, quotes: _LiteralQuotes, offsets: Any, nth: Any, quoted: Any
) -> tuple[Any, Any, Any]:
    """The offset after the literal at `offsets`, the number of quoted ones before it, and where there is one at all."""
    bits = (source.data[offsets] == ord("B")) & (source.data[offsets + 1] == _LITERAL_QUOTE)
    after, good = np.empty(len(offsets), np.int64), np.ones(len(offsets), bool)
    closed = quoted | bits
    if closed.any():
        which = nth[closed]
        good[closed] = quotes.opening[which] == (offsets + bits)[closed]
        after[closed] = quotes.closing[which] + 1
        bare = ~closed
        after[bare] = _blank_after(source, offsets[bare])
    else:
        after = _blank_after(source, offsets)
    return after, nth + closed, good & (after <= len(source.bytes) - 8)


def _blank_after(source: Statements, offsets: Any) -> Any:
    """The position of the next blank; one follows each statement."""
    blanks = np.empty(len(offsets), np.int64)
    waiting, here = np.arange(len(offsets)), offsets
    for _ in range(_LONGEST):
        word = source.little[here] ^ _BLANKS
        zero = (word - _ONES) & ~word & _TOPS
        hit = zero != 0
        lowest = zero & (~zero + np.uint64(1))
        # the exponent of a power of two is in the upper bits of the float
        place = ((lowest.astype(np.float64).view(np.int64) >> 52) - 1023) >> 3
        blanks[waiting] = here + place
        if hit.all():
            return blanks
        waiting, here = waiting[~hit], here[~hit] + 8
        require((here <= len(source.bytes) - 8).all())
    raise FallBackToRowDecoder


_BACKSLASH: Final = ord("\\")
_LONG: Final = 64  # bytes of a literal
_BLOCK: Final = 4 << 20
_NO_BACKSLASH: Final = re.compile(rb"[^\\]")


@dataclass(frozen=True, slots=True)
class _JsonQuotes:
    """The positions of unescaped quotes, and the number before each statement."""

    offsets: Any
    before: Any


def json_rows(source: Statements, codec: Codec) -> list[MatchedStatements]:
    """The rows by shape, in the order of their first rows. Raises FallBackToRowDecoder."""
    offsets = np.concatenate([_opening_or_closing(source, *block) for block in _blocks(source)])
    quotes = _JsonQuotes(offsets, np.searchsorted(offsets, source.start))
    long = partial(_long, source, quotes)

    def next_shape(left: Any) -> MatchedStatements:
        try:
            cells, shape = json_shape_of(source.outline(int(left[0]), long), codec)
        except DecodeError:
            raise FallBackToRowDecoder from None  # the row decoder reports the error with its location
        require(shape is not None)
        assert shape is not None
        row = cells.record(None)
        rows, new, old = _walk_json(source, quotes, left, shape)
        return MatchedStatements(row, rows, None if row.new is None else new, None if row.old is None else old)

    return by_shape(len(source.start), next_shape)


def _long(source: Statements, quotes: _JsonQuotes, start: int, end: int) -> Any:
    """The bounds of the contents of a statement's long quoted literals, which are not part of its shape."""
    first, last = np.searchsorted(quotes.offsets, [start, end])
    borders = quotes.offsets[first : last - (last - first) % 2].reshape(-1, 2)
    opening, closing = borders[:, 0] + 1, borders[:, 1] - 1  # of a quoted literal in a string
    long = (
        (closing - opening > _LONG)
        & (source.data[opening] == _LITERAL_QUOTE)
        & (source.data[closing] == _LITERAL_QUOTE)
    )
    return np.stack([opening[long] + 1, closing[long]], axis=1)


def _blocks(source: Statements) -> Iterator[tuple[int, int]]:
    """Bounds of pieces that do not end with a backslash; limits memory, because each byte may need several numbers."""
    first, end = 0, len(source.bytes)
    while first < end:
        boundary = _NO_BACKSLASH.search(source.bytes, min(first + _BLOCK, end) - 1)
        stop = end if boundary is None else boundary.end()
        yield first, stop
        first = stop


def _opening_or_closing(source: Statements, first: int, stop: int) -> Any:
    """The positions of unescaped quotes between these bounds."""
    data = source.data[first:stop]
    offsets = np.flatnonzero(data == ord('"'))
    backslashes = np.flatnonzero(data == _BACKSLASH)
    if len(backslashes):
        # of adjacent backslashes, the first, third … one escapes the next character
        begins = np.ones(len(backslashes), bool)
        begins[1:] = backslashes[1:] != backslashes[:-1] + 1
        head = np.maximum.accumulate(np.where(begins, np.arange(len(backslashes)), 0))
        escaping = (np.arange(len(backslashes)) - head) % 2 == 0
        escaped = np.zeros(len(data) + 1, bool)
        escaped[backslashes[escaping] + 1] = True
        offsets = offsets[~escaped[offsets]]
    return offsets + first


def _walk_json(
    source: Statements, quotes: _JsonQuotes, rows: Any, shape: JsonRowTemplate
) -> tuple[Any, Literals, Literals]:
    """The rows of this shape, at least the first one, and the literals of their new and old tuples."""
    start, end = source.start[rows], source.end[rows]
    good = source.has(start, end, shape.before)
    nth = quotes.before[rows] + _count(shape.before)
    new, offsets, fits = _array(source, quotes, start + len(shape.before), nth, shape.new)
    good &= fits & source.has(offsets, end, shape.between)
    nth = nth + 2 * shape.new + _count(shape.between)
    old, offsets, fits = _array(source, quotes, offsets + len(shape.between), nth, shape.old)
    good &= fits & source.has(offsets, end, shape.after) & (offsets + len(shape.after) == end)
    require(good[0])
    if good.all():
        return rows, new, old
    return rows[good], *(Literals(part.start[good], part.end[good]) for part in (new, old))


def _count(part: bytes) -> int:
    """The number of unescaped quotes in this part."""
    return part.replace(b"\\\\", b"").replace(b'\\"', b"").count(b'"')


def _array(source: Statements, quotes: _JsonQuotes, offsets: Any, nth: Any, width: int) -> tuple[Literals, Any, Any]:
    """The strings of the array whose first one opens at `offsets` with the `nth` quote: their contents, the offset
    after the last one, and where all of this is valid.
    """
    if not width:
        nothing = np.empty((len(offsets), 0), np.int64)
        return Literals(nothing, nothing), offsets, np.ones(len(offsets), bool)
    index = nth[:, None] + np.arange(2 * width)
    good = index[:, -1] < len(quotes.offsets)
    places = quotes.offsets[np.minimum(index, len(quotes.offsets) - 1)]
    opening, closing = places[:, ::2], places[:, 1::2]
    good &= opening[:, 0] == offsets
    if width > 1:
        good &= (opening[:, 1:] == closing[:, :-1] + 2).all(axis=1)
        good &= (source.data[closing[:, :-1] + 1] == ord(",")).all(axis=1)
    return Literals(opening + 1, closing), closing[:, -1] + 1, good


_JSON: Final = ord("{")


def text_groups(
    source: Statements, style: Style, codec: Codec, table_heads: TableHeads | None = None
) -> tuple[FrameBuffer, list[RowGroup]]:
    """The rows of these statements by shape, and a chunk of their values, in the form of `row_templates`.

    `chunk.data[chunk.start]` are their operation letters, as in a chunk of style b. Types of fields are by name. Only
    for databases in UTF-8. Raises FallBackToRowDecoder if a statement is not a row, or not a regular one.
    """
    require(codec.python == "utf-8")
    if source.data[source.start[0]] == _JSON:
        require(style is not Style.TEXT)
        return regular_chunk(source, json_rows(source, codec), escaped=True)
    require(style is not Style.JSON)
    shapes = text_rows(source, codec, table_heads, serial=style is Style.SERIAL)
    return regular_chunk(source, shapes, escaped=False)
