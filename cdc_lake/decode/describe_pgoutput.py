"""Messages of pgoutput as JSON objects: the keys of `decode.describe`, columns named by the relations seen before.

Also: relation (relation_oid, replica_identity, columns), type, origin, message (prefix, content, transactional); begin
has `lsn` (of the commit record), commit `lsn` and `end_lsn`; `old_kind` is key or full. A change of a relation that
was not announced has its `relation_oid` instead of a name, and columns whose `name` is null.
"""

from __future__ import annotations

from typing import Any, Final, assert_never

from cdc_lake.decode.binary import InBinary
from cdc_lake.decode.describe import (
    Described,
    lsn_text,
    present,
    table_object,
    tables_object,
    time_text,
    value_object,
)
from cdc_lake.decode.pgoutput import parse
from cdc_lake.decode.pgoutput_later import later
from cdc_lake.decode.pgoutput_stream import WITH_XID, without_xid
from cdc_lake.decode.records import (
    AnnouncedColumn,
    Begin,
    Commit,
    DeleteMessage,
    InsertMessage,
    LogicalMessage,
    OriginMessage,
    RelationMessage,
    TruncateMessage,
    TypeMessage,
    UpdateMessage,
    WireMessage,
)
from cdc_lake.model.change import OldKind, Tuple

_ROWS: Final = frozenset(b"IUD")


class PgoutputDescriber:
    """Reads the messages of one connection in order, and remembers which relations and types it announced.

    Messages of protocol versions 2 to 4 are read as well (`decode.pgoutput_later`); a value that was sent in binary is
    `value_hex`.
    """

    def __init__(self) -> None:
        self._streaming = False
        self._relations: dict[int, RelationMessage] = {}
        self._types: dict[int, str] = {}

    def described(self, payload: bytes) -> Described:
        """The object of one message. Raises DecodeError; inside a streamed block its offset leaves out the xid."""
        if (found := later(payload)) is not None:
            self._streaming = found["type"] == "stream_start"
            return found
        if self._streaming and payload[:1] and payload[0] in WITH_XID:
            xid = {"xid": int.from_bytes(payload[1:5], "big")}
            return {**self._first(without_xid(payload)), **xid}
        return self._first(payload)

    def _first(self, payload: bytes) -> Described:
        """The object of a message of version 1."""
        columns = None
        if payload[:1] and payload[0] in _ROWS and (known := self._relations.get(int.from_bytes(payload[1:5], "big"))):
            columns = len(known.columns)
        return self._object(parse(payload, columns))

    def _object(self, message: WireMessage) -> Described:  # noqa: PLR0911  # one return a kind of message
        match message:
            case Begin(final_lsn=lsn, commit_ts=at, xid=xid):
                return present(type="begin", lsn=lsn_text(lsn), xid=xid, timestamp=time_text(at))
            case Commit(commit_lsn=lsn, end_lsn=end, commit_ts=at):
                return present(type="commit", lsn=lsn_text(lsn), end_lsn=lsn_text(end), timestamp=time_text(at))
            case OriginMessage(lsn=lsn, name=name):
                return present(type="origin", lsn=lsn_text(lsn), origin=name)
            case RelationMessage():
                self._relations[message.oid] = message
                return self._relation(message)
            case TypeMessage(oid=oid, schema=schema, name=name):
                self._types[oid] = name if schema == "pg_catalog" else f"{schema}.{name}"
                return {"type": "type", "type_oid": oid, "schema": schema, "name": name}
            case InsertMessage(oid=oid, new=new):
                return present(type="insert", **self._table(oid), new=self._tuple(oid, new))
            case UpdateMessage(oid=oid, new=new, old=old, old_kind=kind):
                body = {"new": self._tuple(oid, new), **self._old(oid, old, kind)}
                return present(type="update", **self._table(oid), **body)
            case DeleteMessage(oid=oid, old=old, old_kind=kind):
                return present(type="delete", **self._table(oid), **self._old(oid, old, kind))
            case TruncateMessage(oids=oids, cascade=cascade, restart_identity=restart):
                tables = tables_object(self._table(oid) for oid in oids)
                return {"type": "truncate", **tables, "cascade": cascade, "restart_identity": restart}
            case LogicalMessage():
                return _message(message)
            case _ as never:
                assert_never(never)

    def _relation(self, relation: RelationMessage) -> Described:
        return {
            "type": "relation",
            **self._table(relation.oid),
            "replica_identity": relation.identity.name.lower(),
            "columns": [
                {**self._column(column), "modifier": column.modifier, "key": column.key} for column in relation.columns
            ],
        }

    def _table(self, oid: int) -> Described:
        known = self._relations.get(oid)
        return {"relation_oid": oid, **(table_object(known.table) if known else {})}

    def _column(self, column: AnnouncedColumn) -> Described:
        return present(name=column.name, type=self._types.get(column.type_oid), type_oid=column.type_oid)

    def _old(self, oid: int, old: Tuple | None, kind: OldKind | None) -> dict[str, Any]:
        if old is None or kind is None:
            return {}
        letter = b"K" if kind is OldKind.KEY else b"O"
        return {"old": self._tuple(oid, old, letter), "old_kind": kind.value}

    def _tuple(self, oid: int, values: Tuple, letter: bytes = b"N") -> list[Described]:
        """Of an old key (`K`) only the columns of the identity: the others are not sent, which is no NULL."""
        shown = [{"value_hex": str(v)} if isinstance(v, InBinary) else value_object(v) for v in values]
        if (known := self._relations.get(oid)) is None:
            return [{"name": None, **value} for value in shown]
        named = zip(known.columns, shown, strict=True)
        return [{**self._column(c), **value} for c, value in named if c.key or letter != b"K"]


def _message(message: LogicalMessage) -> Described:
    """Content that is not UTF-8 is given as `content_hex`."""
    head = {"prefix": message.prefix, "transactional": message.transactional}
    try:
        content = {"content": message.content.decode()}
    except UnicodeDecodeError:
        content = {"content_hex": message.content.hex()}
    return present(type="message", lsn=lsn_text(message.lsn), **head, **content)
