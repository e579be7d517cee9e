"""Reads the values of many tuples at once, column by column, from the bytes of a chunk.

A tuple of pgoutput is a count followed by values, so the start of a column is known only after reading the previous
one; but that step can be done for all rows at once. Every bound is checked, for whole columns. A mismatch raises
`FallBackToRowDecoder`, and the row decoder then reports the error.

The chunks of a thread share one buffer, one after the other: allocating two mebibytes for each would cause a third of
the receiver's page faults. If something still refers to a chunk, the next one gets a new buffer.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import Any, Final

import numpy as np
import pyarrow as pa

_LARGEST_BUFFER: Final = 4 << 20
"""Maximum bytes of a thread's buffer: two chunks of the usual size."""


class _Rooms(threading.local):
    def __init__(self) -> None:
        self.room = BytesIO()


_ROOMS: Final = _Rooms()


def in_room(parts: Sequence[bytes | memoryview], size: int) -> memoryview:
    """Concatenate the parts, `size` bytes in total, in a writable buffer."""
    if size > _LARGEST_BUFFER:
        return memoryview(bytearray().join(parts))
    room = _ROOMS.room
    try:
        room.seek(0)
        room.writelines(parts)
    except BufferError:  # something refers to the last chunk
        room = _ROOMS.room = BytesIO()
        room.writelines(parts)
    return room.getbuffer()[:size]


PADDING: Final = b"\x00" * 8  # after the last frame: `window` reads eight bytes wherever a value may start

_LARGE, _EACH = 16 << 20, 1 << 10
"""Bytes of a chunk, and of each of its values, from which on most of it is one large row."""

_LARGEST_OFFSET: Final = 2**31 - 1  # of Arrow's 32 bit offsets

_NULL, _TEXT, _UNCHANGED, _BINARY = b"ntub"


class FallBackToRowDecoder(Exception):
    """Bytes that the columnar reader cannot handle. Never leaves `decode`: the row decoder takes over."""


def require(condition: Any) -> None:
    """Raise FallBackToRowDecoder unless the condition holds."""
    if not condition:
        raise FallBackToRowDecoder


def require_offsets(size: int) -> None:
    """Raise FallBackToRowDecoder if so many bytes exceed the offsets (int32) of one array."""
    require(size <= _LARGEST_OFFSET)


class FrameBuffer:
    """Consecutive frames, with what is needed to read them by column.

    `bytes`: all frames and the padding; `start` and `end` (int64 ndarrays): the bounds of each frame; `data`: the bytes
    as uint8; `window[i]`: the eight bytes from i on as a big-endian number. The bytes are a copy that may be modified
    through `data`.
    """

    __slots__ = ("bytes", "data", "end", "start", "window")

    def __init__(self, data: bytearray | memoryview, start: Any, end: Any) -> None:
        """`data` may contain more than frames, and ends with the padding."""
        self.bytes, self.start, self.end = data, start, end
        self.data: Any = np.frombuffer(data, np.uint8)
        # an unaligned gather reads a value's kind and length at once: 4 ns, byte by byte 10 (measured)
        self.window: Any = np.ndarray((len(data) - 7,), ">u8", data, strides=(1,))

    @classmethod
    def from_frames(cls, frames: Sequence[bytes | memoryview]) -> FrameBuffer:
        """Concatenate frames."""
        end = np.cumsum(np.fromiter(map(len, frames), np.int64, len(frames)))
        size = int(end[-1]) if len(end) else 0
        data = in_room([*frames, PADDING], size + len(PADDING))
        return cls(data, np.concatenate([np.zeros(1, np.int64), end[:-1]]), end)

    def words(self, count: int) -> Any:
        """An array whose i-th entry is the bytes from i on, eight times `count`, as one untyped value."""
        size = 8 * count
        return np.ndarray((len(self.bytes) - size + 1,), f"V{size}", self.bytes, strides=(1,))


@dataclass(frozen=True, slots=True)
class TupleOffsets:
    """One tuple for each of r rows, with v values in row order.

    `offsets` int64 ndarray (r + 1), where a row's values start; `slots` int64 ndarray (v), start of the text in the low
    and its end in the high half; `absent`, `unchanged`, `binary` bool ndarrays (v) or None without such values; `after`
    int64 ndarray (r), the byte after the tuple.
    """

    offsets: Any
    slots: Any
    absent: Any
    unchanged: Any
    after: Any
    binary: Any = None


def read_tuples(chunk: FrameBuffer, offset: Any, end: Any, columns: Any) -> TupleOffsets:
    """Read the tuples from `offset` on in frames that end at `end`, of `columns` values each (int64 ndarrays, r)."""
    require((offset + 2 <= end).all())
    require(((chunk.window[offset].astype(np.uint64) >> np.uint64(48)) == columns.astype(np.uint64)).all())
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(columns)])
    widths = np.unique(columns)
    if len(widths) == 1:  # the usual case needs no scattering
        slots, kinds, after = _walk(chunk, offset + 2, end, int(widths[0]))
        slots, kinds = slots.ravel(), kinds.ravel()
    else:
        slots, kinds, after = np.empty(offsets[-1], np.int64), np.empty(offsets[-1], np.uint8), offset.copy()
        for width in widths.tolist():
            rows = np.flatnonzero(columns == width)
            spans, letters, after[rows] = _walk(chunk, offset[rows] + 2, end[rows], width)
            target = offsets[rows][:, None] + np.arange(width)
            slots[target], kinds[target] = spans, letters
    absent = kinds != _TEXT
    if not absent.any():
        return TupleOffsets(offsets, slots, None, None, after)
    binary, unchanged = kinds == _BINARY, kinds == _UNCHANGED
    absent, unchanged, binary = (flag if flag.any() else None for flag in (absent & ~binary, unchanged, binary))
    return TupleOffsets(offsets, slots, absent, unchanged, after, binary)


def _walk(chunk: FrameBuffer, offset: Any, end: Any, width: int) -> tuple[Any, Any, Any]:
    """Slots and kinds, (rows, width) each, and the byte after each tuple."""
    slots = np.empty((len(offset), width), np.int64)
    kinds = np.empty((len(offset), width), np.uint8)
    for column in range(width):
        require((offset < end).all())
        head = chunk.window[offset].astype(np.int64)
        kind = (head >> 56).astype(np.uint8)
        size = (head >> 24) & 0xFFFFFFFF
        text = kind == _TEXT
        if text.all():
            start = offset + 5
        else:
            sent = text | (kind == _BINARY)
            require((sent | (kind == _NULL) | (kind == _UNCHANGED)).all())
            start = offset + np.where(sent, 5, 1)
            size[~sent] = 0
        offset = start + size
        require((offset <= end).all())
        slots[:, column] = start | (offset << 32)
        kinds[:, column] = kind
    return slots, kinds, offset


def string_array(chunk: FrameBuffer, slots: Any, absent: Any) -> pa.Array:
    """The texts at these slots as a string array, NULL where `absent` (bool ndarray, or None)."""
    if not len(slots):
        return pa.array([], pa.string())
    ends, data = copy_texts(chunk, slots)
    return pa.StringArray.from_buffers(len(slots), ends, data, None if absent is None else bitmap(~absent))


def copy_texts(chunk: FrameBuffer, slots: Any, *, utf8: bool = True) -> tuple[pa.Buffer, pa.Buffer]:
    """Copy the texts at these slots (int64 ndarray, not empty): offsets and bytes of a valid UTF-8 string array. Raises
    FallBackToRowDecoder, also if the chunk exceeds the offsets.

    The slots ascend, so start, end, start, end … are valid offsets of an array over the chunk's own bytes, in which
    every second string is a value: one `take` copies all of them.
    """
    count = len(slots)
    require_offsets(len(chunk.bytes))
    if is_large(len(chunk.bytes), count):  # Arrow would need twice the memory, because it learns the size late
        ends, data = gather_bytes(chunk, slots & 0xFFFFFFFF, slots >> 32)
    else:
        offsets = pa.py_buffer(slots.astype("<i8", copy=False).view("<i4"))
        every = pa.StringArray.from_buffers(2 * count - 1, offsets, pa.py_buffer(chunk.bytes))
        _, ends, data = every.take(evens(count)).buffers()
    starts = np.frombuffer(ends, np.int32, count + 1)
    size = int(starts[-1])
    if utf8 and size and not _utf8(data, np.frombuffer(data, np.int8, size), starts):
        raise FallBackToRowDecoder
    return ends, data


def is_large(size: int, count: int) -> bool:
    """Whether a chunk of so many bytes and values consists mostly of one large row."""
    return size >= max(_LARGE, _EACH * count)


def gather_bytes(chunk: FrameBuffer, start: Any, end: Any) -> tuple[pa.Buffer, pa.Buffer]:
    """Concatenate the bytes between these bounds (int ndarrays) without spare memory: offsets of a binary array, and
    the bytes. Raises FallBackToRowDecoder if they exceed the offsets.
    """
    require_offsets(int((end - start).sum(dtype=np.int64)))
    ends = np.zeros(len(start) + 1, np.int32)
    np.cumsum(end - start, out=ends[1:])
    data = pa.allocate_buffer(int(ends[-1]))
    source, sink = memoryview(chunk.bytes), memoryview(data).cast("B")
    for first, last, target, to in zip(start.tolist(), end.tolist(), ends.tolist(), ends[1:].tolist(), strict=False):
        sink[target:to] = source[first:last]
    return pa.py_buffer(ends), data


def evens(count: int) -> pa.Array:
    """The first `count` even numbers as indices, cached."""
    return (_evens(_EVENS) if count <= _EVENS else _evens(count)).slice(0, count)


_EVENS: Final = 1 << 16


@lru_cache(maxsize=2)
def _evens(count: int) -> pa.Array:
    return pa.array(np.arange(0, 2 * count, 2))


def _utf8(buffer: pa.Buffer, data: Any, starts: Any) -> bool:
    """Whether all texts are UTF-8: their concatenation is, and none begins inside a character.

    Takes a quarter of the time of checking each one (measured), a twentieth for ASCII. `data`: signed bytes.
    """
    if data.min() >= 0:
        return True
    try:
        bounds = pa.py_buffer(np.array([0, len(data)], np.int32))
        pa.StringArray.from_buffers(1, bounds, buffer).validate(full=True)
    except pa.ArrowInvalid:
        return False
    first = data[starts[starts < len(data)]]
    return bool((first >= -0x40).all())  # less: 0x80 to 0xBF, a continuation byte


def bitmap(valid: Any) -> pa.Buffer:
    """Arrow's validity bits of a bool ndarray."""
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def lists(kind: pa.DataType, lengths: Any, valid: Any, values: pa.Array) -> pa.Array:
    """A list array: `lengths` int64 ndarray (0 for NULL), `valid` bool ndarray, `values` of all rows."""
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])
    mask = None if valid.all() else bitmap(valid)
    return pa.ListArray.from_buffers(kind, len(lengths), [mask, pa.py_buffer(offsets)], children=[values])


def unchanged_lists(tuples: TupleOffsets | None, rows: Any, count: int, kind: pa.DataType) -> pa.Array:
    """For `count` changes, of which `rows` have these tuples: positions not sent, NULL if all were."""
    if tuples is None or tuples.unchanged is None:
        return pa.nulls(count, kind)
    indices = np.flatnonzero(tuples.unchanged)
    owner = np.searchsorted(tuples.offsets, indices, side="right") - 1
    lengths = np.zeros(count, np.int64)
    lengths[rows] = np.bincount(owner, minlength=len(rows))
    positions = (indices - tuples.offsets[owner]).astype(np.int32)
    return lists(kind, lengths, lengths > 0, pa.array(positions))
