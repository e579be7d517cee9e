"""The kind `current`: the rows as they are now, one a key, changed by one MERGE a span.

The same SQL for Delta and Iceberg. A column the net change does not know keeps the target's value; a row that would
have to be inserted with such a column fails the statement, because silver is then not what the stream changes.

The kind `append`: every change, typed, with its operation and place; truncates too.

Nothing is folded and nothing is changed later, so a table needs no key. A value that was not sent is NULL, and its
column stands in `_unchanged`. The old row, as far as the server logs it, stands in `_old_<column>` where it is asked
for. A change that a rule holds is not there until it is released; none waits behind another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from cdc_lake.silver.changes import OP, after_truncates
from cdc_lake.silver.kind import CHANGE, UNSENT, Kind, RowIdentity, TablePart, insert, old_column, same_key, select
from cdc_lake.silver.layout_mapping import RelationMapping
from cdc_lake.silver.net_change import collapse_rows, complete_moved, net_change, unknown
from cdc_lake.tables.types import SilverColumn, literal, quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


MISSING_ROW = "cdc_lake: an update refers to a row that silver does not have"


@dataclass(frozen=True, slots=True)
class Scd1Kind(Kind):
    """The rows as they are now."""

    words: ClassVar = "`kind: current`"

    def net(self, changes: DataFrame, target: DataFrame | None, part: TablePart, *, traced: bool) -> DataFrame:
        """One row a key (`silver.net_change`)."""
        folded = net_change(after_truncates(changes, part.truncated), part.shape, part.unsent, traced=traced)
        if not traced:
            return folded
        if part.unsent and target is not None:
            folded = complete_moved(folded, target, part.shape, part.unsent)
        return collapse_rows(folded, part.shape, part.unsent)

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

    def append_sql(self, table: str, view: str, part: TablePart) -> str:
        """The rows that are there at the end; a key that is gone again was never in silver."""
        _, names, values = _assignments(part.shape, part.unsent)
        return insert(table, view, (f"{value} AS {name}" for name, value in zip(names, values, strict=True)), "U")

    def first(self, view: str, shape: RelationMapping) -> str:
        """All that was copied."""
        return select(view, (quote_identifier(c.name) for c in self.columns(shape)), "U")


def _assignments(shape: RelationMapping, unsent: frozenset[int]) -> tuple[list[str], list[str], list[str]]:
    """What an update sets, and the columns and values of an insert."""
    sets, names, values = [], [], []
    missing = f"raise_error({literal(MISSING_ROW)})"
    for index, column in enumerate(shape.columns):
        name = quote_identifier(column.name)
        own, inserted = f"s.{name}", f"s.{name}"
        if index in unsent:
            own = f"CASE WHEN s.{unknown(index)} THEN t.{name} ELSE s.{name} END"
            inserted = f"CASE WHEN s.{unknown(index)} THEN {missing} ELSE s.{name} END"
        if index not in shape.keys:
            sets.append(f"{name} = {own}")
        names.append(name)
        values.append(inserted)
    carried = [quote_identifier(c.name) for c in shape.carried]
    sets += [f"{name} = s.{name}" for name in carried]
    names += carried
    values += [f"s.{name}" for name in carried]
    return sets, names, values


@dataclass(frozen=True, slots=True)
class AppendKind(Kind):
    """Every change. `old_values`: and what the server said of the old row."""

    words: ClassVar = "`kind: append`"
    own: ClassVar = (*CHANGE, UNSENT)
    identity: ClassVar = RowIdentity.PLACE

    old_values: bool = False

    def passthrough_columns(self, shape: RelationMapping) -> Mapping[SilverColumn, str]:
        """Operation and place of the change, and which columns were not sent."""
        old = {}
        if self.old_values:
            for index, column in enumerate(shape.columns):
                old[old_column(column)] = shape.value(index, shape.text(index, "old"))
        return {**CHANGE, UNSENT: shape.unsent_names(), **old}

    def net(self, changes: DataFrame, target: DataFrame | None, part: TablePart, *, traced: bool) -> DataFrame:
        """Each change as it is."""
        del target, traced
        return changes.select(*(quote_identifier(c.name) for c in self.columns(part.shape)))

    def statement(self, table: str, view: str, part: TablePart, within: Sequence[str]) -> str:
        """An append."""
        del within
        return self.append_sql(table, view, part)

    def append_sql(self, table: str, view: str, part: TablePart) -> str:
        """Each change has a place of its own."""
        del part
        return f"INSERT INTO {table} BY NAME SELECT * FROM {view}"

    def first(self, view: str, shape: RelationMapping) -> str:
        """All that was copied."""
        del shape
        return f"SELECT * FROM {view}"
