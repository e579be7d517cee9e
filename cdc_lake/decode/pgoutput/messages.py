"""The messages of pgoutput protocol version 1, one class per letter, and a bounds-checked reader.

LSNs are numbers, times microseconds since 1970-01-01 UTC, names as the server stores them; numbers are big-endian,
strings UTF-8. For any bytes, a read returns a value or raises a `DecodeError` with the offset: never a `struct.error`
or an `IndexError`. Specification: PostgreSQL's documentation, "Logical Replication Message Formats".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TypeAlias

from cdc_lake.decode.encoding import UndecodableText
from cdc_lake.errors import InvalidText, MalformedMessage, TruncatedMessage
from cdc_lake.model.change import OldKind, Tuple
from cdc_lake.model.relation import ReplicaIdentity, TableName


@dataclass(frozen=True, slots=True)
class Begin:
    """`B`: the LSN of the commit record, commit time in µs since 1970 UTC, transaction id."""

    final_lsn: int
    commit_ts: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """`C`: the commit record's LSN, the end LSN of the transaction, commit time in µs since 1970 UTC."""

    flags: int
    commit_lsn: int
    end_lsn: int
    commit_ts: int


@dataclass(frozen=True, slots=True)
class OriginMessage:
    """`O`: the origin of the transaction, with its commit LSN there."""

    lsn: int
    name: str


@dataclass(frozen=True, slots=True)
class AnnouncedColumn:
    """A column of a relation message."""

    name: str
    type_oid: int
    modifier: int
    key: bool


@dataclass(frozen=True, slots=True)
class RelationMessage:
    """`R`: a table's layout, without the primary key and type names, which come from the catalog."""

    oid: int
    table: TableName
    identity: ReplicaIdentity
    columns: tuple[AnnouncedColumn, ...]


@dataclass(frozen=True, slots=True)
class TypeMessage:
    """`Y`: the name of a type that is not built in."""

    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class InsertMessage:
    """`I`."""

    oid: int
    new: Tuple


@dataclass(frozen=True, slots=True)
class UpdateMessage:
    """`U`; `old` and `old_kind` are None together."""

    oid: int
    new: Tuple
    old: Tuple | None
    old_kind: OldKind | None


@dataclass(frozen=True, slots=True)
class DeleteMessage:
    """`D`."""

    oid: int
    old: Tuple
    old_kind: OldKind


@dataclass(frozen=True, slots=True)
class TruncateMessage:
    """`T`: at least one table."""

    oids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """`M`: what `pg_logical_emit_message` wrote."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


WireMessage: TypeAlias = (
    Begin
    | Commit
    | OriginMessage
    | RelationMessage
    | TypeMessage
    | InsertMessage
    | UpdateMessage
    | DeleteMessage
    | TruncateMessage
    | LogicalMessage
)
"""Every message of protocol version 1."""


class Reader:
    """A position in a message, moving forward only. `offset`: of the next byte; `lenient`: values may be invalid text
    (`UndecodableText`).
    """

    __slots__ = ("_data", "_lenient", "offset")

    def __init__(self, data: bytes, *, lenient: bool = False) -> None:
        self._data = data
        self._lenient = lenient
        self.offset = 0

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        offset, left = self.offset, len(self._data) - self.offset
        if not 0 <= size <= left:
            raise TruncatedMessage(need=size, left=left, offset=offset)
        self.offset = offset + size
        return self._data[offset : self.offset]

    def u8(self) -> int:
        """An unsigned byte."""
        offset = self.offset
        if len(self._data) - offset < 1:
            raise TruncatedMessage(need=1, left=len(self._data) - offset, offset=offset)
        self.offset = offset + 1
        return int.from_bytes(self._data[offset : offset + 1])

    def u16(self) -> int:
        """An unsigned 16-bit number."""
        offset = self.offset
        if len(self._data) - offset < 2:
            raise TruncatedMessage(need=2, left=len(self._data) - offset, offset=offset)
        self.offset = offset + 2
        return int.from_bytes(self._data[offset : offset + 2])

    def i32(self) -> int:
        """A signed 32-bit number."""
        offset = self.offset
        if len(self._data) - offset < 4:
            raise TruncatedMessage(need=4, left=len(self._data) - offset, offset=offset)
        self.offset = offset + 4
        return int.from_bytes(self._data[offset : offset + 4], signed=True)

    def u32(self) -> int:
        """An unsigned 32-bit number: an OID, a transaction id, a length."""
        offset = self.offset
        if len(self._data) - offset < 4:
            raise TruncatedMessage(need=4, left=len(self._data) - offset, offset=offset)
        self.offset = offset + 4
        return int.from_bytes(self._data[offset : offset + 4])

    def i64(self) -> int:
        """A signed 64-bit number."""
        offset = self.offset
        if len(self._data) - offset < 8:
            raise TruncatedMessage(need=8, left=len(self._data) - offset, offset=offset)
        self.offset = offset + 8
        return int.from_bytes(self._data[offset : offset + 8], signed=True)

    def lsn(self) -> int:
        """A WAL position."""
        offset = self.offset
        return storable(self.i64(), offset)

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        """Several numbers at once."""
        return layout.unpack(self.take(layout.size))

    def text(self, size: int) -> str:
        """The next `size` bytes, a value, as UTF-8."""
        offset, left = self.offset, len(self._data) - self.offset
        if size > left:
            raise TruncatedMessage(need=size, left=left, offset=offset)
        self.offset = offset + size
        data = self._data[offset : self.offset]
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            wrong = offset + error.start
        if self._lenient:
            return UndecodableText.from_bytes(data, wrong)
        raise InvalidText(offset=wrong)  # raised here, because the cause would contain the value

    def cstring(self) -> str:
        """A string up to its terminating zero byte, which is read too."""
        offset = self.offset
        end = self._data.find(b"\x00", offset)
        if end < 0:
            left = len(self._data) - offset
            raise TruncatedMessage(need=left + 1, left=left, offset=offset)
        self.offset = end + 1
        return utf8(self._data[offset:end], offset)

    def finish(self) -> None:
        """Refuse bytes after the end of the message."""
        if left := len(self._data) - self.offset:
            raise MalformedMessage(f"{left} bytes after the end of the message", offset=self.offset)


def storable(lsn: int, offset: int) -> int:
    """Check a WAL position read as a signed number at `offset`: more than 63 bits could not be stored, and never
    occur.
    """
    if lsn < 0:
        raise MalformedMessage("a WAL position that exceeds 63 bits", offset=offset)
    return lsn


def utf8(data: bytes, offset: int = 0) -> str:
    """The text of bytes at `offset`. Raises InvalidText."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        wrong = offset + error.start
    # raised here, because the cause would contain the value
    raise InvalidText(offset=wrong)
