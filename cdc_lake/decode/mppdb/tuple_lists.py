"""Tuples of a chunk's rows as Arrow lists: values are copied once, for all rows of all shapes together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_lake.decode.mppdb.layouts import Plan
from cdc_lake.decode.mppdb.shapes import Group, Values
from cdc_lake.decode.plain import POSITIONS, TUPLES
from cdc_lake.decode.walk import Chunk, Tuples, bitmap, copied, lists, require, texts


@dataclass(frozen=True, slots=True)
class _Tuples:
    """Tuples of some rows of a chunk: the values sent, where each stands in its row, and how many values a row has."""

    rows: Any
    values: Values
    places: list[int]
    width: int


def new_tuples(chunk: Chunk, found: list[Group], count: int) -> pa.Array:
    """The new tuples of `count` rows as lists, NULL where there is none."""
    tuples = [(group.rows, group.new) for group in found if group.new is not None]
    parts = [_Tuples(rows, new, list(range(new.slots.shape[1])), new.slots.shape[1]) for rows, new in tuples]
    return _tuple_lists(chunk, parts, count)


def old_tuples(chunk: Chunk, found: list[Group], plans: list[Plan], count: int) -> pa.Array:
    """The old tuples; as many values as the relation has columns: what was not sent is NULL."""
    parts = [
        _Tuples(group.rows, group.old, list(plan.places), len(plan.relation.columns))
        for group, plan in zip(found, plans, strict=True)
        if group.old is not None and plan.old_kind is not None
    ]
    return _tuple_lists(chunk, parts, count)


def unchanged(found: list[Group], count: int) -> pa.Array:
    """For each of `count` rows the positions of values that were not sent, NULL where all were."""
    some = [(group.rows, group.new.unsent) for group in found if group.new is not None and group.new.unsent is not None]
    if not some:
        return pa.nulls(count, POSITIONS)
    at = [(rows, *np.nonzero(unsent)) for rows, unsent in some]
    rows = np.concatenate([every[nth] for every, nth, _ in at])
    places = np.concatenate([place for _, _, place in at])[np.argsort(rows, kind="stable")]
    lengths = np.bincount(rows, minlength=count)
    return lists(POSITIONS, lengths, lengths > 0, pa.array(places.astype(np.int32)))


def _tuple_lists(chunk: Chunk, parts: list[_Tuples], count: int) -> pa.Array:
    """The tuples of some rows of `count` as lists, NULL for the other rows."""
    if not parts:
        return pa.nulls(count, TUPLES)
    lengths, valid = np.zeros(count, np.int64), np.zeros(count, bool)
    for part in parts:
        require(part.places == sorted(part.places))
        lengths[part.rows], valid[part.rows] = part.width, True
    return lists(TUPLES, lengths, valid, _texts(chunk, parts, lengths))


def _texts(chunk: Chunk, parts: list[_Tuples], lengths: Any) -> pa.Array:
    """The values of all tuples in the order of rows, which have `lengths` values each."""
    whole = all(len(part.places) == part.width for part in parts)
    slots = _in_order([(part.rows, part.values.slots.view(np.int64)[:, :, 0]) for part in parts], lengths, whole=whole)
    if whole and all(part.values.null is None for part in parts):
        return texts(chunk, Tuples(None, slots, None, None, None))
    sizes = _in_order([(part.rows, _spread(part, _sizes(part.values), -1)) for part in parts], lengths, whole=True)
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(np.maximum(sizes, 0), out=ends[1:])
    data = copied(chunk, slots)[1] if len(slots) else None
    mask = bitmap(sizes >= 0) if (sizes < 0).any() else None
    return pa.StringArray.from_buffers(len(sizes), pa.py_buffer(ends), data or pa.py_buffer(b""), mask)


def _sizes(values: Values) -> Any:
    """The size of each value, -1 for NULL: int32 ndarray (r, k)."""
    sizes = values.slots[:, :, 1] - values.slots[:, :, 0]
    if values.null is not None:
        sizes[values.null] = -1
    return sizes


def _spread(part: _Tuples, given: Any, missing: int) -> Any:
    """One entry a column of the row, from one a value sent."""
    if len(part.places) == part.width:
        return given
    out = np.full((len(given), part.width), missing, given.dtype)
    out[:, part.places] = given
    return out


def _in_order(parts: list[tuple[Any, Any]], lengths: Any, *, whole: bool) -> Any:
    """The entries (r, k) of all parts in the order of their rows. `whole`: rows have `lengths` entries, else fewer."""
    if len(parts) == 1:
        return np.ascontiguousarray(parts[0][1]).ravel()
    if not whole:
        lengths = np.zeros_like(lengths)
        for rows, entries in parts:
            lengths[rows] = entries.shape[1]
    out = np.empty(int(lengths.sum()), parts[0][1].dtype)
    widths = {entries.shape[1] for _, entries in parts}
    if len(widths) == 1 and (width := widths.pop()):  # the usual case: whole rows are placed
        nth = np.cumsum(lengths > 0) - 1
        for rows, entries in parts:
            out.reshape(-1, width)[nth[rows]] = entries
        return out
    first = np.cumsum(lengths) - lengths
    for rows, entries in parts:
        out[first[rows][:, None] + np.arange(entries.shape[1])] = entries
    return out
