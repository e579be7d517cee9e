"""Statements of the text formats one behind the other, as arrays that are read by the column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from cdc_lake.decode.mppdb.cuts import Piece
from cdc_lake.decode.mppdb.framing import HEAD
from cdc_lake.decode.mppdb.runs import Run

LARGE: Final = 64 << 10
"""Bytes of a statement that is worth not being copied."""

ROOM: Final = 5
"""Zero bytes at `Statements.room`."""
_PADDING: Final = b"\0" * 16  # what is read eight bytes at a time may begin before the first statement, or end behind
_WORD: Final = 8
_BLANK: Final = b" "
_BLANKS: Final = np.void(_BLANK * HEAD)


class Statements:
    """A chunk of statements, a blank behind each, that may be changed where nobody reads it again.

    `data`: the bytes as a uint8 ndarray; `start`, `end`: int64 ndarrays, the bounds of each statement; `little`: a
    uint64 ndarray whose i-th entry is the eight bytes from i on as a number, the first byte the lowest. Between
    statements are blanks, or in a run as many as there were bytes of heads.
    """

    __slots__ = ("bytes", "data", "end", "little", "room", "start")

    def __init__(self, pieces: Sequence[Piece]) -> None:
        starts, ends, at = [], [], len(_PADDING)
        parts: list[bytes | memoryview] = [_PADDING]
        for piece in pieces:
            if isinstance(piece, Run):
                first, behind = int(piece.start[0]), int(piece.end[-1])
                starts.append(piece.start + (at - first))
                ends.append(piece.end + (at - first))
                parts += [memoryview(piece.payload)[first:behind], _BLANK]
            else:
                ends.append(at - 1 + np.cumsum(np.fromiter(map(len, piece), np.int64, len(piece)) + 1))
                starts.append(np.concatenate([np.full(1, at), ends[-1][:-1] + 1]))
                parts += [_BLANK.join(piece), _BLANK]
            at = int(ends[-1][-1]) + 1
        self.bytes = bytearray().join([*parts, _PADDING])
        self.room = len(self.bytes) - len(_PADDING)
        self.start, self.end = np.concatenate(starts), np.concatenate(ends)
        self.data: Any = np.frombuffer(self.bytes, np.uint8)
        self.little: Any = np.ndarray((len(self.bytes) - _WORD + 1,), "<u8", self.bytes, strides=(1,))
        behind_heads: Any = np.ndarray((len(self.bytes) - HEAD + 1,), f"V{HEAD}", self.bytes, strides=(1,))
        for piece, each in zip(pieces, ends, strict=True):
            if isinstance(piece, Run):
                behind_heads[each[:-1]] = _BLANKS

    def at(self, nth: int) -> bytes:
        """One of the statements."""
        return bytes(self.bytes[self.start[nth] : self.end[nth]])

    def outline(self, nth: int, holes: Callable[[int, int], Any]) -> bytes:
        """One of the statements, a large one without its `holes`: by its bounds an int64 ndarray of pairs of bounds."""
        start, end = int(self.start[nth]), int(self.end[nth])
        if end - start < LARGE:
            return self.at(nth)
        borders = [start, *holes(start, end).ravel().tolist(), end]
        return b"".join(self.bytes[first:behind] for first, behind in zip(borders[::2], borders[1::2], strict=True))

    def has(self, at: Any, end: Any, wanted: bytes) -> Any:
        """Whether `wanted` stands at each place, and ends at `end` or before: a bool ndarray."""
        fits = at + len(wanted) <= end
        if fits.all():
            return self._has(at, wanted)
        fits[fits] = self._has(at[fits], wanted)
        return fits

    def _has(self, at: Any, wanted: bytes) -> Any:
        if not wanted:
            return np.ones(len(at), bool)
        # one gather of whole words, which may begin up to seven bytes before; those are masked out
        count = -(-len(wanted) // _WORD)
        before = _WORD * count - len(wanted)
        words = np.frombuffer(wanted.rjust(_WORD * count, b"\0"), "<u8")
        mask = np.uint64((1 << 64) - (1 << 8 * before))
        size = _WORD * count
        every = np.ndarray((len(self.bytes) - size + 1,), f"V{size}", self.bytes, strides=(1,))
        if before > len(_PADDING) or not len(at):
            return np.ones(len(at), bool)
        found = every[at - before].view("<u8").reshape(len(at), count)
        same = (found[:, 0] & mask) == words[0]
        for nth in range(1, count):
            same &= found[:, nth] == words[nth]
        return same
