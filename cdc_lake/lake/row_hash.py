"""Row hashes: rows as numbers that a server can work out by SQL too (`source.hash_sql`).

A row's hash is a chain of its columns' hashes (`lake.server_hash`), each with the one before it as its seed: first
which columns are NULL, then the values in order (`lake.ways`). Rows fall into buckets by their key, and a bucket is
known by how many rows it has and by the sum of their hashes modulo 2^64. Two buckets that are alike hold the same rows
as often.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.lake.server_hash import BLOCK, Hashes
from cdc_lake.lake.ways import FIRST, Way, of_text, step

BUCKETS = 1 << 14
"""A server keeps that many groups in its work memory of 4 MB; a bucket of 100 million rows is 6,000."""

FLAGS: Final = 31
"""Columns that one hash says of which are NULL: a bit each, the first one's the lowest."""

_ODD: Final = 1  # the hash of a row that silver cannot hold
_TEXT = pa.large_string()


@dataclass(frozen=True)
class RowForm:
    """How the rows of a table become numbers. `columns` in the order they are hashed in; `numbered`: the key is one
    integer, and its bucket is its last bits.
    """

    columns: tuple[str, ...]
    keys: tuple[str, ...]
    numbered: bool = False

    @property
    def whole(self) -> bool:
        """Whether a row is its key: its bucket is that of its hash, which is one of texts."""
        return self.keys == self.columns and not self.numbered

    def buckets(self, rows: pa.Table) -> Any:
        """The bucket of each row of canonical text, an ndarray of int64; only columns of the key are looked at."""
        if self.numbered:
            numbers = pc.fill_null(pc.cast(rows[self.keys[0]], pa.int64()), 0)
            return np.asarray(numbers) & (BUCKETS - 1)
        return bucket_of(_chained(rows, dict.fromkeys(self.keys, Way.TEXT)))

    def hashes(self, rows: pa.Table, ways: Mapping[str, Way]) -> Any:
        """The hash of each row, an ndarray of uint64; each column as its way wants it (`ways.step`)."""
        return _chained(rows, {name: ways.get(name, Way.TEXT) for name in self.columns})

    def numbers(self, rows: pa.Table, ways: Mapping[str, Way], types: Mapping[str, pa.DataType]) -> tuple[Any, Any]:
        """Bucket and hash of each row of canonical text; `types` are silver's."""
        odd, columns = np.zeros(rows.num_rows, bool), {}
        for name in self.columns:
            text = _one(rows[name])
            columns[name], none = of_text(text, ways[name], types[name]) if name in ways else (text, odd)
            odd = odd | none
        hashes = self.hashes(pa.table(columns), ways)
        hashes[odd] = _ODD
        return (bucket_of(hashes) if self.whole else self.buckets(rows)), hashes

    def text(self, rows: pa.Table) -> Any:
        """One text for the key of each row of canonical text, large_string; different keys have different ones."""
        parts = [part for name in self.keys for part in _parts(rows[name])]
        return _one(pc.binary_join_element_wise(*parts, pa.scalar("", _TEXT), null_handling="replace"))


@dataclass(frozen=True)
class Sums:
    """How many rows each bucket has, and the sum of their hashes modulo 2^64."""

    counts: Any = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))
    hashes: Any = field(default_factory=lambda: np.zeros(BUCKETS, np.uint64))

    def add(self, buckets: Any, hashes: Any, times: Any = 1) -> None:
        """Put rows in, each `times` (negative: take them out)."""
        times = np.broadcast_to(np.asarray(times, np.int64), buckets.shape)
        np.add.at(self.counts, buckets, times)
        np.add.at(self.hashes, buckets, hashes * times.astype(np.uint64))

    def put(self, buckets: Sequence[int], counts: Sequence[int], totals: Sequence[int]) -> None:
        """Put in what a server summed up by bucket: `totals` are exact, of signed numbers."""
        at = np.array(buckets, np.int64)
        np.add.at(self.counts, at, np.array(counts, np.int64))
        np.add.at(self.hashes, at, np.array([total % (1 << 64) for total in totals], np.uint64))

    def of(self, buckets: Any) -> Sums:
        """The same of some buckets only, a bool each."""
        return Sums(self.counts * buckets, self.hashes * buckets)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self.counts.sum())

    def unlike(self, other: Sums) -> Any:
        """The buckets in which two sides differ, an ndarray of bool."""
        return (self.counts != other.counts) | (self.hashes != other.hashes)


def bucket_of(hashes: Any) -> Any:
    """The bucket of each hash, as an ndarray of int64."""
    return (hashes & np.uint64(BUCKETS - 1)).astype(np.int64)


def _chained(rows: pa.Table, ways: Mapping[str, Way]) -> Any:
    """The hashes of rows, of some columns: first which are NULL, then their values."""
    columns = [_one(rows[name]) for name in ways]
    steps = [step(values, way) for values, way in zip(columns, ways.values(), strict=True)]
    flags = list(_flags(columns, rows.num_rows))
    hashes = np.empty(rows.num_rows, np.uint64)
    for begin in range(0, rows.num_rows, BLOCK):
        some = slice(begin, min(begin + BLOCK, rows.num_rows))
        chain = Hashes.first(FIRST, some.stop - begin)
        for group in flags:
            chain = chain.int4(group[some])
        for one in steps:
            chain = one(chain, some)
        hashes[some] = chain.numbers
    return hashes


def _flags(columns: Sequence[Any], rows: int) -> Iterator[Any]:
    """Of each group of columns, for each row which of them are NULL: a bit each, in int32."""
    for begin in range(0, len(columns), FLAGS):
        flags = np.zeros(rows, np.int32)
        for n, values in enumerate(columns[begin : begin + FLAGS]):
            if values.null_count:
                flags |= np.asarray(pc.is_null(values)).astype(np.int32) << n
        yield flags


def _parts(values: Any) -> tuple[Any, ...]:
    return pc.cast(pc.binary_length(values), _TEXT), pa.scalar(":", _TEXT), values


def _one(values: Any) -> Any:
    """A column in one piece."""
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
