"""Rows of JSON by the column: the fast path beside `json_rows`.

Every second quote that is not escaped opens a string. Rows of one shape agree in all bytes before their values, between
the new ones and the old ones, and behind them; so the n-th value of a row stands between the same two quotes of each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from cdc_lake.decode.mppdb.codec import Codec
from cdc_lake.decode.mppdb.json_rows import Shape, shape_of
from cdc_lake.decode.mppdb.literal_walk import Found, Literals, by_shape
from cdc_lake.decode.mppdb.records import Row
from cdc_lake.decode.mppdb.statements import Statements
from cdc_lake.decode.walk import Irregular, require
from cdc_lake.errors import DecodeError

_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_COMMA: Final = ord(",")
_LITERAL: Final = ord("'")
_LONG: Final = 64  # bytes of a literal
_BLOCK: Final = 4 << 20
_NO_BACKSLASH: Final = re.compile(rb"[^\\]")


@dataclass(frozen=True, slots=True)
class _Quotes:
    """Where quotes stand that are not escaped, and how many of them before each statement."""

    at: Any
    before: Any


def json_rows(source: Statements, codec: Codec) -> list[Found]:
    """The rows by shape, in the order of their first rows. Raises Irregular."""
    quotes = _quotes(source)
    long = partial(_long, source, quotes)

    def next_shape(left: Any) -> Found:
        row, shape = _shape(source.outline(int(left[0]), long), codec)
        rows, new, old = _walk(source, quotes, left, shape)
        return Found(row, rows, None if row.new is None else new, None if row.old is None else old)

    return by_shape(len(source.start), next_shape)


def _long(source: Statements, quotes: _Quotes, start: int, end: int) -> Any:
    """The bounds of what long literals of a statement hold in their quotes, which is no part of its shape."""
    first, behind = np.searchsorted(quotes.at, [start, end])
    borders = quotes.at[first : behind - (behind - first) % 2].reshape(-1, 2)
    opening, closing = borders[:, 0] + 1, borders[:, 1] - 1  # of a literal in a string
    long = (closing - opening > _LONG) & (source.data[opening] == _LITERAL) & (source.data[closing] == _LITERAL)
    return np.stack([opening[long] + 1, closing[long]], axis=1)


def _shape(statement: bytes, codec: Codec) -> tuple[Row, Shape]:
    try:
        cells, shape = shape_of(statement, codec)
    except DecodeError:
        raise Irregular from None  # the plain decoder says it again, with its place
    require(shape is not None)
    assert shape is not None
    return cells.record(None), shape


def _quotes(source: Statements) -> _Quotes:
    at = np.concatenate([_opening_or_closing(source, *block) for block in _blocks(source)])
    return _Quotes(at, np.searchsorted(at, source.start))


def _blocks(source: Statements) -> Iterator[tuple[int, int]]:
    """Bounds of pieces none of which ends with a backslash: of each byte of text there may be a few numbers."""
    first, end = 0, len(source.bytes)
    while first < end:
        found = _NO_BACKSLASH.search(source.bytes, min(first + _BLOCK, end) - 1)
        behind = end if found is None else found.end()
        yield first, behind
        first = behind


def _opening_or_closing(source: Statements, first: int, behind: int) -> Any:
    """Where quotes stand between these bounds that are not escaped."""
    data = source.data[first:behind]
    at = np.flatnonzero(data == _QUOTE)
    backslashes = np.flatnonzero(data == _BACKSLASH)
    if len(backslashes):
        # of backslashes that touch, the first, third … one escapes what follows
        begins = np.ones(len(backslashes), bool)
        begins[1:] = backslashes[1:] != backslashes[:-1] + 1
        head = np.maximum.accumulate(np.where(begins, np.arange(len(backslashes)), 0))
        escaping = (np.arange(len(backslashes)) - head) % 2 == 0
        escaped = np.zeros(len(data) + 1, bool)
        escaped[backslashes[escaping] + 1] = True
        at = at[~escaped[at]]
    return at + first


def _walk(source: Statements, quotes: _Quotes, rows: Any, shape: Shape) -> tuple[Any, Literals, Literals]:
    """The rows of this shape, the first one at least, and the literals of their new and old tuples."""
    start, end = source.start[rows], source.end[rows]
    good = source.has(start, end, shape.before)
    nth = quotes.before[rows] + _count(shape.before)
    new, at, fits = _array(source, quotes, start + len(shape.before), nth, shape.new)
    good &= fits & source.has(at, end, shape.between)
    nth = nth + 2 * shape.new + _count(shape.between)
    old, at, fits = _array(source, quotes, at + len(shape.between), nth, shape.old)
    good &= fits & source.has(at, end, shape.after) & (at + len(shape.after) == end)
    require(good[0])
    if good.all():
        return rows, new, old
    return rows[good], *(Literals(part.start[good], part.end[good]) for part in (new, old))


def _count(part: bytes) -> int:
    """How many quotes of this part are not escaped."""
    return part.replace(b"\\\\", b"").replace(b'\\"', b"").count(b'"')


def _array(source: Statements, quotes: _Quotes, at: Any, nth: Any, width: int) -> tuple[Literals, Any, Any]:
    """The strings of the array whose first one opens at `at` with the `nth` quote: what they hold, the byte behind the
    last one, and where all of this is so.
    """
    if not width:
        nothing = np.empty((len(at), 0), np.int64)
        return Literals(nothing, nothing), at, np.ones(len(at), bool)
    index = nth[:, None] + np.arange(2 * width)
    good = index[:, -1] < len(quotes.at)
    places = quotes.at[np.minimum(index, len(quotes.at) - 1)]
    opening, closing = places[:, ::2], places[:, 1::2]
    good &= opening[:, 0] == at
    if width > 1:
        good &= (opening[:, 1:] == closing[:, :-1] + 2).all(axis=1)
        good &= (source.data[closing[:, :-1] + 1] == _COMMA).all(axis=1)
    return Literals(opening + 1, closing), closing[:, -1] + 1, good
