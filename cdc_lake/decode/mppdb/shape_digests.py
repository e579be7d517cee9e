"""Digests of rows in style b, a shape at a time, without a second form of their values.

Before each value stand its type's OID and its length. With `t`, `n` or `u` written over the OID's last byte, the bytes
from there to the value's end are the value's canonical ones (`decode.digest`): one `take` puts those of a row one
behind the other, with an `n` for what an old row left out, and the head of the new tuple between old and new.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from cdc_lake.decode.digest import DIGEST_SIZE, Digests, canonical_relation
from cdc_lake.decode.hashing import Canonical
from cdc_lake.decode.mppdb.layouts import Plan
from cdc_lake.decode.mppdb.shapes import Group, Values
from cdc_lake.decode.walk import PADDING, Chunk, evens, gathered, is_large
from cdc_lake.model.change import OldKind

_BEFORE: Final = 5  # the OID's last byte and the length
_LETTERS: Final = {OldKind.KEY: b"K", OldKind.FULL: b"O"}
_NULL, _TEXT, _UNSENT = b"ntu"
_NOTHING, _HEAD = -1, -2  # pieces that stand in the padding


def canonical_rows(chunk: Chunk, found: list[Group], plans: list[Plan]) -> list[Canonical]:
    """The canonical bytes of each group's rows; the chunk is written to, and only its values stay as they are."""
    return [_of_group(chunk, group, plan) for group, plan in zip(found, plans, strict=True)]


def in_rows(found: list[Group], digests: list[bytes], count: int) -> Digests:
    """One digest a row, from those of each group."""
    if len(found) == 1:
        return Digests(digests[0])
    out = np.empty((count, DIGEST_SIZE), np.uint8)
    for group, of_group in zip(found, digests, strict=True):
        out[group.rows] = np.frombuffer(of_group, np.uint8).reshape(-1, DIGEST_SIZE)
    return Digests(out.tobytes())


def _of_group(chunk: Chunk, group: Group, plan: Plan) -> Canonical:
    width = len(plan.relation.columns)
    prefix = group.row.operation.value.encode() + canonical_relation(str(plan.relation.table))
    count = width.to_bytes(2, "big")
    has_old = plan.old_kind is not None
    if plan.old_kind is not None:
        prefix += _LETTERS[plan.old_kind] + count
    elif group.new is not None:
        prefix += b"N" + count
    if not width or (not has_old and group.new is None):
        return Canonical(prefix, np.zeros(len(group.rows) + 1, np.int32), b"")
    return _tails(chunk, group, plan, prefix, b"N" + count)


def _tails(chunk: Chunk, group: Group, plan: Plan, prefix: bytes, head: bytes) -> Canonical:
    """What follows the prefix in the canonical bytes of each row; `head`: what a new tuple begins with."""
    old = group.old if plan.old_kind is not None else None
    old_first = _stands_before(old, group.new)
    sent = (old, group.new) if old_first else (group.new, old)
    slots = [_marked(chunk, values) for values in sent if values is not None]
    pieces = sum(each.shape[0] * each.shape[1] for each in slots)
    # the pieces of the chunk in its own order, then an `n` and the head of a new tuple, which stand in the padding
    padding = len(chunk.bytes) - len(PADDING)
    chunk.data[padding : padding + 1 + len(head)] = np.frombuffer(b"n" + head, np.uint8)
    constants = np.array([padding, padding + 1, padding + 1, padding + 1 + len(head)], np.int32)
    offsets = np.concatenate([(slots[0] if len(slots) == 1 else np.concatenate(slots, axis=1)).ravel(), constants])
    take, each = _order(group, plan, pieces, old_first=old_first)
    every = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * pieces + 3, [None, pa.py_buffer(offsets), pa.py_buffer(chunk.bytes)]
    )
    if is_large(len(chunk.bytes), len(take)):
        which = np.asarray(take)
        ends, data = gathered(chunk, offsets[which], offsets[which + 1])
    else:
        _, ends, data = every.take(take).buffers()
    borders = np.ascontiguousarray(np.frombuffer(ends, np.int32, len(group.rows) * each + 1)[::each])
    return Canonical(prefix, borders, b"" if data is None else memoryview(data)[: int(borders[-1])])


def _stands_before(values: Values | None, others: Values | None) -> bool:
    """Whether these values stand before the others in each row, as old ones do in text."""
    if values is None or others is None or not values.slots.size or not others.slots.size:
        return False
    return bool(values.slots[0, 0, 0] < others.slots[0, 0, 0])


def _order(group: Group, plan: Plan, pieces: int, *, old_first: bool) -> tuple[Any, int]:
    """Which pieces make the rows, by their number in the array of pieces and gaps, and how many make one row."""
    width = len(plan.relation.columns)
    if plan.old_kind is None:
        return evens(pieces), width
    new, old = (len(plan.places), 0) if old_first else (0, width if group.new is not None else 0)
    places = {place: old + nth for nth, place in enumerate(plan.places)}
    order = [places.get(column, _NOTHING) for column in range(width)]
    if group.new is not None:
        order += [_HEAD, *range(new, new + width)]
    wanted = np.array(order, np.int32)
    each = pieces // len(group.rows)
    take = 2 * (np.arange(0, pieces or len(group.rows), each or 1, dtype=np.int32)[:, None] + wanted)
    take[:, wanted == _NOTHING], take[:, wanted == _HEAD] = 2 * pieces, 2 * pieces + 2
    return pa.array(take.ravel()), len(order)


def _marked(chunk: Chunk, values: Values) -> Any:
    """The canonical bytes of each value as slots; the chunk is changed."""
    slots = values.slots.copy()
    slots[:, :, 0] -= _BEFORE
    first = slots[:, :, 0]
    if values.null is None:
        chunk.data[first] = _TEXT
    else:
        letters = np.where(values.null, np.uint8(_NULL), np.uint8(_TEXT))
        if values.unsent is not None:
            letters[values.unsent] = _UNSENT
        chunk.data[first] = letters
        slots[:, :, 1] -= np.where(values.null, np.int32(_BEFORE - 1), np.int32(0))
    return slots
