"""Rows of style t and test_decoding by the column: the fast path beside `text`.

Where literals are quoted is known for all rows of a chunk at once: of all quotes every second one opens or closes, and
two that touch are a doubled one. Rows of one shape agree in everything but their literals; so a literal is followed
over its quotes, or to the next blank, and what stands between two of them is compared with the first row's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
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
_SHAPES: Final = 4096
_LONGEST: Final = 64  # times eight bytes of a literal without quotes


@dataclass(frozen=True, slots=True)
class _Quotes:
    """Where quoted literals open and close, in order, and how many open before each statement."""

    opening: Any
    closing: Any
    before: Any

    def within(self, start: int, end: int) -> Any:
        """The bounds of what quoted literals of a statement hold, which is no part of its shape."""
        mine = slice(*np.searchsorted(self.opening, [start, end]).tolist())
        return np.stack([self.opening[mine] + 1, self.closing[mine]], axis=1)


def text_rows(source: Statements, codec: Codec, known: TableHeads | None, *, serial: bool) -> list[Found]:
    """The rows by shape, in the order of their first rows. Raises Irregular."""
    quotes = _quotes(source)
    seen = _seen(codec, known, serial=serial)

    def next_shape(left: Any) -> Found:
        statement = source.outline(int(left[0]), quotes.within)
        head = statement[: statement.find(b"]:")]
        row, shape = seen.get(head) or _shape(statement, codec, known, serial=serial)
        walked = _walk(source, quotes, left, shape)
        if walked is None:  # another shape that begins alike
            row, shape = _shape(statement, codec, known, serial=serial)
            walked = _walk(source, quotes, left, shape)
        require(walked is not None)
        assert walked is not None
        if len(seen) >= _SHAPES:
            seen.clear()
        seen[head] = row, shape
        rows, literals = walked
        old, new = literals.split(shape.old)
        return Found(row, rows, None if row.new is None else new, None if row.old is None else old)

    return by_shape(len(source.start), next_shape)


@lru_cache(maxsize=16)
def _seen(codec: Codec, known: TableHeads | None, *, serial: bool) -> dict[bytes, tuple[Row, Shape]]:
    """Shapes by how their rows begin, which are tried first: a row of a shape differs from it in its literals only."""
    del codec, known, serial
    return {}


def _shape(statement: bytes, codec: Codec, known: TableHeads | None, *, serial: bool) -> tuple[Row, Shape]:
    """A row with NULL for each value, and its shape."""
    try:
        cells, shape = shape_of(statement, codec, known, serial=serial)
    except DecodeError:
        raise Irregular from None  # the plain decoder says it again, with its place
    require(not any(b"'" in part for part in shape.between))
    require(all(len(part) > ROOM for part in shape.between[:-1]))  # a blank, name and type
    row = cells.record(None)
    new, old = (None if part is None else tuple(replace(f, value=None) for f in part) for part in (row.new, row.old))
    return replace(row, new=new, old=old), shape


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


def _walk(source: Statements, quotes: _Quotes, rows: Any, shape: Shape) -> tuple[Any, Literals] | None:
    """The rows of this shape and their literals; None where the first row is not of it."""
    while True:
        good, literals = _attempt(source, quotes, rows, shape)
        if good is None:
            return rows, literals
        if not good[0]:
            return None
        rows = rows[good]


def _attempt(source: Statements, quotes: _Quotes, rows: Any, shape: Shape) -> tuple[Any, Literals]:
    """The literals of these rows, or, at the first place where some are of another shape, which are of this one."""
    at, end = source.start[rows], source.end[rows]
    first, behind = (np.empty((len(rows), len(shape.between) - 1), np.int64) for _ in range(2))
    quoted: list[int] = []
    literals = Literals(first, behind, quoted)
    nth = quotes.before[rows]
    for column, before in enumerate(shape.between[:-1]):
        good = source.has(at, end, before)
        if not good.all():
            return good, literals
        at = at + len(before)
        closed = source.data[at] == _QUOTE
        if closed.all():
            quoted.append(column)
            good = quotes.opening[nth] == at
            first[:, column] = at + 1
            behind[:, column] = at = quotes.closing[nth]
            at, nth = at + 1, nth + 1
        else:
            first[:, column] = at
            at, nth, good = _after(source, quotes, at, nth, closed)
            behind[:, column] = at
        if not good.all():
            return good, literals
    good = source.has(at, end, shape.between[-1])
    good &= at + len(shape.between[-1]) == end
    return (None if good.all() else good), literals


def _after(source: Statements, quotes: _Quotes, at: Any, nth: Any, quoted: Any) -> tuple[Any, Any, Any]:
    """The byte behind the literal at `at`, how many quoted ones were before it, and where there is one at all."""
    bits = (source.data[at] == ord("B")) & (source.data[at + 1] == _QUOTE)
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
