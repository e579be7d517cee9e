"""Captured: what a stream carries of a table, a source snapshot as a predicate, and transactions not landed yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from cdc_lake.model.relation import TableName


@dataclass(frozen=True, slots=True)
class Published:
    """One table of a stream: the columns it carries in order, and its row filter (SQL), if any.

    `member`: by which entry of the catalog a publication carries it, another one where it was taken out and put back or
    other columns or rows of it are published since; where no publication says what is carried, by which transaction it
    has its name (`decode.mppdb.facts.named_by`), None: not asked. `oid`: of the table in the catalog, another one if
    the name means another table now.
    """

    table: TableName
    columns: tuple[str, ...]
    row_filter: str | None
    member: int | str | None = None
    oid: int | None = None


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

    def shows(self, number: int, position: int, /) -> bool:
        """Whether it shows the transaction of this number that committed at a position of the stream's order domain."""
        ...

    def near(self, numbers: Any, positions: Any, /) -> Any:
        """For int64 ndarrays of numbers and positions a bool ndarray: False if the snapshot surely shows it."""
        ...
