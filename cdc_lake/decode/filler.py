"""Filler: what values are overwritten with where a stream is to be shown to others without them.

A filler has the length of its value, and keeps of it what decoding looks at: digits stay digits, letters letters of the
same case, signs what they are; whatever is not ASCII becomes letters. Under one secret equal values have equal fillers,
so that keys still meet; once it is thrown away, nobody can try out guessed values.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Final

_DIGITS: Final = frozenset(b"0123456789")
_KEPT: Final = frozenset(set(range(0x80)) - set(range(0x30, 0x3A)) - set(range(0x41, 0x5B)) - set(range(0x61, 0x7B)))
_UPPER: Final = frozenset(range(0x41, 0x5B))
_NUMBER: Final = re.compile(rb"[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?")
_ESCAPE: Final = re.compile(rb"(\\(?:u[0-9A-Fa-f]{4}|.))", re.DOTALL)
_SIGNS: Final = b"+-.eE"
_ABSENT: Final = (b"null", b"unchanged-toast-datum")


class Filler:
    """Makes fillers under a secret of its own."""

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secrets.token_bytes(32) if secret is None else secret

    def value(self, value: bytes) -> bytes:
        """The filler of a value's text, in any encoding that ASCII is a part of."""
        return bytes(map(_fill, value, self._stream(value)))

    def literal(self, literal: bytes) -> bytes:
        """The filler of a SQL literal; NULL and what was not sent are no values and stay."""
        if literal in _ABSENT:
            return literal
        if literal[:1] == b"'":
            return self.value(literal)
        random = self._stream(literal)
        if literal[:2] == b"B'":  # a bit string
            return bytes(b"01"[one & 1] if byte in _DIGITS else byte for byte, one in zip(literal, random, strict=True))
        number = _NUMBER.fullmatch(literal) is not None
        # a word (true, NaN) becomes a number: the only other literal without quotes
        kept = _SIGNS if number else b"+-"
        return bytes(byte if byte in kept else 0x30 + one % 10 for byte, one in zip(literal, random, strict=True))

    def json_literal(self, literal: bytes) -> bytes:
        """The filler of a SQL literal inside a JSON string: escapes stay, those of characters become a letter's."""
        if b"\\" not in literal:
            return self.literal(literal)
        parts = _ESCAPE.split(literal)
        parts[::2] = [self.value(part) for part in parts[::2]]
        parts[1::2] = [b"\\u0078" if part[1:2] == b"u" else part for part in parts[1::2]]
        return b"".join(parts)

    def _stream(self, value: bytes) -> bytes:
        return hashlib.shake_256(len(self._secret).to_bytes(8, "big") + self._secret + value).digest(len(value))


def _fill(byte: int, random: int) -> int:
    if byte in _DIGITS:
        return 0x30 + random % 10
    if byte in _KEPT:
        return byte
    return (0x41 if byte in _UPPER else 0x61) + random % 26
