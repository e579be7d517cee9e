"""Rows of the text formats, many at once: from where their literals stand to a chunk the columnar decoder reads.

Two walks, `text_walk` and `json_walk`, find the bytes of each literal for all rows of a shape. What a literal stands
for is told here for all of them together: quotes come off, `null` is NULL, `true` is `t`; of a value that was not sent
nothing is left, as of NULL. Then each value gets before itself what it has in style b, so that layouts, lists and
digests are made by the same code: in place, where values are as they stand there and name and type leave room for it;
else in a new chunk. What is not regular is left to the plain decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from cdc_lake.decode.mppdb.literal_values import require_all, rewritten, write_lengths
from cdc_lake.decode.mppdb.literals import BITS, NUMBER
from cdc_lake.decode.mppdb.numbers import are_plain
from cdc_lake.decode.mppdb.records import Row
from cdc_lake.decode.mppdb.shapes import Group, Values
from cdc_lake.decode.mppdb.statements import Statements
from cdc_lake.decode.walk import Chunk, require

_LETTERS: Final = b"IUD"
_FEW: Final = 16
_SOME: Final = 8
_QUOTE, _B = b"'B"
_NULL, _TRUE, _FALSE = (np.uint64(int.from_bytes(word, "little")) for word in (b"null", b"true", b"false"))
_UNSENT: Final = b"unchanged-toast-datum"
_UNSENT_WORDS: Final = tuple(
    (at, np.uint64(int.from_bytes(_UNSENT[at : at + 8], "little"))) for at in (0, 8, len(_UNSENT) - 8)
)
_FOUR, _FIVE = (np.uint64((1 << 8 * size) - 1) for size in (4, 5))


@dataclass(frozen=True, slots=True)
class Literals:
    """The literals of one tuple for each of r rows, w columns: int64 ndarrays (r, w), quotes included.

    `quoted`: columns all of whose literals are in quotes, which are left out of their bounds already.
    """

    start: Any
    end: Any
    quoted: Sequence[int] = ()

    def split(self, at: int) -> tuple[Literals, Literals]:
        """The columns before this one, and the others."""
        before, behind = [c for c in self.quoted if c < at], [c - at for c in self.quoted if c >= at]
        return (
            Literals(self.start[:, :at], self.end[:, :at], before),
            Literals(self.start[:, at:], self.end[:, at:], behind),
        )


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
    """What literals stand for: int64 ndarrays of the bounds, without quotes.

    `null`, `unsent`: as `shapes.Values` has them; `closed`: how many literals have quotes.
    """

    start: Any
    end: Any
    null: Any
    closed: int
    unsent: Any = None


def regular_chunk(source: Statements, found: Sequence[Found], *, escaped: bool) -> tuple[Chunk, list[Group]]:
    """A chunk of the values, in the form of style b, and the groups in it. `escaped`: backslashes are JSON's.

    Its `start` is where a letter stands that is the row's operation. Raises Irregular where a literal is none, or where
    a value of an old row was not sent. The statements are of no other use afterwards.
    """
    parts = [part for each in found for part in each.parts()]
    told, closed = _told(source, parts)
    inner = source.bytes.count(_QUOTE) != 2 * closed
    if parts and (escaped or inner):  # deletes may bring no values at all
        chunk, slots = _rewritten(source, told, _row_order(found), escaped=escaped, inner=inner)
    else:
        chunk, slots = _in_place(source, told)
    # the letters of operations stand at the very end of the padding, of which digests use the beginning
    chunk.data[-len(_LETTERS) :] = np.frombuffer(_LETTERS, np.uint8)
    chunk.start, chunk.end = np.full(len(source.start), len(chunk.bytes) - len(_LETTERS)), source.end
    for each in found:
        chunk.start[each.rows] += _LETTERS.index(each.row.operation.value.encode())
    values = iter([Values(each, part.null, part.unsent) for each, part in zip(slots, told, strict=True)])
    groups = []
    for each in found:
        new = next(values) if each.new is not None else None
        old = next(values) if each.old is not None else None
        require(old is None or old.unsent is None)
        groups.append(Group(each.row, each.rows, new, old))
    return chunk, groups


def _told(source: Statements, parts: Sequence[Literals]) -> tuple[list[_Bounds], int]:
    """What the literals of each part stand for, (r, w), and how many have quotes."""
    told = [_Bounds(part.start, part.end, None, part.start.shape[0] * len(part.quoted)) for part in parts]
    bare = [[column for column in range(part.start.shape[1]) if column not in part.quoted] for part in parts]
    open_ones = [(nth, columns) for nth, columns in enumerate(bare) if columns]
    closed = sum(bounds.closed for bounds in told)
    if not open_ones:
        return told, closed
    start, end = (
        np.concatenate([edge[nth][:, columns].ravel() for nth, columns in open_ones])
        for edge in ([part.start for part in parts], [part.end for part in parts])
    )
    found, first = _unquoted(source, start, end), 0
    for nth, columns in open_ones:
        shape = len(parts[nth].start), len(columns)
        some = slice(first, first := first + shape[0] * shape[1])
        whole = told[nth]
        whole.start[:, columns], whole.end[:, columns] = (
            found.start[some].reshape(shape),
            found.end[some].reshape(shape),
        )
        flags: dict[str, Any] = {}
        for name in ("null", "unsent"):
            flag = getattr(found, name)
            if flag is not None and flag[some].any():
                flags[name] = np.zeros(whole.start.shape, bool)
                flags[name][:, columns] = flag[some].reshape(shape)
        told[nth] = replace(whole, **flags)
    return told, closed + found.closed


def _in_place(source: Statements, told: Sequence[_Bounds]) -> tuple[Chunk, list[Any]]:
    """The statements themselves as the chunk: before each value there is room, as its name and type stand there."""
    require(len(source.bytes) < 1 << 31)
    chunk = Chunk(source.bytes, source.start, source.end)
    slots = []
    for part in told:
        slots.append(np.empty((*part.start.shape, 2), np.int32))
        slots[-1][:, :, 0], slots[-1][:, :, 1] = part.start, part.end
        write_lengths(chunk, part.start, part.end - part.start)
    return chunk, slots


def _row_order(found: Sequence[Found]) -> Any:
    """The order of the values by row, of each the new ones first: int64 ndarray of their numbers."""
    rows = np.concatenate([np.repeat(each.rows, part.start.shape[1]) for each in found for part in each.parts()])
    return np.argsort(rows, kind="stable")


def _rewritten(
    source: Statements, told: Sequence[_Bounds], order: Any, *, escaped: bool, inner: bool
) -> tuple[Chunk, list[Any]]:
    """A new chunk of the values in this order, quotes and escapes undone, and the slots of each part."""
    start, end = (
        np.concatenate([edge.ravel() for edge in edges])[order]
        for edges in ([part.start for part in told], [part.end for part in told])
    )
    chunk, placed = rewritten(source, start, end, escaped=escaped, inner=inner)
    slots = np.empty_like(placed)
    slots[order] = placed
    borders = np.cumsum([part.start.size for part in told])[:-1]
    return chunk, [
        some.reshape(*part.start.shape, 2) for some, part in zip(np.split(slots, borders), told, strict=True)
    ]


def _unquoted(source: Statements, start: Any, end: Any) -> _Bounds:
    """What the literals between these bounds stand for; of NULL and what was not sent nothing is left."""
    data, size = source.data, end - start
    require((size > 0).all())
    letter = data[start]
    quoted = letter == _QUOTE
    if quoted.all():
        require((size > 1).all() and (data[end - 1] == _QUOTE).all())
        return _Bounds(start + 1, end - 1, None, len(start))
    bits = (letter == _B) & (data[start + 1] == _QUOTE)
    closed = quoted | bits
    bare = np.flatnonzero(~closed)
    require(((size > 1 + bits) & (data[end - 1] == _QUOTE))[closed].all())
    word, length = source.little[start[bare]], size[bare]
    null = (length == 4) & ((word & _FOUR) == _NULL)
    truth = ((length == 4) & ((word & _FOUR) == _TRUE)) | ((length == 5) & ((word & _FIVE) == _FALSE))
    unsent = _are_unsent(source, start[bare], length)
    number = bare[~(null | truth | unsent)]
    odd = number[~are_plain(source, start[number], size[number])]
    require_all(source, start[odd], end[odd], NUMBER)
    start, end = start + closed + bits, end - closed
    require_all(source, start[bits], end[bits], BITS)
    nothing = bare[null | unsent]
    end[nothing], end[bare[truth]] = start[nothing], start[bare[truth]] + 1
    absent, missing = (np.zeros(len(start), bool) for _ in range(2))
    absent[nothing], missing[bare[unsent]] = True, True
    return _Bounds(start, end, absent, int(np.count_nonzero(closed)), missing)


def _are_unsent(source: Statements, start: Any, size: Any) -> Any:
    """Which literals without quotes say that a value was not sent: a bool ndarray."""
    found = size == len(_UNSENT)
    if found.any():
        at = start[found]
        found[found] = np.logical_and.reduce([source.little[at + offset] == word for offset, word in _UNSENT_WORDS])
    return found
