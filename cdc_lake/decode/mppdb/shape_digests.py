"""Digests of rows in style b, a shape at a time, without a second form of their values.

Before each value stand its type's OID and its length. With `t` or `n` written over the OID's last byte, the bytes from
there to the value's end are the value's canonical ones (`decode.digest`): one `take` puts those of a row one behind the
other, with an `n` for what the server did not send, and the head of the new tuple between old and new.
"""

from __future__ import annotations

from itertools import pairwise, repeat
from typing import Any, Final

import numpy as np
import pyarrow as pa

from cdc_lake.decode.digest import canonical_relation, digests_after, prefix_state
from cdc_lake.decode.mppdb.layouts import Plan
from cdc_lake.decode.mppdb.shapes import Group, Values
from cdc_lake.decode.walk import PADDING, Chunk
from cdc_lake.model.change import OldKind

_BEFORE: Final = 5  # the OID's last byte and the length
_LETTERS: Final = {OldKind.KEY: b"K", OldKind.FULL: b"O"}
_NULL, _TEXT = b"nt"


def digests_of(chunk: Chunk, found: list[Group], plans: list[Plan], count: int) -> list[bytes]:
    """One digest a row of a writable chunk, which is of no other use afterwards."""
    out = [b""] * count
    for group, plan in zip(found, plans, strict=True):
        digests = _of_group(chunk, group, plan)
        if len(digests) == count:
            return digests
        for at, digest in zip(group.rows.tolist(), digests, strict=True):
            out[at] = digest
    return out


def _of_group(chunk: Chunk, group: Group, plan: Plan) -> list[bytes]:
    width = len(plan.relation.columns)
    prefix = group.row.operation.value.encode() + canonical_relation(str(plan.relation.table))
    count = width.to_bytes(2, "big")
    has_old = plan.old_kind is not None
    if plan.old_kind is not None:
        prefix += _LETTERS[plan.old_kind] + count
    elif group.new is not None:
        prefix += b"N" + count
    state = prefix_state(prefix)
    if not width or (not has_old and group.new is None):
        return [state.digest()] * len(group.rows)
    return digests_after(repeat(state, len(group.rows)), _tails(chunk, group, plan, b"N" + count))


def _tails(chunk: Chunk, group: Group, plan: Plan, head: bytes) -> list[bytes]:
    """What follows the prefix in the canonical bytes of each row."""
    rows, width = len(group.rows), len(plan.relation.columns)
    sent = [values for values in (group.new, group.old if plan.old_kind is not None else None) if values is not None]
    each = sum(values.start.shape[1] for values in sent)
    # the pieces of the chunk in its own order, then an `n` and the head of a new tuple, which stand in the padding
    slots = np.empty((rows, each), np.int64)
    at = 0
    for values in sent:
        slots[:, at : at + values.start.shape[1]] = _marked(chunk, values)
        at += values.start.shape[1]
    pieces = rows * each
    padding = len(chunk.bytes) - len(PADDING)
    chunk.data[padding : padding + 1 + len(head)] = np.frombuffer(b"n" + head, np.uint8)
    offsets = np.empty(2 * pieces + 4, np.int32)
    offsets[: 2 * pieces] = slots.ravel().astype("<i8", copy=False).view("<i4")
    offsets[2 * pieces :] = padding, padding + 1, padding + 1, padding + 1 + len(head)
    nothing, new_head = 2 * pieces, 2 * pieces + 2
    # which pieces make a row, by their number in the row
    order = []
    if plan.old_kind is not None:
        base = group.new.start.shape[1] if group.new is not None else 0
        places = {place: base + nth for nth, place in enumerate(plan.places)}
        order += [places.get(column, -1) for column in range(width)]
        order += [-2] if group.new is not None else []
    order += range(width) if group.new is not None else ()
    wanted = np.array(order, np.int64)
    take = 2 * (np.arange(rows, dtype=np.int64)[:, None] * each + wanted)
    take[:, wanted == -1], take[:, wanted == -2] = nothing, new_head
    every = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * pieces + 3, [None, pa.py_buffer(offsets), pa.py_buffer(chunk.bytes)]
    )
    _, ends, data = every.take(pa.array(take.ravel())).buffers()
    borders = np.frombuffer(ends, np.int32, rows * len(order) + 1)[:: len(order)].tolist()
    joined = data.to_pybytes() if data is not None else b""
    return [joined[start:end] for start, end in pairwise(borders)]


def _marked(chunk: Chunk, values: Values) -> Any:
    """The canonical bytes of each value as slots: start in the low, end in the high half; the chunk is changed."""
    first = values.start - _BEFORE
    if values.null is None:
        chunk.data[first] = _TEXT
        return first | (values.end << 32)
    chunk.data[first] = np.where(values.null, np.uint8(_NULL), np.uint8(_TEXT))
    return first | (np.where(values.null, first + 1, values.end) << 32)
