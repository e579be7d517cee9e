"""Payloads of the GaussDB family with every value of every row overwritten (`decode.filler`), and nothing else changed.

Names, types, lengths, positions and boundaries of transactions stay. A record that cannot be read is overwritten as a
whole, behind its length and LSN where it has them: what it holds is not known.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Final

from cdc_lake.decode.filler import Filler
from cdc_lake.decode.mppdb import heartbeat, json_rows, lines, text
from cdc_lake.decode.mppdb.binary import BODY, NULL, following, record_end, record_of
from cdc_lake.decode.mppdb.codec import Codec
from cdc_lake.decode.mppdb.framing import frames
from cdc_lake.decode.mppdb.records import Row, Style
from cdc_lake.errors import DecodeError

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_LITERAL: Final = re.compile(rb"'[^']*+(?:''[^']*+)*+'|B'[01]*+'|[^ \t\r\n']++")
_STRING: Final = re.compile(rb'"((?:[^"\\]|\\.)*+)"', re.DOTALL)
_CONTENT: Final = b"content: "


def overwritten(payload: bytes, style: Style, *, batch: bool, codec: Codec, filler: Filler) -> tuple[bytes, bool]:
    """The payload, and whether all of it could be read."""
    if heartbeat.bare(payload) is not None:
        return payload, True
    out, readable = bytearray(payload), True
    try:
        pieces = list(_pieces(payload, style, batch=batch))
    except DecodeError:
        return filler.value(payload), False
    for start, end in pieces:
        piece = payload[start:end]
        try:
            out[start:end] = _record(piece, style, codec, filler)
        except DecodeError:
            out[start:end], readable = filler.value(piece), False
    return bytes(out), readable


def _pieces(payload: bytes, style: Style, *, batch: bool) -> Iterator[tuple[int, int]]:
    """Where records or statements start and end."""
    if style is Style.BINARY:
        at: int | None = 0
        while at is not None and (end := record_end(payload, at)) is not None:
            yield at + BODY, end
            at = following(payload, end)
    elif batch:
        yield from ((start, start + len(statement)) for start, _, statement in frames(payload))
    else:
        yield 0, len(payload)


def _record(piece: bytes, style: Style, codec: Codec, filler: Filler) -> bytes:
    """Raises DecodeError."""
    if style is Style.BINARY:
        return _binary(piece, filler) if isinstance(record_of(piece, codec), Row) else piece
    return _statement(piece, codec, filler, serial=style is Style.SERIAL)


def _statement(piece: bytes, codec: Codec, filler: Filler, *, serial: bool) -> bytes:
    if piece[:1] == b"{":
        return _json(piece, codec, filler)
    if piece[:6] == b"table ":
        line = lines.table_line(piece, codec, None) if serial else None
        return _text(piece, codec, filler, serial=serial) if line is None else piece
    if lines.boundary(piece) is not None or piece[:2] == b"h\0":
        return piece
    known = piece.index(_CONTENT) + len(_CONTENT) if piece.startswith(lines.DDL_STARTS) and _CONTENT in piece else 0
    return piece[:known] + filler.value(piece[known:])  # of a line of a kind that nobody decodes, nothing is known


def _binary(body: bytes, filler: Filler) -> bytes:
    """A row that was read already, so that its lengths are known to be good."""
    out, at = bytearray(body), 1
    for _ in range(2):  # schema, table
        at += 2 + _U16.unpack_from(body, at)[0]
    while at < len(body):
        (count,) = _U16.unpack_from(body, at + 1)  # behind N or O
        at += 3
        for _ in range(count):
            at += 2 + _U16.unpack_from(body, at)[0] + 4  # name, type
            (size,) = _U32.unpack_from(body, at)
            at += 4
            if size != NULL:
                out[at : at + size] = filler.value(body[at : at + size])
                at += size
    return bytes(out)


def _text(statement: bytes, codec: Codec, filler: Filler, *, serial: bool) -> bytes:
    _, shape = text.shape_of(statement, codec, None, serial=serial)
    out, at = [shape.between[0]], len(shape.between[0])
    for behind in shape.between[1:]:
        found = _LITERAL.match(statement, at)
        assert found is not None, "a literal that was read is one"
        out += [filler.literal(found[0]), behind]
        at = found.end() + len(behind)
    return b"".join(out)


def _json(statement: bytes, codec: Codec, filler: Filler) -> bytes:
    _, shape = json_rows.shape_of(statement, codec)
    if shape is None:  # not as servers write it
        return filler.value(statement)
    old = statement.index(shape.between, len(shape.before))
    new, behind = statement[len(shape.before) : old], statement[old + len(shape.between) : -len(shape.after)]
    return b"".join([shape.before, _array(new, filler), shape.between, _array(behind, filler), shape.after])


def _array(strings: bytes, filler: Filler) -> bytes:
    return _STRING.sub(lambda found: b'"' + filler.json_literal(found[1]) + b'"', strings)
