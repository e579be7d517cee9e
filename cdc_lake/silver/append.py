"""The kind `append`: every change, typed, with its operation and place; truncates too.

Nothing is folded and nothing is changed later, so a table needs no key. A value that was not sent is NULL, and its
column stands in `_unchanged`. The old row, as far as the server logs it, stands in `_old_<column>` where it is asked
for. A change that a rule holds is not there until it is released; none waits behind another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc_lake.lake.store import SilverColumn, quoted
from cdc_lake.silver.kind import Flag, RowIdentity, TablePart
from cdc_lake.silver.own_columns import CHANGE, UNSENT, old_column, with_own
from cdc_lake.silver.shape import Shape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Append:
    """Every change (`silver.kind.Kind`). `old_values`: and what the server said of the old row."""

    old_values: bool = False

    @property
    def words(self) -> str:
        """As the pipeline says it."""
        return "`kind: append`"

    @property
    def own(self) -> tuple[SilverColumn, ...]:
        """Operation and place, and which columns were not sent."""
        return (*CHANGE, UNSENT)

    @property
    def flag(self) -> Flag | None:
        """No change refers to another."""
        return None

    @property
    def identity(self) -> RowIdentity:
        """A change has a place, not a key."""
        return RowIdentity.PLACE

    def carried(self, shape: Shape) -> Mapping[SilverColumn, str]:
        """Operation and place of the change, and which columns were not sent."""
        old = {}
        if self.old_values:
            for at, column in enumerate(shape.columns):
                old[old_column(column)] = shape.value(at, shape.text(at, "old"))
        return {**CHANGE, UNSENT: shape.unsent_names(), **old}

    def columns(self, shape: Shape) -> tuple[SilverColumn, ...]:
        """The source's, then operation and place."""
        return with_own(shape)

    def net(self, changes: DataFrame, target: DataFrame | None, part: TablePart, *, traced: bool) -> DataFrame:
        """Each change as it is."""
        del target, traced
        return changes.select(*(quoted(c.name) for c in self.columns(part.shape)))

    def statement(self, table: str, view: str, part: TablePart, bounds: tuple[int, int] | None) -> str:
        """An append."""
        del bounds
        return self.appended(table, view, part)

    def appended(self, table: str, view: str, part: TablePart) -> str:
        """Each change has a place of its own."""
        del part
        return f"INSERT INTO {table} BY NAME SELECT * FROM {view}"

    def first(self, table: str, view: str, shape: Shape) -> str:
        """An overwrite: a new content begins."""
        del shape
        return f"INSERT OVERWRITE {table} BY NAME SELECT * FROM {view}"
