"""Computes digests of many changes at once, as defined in `decode.hashing`, from pgoutput's frames or from columns.

Frames with one letter and one relation have the same canonical bytes before their tuples, so they are hashed together
without decoding them. If a chunk has several kinds, Arrow groups its frames by kind.

Changes whose values differ from those received are hashed from their columns: Arrow builds the canonical bytes, one
column at a time; only the hashing itself loops over changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.decode.change_batch import ChangeColumns
from cdc_lake.decode.hashing import DIGEST_SIZE, Canonical, Digests, Hashing, canonical_relation, hashed_here
from cdc_lake.model.relation import Relation


def digests_by_kind(
    letter: Any, relation: Any, relations: Sequence[Relation], tails: Canonical, hashing: Hashing
) -> Callable[[], Digests]:
    """Begin to compute the digests of n changes; the returned function waits for them. `letter` (uint8 ndarray) and
    `relation` (int64 ndarray), an index into `relations`, describe them; with relation -1 a digest is unused. `tails`:
    the canonical bytes of each after the relation's name.
    """
    codes = (relation.astype(np.int64) + 1) << 8 | letter
    kinds, counts = np.unique(codes, return_counts=True)
    prefixes = [_prefix(code, relations) for code in kinds.tolist()]
    if len(kinds) == 1:
        begun = hashing([replace(tails, prefix=prefixes[0])])
        return lambda: Digests(begun()[0])
    order = np.argsort(codes, kind="stable")
    buffers = [None, pa.py_buffer(tails.borders), pa.py_buffer(tails.data)]
    _, offsets, data = pa.BinaryArray.from_buffers(pa.binary(), len(codes), buffers).take(pa.array(order)).buffers()
    borders, ends = np.frombuffer(offsets, np.int32, len(codes) + 1), np.cumsum(counts)
    parts = []
    for prefix, first, end in zip(prefixes, (ends - counts).tolist(), ends.tolist(), strict=True):
        own_borders = borders[first : end + 1]
        own_data = memoryview(data)[own_borders[0] : own_borders[-1]]
        parts.append(Canonical(prefix, own_borders - own_borders[0], own_data, tails.head))
    grouped = hashing(parts)
    return lambda: _in_order(grouped(), order)


def _prefix(code: int, relations: Sequence[Relation]) -> bytes:
    """The canonical bytes before the tuples, for a code with the letter in the low byte and the relation's number +
    1.
    """
    number, letter = code >> 8, bytes([code & 0xFF])
    return letter + canonical_relation(str(relations[number - 1].table)) if number else letter


def _in_order(parts: list[bytes], order: Any) -> Digests:
    """Digests in the order of frames; `order`: the number of each digest's frame (int64 ndarray)."""
    ordered = np.empty((len(order), DIGEST_SIZE), np.uint8)
    ordered[order] = np.frombuffer(b"".join(parts), np.uint8).reshape(-1, DIGEST_SIZE)
    return Digests(ordered.tobytes())


_TRUNCATE: Final = ord("T")
_NEW: Final = ord("N")
_LETTERS: Final = {"key": ord("K"), "full": ord("O")}
_AT_ONCE: Final = 1 << 14  # rows whose canonical bytes are in memory together
_EMPTY: Final = pa.scalar(b"", pa.binary())


def digests_of_rows(changes: ChangeColumns, rows: Any, hashing: Hashing = hashed_here) -> Digests:
    """The digest of each of these changes (an int64 ndarray of indices), which insert, update or delete."""
    parts = [rows[start : start + _AT_ONCE] for start in range(0, len(rows), _AT_ONCE)]
    return Digests.from_parts([_digests(changes, part, hashing) for part in parts])


def digests_anew(changes: ChangeColumns, rows: Any, hashing: Hashing = hashed_here) -> Digests:
    """The changes' digests, with those of these rows computed again, except for truncates."""
    rows = rows[changes.op[rows] != _TRUNCATE]
    updated: Any = np.frombuffer(Digests.from_parts([changes.digests]).data, np.uint8).reshape(-1, DIGEST_SIZE).copy()
    updated[rows] = np.frombuffer(digests_of_rows(changes, rows, hashing).data, np.uint8).reshape(-1, DIGEST_SIZE)
    return Digests(updated.tobytes())


def _digests(changes: ChangeColumns, rows: Any, hashing: Hashing) -> Digests:
    taken = pa.array(rows)
    kinds = changes.old_kind.take(taken)
    letters = np.zeros(len(rows), np.uint8)
    for kind, letter in _LETTERS.items():
        letters[np.asarray(pc.fill_null(pc.equal(kinds, kind), fill_value=False))] = letter
    old = _tuples(changes.old.take(taken), None, letters)
    new = _tuples(changes.new.take(taken), changes.unchanged.take(taken), np.full(len(rows), _NEW, np.uint8))
    tails = pc.binary_join_element_wise(*old, *new, _EMPTY) if old or new else pa.repeat(_EMPTY, len(rows))
    borders, data = tails.buffers()[1:]
    whole = Canonical(b"", np.frombuffer(borders, np.int32, len(rows) + 1), data or b"")
    return digests_by_kind(changes.op[rows], changes.relation[rows], changes.relations, whole, hashing)()


def _tuples(tuples: Any, unchanged: Any, letters: Any) -> list[pa.Array]:
    """The canonical bytes of each tuple in parts: letter and count, and values; no parts without a tuple."""
    if tuples.null_count == len(tuples):
        return []
    offsets, valid = np.asarray(tuples.offsets).astype(np.int64), np.asarray(tuples.is_valid())
    values = tuples.values.slice(offsets[0], offsets[-1] - offsets[0])
    offsets -= offsets[0]
    parts = _values(values, _not_sent(unchanged, offsets, len(values)))
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), parts), _EMPTY)
    heads = np.zeros((len(letters), 3), np.uint8)
    heads[:, 0] = letters
    heads[:, 1:] = np.diff(offsets).astype(">u2").view(np.uint8).reshape(-1, 2)
    return [_binary(heads[valid].ravel(), np.where(valid, 3, 0)), joined]


def _not_sent(unchanged: Any, offsets: Any, count: int) -> Any:
    """A bool ndarray with one entry per value: whether it was not sent."""
    mask = np.zeros(count, bool)
    if unchanged is not None and unchanged.null_count < len(unchanged):
        lengths = np.asarray(pc.fill_null(pc.list_value_length(unchanged), 0))
        first = np.repeat(offsets[:-1], lengths)
        mask[first + np.asarray(pc.list_flatten(unchanged))] = True
    return mask


def _values(values: Any, not_sent: Any) -> pa.Array:
    """The canonical bytes of each value."""
    absent = np.asarray(values.is_null())
    filled = values.cast(pa.binary())
    filled = pc.fill_null(filled, _EMPTY) if filled.null_count else filled
    sizes = np.asarray(pc.binary_length(filled)).astype(np.int64)
    heads = np.zeros((len(values), 5), np.uint8)
    heads[:, 0] = np.where(not_sent, ord("u"), np.where(absent, ord("n"), ord("t")))
    heads[:, 1:] = sizes.astype(">u4").view(np.uint8).reshape(-1, 4)
    lengths = np.where(absent | not_sent, 1, 5)
    data = heads if (lengths == 5).all() else heads[np.arange(5) < lengths[:, None]]
    return pc.binary_join_element_wise(_binary(data.ravel(), lengths), filled, _EMPTY)


def _binary(data: Any, lengths: Any) -> pa.Array:
    """A binary array of these bytes with values of these lengths."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.BinaryArray.from_buffers(pa.binary(), len(lengths), buffers)
