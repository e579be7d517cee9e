"""Rows that were read again at the source, beside the stream."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cdc_lake.model.span import Span


@dataclass(frozen=True, slots=True)
class Reread:
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


def rereads_in(rereads: Iterable[Reread], span: Span) -> tuple[Reread, ...]:
    """Those that come into force in a span."""
    return tuple(one for one in rereads if one.position in span)
