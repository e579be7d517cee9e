"""Computes row hashes that a server can compute in SQL too (`source.row_hash_sql`), vectorized.

`hash_uint32_extended` and `hash_bytes_extended` (src/common/hashfn.c: Bob Jenkins' lookup3 with a seed) implement the
SQL functions `hashint4extended`, `hashint8extended`, `hashfloat8extended` and `hashtextextended`. Bytes are read as on
a little-endian server; `source.postgres.server` checks that a server computes the same hashes.

A row's hash chains the hashes of its columns, each seeded with the previous one: first which columns are NULL, then the
values in order; numbers and instants as stored, everything else as canonical text. Two different values of a column
have the same hash only if two 64-bit hashes collide. Rows are divided into buckets by their key, and a bucket is
described by its number of rows and the sum of their hashes modulo 2^64: two equal buckets contain the same rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from importlib import import_module
from typing import Any, Final, TypeAlias, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.tables.canonical_values import from_silver

BLOCK: Final = 8192
"""Rows processed together: the words of a block fit into the processor's cache."""

_START: Final = 0x9E3779B9 + 3923095
_ROUND: Final = 12  # bytes
_WORDS_AT_MOST: Final = 1 << 20  # of the padded texts that are processed at once
_WHOLE: Final = 0xFFFF_FFFF
_MIX: Final = ((0, 2, 1, 4), (1, 0, 2, 6), (2, 1, 0, 8), (0, 2, 1, 16), (1, 0, 2, 19), (2, 1, 0, 4))
_FINAL: Final = ((2, 1, 14), (0, 2, 11), (1, 0, 25), (2, 1, 16), (0, 2, 4), (1, 0, 14), (2, 1, 24))


@dataclass(frozen=True, slots=True)
class Hashes:
    """The hash of each row so far: the upper and the lower 32 bits, as ndarrays of uint32 of one length.

    Every method returns the hashes extended by one value each, seeded with this hash; none of these is 0.
    """

    high: Any
    low: Any

    @classmethod
    def first(cls, number: int, rows: int) -> Hashes:
        """The same number for each row, not 0: a server would ignore that seed."""
        return cls(np.full(rows, number >> 32, np.uint32), np.full(rows, number & _WHOLE, np.uint32))

    @property
    def numbers(self) -> Any:
        """As an ndarray of uint64."""
        return (self.high.astype(np.uint64) << np.uint64(32)) | self.low

    def xor(self, numbers: Any) -> Hashes:
        """XORs numbers (int64) into the hashes, without hashing them."""
        bits = numbers.view(np.uint64)
        return Hashes(self.high ^ (bits >> np.uint64(32)).astype(np.uint32), self.low ^ bits.astype(np.uint32))

    def int4(self, values: Any) -> Hashes:
        """`hashint4extended` of values (int32 or uint32)."""
        words = self._seed_words(4)
        words.a += values.view(np.uint32)
        return words.finish()

    def int8(self, values: Any) -> Hashes:
        """`hashint8extended` of values (int64), which combines both halves."""
        high = (values >> 32).astype(np.int32)
        return self.int4(values.astype(np.uint32) ^ (high ^ (high >> 31)).view(np.uint32))

    def float8(self, values: Any) -> Hashes:
        """`hashfloat8extended` of values (float64); for 0 it is the seed."""
        words = self._seed_words(8)
        halves = values.view(np.uint32)
        words.a += halves[0::2]
        words.b += halves[1::2]
        hashes, zero = words.finish(), values == 0
        if zero.any():
            np.copyto(hashes.high, self.high, where=zero)
            np.copyto(hashes.low, self.low, where=zero)
        return hashes

    def text(self, values: Any) -> Hashes:
        """`hashtextextended` of values (a large_string Array without NULL). For texts of some hundred bytes."""
        sizes = np.diff(np.frombuffer(values.buffers()[1], np.int64)[values.offset :][: len(values) + 1])
        rounds = sizes // _ROUND
        most = int(rounds.max(initial=0))
        if len(values) * (most + 1) * 3 > _WORDS_AT_MOST and len(values) > 1:
            middle = len(values) // 2
            first = Hashes(self.high[:middle], self.low[:middle]).text(values[:middle])
            second = Hashes(self.high[middle:], self.low[middle:]).text(values[middle:])
            return Hashes(np.concatenate((first.high, second.high)), np.concatenate((first.low, second.low)))
        return self._text(values, sizes, rounds, most)

    def _text(self, values: Any, sizes: Any, rounds: Any, most: int) -> Hashes:
        width = (most + 1) * _ROUND
        padded = pc.ascii_rpad(values, width=width, padding="\0")
        texts = np.frombuffer(padded.buffers()[2], np.uint32, len(values) * width // 4, padded.offset * width)
        texts = texts.reshape(len(values), width // 4)
        words = self._seed_words(sizes.astype(np.uint32))
        if int(rounds.min(initial=most)) == most:
            _take(words, texts, [(most, len(values))])
            return words.finish()
        order = np.argsort(-rounds, kind="stable")
        words = _Words(words.a[order], words.b[order], words.c[order])
        _take(words, texts[order], list(_ends(rounds[order])))
        sorted_hashes = words.finish()
        hashes = Hashes(np.empty_like(sorted_hashes.high), np.empty_like(sorted_hashes.low))
        hashes.high[order], hashes.low[order] = sorted_hashes.high, sorted_hashes.low
        return hashes

    def _seed_words(self, size: Any) -> _Words:
        """The initial state for values of so many bytes: a number, or one for each (uint32)."""
        begin = np.uint32(_START & _WHOLE) + np.asarray(size, np.uint32)
        words = _Words(self.high + begin, self.low + begin, np.broadcast_to(begin, self.high.shape).copy())
        words.mix(len(self.high))
        return words


def _ends(rounds: Any) -> Iterator[tuple[int, int]]:
    """For decreasing numbers of complete rounds: each number, and how many rows have at least so many."""
    ends = np.append(np.flatnonzero(np.diff(rounds)) + 1, len(rounds))
    yield from zip(rounds[ends - 1].tolist(), ends.tolist(), strict=True)


def _take(words: _Words, texts: Any, ends: Sequence[tuple[int, int]]) -> None:
    """Mix in padded texts, longest first; `ends` as returned by `_ends`."""
    for n in range(ends[0][0]):
        rows = max(end for rounds, end in ends if rounds > n)
        for column, word in zip(words.columns, (3 * n, 3 * n + 1, 3 * n + 2), strict=True):
            column[:rows] += texts[:rows, word]
        words.mix(rows)
    begin = 0
    for rounds, end in ends:
        words.a[begin:end] += texts[begin:end, 3 * rounds]
        words.b[begin:end] += texts[begin:end, 3 * rounds + 1]
        words.c[begin:end] += texts[begin:end, 3 * rounds + 2] << np.uint32(8)  # the lowest byte is the length's
        begin = end


class _Words:
    """The three words of lookup3 for many rows, modified in place."""

    def __init__(self, a: Any, b: Any, c: Any) -> None:
        self.a, self.b, self.c = self.columns = (a, b, c)
        self._left_buffer, self._right_buffer = np.empty_like(a), np.empty_like(a)

    def mix(self, rows: int) -> None:
        """`mix` of the first rows."""
        words = [column[:rows] for column in self.columns]
        for to, by, other, bits in _MIX:
            np.subtract(words[to], words[by], out=words[to])
            np.bitwise_xor(words[to], self._rotate(words[by], bits), out=words[to])
            np.add(words[by], words[other], out=words[by])

    def finish(self) -> Hashes:
        """`final`."""
        for to, by, bits in _FINAL:
            np.bitwise_xor(self.columns[to], self.columns[by], out=self.columns[to])
            np.subtract(self.columns[to], self._rotate(self.columns[by], bits), out=self.columns[to])
        return Hashes(self.b, self.c)

    def _rotate(self, words: Any, bits: int) -> Any:
        left, right = self._left_buffer[: len(words)], self._right_buffer[: len(words)]
        np.left_shift(words, np.uint32(bits), out=left)
        np.right_shift(words, np.uint32(32 - bits), out=right)
        return np.bitwise_or(left, right, out=left)


FIRST: Final = 1
"""The seed of a row's first hash."""

LONG: Final = 255
"""Maximum length in bytes of a text that is hashed directly; a longer one is hashed as its `DIGEST`."""

DIGEST: Final = "md5:"
"""Prefix of the md5 of a long text, which keeps it apart from ordinary texts."""

EXACT: Final = 4_102_444_800_000_000
"""Microseconds from 1840 to 1970 and from there to 2100: within it, seconds as a 64-bit float are exact."""

_TEXT: Final = pa.large_string()
try:
    # Python's own md5: OpenSSL looks up the algorithm in every call, which takes longer than the digest
    _md5: Callable[[bytes], Any] = import_module("_md5").md5
except ImportError:
    _md5 = partial(hashlib.md5, usedforsecurity=False)

Step: TypeAlias = Callable[[Hashes, slice], Hashes]
"""Mixes the values of some rows into their hashes."""


class HashStrategy(Enum):
    """How values of a column are hashed; NULL is hashed as some value of the type, and flagged (`tables.row_hash`)."""

    INT4 = auto()
    INT8 = auto()
    BOOL = auto()
    INSTANT = auto()
    """Timestamps: their seconds since 1970 as a float, and the text of those that a float cannot distinguish."""
    TEXT = auto()
    """Canonical text, a long one as its digest."""
    DIGEST = auto()
    """Canonical text by its md5, whatever its length."""

    @property
    def by_text(self) -> bool:
        """Whether canonical text is hashed."""
        return self in (HashStrategy.TEXT, HashStrategy.DIGEST)


def step(values: Any, way: HashStrategy) -> Step:
    """The step that mixes a column (pyarrow Array of silver's type, or large_string if by text) into hashes."""
    match way:
        case HashStrategy.INT4 | HashStrategy.BOOL:
            small = np.asarray(pc.fill_null(pc.cast(values, pa.int32()), 0))
            return lambda hashes, rows: hashes.int4(small[rows])
        case HashStrategy.INT8:
            large = np.asarray(pc.fill_null(pc.cast(values, pa.int64()), 0))
            return lambda hashes, rows: hashes.xor(large[rows] >> 32).int8(large[rows])
        case HashStrategy.INSTANT:
            return _instants(values)
        case HashStrategy.TEXT:
            text = _shorten_texts(pc.fill_null(values, ""))
            return lambda hashes, rows: hashes.text(text[rows])
        case HashStrategy.DIGEST:
            digests = pa.array(map(_digest, pc.fill_null(values, "").to_pylist()), _TEXT)
            return lambda hashes, rows: hashes.text(digests[rows])
        case _:
            assert_never(way)


def of_text(text: Any, way: HashStrategy, kind: pa.DataType) -> tuple[Any, Any]:
    """Canonical text (large_string) converted for `step` to silver's type, and a bool ndarray: rows without a value."""
    if way.by_text:
        return text, np.zeros(len(text), bool)
    try:
        values = _parse_text(text, way, kind)
    except pa.ArrowInvalid:
        values = pa.concat_arrays([_parsed_alone(text[n : n + 1], way, kind) for n in range(len(text))])
    return values, np.asarray(pc.xor(pc.is_null(values), pc.is_null(text)))


def _parse_text(text: Any, way: HashStrategy, kind: pa.DataType) -> Any:
    if way is HashStrategy.BOOL:
        return pc.cast(pc.index_in(text, pa.array(["f", "t"], _TEXT)), pa.bool_())
    if way is HashStrategy.INSTANT:
        plain = pc.cast(pc.replace_substring_regex(text, r"\+00$", ""), pa.timestamp("us"))
        return pc.cast(pc.cast(plain, pa.int64()), pa.timestamp("us", kind.tz))
    return pc.cast(text, kind)


def _parsed_alone(text: Any, way: HashStrategy, kind: pa.DataType) -> Any:
    try:
        return _parse_text(text, way, kind)
    except pa.ArrowInvalid:
        return _parse_text(pa.nulls(1, _TEXT), way, kind)


def _instants(values: Any) -> Step:
    zone = values.type.tz
    micros = np.asarray(pc.fill_null(pc.cast(pc.cast(values, pa.timestamp("us", zone)), pa.int64()), 0))
    seconds, far = micros / 1e6, np.flatnonzero((micros <= -EXACT) | (micros >= EXACT))
    exact_hashes = np.zeros(len(micros) if far.size else 0, np.int64)
    if far.size:
        texts = _shorten_texts(from_silver(values.take(pa.array(far))))
        exact_hashes[far] = Hashes.first(FIRST, far.size).text(texts).numbers.view(np.int64)

    def put(hashes: Hashes, rows: slice) -> Hashes:
        return (hashes.xor(exact_hashes[rows]) if far.size else hashes).float8(seconds[rows])

    return put


def _shorten_texts(text: Any) -> Any:
    """Texts (without NULL), long ones replaced by their digests."""
    long = pc.greater(pc.binary_length(text), LONG)
    if not pc.any(long).as_py():
        return text
    digests = [DIGEST + _digest(value) for value in text.filter(long).to_pylist()]
    return pc.replace_with_mask(text, long, pa.array(digests, _TEXT))


def _digest(text: str) -> str:
    digest: str = _md5(text.encode()).hexdigest()
    return digest


BUCKETS = 1 << 14
"""A server keeps so many groups in its work memory of 4 MB; with 100 million rows a bucket has 6,000."""

FLAGS: Final = 31
"""Number of columns per hash of NULL flags: a bit each, the first column's the lowest."""

_ODD: Final = 1  # the hash of a row that silver cannot represent


@dataclass(frozen=True)
class RowForm:
    """How rows are hashed. `columns` in order; `numbered`: the key is one integer, and its last bits are the bucket."""

    columns: tuple[str, ...]
    keys: tuple[str, ...]
    numbered: bool = False

    @property
    def is_key_only(self) -> bool:
        """Whether a row is only its key: its bucket is then that of its hash, which is one of texts."""
        return self.keys == self.columns and not self.numbered

    def buckets(self, rows: pa.Table) -> Any:
        """The bucket of each row of canonical text, an ndarray of int64; only key columns are used."""
        if self.numbered:
            numbers = pc.fill_null(pc.cast(rows[self.keys[0]], pa.int64()), 0)
            return np.asarray(numbers) & (BUCKETS - 1)
        return bucket_of(_chain_hashes(rows, dict.fromkeys(self.keys, HashStrategy.TEXT)))

    def hashes(self, rows: pa.Table, ways: Mapping[str, HashStrategy]) -> Any:
        """The hash of each row, an ndarray of uint64; each column prepared for its strategy (`HashStrategy`)."""
        return _chain_hashes(rows, {name: ways.get(name, HashStrategy.TEXT) for name in self.columns})

    def numbers(
        self, rows: pa.Table, ways: Mapping[str, HashStrategy], types: Mapping[str, pa.DataType]
    ) -> tuple[Any, Any]:
        """Bucket and hash of each row of canonical text; `types` are silver's."""
        odd, columns = np.zeros(rows.num_rows, bool), {}
        for name in self.columns:
            text = _combine_chunks(rows[name])
            columns[name], none = of_text(text, ways[name], types[name]) if name in ways else (text, odd)
            odd = odd | none
        hashes = self.hashes(pa.table(columns), ways)
        hashes[odd] = _ODD
        return (bucket_of(hashes) if self.is_key_only else self.buckets(rows)), hashes

    def text(self, rows: pa.Table) -> Any:
        """One text for the key of each row of canonical text, large_string; different keys have different texts."""
        colon, parts = pa.scalar(":", _TEXT), list[Any]()
        for name in self.keys:
            parts += (pc.cast(pc.binary_length(rows[name]), _TEXT), colon, rows[name])
        return _combine_chunks(pc.binary_join_element_wise(*parts, pa.scalar("", _TEXT), null_handling="replace"))


@dataclass(frozen=True)
class BucketSums:
    """The number of rows of each bucket, and the sum of their hashes modulo 2^64."""

    counts: Any = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))
    hashes: Any = field(default_factory=lambda: np.zeros(BUCKETS, np.uint64))

    def add(self, buckets: Any, hashes: Any, times: Any = 1) -> None:
        """Add rows, each `times` (negative: remove them)."""
        times = np.broadcast_to(np.asarray(times, np.int64), buckets.shape)
        np.add.at(self.counts, buckets, times)
        np.add.at(self.hashes, buckets, hashes * times.astype(np.uint64))

    def put(self, buckets: Sequence[int], counts: Sequence[int], totals: Sequence[int]) -> None:
        """Add sums by bucket computed by a server: `totals` are exact sums of signed numbers."""
        indices = np.array(buckets, np.int64)
        np.add.at(self.counts, indices, np.array(counts, np.int64))
        np.add.at(self.hashes, indices, np.array([total % (1 << 64) for total in totals], np.uint64))

    def select(self, buckets: Any) -> BucketSums:
        """The sums of selected buckets, given as a bool each."""
        return BucketSums(self.counts * buckets, self.hashes * buckets)

    @property
    def rows(self) -> int:
        """The total number of rows."""
        return int(self.counts.sum())

    def unlike(self, other: BucketSums) -> Any:
        """The buckets in which the two sides differ, an ndarray of bool."""
        return (self.counts != other.counts) | (self.hashes != other.hashes)


def bucket_of(hashes: Any) -> Any:
    """The bucket of each hash, as an ndarray of int64."""
    return (hashes & np.uint64(BUCKETS - 1)).astype(np.int64)


def _chain_hashes(rows: pa.Table, ways: Mapping[str, HashStrategy]) -> Any:
    """The hashes of rows over some columns: first the NULL flags, then the values."""
    columns = [_combine_chunks(rows[name]) for name in ways]
    steps = [step(values, way) for values, way in zip(columns, ways.values(), strict=True)]
    flags = list(_flags(columns, rows.num_rows))
    hashes = np.empty(rows.num_rows, np.uint64)
    for begin in range(0, rows.num_rows, BLOCK):
        block = slice(begin, min(begin + BLOCK, rows.num_rows))
        chain = Hashes.first(FIRST, block.stop - begin)
        for group in flags:
            chain = chain.int4(group[block])
        for hash_step in steps:
            chain = hash_step(chain, block)
        hashes[block] = chain.numbers
    return hashes


def _flags(columns: Sequence[Any], rows: int) -> Iterator[Any]:
    """For each group of columns, the NULL flags of each row: a bit each, in int32."""
    for begin in range(0, len(columns), FLAGS):
        flags = np.zeros(rows, np.int32)
        for n, values in enumerate(columns[begin : begin + FLAGS]):
            if values.null_count:
                flags |= np.asarray(pc.is_null(values)).astype(np.int32) << n
        yield flags


def _combine_chunks(values: Any) -> Any:
    """A column in one piece."""
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
