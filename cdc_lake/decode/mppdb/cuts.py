"""Cuts: the records of a batch in pieces of a chunk's size, whatever transactions they are of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import numpy as np

from cdc_lake.decode.mppdb.raw import RecordTransaction
from cdc_lake.decode.mppdb.runs import Lsns, Rows, Run
from cdc_lake.decode.room import in_room
from cdc_lake.decode.walk import PADDING, Chunk

Piece: TypeAlias = Run | list[bytes]
"""Records one behind the other."""


def lsns_of(batch: Sequence[RecordTransaction]) -> Any:
    """The LSN of each record: int64 ndarray."""
    parts: list[Any] = [np.zeros(0, np.int64)]
    loose: list[int] = []
    for raw in batch:
        if isinstance(raw.lsns, Lsns):
            parts += [np.array(loose, np.int64), *raw.lsns.parts]
            loose = []
        else:
            loose += raw.lsns
    return np.concatenate([*parts, np.array(loose, np.int64)])


def cuts(batch: Sequence[RecordTransaction], chunk_bytes: int) -> Iterator[tuple[list[Piece], Any]]:
    """The records in cuts of about `chunk_bytes` and of equal size, at least one each, with the size of each record."""
    pieces = _pieces(batch)
    sizes = np.concatenate([_sizes(piece) for piece in pieces])
    ends = np.cumsum(sizes)
    count = max(1, round(int(ends[-1]) / chunk_bytes))
    nth = (ends - 1) * count // max(int(ends[-1]), 1)
    starts = list(accumulate(map(len, pieces), initial=0))
    for first, behind in pairwise([0, *(np.flatnonzero(np.diff(nth)) + 1).tolist(), len(sizes)]):
        cut = [
            _part(piece, max(first - start, 0), behind - start)
            for piece, start in zip(pieces, starts, strict=False)
            if start < behind and start + len(piece) > first
        ]
        yield cut, sizes[first:behind]


def chunk_of(cut: Sequence[Piece], sizes: Any) -> Chunk:
    """A chunk of the records of a cut."""
    start = np.empty(len(sizes), np.int64)
    data: list[bytes | memoryview] = []
    at = base = 0
    for piece in cut:
        part = slice(at, at + len(piece))
        if isinstance(piece, Run):
            first, behind = int(piece.start[0]), int(piece.end[-1])
            data.append(memoryview(piece.payload)[first:behind])
            start[part] = piece.start + (base - first)
            base += behind - first
        else:
            data += piece
            ends = np.cumsum(sizes[part])
            start[part] = ends - sizes[part] + base
            base += int(ends[-1])
        at += len(piece)
    return Chunk(in_room([*data, PADDING], base + len(PADDING)), start, start + sizes)


def _pieces(batch: Sequence[RecordTransaction]) -> list[Piece]:
    """The records in order, those that are no run in as few lists as possible; none is empty."""
    pieces: list[Piece] = []
    for raw in batch:
        for part in raw.records.parts if isinstance(raw.records, Rows) else (raw.records,):
            if isinstance(part, Run):
                pieces.append(part)
            elif pieces and isinstance(pieces[-1], list):
                pieces[-1] += part
            elif part:
                pieces.append(list(part))
    return pieces


def _sizes(piece: Piece) -> Any:
    if isinstance(piece, Run):
        return piece.end - piece.start
    return np.fromiter(map(len, piece), np.int64, len(piece))


def _part(piece: Piece, first: int, behind: int) -> Piece:
    if first == 0 and behind >= len(piece):
        return piece
    return piece.part(first, behind) if isinstance(piece, Run) else piece[first:behind]
