"""Converts binary values of pgoutput to exactly the text that the server prints, for many tuples at once or singly.

Integers, booleans, texts, dates, timestamps, uuids, most floats and numerics are converted for all rows at once; of
other types each distinct value is converted once. Vectorized conversions are exact for most values and state for which
(`SelectedTexts`); the others are converted singly. Anything else raises `FallBackToRowDecoder`.

Types whose bytes only the server can interpret (labels and parts of user-defined types, words that depend on its
settings) are refused in binary: `UnreadBinary`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.decode.columnar_reader import (
    FallBackToRowDecoder,
    FrameBuffer,
    TupleOffsets,
    copy_texts,
    require,
    string_array,
)
from cdc_lake.decode.encoding import UndecodableText
from cdc_lake.decode.pgoutput import binary_composites, binary_scalars
from cdc_lake.decode.pgoutput.binary_composites import array, span, spans
from cdc_lake.decode.pgoutput.binary_scalars import Text
from cdc_lake.decode.pgoutput.messages import utf8
from cdc_lake.errors import DecodeError, InvalidText, UnreadBinary
from cdc_lake.model.change import Tuple, Value
from cdc_lake.model.relation import Column, Relation, TableName

TEXTS: Final = frozenset((19, 25, 114, 705, 1042, 1043, 2275))
"""Types whose binary form is their text: name, text, json, unknown, bpchar, varchar, cstring."""

JSONB: Final = 3802

_SCALARS: Final[Mapping[int, Text]] = {
    16: binary_scalars.boolean,
    17: binary_scalars.octets,
    18: binary_scalars.letter,
    20: binary_scalars.integer("q"),
    21: binary_scalars.integer("h"),
    23: binary_scalars.integer("i"),
    26: binary_scalars.integer("I"),
    27: binary_scalars.tid,
    28: binary_scalars.integer("I"),
    29: binary_scalars.integer("I"),
    600: binary_composites.point,
    601: binary_composites.segment,
    602: binary_composites.path,
    603: binary_composites.box,
    604: binary_composites.polygon,
    628: binary_composites.line,
    650: binary_composites.cidr,
    700: binary_scalars.float4,
    701: binary_scalars.float8,
    718: binary_composites.circle,
    774: binary_scalars.hardware(8),
    829: binary_scalars.hardware(6),
    869: binary_composites.inet,
    1082: binary_scalars.date,
    1083: binary_scalars.time,
    1114: binary_scalars.timestamp,
    1184: binary_scalars.timestamptz,
    1186: binary_scalars.interval,
    1266: binary_scalars.timetz,
    1560: binary_scalars.bits,
    1562: binary_scalars.bits,
    1700: binary_scalars.numeric,
    2950: binary_scalars.uuid,
    3220: binary_scalars.lsn,
    JSONB: binary_scalars.versioned_text,
    4072: binary_scalars.versioned_text,
    5069: binary_scalars.integer("Q"),
    **dict.fromkeys(TEXTS, utf8),
}
RANGES: Final = {3904: 23, 3906: 1700, 3908: 1114, 3910: 1184, 3912: 1082, 3926: 20}
"""Ranges: their own OID, and that of their subtype."""
MULTIRANGES: Final = {4451: 23, 4532: 1700, 4533: 1114, 4534: 1184, 4535: 1082, 4536: 20}
"""The same for multiranges."""
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
"""Converters of binary values, by type OID."""


class BinaryValue(str):
    """A binary value until its column is known; `offset`: its position in the message."""

    __slots__ = ("data", "offset")
    data: bytes
    offset: int

    @classmethod
    def from_bytes(cls, data: bytes, offset: int) -> BinaryValue:
        """The value of these bytes."""
        value = cls(data.hex())
        value.data, value.offset = data, offset
        return value


def in_text(relation: Relation, values: Tuple, *, lenient: bool) -> Tuple:
    """A tuple with the texts of its binary values. `lenient`: values may be invalid text (`UndecodableText`).

    Raises UnreadBinary, MalformedMessage, InvalidText.
    """
    if not any(isinstance(value, BinaryValue) for value in values):
        return values
    return tuple(
        _text(relation.table, column, value, lenient=lenient) if isinstance(value, BinaryValue) else value
        for column, value in zip(relation.columns, values, strict=True)
    )


def _text(table: TableName, column: Column, value: BinaryValue, *, lenient: bool) -> Value:
    try:
        return reader_of(table, column)(value.data)
    except InvalidText as error:
        wrong = value.offset + error.offset
    if lenient and column.type_oid in TEXTS:
        return UndecodableText.from_bytes(value.data, wrong)
    raise InvalidText(offset=wrong)


def reader_of(table: TableName, column: Column) -> Text:
    """The converter for a column's binary values. Raises UnreadBinary if there is none."""
    if (read := READERS.get(column.type_oid)) is None:
        raise UnreadBinary(table.column(column.name), column.type_name)
    return read


_WORD: Final = 8  # bytes read at once
_GROUP: Final = 4  # decimal digits in one digit of a numeric
_GROUPS: Final = 8  # maximum digits of a numeric that are read at once
_DIGITS: Final = 18  # maximum decimal digits of a numeric, with zeros, as an integer
_NUMERIC_HEAD: Final = 8  # bytes
_NEGATIVE: Final = 0x4000
_POWERS: Final = 10 ** np.arange(_DIGITS + 1, dtype=np.int64)
_PLAIN: Final = {4: (1e-4, 1e6), 8: (1e-4, 1e10)}
"""By size of a float: the range in which Arrow prints it as the server does: the fewest digits that distinguish it from
its neighbours, of those the nearest, without an exponent. Beyond 2**20 and 2**50 there are two nearest ones.
"""
_DASHES: Final = (8, 13, 18, 23)
_UUID: Final = 16  # bytes
_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)


@dataclass(frozen=True, slots=True)
class SelectedTexts:
    """The texts of some of n values: `texts` has one entry for each True in `which` (bool ndarray, n)."""

    texts: pa.Array
    which: Any


def floats(chunk: FrameBuffer, slots: Any, size: int) -> SelectedTexts:
    """The texts of floats of 4 or 8 bytes."""
    start, end = slots & 0xFFFFFFFF, slots >> 32
    require((end - start == size).all())
    words: Any = chunk.window[start].astype(np.uint64)
    values = words.view(np.float64) if size == _WORD else (words >> np.uint64(32)).astype(np.uint32).view(np.float32)
    least, beyond = _PLAIN[size]
    distance = np.abs(values)
    which = ((distance >= least) & (distance < beyond)) | (values == 0)
    return SelectedTexts(pa.array(values[which]).cast(pa.string()), which)


def numerics(chunk: FrameBuffer, slots: Any) -> SelectedTexts:
    """The texts of numerics."""
    start, size = slots & 0xFFFFFFFF, (slots >> 32) - (slots & 0xFFFFFFFF)
    require((size >= _NUMERIC_HEAD).all())
    head = chunk.window[start].astype(np.int64)
    groups, weight, sign, scale = ((head >> shift) & 0xFFFF for shift in (48, 32, 16, 0))
    weight -= (weight >> 15) << 16
    require((size == _NUMERIC_HEAD + 2 * groups).all())
    which = (groups <= _GROUPS) & ((sign == 0) | (sign == _NEGATIVE))
    which &= _GROUP * np.maximum(weight + 1, 0) + scale <= _DIGITS
    start, groups, weight, scale = (each[which] for each in (start, groups, weight, scale))
    number = np.zeros(len(start), np.int64)
    for nth in range(int(groups.max(initial=0))):
        rows = np.flatnonzero(groups > nth)
        words = chunk.window[start[rows] + _NUMERIC_HEAD + 2 * nth].astype(np.uint64)
        group = (words >> np.uint64(48)).astype(np.int64)
        require((group < 10**_GROUP).all())
        power = _GROUP * (weight[rows] - nth) + scale[rows]
        group //= _POWERS[np.clip(-power, 0, _GROUP)]  # digits beyond the scale are not printed
        number[rows] += group * _POWERS[np.maximum(power, 0)]
    return SelectedTexts(_decimal(number, scale, sign[which] == _NEGATIVE), which)


def _decimal(number: Any, scale: Any, negative: Any) -> pa.Array:
    """The texts of integers with the given numbers of fractional digits."""
    power = _POWERS[scale]
    texts = pa.array(number // power).cast(pa.string())
    if scale.any():
        fraction = pa.array(number % power + power).cast(pa.string())
        fraction = pc.replace_substring_regex(fraction, "^1", ".")  # the digits with their zeros, after the leading 1
        if not scale.all():
            fraction = pc.if_else(pa.array(scale > 0), fraction, "")
        texts = pc.binary_join_element_wise(texts, fraction, "")
    if negative.any():
        texts = pc.binary_join_element_wise(pc.if_else(pa.array(negative), "-", ""), texts, "")
    return texts


def uuids(chunk: FrameBuffer, slots: Any) -> SelectedTexts:
    """The texts of all uuids."""
    start, end = slots & 0xFFFFFFFF, slots >> 32
    require((end - start == _UUID).all())
    data = chunk.data[start[:, None] + np.arange(_UUID)]
    digits = np.empty((len(start), 2 * _UUID), np.uint8)
    digits[:, 0::2], digits[:, 1::2] = _HEX[data >> 4], _HEX[data & 15]
    width = 2 * _UUID + len(_DASHES)
    characters = np.full((len(start), width), ord("-"), np.uint8)
    characters[:, [position for position in range(width) if position not in _DASHES]] = digits
    ends = np.arange(len(start) + 1, dtype=np.int32) * width
    texts = pa.StringArray.from_buffers(len(start), pa.py_buffer(ends), pa.py_buffer(characters.tobytes()))
    return SelectedTexts(texts, np.ones(len(start), bool))


_SINCE_1970: Final = 10_957  # days from 1970-01-01 to 2000-01-01
_YEAR_1: Final = -730_119  # 0001-01-01, days from 2000-01-01
_YEAR_10_000: Final = 2_921_940


def binary_texts(chunk: FrameBuffer, tuples: TupleOffsets, relation: Any, relations: Sequence[Relation]) -> pa.Array:
    """The values as a string array (v), NULL if absent. `relation`: for each tuple an index into `relations`."""
    oids = _type_oids(tuples, relation, relations)
    rest = np.flatnonzero(~tuples.binary)
    absent = None if tuples.absent is None else tuples.absent[rest]
    parts, places = [string_array(chunk, tuples.slots[rest], absent)], [rest]
    binary = np.flatnonzero(tuples.binary)
    for oid in np.unique(oids[binary]).tolist():
        indices = binary[oids[binary] == oid]
        parts.append(_texts(oid, chunk, tuples.slots[indices]))
        places.append(indices)
    order = np.empty(len(tuples.slots), np.int64)
    order[np.concatenate(places)] = np.arange(len(order))
    return pa.concat_arrays(parts).take(pa.array(order))


def _type_oids(tuples: TupleOffsets, relation: Any, relations: Sequence[Relation]) -> Any:
    """The type OID of each value's column (int64 ndarray, v)."""
    width = max(len(layout.columns) for layout in relations)
    oids = np.zeros((len(relations), width), np.int64)
    for number, layout in enumerate(relations):
        oids[number, : len(layout.columns)] = [column.type_oid for column in layout.columns]
    lengths = np.diff(tuples.offsets)
    place = np.arange(len(tuples.slots)) - np.repeat(tuples.offsets[:-1], lengths)
    return oids[np.repeat(relation, lengths), place]


def _texts(oid: int, chunk: FrameBuffer, slots: Any) -> pa.Array:
    start, end = slots & 0xFFFFFFFF, slots >> 32
    if oid in TEXTS:
        return string_array(chunk, slots, None)
    if oid == JSONB:
        require((start < end).all() and (chunk.data[start] == 1).all())
        return string_array(chunk, slots + 1, None)
    if (fast := _FAST.get(oid)) is not None:
        size, read = fast
        require((end - start == size).all())
        number = (chunk.window[start].astype(np.uint64) >> np.uint64(64 - 8 * size)).astype(np.int64)
        if size < _WORD and oid not in _UNSIGNED:
            number -= (number >> (8 * size - 1)) << 8 * size
        return read(number)
    if (several := _SOME.get(oid)) is None:
        partial_texts = SelectedTexts(pa.array([], pa.string()), np.zeros(len(slots), bool))
    else:
        partial_texts = several(chunk, slots)
    odd = np.flatnonzero(~partial_texts.which)
    if not len(odd):
        return partial_texts.texts
    ends, data = copy_texts(chunk, slots[odd], utf8=False)
    others = _one_by_one(oid, pa.BinaryArray.from_buffers(pa.binary(), len(odd), [None, ends, data]))
    if len(odd) == len(slots):
        return others
    texts = pa.concat_arrays([partial_texts.texts, others])
    order = np.empty(len(slots), np.int64)
    order[np.concatenate([np.flatnonzero(partial_texts.which), odd])] = np.arange(len(order))
    return texts.take(pa.array(order))


def _one_by_one(oid: int, values: pa.Array) -> pa.Array:
    """Convert each distinct value once."""
    require(oid in READERS)
    read, encoded = READERS[oid], values.dictionary_encode()
    try:
        texts = [read(value) for value in encoded.dictionary.to_pylist()]
    except DecodeError:
        raise FallBackToRowDecoder from None  # the row decoder reports the error with its location
    return pa.array(texts, pa.string()).take(encoded.indices)


def _integer(number: Any) -> pa.Array:
    return pa.array(number).cast(pa.string())


def _boolean(number: Any) -> pa.Array:
    require((number <= 1).all())
    return pa.array(["f", "t"]).take(pa.array(number))


def _date(number: Any) -> pa.Array:
    ok = (number >= _YEAR_1) & (number < _YEAR_10_000)
    days = np.where(ok, number, 0) + _SINCE_1970
    texts = pa.array(days.astype(np.int32)).cast(pa.date32()).cast(pa.string())
    return _but(texts, ~ok, number, 4, binary_scalars.date)


def _moment(number: Any, zone: str, plain: Callable[[bytes], str]) -> pa.Array:
    ok = (number >= _YEAR_1 * binary_scalars.DAY) & (number < _YEAR_10_000 * binary_scalars.DAY)
    micros = np.where(ok, number, 0) + _SINCE_1970 * binary_scalars.DAY
    printed = pa.array(micros).cast(pa.timestamp("us")).cast(pa.string())
    # Arrow always prints six fractional digits
    printed = pc.if_else(pa.array(micros % 10 == 0), pc.replace_substring_regex(printed, r"\.?0+$", ""), printed)
    texts = pc.binary_join_element_wise(printed, zone, "") if zone else printed
    return _but(texts, ~ok, number, 8, plain)


def _but(texts: pa.Array, odd: Any, number: Any, size: int, plain: Callable[[bytes], str]) -> pa.Array:
    """The texts, with those of odd values from the row decoder."""
    if not odd.any():
        return texts
    again = [plain(value.to_bytes(size, "big", signed=True)) for value in number[odd].tolist()]
    return pc.replace_with_mask(texts, pa.array(odd), pa.array(again, pa.string()))


_UNSIGNED: Final = frozenset((16, 26, 28, 29))
_FAST: Final[dict[int, tuple[int, Callable[[Any], pa.Array]]]] = {
    16: (1, _boolean),
    20: (8, _integer),
    21: (2, _integer),
    23: (4, _integer),
    26: (4, _integer),
    28: (4, _integer),
    29: (4, _integer),
    1082: (4, _date),
    1114: (8, partial(_moment, zone="", plain=binary_scalars.timestamp)),
    1184: (8, partial(_moment, zone="+00", plain=binary_scalars.timestamptz)),
}
"""Types of a fixed size: bytes, and a function from their numbers (int64 ndarray) to texts."""
_SOME: Final[dict[int, Callable[[FrameBuffer, Any], SelectedTexts]]] = {
    700: partial(floats, size=4),
    701: partial(floats, size=8),
    1700: numerics,
    2950: uuids,
}
"""Types of which most values are converted at once."""
