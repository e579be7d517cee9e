"""Heads: which tables a line of test_decoding changes, without reading what stands behind them."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from cdc_lake.decode.mppdb import identifiers, lines
from cdc_lake.decode.mppdb.codec import Codec
from cdc_lake.decode.mppdb.records import Truncated
from cdc_lake.model.relation import TableName

TABLE: Final = b"table "
"""How the lines of rows and truncates begin."""
_HEAD: Final = re.compile(rf"table ({identifiers.NAME})\.({identifiers.NAME}): (?:INSERT|UPDATE|DELETE):")


class Head(NamedTuple):
    """The table of a row, and the bytes that name it."""

    text: bytes
    table: TableName


def head_of(line: bytes, codec: Codec) -> Head | None:
    """The head of a row; None for anything else. Raises DecodeError for a name that is none."""
    found = _HEAD.match(line.decode("latin-1"))
    if found is None:
        return None
    parts = (codec.name(part.encode("latin-1"), len(TABLE)) for part in found.groups())
    schema, name = map(identifiers.unquote, parts)
    return Head(line[len(TABLE) : found.end(2)], TableName(schema, name))


def tables_of(line: bytes, codec: Codec) -> tuple[TableName, ...] | None:
    """The tables that a row or truncate changes; None for a line that is neither. Raises DecodeError."""
    head = head_of(line, codec)
    if head is not None:
        return (head.table,)
    found = lines.table_line(line, codec, None)
    return found.tables if isinstance(found, Truncated) else None
