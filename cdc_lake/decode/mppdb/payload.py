"""Payloads of the GaussDB family to records, whatever plugin and style they are written in.

A payload is what follows the header of a `w` message, or one row of `pg_logical_slot_peek_changes`. This is the plain
decoder, and the reference for the fast ones.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from cdc_lake.decode.mppdb import heartbeat, lines
from cdc_lake.decode.mppdb.binary import records_binary
from cdc_lake.decode.mppdb.codec import Codec
from cdc_lake.decode.mppdb.framing import frames
from cdc_lake.decode.mppdb.json_rows import json_row
from cdc_lake.decode.mppdb.records import Begin, Record, Style
from cdc_lake.decode.mppdb.styles import verify
from cdc_lake.decode.mppdb.text import TableHeads, heads, parallel_row, serial_row
from cdc_lake.errors import StyleMismatch, UnknownStatement
from cdc_lake.model.relation import TableName

_BRACE: Final = b"{"
_TABLE: Final = b"table "
_NO_TABLES: Final[frozenset[TableName]] = frozenset()


def records(
    payload: bytes,
    style: Style,
    *,
    batch: bool,
    codec: Codec,
    header_lsn: int | None = None,
    plugin: str = "mppdb_decoding",
    tables: Collection[TableName] = _NO_TABLES,
) -> list[Record]:
    """All records of one payload, in order.

    `header_lsn` (of the `w` header, or the column `location`) is the LSN of records that have none of their own: in
    serial decoding of all, in styles t and j without batches of all but COMMIT, whose end it is not. `plugin` is that
    of the slot; parallel decoding does not ask for it. `tables` makes heads of style t certain; a frozenset is fast.

    Raises DecodeError, whose offset counts from the payload's start.
    """
    verify(payload, style, batch=batch)
    if style is Style.BINARY:
        return records_binary(payload, codec)
    if (beat := heartbeat.bare(payload)) is not None:
        return [beat]
    if style is Style.SERIAL:
        return [serial_record(payload, codec, header_lsn, plugin=plugin)]
    known = heads(frozenset(tables), codec) if tables else None
    if not batch:
        found = parallel_record(payload, style, codec, header_lsn, known=known, end_lsn=None)
        return [found]
    return [
        parallel_record(statement, style, codec, lsn, known=known, end_lsn=lsn, at=at)
        for at, lsn, statement in frames(payload)
    ]


def serial_record(
    statement: bytes, codec: Codec, lsn: int | None = None, *, plugin: str = "mppdb_decoding", at: int = 0
) -> Record:
    """The record of one line of serial decoding, of mppdb_decoding or test_decoding.

    A BEGIN without an LSN (`skip-empty-xacts` sends zero) has None. Raises DecodeError.
    """
    if plugin == "sql_decoding":
        raise UnknownStatement("sql_decoding prints no column names and cannot be captured", offset=at)
    if (boundary := lines.boundary(statement, lsn, at)) is not None:
        return boundary if lsn or not isinstance(boundary, Begin) else lines.without_lsn(boundary)
    if statement[:1] == _BRACE:
        return json_row(statement, codec, at).record(lsn)
    if statement[:6] == _TABLE:
        found = lines.table_line(statement, codec, lsn, at)
        return serial_row(statement, codec, at).record(lsn) if found is None else found
    return lines.line(statement, codec, lsn, at)


def parallel_record(
    statement: bytes,
    style: Style,
    codec: Codec,
    lsn: int | None = None,
    *,
    end_lsn: int | None,
    known: TableHeads | None = None,
    at: int = 0,
) -> Record:
    """The record of one statement of style t or j that stands at byte `at`. `end_lsn` is that of a COMMIT.

    Raises DecodeError.
    """
    first = statement[:1]
    if first == _BRACE:
        if style is not Style.JSON:
            raise StyleMismatch(asked="style t", found="style j", at=at)
        return json_row(statement, codec, at).record(lsn)
    if statement[:6] == _TABLE:
        if style is not Style.TEXT:
            raise StyleMismatch(asked="style j", found="style t", at=at)
        return parallel_row(statement, codec, known, at).record(lsn)
    boundary = lines.boundary(statement, lsn if first == b"B" else end_lsn, at)
    if boundary is not None:
        return boundary
    if first == heartbeat.LETTER:
        return heartbeat.of_statement(statement, lsn)
    found = lines.ddl(statement, codec, lsn, at)
    if found is None:
        raise UnknownStatement("a statement that is neither a boundary nor a row", offset=at)
    return found
