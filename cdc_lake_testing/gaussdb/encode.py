"""The encoder: converts records to the bytes of a payload, in every style of the family's servers.

The inverse of `decode.gaussdb`, written from the same specification: encoding the records of a recorded payload gives
the payload again. `Print` adds the style and the dialect, `Framing` how a message of several records ends.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, Literal, assert_never

from cdc_lake.decode.gaussdb.records import (
    Begin,
    Commit,
    Ddl,
    Field,
    Heartbeat,
    Operation,
    Other,
    Record,
    Row,
    Style,
    TransactionEnd,
    Truncated,
)
from cdc_lake.model.change import UNCHANGED
from cdc_lake_testing.gaussdb.literals import identifier, json_string, literal

_U16: Final = Struct(">H").pack
_U32: Final = Struct(">I").pack
_U64: Final = Struct(">Q").pack
_HEAD: Final = Struct(">IQ").pack
_NULL: Final = b"\xff\xff\xff\xff"
_WORDS: Final = {Operation.INSERT: b"INSERT", Operation.UPDATE: b"UPDATE", Operation.DELETE: b"DELETE"}


class Ending(enum.Enum):
    """How a message ends: closed by its size, closed by the one-second timer, or not framed at all."""

    SIZE = "size"
    TIMER = "timer"
    BARE = "bare"


@dataclass(frozen=True, slots=True)
class Framing:
    """`batch`: records carry lengths (always so in style b)."""

    batch: bool = False
    ending: Ending = Ending.BARE


@dataclass(frozen=True, slots=True)
class Print:
    """How records are printed. `encoding`: a Python codec, the database's.

    `plugin` matters in serial style only, `label` in a parallel BEGIN of text and JSON, `upper_commit` in a parallel
    COMMIT of the same (GaussDB), `heartbeat_end` after a heartbeat in a batch of text or JSON.
    """

    style: Style
    encoding: str = "utf-8"
    plugin: Literal["mppdb_decoding", "test_decoding"] = "mppdb_decoding"
    label: Literal["first_lsn", "commit_lsn"] = "first_lsn"
    upper_commit: bool = False


def encode_payload(records: Sequence[Record], how: Print, framing: Framing) -> bytes:
    """The payload of one CopyData message (without the `w` header).

    Raises ValueError where the records do not fit: several without a batch, or a record this style never prints.
    """
    if how.style is Style.BINARY:
        if len(records) == 1 and isinstance(records[0], Heartbeat) and framing.ending is Ending.BARE:
            return heartbeat(records[0]) + b"F"
        body = b"P".join([binary_record(record, how.encoding) for record in records])
        return body + (b"F" if framing.ending is Ending.SIZE else b"P\0\0\0\0")
    if framing.batch:
        return b"".join([framed(record, how) for record in records]) + b"\0\0\0\0"
    if len(records) != 1:
        msg = f"{len(records)} records in a message without a batch"
        raise ValueError(msg)
    return statement(records[0], how)


def framed(record: Record, how: Print) -> bytes:
    """A record of text or JSON in a batch: length, LSN, statement."""
    text = statement(record, how)
    return _HEAD(len(text) + 8, record.lsn or 0) + text


def binary_record(record: Record, encoding: str) -> bytes:
    """A record of style b: length, LSN and body, without the letter after it."""
    match record:
        case Begin():
            body = (
                b"B" + _U64(record.csn or 0) + _U64(record.first_lsn or 0) + _options(record.xid, record.time, encoding)
            )
            if record.origin_id is not None:
                body += b"O" + _U32(record.origin_id)
            if record.user is not None:
                body += b"N" + _text32(record.user, encoding)
        case Commit():
            body = b"C" + _options(record.xid, record.time, encoding)
        case Row():
            body = _binary_row(record, encoding)
        case Heartbeat():
            body = heartbeat(record)
        case TransactionEnd() | Truncated() | Ddl() | Other():
            msg = f"style b never prints {type(record).__name__}"
            raise ValueError(msg)
        case _:
            assert_never(record)
    return _HEAD(len(body) + 8, record.lsn or 0) + body


def heartbeat(record: Heartbeat) -> bytes:
    """The 25 bytes of a heartbeat before its end mark; its time as milliseconds, as decoders of it expect."""
    newest = 0 if record.newest is None else record.newest // 1000
    return b"h" + _U64(record.read or 0) + _U64(record.flushed or 0) + newest.to_bytes(8, "big", signed=True)


def statement(record: Record, how: Print) -> bytes:  # noqa: PLR0911 - a case a kind
    """A record as text: the statement of styles t and j and of the serial plugins."""
    match record:
        case Begin():
            return (_serial_begin(record) if how.style is Style.SERIAL else _begin(record, how.label)).encode()
        case Commit():
            return (_serial_commit(record) if how.style is Style.SERIAL else _commit(record, how)).encode()
        case TransactionEnd():
            return (record.word + _number(" ", record.xid) + _at(record.time)).encode()
        case Row():
            if how.style is Style.JSON or (how.style is Style.SERIAL and how.plugin == "mppdb_decoding"):
                return _json_row(record, how.encoding)
            return _text_row(record, how)
        case Truncated():
            return _truncate(record, how.encoding)
        case Ddl():
            return _ddl(record, how)
        case Heartbeat():
            return heartbeat(record)
        case Other():
            return record.text.encode(how.encoding)
        case _:
            assert_never(record)


def _options(xid: int | None, time: str | None, encoding: str) -> bytes:
    options = b"" if xid is None else b"X" + _U64(xid)
    return options if time is None else options + b"T" + _text32(time, encoding)


def _text32(text: str, encoding: str) -> bytes:
    raw = text.encode(encoding)
    return _U32(len(raw)) + raw


def _binary_row(row: Row, encoding: str) -> bytes:
    parts = [row.operation.value.encode()]
    for name in (row.table.schema, row.table.name):
        raw = name.encode(encoding)
        parts += (_U16(len(raw)), raw)
    for letter, fields in ((b"N", row.new), (b"O", row.old)):
        if fields is None:
            continue
        parts += (letter, _U16(len(fields)))
        for field in fields:
            quoted = identifier(field.name).encode(encoding)
            parts += (_U16(len(quoted)), quoted, _U32(field.type_oid or 0))
            if field.value is None:
                parts.append(_NULL)
            elif field.value is UNCHANGED:
                msg = "style b has no mark for a value that was not sent"
                raise ValueError(msg)
            else:
                value = field.value.encode(encoding)
                parts += (_U32(len(value)), value)
    return b"".join(parts)


def _begin(record: Begin, label: str) -> str:
    lsn = record.first_lsn or 0
    text = f"BEGIN CSN: {record.csn} {label}: {lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
    text += _number(" xid: ", record.xid)
    if record.time is not None:
        text += f" commit_time: {record.time}"
    return text + _number(" origin_id: ", record.origin_id)


def _commit(record: Commit, how: Print) -> str:
    text = "COMMIT" if how.upper_commit else "commit"
    return text + _number(" XID: " if how.upper_commit else " xid: ", record.xid) + _at(record.time)


def _serial_begin(record: Begin) -> str:
    return "BEGIN" + _number(" ", record.xid) + _number(" ORIGIN_ID ", record.origin_id)


def _serial_commit(record: Commit) -> str:
    return "COMMIT" + _number(" ", record.xid) + _at(record.time) + _number(" CSN ", record.csn)


def _number(label: str, number: int | None) -> str:
    return "" if number is None else f"{label}{number}"


def _at(time: str | None) -> str:
    return "" if time is None else f" (at {time})"


def _json_row(row: Row, encoding: str) -> bytes:
    table = f"{identifier(row.table.schema)}.{identifier(row.table.name)}".encode(encoding)
    new, old = row.new or (), row.old or ()
    return b"".join(
        [
            b'{"table_name":' + json_string(table) + b',"op_type":"' + _WORDS[row.operation] + b'"',
            *_json_arrays(b"columns_", new, encoding),
            *_json_arrays(b"old_keys_", old, encoding),
            b"}",
        ]
    )


def _json_arrays(prefix: bytes, fields: Sequence[Field], encoding: str) -> Iterable[bytes]:
    names = (identifier(field.name).encode(encoding) for field in fields)
    types = ((field.type_name or "").encode(encoding) for field in fields)
    values = (literal(field.value, field.type_name or "", encoding) for field in fields)
    for part, strings in ((b"name", names), (b"type", types), (b"val", values)):
        yield b',"' + prefix + part + b'":[' + b",".join([json_string(s) for s in strings]) + b"]"


def _text_row(row: Row, how: Print) -> bytes:
    encoding = how.encoding
    schema, name = row.table.schema, row.table.name
    if how.style is Style.SERIAL:
        head = f"table {identifier(schema)}.{identifier(name)}: "
    else:
        head = f"table {schema} {name} "
    words = head.encode(encoding) + _WORDS[row.operation] + b":"
    if row.operation is Operation.DELETE:
        return words + _columns(row.old, encoding)
    if row.old is not None:
        words += b" old-key:" + _columns(row.old, encoding) + b" new-tuple:"
    return words + _columns(row.new, encoding)


def _columns(fields: Sequence[Field] | None, encoding: str) -> bytes:
    if fields is None:
        return b" (no-tuple-data)"
    return b"".join(
        [
            f" {identifier(field.name)}[{field.type_name}]:".encode(encoding)
            + literal(field.value, field.type_name or "", encoding)
            for field in fields
        ]
    )


def _truncate(record: Truncated, encoding: str) -> bytes:
    names = ", ".join(f"{identifier(t.schema)}.{identifier(t.name)}" for t in record.tables)
    flags = (" restart_seqs" if record.restart_identity else "") + (" cascade" if record.cascade else "")
    return f"table {names}: TRUNCATE:{flags or ' (no-flags)'}".encode(encoding)


def _ddl(record: Ddl, how: Print) -> bytes:
    content = record.content.encode(how.encoding)
    size = len(content.split(b"\ndecode to", 1)[0]) + 1  # the message's closing NUL counts
    relation = record.relation_id or 0
    if how.plugin == "test_decoding":
        head = f"message: prefix {record.prefix}, relid {relation}, cmdtype: {record.command}, sz: {size} content: "
    else:
        head = f"prefix: {record.prefix}, lsn: {record.lsn or 0}, relid {relation}, "
        head += f"cmdtype: {record.command}, size: {size}, content: "
    return head.encode(how.encoding) + content
