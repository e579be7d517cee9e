"""Captured: what a stream carries of a table, a source snapshot as a predicate, and transactions not landed yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from cdc_lake.model.relation import TableName


@dataclass(frozen=True, slots=True)
class Published:
    """One table of a stream: the columns it carries in order, and its row filter (SQL), if any.

    `member`: by which entry of the catalog a publication carries it, another one where it was taken out and put back or
    other columns or rows of it are published since; None where no publication says what is carried.
    """

    table: TableName
    columns: tuple[str, ...]
    row_filter: str | None
    member: int | None = None


@dataclass(frozen=True, slots=True)
class Unlanded:
    """A committed transaction that bronze does not have: position, the number snapshots know it by, tables changed."""

    position: int
    number: int
    tables: frozenset[TableName]


class Shown(Protocol):
    """A source snapshot: which transactions it shows, by a number that bronze keeps of each (`column`)."""

    @property
    def column(self) -> str:
        """Column of bronze's COMMIT rows that holds the number: xid or csn."""
        ...

    @property
    def position(self) -> int:
        """A position, in the stream's order domain, that no transaction it shows lies above."""
        ...

    def shows(self, number: int) -> bool:
        """Whether it shows the committed transaction of this number."""
        ...

    def near(self, numbers: Any) -> Any:
        """For an int64 ndarray of numbers a bool ndarray: False where the snapshot surely shows it."""
        ...
