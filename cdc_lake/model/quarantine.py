"""Decisions on held changes, rows that were read again at the source, and rows by key.

A decision comes into force right before a position. What was released is made there, in order and before any change,
under ordinals of its own: below those of all that lands in bronze.

A server that checks a key at the end of a transaction lets two rows have it for a moment, and columns that no index
makes unique, or that may be NULL, let several rows have it for good. A change is of the row that its whole old tuple
equals, and of the one that had the key first if there is no such row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.model.position import Span

Place: TypeAlias = tuple[int, int]
"""Position and ordinal of a change."""

Verb: TypeAlias = Literal["release", "discard"]
RELEASE: Final[Verb] = "release"
DISCARD: Final[Verb] = "discard"

FIRST_ORDINAL: Final = -(1 << 63)
CEILING: Final = -(1 << 62)
"""Ordinals below it are of decisions; rows that were read again have those from here to zero."""


@dataclass(frozen=True)
class Decided:
    """The decisions on one table that come into force in a span: rows of the control table `decisions`, in order."""

    rows: pa.Table | None = None

    def __bool__(self) -> bool:
        return self.rows is not None and self.rows.num_rows > 0

    def rename_keys(self, name: Callable[[tuple[str | None, ...]], tuple[str | None, ...]]) -> Decided:
        """The same with other texts of keys."""
        rows = self.rows
        for column in ("key", "from_key") if rows is not None else ():
            assert rows is not None
            keys = [None if key is None else list(name(tuple(key))) for key in rows[column].to_pylist()]
            field = rows.schema.field(column)
            rows = rows.set_column(rows.schema.get_field_index(column), field, pa.array(keys, field.type))
        return Decided(rows)

    @property
    def released_rows(self) -> pa.Table | None:
        """The changes that were let through, under the place where they are made."""
        if self.rows is None:
            return None
        rows = self.rows.filter(pc.field("verb") == RELEASE)
        return rows if rows.num_rows else None

    def select_span(self, span: Span) -> Decided:
        """Those that come into force in a span."""
        return decided_in(self.rows, span)


NOTHING_DECIDED: Final = Decided()


def decided_in(rows: pa.Table | None, span: Span) -> Decided:
    """The decisions among `rows`, of one table, that come into force in a span."""
    if rows is None or rows.num_rows == 0:
        return Decided()
    in_span = (
        (pc.field("epoch") == span.epoch) & (pc.field("position") > span.after) & (pc.field("position") <= span.upto)
    )
    return Decided(rows.filter(in_span).sort_by([("position", "ascending"), ("ordinal", "ascending")]))


ON: Final = ("of_position", "of_ordinal")
"""The columns that name the held change which a decision is on."""


def place_of(row: Mapping[str, object], names: Sequence[str] = ("position", "ordinal")) -> Place:
    """The place that two columns of a row name."""
    position, ordinal = (row[name] for name in names)
    assert isinstance(position, int), "a position must be a number"
    assert isinstance(ordinal, int), "an ordinal must be a number"
    return position, ordinal


@dataclass(frozen=True, slots=True)
class RefetchedRows:
    """Rows of a table as they are right before `position`: bronze's snapshot rows there with `rows` ordinals from
    `first` on, all below zero and so before any change. Each says of one key which row has it, or that none has.
    """

    position: int
    first: int
    rows: int

    @property
    def last(self) -> int:
        """The ordinal of its last row."""
        return self.first + self.rows - 1


def rereads_in(rereads: Iterable[RefetchedRows], span: Span) -> tuple[RefetchedRows, ...]:
    """Those that come into force in a span."""
    return tuple(reread for reread in rereads if reread.position in span)


Key: TypeAlias = tuple[str | None, ...]
Row = TypeVar("Row")


class RowsByKey(Generic[Row]):
    """Which rows have which key now, oldest first."""

    def __init__(self) -> None:
        self._rows: dict[Key, deque[Row]] = {}

    def __iter__(self) -> Iterator[Row]:
        """All rows."""
        return (row for rows in self._rows.values() for row in rows)

    def rows(self, key: Key) -> tuple[Row, ...]:
        """All rows of a key."""
        return tuple(self._rows.get(key, ()))

    def row_of(self, key: Key, old: Row | None = None) -> Row | None:
        """The row of a change that leaves `key` with the old tuple `old`, None where the key has no row."""
        rows = self._rows.get(key)
        return rows[_place(rows, old)] if rows else None

    def last(self, key: Key) -> Row | None:
        """The row that came to the key last."""
        rows = self._rows.get(key)
        return rows[-1] if rows else None

    def move(self, leaves: Key | None, gives: Key | None, row: Row | None, old: Row | None = None) -> None:
        """The row at `leaves` named by `old` goes, `row` comes to `gives`; None: from nowhere, or away."""
        rows = self._rows.get(leaves) if leaves is not None else None
        place = _place(rows, old) if rows else 0
        if rows and leaves == gives and row is not None:
            rows[place] = row
            return
        if rows:
            del rows[place]
            if not rows and leaves is not None:
                del self._rows[leaves]
        if gives is not None and row is not None:
            self._rows.setdefault(gives, deque()).append(row)

    def put(self, key: Key, rows: Iterable[Row]) -> None:
        """The key has these rows, whatever it had."""
        self._rows.pop(key, None)
        for row in rows:
            self.move(None, key, row)

    def clear(self) -> None:
        """No key has a row."""
        self._rows.clear()


def _place(rows: deque[Row], old: Row | None) -> int:
    return next((index for index, row in enumerate(rows) if row == old), 0) if len(rows) > 1 else 0
