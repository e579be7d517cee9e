"""Lines that are no rows: boundaries of transactions in every known dialect, TRUNCATE, DDL, and what nobody knows.

::

    serial    BEGIN [n] [ORIGIN_ID n]            COMMIT [n] [(at time)] [CSN n]
    parallel  BEGIN CSN: n first_lsn: X/X [xid: n] [commit_time: time] [origin_id: n]
              commit [xid: n] [(at time)]
    older     commit_lsn: for first_lsn: (3.0.0 to 3.0.2, the value is the same); COMMIT without CSN
    GaussDB   COMMIT XID: n; the user's name in BEGIN, whose label no document shows: any with `user` in it is taken
    areas     ABORT [n] [(at time)]              PREPARE [n] [(at time)]
    6.0       table a.b, c.d: TRUNCATE: (no-flags) | [restart_seqs] [cascade]
              prefix: p, lsn: n, relid n, cmdtype: c, size: n, content: …        message: prefix p, relid n, …

A label nobody knows in a BEGIN is left out, as an unknown option is in style b. A BEGIN or COMMIT that cannot be read
is an error, any other unknown line of serial decoding is `Other`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from cdc_lake.decode.mppdb import identifiers
from cdc_lake.decode.mppdb.codec import Codec
from cdc_lake.decode.mppdb.records import Begin, Commit, Ddl, Ended, Other, Truncated
from cdc_lake.decode.mppdb.timestamps import TIME
from cdc_lake.errors import MalformedMessage

_MAX: Final = (1 << 64) - 1
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

_TABLE: Final = rf"{identifiers.NAME}\.{identifiers.NAME}"
_TRUNCATE: Final = re.compile(
    rf"table ({_TABLE}(?:, {_TABLE})*): TRUNCATE:(?: \(no-flags\)|( restart_seqs)?( cascade)?)"
)
_ONE_TABLE: Final = re.compile(_TABLE)
_NOTHING: Final = re.compile(rf"table {_TABLE}:".encode())
_DDL: Final = re.compile(
    rb"(?:prefix: (?P<prefix>[^,]*), lsn: (?P<lsn>[0-9]{1,20})|message: prefix (?P<message>[^,]*)), "
    rb"relid (?P<relation>[0-9]{1,10}), cmdtype: (?P<command>[^,]*), (?:size|sz): [0-9]+,? content: (?P<content>.*)",
    re.DOTALL,
)
DDL_STARTS: Final = (b"prefix: ", b"message: prefix ")
"""How a DDL line begins, of mppdb_decoding and of test_decoding."""


def boundary(statement: bytes, lsn: int | None = None, at: int = 0) -> Begin | Commit | None:
    """The BEGIN or COMMIT a statement is, in any dialect, with `lsn` as its own; None where it is neither.

    Raises MalformedMessage for one that cannot be read; `at` is the byte it stands at.
    """
    first = statement[:1]
    if first == b"B" and statement[:5] == b"BEGIN" and statement[5:6] in (b"", b" "):
        return _begin(statement, lsn, at)
    if first in (b"C", b"c") and statement[:6] in (b"COMMIT", b"commit") and statement[6:7] in (b"", b" "):
        return _commit(statement, lsn, at)
    return None


def line(statement: bytes, codec: Codec, lsn: int | None, at: int = 0) -> Ended | Ddl | Other:
    """Any other line of serial decoding that does not begin with `table`; `at`: where it stands."""
    return ddl(statement, codec, lsn, at) or _ended(statement, lsn, at) or _other(statement, codec, lsn)


def table_line(statement: bytes, codec: Codec, lsn: int | None, at: int = 0) -> Truncated | Other | None:
    """What a line of serial decoding that begins with `table` is, None for a row.

    test_decoding of the 3.0 line says of a row in ustore storage its table, and nothing else: that is `Other`.
    """
    if statement[-1:] == b":" and _NOTHING.fullmatch(statement):
        return _other(statement, codec, lsn)
    if b": TRUNCATE:" not in statement:
        return None
    try:
        parts = _TRUNCATE.fullmatch(codec.strict(statement))
    except UnicodeDecodeError:
        return None
    if parts is None:
        return None
    tables = tuple(identifiers.table_name(text, at) for text in _ONE_TABLE.findall(parts[1]))
    return Truncated(tables, cascade=parts[3] is not None, restart_identity=parts[2] is not None, lsn=lsn)


def ddl(statement: bytes, codec: Codec, lsn: int | None, at: int = 0) -> Ddl | None:
    """The DDL a line is, line feeds and all; None where it is none. Its own LSN goes before the one given."""
    if not statement.startswith(DDL_STARTS):
        return None
    parts = _DDL.fullmatch(statement)
    if parts is None:
        return None
    prefix = parts["message"] if parts["prefix"] is None else parts["prefix"]
    return Ddl(
        prefix=codec.name(prefix, at),
        command=codec.name(parts["command"], at),
        content=codec.text(parts["content"], at + parts.start("content")),
        relation_id=int(parts["relation"]),
        lsn=lsn if parts["lsn"] is None else _number(parts["lsn"], at),
    )


def _begin(statement: bytes, lsn: int | None, at: int) -> Begin:
    if not statement.startswith(b"BEGIN CSN: "):
        parts = _SERIAL_BEGIN.fullmatch(statement)
        if parts is None:
            raise MalformedMessage("a BEGIN that cannot be read", offset=at)
        return Begin(lsn=lsn, xid=_number(parts[1], at), origin_id=_number(parts[2], at))
    parts = _PARALLEL_BEGIN.match(statement)
    if parts is None:
        raise MalformedMessage("a BEGIN that cannot be read", offset=at)
    csn, high, low, xid, time, origin_id = parts.groups()
    begin = Begin(
        lsn=lsn,
        csn=_number(csn, at),
        first_lsn=int(high, 16) << 32 | int(low, 16),
        xid=_number(xid, at),
        time=None if time is None else time.decode(),
        origin_id=_number(origin_id, at),
    )
    return begin if parts.end() == len(statement) else _labelled(begin, statement, parts.end(), at)


def _labelled(begin: Begin, statement: bytes, known: int, at: int) -> Begin:
    """The BEGIN with what stands behind its known part: labels in another order, or of another product."""
    said: dict[str, str] = {}
    while known < len(statement):
        label = _LABEL.match(statement, known)
        if label is None or (name := label[1].decode().lower()) in said:
            raise MalformedMessage("a BEGIN that cannot be read", offset=at + known)
        said[name] = label[2].decode("utf-8", "backslashreplace")
        known = label.end()
    user = next((said[name] for name in said if "user" in name), None)
    time = said.get("commit_time")
    if time is not None and re.fullmatch(TIME, time) is None:
        raise MalformedMessage("a BEGIN whose time cannot be read", offset=at)
    return Begin(
        lsn=begin.lsn,
        csn=begin.csn,
        first_lsn=begin.first_lsn,
        xid=_said(said, "xid", begin.xid, at),
        time=begin.time if time is None else time,
        origin_id=_said(said, "origin_id", begin.origin_id, at),
        user=user,
    )


def _said(said: dict[str, str], label: str, before: int | None, at: int) -> int | None:
    text = said.get(label)
    if text is None:
        return before
    if before is not None or re.fullmatch("[0-9]{1,20}", text) is None:
        raise MalformedMessage(f"a BEGIN whose {label} cannot be read", offset=at)
    return _number(text.encode(), at)


def _commit(statement: bytes, lsn: int | None, at: int) -> Commit:
    parts = _COMMIT.fullmatch(statement)
    if parts is None:
        raise MalformedMessage("a COMMIT that cannot be read", offset=at)
    xid, time, csn = parts.groups()
    return Commit(lsn=lsn, csn=_number(csn, at), xid=_number(xid, at), time=None if time is None else time.decode())


def without_lsn(begin: Begin) -> Begin:
    """The same BEGIN where its LSN says nothing."""
    return replace(begin, lsn=None)


def _ended(statement: bytes, lsn: int | None, at: int) -> Ended | None:
    parts = _ENDED.fullmatch(statement)
    if parts is None:
        return None
    time = None if parts[3] is None else parts[3].decode()
    return Ended(word=parts[1].decode(), lsn=lsn, xid=_number(parts[2], at), time=time)


def _other(statement: bytes, codec: Codec, lsn: int | None) -> Other:
    return Other(statement.decode(codec.python, "backslashreplace"), lsn)


def _number(digits: bytes | None, at: int = 0) -> int | None:
    if digits is None:
        return None
    number = int(digits)
    if number > _MAX:
        raise MalformedMessage("a number above 64 bits", offset=at)
    return number
