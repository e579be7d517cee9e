"""Rows of style t and test_decoding by the column: the fast path beside `text`.

Where literals are quoted is known for all rows of a chunk at once: of all quotes every second one opens or closes, and
two that touch are a doubled one. Rows of one shape agree in everything but their literals; so a literal is followed
over its quotes, or to the next blank, and what stands between two of them is compared with the first row's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from cdc_lake.decode.mppdb.codec import Codec
from cdc_lake.decode.mppdb.literal_walk import Found, Literals, by_shape
from cdc_lake.decode.mppdb.records import Row
from cdc_lake.decode.mppdb.statements import ROOM, Statements
from cdc_lake.decode.mppdb.text import Shape, TableHeads, shape_of
from cdc_lake.decode.walk import Irregular, require
from cdc_lake.errors import DecodeError

_QUOTE: Final = ord("'")
_BLANKS: Final = np.uint64(0x2020202020202020)
_ONES: Final = np.uint64(0x0101010101010101)
_TOPS: Final = np.uint64(0x8080808080808080)
_LONGEST: Final = 64  # times eight bytes of a literal without quotes


@dataclass(frozen=True, slots=True)
class _Quotes:
    """Where quoted literals open and close, in order, and how many open before each statement."""

    opening: Any
    closing: Any
    before: Any


def text_rows(source: Statements, codec: Codec, known: TableHeads | None, *, serial: bool) -> list[Found]:
    """The rows by shape, in the order of their first rows. Raises Irregular."""
    quotes = _quotes(source)

    def next_shape(left: Any) -> Found:
        row, shape = _shape(source.at(int(left[0])), codec, known, serial=serial)
        rows, literals = _walk(source, quotes, left, shape)
        columns = len(shape.between) - 1
        old = Literals(literals.start[:, : shape.old], literals.end[:, : shape.old])
        new = Literals(literals.start[:, shape.old : columns], literals.end[:, shape.old : columns])
        return Found(row, rows, None if row.new is None else new, None if row.old is None else old)

    return by_shape(len(source.start), next_shape)


def _shape(statement: bytes, codec: Codec, known: TableHeads | None, *, serial: bool) -> tuple[Row, Shape]:
    try:
        cells, shape = shape_of(statement, codec, known, serial=serial)
    except DecodeError:
        raise Irregular from None  # the plain decoder says it again, with its place
    require(not any(b"'" in part for part in shape.between))
    require(all(len(part) > ROOM for part in shape.between[:-1]))  # a blank, name and type
    return cells.record(None), shape


def _quotes(source: Statements) -> _Quotes:
    every = np.flatnonzero(source.data == _QUOTE)
    require(len(every) % 2 == 0)
    first, second = every[::2], every[1::2]
    # a quote that closes and the next that opens touch: together they are one inside the literal
    ends = np.ones(len(second), bool)
    ends[:-1] = second[:-1] + 1 != first[1:]
    begins = np.ones(len(first), bool)
    begins[1:] = ends[:-1]
    opening, closing = first[begins], second[ends]
    before = np.searchsorted(opening, source.start)
    beyond = np.full(1, len(source.bytes), np.int64)
    return _Quotes(np.concatenate([opening, beyond]), np.concatenate([closing, beyond]), before)


def _walk(source: Statements, quotes: _Quotes, rows: Any, shape: Shape) -> tuple[Any, Literals]:
    """The rows of this shape, the first one at least, and their literals."""
    while True:
        good, literals = _attempt(source, quotes, rows, shape)
        if good is None:
            return rows, literals
        require(good[0])
        rows = rows[good]


def _attempt(source: Statements, quotes: _Quotes, rows: Any, shape: Shape) -> tuple[Any, Literals]:
    """The literals of these rows, or, at the first place where some are of another shape, which are of this one."""
    at, end = source.start[rows], source.end[rows]
    literals = Literals(*(np.empty((len(rows), len(shape.between) - 1), np.int64) for _ in range(2)))
    nth = quotes.before[rows]
    for column, before in enumerate(shape.between[:-1]):
        good = source.has(at, end, before)
        if not good.all():
            return good, literals
        at = at + len(before)
        literals.start[:, column] = at
        at, nth, good = _after(source, quotes, at, nth)
        if not good.all():
            return good, literals
        literals.end[:, column] = at
    good = source.has(at, end, shape.between[-1])
    good &= at + len(shape.between[-1]) == end
    return (None if good.all() else good), literals


def _after(source: Statements, quotes: _Quotes, at: Any, nth: Any) -> tuple[Any, Any, Any]:
    """The byte behind the literal at `at`, how many quoted ones were before it, and where there is one at all."""
    first = source.data[at]
    quoted = first == _QUOTE
    if quoted.all():
        return quotes.closing[nth] + 1, nth + 1, quotes.opening[nth] == at
    bits = (first == ord("B")) & (source.data[at + 1] == _QUOTE)
    after, good = np.empty(len(at), np.int64), np.ones(len(at), bool)
    closed = quoted | bits
    if closed.any():
        which = nth[closed]
        good[closed] = quotes.opening[which] == (at + bits)[closed]
        after[closed] = quotes.closing[which] + 1
        bare = ~closed
        after[bare] = _blank_after(source, at[bare])
    else:
        after = _blank_after(source, at)
    return after, nth + closed, good & (after <= len(source.bytes) - 8)


def _blank_after(source: Statements, at: Any) -> Any:
    """Where the next blank stands; a statement has one behind it."""
    found = np.empty(len(at), np.int64)
    waiting, here = np.arange(len(at)), at
    for _ in range(_LONGEST):
        word = source.little[here] ^ _BLANKS
        zero = (word - _ONES) & ~word & _TOPS
        hit = zero != 0
        lowest = zero & (~zero + np.uint64(1))
        # a power of two as a float has its exponent in its upper bits
        place = ((lowest.astype(np.float64).view(np.int64) >> 52) - 1023) >> 3
        found[waiting] = here + place
        if hit.all():
            return found
        waiting, here = waiting[~hit], here[~hit] + 8
        require((here <= len(source.bytes) - 8).all())
    raise Irregular
