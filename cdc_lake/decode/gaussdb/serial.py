"""The row decoder of the GaussDB family: payloads to records, for any plugin and style; the reference for fast ones.

A payload is the content of a `w` message after its header, or one row of `pg_logical_slot_peek_changes`. Lines that are
not rows, in every known dialect::

    serial    BEGIN [n] [ORIGIN_ID n]            COMMIT [n] [(at time)] [CSN n]
    parallel  BEGIN CSN: n first_lsn: X/X [xid: n] [commit_time: time] [origin_id: n]
              commit [xid: n] [(at time)]
    older     commit_lsn: for first_lsn: (3.0.0 to 3.0.2, the value is the same); COMMIT without CSN
    GaussDB   COMMIT XID: n; the user's name in BEGIN, whose label no document shows: any with `user` in it is taken
    areas     ABORT [n] [(at time)]              PREPARE [n] [(at time)]
    6.0       table a.b, c.d: TRUNCATE: (no-flags) | [restart_seqs] [cascade]
              prefix: p, lsn: n, relid n, cmdtype: c, size: n, content: …        message: prefix p, relid n, …

An unknown label in a BEGIN is ignored, like an unknown option in style b. An unreadable BEGIN or COMMIT is an error,
any other unknown line of serial decoding is `Other`.

Times are `YYYY-MM-DD HH:MM:SS[.ffffff]±HH[:MM[:SS]]`: without trailing zeros of the fraction, with more digits for
years above 9999, optionally followed by ` BC`. The offset is that of the server's session; historical ones have
seconds.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from datetime import date
from functools import lru_cache
from typing import Final

from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb import records as heartbeat
from cdc_lake.decode.gaussdb import text as identifiers
from cdc_lake.decode.gaussdb.binary import records_binary
from cdc_lake.decode.gaussdb.framing import frames, verify
from cdc_lake.decode.gaussdb.json import json_row
from cdc_lake.decode.gaussdb.records import Begin, Commit, Ddl, Other, Record, Style, TransactionEnd, Truncated
from cdc_lake.decode.gaussdb.text import TableHeads, heads, parallel_row, serial_row
from cdc_lake.errors import MalformedMessage, StyleMismatch, UnknownStatement, UnreadableTime
from cdc_lake.model.relation import TableName

TIME: Final = (
    r"[0-9]{4,7}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?[-+][0-9]{2}(?::[0-9]{2}){0,2}(?: BC)?"
)
"""Pattern of a time, without groups."""

_PARTS: Final = re.compile(
    r"([0-9]{4,7})-([0-9]{2})-([0-9]{2}) ([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?"
    r"([-+])([0-9]{2})(?::([0-9]{2}))?(?::([0-9]{2}))?( BC)?"
)
_ROOM: Final = 1 << 63
"""Limit of microseconds in a column of times, before and after 1970: up to the year 294247."""


def micros(text: str) -> int:
    """Microseconds since 1970-01-01 UTC. Raises UnreadableTime."""
    parts = _PARTS.fullmatch(text)
    if parts is None:
        raise UnreadableTime
    year, month, day, hour, minute, second = map(int, parts.groups()[:6])
    fraction, sign, *offset, era = parts.groups()[6:]
    if era:
        year = 1 - year
    east, south, seconds = (int(part or 0) for part in offset)
    if hour > 23 or minute > 59 or second > 60 or south > 59 or seconds > 59:
        raise UnreadableTime
    away = east * 3600 + south * 60 + seconds
    utc = hour * 3600 + minute * 60 + second + (away if sign == "-" else -away)
    total = (_days(year, month, day) * 86_400 + utc) * 1_000_000 + int((fraction or "").ljust(6, "0"))
    if not -_ROOM <= total < _ROOM:
        raise UnreadableTime
    return total


@lru_cache(maxsize=64)
def _days(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 in the proleptic Gregorian calendar, where year 0 is 1 BC. Raises UnreadableTime."""
    eras, past = divmod(year - 1, 400)  # of 146,097 days, after which the calendar repeats
    try:
        of_era = date(past + 1, month, day).toordinal()
    except ValueError:
        raise UnreadableTime from None
    return eras * 146_097 + of_era - date(1970, 1, 1).toordinal()


_AT: Final = TIME.encode()
_NUMBER: Final = rb"([0-9]{1,20})"
_LSN: Final = rb"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})"

_SERIAL_BEGIN: Final = re.compile(rb"BEGIN(?: " + _NUMBER + rb")?(?: ORIGIN_ID " + _NUMBER + rb")?")
_PARALLEL_BEGIN: Final = re.compile(
    rb"BEGIN CSN: " + _NUMBER + rb" (?:first|commit)_lsn: " + _LSN + rb"(?: xid: " + _NUMBER + rb")?"
    rb"(?: commit_time: (" + _AT + rb"))?(?: origin_id: " + _NUMBER + rb")?"
)
_LABEL: Final = re.compile(rb" ([A-Za-z_]+): (.*?)(?= [A-Za-z_]+: |\Z)", re.DOTALL)
_COMMIT: Final = re.compile(
    rb"commit(?: (?:xid: )?" + _NUMBER + rb")?(?: \(at (" + _AT + rb")\))?(?: csn:? " + _NUMBER + rb")?", re.IGNORECASE
)
_ENDED: Final = re.compile(rb"(ABORT|PREPARE)(?: " + _NUMBER + rb")?(?: \(at (" + _AT + rb")\))?")

_TABLE_PATTERN: Final = rf"{identifiers.NAME}\.{identifiers.NAME}"
_TRUNCATE: Final = re.compile(
    rf"table ({_TABLE_PATTERN}(?:, {_TABLE_PATTERN})*): TRUNCATE:(?: \(no-flags\)|( restart_seqs)?( cascade)?)"
)
_NOTHING: Final = re.compile(rf"table {_TABLE_PATTERN}:".encode())
_DDL: Final = re.compile(
    rb"(?:prefix: (?P<prefix>[^,]*), lsn: (?P<lsn>[0-9]{1,20})|message: prefix (?P<message>[^,]*)), "
    rb"relid (?P<relation>[0-9]{1,10}), cmdtype: (?P<command>[^,]*), (?:size|sz): [0-9]+,? content: (?P<content>.*)",
    re.DOTALL,
)
DDL_STARTS: Final = (b"prefix: ", b"message: prefix ")
"""Prefixes of DDL lines, of mppdb_decoding and of test_decoding."""


def line_boundary(statement: bytes, lsn: int | None = None, offset: int = 0) -> Begin | Commit | None:
    """Parse a BEGIN or COMMIT, in any dialect, with `lsn` as its own; None for anything else.

    Raises MalformedMessage for an unreadable one; `offset` is its byte position.
    """
    first = statement[:1]
    if first == b"B" and statement[:5] == b"BEGIN" and statement[5:6] in (b"", b" "):
        return _begin(statement, lsn, offset)
    if first in (b"C", b"c") and statement[:6] in (b"COMMIT", b"commit") and statement[6:7] in (b"", b" "):
        return _commit(statement, lsn, offset)
    return None


def line(statement: bytes, codec: Codec, lsn: int | None) -> TransactionEnd | Ddl | Other:
    """Parse any other line of serial decoding that does not begin with `table`."""
    if (parts := _ENDED.fullmatch(statement)) is not None:
        time = None if parts[3] is None else parts[3].decode()
        return TransactionEnd(word=parts[1].decode(), lsn=lsn, xid=_number(parts[2]), time=time)
    return ddl(statement, codec, lsn) or _other_line(statement, codec, lsn)


def table_line(statement: bytes, codec: Codec, lsn: int | None) -> Truncated | Other | None:
    """Parse a line of serial decoding that begins with `table`; None for a row.

    test_decoding of the 3.0 line prints only the table of a row in ustore storage: that is `Other`.
    """
    if statement[-1:] == b":" and _NOTHING.fullmatch(statement):
        return _other_line(statement, codec, lsn)
    if b": TRUNCATE:" not in statement:
        return None
    try:
        parts = _TRUNCATE.fullmatch(codec.strict(statement))
    except UnicodeDecodeError:
        return None
    if parts is None:
        return None
    tables = tuple(identifiers.table_name(text) for text in re.findall(_TABLE_PATTERN, parts[1]))
    return Truncated(tables, cascade=parts[3] is not None, restart_identity=parts[2] is not None, lsn=lsn)


def ddl(statement: bytes, codec: Codec, lsn: int | None, offset: int = 0) -> Ddl | None:
    """Parse a DDL line with its line feeds; None for anything else. Its own LSN takes precedence."""
    if not statement.startswith(DDL_STARTS):
        return None
    parts = _DDL.fullmatch(statement)
    if parts is None:
        return None
    prefix = parts["message"] if parts["prefix"] is None else parts["prefix"]
    return Ddl(
        prefix=codec.name(prefix, offset),
        command=codec.name(parts["command"], offset),
        content=codec.text(parts["content"], offset + parts.start("content")),
        relation_id=int(parts["relation"]),
        lsn=lsn if parts["lsn"] is None else _number(parts["lsn"], offset),
    )


def _begin(statement: bytes, lsn: int | None, offset: int) -> Begin:
    if not statement.startswith(b"BEGIN CSN: "):
        parts = _SERIAL_BEGIN.fullmatch(statement)
        if parts is None:
            raise MalformedMessage("a BEGIN that cannot be read", offset=offset)
        return Begin(lsn=lsn, xid=_number(parts[1], offset), origin_id=_number(parts[2], offset))
    parts = _PARALLEL_BEGIN.match(statement)
    if parts is None:
        raise MalformedMessage("a BEGIN that cannot be read", offset=offset)
    csn, high, low, xid, time, origin_id = parts.groups()
    begin = Begin(
        lsn=lsn,
        csn=_number(csn, offset),
        first_lsn=int(high, 16) << 32 | int(low, 16),
        xid=_number(xid, offset),
        time=None if time is None else time.decode(),
        origin_id=_number(origin_id, offset),
    )
    return begin if parts.end() == len(statement) else _read_labels(begin, statement, parts.end(), offset)


def _read_labels(begin: Begin, statement: bytes, position: int, offset: int) -> Begin:
    """The BEGIN with the labels after its known part, in another order or of another product."""
    labels: dict[str, str] = {}
    while position < len(statement):
        label = _LABEL.match(statement, position)
        if label is None or (name := label[1].decode().lower()) in labels:
            raise MalformedMessage("a BEGIN that cannot be read", offset=offset + position)
        labels[name] = label[2].decode("utf-8", "backslashreplace")
        position = label.end()
    user = next((labels[name] for name in labels if "user" in name), None)
    time = labels.get("commit_time")
    if time is not None and re.fullmatch(TIME, time) is None:
        raise MalformedMessage("a BEGIN whose time cannot be read", offset=offset)
    return replace(
        begin,
        xid=_label_number(labels, "xid", begin.xid, offset),
        time=begin.time if time is None else time,
        origin_id=_label_number(labels, "origin_id", begin.origin_id, offset),
        user=user,
    )


def _label_number(labels: dict[str, str], label: str, before: int | None, offset: int) -> int | None:
    text = labels.get(label)
    if text is None:
        return before
    if before is not None or re.fullmatch("[0-9]{1,20}", text) is None:
        raise MalformedMessage(f"a BEGIN whose {label} cannot be read", offset=offset)
    return _number(text.encode(), offset)


def _commit(statement: bytes, lsn: int | None, offset: int) -> Commit:
    parts = _COMMIT.fullmatch(statement)
    if parts is None:
        raise MalformedMessage("a COMMIT that cannot be read", offset=offset)
    xid, time, csn = parts.groups()
    return Commit(
        lsn=lsn, csn=_number(csn, offset), xid=_number(xid, offset), time=None if time is None else time.decode()
    )


def _other_line(statement: bytes, codec: Codec, lsn: int | None) -> Other:
    return Other(statement.decode(codec.python, "backslashreplace"), lsn)


def _number(digits: bytes | None, offset: int = 0) -> int | None:
    if digits is None:
        return None
    number = int(digits)
    if number >= 1 << 64:
        raise MalformedMessage("a number that exceeds 64 bits", offset=offset)
    return number


_BRACE: Final = b"{"
_TABLE_PREFIX: Final = b"table "


def records(
    payload: bytes,
    style: Style,
    *,
    batch: bool,
    codec: Codec,
    header_lsn: int | None = None,
    plugin: str = "mppdb_decoding",
    tables: Collection[TableName] = frozenset(),
) -> list[Record]:
    """All records of one payload, in order.

    `header_lsn` (of the `w` header, or the column `location`) is the LSN of records without their own: of all in serial
    decoding, of all but COMMIT, whose end it is not, in styles t and j without batches. `plugin` is that of the slot;
    parallel decoding does not use it. `tables` resolves ambiguous heads of style t; a frozenset is fast.

    Raises DecodeError, whose offset counts from the payload's start.
    """
    verify(payload, style, batch=batch)
    if style is Style.BINARY:
        return records_binary(payload, codec)
    if (beat := heartbeat.bare(payload)) is not None:
        return [beat]
    if style is Style.SERIAL:
        return [serial_record(payload, codec, header_lsn, plugin=plugin)]
    table_heads = heads(frozenset(tables), codec) if tables else None
    if not batch:
        record = parallel_record(payload, style, codec, header_lsn, table_heads=table_heads, end_lsn=None)
        return [record]
    return [
        parallel_record(statement, style, codec, lsn, table_heads=table_heads, end_lsn=lsn, offset=offset)
        for offset, lsn, statement in frames(payload)
    ]


def serial_record(statement: bytes, codec: Codec, lsn: int | None = None, *, plugin: str = "mppdb_decoding") -> Record:
    """Parse one line of serial decoding, of mppdb_decoding or test_decoding.

    A BEGIN without an LSN (`skip-empty-xacts` sends zero) has None. Raises DecodeError.
    """
    if plugin == "sql_decoding":
        raise UnknownStatement("sql_decoding prints no column names and cannot be captured", offset=0)
    if (boundary := line_boundary(statement, lsn)) is not None:
        return boundary if lsn or not isinstance(boundary, Begin) else replace(boundary, lsn=None)
    if statement[:1] == _BRACE:
        return json_row(statement, codec).record(lsn)
    if statement[:6] == _TABLE_PREFIX:
        record = table_line(statement, codec, lsn)
        return serial_row(statement, codec).record(lsn) if record is None else record
    return line(statement, codec, lsn)


def parallel_record(
    statement: bytes,
    style: Style,
    codec: Codec,
    lsn: int | None = None,
    *,
    end_lsn: int | None,
    table_heads: TableHeads | None = None,
    offset: int = 0,
) -> Record:
    """Parse one statement of style t or j at byte `offset`. `end_lsn` is that of a COMMIT. Raises DecodeError."""
    first = statement[:1]
    if first == _BRACE:
        if style is not Style.JSON:
            raise StyleMismatch(asked="style t", actual="style j", offset=offset)
        return json_row(statement, codec, offset).record(lsn)
    if statement[:6] == _TABLE_PREFIX:
        if style is not Style.TEXT:
            raise StyleMismatch(asked="style j", actual="style t", offset=offset)
        return parallel_row(statement, codec, table_heads, offset).record(lsn)
    boundary = line_boundary(statement, lsn if first == b"B" else end_lsn, offset)
    if boundary is not None:
        return boundary
    if first == heartbeat.LETTER:
        return heartbeat.of_statement(statement, lsn)
    record = ddl(statement, codec, lsn, offset)
    if record is None:
        raise UnknownStatement("a statement that is neither a transaction boundary nor a row", offset=offset)
    return record
