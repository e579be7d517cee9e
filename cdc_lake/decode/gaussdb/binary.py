"""The row decoder of style b: the reference for the columnar one.

A payload is a sequence of records, all numbers big-endian and unsigned::

    record := u32 length  u64 lsn  body  ( 'P' | 'F' )      length: of lsn and body
    body   := 'B' u64 csn u64 first_lsn option*             option: X xid, T time, O origin id, N user
            | 'C' option*                                   option: X xid, T time
            | ( 'I' | 'U' | 'D' ) u16 n schema  u16 n table  [ 'N' tuple ]  [ 'O' tuple ]
            | 'h' u64 u64 i64                               GaussDB's heartbeat
    tuple  := u16 columns  { u16 n name  u32 type oid  u32 m value }        m = 0xFFFFFFFF: NULL

`F` ends the payload; after `P` comes another record or a length of zero, which ends it too. Only its length ends a
body, not its content: `P`, `F`, `N` and `O` occur as options as well. An unknown option hides those after it, so the
rest of such a body is skipped, and its letter reported. Schema and table are raw, column names are SQL identifiers. A
heartbeat may also be a payload of its own, without length and LSN. Source: openGauss 3.0 to 7.0, parallel_decode.cpp,
and recordings.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb import records as heartbeat
from cdc_lake.decode.gaussdb.records import Begin, Commit, Field, Operation, Record, Row
from cdc_lake.decode.gaussdb.text import unquote
from cdc_lake.errors import MalformedMessage, TruncatedMessage, UnexpectedRecord
from cdc_lake.model.relation import TableName

MORE: Final = ord("P")
END: Final = ord("F")
BODY: Final = 12
"""Bytes before a record's body: its length and its LSN."""
NULL: Final = 0xFFFFFFFF

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
LEAST: Final = 9
"""Length of a record with one letter: LSN and letter."""


def records_binary(payload: bytes, codec: Codec) -> list[Record]:
    """All records of one payload, in order. Raises DecodeError, whose offset counts from the payload's start."""
    if (beat := heartbeat.bare(payload)) is not None:
        return [beat]
    records: list[Record] = []
    offset: int | None = 0
    while offset is not None and (end := record_end(payload, offset)) is not None:
        (lsn,) = _U64.unpack_from(payload, offset + 4)
        records.append(record_of(payload, codec, lsn=lsn, offset=offset + BODY, end=end))
        offset = following(payload, end)
    return records


def record_end(payload: bytes, offset: int) -> int | None:
    """The end of the body of the record at `offset`; None for the zero length that ends a payload."""
    left = len(payload) - offset - 4
    if left < 0:
        raise TruncatedMessage(need=4, left=left + 4, offset=offset)
    (length,) = _U32.unpack_from(payload, offset)
    if not length:
        if left:
            raise MalformedMessage(f"{left} bytes after the length of zero that ends a payload", offset=offset + 4)
        return None
    if length < LEAST:
        raise MalformedMessage(f"a record of {length} bytes: an LSN and a letter need {LEAST}", offset=offset)
    if length + 1 > left:  # with the letter after it
        raise TruncatedMessage(need=length + 1, left=left, offset=offset + 4)
    end: int = offset + 4 + length
    return end


def following(payload: bytes, end: int) -> int | None:
    """The start of the record after the one that ends at `end`; None if the payload ends with `F`."""
    letter = payload[end]
    if letter == MORE:
        return end + 1
    if letter != END:
        raise UnexpectedRecord(f"{format_letter(letter)} after a record: expected `P` or `F`", offset=end)
    if left := len(payload) - end - 1:
        raise MalformedMessage(f"{left} bytes after the `F` that ends a payload", offset=end + 1)
    return None


def record_of(data: bytes, codec: Codec, *, lsn: int | None = None, offset: int = 0, end: int | None = None) -> Record:
    """Parse the record whose body is `data[offset:end]`, its letter first. Error offsets count from `data`'s start."""
    body = _Body(data, offset, len(data) if end is None else end, codec)
    letter = body.byte()
    match letter:
        case 0x42:
            csn, first_lsn = body.number(_U64), body.number(_U64)
            options, skipped = _options(body, "XTON")
            xid, time, origin_id, user = map(options.get, "XTON")
            return Begin(lsn, csn, first_lsn, xid, time, origin_id, user, skipped)
        case 0x43:
            options, skipped = _options(body, "XT")
            return Commit(lsn=lsn, xid=options.get("X"), time=options.get("T"), skipped=skipped)
        case 0x68:
            beat = heartbeat.read_heartbeat(data, body.take(heartbeat.SIZE - 1), lsn)
            if body.remaining_bytes:
                raise MalformedMessage(f"{body.remaining_bytes} bytes after the end of the record", offset=body.offset)
            return beat
        case 0x49 | 0x55 | 0x44:
            return _row(body, Operation(chr(letter)), lsn)
    raise UnexpectedRecord(f"a record of kind {format_letter(letter)}: expected one of B C I U D h", offset=offset)


def binary_table(record: bytes, codec: Codec) -> TableName | None:
    """The table in the head of a row in style b; None without such a head. Raises DecodeError."""
    if record[:1] not in (b"I", b"U", b"D"):
        return None
    middle = 3 + int.from_bytes(record[1:3], "big")
    end = middle + 2 + int.from_bytes(record[middle : middle + 2], "big")
    schema, name = record[3:middle], record[middle + 2 : end]
    if end > len(record) or not schema or not name:
        return None
    return TableName(codec.name(schema), codec.name(name))


def format_letter(letter: int) -> str:
    """A letter for an error message."""
    printed = _letter_text(letter)
    return f"`{printed}`" if len(printed) == 1 else printed


def _letter_text(letter: int) -> str:
    return chr(letter) if 0x21 <= letter < 0x7F else f"0x{letter:02x}"


class _Body:
    """A position in a record's body, moving forward only, never past the body's end."""

    __slots__ = ("_codec", "_data", "_end", "offset")

    def __init__(self, data: bytes, offset: int, end: int, codec: Codec) -> None:
        self._data = data
        self._end = end
        self._codec = codec
        self.offset = offset

    @property
    def remaining_bytes(self) -> int:
        """Number of bytes to the end of the body."""
        return self._end - self.offset

    def take(self, size: int) -> int:
        """Skip the next `size` bytes; returns where they start."""
        offset, left = self.offset, self._end - self.offset
        if size > left:
            raise TruncatedMessage(need=size, left=left, offset=offset)
        self.offset = offset + size
        return offset

    def byte(self) -> int:
        """The next byte."""
        return self._data[self.take(1)]

    def number(self, kind: struct.Struct) -> int:
        """The next number."""
        offset, next_offset = self.offset, self.offset + kind.size
        if next_offset > self._end:
            raise TruncatedMessage(need=kind.size, left=self._end - offset, offset=offset)
        self.offset = next_offset
        value: int = kind.unpack_from(self._data, offset)[0]
        return value

    def text(self, size: int) -> str:
        """The next `size` bytes as text."""
        offset = self.take(size)
        return self._codec.text(self._data[offset : offset + size], offset)

    def name(self) -> str:
        """The next name, after its length of two bytes."""
        size = self.number(_U16)
        offset = self.take(size)
        return self._codec.name(self._data[offset : offset + size], offset)


def _options(body: _Body, known_letters: str) -> tuple[dict[str, Any], str | None]:
    """The options, and the letter of the first unknown one."""
    options: dict[str, Any] = {}
    while body.remaining_bytes:
        offset = body.offset
        letter = chr(body.byte())
        if letter not in known_letters:
            return options, _letter_text(ord(letter))
        if letter in options:
            raise MalformedMessage(f"a second option `{letter}` in one record", offset=offset)
        match letter:
            case "X":
                options[letter] = body.number(_U64)
            case "O":
                options[letter] = body.number(_U32)
            case _:
                options[letter] = body.text(body.number(_U32))
    return options, None


def _row(body: _Body, operation: Operation, lsn: int | None) -> Row:
    offset = body.offset
    schema = body.name()
    name = body.name()
    if not schema or not name:
        raise MalformedMessage("a row of a table without a name or schema", offset=offset)
    new = old = None
    while body.remaining_bytes:
        offset = body.offset
        letter = body.byte()
        if letter == 0x4E and new is None:
            new = _tuple(body)
        elif letter == 0x4F and old is None:
            old = _tuple(body)
        else:
            text = f"{format_letter(letter)} in a row: expected `N` or `O`, each once at most"
            raise UnexpectedRecord(text, offset=offset)
    return Row(operation=operation, table=TableName(schema, name), new=new, old=old, lsn=lsn)


def _tuple(body: _Body) -> tuple[Field, ...]:
    fields = []
    for _ in range(body.number(_U16)):
        offset = body.offset + _U16.size
        name = unquote(body.name(), offset)
        oid, length = body.number(_U32), body.number(_U32)
        fields.append(Field(name, None if length == NULL else body.text(length), None, oid))
    return tuple(fields)
