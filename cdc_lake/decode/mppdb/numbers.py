"""Whether literals are plain numbers, for many at once: eight bytes of each at a time."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from cdc_lake.decode.mppdb.statements import Statements

_WORD: Final = 8
_WORDS: Final = 3
LONGEST: Final = _WORD * _WORDS
"""Bytes after the sign up to which a number is judged here."""

_MINUS: Final = ord("-")
_ALL: Final = np.uint64((1 << 64) - 1)
_ZERO = np.uint64(0)


def _each(byte: int) -> np.uint64:
    return np.uint64(int.from_bytes(bytes([byte]) * _WORD, "little"))


_DIGIT_ZERO, _DOT, _LOW, _TOP = _each(0x30), _each(0x2E), _each(0x7F), _each(0x80)
_ABOVE_NINE: Final = _each(0x76)  # 10 + 0x76 is 0x80


def are_plain(source: Statements, start: Any, size: Any) -> Any:
    """Which literals, at `start` and of `size` bytes, are digits with a dot at most, perhaps behind a minus.

    A bool ndarray. Others may be numbers too: with an exponent, without any digit before or behind the dot, longer.
    """
    signed = source.data[start] == _MINUS
    start, size = start + signed, size - signed
    good = (size > 0) & (size <= LONGEST) & (source.data[start] != 0x2E)
    dots = np.zeros(len(start), np.int64)
    longest = int(size.max(initial=0))
    for nth in range(min(_WORDS, -(-longest // _WORD))):
        # no byte behind the literal counts; a statement's padding is longer than what is read beyond its end
        left = np.clip(size - _WORD * nth, 0, _WORD)
        at = np.minimum(start + _WORD * nth, len(source.bytes) - _WORD)
        inside = np.where(left == _WORD, _ALL, (np.uint64(1) << (left % _WORD * 8).astype(np.uint64)) - np.uint64(1))
        word = (source.little[at] & inside) | (_DIGIT_ZERO & ~inside)
        digits = word ^ _DIGIT_ZERO
        others = (((digits & _LOW) + _ABOVE_NINE) | digits) & _TOP
        dotted = word ^ _DOT
        dot = ~(((dotted & _LOW) + _LOW) | dotted) & _TOP
        good &= (others == dot) & ((others & (others - (others != _ZERO).astype(np.uint64))) == _ZERO)
        dots += others != _ZERO
    return good & (dots <= 1)
