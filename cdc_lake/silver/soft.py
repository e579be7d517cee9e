"""The kind `current` with soft deletes: the newest version of each row, and whether it still holds.

A row that is gone stays as it was after the last transaction that left it, with `_is_deleted` true; to the changes that
follow it is not there. What existed inside one transaction only never existed. Its lineage is that of what ended it: a
delete, a move to another key or a truncate.

Of each key's events (`silver.events`) the last row counts, whether or not the key has it at the end of the span; where
the span has none, only silver's row may end in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from cdc_lake.lake.store import SilverColumn, quoted
from cdc_lake.model.truncated import Truncated
from cdc_lake.silver.changes import OP, POSITION
from cdc_lake.silver.events import BY, HERE, SEGMENT, key_events, key_names
from cdc_lake.silver.kind import Flag, Kind, TablePart
from cdc_lake.silver.merge_sql import insert, same_key, select, typed_literal
from cdc_lake.silver.own_columns import DELETED, LINEAGE
from cdc_lake.silver.shape import Shape

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_GONE = quoted(DELETED.name)


@dataclass(frozen=True, slots=True)
class Soft(Kind):
    """The rows as they are now or were last."""

    words: ClassVar = "`kind: current` with soft deletes"
    own: ClassVar = (DELETED,)
    flag: ClassVar = Flag(DELETED, value=False)

    def net(self, changes: DataFrame, target: DataFrame | None, part: TablePart, *, traced: bool) -> DataFrame:
        """One row a key: `_cdc_op` U, whole and with `_is_deleted`; D where only silver's row may be gone."""
        return _last_rows(key_events(changes, target, part, traced=traced), part)

    def statement(self, table: str, view: str, part: TablePart, within: Sequence[str]) -> str:
        """A MERGE by key; the first truncate ends the rows of keys that no change of the span touches."""
        shape = part.shape
        names = [quoted(c.name) for c in self.columns(shape)]
        keys = {c.name for c in shape.key_columns}
        sets = [f"{quoted(c.name)} = s.{quoted(c.name)}" for c in self.columns(shape) if c.name not in keys]
        ends = [*(f"{quoted(c.name)} = s.{quoted(c.name)}" for c in _lineage(shape)), f"{_GONE} = true"]
        return (
            f"MERGE INTO {table} t USING {view} s ON {same_key(part, within)} "
            f"WHEN MATCHED AND s.{OP} = 'D' AND NOT t.{_GONE} THEN UPDATE SET {', '.join(ends)} "
            f"WHEN MATCHED AND s.{OP} = 'U' THEN UPDATE SET {', '.join(sets)} "
            f"WHEN NOT MATCHED AND s.{OP} = 'U' THEN INSERT ({', '.join(names)}) "
            f"VALUES ({', '.join(f's.{name}' for name in names)}){_truncate(part)}"
        )

    def appended(self, table: str, view: str, part: TablePart) -> str:
        """The rows that are or were: none of them is in silver."""
        return insert(table, view, (quoted(c.name) for c in self.columns(part.shape)), "U")

    def first(self, view: str, shape: Shape) -> str:
        """All that was copied."""
        return select(view, (quoted(c.name) for c in self.columns(shape)), "U")


def _lineage(shape: Shape) -> list[SilverColumn]:
    """The columns of lineage; the others that come with a change are kept columns, which an end leaves as they are."""
    return [column for column in shape.carried if column in LINEAGE]


def _truncate(part: TablePart) -> str:
    if not part.truncated:
        return ""
    first = part.truncated[0]
    sets = [f"{quoted(c.name)} = {typed_literal(getattr(first, LINEAGE[c]), c)}" for c in _lineage(part.shape)]
    return f" WHEN NOT MATCHED BY SOURCE AND NOT t.{_GONE} THEN UPDATE SET {', '.join([*sets, f'{_GONE} = true'])}"


def _last_rows(events: DataFrame, part: TablePart) -> DataFrame:
    """Of each key's events the last row and what ended it; without one what ends silver's."""
    from pyspark.sql import Window  # noqa: PLC0415 - DataFrames come from a session that has it
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    shape, keys = part.shape, key_names(part.shape)
    # A truncate ends what is there before the next event that a key has behind it.
    truncates = F.array(*(_by(one, shape) for one in part.truncated)) if part.truncated else None
    truncate = F.lit(None) if truncates is None else F.get(truncates, F.col(SEGMENT))
    following = F.lead(F.struct(SEGMENT, BY)).over(Window.partitionBy(*keys).orderBy(POSITION))
    ended = F.when(following[SEGMENT] == F.col(SEGMENT), following[BY]).otherwise(truncate)
    first = F.when(F.col(SEGMENT) == 0, F.col(BY))
    if part.truncated:
        first = first.otherwise(_by(part.truncated[0], shape))
    placed = events.withColumns({"_cdc_ended": ended, "_cdc_first": first})
    there = F.when(F.col(HERE).isNotNull(), F.col(POSITION))
    one = placed.groupBy(*keys).agg(
        F.max_by(F.struct(HERE, "_cdc_ended"), there).alias("_cdc_last"),
        F.min_by("_cdc_first", POSITION).alias("_cdc_first"),
    )
    none = F.col("_cdc_last").isNull()
    end = F.when(none, F.col("_cdc_first")).otherwise(F.col("_cdc_last._cdc_ended"))
    return one.withColumn("_cdc_end", end).select(
        *(_value(shape, at, none) for at in range(len(shape.columns))),
        *(_carried(column) for column in shape.carried),
        F.col("_cdc_end").isNotNull().alias(DELETED.name),
        F.when(none, F.lit("D")).otherwise(F.lit("U")).alias(OP),
    )


def _carried(column: SilverColumn) -> Column:
    """Lineage: of what ended the row, or of the row; another column of the row."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    value = F.col(f"_cdc_last.{HERE}.{quoted(column.name)}")
    if column in LINEAGE:
        value = F.when(F.col("_cdc_end").isNotNull(), F.col(f"_cdc_end.{column.name}")).otherwise(value)
    return value.alias(column.name)


def _value(shape: Shape, at: int, none: Column) -> Column:
    """A column of the last row; where there is none, its key."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    name = shape.columns[at].name
    value = F.col(f"_cdc_last.{HERE}.{quoted(name)}")
    if at in shape.keys:
        value = F.when(none, F.col(key_names(shape)[shape.keys.index(at)])).otherwise(value)
    return value.alias(name)


def _by(truncated: Truncated, shape: Shape) -> Column:
    """A truncate in the form of what makes an event."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    values = (F.expr(typed_literal(getattr(truncated, LINEAGE[c]), c)).alias(c.name) for c in _lineage(shape))
    return F.struct(F.lit(True).alias("there"), *values)
