"""Row hashes: rows in canonical text as numbers that a server can work out by SQL too (`source.hash_sql`).

A row's hash is the first 64 bits of md5 of its text; rows fall into buckets by their key, and a bucket is known by how
many rows it has and by the sum of their hashes modulo 2^64. Two buckets that are alike hold the same rows as often.

The text of a row is that of its columns in order, each so that it says where it ends: a column whose values hold no `|`
is `value|`, any other `bytes:value`, in bytes of UTF-8; NULL is `|` and `:`. No such column has an empty value, so
different rows have different texts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

BUCKETS = 1 << 14
"""A server keeps that many groups in its work memory of 4 MB; a bucket of 100 million rows is 6,000."""

_TEXT = pa.large_string()
try:
    # what Python brings itself: OpenSSL looks the algorithm up in every call, which takes longer than the digest
    _md5: Callable[[bytes], Any] = import_module("_md5").md5
except ImportError:
    _md5 = partial(hashlib.md5, usedforsecurity=False)


@dataclass(frozen=True)
class RowForm:
    """How the rows of a table become numbers. `columns` in the order they are hashed in; `plain`: those without `|`;
    `numbered`: the key is one integer, and its bucket is its last bits.
    """

    columns: tuple[str, ...]
    keys: tuple[str, ...]
    plain: frozenset[str]
    numbered: bool = False

    def numbers(self, rows: pa.Table) -> tuple[Any, Any]:
        """Bucket (int64) and hash (uint64) of each row of canonical text, as ndarrays."""
        hashes = _hashes(self.text(rows, self.columns))
        return (_bucket(hashes) if self.keys == self.columns else self.buckets(rows)), hashes

    def buckets(self, rows: pa.Table) -> Any:
        """The bucket of each row, an ndarray of int64; only the columns of the key are looked at."""
        if self.numbered:
            numbers = pc.fill_null(pc.cast(rows[self.keys[0]], pa.int64()), 0)
            return np.asarray(numbers) & (BUCKETS - 1)
        return _bucket(_hashes(self.text(rows, self.keys)))

    def text(self, rows: pa.Table, names: Sequence[str]) -> Any:
        """The text of some columns of each row, large_string without NULL."""
        parts = [part for name in names for part in self._parts(name, rows[name])]
        joined = pc.binary_join_element_wise(*parts, pa.scalar("", _TEXT), null_handling="replace", null_replacement="")
        return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined

    def _parts(self, name: str, values: Any) -> tuple[Any, ...]:
        if name in self.plain:
            return values, pa.scalar("|", _TEXT)
        return pc.cast(pc.binary_length(values), _TEXT), pa.scalar(":", _TEXT), values


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


def _bucket(hashes: Any) -> Any:
    return (hashes >> np.uint64(48)).astype(np.int64) & (BUCKETS - 1)


def _hashes(texts: Any) -> Any:
    joined = b"".join([_md5(text).digest() for text in pc.cast(texts, pa.large_binary()).to_pylist()])
    return np.frombuffer(joined, ">u8")[::2].astype(np.uint64)
