"""Overwrites every row value in messages of a stream, so that recordings can be shared.

A filler has the length of its value and keeps what decoding depends on: digits stay digits, letters letters of the same
case, punctuation is unchanged; non-ASCII characters become letters. With the same secret equal values have equal
fillers, so keys still match; once the secret is discarded, nobody can test guessed values.

Names, types, lengths, positions and transaction boundaries are unchanged. An unreadable message is overwritten
completely (in the GaussDB family after its length and LSN). For pgoutput with protocol version 1.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import struct
from collections.abc import Iterator
from typing import Final

from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb import json, records, text
from cdc_lake.decode.gaussdb import serial as lines
from cdc_lake.decode.gaussdb.binary import BODY, NULL, following, record_end, record_of
from cdc_lake.decode.gaussdb.framing import frames
from cdc_lake.decode.gaussdb.records import Row, Style
from cdc_lake.decode.pgoutput.parser import parse
from cdc_lake.errors import DecodeError

_DIGITS: Final = frozenset(b"0123456789")
_KEPT: Final = frozenset(set(range(0x80)) - set(range(0x30, 0x3A)) - set(range(0x41, 0x5B)) - set(range(0x61, 0x7B)))
_UPPER: Final = frozenset(range(0x41, 0x5B))
_NUMBER: Final = re.compile(rb"[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?")
_ESCAPE: Final = re.compile(rb"(\\(?:u[0-9A-Fa-f]{4}|.))", re.DOTALL)
_SIGNS: Final = b"+-.eE"
_ABSENT: Final = (b"null", b"unchanged-toast-datum")


class Filler:
    """Creates fillers with a secret of its own."""

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secrets.token_bytes(32) if secret is None else secret

    def value(self, value: bytes) -> bytes:
        """The filler of a value's text, in any superset of ASCII."""
        return bytes(map(_fill, value, self._stream(value)))

    def literal(self, literal: bytes) -> bytes:
        """The filler of a SQL literal; NULL and unsent values are unchanged."""
        if literal in _ABSENT:
            return literal
        if literal[:1] == b"'":
            return self.value(literal)
        random = self._stream(literal)
        if literal[:2] == b"B'":  # a bit string
            return bytes(0x30 + (r & 1) if b in _DIGITS else b for b, r in zip(literal, random, strict=True))
        # a word (true, NaN) becomes a number: the only other literal without quotes
        preserved = _SIGNS if _NUMBER.fullmatch(literal) else b"+-"
        return bytes(b if b in preserved else 0x30 + r % 10 for b, r in zip(literal, random, strict=True))

    def json_literal(self, literal: bytes) -> bytes:
        """The filler of a SQL literal inside a JSON string: escapes stay, of characters as those of letters."""
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


_ROWS: Final = b"IUD"
_MESSAGE: Final = b"M"
_MESSAGE_HEAD: Final = 10  # letter, flags, LSN


def overwritten_message(payload: bytes, filler: Filler) -> tuple[bytes, bool]:
    """The overwritten message, and whether it was readable."""
    try:
        parse(payload)
        if payload[:1] == _MESSAGE:
            head, body = payload[:_MESSAGE_HEAD], payload[_MESSAGE_HEAD:]
            end = body.index(b"\0")  # after the prefix; then length and content
            return head + filler.value(body[:end]) + body[end : end + 5] + filler.value(body[end + 5 :]), True
        return (_row(payload, filler) if payload[0] in _ROWS else payload), True
    except DecodeError:
        return filler.value(payload), False


def _row(payload: bytes, filler: Filler) -> bytes:
    overwritten = bytearray(payload)
    offset = 5  # letter, OID
    while offset < len(payload):
        count = int.from_bytes(payload[offset + 1 : offset + 3], "big")  # after N, K or O
        offset += 3
        for _ in range(count):
            kind, offset = payload[offset : offset + 1], offset + 1
            if kind == b"t":
                size = int.from_bytes(payload[offset : offset + 4], "big")
                offset += 4
                overwritten[offset : offset + size] = filler.value(payload[offset : offset + size])
                offset += size
    return bytes(overwritten)


_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_LITERAL: Final = re.compile(rb"'[^']*+(?:''[^']*+)*+'|B'[01]*+'|[^ \t\r\n']++")
_STRING: Final = re.compile(rb'"((?:[^"\\]|\\.)*+)"', re.DOTALL)
_CONTENT: Final = b"content: "


def overwritten_record(
    payload: bytes, style: Style, *, batch: bool, codec: Codec, filler: Filler
) -> tuple[bytes, bool]:
    """The overwritten payload, and whether all of it was readable."""
    if records.bare(payload) is not None:
        return payload, True
    overwritten, readable = bytearray(payload), True
    try:
        pieces = list(_pieces(payload, style, batch=batch))
    except DecodeError:
        return filler.value(payload), False
    for start, end in pieces:
        piece = payload[start:end]
        try:
            overwritten[start:end] = _record(piece, style, codec, filler)
        except DecodeError:
            overwritten[start:end], readable = filler.value(piece), False
    return bytes(overwritten), readable


def _pieces(payload: bytes, style: Style, *, batch: bool) -> Iterator[tuple[int, int]]:
    """The bounds of the records or statements."""
    if style is Style.BINARY:
        offset: int | None = 0
        while offset is not None and (end := record_end(payload, offset)) is not None:
            yield offset + BODY, end
            offset = following(payload, end)
    elif batch:
        yield from ((start, start + len(statement)) for start, _, statement in frames(payload))
    else:
        yield 0, len(payload)


def _record(piece: bytes, style: Style, codec: Codec, filler: Filler) -> bytes:
    """Raises DecodeError."""
    if style is Style.BINARY:
        return _binary(piece, filler) if isinstance(record_of(piece, codec), Row) else piece
    if piece[:1] == b"{":
        return _json(piece, codec, filler)
    if piece[:6] == b"table ":
        serial = style is Style.SERIAL
        line = lines.table_line(piece, codec, None) if serial else None
        return _text(piece, codec, filler, serial=serial) if line is None else piece
    if lines.line_boundary(piece) is not None or piece[:2] == b"h\0":
        return piece
    head_size = piece.index(_CONTENT) + len(_CONTENT) if piece.startswith(lines.DDL_STARTS) and _CONTENT in piece else 0
    return piece[:head_size] + filler.value(piece[head_size:])  # the content of an unknown kind of line is unknown


def _binary(body: bytes, filler: Filler) -> bytes:
    """Overwrite a row that was parsed before, so that its lengths are valid."""
    overwritten, offset = bytearray(body), 1
    for _ in range(2):  # schema, table
        offset += 2 + _U16.unpack_from(body, offset)[0]
    while offset < len(body):
        (count,) = _U16.unpack_from(body, offset + 1)  # after N or O
        offset += 3
        for _ in range(count):
            offset += 2 + _U16.unpack_from(body, offset)[0] + 4  # name, type
            (size,) = _U32.unpack_from(body, offset)
            offset += 4
            if size != NULL:
                overwritten[offset : offset + size] = filler.value(body[offset : offset + size])
                offset += size
    return bytes(overwritten)


def _text(statement: bytes, codec: Codec, filler: Filler, *, serial: bool) -> bytes:
    _, shape = text.shape_of(statement, codec, None, serial=serial)
    parts, offset = [shape.between[0]], len(shape.between[0])
    for between in shape.between[1:]:
        match = _LITERAL.match(statement, offset)
        assert match is not None, "a literal that was read is one"
        parts += [filler.literal(match[0]), between]
        offset = match.end() + len(between)
    return b"".join(parts)


def _json(statement: bytes, codec: Codec, filler: Filler) -> bytes:
    _, shape = json.shape_of(statement, codec)
    if shape is None:  # not a format that servers write
        return filler.value(statement)
    old = statement.index(shape.between, len(shape.before))
    new, old_values = statement[len(shape.before) : old], statement[old + len(shape.between) : -len(shape.after)]
    arrays = [_STRING.sub(lambda m: b'"' + filler.json_literal(m[1]) + b'"', part) for part in (new, old_values)]
    return b"".join([shape.before, arrays[0], shape.between, arrays[1], shape.after])
