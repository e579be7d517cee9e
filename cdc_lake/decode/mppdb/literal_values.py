"""Values of literals written anew, one behind the other: where they do not stand there as they are meant.

That is where quotes are doubled or JSON has escapes, and where what stands between two values leaves no room for what a
value has before it in style b.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.decode.mppdb.statements import ROOM, Statements
from cdc_lake.decode.walk import PADDING, Chunk, Irregular, is_large, require, require_offsets

_DOUBLED: Final = r"^(?:[^']|'')*$"
_NO_BYTE: Final = re.compile(rb"\\u(?!00[0-7])")  # the server escapes bytes below 0x20 so, and no others

_PIECE: Final = 1 << 20
_BORDER: Final = re.compile(rb"(?<!\\)(?<!\\u)(?<!\\u.)(?<!\\u..)[^\\'](?![\x80-\xbf])", re.DOTALL)
"""A byte with which no escape begins or goes on, no doubled quote begins, and a letter ends."""


def rewritten(source: Statements, start: Any, end: Any, *, escaped: bool, inner: bool) -> tuple[Chunk, Any]:
    """A chunk of the values between these bounds (int64 ndarrays), and their slots (n, 2) in it.

    `escaped`: backslashes are JSON's; `inner`: there are quotes inside values. Before each value stands its length.
    Raises Irregular, also where they are more bytes than slots (int32) reach.
    """
    require_offsets(int((end - start).sum()) + ROOM * len(start))
    if is_large(len(source.bytes), len(start)):
        chunk, sizes = _large(source, start, end, escaped=escaped)
        behind = np.cumsum(sizes + ROOM)
    else:
        data, sizes = _data(source, start, end, escaped=escaped, inner=inner)
        behind = np.cumsum(sizes + ROOM)
        content: Any = memoryview(data)[: int(behind[-1])] if len(sizes) else b""
        chunk = Chunk.of([content])
    first = behind - sizes
    write_lengths(chunk, first, sizes)
    return chunk, np.stack([first, behind], axis=1).astype(np.int32)


def write_lengths(chunk: Chunk, start: Any, sizes: Any) -> None:
    """Write each value's length before it, as in style b."""
    lengths: Any = np.ndarray((len(chunk.bytes) - 3,), ">u4", chunk.bytes, strides=(1,))
    lengths[start - 4] = sizes


def require_all(source: Statements, start: Any, end: Any, pattern: str) -> None:
    """Raise Irregular unless all that stands between these bounds is of this pattern."""
    if len(start):
        texts, _ = _texts(source, start, end)
        require(pc.all(pc.match_substring_regex(texts, f"^(?:{pattern})$")).as_py())


def _data(source: Statements, start: Any, end: Any, *, escaped: bool, inner: bool) -> tuple[Any, Any]:
    """The values one behind the other with room before each, and the length of each (int64 ndarray)."""
    if inner or (escaped and b"\\" in source.bytes):
        texts, places = _texts(source, start, end)
        texts = _undoubled(_unescaped(texts) if escaped else texts)
        return _with_room(texts.take(pa.array(places)) if places is not None else texts)
    count = len(start)
    every, places = _pieces(source, start, end)
    take = np.empty((count, 2), np.int64)
    take[:, 0], take[:, 1] = 2 * count, np.arange(0, 2 * count, 2) if places is None else 2 * places
    _, _, data = every.take(pa.array(take.ravel())).buffers()
    return data, end - start


def _large(source: Statements, start: Any, end: Any, *, escaped: bool) -> tuple[Chunk, Any]:
    """The same as a chunk, value by value and those in pieces: of a large one there is no copy but this."""
    data = bytearray(int((end - start).sum()) + ROOM * len(start) + len(PADDING))
    sizes = np.empty(len(start), np.int64)
    at = 0
    for nth, (first, behind) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        at += ROOM
        begins = at
        for piece in _in_pieces(source, first, behind):
            text = _meant(piece, escaped=escaped)
            data[at : at + len(text)] = text
            at += len(text)
        sizes[nth] = at - begins
    del data[at + len(PADDING) :]
    nothing = np.zeros(0, np.int64)
    return Chunk(data, nothing, nothing), sizes


def _meant(piece: bytes, *, escaped: bool) -> bytes:
    """A piece of a value with escapes undone and quotes made single; most of the small ones have neither."""
    if b"'" not in piece and not (escaped and b"\\" in piece):
        return piece
    text = pa.array([piece], pa.binary())
    found: bytes = _undoubled(_unescaped(text) if escaped else text)[0].as_py()
    return found


def _in_pieces(source: Statements, first: int, end: int) -> Iterator[bytes]:
    """What stands between these bounds, a piece at a time. No escape is cut."""
    while first < end:
        found = _BORDER.search(source.bytes, first + _PIECE - 1, end) if end - first > _PIECE else None
        behind = end if found is None else found.end()
        yield bytes(source.bytes[first:behind])
        first = behind


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
