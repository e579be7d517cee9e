"""Digests of pgoutput's frames, without decoding them: behind letter and OID stand the canonical bytes of their tuples.

Frames of one letter and one relation have the same canonical bytes before those, so they are hashed together. Where a
chunk has several kinds, Arrow puts the frames of each behind one another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from cdc_lake.decode.digest import DIGEST_SIZE, Digests, canonical_relation
from cdc_lake.decode.hashing import Canonical, Hashing
from cdc_lake.decode.walk import Chunk
from cdc_lake.model.relation import Relation

_HEAD: Final = 5  # letter, OID


def frame_digests(
    chunk: Chunk, letter: Any, relation: Any, relations: Sequence[Relation], hashing: Hashing
) -> Callable[[], Digests]:
    """Begins to make one digest a frame; what it returns waits for them. `letter` (uint8 ndarray) and `relation` (int64
    ndarray), an index into `relations`, are the frames'. Where that is -1, a digest is of no use.
    """
    borders = np.concatenate([np.zeros(1, np.int32), chunk.end.astype(np.int32)])
    return digests_by_kind(letter, relation, relations, Canonical(b"", borders, chunk.bytes, _HEAD), hashing)


def digests_by_kind(
    letter: Any, relation: Any, relations: Sequence[Relation], tails: Canonical, hashing: Hashing
) -> Callable[[], Digests]:
    """The same of n changes; `tails`: what is canonical behind the relation's name, of each."""
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
        mine = borders[first : end + 1]
        parts.append(Canonical(prefix, mine - mine[0], memoryview(data)[mine[0] : mine[-1]], tails.head))
    grouped = hashing(parts)
    return lambda: _in_order(grouped(), order)


def _prefix(code: int, relations: Sequence[Relation]) -> bytes:
    """The canonical bytes before the tuples, of a letter in the low byte and a relation's number + 1 above it."""
    number, letter = code >> 8, bytes([code & 0xFF])
    return letter + canonical_relation(str(relations[number - 1].table)) if number else letter


def _in_order(parts: list[bytes], order: Any) -> Digests:
    """Digests in the order of frames; `order`: the number of each one's frame (int64 ndarray)."""
    out = np.empty((len(order), DIGEST_SIZE), np.uint8)
    out[order] = np.frombuffer(b"".join(parts), np.uint8).reshape(-1, DIGEST_SIZE)
    return Digests(out.tobytes())
