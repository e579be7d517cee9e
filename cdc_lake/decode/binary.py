"""Values that pgoutput sends in binary: for which types they are read, each to exactly the text the server prints.

Of every other type the same bytes mean something that only the server knows (labels and parts of what users made,
words that depend on its settings), so its columns are refused where they come in binary: `UnreadBinary`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cdc_lake.decode.not_text import NotText
from cdc_lake.decode.values import networks, numbers, shapes, texts, times
from cdc_lake.decode.values.containers import array, span, spans
from cdc_lake.decode.values.numbers import Text
from cdc_lake.errors import InvalidText, UnreadBinary
from cdc_lake.model.change import Tuple, Value
from cdc_lake.model.relation import Column, Relation, TableName

TEXTS: Final = frozenset((19, 25, 114, 705, 1042, 1043, 2275))
"""Types that are sent as their text: name, text, json, unknown, bpchar, varchar, cstring."""

JSONB: Final = 3802

_SCALARS: Final[Mapping[int, Text]] = {
    16: numbers.boolean,
    17: texts.octets,
    18: texts.letter,
    20: numbers.whole("q"),
    21: numbers.whole("h"),
    23: numbers.whole("i"),
    26: numbers.whole("I"),
    27: numbers.tid,
    28: numbers.whole("I"),
    29: numbers.whole("I"),
    600: shapes.point,
    601: shapes.segment,
    602: shapes.path,
    603: shapes.box,
    604: shapes.polygon,
    628: shapes.line,
    650: networks.cidr,
    700: numbers.float4,
    701: numbers.float8,
    718: shapes.circle,
    774: texts.hardware(8),
    829: texts.hardware(6),
    869: networks.inet,
    1082: times.date,
    1083: times.time,
    1114: times.timestamp,
    1184: times.timestamptz,
    1186: times.interval,
    1266: times.timetz,
    1560: texts.bits,
    1562: texts.bits,
    1700: numbers.numeric,
    2950: texts.uuid,
    3220: numbers.lsn,
    JSONB: texts.versioned,
    4072: texts.versioned,
    5069: numbers.whole("Q"),
    **dict.fromkeys(TEXTS, texts.text),
}
RANGES: Final = {3904: 23, 3906: 1700, 3908: 1114, 3910: 1184, 3912: 1082, 3926: 20}
"""Ranges: their own OID, and that of their bounds."""
MULTIRANGES: Final = {4451: 23, 4532: 1700, 4533: 1114, 4534: 1184, 4535: 1082, 4536: 20}
"""The same of multiranges."""
_SPANS: Final = {oid: span(_SCALARS[of]) for oid, of in RANGES.items()} | {
    oid: spans(_SCALARS[of]) for oid, of in MULTIRANGES.items()
}
ARRAYS: Final = {
    199: 114, 271: 5069, 629: 628, 651: 650, 719: 718, 775: 774, 1000: 16, 1001: 17, 1002: 18, 1003: 19,
    1005: 21, 1007: 23, 1009: 25, 1010: 27, 1011: 28, 1012: 29, 1014: 1042, 1015: 1043, 1016: 20, 1017: 600, 1018: 601,
    1019: 602, 1020: 603, 1021: 700, 1022: 701, 1027: 604, 1028: 26, 1040: 829, 1041: 869, 1115: 1114, 1182: 1082,
    1183: 1083, 1185: 1184, 1187: 1186, 1231: 1700, 1263: 2275, 1270: 1266, 1561: 1560, 1563: 1562, 2951: 2950,
    3221: 3220, 3807: 3802, 3905: 3904, 3907: 3906, 3909: 3908, 3911: 3910, 3913: 3912, 3927: 3926, 4073: 4072,
    6150: 4451, 6151: 4532, 6152: 4533, 6153: 4534, 6155: 4535, 6157: 4536,
}  # fmt: skip
"""Arrays: their own OID, and that of their elements (pg_type.dat)."""
BOX: Final = 603

_ELEMENTS: Final = {**_SCALARS, **_SPANS}
READERS: Final[Mapping[int, Text]] = {
    **_ELEMENTS,
    **{oid: array(_ELEMENTS[of], of, ";" if of == BOX else ",") for oid, of in ARRAYS.items()},
}
"""How the binary values of a type are read, by its OID."""


class InBinary(str):
    """A value that came in binary, until its column says what its bytes mean; `at`: where they begin in the message."""

    __slots__ = ("at", "data")
    data: bytes
    at: int

    @classmethod
    def of(cls, data: bytes, at: int) -> InBinary:
        """The value of these bytes."""
        made = cls(data.hex())
        made.data, made.at = data, at
        return made


def in_text(relation: Relation, values: Tuple, *, lenient: bool) -> Tuple:
    """A tuple with the texts of its binary values. `lenient`: values may be bytes that are no text (`NotText`).

    Raises UnreadBinary, MalformedMessage, InvalidText.
    """
    if not any(isinstance(value, InBinary) for value in values):
        return values
    return tuple(
        _text(relation.table, column, value, lenient=lenient) if isinstance(value, InBinary) else value
        for column, value in zip(relation.columns, values, strict=True)
    )


def _text(table: TableName, column: Column, value: InBinary, *, lenient: bool) -> Value:
    try:
        return reader_of(table, column)(value.data)
    except InvalidText as error:
        wrong = value.at + error.offset
    if lenient and column.type_oid in TEXTS:
        return NotText.of(value.data, wrong)
    raise InvalidText(at=wrong)


def reader_of(table: TableName, column: Column) -> Text:
    """How a column's binary values are read. Raises UnreadBinary where they are not."""
    if (read := READERS.get(column.type_oid)) is None:
        raise UnreadBinary(table.column(column.name), column.type_name)
    return read
