"""Rows of bronze looked at by columns: which of them are as they should be, and the digests of their changes.

A part of a file falls into whole transactions, runs of changes of one that is larger, and odd rows. The first two are
only what is right beyond doubt as far as rows tell; whatever is not is odd, and left to who looks at row by row
(`bronze.chain_link`), which alone says what is wrong. Tables are cut, logical messages and undecodable bytes odd too:
they are few.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze.chain_link import ROW, SAME
from cdc_lake.bronze.contract import BEGIN, COMMIT, DELETE, INSERT, UPDATE
from cdc_lake.decode.changes import ChangeColumns
from cdc_lake.decode.column_digests import digests_of_rows
from cdc_lake.decode.digest import Digests
from cdc_lake.model.relation import Relation

_SHORT: Final = 16  # rows of a run that are looked at one by one just as fast
_AT_ONCE: Final = 4096  # rows as Python values
_CHANGES: Final = (INSERT, UPDATE, DELETE)
_B, _C = ord(BEGIN), ord(COMMIT)


@dataclass(frozen=True, slots=True)
class Whole:
    """A transaction from BEGIN to COMMIT, rows `start` to `stop` (exclusive)."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Run:
    """Changes of one transaction that follow each other; BEGIN and COMMIT are not among them."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Odd:
    """Rows to be looked at one by one."""

    start: int
    stop: int


@dataclass
class RowColumns:
    """Rows of `chain_link.ROW`, in the order of the file. `layouts`: what bronze describes, by number."""

    rows: pa.RecordBatch
    layouts: Mapping[int, Relation]
    digests: Digests = field(init=False)
    """Of the changes that are right, in order."""

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

    def parts(self) -> Iterator[Whole | Run | Odd]:
        """All rows in order."""
        at = 0
        for start, stop in self._whole():
            if start > at:
                yield from self._between(at, start)
            yield Whole(start, stop)
            at = stop
        if at < self.rows.num_rows:
            yield from self._between(at, self.rows.num_rows)

    def tuples(self, part: Whole | Run | Odd) -> Iterator[tuple[Any, ...]]:
        """The rows of a part, one by one."""
        for start in range(part.start, part.stop, _AT_ONCE):
            some = self.rows.slice(start, min(_AT_ONCE, part.stop - start))
            yield from zip(*(column.to_pylist() for column in some.columns), strict=True)

    def row(self, at: int) -> tuple[Any, ...]:
        """One row."""
        return tuple(column[at].as_py() for column in self.rows.columns)

    def said(self, at: int) -> tuple[str | None, int | None]:
        """The `info` and the CSN of a row."""
        return self._infos[at], self._csns[at]

    def stream(self, at: int) -> str:
        """The stream of a row."""
        return self._streams[at]

    def place(self, at: int) -> tuple[int, int]:
        """Epoch and position of a row of a run or a whole transaction."""
        return self._places[at]

    def digests_in(self, start: int, stop: int) -> Digests:
        """Of changes that are in a run or a whole transaction."""
        return self.digests[self._before[start] : self._before[stop]]

    def counts_in(self, start: int, stop: int) -> dict[str, dict[str, int]]:
        """How many changes of each kind of each table: of changes that are in a run or a whole transaction."""
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
        """Of int64, 0 where there is none."""
        return np.asarray(pc.fill_null(self._column(name), 0)).astype(np.int64)

    def _has(self, name: str) -> Any:
        return np.asarray(self._column(name).is_valid())

    @cached_property
    def _infos(self) -> list[str | None]:
        infos: list[str | None] = self._column("info").to_pylist()
        return infos

    @cached_property
    def _csns(self) -> list[int | None]:
        csns: list[int | None] = self._column("csn").to_pylist()
        return csns

    @cached_property
    def _streams(self) -> list[str]:
        streams: list[str] = self._column("stream").to_pylist()
        return streams

    @cached_property
    def _places(self) -> list[tuple[int, int]]:
        return list(zip(self._epoch.tolist(), self._position.tolist(), strict=True))

    @cached_property
    def _names(self) -> list[str]:
        return [str(one.table) for one in self._relations]

    @cached_property
    def _op(self) -> Any:
        """The letter, 0 where it is another one than of these."""
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
    def _encoded(self) -> tuple[list[Relation], Any]:
        """The layouts that rows follow and bronze describes, and which one each row follows, -1: none of them."""
        coded = self._column("layout").dictionary_encode()
        numbers = coded.dictionary.to_pylist()
        known = [self.layouts.get(number) for number in numbers]
        relations = [one for one in known if one is not None]
        places = np.full(len(numbers) + 1, -1, np.int64)
        places[[at for at, one in enumerate(known) if one is not None]] = np.arange(len(relations))
        at = np.asarray(pc.fill_null(coded.indices, len(numbers))).astype(np.int64)
        return relations, places[at]

    @property
    def _relations(self) -> list[Relation]:
        return self._encoded[0]

    @property
    def _relation(self) -> Any:
        return self._encoded[1]

    @cached_property
    def _widths(self) -> Any:
        """Columns of the layout of each row, -1 where there is none."""
        return np.array([*(len(one.columns) for one in self._relations), -1], np.int64)[self._relation]

    @cached_property
    def _right(self) -> Any:
        """Inserts, updates and deletes in the shape of their layout."""
        names = pa.array([*self._names, None], pa.string())
        named = pc.fill_null(
            pc.equal(self._column("relation"), names.take(pa.array(self._relation % len(names)))), False
        )
        right = np.isin(self._op, [ord(letter) for letter in _CHANGES]) & (self._relation >= 0) & np.asarray(named)
        right &= ~self._has("raw") & self._shaped("new") & self._shaped("old") & self._sent_or_not()
        kinds = self._column("old_kind")
        told = np.asarray(pc.is_in(kinds, pa.array(["key", "full"])))
        return right & np.where(self._has("old"), told, ~self._has("old_kind"))

    def _shaped(self, name: str) -> Any:
        """Whether a tuple is not there, or has so many values as its layout has columns."""
        lengths = np.asarray(pc.fill_null(pc.list_value_length(self._column(name)), -1))
        return (lengths == -1) | (lengths == self._widths)

    def _sent_or_not(self) -> Any:
        """Whether there is no value where none was sent."""
        fits = np.ones(self.rows.num_rows, bool)
        unsent, new = self._column("unchanged"), self._column("new")
        if unsent.null_count == len(unsent):
            return fits
        rows = np.asarray(pc.list_parent_indices(unsent))
        at = np.asarray(pc.fill_null(pc.list_flatten(unsent), -1)).astype(np.int64)
        within = (at >= 0) & (at < self._widths[rows]) & self._has("new")[rows] & self._shaped("new")[rows]
        fits[rows[~within]] = False
        rows, at = rows[within], at[within]
        values = new.values
        absent = np.asarray(values.is_null())
        fits[rows[~absent[np.asarray(new.offsets)[rows] + at]]] = False
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
        """Rows that are of the same transaction as the one before, as far as what repeats says, and the next of it."""
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
    def _before(self) -> list[int]:
        """How many changes are right before each row."""
        return [0, *np.cumsum(self._right).tolist()]

    @cached_property
    def _codes(self) -> list[int]:
        codes: list[int] = ((self._relation << 8) | self._op).tolist()
        return codes

    def _whole(self) -> list[tuple[int, int]]:
        """Where whole transactions are."""
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

    def _between(self, start: int, stop: int) -> Iterator[Run | Odd]:
        """Rows that are of no whole transaction."""
        right = self._right[start:stop]
        joined = right & self._follows[start:stop]
        joined[:1] = False
        joined[1:] &= right[:-1]
        bounds = [*(np.flatnonzero(~joined) + start).tolist(), stop]
        odd = start
        for first, last in itertools.pairwise(bounds):
            if last - first >= _SHORT:
                if first > odd:
                    yield Odd(odd, first)
                yield Run(first, last)
                odd = last
        if stop > odd:
            yield Odd(odd, stop)


def _repeats(column: Any) -> Any:
    """For each row but the first, whether it has the value of the one before; NULL is one."""
    before, after = column[:-1], column[1:]
    same = np.asarray(pc.fill_null(pc.equal(before, after), fill_value=False))
    if column.null_count:
        same |= np.asarray(pc.and_(before.is_null(), after.is_null()))
    return same
