"""Binary floats, numerics and uuids of many rows at once, as the texts that `decode.values` makes of each.

What is here is exact for most values only, and says for which: the others are read one by one (`Some`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.decode.walk import Chunk, require

_WORD: Final = 8  # bytes that are read at once
_GROUP: Final = 4  # decimal digits in one of a numeric's
_GROUPS: Final = 8  # of a numeric, as many as are read at once
_DIGITS: Final = 18  # of a numeric, with zeros, as an integer
_NUMERIC_HEAD: Final = 8  # bytes
_NEGATIVE: Final = 0x4000
_POWERS: Final = 10 ** np.arange(_DIGITS + 1, dtype=np.int64)
_PLAIN: Final = {4: (1e-4, 1e6), 8: (1e-4, 1e10)}
"""By bytes of a float: from where on and below where Arrow prints it as the server does: the fewest digits that tell it
from its neighbours, of those the nearest, without an exponent. Beyond 2**20 and 2**50 there are two nearest ones.
"""
_DASHES: Final = (8, 13, 18, 23)
_UUID: Final = 16  # bytes
_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)


@dataclass(frozen=True, slots=True)
class Some:
    """The texts of some of n values: `texts`, one a True of `which` (bool ndarray, n)."""

    texts: pa.Array
    which: Any


def floats(chunk: Chunk, slots: Any, size: int) -> Some:
    """Of floats of 4 or 8 bytes."""
    start, end = slots & 0xFFFFFFFF, slots >> 32
    require((end - start == size).all())
    words: Any = chunk.window[start].astype(np.uint64)
    values = words.view(np.float64) if size == _WORD else (words >> np.uint64(32)).astype(np.uint32).view(np.float32)
    least, beyond = _PLAIN[size]
    distance = np.abs(values)
    which = ((distance >= least) & (distance < beyond)) | (values == 0)
    return Some(pa.array(values[which]).cast(pa.string()), which)


def numerics(chunk: Chunk, slots: Any) -> Some:
    """Of numerics."""
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
    return Some(_decimal(number, scale, sign[which] == _NEGATIVE), which)


def _decimal(number: Any, scale: Any, negative: Any) -> pa.Array:
    """The texts of integers, each with so many digits behind its point."""
    one = _POWERS[scale]
    texts = pa.array(number // one).cast(pa.string())
    if scale.any():
        behind = pa.array(number % one + one).cast(pa.string())
        behind = pc.replace_substring_regex(behind, "^1", ".")  # the digits with their zeros, for there was a 1 before
        if not scale.all():
            behind = pc.if_else(pa.array(scale > 0), behind, "")
        texts = pc.binary_join_element_wise(texts, behind, "")
    if negative.any():
        texts = pc.binary_join_element_wise(pc.if_else(pa.array(negative), "-", ""), texts, "")
    return texts


def uuids(chunk: Chunk, slots: Any) -> Some:
    """Of uuids: of all of them."""
    start, end = slots & 0xFFFFFFFF, slots >> 32
    require((end - start == _UUID).all())
    data = chunk.data[start[:, None] + np.arange(_UUID)]
    digits = np.empty((len(start), 2 * _UUID), np.uint8)
    digits[:, 0::2], digits[:, 1::2] = _HEX[data >> 4], _HEX[data & 15]
    width = 2 * _UUID + len(_DASHES)
    out = np.full((len(start), width), ord("-"), np.uint8)
    out[:, [at for at in range(width) if at not in _DASHES]] = digits
    ends = np.arange(len(start) + 1, dtype=np.int32) * width
    texts = pa.StringArray.from_buffers(len(start), pa.py_buffer(ends), pa.py_buffer(out.tobytes()))
    return Some(texts, np.ones(len(start), bool))
