"""Types of the GaussDB family's own, by OID: what the catalog calls them and what the text formats print.

Binary rows name a type by its OID, text and JSON rows by what `format_type` prints without a modifier. Both are mapped
here for the types a server has from the start, so that rows of a column that is gone from the catalog still have one.
Source: openGauss, pg_type.h, and recordings. OIDs of PostgreSQL are the same; clob is printed as `text`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class BuiltinType:
    """`name` is `pg_type.typname`, `printed` what a text row has in brackets behind a column's name."""

    name: str
    printed: str


_SAME: Final = {
    17: "bytea",
    19: "name",
    24: "regproc",
    25: "text",
    26: "oid",
    27: "tid",
    28: "xid",
    86: "raw",
    88: "blob",
    114: "json",
    142: "xml",
    600: "point",
    601: "lseg",
    602: "path",
    603: "box",
    604: "polygon",
    628: "line",
    650: "cidr",
    718: "circle",
    790: "money",
    829: "macaddr",
    869: "inet",
    1082: "date",
    1186: "interval",
    1560: "bit",
    1700: "numeric",
    1790: "refcursor",
    2205: "regclass",
    2950: "uuid",
    3614: "tsvector",
    3615: "tsquery",
    3802: "jsonb",
    3969: "nvarchar2",
    5801: "hash16",
    5802: "hash32",
    8305: "vector",
    9003: "smalldatetime",
}
_OTHER: Final = {
    16: ("bool", "boolean"),
    18: ("char", '"char"'),
    20: ("int8", "bigint"),
    21: ("int2", "smallint"),
    23: ("int4", "integer"),
    90: ("clob", "text"),
    700: ("float4", "real"),
    701: ("float8", "double precision"),
    1042: ("bpchar", "character"),
    1043: ("varchar", "character varying"),
    1083: ("time", "time without time zone"),
    1114: ("timestamp", "timestamp without time zone"),
    1184: ("timestamptz", "timestamp with time zone"),
    1266: ("timetz", "time with time zone"),
    1562: ("varbit", "bit varying"),
    5545: ("int1", "tinyint"),
}
_ARRAYS: Final = {
    16: 1000,
    17: 1001,
    20: 1016,
    21: 1005,
    23: 1007,
    25: 1009,
    114: 199,
    700: 1021,
    701: 1022,
    1042: 1014,
    1043: 1015,
    1082: 1182,
    1083: 1183,
    1114: 1115,
    1184: 1185,
    1186: 1187,
    1266: 1270,
    1560: 1561,
    1562: 1563,
    1700: 1231,
    2950: 2951,
    3802: 3807,
}
_SCALARS: Final = {oid: BuiltinType(name, name) for oid, name in _SAME.items()} | {
    oid: BuiltinType(*both) for oid, both in _OTHER.items()
}

BUILTIN: Final = _SCALARS | {
    array: BuiltinType("_" + _SCALARS[element].name, _SCALARS[element].printed + "[]")
    for element, array in _ARRAYS.items()
}
"""Types by OID."""

OID_OF: Final = {kind.printed: oid for oid, kind in BUILTIN.items() if oid != 90}
"""OIDs by what is printed; `text` is text, which a clob is printed as too."""
