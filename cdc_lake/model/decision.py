"""Decisions on held changes: those that somebody let through, and those that somebody gave up.

A decision comes into force right before a position. What was let through is made there, in order and before any change,
under ordinals of its own: below those of all that lands in bronze.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.model.span import Span

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

    def renamed(self, name: Callable[[tuple[str | None, ...]], tuple[str | None, ...]]) -> Decided:
        """The same with other texts of keys."""
        rows = self.rows
        for column in ("key", "from_key") if rows is not None else ():
            assert rows is not None
            keys = [None if key is None else list(name(tuple(key))) for key in rows[column].to_pylist()]
            field = rows.schema.field(column)
            rows = rows.set_column(rows.schema.get_field_index(column), field, pa.array(keys, field.type))
        return Decided(rows)

    @property
    def released(self) -> pa.Table | None:
        """The changes that were let through, under the place where they are made."""
        if self.rows is None:
            return None
        found = self.rows.filter(pc.field("verb") == RELEASE)
        return found if found.num_rows else None

    @property
    def layouts(self) -> tuple[int, ...]:
        """The layouts of what was let through, ascending."""
        return () if (rows := self.released) is None else tuple(sorted(set(rows["layout"].to_pylist())))

    def within(self, span: Span) -> Decided:
        """Those that come into force in a span."""
        return decided_in(self.rows, span)


NOTHING_DECIDED: Final = Decided()


def decided_in(rows: pa.Table | None, span: Span) -> Decided:
    """The decisions among `rows`, of one table, that come into force in a span."""
    if rows is None or rows.num_rows == 0:
        return Decided()
    mine = (pc.field("epoch") == span.epoch) & (pc.field("position") > span.after) & (pc.field("position") <= span.upto)
    return Decided(rows.filter(mine).sort_by([("position", "ascending"), ("ordinal", "ascending")]))


ON: Final = ("of_position", "of_ordinal")
"""The columns that name the held change which a decision is on."""


def place_of(row: Mapping[str, object], names: Sequence[str] = ("position", "ordinal")) -> Place:
    """The place that two columns of a row name."""
    position, ordinal = (row[name] for name in names)
    assert isinstance(position, int), "a position is a number"
    assert isinstance(ordinal, int), "an ordinal is a number"
    return position, ordinal
