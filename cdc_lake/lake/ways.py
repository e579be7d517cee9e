"""Ways: how the values of a column get into the hash of a row, on a server by SQL (`source.hash_sql`) and here.

Numbers and instants are hashed as they are stored, everything else as canonical text. Two values of a column have one
hash only where two hashes of 64 bits are the same by chance.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from importlib import import_module
from typing import Any, Final, TypeAlias, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.lake.canonical import from_silver
from cdc_lake.lake.server_hash import Hashes

FIRST: Final = 1
"""The seed of a row's first hash."""

LONG: Final = 255
"""Bytes of a text that is hashed as it is; of a longer one its `DIGEST` is."""

DIGEST: Final = "md5:"
"""What stands before the md5 of a long text; nobody has such a text in the place of the very text that it is of."""

EXACT: Final = 4_102_444_800_000_000
"""Microseconds from 1840 to 1970 and from there to 2100: what is nearer, a float of 64 bits tells apart as seconds."""

_TEXT: Final = pa.large_string()
try:
    # what Python brings itself: OpenSSL looks the algorithm up in every call, which takes longer than the digest
    _md5: Callable[[bytes], Any] = import_module("_md5").md5
except ImportError:
    _md5 = partial(hashlib.md5, usedforsecurity=False)

Step: TypeAlias = Callable[[Hashes, slice], Hashes]
"""Puts the values of some rows into their hashes."""


class Way(Enum):
    """How values of a column are hashed; NULL is as a value of its type, and said beside it (`lake.row_hash`)."""

    INT4 = auto()
    INT8 = auto()
    BOOL = auto()
    INSTANT = auto()
    """Timestamps: their seconds since 1970 as a float, and the text of those that it cannot tell apart."""
    TEXT = auto()
    """Canonical text, a long one by its digest."""
    DIGEST = auto()
    """Canonical text by its md5, whatever its length."""

    @property
    def by_text(self) -> bool:
        """Whether it is canonical text that is hashed."""
        return self in (Way.TEXT, Way.DIGEST)


def step(values: Any, way: Way) -> Step:
    """How a column (pyarrow Array of silver's type, or large_string for a way by text) is put into hashes."""
    match way:
        case Way.INT4 | Way.BOOL:
            small = np.asarray(pc.fill_null(pc.cast(values, pa.int32()), 0))
            return lambda hashes, rows: hashes.int4(small[rows])
        case Way.INT8:
            large = np.asarray(pc.fill_null(pc.cast(values, pa.int64()), 0))
            return lambda hashes, rows: hashes.xor(large[rows] >> 32).int8(large[rows])
        case Way.INSTANT:
            return _instants(values)
        case Way.TEXT:
            text = _shortened(pc.fill_null(values, ""))
            return lambda hashes, rows: hashes.text(text[rows])
        case Way.DIGEST:
            digests = pa.array(map(_digest, pc.fill_null(values, "").to_pylist()), _TEXT)
            return lambda hashes, rows: hashes.text(digests[rows])
        case _:
            assert_never(way)


def of_text(text: Any, way: Way, kind: pa.DataType) -> tuple[Any, Any]:
    """Canonical text (large_string Array) as `step` takes it beside silver's type, and which rows have none such there:
    an ndarray of bool.
    """
    if way.by_text:
        return text, np.zeros(len(text), bool)
    try:
        found = _parsed(text, way, kind)
    except pa.ArrowInvalid:
        found = pa.concat_arrays([_parsed_alone(text[n : n + 1], way, kind) for n in range(len(text))])
    return found, np.asarray(pc.xor(pc.is_null(found), pc.is_null(text)))


def _parsed(text: Any, way: Way, kind: pa.DataType) -> Any:
    if way is Way.BOOL:
        return pc.cast(pc.index_in(text, pa.array(["f", "t"], _TEXT)), pa.bool_())
    if way is Way.INSTANT:
        plain = pc.cast(pc.replace_substring_regex(text, r"\+00$", ""), pa.timestamp("us"))
        return pc.cast(pc.cast(plain, pa.int64()), pa.timestamp("us", kind.tz))
    return pc.cast(text, kind)


def _parsed_alone(text: Any, way: Way, kind: pa.DataType) -> Any:
    try:
        return _parsed(text, way, kind)
    except pa.ArrowInvalid:
        return _parsed(pa.nulls(1, _TEXT), way, kind)


def _instants(values: Any) -> Step:
    zone = values.type.tz
    micros = np.asarray(pc.fill_null(pc.cast(pc.cast(values, pa.timestamp("us", zone)), pa.int64()), 0))
    seconds, far = micros / 1e6, np.flatnonzero((micros <= -EXACT) | (micros >= EXACT))
    beside = np.zeros(len(micros) if far.size else 0, np.int64)
    if far.size:
        texts = _shortened(from_silver(values.take(pa.array(far))))
        beside[far] = Hashes.first(FIRST, far.size).text(texts).numbers.view(np.int64)

    def put(hashes: Hashes, rows: slice) -> Hashes:
        return (hashes.xor(beside[rows]) if far.size else hashes).float8(seconds[rows])

    return put


def _shortened(text: Any) -> Any:
    """Texts (without NULL), the long ones by their digests."""
    long = pc.greater(pc.binary_length(text), LONG)
    if not pc.any(long).as_py():
        return text
    digests = [DIGEST + _digest(one) for one in text.filter(long).to_pylist()]
    return pc.replace_with_mask(text, long, pa.array(digests, _TEXT))


def _digest(text: str) -> str:
    found: str = _md5(text.encode()).hexdigest()
    return found
