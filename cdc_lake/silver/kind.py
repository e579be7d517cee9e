"""Kinds: what a silver table keeps of its source table, as what the apply loop merges through.

`current` keeps the rows as they are now, `history` every version of a row, `append` every change. A kind says which
columns the table has, turns changes into what is to be written, and writes it in one statement.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from cdc_lake.lake.store import SilverColumn
from cdc_lake.model.span import Span
from cdc_lake.model.truncated import Truncated
from cdc_lake.silver.own_columns import with_own
from cdc_lake.silver.shape import Shape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class TablePart:
    """A table's part of a span. `unsent`: positions of columns that some change did not send; `truncated`: the
    table's truncates in it, in order. `released`: held changes are let through in it, which no rule judges.
    """

    shape: Shape
    unsent: frozenset[int]
    truncated: tuple[Truncated, ...]
    span: Span
    released: bool = False


@dataclass(frozen=True, slots=True)
class Flag:
    """A boolean column of a silver table, and its value in the rows that the source's table has now."""

    column: SilverColumn
    value: bool


class RowIdentity(enum.Enum):
    """What a change says of the row it is of."""

    KEY = "key"
    """Its key: there is one row a key."""
    CONTENT = "content"
    """All its values: there may be several such rows."""
    PLACE = "place"
    """Nothing: every change is a row of its own."""


class Kind(ABC):
    """One kind of table."""

    __slots__ = ()

    words: ClassVar[str]
    """The kind as the pipeline file says it."""
    own: ClassVar[tuple[SilverColumn, ...]] = ()
    """The columns by which a table is known to be of this kind; none of the plainest."""
    flag: ClassVar[Flag | None] = None
    """Which rows the source's table has now, and changes may refer to; None: all."""
    identity: ClassVar[RowIdentity] = RowIdentity.KEY
    """By what changes find their rows."""

    def carried(self, shape: Shape) -> Mapping[SilverColumn, str]:
        """Columns of the table that come with each change, by the SQL over bronze's row that gives them."""
        del shape
        return {}

    def columns(self, shape: Shape) -> tuple[SilverColumn, ...]:
        """All columns of the silver table: the source's, those that come with changes, its own. Raises NameTaken."""
        return with_own(shape, [column for column in self.own if column not in shape.carried])

    @abstractmethod
    def net(self, changes: DataFrame, target: DataFrame | None, part: TablePart, *, traced: bool) -> DataFrame:
        """What is to be written, from typed changes; `target`: its live rows before, None: none.

        `traced`: the changes carry `_cdc_row` and `_cdc_origin` (`pipeline.applying.follow`).
        """

    @abstractmethod
    def statement(self, table: str, view: str, part: TablePart, within: Sequence[str]) -> str:
        """The SQL that makes view `view`, which holds what `net` gave, part of `table`.

        `within`: conditions that every row of `t` meets which a net change can be of; they let files be skipped.
        """

    @abstractmethod
    def appended(self, table: str, view: str, part: TablePart) -> str:
        """The same where no key of view `view` is in `table`: its rows are put behind those that are there."""

    @abstractmethod
    def first(self, view: str, shape: Shape) -> str:
        """The query of a table's whole content where it begins with a copy; `view` holds what `net` gave."""
