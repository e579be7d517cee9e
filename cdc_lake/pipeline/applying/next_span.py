"""The next span: how many of the transactions ahead go together. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from cdc_lake.bronze.reader import CommitRow
from cdc_lake.config.model import Apply


def next_span(ahead: Iterable[CommitRow], bounds: Apply) -> tuple[list[CommitRow], CommitRow | None]:
    """The transactions of the next span, in order: as many as the bounds take, at least one; none where there are none.

    One that is there as bytes only ends the span before it; where it is the first, it comes as the second value.
    """
    taken: list[CommitRow] = []
    rows = size = 0
    for commit in ahead:
        if commit.undecoded is not None:
            return taken, None if taken else commit
        if taken and (rows + commit.changes > bounds.span_rows or size + commit.size > bounds.span_bytes):
            break
        taken.append(commit)
        rows += commit.changes
        size += commit.size
    return taken, None
