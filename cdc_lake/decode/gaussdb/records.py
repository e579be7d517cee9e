"""The records that the GaussDB family's decoders print, one class for each kind, in whatever style they came.

Names are unquoted, LSNs numbers, values the output text of their type: `t` and not `true`, `101` and not `B'101'`,
whatever the style wrote. What a server did not send is None. Times are the server's text. Rows of one layout share one
tuple of names and one of types while the decoders cache it, so a layout is found by identity.

GaussDB's documentation says that a heartbeat begins with the letter h, followed by two positions and a time of eight
bytes each, big-endian; it does not say whether a length and an LSN precede it, nor the unit of the time, nor the text
form. So every reading is accepted: a payload of the letter and 24 bytes, with or without an end mark; a record with
that letter inside a batch; the unit by magnitude; and an unknown statement that begins with `h`.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from cdc_lake.model.change import Value
from cdc_lake.model.relation import TableName


class Style(enum.Enum):
    """The format of a stream: the first letter of `decode-style`, or one line per message (serial decoding)."""

    BINARY = "b"
    TEXT = "t"
    JSON = "j"
    SERIAL = "serial"


class Operation(enum.Enum):
    """The operation on a row."""

    INSERT = "I"
    UPDATE = "U"
    DELETE = "D"


@dataclass(frozen=True, slots=True)
class Field:
    """A value of a tuple; its type by name (text, JSON) or by OID (binary), the other one is None."""

    name: str
    value: Value
    type_name: str | None = None
    type_oid: int | None = None


@dataclass(frozen=True, slots=True)
class Begin:
    """The start of a transaction. `lsn`: of the record; serial BEGIN has no CSN, first_lsn may be invalid on 3.0.x.

    `skipped`: in style b, the letter of an unknown option; the options it hides are missing.
    """

    lsn: int | None = None
    csn: int | None = None
    first_lsn: int | None = None
    xid: int | None = None
    time: str | None = None
    origin_id: int | None = None
    user: str | None = None
    skipped: str | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of a transaction. `lsn`: end of the commit record, if the record has its own.

    `skipped`: as for Begin.
    """

    lsn: int | None = None
    csn: int | None = None
    xid: int | None = None
    time: str | None = None
    skipped: str | None = None


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """ABORT or PREPARE, only in area decoding: `word` says which."""

    word: str
    lsn: int | None = None
    xid: int | None = None
    time: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A change of one row. None: the server sent no such tuple."""

    operation: Operation
    table: TableName
    new: tuple[Field, ...] | None = None
    old: tuple[Field, ...] | None = None
    lsn: int | None = None


@dataclass(frozen=True, slots=True)
class Truncated:
    """TRUNCATE of at least one table."""

    tables: tuple[TableName, ...]
    cascade: bool = False
    restart_identity: bool = False
    lsn: int | None = None


@dataclass(frozen=True, slots=True)
class Ddl:
    """A DDL line of serial decoding, if a publication requests it; `content` is the part after `content: `."""

    prefix: str
    command: str
    content: str
    relation_id: int | None = None
    lsn: int | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """GaussDB's heartbeat: two positions (LSNs or CSNs, never to be acknowledged), and µs since 1970 UTC.

    All three are None if only its letter could be read (text and JSON, whose form is not documented).
    """

    read: int | None = None
    flushed: int | None = None
    newest: int | None = None
    lsn: int | None = None


@dataclass(frozen=True, slots=True)
class Other:
    """Any other line of serial decoding: reported, never an error."""

    text: str
    lsn: int | None = None


Record: TypeAlias = Begin | Commit | TransactionEnd | Row | Truncated | Ddl | Heartbeat | Other
"""Everything that a payload can contain."""


class Cells(NamedTuple):
    """One tuple of a row: unquoted names, type names as printed, values; all of one length."""

    names: tuple[str, ...]
    types: tuple[str, ...]
    values: tuple[Value, ...]

    def fields(self) -> tuple[Field, ...]:
        """The fields of a record."""
        return tuple(map(Field, self.names, self.values, self.types))


class RowCells(NamedTuple):
    """A change of one row. None: the server sent no such tuple."""

    operation: Operation
    table: TableName
    new: Cells | None
    old: Cells | None

    def record(self, lsn: int | None) -> Row:
        """The row as a record."""
        new = None if self.new is None else self.new.fields()
        return Row(self.operation, self.table, new, None if self.old is None else self.old.fields(), lsn)


LETTER: Final = b"h"
SIZE: Final = 25
"""Bytes of the letter and the three numbers."""
END_MARKS: Final = (b"", b"F", b"0", b"\0", b"\0\0\0\0")
"""Possible ends: `F` in style b, in batches of t and j a zero of an undocumented width, or the digit, or nothing."""

_NUMBERS: Final = struct.Struct(">QQq")


def bare(payload: bytes) -> Heartbeat | None:
    """Parse a payload that is a heartbeat without length and LSN; None if it is something else.

    A framed record cannot be mistaken for it, because its length would be above 1.7 GB, nor can text, because its
    position would be too large.
    """
    if payload[:2] == b"h\0" and payload[SIZE:] in END_MARKS and len(payload) >= SIZE:
        return read_heartbeat(payload, 1, None)
    return None


def of_statement(statement: bytes, lsn: int | None) -> Heartbeat:
    """Parse a heartbeat of style t or j. Never fails: an unreadable one has no numbers."""
    if statement[:2] == b"h\0" and len(statement) == SIZE:
        return read_heartbeat(statement, 1, lsn)
    return Heartbeat(lsn=lsn)


def read_heartbeat(data: bytes, offset: int, lsn: int | None) -> Heartbeat:
    """The heartbeat whose three numbers are at `offset`; the magnitude of its time determines the unit."""
    read, flushed, time = _NUMBERS.unpack_from(data, offset)
    unit = 1_000_000 if abs(time) < 10**11 else 1_000 if abs(time) < 10**14 else 1
    return Heartbeat(read=read, flushed=flushed, newest=time * unit, lsn=lsn)
