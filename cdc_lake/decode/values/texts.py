"""Texts, bytes and bits in the server's binary format, as the text that the server prints.

A function takes the bytes of one value. Raises MalformedMessage, and InvalidText for what is not UTF-8. Source:
varlena.c, char.c, json.c, jsonb.c, varbit.c, uuid.c and mac.c of PostgreSQL.
"""

from __future__ import annotations

import struct
from typing import Final

from cdc_lake.decode.values.numbers import Text
from cdc_lake.errors import InvalidText, MalformedMessage

_LENGTH: Final = struct.Struct(">I")
_UUID: Final = 16  # bytes
_ASCII: Final = 0x80


def text(data: bytes) -> str:
    """Text is sent as text."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        wrong = error.start
    raise InvalidText(at=wrong)  # out here, because the cause would carry the value itself


def versioned(data: bytes) -> str:
    """Text behind a byte that says which version of its format follows (jsonb, jsonpath): 1."""
    if data[:1] != b"\1":
        raise MalformedMessage("a binary document that is not of version 1")
    return text(data[1:])


def letter(data: bytes) -> str:
    """The type `"char"`: a byte; zero prints as nothing, and what is not ASCII in octal digits from version 16 on."""
    if len(data) != 1 or data[0] >= _ASCII:
        raise MalformedMessage('a binary "char" that is not one byte of ASCII: versions print others differently')
    return "" if data == b"\0" else chr(data[0])


def octets(data: bytes) -> str:
    """Bytes in hexadecimal digits."""
    return "\\x" + data.hex()


def bits(data: bytes) -> str:
    """Digits 0 and 1."""
    if len(data) < _LENGTH.size:
        raise MalformedMessage("binary bits that end in their length")
    (count,) = _LENGTH.unpack_from(data)
    if len(data) != _LENGTH.size + (count + 7) // 8:
        raise MalformedMessage(f"{count} binary bits in {len(data)} bytes")
    return "".join(f"{byte:08b}" for byte in data[_LENGTH.size :])[:count]


def uuid(data: bytes) -> str:
    """Hexadecimal digits in five groups."""
    if len(data) != _UUID:
        raise MalformedMessage(f"a binary uuid of {len(data)} bytes")
    digits = data.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def hardware(size: int) -> Text:
    """A hardware address of so many bytes."""

    def printed(data: bytes) -> str:
        if len(data) != size:
            raise MalformedMessage(f"a binary hardware address of {len(data)} bytes: expected {size}")
        return data.hex(":")

    return printed
