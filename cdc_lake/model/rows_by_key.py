"""Rows by key, while changes are made one by one.

A server that checks a key at the end of a transaction lets two rows have it for a moment; the one that had it first
leaves it first.
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

    def first(self, key: Key) -> Row | None:
        """The row that had the key first, None where there is none."""
        rows = self._at.get(key)
        return rows[0] if rows else None

    def last(self, key: Key) -> Row | None:
        """The row that came to the key last."""
        rows = self._at.get(key)
        return rows[-1] if rows else None

    def move(self, leaves: Key | None, gives: Key | None, row: Row | None) -> None:
        """The first row at `leaves` goes, and `row` comes to `gives`; None: from nowhere, or away. Where both are one
        key the row stays in its turn.
        """
        rows = self._at.get(leaves) if leaves is not None else None
        if rows and leaves == gives and row is not None:
            rows[0] = row
            return
        if rows:
            rows.popleft()
            if not rows and leaves is not None:
                del self._at[leaves]
        if gives is not None and row is not None:
            self._at.setdefault(gives, deque()).append(row)

    def put(self, key: Key, row: Row | None) -> None:
        """The key has this row, None: no row, whatever it had."""
        self._at.pop(key, None)
        self.move(None, key, row)

    def settle(self, keys: Iterable[Key]) -> frozenset[Key]:
        """The end of a transaction that touched `keys`: those with several rows, which then have the last one alone."""
        several = frozenset(key for key in keys if len(self._at.get(key, ())) > 1)
        for key in several:
            self._at[key] = deque([self._at[key][-1]])
        return several

    def clear(self) -> None:
        """No key has a row."""
        self._at.clear()
