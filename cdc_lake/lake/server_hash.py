"""The 64-bit hashes of PostgreSQL, worked out here for many rows at once.

`hash_uint32_extended` and `hash_bytes_extended` (src/common/hashfn.c: Bob Jenkins' lookup3 with a seed), which the SQL
functions `hashint4extended`, `hashint8extended`, `hashfloat8extended` and `hashtextextended` are made of. A hash takes
the one before it as its seed, so that a chain of them is a hash of a whole row. Bytes are taken as a server on a
machine with little-endian words takes them; `source.hash_probe` asks a server whether it hashes as this does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

BLOCK: Final = 8192
"""Rows at a time: the words of a block stay in a processor's cache."""

_START: Final = 0x9E3779B9 + 3923095
_ROUND: Final = 12  # bytes
_WORDS_AT_MOST: Final = 1 << 20  # of the padded texts that are worked on at once
_WHOLE: Final = 0xFFFF_FFFF
_MIX: Final = ((0, 2, 1, 4), (1, 0, 2, 6), (2, 1, 0, 8), (0, 2, 1, 16), (1, 0, 2, 19), (2, 1, 0, 4))
_FINAL: Final = ((2, 1, 14), (0, 2, 11), (1, 0, 25), (2, 1, 16), (0, 2, 4), (1, 0, 14), (2, 1, 24))


@dataclass(frozen=True, slots=True)
class Hashes:
    """The hash of each of some rows so far: the upper and the lower 32 bits, as ndarrays of uint32 of one length.

    Every method gives the hashes with a value more each, which has this one as its seed; none of these is 0.
    """

    high: Any
    low: Any

    @classmethod
    def first(cls, number: int, rows: int) -> Hashes:
        """The same number for each row, not 0: a server leaves out that seed."""
        return cls(np.full(rows, number >> 32, np.uint32), np.full(rows, number & _WHOLE, np.uint32))

    @property
    def numbers(self) -> Any:
        """As an ndarray of uint64."""
        return (self.high.astype(np.uint64) << np.uint64(32)) | self.low

    def xor(self, numbers: Any) -> Hashes:
        """These, not hashed: other numbers (int64) put into them."""
        whole = numbers.view(np.uint64)
        return Hashes(self.high ^ (whole >> np.uint64(32)).astype(np.uint32), self.low ^ whole.astype(np.uint32))

    def int4(self, values: Any) -> Hashes:
        """`hashint4extended` of values (int32 or uint32)."""
        words = self._seeded(4)
        words.a += values.view(np.uint32)
        return words.done()

    def int8(self, values: Any) -> Hashes:
        """`hashint8extended` of values (int64): of both halves, one on the other."""
        high = (values >> 32).astype(np.int32)
        return self.int4(values.astype(np.uint32) ^ (high ^ (high >> 31)).view(np.uint32))

    def float8(self, values: Any) -> Hashes:
        """`hashfloat8extended` of values (float64); of 0 it is the seed."""
        words = self._seeded(8)
        halves = values.view(np.uint32)
        words.a += halves[0::2]
        words.b += halves[1::2]
        found, zero = words.done(), values == 0
        if zero.any():
            np.copyto(found.high, self.high, where=zero)
            np.copyto(found.low, self.low, where=zero)
        return found

    def text(self, values: Any) -> Hashes:
        """`hashtextextended` of values (a large_string Array without NULL). Meant for texts of some hundred bytes."""
        sizes = np.diff(np.frombuffer(values.buffers()[1], np.int64)[values.offset :][: len(values) + 1])
        rounds = sizes // _ROUND
        most = int(rounds.max(initial=0))
        if len(values) * (most + 1) * 3 > _WORDS_AT_MOST and len(values) > 1:
            return self._halves(values)
        return self._text(values, sizes, rounds, most)

    def _halves(self, values: Any) -> Hashes:
        at = len(values) // 2
        one = Hashes(self.high[:at], self.low[:at]).text(values[:at])
        other = Hashes(self.high[at:], self.low[at:]).text(values[at:])
        return Hashes(np.concatenate((one.high, other.high)), np.concatenate((one.low, other.low)))

    def _text(self, values: Any, sizes: Any, rounds: Any, most: int) -> Hashes:
        width = (most + 1) * _ROUND
        padded = pc.ascii_rpad(values, width=width, padding="\0")
        texts = np.frombuffer(padded.buffers()[2], np.uint32, len(values) * width // 4, padded.offset * width)
        texts = texts.reshape(len(values), width // 4)
        words = self._seeded(sizes.astype(np.uint32))
        if int(rounds.min(initial=most)) == most:
            _take(words, texts, [(most, len(values))])
            return words.done()
        order = np.argsort(-rounds, kind="stable")
        words = _Words(words.a[order], words.b[order], words.c[order])
        _take(words, texts[order], list(_ends(rounds[order])))
        done = words.done()
        found = Hashes(np.empty_like(done.high), np.empty_like(done.low))
        found.high[order], found.low[order] = done.high, done.low
        return found

    def _seeded(self, size: Any) -> _Words:
        """The words of values of so many bytes: a number, or one for each (uint32)."""
        begin = np.uint32(_START & _WHOLE) + np.asarray(size, np.uint32)
        words = _Words(self.high + begin, self.low + begin, np.broadcast_to(begin, self.high.shape).copy())
        words.mix(len(self.high))
        return words


def _ends(rounds: Any) -> Iterator[tuple[int, int]]:
    """Of numbers of whole rounds that go down: each, and how many rows have at least so many."""
    ends = np.append(np.flatnonzero(np.diff(rounds)) + 1, len(rounds))
    yield from zip(rounds[ends - 1].tolist(), ends.tolist(), strict=True)


def _take(words: _Words, texts: Any, ends: Sequence[tuple[int, int]]) -> None:
    """Mix in padded texts, the longest first; `ends` as `_ends` gives them."""
    for n in range(ends[0][0]):
        rows = max(end for whole, end in ends if whole > n)
        for column, word in zip(words.columns, (3 * n, 3 * n + 1, 3 * n + 2), strict=True):
            column[:rows] += texts[:rows, word]
        words.mix(rows)
    begin = 0
    for whole, end in ends:
        words.a[begin:end] += texts[begin:end, 3 * whole]
        words.b[begin:end] += texts[begin:end, 3 * whole + 1]
        words.c[begin:end] += texts[begin:end, 3 * whole + 2] << np.uint32(8)  # its lowest byte is the length's
        begin = end


class _Words:
    """The three words of lookup3 for many rows, changed in place."""

    def __init__(self, a: Any, b: Any, c: Any) -> None:
        self.a, self.b, self.c = self.columns = (a, b, c)
        self._one, self._two = np.empty_like(a), np.empty_like(a)

    def mix(self, rows: int) -> None:
        """`mix` of the first rows."""
        words = [column[:rows] for column in self.columns]
        for to, by, other, bits in _MIX:
            np.subtract(words[to], words[by], out=words[to])
            np.bitwise_xor(words[to], self._rotated(words[by], bits), out=words[to])
            np.add(words[by], words[other], out=words[by])

    def done(self) -> Hashes:
        """`final`."""
        for to, by, bits in _FINAL:
            np.bitwise_xor(self.columns[to], self.columns[by], out=self.columns[to])
            np.subtract(self.columns[to], self._rotated(self.columns[by], bits), out=self.columns[to])
        return Hashes(self.b, self.c)

    def _rotated(self, words: Any, bits: int) -> Any:
        one, two = self._one[: len(words)], self._two[: len(words)]
        np.left_shift(words, np.uint32(bits), out=one)
        np.right_shift(words, np.uint32(32 - bits), out=two)
        return np.bitwise_or(one, two, out=one)
