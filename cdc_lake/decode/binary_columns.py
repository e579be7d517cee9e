"""Binary values of many tuples at once: the texts of all columns of a chunk, type by type.

Integers, booleans, texts, dates, timestamps, uuids, most floats and numerics are read for all rows at once; of other
types and values each different one is read once, as the plain decoder reads it (`decode.binary`). What does not fit
raises `Irregular`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.decode.binary import JSONB, READERS, TEXTS
from cdc_lake.decode.binary_numbers import Some, floats, numerics, uuids
from cdc_lake.decode.values import times
from cdc_lake.decode.walk import Chunk, Irregular, Tuples, as_binary, require, sent_texts
from cdc_lake.errors import DecodeError
from cdc_lake.model.relation import Relation

_SINCE_1970: Final = 10_957  # days from 1970-01-01 to 2000-01-01
_YEAR_1: Final = -730_119  # 0001-01-01, days from 2000-01-01
_YEAR_10_000: Final = 2_921_940
_ZEROS: Final = r"\.?0+$"
_WORD: Final = 8  # bytes that are read at once


def binary_texts(chunk: Chunk, tuples: Tuples, relation: Any, relations: Sequence[Relation]) -> pa.Array:
    """The values as a string array (v), NULL where absent. `relation`: of each tuple, an index into `relations`."""
    oids = _type_oids(tuples, relation, relations)
    rest = np.flatnonzero(~tuples.binary)
    parts, places = [sent_texts(chunk, tuples, rest)], [rest]
    binary = np.flatnonzero(tuples.binary)
    for oid in np.unique(oids[binary]).tolist():
        mine = binary[oids[binary] == oid]
        parts.append(_texts(oid, chunk, tuples.slots[mine]))
        places.append(mine)
    order = np.empty(len(tuples.slots), np.int64)
    order[np.concatenate(places)] = np.arange(len(order))
    return pa.concat_arrays(parts).take(pa.array(order))


def _type_oids(tuples: Tuples, relation: Any, relations: Sequence[Relation]) -> Any:
    """The type OID of each value's column (int64 ndarray, v)."""
    width = max(len(one.columns) for one in relations)
    known = np.zeros((len(relations), width), np.int64)
    for number, one in enumerate(relations):
        known[number, : len(one.columns)] = [column.type_oid for column in one.columns]
    lengths = np.diff(tuples.offsets)
    place = np.arange(len(tuples.slots)) - np.repeat(tuples.offsets[:-1], lengths)
    return known[np.repeat(relation, lengths), place]


def _texts(oid: int, chunk: Chunk, slots: Any) -> pa.Array:
    start, end = slots & 0xFFFFFFFF, slots >> 32
    if oid in TEXTS:
        return as_binary(chunk, slots, utf8=True)
    if oid == JSONB:
        require((start < end).all() and (chunk.data[start] == 1).all())
        return as_binary(chunk, slots + 1, utf8=True)
    if (fast := _FAST.get(oid)) is not None:
        size, read = fast
        require((end - start == size).all())
        number = (chunk.window[start].astype(np.uint64) >> np.uint64(64 - 8 * size)).astype(np.int64)
        if size < _WORD and oid not in _UNSIGNED:
            number -= (number >> (8 * size - 1)) << 8 * size
        return read(number)
    some = _SOME.get(oid, _none)(chunk, slots)
    odd = np.flatnonzero(~some.which)
    if not len(odd):
        return some.texts
    others = _one_by_one(oid, as_binary(chunk, slots[odd], utf8=False))
    if len(odd) == len(slots):
        return others
    texts = pa.concat_arrays([some.texts, others])
    order = np.empty(len(slots), np.int64)
    order[np.concatenate([np.flatnonzero(some.which), odd])] = np.arange(len(order))
    return texts.take(pa.array(order))


def _none(_: Chunk, slots: Any) -> Some:
    return Some(pa.array([], pa.string()), np.zeros(len(slots), bool))


def _one_by_one(oid: int, values: pa.Array) -> pa.Array:
    """Each different value once."""
    require(oid in READERS)
    read, encoded = READERS[oid], values.dictionary_encode()
    try:
        texts = [read(value) for value in encoded.dictionary.to_pylist()]
    except DecodeError:
        raise Irregular from None  # the plain decoder says it again, with its place
    return pa.array(texts, pa.string()).take(encoded.indices)


def _whole(number: Any) -> pa.Array:
    return pa.array(number).cast(pa.string())


def _boolean(number: Any) -> pa.Array:
    require((number <= 1).all())
    return pa.array(["f", "t"]).take(pa.array(number))


def _date(number: Any) -> pa.Array:
    ok = (number >= _YEAR_1) & (number < _YEAR_10_000)
    days = np.where(ok, number, 0) + _SINCE_1970
    return _but(pa.array(days.astype(np.int32)).cast(pa.date32()).cast(pa.string()), ~ok, number, 4, times.date)


def _timestamp(number: Any) -> pa.Array:
    return _moment(number, "", times.timestamp)


def _timestamptz(number: Any) -> pa.Array:
    return _moment(number, "+00", times.timestamptz)


def _moment(number: Any, zone: str, plain: Callable[[bytes], str]) -> pa.Array:
    ok = (number >= _YEAR_1 * times.DAY) & (number < _YEAR_10_000 * times.DAY)
    micros = np.where(ok, number, 0) + _SINCE_1970 * times.DAY
    printed = pa.array(micros).cast(pa.timestamp("us")).cast(pa.string())
    # Arrow prints six digits behind the point, always
    printed = pc.if_else(pa.array(micros % 10 == 0), pc.replace_substring_regex(printed, _ZEROS, ""), printed)
    texts = pc.binary_join_element_wise(printed, zone, "") if zone else printed
    return _but(texts, ~ok, number, 8, plain)


def _but(texts: pa.Array, odd: Any, number: Any, size: int, plain: Callable[[bytes], str]) -> pa.Array:
    """The texts, those of odd values as the plain decoder has them."""
    if not odd.any():
        return texts
    again = [plain(value.to_bytes(size, "big", signed=True)) for value in number[odd].tolist()]
    return pc.replace_with_mask(texts, pa.array(odd), pa.array(again, pa.string()))


_UNSIGNED: Final = frozenset((16, 26, 28, 29))
_FAST: Final[dict[int, tuple[int, Callable[[Any], pa.Array]]]] = {
    16: (1, _boolean),
    20: (8, _whole),
    21: (2, _whole),
    23: (4, _whole),
    26: (4, _whole),
    28: (4, _whole),
    29: (4, _whole),
    1082: (4, _date),
    1114: (8, _timestamp),
    1184: (8, _timestamptz),
}
"""Types of a fixed size: bytes, and what makes texts of their numbers (int64 ndarray)."""
_SOME: Final[dict[int, Callable[[Chunk, Any], Some]]] = {
    700: partial(floats, size=4),
    701: partial(floats, size=8),
    1700: numerics,
    2950: uuids,
}
"""Types of which most values are read at once."""
