"""The kind `append`: every change, typed, with its operation and place; truncates too.

Nothing is folded and nothing is changed later, so a table needs no key. A value that was not sent is NULL, and its
column stands in `_unchanged`. The old row, as far as the server logs it, stands in `_old_<column>` where it is asked
for. A change that a rule holds is not there until it is released; none waits behind another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from cdc_lake.lake.store import SilverColumn, quoted
from cdc_lake.silver.kind import Kind, RowIdentity, TablePart
from cdc_lake.silver.own_columns import CHANGE, UNSENT, old_column
from cdc_lake.silver.shape import Shape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Append(Kind):
    """Every change. `old_values`: and what the server said of the old row."""

    words: ClassVar = "`kind: append`"
    own: ClassVar = (*CHANGE, UNSENT)
    identity: ClassVar = RowIdentity.PLACE

    old_values: bool = False

    def carried(self, shape: Shape) -> Mapping[SilverColumn, str]:
        """Operation and place of the change, and which columns were not sent."""
        old = {}
        if self.old_values:
            for at, column in enumerate(shape.columns):
                old[old_column(column)] = shape.value(at, shape.text(at, "old"))
        return {**CHANGE, UNSENT: shape.unsent_names(), **old}

    def net(self, changes: DataFrame, target: DataFrame | None, part: TablePart, *, traced: bool) -> DataFrame:
        """Each change as it is."""
        del target, traced
        return changes.select(*(quoted(c.name) for c in self.columns(part.shape)))

    def statement(self, table: str, view: str, part: TablePart, within: Sequence[str]) -> str:
        """An append."""
        del within
        return self.appended(table, view, part)

    def appended(self, table: str, view: str, part: TablePart) -> str:
        """Each change has a place of its own."""
        del part
        return f"INSERT INTO {table} BY NAME SELECT * FROM {view}"

    def first(self, view: str, shape: Shape) -> str:
        """All that was copied."""
        del shape
        return f"SELECT * FROM {view}"
