"""Verifies one link of the hash chain: a transaction's rows against its COMMIT row.

Two checks implement the same definition (`decode.hashing`). `RowColumns` checks a part of a file by columns and finds
complete transactions and runs of changes that are certainly right: it is fast, and ignores the others. `Link` checks
the rest row by row (truncates, messages, undecodable bytes, mismatches), in memory that does not grow with the
transaction; only it reports what is wrong.

The hash covers the values. What repeats on each row (stream, LSNs, CSN, xid, time) is only compared between the rows.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze.contract import BEGIN, COMMIT, DELETE, INSERT, MESSAGE, TRUNCATE, UNDECODABLE, UPDATE
from cdc_lake.decode import hashing
from cdc_lake.decode.change_batch import ChangeColumns
from cdc_lake.decode.digests import digests_of_rows
from cdc_lake.decode.undecodable import READING_FIELD
from cdc_lake.model.change import Undecoded
from cdc_lake.model.relation import Relation

ROW: Final = (
    "epoch", "position", "ordinal", "op", "relation", "layout", "new", "old", "old_kind", "unchanged", "raw", "info",
    "stream", "csn", "first_lsn", "commit_lsn", "xid", "commit_ts",
)  # fmt: skip
"""The checked columns of bronze, in the order in which rows are passed."""

_EPOCH, _POSITION, _ORDINAL, _OP, _RELATION, _LAYOUT, _NEW, _OLD, _KIND, _UNCHANGED, _RAW, _INFO = range(12)
SAME: Final = slice(12, None)
"""Those that are equal in all rows of a transaction."""

_TUPLE_OPS: Final = frozenset({INSERT, UPDATE, DELETE})
_OF_TABLE: Final = _TUPLE_OPS | {TRUNCATE}


class ChainMismatch(Exception):
    """A mismatch of a row or a transaction, and its reason."""


@dataclass(frozen=True, slots=True)
class LinkedTransaction:
    """A verified transaction: its place in the chain, its size, and the number of empty ones before it."""

    position: int
    hash: bytes
    changes: int
    empty_before: int
    csn: int | None


class Link:
    """One transaction. `previous`: the hash before it; `layouts`: those that bronze describes, by number."""

    def __init__(self, previous: bytes, layouts: Mapping[int, Relation]) -> None:
        self._previous = previous
        self._layouts = layouts
        self._content = hashing.Content()
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._rows = 0
        self._undecoded = 0
        self._same: tuple[Any, ...] = ()
        self.position = -1

    def take(self, row: tuple[Any, ...]) -> LinkedTransaction | None:
        """Take the next row (`ROW`); returns the transaction that a COMMIT row closes. Raises ChainMismatch."""
        self._place(row)
        op = row[_OP]
        try:
            if op == BEGIN:
                self._bare(row)
            elif op == COMMIT:
                self._bare(row)
                return self._close(json.loads(row[_INFO]), row)
            else:
                self._change(row)
        except (AttributeError, KeyError, TypeError, ValueError) as unreadable:
            raise ChainMismatch("a row of it cannot be read") from unreadable
        return None

    def run(self, first: tuple[Any, ...], digests: Sequence[bytes], counts: Mapping[str, Mapping[str, int]]) -> bool:
        """Take changes that are right by themselves, from row `first` on; False if they do not follow."""
        here = (self._rows, self.position, self._same)
        if not self._rows or (first[_ORDINAL], first[_POSITION], first[SAME]) != here:
            return False
        self._rows += len(digests)
        self._content.add_all(digests)
        for relation, more in counts.items():
            self._counts[relation].update(more)
        return True

    def _place(self, row: tuple[Any, ...]) -> None:
        if self._rows == 0:
            self._same, self.position = row[SAME], row[_POSITION]
        if row[_ORDINAL] != self._rows:
            raise ChainMismatch("its ordinals do not count from 0: rows are missing, duplicated or moved")
        if (row[_OP] == BEGIN) != (self._rows == 0):
            raise ChainMismatch("it does not run from BEGIN to COMMIT")
        if row[SAME] != self._same:
            raise ChainMismatch("its rows do not agree on stream, LSN, CSN, xid or time")
        self._rows += 1

    def _bare(self, row: tuple[Any, ...]) -> None:
        if any(value is not None for value in row[_RELATION:_INFO]):
            raise ChainMismatch("its BEGIN or COMMIT row contains a change")

    def _change(self, row: tuple[Any, ...]) -> None:
        op, relation, number = row[_OP], row[_RELATION], row[_LAYOUT]
        digest = hashing.digest_of(_canonical(row))
        layout = None if number is None else self._layouts.get(number)
        described = layout is not None and str(layout.table) == relation
        if not described and (number is not None or op in _OF_TABLE):
            raise ChainMismatch("a change follows a layout that bronze does not describe")
        if op in _TUPLE_OPS and (layout is None or not _has_shape(row, len(layout.columns))):
            raise ChainMismatch("one of its tuples does not match its layout")
        self._content.add(digest)
        if op == UNDECODABLE:
            self._undecoded += 1
        elif op != MESSAGE:
            self._counts[relation][op] += 1

    def _close(self, commit_info: dict[str, Any], row: tuple[Any, ...]) -> LinkedTransaction:
        content = self._content.root()
        hashed = hashing.chain_of(self._previous, self.position, content)
        if commit_info["counts"] != self._counts or not self._all_or_none(commit_info):
            raise ChainMismatch("its changes are not the ones that its COMMIT row counts")
        if commit_info["content"] != content.hex():
            raise ChainMismatch("its changes are not the ones that were landed")
        if commit_info["hash"] != hashed.hex():
            raise ChainMismatch("it does not follow the transaction before it: one is missing or duplicated")
        csn = row[ROW.index("csn")]
        return LinkedTransaction(self.position, hashed, self._rows - 2, int(commit_info["empty_before"]), csn)

    def _all_or_none(self, commit_info: dict[str, Any]) -> bool:
        """Whether the number of `X` rows matches the COMMIT row, and there are no other changes."""
        if "undecodable" not in commit_info:
            return not self._undecoded
        return self._undecoded == Undecoded.from_description(commit_info["undecodable"]).frames == self._rows - 2


def link_transaction(
    previous: bytes,
    position: int,
    digests: Sequence[bytes],
    counts: Mapping[str, Mapping[str, int]],
    info: str | None,
    csn: int | None,
) -> LinkedTransaction | None:
    """A transaction whose rows are right, if its COMMIT row agrees; otherwise None, and the rows show why."""
    try:
        commit_info = json.loads(info or "")
        content = hashing.content_of(digests)
        hashed = hashing.chain_of(previous, position, content)
        stated = (commit_info["counts"], commit_info["content"], commit_info["hash"])
        if stated == (counts, content.hex(), hashed.hex()) and "undecodable" not in commit_info:
            return LinkedTransaction(position, hashed, len(digests), int(commit_info["empty_before"]), csn)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return None


def _has_shape(row: tuple[Any, ...], columns: int) -> bool:
    """Whether the tuples have so many columns, and no value for unchanged ones."""
    new, old, unsent = row[_NEW], row[_OLD], row[_UNCHANGED] or ()
    if any(values is not None and len(values) != columns for values in (new, old)):
        return False
    return all(new is not None and 0 <= index < columns and new[index] is None for index in unsent)


def _canonical(row: tuple[Any, ...]) -> bytes:
    """The canonical bytes of a change row; KeyError, TypeError or ValueError if it is invalid."""
    op, relation, info = row[_OP], row[_RELATION], row[_INFO]
    if op == UNDECODABLE:
        reading = json.loads(info or "{}").get(READING_FIELD, "")
        return hashing.canonical_undecodable(reading, relation, row[_RAW])
    if row[_RAW] is not None or (op not in _TUPLE_OPS and any(value is not None for value in row[_NEW:_RAW])):
        raise ValueError(op)
    if (op in _OF_TABLE) != (relation is not None):
        raise ValueError(op)
    if op == MESSAGE:
        details = json.loads(info)
        prefix, content = str(details["prefix"]).encode(), base64.b64decode(details["content"], validate=True)
        return b"M" + hashing.canonical_bytes(prefix) + hashing.canonical_bytes(content)
    if op not in _OF_TABLE:
        raise ValueError(op)
    canonical: bytes = op.encode() + hashing.canonical_relation(relation)
    if op == TRUNCATE:
        details = json.loads(info)
        return canonical + b"c" * bool(details["cascade"]) + b"r" * bool(details["restart_identity"])
    if row[_OLD] is not None:
        canonical += {"key": b"K", "full": b"O"}[row[_KIND]] + hashing.canonical_tuple(row[_OLD])
    elif row[_KIND] is not None:
        raise ValueError(op)
    if row[_NEW] is not None:
        canonical += b"N" + hashing.canonical_tuple(row[_NEW], frozenset(row[_UNCHANGED] or ()))
    return canonical


@dataclass(frozen=True, slots=True)
class EpochFacts:
    """What other sources say about an epoch; each part is None or empty if unknown.

    `stream`: its identity. `start`: the position before its transactions. `head` and `last`: hash and position of its
    end, as the next stream found them. `dense`: it shows every CSN. `gaps`: CSNs that were passed over,
    `(first, last)`, ascending, without overlaps.
    """

    stream: str | None = None
    start: int | None = None
    head: bytes | None = None
    dense: bool = False
    gaps: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ChainVerdict:
    """What was verified, up to the first mismatch: its location, stream and reason.

    `empty` counts verified transactions without rows, `passed_over` the CSNs in recorded gaps; both concern streams
    that show every CSN. `behind`: the last transaction that retention removed; its hash is recorded, and the chain
    starts there.
    """

    transactions: int
    changes: int
    last: tuple[int, int] | None  # epoch and position of the last verified transaction
    broken_at: tuple[int, int] | None = None
    reason: str = ""
    stream: str = ""
    empty: int = 0
    passed_over: int = 0
    behind: tuple[int, int] | None = None

    @property
    def holds(self) -> bool:
        """True without a mismatch."""
        return not self.reason


_SHORT: Final = 16  # rows of a run that are checked one by one just as fast
_AT_ONCE: Final = 4096  # rows as Python values
_CHANGES: Final = (INSERT, UPDATE, DELETE)
_B, _C = ord(BEGIN), ord(COMMIT)


@dataclass(frozen=True, slots=True)
class _RowRange:
    """Rows `start` to `stop` (exclusive)."""

    start: int
    stop: int


class CompleteTransaction(_RowRange):
    """A transaction from BEGIN to COMMIT."""


class ChangeRun(_RowRange):
    """Consecutive changes of one transaction, without BEGIN and COMMIT."""


class UnverifiedRows(_RowRange):
    """Rows to be checked one by one."""


@dataclass
class RowColumns:
    """Rows of the columns `ROW`, in the order of the file. `layouts`: those that bronze describes, by number."""

    rows: pa.RecordBatch
    layouts: Mapping[int, Relation]
    digests: hashing.Digests = field(init=False)
    """Digests of the changes that are right, in order."""

    def __post_init__(self) -> None:
        places = np.flatnonzero(self._right)
        changes = ChangeColumns(
            relations=self._relations,
            transaction=np.zeros(0, np.int32),
            op=self._op,
            relation=self._relation,
            lsn=None,
            new=self._column("new"),
            old=self._column("old"),
            old_kind=self._column("old_kind"),
            unchanged=self._column("unchanged"),
            info=None,
            digests=[],
        )
        self.digests = digests_of_rows(changes, places)

    def parts(self) -> Iterator[CompleteTransaction | ChangeRun | UnverifiedRows]:
        """All rows in order."""
        position = 0
        for start, stop in self._complete_transactions():
            if start > position:
                yield from self._incomplete_parts(position, start)
            yield CompleteTransaction(start, stop)
            position = stop
        if position < self.rows.num_rows:
            yield from self._incomplete_parts(position, self.rows.num_rows)

    def tuples(self, part: CompleteTransaction | ChangeRun | UnverifiedRows) -> Iterator[tuple[Any, ...]]:
        """The rows of a part, one by one."""
        for start in range(part.start, part.stop, _AT_ONCE):
            chunk = self.rows.slice(start, min(_AT_ONCE, part.stop - start))
            yield from zip(*(column.to_pylist() for column in chunk.columns), strict=True)

    def row(self, index: int) -> tuple[Any, ...]:
        """One row."""
        return tuple(column[index].as_py() for column in self.rows.columns)

    @cached_property
    def infos(self) -> list[str | None]:
        """The `info` of each row."""
        infos: list[str | None] = self._column("info").to_pylist()
        return infos

    @cached_property
    def csns(self) -> list[int | None]:
        """The CSN of each row."""
        csns: list[int | None] = self._column("csn").to_pylist()
        return csns

    @cached_property
    def streams(self) -> list[str]:
        """The stream of each row."""
        streams: list[str] = self._column("stream").to_pylist()
        return streams

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        """Epoch and position of each row of a run or a complete transaction."""
        return list(zip(self._epoch.tolist(), self._position.tolist(), strict=True))

    def digests_in(self, start: int, stop: int) -> hashing.Digests:
        """Digests of changes in a run or a complete transaction."""
        return self.digests[self._right_counts[start] : self._right_counts[stop]]

    def counts_in(self, start: int, stop: int) -> dict[str, dict[str, int]]:
        """Number of changes of each kind for each table, in a run or a complete transaction."""
        if stop - start == 1:
            code = self._codes[start]
            return {self._names[code >> 8]: {chr(code & 0xFF): 1}}
        counts: dict[str, dict[str, int]] = {}
        for code, number in Counter(self._codes[start:stop]).items():
            kinds = counts.setdefault(self._names[code >> 8], {})
            op = chr(code & 0xFF)
            kinds[op] = kinds.get(op, 0) + number
        return counts

    # ── what a row is by itself ──

    def _column(self, name: str) -> Any:
        return self.rows.column(ROW.index(name))

    def _numbers(self, name: str) -> Any:
        """As int64, 0 for NULL."""
        return np.asarray(pc.fill_null(self._column(name), 0)).astype(np.int64)

    def _has(self, name: str) -> Any:
        return np.asarray(self._column(name).is_valid())

    @cached_property
    def _names(self) -> list[str]:
        return [str(relation.table) for relation in self._relations]

    @cached_property
    def _op(self) -> Any:
        """The letter, 0 if it is none of these."""
        op = np.zeros(self.rows.num_rows, np.uint8)
        for letter in (BEGIN, COMMIT, *_CHANGES):
            op[np.asarray(pc.fill_null(pc.equal(self._column("op"), letter), fill_value=False))] = ord(letter)
        return op

    @cached_property
    def _position(self) -> Any:
        return self._numbers("position")

    @cached_property
    def _epoch(self) -> Any:
        return self._numbers("epoch")

    @cached_property
    def _ordinal(self) -> Any:
        return self._numbers("ordinal")

    @cached_property
    def _layout_codes(self) -> tuple[list[Relation], Any]:
        """The layouts that bronze describes, and the one of each row, -1: none of them."""
        coded = self._column("layout").dictionary_encode()
        numbers = coded.dictionary.to_pylist()
        layouts = [self.layouts.get(number) for number in numbers]
        relations = [layout for layout in layouts if layout is not None]
        places = np.full(len(numbers) + 1, -1, np.int64)
        places[[index for index, layout in enumerate(layouts) if layout is not None]] = np.arange(len(relations))
        index = np.asarray(pc.fill_null(coded.indices, len(numbers))).astype(np.int64)
        return relations, places[index]

    @property
    def _relations(self) -> list[Relation]:
        return self._layout_codes[0]

    @property
    def _relation(self) -> Any:
        return self._layout_codes[1]

    @cached_property
    def _widths(self) -> Any:
        """Columns of the layout of each row, -1 without one."""
        return np.array([*(len(relation.columns) for relation in self._relations), -1], np.int64)[self._relation]

    @cached_property
    def _right(self) -> Any:
        """Inserts, updates and deletes that match their layout."""
        names = pa.array([*self._names, None], pa.string())
        named = pc.fill_null(
            pc.equal(self._column("relation"), names.take(pa.array(self._relation % len(names)))), False
        )
        right = np.isin(self._op, [ord(letter) for letter in _CHANGES]) & (self._relation >= 0) & np.asarray(named)
        right &= ~self._has("raw") & self._has_shape("new") & self._has_shape("old") & self._sent_or_not()
        kinds = self._column("old_kind")
        is_known_kind = np.asarray(pc.is_in(kinds, pa.array(["key", "full"])))
        return right & np.where(self._has("old"), is_known_kind, ~self._has("old_kind"))

    def _has_shape(self, name: str) -> Any:
        """Whether a tuple is missing, or has as many values as its layout has columns."""
        lengths = np.asarray(pc.fill_null(pc.list_value_length(self._column(name)), -1))
        return (lengths == -1) | (lengths == self._widths)

    def _sent_or_not(self) -> Any:
        """Whether unchanged columns have no value."""
        fits = np.ones(self.rows.num_rows, bool)
        unsent, new = self._column("unchanged"), self._column("new")
        if unsent.null_count == len(unsent):
            return fits
        rows = np.asarray(pc.list_parent_indices(unsent))
        columns = np.asarray(pc.fill_null(pc.list_flatten(unsent), -1)).astype(np.int64)
        within = (columns >= 0) & (columns < self._widths[rows]) & self._has("new")[rows] & self._has_shape("new")[rows]
        fits[rows[~within]] = False
        rows, columns = rows[within], columns[within]
        values = new.values
        absent = np.asarray(values.is_null())
        fits[rows[~absent[np.asarray(new.offsets)[rows] + columns]]] = False
        return fits

    @cached_property
    def _bare(self) -> Any:
        bare = np.ones(self.rows.num_rows, bool)
        for name in ("relation", "layout", "new", "old", "old_kind", "unchanged", "raw"):
            bare &= ~self._has(name)
        return bare

    # ── how rows follow each other ──

    @cached_property
    def _follows(self) -> Any:
        """Rows that follow the previous one in the same transaction, according to repeated values and ordinal."""
        count = self.rows.num_rows
        follows = np.ones(count, bool)
        follows[:1] = False
        for name in ("epoch", "position", *ROW[SAME]):
            follows[1:] &= _repeats(self._column(name))
        for name in ("epoch", "position", "ordinal"):
            has = self._has(name)
            follows &= has
            follows[1:] &= has[:-1]
        follows[1:] &= self._ordinal[1:] == self._ordinal[:-1] + 1
        return follows

    @cached_property
    def _right_counts(self) -> list[int]:
        """The number of right changes before each row."""
        return [0, *np.cumsum(self._right).tolist()]

    @cached_property
    def _codes(self) -> list[int]:
        codes: list[int] = ((self._relation << 8) | self._op).tolist()
        return codes

    def _complete_transactions(self) -> list[tuple[int, int]]:
        """Bounds of complete transactions."""
        begins = (self._op == _B) & self._bare & (self._ordinal == 0) & self._has("ordinal")
        begins &= self._has("epoch") & self._has("position")
        commits = self._follows & (self._op == _C) & self._bare
        bad = ~(begins | commits | (self._follows & self._right))
        after_commit = np.zeros_like(bad)
        after_commit[1:] = self._op[:-1] == _C
        bad |= after_commit & ~begins
        starts, ends = np.flatnonzero(begins), np.flatnonzero(commits & ~bad)
        if not len(starts) or not len(ends):
            return []
        closing = np.searchsorted(ends, starts)
        inside = closing < len(ends)
        starts, closing = starts[inside], ends[closing[inside]]
        wrong = np.cumsum(bad)
        alone = np.append(starts[1:] > closing[:-1], True) & (wrong[closing] == wrong[starts])
        return list(zip(starts[alone].tolist(), (closing[alone] + 1).tolist(), strict=True))

    def _incomplete_parts(self, start: int, stop: int) -> Iterator[ChangeRun | UnverifiedRows]:
        """Rows of incomplete transactions."""
        right = self._right[start:stop]
        joined = right & self._follows[start:stop]
        joined[:1] = False
        joined[1:] &= right[:-1]
        bounds = [*(np.flatnonzero(~joined) + start).tolist(), stop]
        odd = start
        for first, last in itertools.pairwise(bounds):
            if last - first >= _SHORT:
                if first > odd:
                    yield UnverifiedRows(odd, first)
                yield ChangeRun(first, last)
                odd = last
        if stop > odd:
            yield UnverifiedRows(odd, stop)


def _repeats(column: Any) -> Any:
    """Whether each row but the first has the value of the one before; NULLs are equal."""
    before, after = column[:-1], column[1:]
    same = np.asarray(pc.fill_null(pc.equal(before, after), fill_value=False))
    if column.null_count:
        same |= np.asarray(pc.and_(before.is_null(), after.is_null()))
    return same
