"""SQL literals as the family's text formats print values, back to the output text of their type.

Numbers stand bare and without a leading zero (`.5`), so do `NaN` and `Infinity`; booleans are `true` and `false`, bit
strings `B'101'`, NULL is `null`; everything else is in single quotes, with quotes doubled and backslashes as they are.
A bare `unchanged-toast-datum` is a value that was not sent; in quotes it is a text like any other. The literal says it
all: the type's name is not needed. Source: openGauss, PrintLiteral of parallel_decode.cpp, and recordings.
"""

from __future__ import annotations

import re
from typing import Final

from cdc_lake.decode.mppdb.codec import Codec
from cdc_lake.errors import MalformedMessage
from cdc_lake.model.change import UNCHANGED, Value

_WORDS: Final[dict[str, Value]] = {"null": None, "true": "t", "false": "f", "unchanged-toast-datum": UNCHANGED}
NUMBER: Final = r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?Infinity|NaN"
"""Pattern of a number, without groups and backtracking."""
BITS: Final = "[01]*"
"""Pattern of what a bit string has between its quotes."""

_NUMBER: Final = re.compile(NUMBER)
_BITS: Final = re.compile(f"B'({BITS})'")
_QUOTE: Final = "'"


class NotALiteral(ValueError):
    """What stands where a literal should is none; it never leaves this package."""


def value_of(literal: str) -> Value:
    """The value a literal stands for. Raises NotALiteral."""
    if literal[:1] == _QUOTE:
        inner = literal[1:-1]
        if literal[-1] == _QUOTE and len(literal) > 1:
            if _QUOTE not in inner:
                return inner
            if _QUOTE not in inner.replace("''", ""):
                return inner.replace("''", _QUOTE)
        raise NotALiteral
    if literal in _WORDS:
        return _WORDS[literal]
    if _NUMBER.fullmatch(literal):
        return literal
    bits = _BITS.fullmatch(literal)
    if bits is None:
        raise NotALiteral
    return bits[1]


def value_of_bytes(literal: str, codec: Codec, at: int) -> Value:
    """The value of a literal given byte by byte (as latin-1), which stands at byte `at`. Raises DecodeError."""
    try:
        value = value_of(literal)
    except NotALiteral:
        raise MalformedMessage("not a literal", offset=at) from None
    return codec.text(value.encode("latin-1"), at + (literal[0] == _QUOTE)) if isinstance(value, str) else value
