"""Records: what the GaussDB family's decoders print, one class a kind, whichever style they came in.

Names are unquoted, LSNs numbers, values the output text of their type: `t` and not `true`, `101` and not `B'101'`,
whatever the style wrote. What a server did not send is None. Times are the server's text.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from cdc_lake.model.change import Value
from cdc_lake.model.relation import TableName


class Style(enum.Enum):
    """How a stream is written: the first letter of `decode-style`, or one line a message (serial decoding)."""

    BINARY = "b"
    TEXT = "t"
    JSON = "j"
    SERIAL = "serial"


class Operation(enum.Enum):
    """What happened to a row."""

    INSERT = "I"
    UPDATE = "U"
    DELETE = "D"


@dataclass(frozen=True, slots=True)
class Field:
    """A value of a tuple; its type by name (text, JSON) or by OID (binary), the other is None."""

    name: str
    value: Value
    type_name: str | None = None
    type_oid: int | None = None


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction begins. `lsn`: of the record; serial BEGIN has no CSN, first_lsn may be garbage on 3.0.x.

    `skipped`: in style b, the letter of an option that nobody knows; what it hides is left out.
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
    """A transaction is complete. `lsn`: end of the commit record where the record has one of its own.

    `skipped`: as for Begin.
    """

    lsn: int | None = None
    csn: int | None = None
    xid: int | None = None
    time: str | None = None
    skipped: str | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """ABORT or PREPARE, of area decoding only: `word` says which."""

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
    """A DDL line of serial decoding, where a publication asks for it; `content` is what follows `content: `."""

    prefix: str
    command: str
    content: str
    relation_id: int | None = None
    lsn: int | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """GaussDB's heartbeat: two positions (LSNs or CSNs, never to be confirmed), and µs since 1970 UTC.

    All three are None where only its letter could be read (text and JSON, whose form no document shows).
    """

    read: int | None = None
    flushed: int | None = None
    newest: int | None = None
    lsn: int | None = None


@dataclass(frozen=True, slots=True)
class Other:
    """A line of serial decoding that is none of the above: noted, never an error."""

    text: str
    lsn: int | None = None


Record: TypeAlias = Begin | Commit | Ended | Row | Truncated | Ddl | Heartbeat | Other
"""Everything a payload can hold."""
