"""The kinds `current` (the current rows, one per key, changed by one MERGE per span) and `append` (every change).

`current` uses the same SQL for Delta and Iceberg. A column that is unknown in the net change keeps the target's value;
inserting a row with such a column fails the statement, because silver then is not what the stream changes.

`append` stores every change, including truncates, typed, with its operation and place. Nothing is folded or changed
later, so a table needs no key. An unchanged value is NULL, and its column is listed in `_unchanged`. The old row, as
far as the server logs it, is in `_old_<column>` if configured. A quarantined change is missing until it is released; no
other change waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from cdc_lake.silver.changes import OP, after_truncates
from cdc_lake.silver.kind import CHANGE, UNSENT, Kind, RowIdentity, TablePart, insert, old_column, same_key
from cdc_lake.silver.layout_mapping import RelationMapping
from cdc_lake.silver.net_change import collapse_rows, complete_moved, net_change, unknown
from cdc_lake.tables.types import SilverColumn, literal, quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


MISSING_ROW = "cdc_lake: an update refers to a row that silver does not have"


@dataclass(frozen=True, slots=True)
class Scd1Kind(Kind):
    """The current rows."""

    words: ClassVar = "`kind: current`"

    def net(self, changes: DataFrame, target: DataFrame | None, part: TablePart, *, traced: bool) -> DataFrame:
        """One row per key (`silver.net_change`)."""
        folded = net_change(after_truncates(changes, part.truncated), part.shape, part.unsent, traced=traced)
        if not traced:
            return folded
        if part.unsent and target is not None:
            folded = complete_moved(folded, target, part.shape, part.unsent)
        return collapse_rows(folded, part.shape, part.unsent)

    def statement(self, table: str, view: str, part: TablePart, within: Sequence[str]) -> str:
        """A MERGE by key; after a truncate, rows without a net change are deleted."""
        sets, names, values = _assignments(part.shape, part.unsent)
        update = f"WHEN MATCHED THEN UPDATE SET {', '.join(sets)} " if sets else ""
        return (
            f"MERGE INTO {table} t USING {view} s ON {same_key(part, within)} "
            f"WHEN MATCHED AND s.{OP} = 'D' THEN DELETE {update}"
            f"WHEN NOT MATCHED AND s.{OP} = 'U' THEN INSERT ({', '.join(names)}) VALUES ({', '.join(values)})"
            f"{' WHEN NOT MATCHED BY SOURCE THEN DELETE' if part.truncated else ''}"
        )

    def append_sql(self, table: str, view: str, part: TablePart) -> str:
        """The rows that exist at the end; silver never had a key that was deleted again."""
        _, names, values = _assignments(part.shape, part.unsent)
        columns = (f"{value} AS {name}" for name, value in zip(names, values, strict=True))
        return insert(table, view, columns, self.added)


def _assignments(shape: RelationMapping, unsent: frozenset[int]) -> tuple[list[str], list[str], list[str]]:
    """The assignments of an update, and the columns and values of an insert."""
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
    """Every change. `old_values`: with the old row as far as it was sent."""

    words: ClassVar = "`kind: append`"
    own: ClassVar = (*CHANGE, UNSENT)
    identity: ClassVar = RowIdentity.PLACE

    old_values: bool = False

    def passthrough_columns(self, shape: RelationMapping) -> Mapping[SilverColumn, str]:
        """Operation and place of the change, and its unchanged columns."""
        columns = enumerate(shape.columns if self.old_values else ())
        old = {old_column(column): shape.value(index, shape.text(index, "old")) for index, column in columns}
        return {**CHANGE, UNSENT: shape.unsent_names(), **old}

    def net(self, changes: DataFrame, target: DataFrame | None, part: TablePart, *, traced: bool) -> DataFrame:
        """The changes themselves."""
        del target, traced
        return changes.select(*self.names(part.shape))

    def statement(self, table: str, view: str, part: TablePart, within: Sequence[str]) -> str:
        """An append."""
        del within
        return self.append_sql(table, view, part)

    def append_sql(self, table: str, view: str, part: TablePart) -> str:
        """Each change has its own place."""
        del part
        return f"INSERT INTO {table} BY NAME SELECT * FROM {view}"

    def first(self, view: str, shape: RelationMapping) -> str:
        """All copied rows."""
        del shape
        return f"SELECT * FROM {view}"
