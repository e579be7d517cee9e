"""Heads of lines of test_decoding, taken by the server: which tables they change, without a value leaving it."""

from __future__ import annotations

from typing import Final

from cdc_lake.decode.mppdb.codec import Codec
from cdc_lake.decode.test_decoding.heads import tables_of
from cdc_lake.model.relation import TableName
from cdc_lake.source.plugins import LINE_OPTIONS
from cdc_lake.source.quoting import literal

_NAME: Final = '(?:"(?:[^"]|"")*"|[^".:, ]+)'
_UTF8: Final = Codec()

HEAD: Final = (
    "CASE WHEN data ~ ': TRUNCATE:[a-z_() -]*$' THEN data "
    f"ELSE substring(data FROM '^table {_NAME}[.]{_NAME}: [A-Z]+:') END"
)
"""The head of a row's line, all of a TRUNCATE's, NULL of what has none."""
PEEKED: Final = (
    "pg_logical_slot_peek_changes("
    f"%s, %s::pg_lsn, NULL, {', '.join(literal(word) for pair in LINE_OPTIONS.items() for word in pair)})"
)
"""What a slot without two-phase decoding would print, up to a position."""


def as_bytes(value: object) -> bytes:
    """Text, which comes as bytes where the database is in SQL_ASCII and the session has it as stored."""
    return value.encode() if isinstance(value, str) else bytes(value)  # type: ignore[call-overload]  # a bytea


def changed_by(head: bytes) -> tuple[TableName, ...]:
    """The tables that a line with this head changes. Raises DecodeError."""
    return tables_of(head, _UTF8) or ()
