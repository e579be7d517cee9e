"""Converts literals of the text formats, for many rows at once, to a chunk for the columnar decoder.

`text_columnar` finds the bytes of each literal for all rows of a template. Here they are converted together: quotes are
removed, `null` is NULL, `true` is `t`; an unchanged value becomes empty, like NULL. Then each value is preceded by what
precedes it in style b, so that the same code builds layouts, lists and digests: in place, if name and type leave space
for it; in a new chunk, if quotes are doubled, JSON has escapes or there is not enough space. Anything irregular is left
to the row decoder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.decode.columnar_reader import (
    PADDING,
    FallBackToRowDecoder,
    FrameBuffer,
    is_large,
    require,
    require_offsets,
)
from cdc_lake.decode.gaussdb.batches import Piece
from cdc_lake.decode.gaussdb.framing import HEAD, RecordRun
from cdc_lake.decode.gaussdb.records import Row
from cdc_lake.decode.gaussdb.row_templates import RowGroup, Values
from cdc_lake.decode.gaussdb.text import BITS, NUMBER

LARGE: Final = 64 << 10
"""Bytes of a statement from which on copying it is avoided."""

ROOM: Final = 5
"""Zero bytes at `Statements.room`."""
_PADDING: Final = b"\0" * 16  # eight-byte reads may begin before the first statement, or end after the last
_WORD: Final = 8
_BLANK: Final = b" "
_BLANKS: Final = np.void(_BLANK * HEAD)


class Statements:
    """A chunk of statements, each followed by a blank. Parts that are not read again may be overwritten.

    `data`: the bytes as a uint8 ndarray; `start`, `end`: int64 ndarrays, the bounds of each statement; `little`: a
    uint64 ndarray whose i-th entry is the eight bytes from i on as a little-endian number. Between statements are
    blanks, in a run as many as the bytes of the heads.
    """

    __slots__ = ("bytes", "data", "end", "little", "room", "start")

    def __init__(self, pieces: Sequence[Piece]) -> None:
        starts, ends, offset = [], [], len(_PADDING)
        parts: list[bytes | memoryview] = [_PADDING]
        for piece in pieces:
            if isinstance(piece, RecordRun):
                first, last = int(piece.start[0]), int(piece.end[-1])
                starts.append(piece.start + (offset - first))
                ends.append(piece.end + (offset - first))
                parts += [memoryview(piece.payload)[first:last], _BLANK]
            else:
                ends.append(offset - 1 + np.cumsum(np.fromiter(map(len, piece), np.int64, len(piece)) + 1))
                starts.append(np.concatenate([np.full(1, offset), ends[-1][:-1] + 1]))
                parts += [_BLANK.join(piece), _BLANK]
            offset = int(ends[-1][-1]) + 1
        self.bytes = bytearray().join([*parts, _PADDING])
        self.room = len(self.bytes) - len(_PADDING)
        self.start, self.end = np.concatenate(starts), np.concatenate(ends)
        self.data: Any = np.frombuffer(self.bytes, np.uint8)
        self.little: Any = np.ndarray((len(self.bytes) - _WORD + 1,), "<u8", self.bytes, strides=(1,))
        behind_heads: Any = np.ndarray((len(self.bytes) - HEAD + 1,), f"V{HEAD}", self.bytes, strides=(1,))
        for piece, each in zip(pieces, ends, strict=True):
            if isinstance(piece, RecordRun):
                behind_heads[each[:-1]] = _BLANKS

    def outline(self, nth: int, holes: Callable[[int, int], Any]) -> bytes:
        """One of the statements, a large one without its `holes`: a function from its bounds to an array of bounds."""
        start, end = int(self.start[nth]), int(self.end[nth])
        if end - start < LARGE:
            return bytes(self.bytes[start:end])
        borders = [start, *holes(start, end).ravel().tolist(), end]
        return b"".join(self.bytes[first:stop] for first, stop in zip(borders[::2], borders[1::2], strict=True))

    def has(self, offsets: Any, end: Any, wanted: bytes) -> Any:
        """Whether `wanted` is at each offset, and ends at `end` or before: a bool ndarray."""
        fits = offsets + len(wanted) <= end
        if fits.all():
            return self._has(offsets, wanted)
        fits[fits] = self._has(offsets[fits], wanted)
        return fits

    def _has(self, offsets: Any, wanted: bytes) -> Any:
        if not wanted or not len(offsets):
            return np.ones(len(offsets), bool)
        # one gather of whole words, which may begin up to seven bytes earlier; those are masked
        count = -(-len(wanted) // _WORD)
        before = _WORD * count - len(wanted)
        words = np.frombuffer(wanted.rjust(_WORD * count, b"\0"), "<u8")
        mask = np.uint64((1 << 64) - (1 << 8 * before))
        size = _WORD * count
        every = np.ndarray((len(self.bytes) - size + 1,), f"V{size}", self.bytes, strides=(1,))
        actual = every[offsets - before].view("<u8").reshape(len(offsets), count)
        same = (actual[:, 0] & mask) == words[0]
        for nth in range(1, count):
            same &= actual[:, nth] == words[nth]
        return same


_NO_BYTE: Final = re.compile(rb"\\u(?!00[0-7])")  # the server escapes only bytes below 0x20 in this form

_PIECE: Final = 1 << 20
_BORDER: Final = re.compile(rb"(?<!\\)(?<!\\u)(?<!\\u.)(?<!\\u..)[^\\'](?![\x80-\xbf])", re.DOTALL)
"""A byte that neither begins nor continues an escape or a doubled quote, and that ends a character."""


def rewritten(source: Statements, start: Any, end: Any, *, escaped: bool, inner: bool) -> tuple[FrameBuffer, Any]:
    """A chunk of the values between these bounds (int64 ndarrays), and their slots (n, 2) in it.

    `escaped`: backslashes are JSON's; `inner`: values contain quotes. Each value is preceded by its length. Raises
    FallBackToRowDecoder, also if the bytes exceed slots (int32).
    """
    require_offsets(int((end - start).sum()) + ROOM * len(start))
    if is_large(len(source.bytes), len(start)):
        chunk, sizes = _large(source, start, end, escaped=escaped)
        stops = np.cumsum(sizes + ROOM)
    else:
        data, sizes = _data(source, start, end, escaped=escaped, inner=inner)
        stops = np.cumsum(sizes + ROOM)
        content: Any = memoryview(data)[: int(stops[-1])] if len(sizes) else b""
        chunk = FrameBuffer.from_frames([content])
    first = stops - sizes
    write_lengths(chunk, first, sizes)
    return chunk, np.stack([first, stops], axis=1).astype(np.int32)


def write_lengths(chunk: FrameBuffer, start: Any, sizes: Any) -> None:
    """Write each value's length before it, as in style b."""
    lengths: Any = np.ndarray((len(chunk.bytes) - 3,), ">u4", chunk.bytes, strides=(1,))
    lengths[start - 4] = sizes


def require_all(source: Statements, start: Any, end: Any, pattern: str) -> None:
    """Raise FallBackToRowDecoder unless everything between these bounds matches this pattern."""
    if len(start):
        texts, _ = _texts(source, start, end)
        require(pc.all(pc.match_substring_regex(texts, f"^(?:{pattern})$")).as_py())


def _data(source: Statements, start: Any, end: Any, *, escaped: bool, inner: bool) -> tuple[Any, Any]:
    """The concatenated values with space before each, and the length of each (int64 ndarray)."""
    if inner or (escaped and b"\\" in source.bytes):
        texts, places = _texts(source, start, end)
        texts = _undouble_quotes(_unescape_json(texts) if escaped else texts)
        texts = texts.take(pa.array(places)) if places is not None else texts
        _, ends, _ = texts.buffers()
        sizes = np.diff(np.frombuffer(ends, np.int32, len(texts) + 1, 4 * texts.offset)).astype(np.int64)
        room = pa.scalar(b"\0" * ROOM, pa.binary())
        _, _, data = pc.binary_join_element_wise(room, texts, pa.scalar(b"", pa.binary())).buffers()
        return data, sizes
    count = len(start)
    every, places = _pieces(source, start, end)
    take = np.empty((count, 2), np.int64)
    take[:, 0], take[:, 1] = 2 * count, np.arange(0, 2 * count, 2) if places is None else 2 * places
    _, _, data = every.take(pa.array(take.ravel())).buffers()
    return data, end - start


def _large(source: Statements, start: Any, end: Any, *, escaped: bool) -> tuple[FrameBuffer, Any]:
    """The same as a chunk, built value by value in pieces, so that a large value is copied only once."""
    data = bytearray(int((end - start).sum()) + ROOM * len(start) + len(PADDING))
    sizes = np.empty(len(start), np.int64)
    offset = 0
    for nth, (first, stop) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        offset += ROOM
        begins = offset
        for piece in _in_pieces(source, first, stop):
            text = piece
            if b"'" in piece or (escaped and b"\\" in piece):  # most small ones have neither
                array = pa.array([piece], pa.binary())
                text = _undouble_quotes(_unescape_json(array) if escaped else array)[0].as_py()
            data[offset : offset + len(text)] = text
            offset += len(text)
        sizes[nth] = offset - begins
    del data[offset + len(PADDING) :]
    nothing = np.zeros(0, np.int64)
    return FrameBuffer(data, nothing, nothing), sizes


def _in_pieces(source: Statements, first: int, end: int) -> Iterator[bytes]:
    """The bytes between these bounds in pieces that do not split escapes."""
    while first < end:
        border = _BORDER.search(source.bytes, first + _PIECE - 1, end) if end - first > _PIECE else None
        stop = end if border is None else border.end()
        yield bytes(source.bytes[first:stop])
        first = stop


def _pieces(source: Statements, start: Any, end: Any) -> tuple[pa.Array, Any]:
    """The bytes between these bounds as pieces: every second one is a value, the last one is space for a length.

    Also returns the indexes of the values in the requested order; None if they are in that order.
    """
    require(len(source.bytes) < 1 << 31)
    places = None
    if not (start[1:] >= start[:-1]).all():  # in an update the old row comes first
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
    """The values in ascending position, and their indexes in the requested order; None if they are in that order."""
    every, places = _pieces(source, start, end)
    return every.take(pa.array(np.arange(0, 2 * len(start), 2))), places


def _unescape_json(texts: pa.Array) -> pa.Array:
    """Undo JSON's escapes in texts."""
    with_escape = pc.match_substring(texts, "\\")
    if not pc.any(with_escape).as_py():
        return texts
    strings = texts.filter(with_escape).to_pylist()
    joined = b'","'.join(strings)
    require(_NO_BYTE.search(joined.replace(b"\\\\", b"")) is None)
    try:
        decoded = json.loads(f'["{joined.decode()}"]', strict=False)
        replaced = pa.array([text.encode() for text in decoded], pa.binary())
    except (ValueError, RecursionError):  # including UnicodeError: half a character, or half of a surrogate pair
        raise FallBackToRowDecoder from None
    require(len(decoded) == len(strings))
    return pc.replace_with_mask(texts, with_escape, replaced)


def _undouble_quotes(texts: pa.Array) -> pa.Array:
    """Undo doubled quotes in texts."""
    with_quote = pc.match_substring(texts, "'")
    if not pc.any(with_quote).as_py():
        return texts
    quoted = texts.filter(with_quote)
    require(pc.all(pc.match_substring_regex(quoted, r"^(?:[^']|'')*$")).as_py())
    return pc.replace_with_mask(texts, with_quote, pc.replace_substring(quoted, "''", "'"))


_WORDS: Final = 3
LONGEST: Final = _WORD * _WORDS
"""Maximum bytes after the sign of a number that is checked here."""

_ALL: Final = np.uint64((1 << 64) - 1)
_ZERO = np.uint64(0)


def _repeat_byte(byte: int) -> np.uint64:
    return np.uint64(int.from_bytes(bytes([byte]) * _WORD, "little"))


_DIGIT_ZERO, _DOT, _LOW, _TOP = _repeat_byte(0x30), _repeat_byte(0x2E), _repeat_byte(0x7F), _repeat_byte(0x80)
_ABOVE_NINE: Final = _repeat_byte(0x76)  # 10 + 0x76 is 0x80


def are_plain(source: Statements, start: Any, size: Any) -> Any:
    """Which literals, at `start` and of `size` bytes, are digits with at most one dot, after an optional minus.

    A bool ndarray. Other literals may be numbers too: with an exponent, without a digit before or after the dot,
    longer.
    """
    signed = source.data[start] == ord("-")
    start, size = start + signed, size - signed
    good = (size > 0) & (size <= LONGEST) & (source.data[start] != 0x2E)
    dots = np.zeros(len(start), np.int64)
    longest = int(size.max(initial=0))
    for nth in range(min(_WORDS, -(-longest // _WORD))):
        # bytes after the literal do not count; a statement's padding covers what is read beyond its end
        left = np.clip(size - _WORD * nth, 0, _WORD)
        offsets = np.minimum(start + _WORD * nth, len(source.bytes) - _WORD)
        inside = np.where(left == _WORD, _ALL, (np.uint64(1) << (left % _WORD * 8).astype(np.uint64)) - np.uint64(1))
        word = (source.little[offsets] & inside) | (_DIGIT_ZERO & ~inside)
        digits = word ^ _DIGIT_ZERO
        others = (((digits & _LOW) + _ABOVE_NINE) | digits) & _TOP
        dotted = word ^ _DOT
        dot = ~(((dotted & _LOW) + _LOW) | dotted) & _TOP
        good &= (others == dot) & ((others & (others - (others != _ZERO).astype(np.uint64))) == _ZERO)
        dots += others != _ZERO
    return good & (dots <= 1)


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
    """The literals of one tuple for each of r rows, w columns: int64 ndarrays (r, w), including quotes.

    `quoted`: columns whose literals are all quoted, with bounds that exclude the quotes already.
    """

    start: Any
    end: Any
    quoted: Sequence[int] = ()

    def split(self, column: int) -> tuple[Literals, Literals]:
        """The columns before this one, and the others."""
        before, after = [c for c in self.quoted if c < column], [c - column for c in self.quoted if c >= column]
        return (
            Literals(self.start[:, :column], self.end[:, :column], before),
            Literals(self.start[:, column:], self.end[:, column:], after),
        )


@dataclass(frozen=True, slots=True)
class MatchedStatements:
    """Rows of one shape: `row` is the first one, `rows` are their indexes among the statements, ascending."""

    row: Row
    rows: Any
    new: Literals | None
    old: Literals | None

    def parts(self) -> list[Literals]:
        """Its tuples, the new one first."""
        return [part for part in (self.new, self.old) if part is not None]


def by_shape(count: int, next_shape: Callable[[Any], MatchedStatements]) -> list[MatchedStatements]:
    """All of `count` rows by shape, in the order of their first rows. Raises FallBackToRowDecoder if too few share one.

    `next_shape` takes the remaining rows, ascending, and returns those with the first one's shape, including it.
    """
    left = np.arange(count)
    shapes: list[MatchedStatements] = []
    allowed = _SOME + count // _FEW
    while len(left):
        require(len(shapes) < allowed)
        shape_rows = next_shape(left)
        shapes.append(shape_rows)
        if len(shape_rows.rows) == len(left):
            break
        gone = np.zeros(count, bool)
        gone[shape_rows.rows] = True
        left = left[~gone[left]]
    return shapes


@dataclass(frozen=True, slots=True)
class _Bounds:
    """The bounds of the values of literals, int64 ndarrays, without quotes.

    `null`, `unsent`: see `row_templates.Values`; `closed`: the number of quoted literals.
    """

    start: Any
    end: Any
    null: Any
    closed: int
    unsent: Any = None


def regular_chunk(
    source: Statements, shapes: Sequence[MatchedStatements], *, escaped: bool
) -> tuple[FrameBuffer, list[RowGroup]]:
    """A chunk of the values, in the form of style b, and its groups. `escaped`: backslashes are JSON's.

    Its `start` is the position of the row's operation letter. The statements are consumed. Raises
    FallBackToRowDecoder for an invalid literal, or an unchanged value in an old row.
    """
    parts = [part for each in shapes for part in each.parts()]
    all_bounds, closed = _resolve_literals(source, parts)
    inner = source.bytes.count(_QUOTE) != 2 * closed
    if parts and (escaped or inner):  # deletes may contain no values at all
        rows = np.concatenate([np.repeat(each.rows, part.start.shape[1]) for each in shapes for part in each.parts()])
        order = np.argsort(rows, kind="stable")  # of the values by row, new ones first
        chunk, slots = _rewritten(source, all_bounds, order, escaped=escaped, inner=inner)
    else:
        chunk, slots = _in_place(source, all_bounds)
    # the operation letters are at the very end of the padding; digests use its beginning
    chunk.data[-len(_LETTERS) :] = np.frombuffer(_LETTERS, np.uint8)
    chunk.start, chunk.end = np.full(len(source.start), len(chunk.bytes) - len(_LETTERS)), source.end
    for each in shapes:
        chunk.start[each.rows] += _LETTERS.index(each.row.operation.value.encode())
    values = iter([Values(each, part.null, part.unsent) for each, part in zip(slots, all_bounds, strict=True)])
    groups = []
    for each in shapes:
        new = next(values) if each.new is not None else None
        old = next(values) if each.old is not None else None
        require(old is None or old.unsent is None)
        groups.append(RowGroup(each.row, each.rows, new, old))
    return chunk, groups


def _resolve_literals(source: Statements, parts: Sequence[Literals]) -> tuple[list[_Bounds], int]:
    """The values of the literals of each part, (r, w), and the number of quoted ones."""
    all_bounds = [_Bounds(part.start, part.end, None, part.start.shape[0] * len(part.quoted)) for part in parts]
    bare = [[column for column in range(part.start.shape[1]) if column not in part.quoted] for part in parts]
    open_ones = [(nth, columns) for nth, columns in enumerate(bare) if columns]
    closed = sum(bounds.closed for bounds in all_bounds)
    if not open_ones:
        return all_bounds, closed
    start, end = (
        np.concatenate([getattr(parts[nth], edge)[:, columns].ravel() for nth, columns in open_ones])
        for edge in ("start", "end")
    )
    resolved, first = _strip_quotes(source, start, end), 0
    for nth, columns in open_ones:
        shape = len(parts[nth].start), len(columns)
        selection = slice(first, first := first + shape[0] * shape[1])
        part_bounds = all_bounds[nth]
        part_bounds.start[:, columns] = resolved.start[selection].reshape(shape)
        part_bounds.end[:, columns] = resolved.end[selection].reshape(shape)
        flags: dict[str, Any] = {}
        for name in ("null", "unsent"):
            flag = getattr(resolved, name)
            if flag is not None and flag[selection].any():
                flags[name] = np.zeros(part_bounds.start.shape, bool)
                flags[name][:, columns] = flag[selection].reshape(shape)
        all_bounds[nth] = replace(part_bounds, **flags)
    return all_bounds, closed + resolved.closed


def _in_place(source: Statements, all_bounds: Sequence[_Bounds]) -> tuple[FrameBuffer, list[Any]]:
    """The statements themselves as the chunk: the name and type before each value leave enough space."""
    require(len(source.bytes) < 1 << 31)
    chunk = FrameBuffer(source.bytes, source.start, source.end)
    slots = []
    for part in all_bounds:
        slots.append(np.empty((*part.start.shape, 2), np.int32))
        slots[-1][:, :, 0], slots[-1][:, :, 1] = part.start, part.end
        write_lengths(chunk, part.start, part.end - part.start)
    return chunk, slots


def _rewritten(
    source: Statements, all_bounds: Sequence[_Bounds], order: Any, *, escaped: bool, inner: bool
) -> tuple[FrameBuffer, list[Any]]:
    """A new chunk of the values in this order, with quotes and escapes undone, and the slots of each part."""
    start, end = (
        np.concatenate([edge.ravel() for edge in edges])[order]
        for edges in ([part.start for part in all_bounds], [part.end for part in all_bounds])
    )
    chunk, placed = rewritten(source, start, end, escaped=escaped, inner=inner)
    slots = np.empty_like(placed)
    slots[order] = placed
    borders = np.cumsum([part.start.size for part in all_bounds])[:-1]
    return chunk, [
        part_slots.reshape(*part.start.shape, 2)
        for part_slots, part in zip(np.split(slots, borders), all_bounds, strict=True)
    ]


def _strip_quotes(source: Statements, start: Any, end: Any) -> _Bounds:
    """The values of the literals between these bounds; empty for NULL and unchanged."""
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
    """Which unquoted literals mark an unchanged value: a bool ndarray."""
    matches = size == len(_UNSENT)
    if matches.any():
        starts = start[matches]
        hits = [source.little[starts + offset] == word for offset, word in _UNSENT_WORDS]
        matches[matches] = np.logical_and.reduce(hits)
    return matches
