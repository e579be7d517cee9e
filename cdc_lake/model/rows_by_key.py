"""Rows by key, while changes are made one by one.

A server that checks a key at the end of a transaction lets two rows have it for a moment, and columns that no index
makes unique, or that may be NULL, let several rows have it for good. A change is of the row that its whole old tuple
equals, and of the one that had the key first where there is no such row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeAlias, TypeVar

Key: TypeAlias = tuple[str | None, ...]
Row = TypeVar("Row")


class RowsByKey(Generic[Row]):
    """Which rows have which key now, oldest first."""

    def __init__(self) -> None:
        self._at: dict[Key, deque[Row]] = {}

    def __iter__(self) -> Iterator[Row]:
        """All rows."""
        return (row for rows in self._at.values() for row in rows)

    def rows(self, key: Key) -> tuple[Row, ...]:
        """All rows of a key."""
        return tuple(self._at.get(key, ()))

    def row_of(self, key: Key, old: Row | None = None) -> Row | None:
        """The row of a change that leaves `key` with the old tuple `old`, None where the key has no row."""
        rows = self._at.get(key)
        return rows[_place(rows, old)] if rows else None

    def last(self, key: Key) -> Row | None:
        """The row that came to the key last."""
        rows = self._at.get(key)
        return rows[-1] if rows else None

    def move(self, leaves: Key | None, gives: Key | None, row: Row | None, old: Row | None = None) -> None:
        """The row at `leaves` named by `old` goes, and `row` comes to `gives`; None: from nowhere, or away. Where both
        are one key the row stays in its turn.
        """
        rows = self._at.get(leaves) if leaves is not None else None
        place = _place(rows, old) if rows else 0
        if rows and leaves == gives and row is not None:
            rows[place] = row
            return
        if rows:
            del rows[place]
            if not rows and leaves is not None:
                del self._at[leaves]
        if gives is not None and row is not None:
            self._at.setdefault(gives, deque()).append(row)

    def put(self, key: Key, rows: Iterable[Row]) -> None:
        """The key has these rows, whatever it had."""
        self._at.pop(key, None)
        for row in rows:
            self.move(None, key, row)

    def clear(self) -> None:
        """No key has a row."""
        self._at.clear()


def _place(rows: deque[Row], old: Row | None) -> int:
    return next((at for at, row in enumerate(rows) if row == old), 0) if len(rows) > 1 else 0
