"""Bounds-checked reads over one message.

Whatever the bytes, a read gives a value or raises a `DecodeError` that knows the byte it stands at: never a
`struct.error`, never an `IndexError`. Numbers are big-endian, strings are UTF-8, as in PostgreSQL's protocol.
"""

from __future__ import annotations

import struct

from cdc_lake.decode.not_text import NotText
from cdc_lake.errors import InvalidText, MalformedMessage, TruncatedMessage

_U16 = struct.Struct(">H")
_I32 = struct.Struct(">i")
_U32 = struct.Struct(">I")
_I64 = struct.Struct(">q")


class Reader:
    """A place in a message, moving forward only. `lenient`: values may be bytes that are no text (`NotText`)."""

    __slots__ = ("_at", "_data", "_lenient")

    def __init__(self, data: bytes, *, lenient: bool = False) -> None:
        self._data = data
        self._lenient = lenient
        self._at = 0

    @property
    def at(self) -> int:
        """The offset of the next byte."""
        return self._at

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        at, left = self._at, len(self._data) - self._at
        if not 0 <= size <= left:
            raise TruncatedMessage(need=size, left=left, at=at)
        self._at = at + size
        return self._data[at : self._at]

    def u8(self) -> int:
        """An unsigned byte."""
        return self.take(1)[0]

    def u16(self) -> int:
        """An unsigned 16-bit number."""
        value: int = _U16.unpack(self.take(2))[0]
        return value

    def i32(self) -> int:
        """A signed 32-bit number."""
        value: int = _I32.unpack(self.take(4))[0]
        return value

    def u32(self) -> int:
        """An unsigned 32-bit number: an OID, a transaction id, a length."""
        value: int = _U32.unpack(self.take(4))[0]
        return value

    def i64(self) -> int:
        """A signed 64-bit number."""
        value: int = _I64.unpack(self.take(8))[0]
        return value

    def lsn(self) -> int:
        """A WAL position."""
        at = self._at
        return storable(self.i64(), at)

    def fixed(self, layout: struct.Struct) -> tuple[int, ...]:
        """Several numbers at once."""
        return layout.unpack(self.take(layout.size))

    def text(self, size: int) -> str:
        """The next `size` bytes, a value, as UTF-8."""
        at = self._at
        data = self.take(size)
        try:
            return _decode(data, at)
        except InvalidText as error:
            if not self._lenient:
                raise
            return NotText.of(data, error.offset)

    def cstring(self) -> str:
        """A string up to its terminating zero byte, which is read too."""
        at = self._at
        end = self._data.find(b"\x00", at)
        if end < 0:
            left = len(self._data) - at
            raise TruncatedMessage(need=left + 1, left=left, at=at)
        self._at = end + 1
        return _decode(self._data[at:end], at)

    def finish(self) -> None:
        """Refuse bytes after the end of the message."""
        if left := len(self._data) - self._at:
            raise MalformedMessage(f"{left} bytes after the end of the message", offset=self._at)


def storable(lsn: int, at: int) -> int:
    """The WAL position read as a signed number at byte `at`: above 63 bits it could not be stored, and none is."""
    if lsn < 0:
        raise MalformedMessage("a WAL position above 63 bits", offset=at)
    return lsn


def _decode(data: bytes, at: int) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        wrong = at + error.start
    # raised out here, because the cause would carry the value itself
    raise InvalidText(at=wrong)
