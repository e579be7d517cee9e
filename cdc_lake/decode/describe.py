"""Records of the GaussDB family as JSON objects: one object a record, pure, for `inspect payload` and `replay`.

    type       begin commit insert update delete truncate ddl heartbeat abort prepare other
    lsn        of the record, `0/2816A28`; first_lsn: of BEGIN
    csn, xid   numbers; origin_id, user: of BEGIN; timestamp: the server's text
    schema, table    of a row; a truncate has `tables`, a list of the two
    new, old   lists of {name, type | type_oid, value}: value null is SQL NULL; a value that was not sent has
               "unchanged": true and no value. A tuple that was not sent has no list

A key that does not apply is absent, never null.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias, assert_never

from cdc_lake.decode.mppdb.records import (
    Begin,
    Commit,
    Ddl,
    Ended,
    Field,
    Heartbeat,
    Operation,
    Other,
    Record,
    Row,
    Truncated,
)
from cdc_lake.model.change import UNCHANGED, Value
from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import TableName

Described: TypeAlias = dict[str, Any]
"""A JSON object."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ROWS: Final = {Operation.INSERT: "insert", Operation.UPDATE: "update", Operation.DELETE: "delete"}


def described(record: Record) -> Described:  # noqa: PLR0911  # one return a kind of record
    """The object of one record; its `type` first."""
    match record:
        case Begin():
            return _begin(record)
        case Commit(lsn=lsn, csn=csn, xid=xid, time=time, skipped=skipped):
            numbers = {"lsn": lsn_text(lsn), "csn": csn, "xid": xid}
            return present(type="commit", **numbers, timestamp=time, skipped_option=skipped)
        case Ended(word=word, lsn=lsn, xid=xid, time=time):
            return present(type=word.lower(), lsn=lsn_text(lsn), xid=xid, timestamp=time)
        case Row():
            return _row(record)
        case Truncated():
            return _truncated(record)
        case Ddl(prefix=prefix, command=command, content=content, relation_id=oid, lsn=lsn):
            body = {"prefix": prefix, "command": command, "relation_oid": oid, "content": content}
            return present(type="ddl", lsn=lsn_text(lsn), **body)
        case Heartbeat():
            return _heartbeat(record)
        case Other(text=text, lsn=lsn):
            return present(type="other", lsn=lsn_text(lsn), text=text)
        case _ as never:
            assert_never(never)


def present(**given: object) -> Described:
    """The object of what applies: None says that something does not."""
    return {key: value for key, value in given.items() if value is not None}


def lsn_text(value: int | None) -> str | None:
    """A WAL position as servers print it."""
    return None if value is None else str(Lsn(value))


def time_text(micros: int | None) -> str | int | None:
    """Microseconds since 1970 UTC as ISO 8601; the number itself beyond the years 1 to 9999."""
    if micros is None:
        return None
    try:
        return (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds")
    except OverflowError:
        return micros


def value_object(value: Value) -> Described:
    """What a value adds to its column: `value`, or `unchanged`."""
    return {"unchanged": True} if value is UNCHANGED else {"value": value}


def table_object(table: TableName) -> Described:
    """A table's name, its parts unquoted."""
    return {"schema": table.schema, "table": table.name}


def tables_object(tables: Iterable[Described]) -> Described:
    """The tables of a truncate; where it is one, its name stands beside the list as well."""
    listed = list(tables)
    return {**(listed[0] if len(listed) == 1 else {}), "tables": listed}


def _begin(begin: Begin) -> Described:
    return present(
        type="begin",
        lsn=lsn_text(begin.lsn),
        csn=begin.csn,
        first_lsn=lsn_text(begin.first_lsn),
        xid=begin.xid,
        timestamp=begin.time,
        origin_id=begin.origin_id,
        user=begin.user,
        skipped_option=begin.skipped,
    )


def _row(row: Row) -> Described:
    return present(
        type=_ROWS[row.operation],
        lsn=lsn_text(row.lsn),
        **table_object(row.table),
        new=_tuple(row.new),
        old=_tuple(row.old),
    )


def _tuple(fields: tuple[Field, ...] | None) -> list[Described] | None:
    return None if fields is None else [_field(field) for field in fields]


def _field(field: Field) -> Described:
    return {
        **present(name=field.name, type=field.type_name, type_oid=field.type_oid),
        **value_object(field.value),
    }


def _truncated(truncated: Truncated) -> Described:
    return {
        **present(type="truncate", lsn=lsn_text(truncated.lsn)),
        **tables_object(table_object(table) for table in truncated.tables),
        "cascade": truncated.cascade,
        "restart_identity": truncated.restart_identity,
    }


def _heartbeat(beat: Heartbeat) -> Described:
    """`read` and `flushed` are numbers, because the stream does not say whether they are LSNs or CSNs."""
    lsn = beat.read if beat.lsn is None else beat.lsn
    body = {"read": beat.read, "flushed": beat.flushed, "timestamp": time_text(beat.newest)}
    return present(type="heartbeat", lsn=lsn_text(lsn), **body)
