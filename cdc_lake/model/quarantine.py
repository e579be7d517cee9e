"""Decisions on quarantined changes, rows fetched again from the source, and rows by key.

A decision takes effect directly before a position. Released changes are applied there, in order and before any change,
with ordinals of their own: below all ordinals in bronze.

A server that checks a key at the end of a transaction allows two rows with the same key temporarily, and columns
without a unique index, or that may be NULL, allow several rows permanently. A change belongs to the row that equals its
whole old tuple, otherwise to the oldest row with the key.
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
"""Lower ordinals belong to decisions; those from here to zero to refetched rows."""


@dataclass(frozen=True)
class Decided:
    """The decisions on one table that take effect in a span: rows of the control table `decisions`, in order."""

    rows: pa.Table | None = None

    def __bool__(self) -> bool:
        return self.rows is not None and self.rows.num_rows > 0

    def rename_keys(self, name: Callable[[tuple[str | None, ...]], tuple[str | None, ...]]) -> Decided:
        """The same with keys converted by `name`."""
        rows = self.rows
        for column in ("key", "from_key") if rows is not None else ():
            assert rows is not None
            keys = [None if key is None else list(name(tuple(key))) for key in rows[column].to_pylist()]
            field = rows.schema.field(column)
            rows = rows.set_column(rows.schema.get_field_index(column), field, pa.array(keys, field.type))
        return Decided(rows)

    @property
    def released_rows(self) -> pa.Table | None:
        """The released changes, at the place where they are applied."""
        if self.rows is None:
            return None
        rows = self.rows.filter(pc.field("verb") == RELEASE)
        return rows if rows.num_rows else None

    def select_span(self, span: Span) -> Decided:
        """Those that take effect in a span."""
        return decided_in(self.rows, span)


NOTHING_DECIDED: Final = Decided()


def decided_in(rows: pa.Table | None, span: Span) -> Decided:
    """The decisions among `rows`, of one table, that take effect in a span."""
    if rows is None or rows.num_rows == 0:
        return Decided()
    in_span = (
        (pc.field("epoch") == span.epoch) & (pc.field("position") > span.after) & (pc.field("position") <= span.upto)
    )
    return Decided(rows.filter(in_span).sort_by([("position", "ascending"), ("ordinal", "ascending")]))


ON: Final = ("of_position", "of_ordinal")
"""The columns that identify the quarantined change of a decision."""


def place_of(row: Mapping[str, object], names: Sequence[str] = ("position", "ordinal")) -> Place:
    """The place in two columns of a row."""
    position, ordinal = (row[name] for name in names)
    assert isinstance(position, int), "a position must be a number"
    assert isinstance(ordinal, int), "an ordinal must be a number"
    return position, ordinal


@dataclass(frozen=True, slots=True)
class RefetchedRows:
    """Rows of a table as they are directly before `position`: bronze's snapshot rows there with `rows` ordinals from
    `first` on, all below zero and so before any change. Each gives the row of one key, or that there is none.
    """

    position: int
    first: int
    rows: int

    @property
    def last(self) -> int:
        """The ordinal of its last row."""
        return self.first + self.rows - 1


def rereads_in(rereads: Iterable[RefetchedRows], span: Span) -> tuple[RefetchedRows, ...]:
    """Those that take effect in a span."""
    return tuple(reread for reread in rereads if reread.position in span)


Key: TypeAlias = tuple[str | None, ...]
Row = TypeVar("Row")


class RowsByKey(Generic[Row]):
    """The current rows of each key, oldest first."""

    def __init__(self) -> None:
        self._rows: dict[Key, deque[Row]] = {}

    def __iter__(self) -> Iterator[Row]:
        """All rows."""
        return (row for rows in self._rows.values() for row in rows)

    def rows(self, key: Key) -> tuple[Row, ...]:
        """All rows of a key."""
        return tuple(self._rows.get(key, ()))

    def row_of(self, key: Key, old: Row | None = None) -> Row | None:
        """The row of a change that leaves `key`, None if the key has no row. `old`: the whole old tuple, which
        distinguishes rows that share the key; None if only its key was sent.
        """
        rows = self._rows.get(key)
        return rows[_place(rows, old)] if rows else None

    def last(self, key: Key) -> Row | None:
        """The newest row of the key."""
        rows = self._rows.get(key)
        return rows[-1] if rows else None

    def move(self, leaves: Key | None, gives: Key | None, row: Row | None, old: Row | None = None) -> None:
        """Move the row at `leaves`, chosen as by `row_of`, to `gives` as `row`; None: from nowhere, or removed."""
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
        """Set the rows of a key."""
        self._rows.pop(key, None)
        for row in rows:
            self.move(None, key, row)

    def clear(self) -> None:
        """Remove all rows."""
        self._rows.clear()


def _place(rows: deque[Row], old: Row | None) -> int:
    return next((index for index, row in enumerate(rows) if row == old), 0) if len(rows) > 1 else 0
