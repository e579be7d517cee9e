"""Names and values as the server writes them: quoted identifiers, SQL literals, JSON strings, as bytes.

Implements the rules of quote_identifier, PrintLiteral and escape_json: converts the output text of a value to its form
in the stream.
"""

from __future__ import annotations

import re
from typing import Final

from cdc_lake.model.change import UNCHANGED, Value

_BARE: Final = re.compile(r"[a-z_][a-z0-9_]*", re.ASCII)

_RESERVED = """
    all analyse analyze and any array as asc asymmetric authid both buckets case cast check collate column constraint
    create current_catalog current_date current_role current_time current_timestamp current_user default deferrable
    delta desc distinct do else end except excluded false fetch for foreign from grant group groupparent having
    imcstored in initially intersect into is leading less limit localtime localtimestamp maxvalue minus modify nocycle
    not null offset on only or order performance placing primary procedure references reject returning rownum select
    session_user share_memory shrink some symmetric sysdate table then to trailing true unimcstored union unique user
    using variadic verify when where window with
"""
_TYPE_OR_FUNCTION = """
    authorization binary collation compact concurrently cross csn current_schema deltamerge freeze full hdfsdirectory
    ilike inner join left like natural notnull outer overlaps recyclebin right similar tablesample timecapsule verbose
"""
_COLUMN_NAME = """
    between bigint binary_double binary_double_infinity binary_double_nan binary_integer bit boolean bucketcnt
    byteawithoutorder byteawithoutorderwithequal char character coalesce date dec decimal decode exists extract float
    greatest grouping inout int integer interval json_exists least national nchar none nth_value nullif number numeric
    nvarchar nvarchar2 nvl out overlay position precision real row setof smalldatetime smallint substring time
    timestamp timestampdiff tinyint treat trim values varchar varchar2 xmlattributes xmlconcat xmlelement xmlexists
    xmlforest xmlparse xmlpi xmlroot xmlserialize
"""
KEYWORDS: Final = frozenset((_RESERVED + _TYPE_OR_FUNCTION + _COLUMN_NAME).split())
"""Words this server quotes: every keyword that is not unreserved (the lists differ a little between releases)."""

BARE_TYPES: Final = frozenset(
    ["tinyint", "smallint", "integer", "bigint", "oid", "real", "double precision", "numeric"]
)
"""Types whose output text stands unquoted in text and JSON."""

_ESCAPES: Final = {
    0x22: b'\\"',
    0x5C: b"\\\\",
    0x08: b"\\b",
    0x0C: b"\\f",
    0x0A: b"\\n",
    0x0D: b"\\r",
    0x09: b"\\t",
    **{c: b"\\u%04x" % c for c in range(0x20) if c not in {0x08, 0x0C, 0x0A, 0x0D, 0x09}},
}
_ESCAPED: Final = re.compile(rb'["\\\x00-\x1f]')


def identifier(name: str) -> str:
    """The name as quote_identifier writes it: bare where that is safe."""
    if _BARE.fullmatch(name) and name not in KEYWORDS:
        return name
    return '"' + name.replace('"', '""') + '"'


def literal(value: Value, type_name: str, encoding: str) -> bytes:
    """The SQL literal of a value's output text, for text and JSON."""
    if value is None:
        return b"null"
    if value is UNCHANGED:
        return b"unchanged-toast-datum"
    if type_name in BARE_TYPES:
        return value.encode(encoding)
    if type_name == "boolean":
        return b"true" if value == "t" else b"false"
    if type_name in {"bit", "bit varying"}:
        return b"B'" + value.encode(encoding) + b"'"
    return b"'" + value.replace("'", "''").encode(encoding) + b"'"


def json_string(raw: bytes) -> bytes:
    """A JSON string, escaped byte by byte as the server does: in GBK also a trailing byte that looks like one."""
    return b'"' + _ESCAPED.sub(lambda m: _ESCAPES[m[0][0]], raw) + b'"'
