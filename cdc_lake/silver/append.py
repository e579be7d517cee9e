"""The kind `append`: every change, typed, with its operation and place; truncates too.

Nothing is folded and nothing is changed later, so a table needs no key. A value that was not sent is NULL, and its
column stands in `_unchanged`. A change that a rule holds is not there until it is released; none waits behind another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc_lake.lake.store import SilverColumn, quoted
from cdc_lake.model.span import Span
from cdc_lake.model.truncated import Truncated
from cdc_lake.silver.own_columns import CHANGE, UNSENT, with_own
from cdc_lake.silver.shape import Shape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Append:
    """Every change (`silver.kind.Kind`)."""

    @property
    def keyed(self) -> bool:
        """A change has a place, not a key."""
        return False

    def carried(self, shape: Shape) -> Mapping[SilverColumn, str]:
        """Operation and place of the change, and which columns were not sent."""
        return {**CHANGE, UNSENT: shape.unsent_names()}

    def columns(self, shape: Shape) -> tuple[SilverColumn, ...]:
        """The source's, then operation and place."""
        return with_own(shape)

    def live(self, target: DataFrame) -> DataFrame:
        """No change refers to another."""
        return target.limit(0)

    def net(
        self,
        changes: DataFrame,
        target: DataFrame | None,
        shape: Shape,
        unsent: frozenset[int],
        truncated: Sequence[Truncated],
        span: Span,
        *,
        traced: bool,
    ) -> DataFrame:
        """Each change as it is."""
        del target, unsent, truncated, span, traced
        return changes.select(*(quoted(c.name) for c in self.columns(shape)))

    def statement(
        self,
        table: str,
        view: str,
        shape: Shape,
        unsent: frozenset[int],
        truncated: Sequence[Truncated],
        span: Span,
        bounds: tuple[int, int] | None,
    ) -> str:
        """An append."""
        del shape, unsent, truncated, span, bounds
        return f"INSERT INTO {table} BY NAME SELECT * FROM {view}"

    def first(self, table: str, view: str, shape: Shape) -> str:
        """An overwrite: a new content begins."""
        del shape
        return f"INSERT OVERWRITE {table} BY NAME SELECT * FROM {view}"
