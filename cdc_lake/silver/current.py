"""The kind `current`: the rows as they are now, one a key, changed by one MERGE a span.

The same SQL for Delta and Iceberg. A column the net change does not know keeps the target's value; a row that would
have to be inserted with such a column fails the statement, because silver is then not what the stream changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from cdc_lake.lake.store import literal, quoted
from cdc_lake.silver.changes import OP, after_truncates
from cdc_lake.silver.complete import complete_moved
from cdc_lake.silver.kind import Kind, TablePart
from cdc_lake.silver.merge_sql import insert, same_key, select
from cdc_lake.silver.net_change import net_change, settle, unknown
from cdc_lake.silver.shape import Shape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MISSING_ROW = "cdc_lake: an update refers to a row that silver does not have"


@dataclass(frozen=True, slots=True)
class Current(Kind):
    """The rows as they are now."""

    words: ClassVar = "`kind: current`"

    def net(self, changes: DataFrame, target: DataFrame | None, part: TablePart, *, traced: bool) -> DataFrame:
        """One row a key (`silver.net_change`)."""
        folded = net_change(after_truncates(changes, part.truncated), part.shape, part.unsent, traced=traced)
        if not traced:
            return folded
        if part.unsent and target is not None:
            folded = complete_moved(folded, target, part.shape, part.unsent)
        return settle(folded, part.shape, part.unsent)

    def statement(self, table: str, view: str, part: TablePart, within: Sequence[str]) -> str:
        """A MERGE by key; where there was a truncate, rows without a net change go."""
        sets, names, values = _assignments(part.shape, part.unsent)
        update = f"WHEN MATCHED THEN UPDATE SET {', '.join(sets)} " if sets else ""
        return (
            f"MERGE INTO {table} t USING {view} s ON {same_key(part, within)} "
            f"WHEN MATCHED AND s.{OP} = 'D' THEN DELETE {update}"
            f"WHEN NOT MATCHED AND s.{OP} = 'U' THEN INSERT ({', '.join(names)}) VALUES ({', '.join(values)})"
            f"{' WHEN NOT MATCHED BY SOURCE THEN DELETE' if part.truncated else ''}"
        )

    def appended(self, table: str, view: str, part: TablePart) -> str:
        """The rows that are there at the end; a key that is gone again was never in silver."""
        _, names, values = _assignments(part.shape, part.unsent)
        return insert(table, view, (f"{value} AS {name}" for name, value in zip(names, values, strict=True)), "U")

    def first(self, view: str, shape: Shape) -> str:
        """All that was copied."""
        return select(view, (quoted(c.name) for c in self.columns(shape)), "U")


def _assignments(shape: Shape, unsent: frozenset[int]) -> tuple[list[str], list[str], list[str]]:
    """What an update sets, and the columns and values of an insert."""
    sets, names, values = [], [], []
    missing = f"raise_error({literal(MISSING_ROW)})"
    for at, column in enumerate(shape.columns):
        name = quoted(column.name)
        own, inserted = f"s.{name}", f"s.{name}"
        if at in unsent:
            own = f"CASE WHEN s.{unknown(at)} THEN t.{name} ELSE s.{name} END"
            inserted = f"CASE WHEN s.{unknown(at)} THEN {missing} ELSE s.{name} END"
        if at not in shape.keys:
            sets.append(f"{name} = {own}")
        names.append(name)
        values.append(inserted)
    carried = [quoted(c.name) for c in shape.carried]
    sets += [f"{name} = s.{name}" for name in carried]
    names += carried
    values += [f"s.{name}" for name in carried]
    return sets, names, values
