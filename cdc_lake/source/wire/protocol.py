"""The frontend/backend protocol, version 3, as bytes: what the client sends and what the server's messages hold.

Pure: no socket, no clock. Follows the PostgreSQL documentation, chapter "Message Formats", which the GaussDB family
keeps, with a protocol minor number of its own (51) that decides how a password is asked for. Any bytes give a value or
StreamProtocol: nothing reads past the end of a message.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from cdc_lake.errors import StreamProtocol

MINOR = 51
"""The protocol minor number of the family's own drivers: the password is then asked for with its iterations."""

HEAD = struct.Struct(">BI")
"""Before each message of the server: its letter, and its length without the letter."""

AUTHENTICATION, BACKEND_KEY, PARAMETER, READY = b"RKSZ"
ERROR, NOTICE, NOTIFICATION, NEGOTIATE = b"ENAv"
ROW_DESCRIPTION, DATA_ROW, COMMAND_COMPLETE, EMPTY_QUERY = b"TDCI"
COPY_DATA, COPY_DONE, COPY_IN, COPY_OUT, COPY_BOTH = b"dcGHW"

_MAJOR = 3
_SSL_REQUEST = (1234 << 16) | 5679
_SIZE = struct.Struct(">I")
_COUNT = struct.Struct(">H")
_LENGTH = struct.Struct(">i")
_COLUMN_FACTS = 18  # table, attribute, type, type size, modifier, format
_MAX_FIELD = 1 << 30  # one row value: the family's limit for values, and far below what would be an error


@dataclass(frozen=True, slots=True)
class ServerMessage:
    """An ErrorResponse or a notice: severity, SQLSTATE and texts as the server put them."""

    severity: str
    sqlstate: str
    message: str
    detail: str = ""
    hint: str = ""


def startup(parameters: Mapping[str, str], minor: int = MINOR) -> bytes:
    """The start-up packet; the order of the parameters is kept."""
    body = b"".join(text(name) + text(value) for name, value in parameters.items()) + b"\0"
    return struct.pack(">IHH", 8 + len(body), _MAJOR, minor) + body


def ssl_request() -> bytes:
    """Asks whether the server encrypts; the answer is the single letter S or N."""
    return struct.pack(">II", 8, _SSL_REQUEST)


def message(letter: bytes, body: bytes = b"") -> bytes:
    """A message of the client."""
    return letter + _SIZE.pack(4 + len(body)) + body


def query(sql: str) -> bytes:
    """A simple query, in UTF-8."""
    return message(b"Q", text(sql))


def password(answer: str) -> bytes:
    """The answer to an authentication request."""
    return message(b"p", text(answer))


def copy_data(payload: bytes) -> bytes:
    """Data inside a copy."""
    return message(b"d", payload)


def copy_fail(reason: str) -> bytes:
    """Refuses a copy that the server wants to be fed by."""
    return message(b"f", text(reason))


def terminate() -> bytes:
    """The end of the session."""
    return message(b"X")


def text(value: str) -> bytes:
    """A text with its terminator. What cannot be sent raises StreamProtocol."""
    try:
        raw = value.encode()
    except UnicodeEncodeError as wrong:
        raise StreamProtocol("a text that is no Unicode cannot be sent to the server") from wrong
    if b"\0" in raw:
        raise StreamProtocol("a text with a zero byte cannot be sent to the server", hint="take the zero byte out")
    return raw + b"\0"


def read_message(body: bytes) -> ServerMessage:
    """The fields of an ErrorResponse or a NoticeResponse; the family adds some letters of its own."""
    fields: dict[str, str] = {}
    for part in body.split(b"\0"):
        if part:
            # the server may not get as far as to set client_encoding: its words are shown as far as they can be read
            fields[chr(part[0])] = part[1:].decode(errors="replace")
    return ServerMessage(
        fields.get("S", "ERROR"), fields.get("C", ""), fields.get("M", ""), fields.get("D", ""), fields.get("H", "")
    )


def read_parameter(body: bytes) -> tuple[str, str]:
    """Name and value of a ParameterStatus."""
    parts = body.split(b"\0")
    if len(parts) != 3 or parts[2]:
        raise StreamProtocol(f"a parameter status of {len(body)} bytes without its two texts")
    return parts[0].decode(errors="replace"), parts[1].decode(errors="replace")


def read_columns(body: bytes) -> tuple[str, ...]:
    """The column names of a RowDescription."""
    names: list[str] = []
    at = 2
    for _ in range(_count(body)):
        end = body.find(b"\0", at)
        if end < 0 or end + 1 + _COLUMN_FACTS > len(body):
            raise StreamProtocol(f"a row description ends after {len(names)} columns")
        names.append(decoded(body[at:end]))
        at = end + 1 + _COLUMN_FACTS
    return tuple(names)


def read_row(body: bytes, columns: int) -> tuple[str | None, ...]:
    """The values of a DataRow as text, so many as were described; NULL is None."""
    if (count := _count(body)) != columns:
        raise StreamProtocol(f"a row of {count} values where {columns} columns were described")
    values: list[str | None] = []
    at = 2
    for _ in range(count):
        if at + 4 > len(body):
            raise StreamProtocol(f"a row ends after {len(values)} values")
        (size,) = _LENGTH.unpack_from(body, at)
        at += 4
        if size == -1:
            values.append(None)
            continue
        if not 0 <= size <= len(body) - at or size > _MAX_FIELD:
            raise StreamProtocol(f"a row whose value {len(values) + 1} has {size} bytes")
        values.append(decoded(body[at : at + size]))
        at += size
    return tuple(values)


def decoded(raw: bytes) -> str:
    """A text of an answer: UTF-8, as asked for at the start."""
    try:
        return raw.decode()
    except UnicodeDecodeError as wrong:
        hint = "a database of encoding SQL_ASCII may hold such text in its catalog; nothing converts it"
        raise StreamProtocol("the server answered with text that is not UTF-8", hint=hint) from wrong


def _count(body: bytes) -> int:
    if len(body) < 2:
        raise StreamProtocol(f"a message of {len(body)} bytes where a count was expected")
    return int(_COUNT.unpack_from(body)[0])
