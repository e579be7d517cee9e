"""Statements of the text formats one behind the other, as arrays that are read by the column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

ROOM: Final = 5
"""Zero bytes at `Statements.room`."""
_PADDING: Final = b"\0" * 16  # what is read eight bytes at a time may begin before the first statement, or end behind
_WORD: Final = 8


class Statements:
    """A chunk of statements, a blank behind each, that may be changed where nobody reads it again.

    `data`: the bytes as a uint8 ndarray; `start`, `end`: int64 ndarrays, the bounds of each statement; `little`: a
    uint64 ndarray whose i-th entry is the eight bytes from i on as a number, the first byte the lowest.
    """

    __slots__ = ("bytes", "data", "end", "little", "room", "start")

    def __init__(self, statements: Sequence[bytes]) -> None:
        self.bytes = bytearray(b" ").join([_PADDING, *statements, _PADDING])
        self.room = len(self.bytes) - len(_PADDING)
        sizes = np.fromiter(map(len, statements), np.int64, len(statements))
        self.end = len(_PADDING) + np.cumsum(sizes + 1)
        self.start = self.end - sizes
        self.data: Any = np.frombuffer(self.bytes, np.uint8)
        self.little: Any = np.ndarray((len(self.bytes) - _WORD + 1,), "<u8", self.bytes, strides=(1,))

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
