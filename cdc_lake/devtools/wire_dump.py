"""Converts messages of a stream to JSON objects, one for each record, for `inspect payload` and `replay`.

    type       begin commit insert update delete truncate ddl heartbeat abort prepare other
    lsn        of the record, `0/2816A28`; first_lsn: of BEGIN
    csn, xid   numbers; origin_id, user: of BEGIN; timestamp: the server's text
    schema, table    of a row; a truncate has `tables`, a list of these pairs
    new, old   lists of {name, type | type_oid, value}: value null is SQL NULL; an unsent value has
               "unchanged": true and no value. An unsent tuple has no list

Inapplicable keys are absent, never null. pgoutput also has relation (relation_oid, replica_identity, columns),
type, origin and message (prefix, content, transactional); commit has `end_lsn`, `old_kind` is key or full. A change of
a relation that was not announced has its `relation_oid` instead of a name, and columns whose `name` is null.

The format of a GaussDB family payload is detected from its first bytes, only for `inspect payload`: a framed payload
begins with the top byte of a length, which below 1 GiB is not a letter, a bare line with a letter or a brace.
Specification: PostgreSQL's documentation, "Logical Replication Message Formats".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias, assert_never

from cdc_lake.decode.gaussdb import records
from cdc_lake.decode.pgoutput import messages, parser
from cdc_lake.decode.pgoutput.binary_values import BinaryValue
from cdc_lake.decode.test_decoding import MessageLine, PhaseLine
from cdc_lake.errors import UnknownStatement
from cdc_lake.model.change import UNCHANGED, OldKind, Tuple, Value
from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import TableName


def described_line(parsed_line: MessageLine | PhaseLine, lsn: int | None) -> Described:
    """The JSON object of a line, in the form of `devtools.wire_dump`."""
    match parsed_line:
        case MessageLine(transactional=transactional, prefix=prefix, content=content):
            body = {"prefix": prefix, "transactional": transactional, "content": content}
            return present(type="message", lsn=lsn_text(lsn), **body)
        case PhaseLine(kind=kind, gid=gid, xid=xid, time=time):
            return present(type=kind, lsn=lsn_text(lsn), gid=gid, xid=xid, timestamp=time)


Described: TypeAlias = dict[str, Any]
"""A JSON object."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ROW_OPERATIONS: Final = {
    records.Operation.INSERT: "insert",
    records.Operation.UPDATE: "update",
    records.Operation.DELETE: "delete",
}


def describe(record: records.Record) -> Described:  # noqa: PLR0911  # one return a kind of record
    """The object of one record; its `type` first."""
    match record:
        case records.Begin(lsn=lsn, csn=csn, first_lsn=first, xid=xid, time=time, origin_id=origin, user=user):
            numbers = {"lsn": lsn_text(lsn), "csn": csn, "first_lsn": lsn_text(first), "xid": xid}
            more = {"timestamp": time, "origin_id": origin, "user": user, "skipped_option": record.skipped}
            return present(type="begin", **numbers, **more)
        case records.Commit(lsn=lsn, csn=csn, xid=xid, time=time, skipped=skipped):
            numbers = {"lsn": lsn_text(lsn), "csn": csn, "xid": xid}
            return present(type="commit", **numbers, timestamp=time, skipped_option=skipped)
        case records.TransactionEnd(word=word, lsn=lsn, xid=xid, time=time):
            return present(type=word.lower(), lsn=lsn_text(lsn), xid=xid, timestamp=time)
        case records.Row(operation=operation, lsn=lsn, table=table):
            tuples = {"new": _tuple(record.new), "old": _tuple(record.old)}
            return present(type=_ROW_OPERATIONS[operation], lsn=lsn_text(lsn), **table_object(table), **tuples)
        case records.Truncated(lsn=lsn, cascade=cascade, restart_identity=restart):
            tables = tables_object(table_object(table) for table in record.tables)
            head = present(type="truncate", lsn=lsn_text(lsn))
            return {**head, **tables, "cascade": cascade, "restart_identity": restart}
        case records.Ddl(prefix=prefix, command=command, content=content, relation_id=oid, lsn=lsn):
            body = {"prefix": prefix, "command": command, "relation_oid": oid, "content": content}
            return present(type="ddl", lsn=lsn_text(lsn), **body)
        case records.Heartbeat(read=read, flushed=flushed, newest=newest, lsn=lsn):
            # `read` and `flushed` are numbers, because the stream does not show whether they are LSNs or CSNs
            body = {"read": read, "flushed": flushed, "timestamp": time_text(newest)}
            return present(type="heartbeat", lsn=lsn_text(read if lsn is None else lsn), **body)
        case records.Other(text=text, lsn=lsn):
            return present(type="other", lsn=lsn_text(lsn), text=text)
        case _ as never:
            assert_never(never)


def present(**fields: object) -> Described:
    """An object of the fields that are not None."""
    return {key: value for key, value in fields.items() if value is not None}


def lsn_text(value: int | None) -> str | None:
    """A WAL position as servers print it."""
    return None if value is None else str(Lsn(value))


def time_text(micros: int | None) -> str | int | None:
    """Microseconds since 1970 UTC as ISO 8601; as a number outside the years 1 to 9999."""
    if micros is None:
        return None
    try:
        return (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds")
    except OverflowError:
        return micros


def value_object(value: Value) -> Described:
    """The value part of a column: `value`, or `unchanged`."""
    return {"unchanged": True} if value is UNCHANGED else {"value": value}


def table_object(table: TableName) -> Described:
    """A table's name, its parts unquoted."""
    return {"schema": table.schema, "table": table.name}


def tables_object(tables: Iterable[Described]) -> Described:
    """The tables of a truncate; a single one is also given by name beside the list."""
    listed = list(tables)
    return {**(listed[0] if len(listed) == 1 else {}), "tables": listed}


def _tuple(fields: tuple[records.Field, ...] | None) -> list[Described] | None:
    if fields is None:
        return None
    return [
        present(name=field.name, type=field.type_name, type_oid=field.type_oid) | value_object(field.value)
        for field in fields
    ]


def _describe_later(message: parser.StreamMessage | parser.PreparedMessage) -> Described:  # noqa: PLR0911  # one return a kind
    """The object of a message of protocol versions 2 to 4."""
    match message:
        case parser.StreamStart(xid=xid, first=first):
            return {"type": "stream_start", "xid": xid, "first": first}
        case parser.StreamStop():
            return {"type": "stream_stop"}
        case parser.StreamCommit(xid=xid, commit_lsn=lsn, end_lsn=end, commit_ts=timestamp):
            return {"type": "stream_commit", **_ends(lsn, end, timestamp), "xid": xid}
        case parser.StreamAbort(xid=xid, subxid=subxid, lsn=lsn, aborted_at=timestamp):
            ends = {"lsn": lsn_text(lsn), "timestamp": time_text(timestamp)}
            return present(type="stream_abort", xid=xid, subxid=subxid, **ends)
        case parser.BeginPrepare(prepared=prepared):
            return _describe_prepared("begin_prepare", prepared)
        case parser.Prepare(prepared=prepared, streamed=streamed):
            return _describe_prepared("stream_prepare" if streamed else "prepare", prepared)
        case parser.CommitPrepared(commit_lsn=lsn, end_lsn=end, commit_ts=timestamp, xid=xid, gid=gid):
            return {"type": "commit_prepared", **_ends(lsn, end, timestamp), "xid": xid, "gid": gid}
        case parser.RollbackPrepared(prepare_end_lsn=lsn, end_lsn=end, rolled_back_at=timestamp, xid=xid, gid=gid):
            return {"type": "rollback_prepared", **_ends(lsn, end, timestamp), "xid": xid, "gid": gid}
        case _ as never:
            assert_never(never)


def _describe_prepared(kind: str, prepared: parser.Prepared) -> Described:
    ends = _ends(prepared.lsn, prepared.end_lsn, prepared.prepared_at)
    return {"type": kind, **ends, "xid": prepared.xid, "gid": prepared.gid}


def _ends(lsn: int, end: int, timestamp: int) -> Described:
    return {"lsn": lsn_text(lsn), "end_lsn": lsn_text(end), "timestamp": time_text(timestamp)}


_ROW_TAGS: Final = frozenset(b"IUD")


class PgoutputDescriber:
    """Reads the messages of one connection in order, and remembers the announced relations and types.

    Also reads messages of protocol versions 2 to 4 (`devtools.wire_dump`); a binary value is `value_hex`.
    """

    def __init__(self) -> None:
        self._streaming = False
        self._relations: dict[int, messages.RelationMessage] = {}
        self._types: dict[int, str] = {}

    def describe(self, payload: bytes) -> Described:
        """The object of one message. Raises DecodeError; inside a streamed block its offset excludes the xid."""
        if (later := parser.stream_message(payload) or parser.prepared_message(payload)) is not None:
            description = _describe_later(later)
            self._streaming = description["type"] == "stream_start"
            return description
        if self._streaming and payload[:1] and payload[0] in parser.WITH_XID:
            xid = {"xid": int.from_bytes(payload[1:5], "big")}
            return {**self._first(parser.without_xid(payload)), **xid}
        return self._first(payload)

    def _first(self, payload: bytes) -> Described:
        """The object of a message of version 1."""
        is_row = payload[:1] and payload[0] in _ROW_TAGS
        relation = self._relations.get(int.from_bytes(payload[1:5], "big")) if is_row else None
        return self._object(parser.parse(payload, None if relation is None else len(relation.columns)))

    def _object(self, message: messages.WireMessage) -> Described:  # noqa: PLR0911  # one return a kind of message
        match message:
            case messages.Begin(final_lsn=lsn, commit_ts=timestamp, xid=xid):
                return present(type="begin", lsn=lsn_text(lsn), xid=xid, timestamp=time_text(timestamp))
            case messages.Commit(commit_lsn=lsn, end_lsn=end, commit_ts=timestamp):
                return present(type="commit", lsn=lsn_text(lsn), end_lsn=lsn_text(end), timestamp=time_text(timestamp))
            case messages.OriginMessage(lsn=lsn, name=name):
                return present(type="origin", lsn=lsn_text(lsn), origin=name)
            case messages.RelationMessage(oid=oid, identity=identity):
                self._relations[oid] = message
                columns = [{**self._column(c), "modifier": c.modifier, "key": c.key} for c in message.columns]
                body = {"replica_identity": identity.name.lower(), "columns": columns}
                return {"type": "relation", **self._table(oid), **body}
            case messages.TypeMessage(oid=oid, schema=schema, name=name):
                self._types[oid] = name if schema == "pg_catalog" else f"{schema}.{name}"
                return {"type": "type", "type_oid": oid, "schema": schema, "name": name}
            case messages.InsertMessage(oid=oid, new=new):
                return present(type="insert", **self._table(oid), new=self._tuple(oid, new))
            case messages.UpdateMessage(oid=oid, new=new, old=old, old_kind=kind):
                body = {"new": self._tuple(oid, new), **self._old(oid, old, kind)}
                return present(type="update", **self._table(oid), **body)
            case messages.DeleteMessage(oid=oid, old=old, old_kind=kind):
                return present(type="delete", **self._table(oid), **self._old(oid, old, kind))
            case messages.TruncateMessage(oids=oids, cascade=cascade, restart_identity=restart):
                tables = tables_object(self._table(oid) for oid in oids)
                return {"type": "truncate", **tables, "cascade": cascade, "restart_identity": restart}
            case messages.LogicalMessage(lsn=lsn, prefix=prefix, transactional=transactional):
                head = {"prefix": prefix, "transactional": transactional}
                try:
                    content = {"content": message.content.decode()}
                except UnicodeDecodeError:
                    content = {"content_hex": message.content.hex()}
                return present(type="message", lsn=lsn_text(lsn), **head, **content)
            case _ as never:
                assert_never(never)

    def _table(self, oid: int) -> Described:
        relation = self._relations.get(oid)
        return {"relation_oid": oid, **(table_object(relation.table) if relation else {})}

    def _column(self, column: messages.AnnouncedColumn) -> Described:
        return present(name=column.name, type=self._types.get(column.type_oid), type_oid=column.type_oid)

    def _old(self, oid: int, old: Tuple | None, kind: OldKind | None) -> dict[str, Any]:
        if old is None or kind is None:
            return {}
        letter = b"K" if kind is OldKind.KEY else b"O"
        return {"old": self._tuple(oid, old, letter), "old_kind": kind.value}

    def _tuple(self, oid: int, values: Tuple, letter: bytes = b"N") -> list[Described]:
        """For an old key (`K`) only the identity columns: the others were not sent, and are not NULL."""
        shown = [{"value_hex": str(v)} if isinstance(v, BinaryValue) else value_object(v) for v in values]
        if (relation := self._relations.get(oid)) is None:
            return [{"name": None, **value} for value in shown]
        named = zip(relation.columns, shown, strict=True)
        return [{**self._column(c), **value} for c, value in named if c.key or letter != b"K"]


_HEARTBEAT: Final = 26  # bytes: letter, three numbers, `F`
_FRAMED_HEARTBEAT: Final = 33  # the length field of a framed one
_RECORD: Final = 12  # bytes before the body: length and LSN
_PARALLEL: Final = (b"BEGIN CSN:", b"commit", b"COMMIT XID:")
_SERIAL: Final = re.compile(rb"(?:BEGIN|COMMIT|ABORT|PREPARE)(?: |\s*\Z)|prefix: |message: ")
_HINT: Final = "name the style: `--style serial` accepts any line; b, t and j are the styles of parallel decoding"
_RENDERED: Final = b"current_lsn: "  # pg_recvlogical's output for style b
_RENDERED_HINT: Final = "capture what the server sends with `cdc-lake record`, or read in style t or j"
_NAME: Final = rb'(?:"(?:[^"]|"")*"|[^\s".:,]+)'
_QUALIFIED: Final = _NAME + rb"\." + _NAME
# `table public.t: INSERT:`, of serial decoding (3.0.x may leave out the operation); parallel: `table public t INSERT:`
_SERIAL_ROW: Final = re.compile(
    rb"table " + _QUALIFIED + rb"(?:, " + _QUALIFIED + rb")*:(?: (?:INSERT|UPDATE|DELETE|TRUNCATE):|\s*\Z)"
)


def guess(payload: bytes, style: records.Style | None = None) -> tuple[records.Style, bool]:
    """The style, if unknown, and whether the payload is a batch.

    Raises UnknownStatement for a bare line of unknown kind; other unknown bytes count as binary.
    """
    if style is records.Style.SERIAL or not payload:
        return style or records.Style.BINARY, False
    framed = not is_line(payload)
    if style is not None:
        return style, framed
    return (_framed_style(payload), True) if framed else (_line(payload), False)


def is_line(payload: bytes) -> bool:
    """Whether a payload is a bare line: it begins with a printable character, not with the top byte of a length."""
    return bool(payload) and 0x20 <= payload[0] <= 0x7E


def _framed_style(payload: bytes) -> records.Style:
    kind, after = payload[_RECORD : _RECORD + 1], payload[_RECORD + 1 : _RECORD + 2]
    heartbeat = kind == b"h" and int.from_bytes(payload[:4], "big") == _FRAMED_HEARTBEAT
    if heartbeat or kind not in (b"B", b"C", b"c", b"t", b"{", b"h"):
        return records.Style.BINARY
    # BEGIN and COMMIT are words in text; in binary the letter is followed by a number or an option's letter
    if (kind == b"B" and after != b"E") or (kind == b"C" and after != b"O"):
        return records.Style.BINARY
    return records.Style.JSON if _has_json(payload) else records.Style.TEXT


def _has_json(payload: bytes) -> bool:
    offset = 0
    while (size := int.from_bytes(payload[offset : offset + 4], "big")) and offset + _RECORD < len(payload):
        if payload[offset + _RECORD : offset + _RECORD + 1] == b"{":
            return True
        offset += 4 + size
    return False


def _line(payload: bytes) -> records.Style:
    if payload.startswith(b"{"):
        return records.Style.JSON
    if payload.startswith(b"h"):
        return records.Style.BINARY if len(payload) == _HEARTBEAT and payload.endswith(b"F") else records.Style.TEXT
    if payload.startswith(b"table "):
        return records.Style.SERIAL if _SERIAL_ROW.match(payload) else records.Style.TEXT
    if payload.startswith(_PARALLEL):
        return records.Style.TEXT
    if _SERIAL.match(payload):
        return records.Style.SERIAL
    if payload.startswith(_RENDERED):
        text = "this is pg_recvlogical's rendering of style b, not what the server sent"
        raise UnknownStatement(text, hint=_RENDERED_HINT)
    raise UnknownStatement("the style of this payload cannot be determined", hint=_HINT)
