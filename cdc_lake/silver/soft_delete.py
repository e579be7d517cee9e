"""The kinds `current` with soft deletes, and `current` of tables without a key.

With soft deletes, a table has the newest version of each row. A deleted row stays as it was after the last transaction
that left it, with `_is_deleted` true; later changes do not see it. Rows that existed only inside one transaction never
existed. Its lineage is that of the delete, key update or truncate that ended it. Of each key's events (`silver.scd2`)
the last row counts, whether or not the key has it at the end of the span; without one, only silver's row may end.

A table without a key contains each row as often as the source does. Only all its values identify the row of a change,
so the server must log them (REPLICA IDENTITY FULL); which of several equal rows is deleted makes no difference. Silver
numbers equal rows in `_copy`, and deletes the last one first. Deleting a missing row fails the job: silver then is not
what the stream changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from cdc_lake.model.change import Truncated
from cdc_lake.silver.changes import FROM, OP, ORDER, POSITION, TO, F, Window, after_truncates
from cdc_lake.silver.kind import (
    COPY,
    DELETED,
    LINEAGE,
    Kind,
    LivenessColumn,
    RowIdentity,
    TablePart,
    assignments,
    same_key,
    typed_literal,
)
from cdc_lake.silver.layout_mapping import RelationMapping
from cdc_lake.silver.net_change import MISSING_BASE, all_of
from cdc_lake.silver.scd2 import BY, HERE, SEGMENT, key_events, key_names
from cdc_lake.tables.spark_session import materialize
from cdc_lake.tables.types import SilverColumn, quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


_GONE = quote_identifier(DELETED.name)


@dataclass(frozen=True, slots=True)
class SoftDeleteKind(Kind):
    """The current rows, and the last state of deleted ones."""

    words: ClassVar = "`kind: current` with soft deletes"
    own: ClassVar = (DELETED,)
    flag: ClassVar = LivenessColumn(DELETED, value=False)

    def net(self, changes: DataFrame, target: DataFrame | None, part: TablePart, *, traced: bool) -> DataFrame:
        """One row per key: `_cdc_op` U, complete and with `_is_deleted`; D if only silver's row may be deleted."""
        return _last_rows(key_events(changes, target, part, traced=traced), part)

    def statement(self, table: str, view: str, part: TablePart, within: Sequence[str]) -> str:
        """A MERGE by key; the first truncate ends the rows of keys that no change of the span touches."""
        shape = part.shape
        names, keys = self.names(shape), shape.key_columns
        sets = assignments(c for c in self.columns(shape) if c not in keys)
        ends = [*assignments(_lineage(shape)), f"{_GONE} = true"]
        return (
            f"MERGE INTO {table} t USING {view} s ON {same_key(part, within)} "
            f"WHEN MATCHED AND s.{OP} = 'D' AND NOT t.{_GONE} THEN UPDATE SET {', '.join(ends)} "
            f"WHEN MATCHED AND s.{OP} = 'U' THEN UPDATE SET {', '.join(sets)} "
            f"WHEN NOT MATCHED AND s.{OP} = 'U' THEN INSERT ({', '.join(names)}) "
            f"VALUES ({', '.join(f's.{name}' for name in names)}){_truncate(part)}"
        )


def _lineage(shape: RelationMapping) -> list[SilverColumn]:
    """The columns of lineage; other columns that come with a change keep their values at the end of a row."""
    return [column for column in shape.carried if column in LINEAGE]


def _truncate(part: TablePart) -> str:
    if not part.truncated:
        return ""
    first = part.truncated[0]
    sets = [
        f"{quote_identifier(c.name)} = {typed_literal(getattr(first, LINEAGE[c]), c)}" for c in _lineage(part.shape)
    ]
    return f" WHEN NOT MATCHED BY SOURCE AND NOT t.{_GONE} THEN UPDATE SET {', '.join([*sets, f'{_GONE} = true'])}"


def _last_rows(events: DataFrame, part: TablePart) -> DataFrame:
    """Of each key's events the last row and what ended it; without a row, what ends silver's."""
    shape, keys = part.shape, key_names(part.shape)
    # A truncate ends what exists before a key's next event.
    truncates = F.array(*(_truncate_lineage(ending, shape) for ending in part.truncated)) if part.truncated else None
    truncate = F.lit(None) if truncates is None else F.get(truncates, F.col(SEGMENT))
    following = F.lead(F.struct(SEGMENT, BY)).over(Window.partitionBy(*keys).orderBy(POSITION))
    ended = F.when(following[SEGMENT] == F.col(SEGMENT), following[BY]).otherwise(truncate)
    first = F.when(F.col(SEGMENT) == 0, F.col(BY))
    if part.truncated:
        first = first.otherwise(_truncate_lineage(part.truncated[0], shape))
    placed = events.withColumns({"_cdc_ended": ended, "_cdc_first": first})
    row_position = F.when(F.col(HERE).isNotNull(), F.col(POSITION))
    ending = placed.groupBy(*keys).agg(
        F.max_by(F.struct(HERE, "_cdc_ended"), row_position).alias("_cdc_last"),
        F.min_by("_cdc_first", POSITION).alias("_cdc_first"),
    )
    none = F.col("_cdc_last").isNull()
    end = F.when(none, F.col("_cdc_first")).otherwise(F.col("_cdc_last._cdc_ended"))
    return ending.withColumn("_cdc_end", end).select(
        *(_value(shape, index, none) for index in range(len(shape.columns))),
        *(_passthrough_value(column) for column in shape.carried),
        F.col("_cdc_end").isNotNull().alias(DELETED.name),
        F.when(none, F.lit("D")).otherwise(F.lit("U")).alias(OP),
    )


def _passthrough_value(column: SilverColumn) -> Column:
    """Lineage of what ended the row, or of the row; other columns of the row."""
    value = F.col(f"_cdc_last.{HERE}.{quote_identifier(column.name)}")
    if column in LINEAGE:
        value = F.when(F.col("_cdc_end").isNotNull(), F.col(f"_cdc_end.{column.name}")).otherwise(value)
    return value.alias(column.name)


def _value(shape: RelationMapping, column_index: int, none: Column) -> Column:
    """A column of the last row; without a row, its key."""
    name = shape.columns[column_index].name
    value = F.col(f"_cdc_last.{HERE}.{quote_identifier(name)}")
    if column_index in shape.keys:
        value = F.when(none, F.col(key_names(shape)[shape.keys.index(column_index)])).otherwise(value)
    return value.alias(name)


def _truncate_lineage(truncated: Truncated, shape: RelationMapping) -> Column:
    """A truncate in the form of an event's cause."""
    values = (F.expr(typed_literal(getattr(truncated, LINEAGE[c]), c)).alias(c.name) for c in _lineage(shape))
    return F.struct(F.lit(True).alias("there"), *values)


_COPY = quote_identifier(COPY.name)


@dataclass(frozen=True, slots=True)
class KeylessKind(Kind):
    """Rows that only their values identify."""

    words: ClassVar = "`kind: current` without a key"
    own: ClassVar = (COPY,)
    identity: ClassVar = RowIdentity.CONTENT

    def net(self, changes: DataFrame, target: DataFrame | None, part: TablePart, *, traced: bool) -> DataFrame:
        """Copies to be added, `_cdc_op` U, and to be deleted, D."""
        del traced
        shape = part.shape
        counted = _count_copies(after_truncates(changes, part.truncated), shape)
        have = F.lit(0).cast("bigint")
        if target is not None and not part.truncated:
            existing = _existing_copies(target, counted, shape)
            same = [
                existing[f"_cdc_of_{index}"].eqNullSafe(counted[quote_identifier(c.name)])
                for index, c in enumerate(shape.key_columns)
            ]
            counted = counted.join(F.broadcast(existing), all_of(same), "left")
            have = F.coalesce("_cdc_have", have)
        missing = F.raise_error(F.lit(MISSING_BASE)).cast("bigint")
        number = have + F.col("_cdc_level")
        return counted.select(
            *(F.col(quote_identifier(c.name)) for c in shape.columns),
            *(F.col(f"_cdc_carried.{quote_identifier(c.name)}").alias(c.name) for c in shape.carried),
            F.when(number < 1, missing).otherwise(number).alias(COPY.name),
            F.col(OP),
        )

    def statement(self, table: str, view: str, part: TablePart, within: Sequence[str]) -> str:
        """A MERGE by values and number; after a truncate, the other rows are deleted."""
        names, sets = self.names(part.shape), assignments(part.shape.carried)
        update = f"WHEN MATCHED THEN UPDATE SET {', '.join(sets)} " if sets else ""
        gone = " WHEN NOT MATCHED BY SOURCE THEN DELETE" if part.truncated else ""
        return (
            f"MERGE INTO {table} t USING {view} s ON {same_key(part, within)} AND t.{_COPY} = s.{_COPY} "
            f"WHEN MATCHED AND s.{OP} = 'D' THEN DELETE {update}"
            f"WHEN NOT MATCHED AND s.{OP} = 'U' THEN INSERT ({', '.join(names)}) "
            f"VALUES ({', '.join(f's.{n}' for n in names)}){gone}"
        )


def _count_copies(changes: DataFrame, shape: RelationMapping) -> DataFrame:
    """The copies of each row that changes finally added (U) or deleted (D), by `_cdc_level`, and `_cdc_carried`.

    Copies are a stack: a change deletes the last one. The metadata of a remaining copy therefore does not depend on
    copies above it. Levels count from the state before the changes: 1 is the first new copy.
    """
    values = [F.col(quote_identifier(c.name)) for c in shape.columns]
    place = F.struct(ORDER, "_cdc_by")  # an update deletes before it adds
    height = F.sum("_cdc_by").over(Window.partitionBy(*values).orderBy(place))
    level = F.when(F.col("_cdc_by") > 0, height).otherwise(height + 1).alias("_cdc_level")
    last = F.max_by(F.struct("_cdc_by", "_cdc_carried"), place).alias("_cdc_last")
    touched = _steps(changes, shape).withColumn("_cdc_level", level).groupBy(*values, "_cdc_level").agg(last)
    op = F.when(F.col("_cdc_by") > 0, F.lit("U")).otherwise(F.lit("D")).alias(OP)
    came_and_went = (F.col("_cdc_by") < 0) & (F.col("_cdc_level") > 0)
    return touched.select("*", "_cdc_last.*").where(~came_and_went).select(*values, "_cdc_level", "_cdc_carried", op)


def _steps(changes: DataFrame, shape: RelationMapping) -> DataFrame:
    """Each row that a change added, `_cdc_by` 1, or deleted, -1, and the columns that the change carries along."""
    carried = F.struct(F.lit(True).alias("there"), *(F.col(quote_identifier(c.name)) for c in shape.carried))

    def step_of(texts: str, more: int) -> Column:
        # The key is the layout's columns in their order; a companion column is computed from one of them.
        places = [shape.relation.names.index(column.source.name) for column in shape.typed_columns]
        values = [
            F.expr(shape.typed_sql(index, f"{texts}[{place}]")).alias(c.name)
            for index, (place, c) in enumerate(zip(places, shape.columns, strict=True))
        ]
        by = F.lit(more).cast("bigint").alias("_cdc_by")
        signed = F.struct(*values, by, F.col(ORDER), carried.alias("_cdc_carried"))
        return F.when(F.col(texts).isNotNull(), signed)

    return changes.select(F.inline(F.array_compact(F.array(step_of(TO, 1), step_of(FROM, -1)))))


def _existing_copies(target: DataFrame, counted: DataFrame, shape: RelationMapping) -> DataFrame:
    """The number of copies of each row in silver, by `_cdc_of_<n>`."""
    names = [f"_cdc_of_{index}" for index in range(len(shape.key_columns))]
    columns = [quote_identifier(c.name) for c in shape.key_columns]
    wanted = counted.select(*(F.col(c).alias(n) for c, n in zip(columns, names, strict=True))).distinct()
    values = [F.expr(shape.row_key(index, column)) for index, column in enumerate(columns)]
    same = [value.eqNullSafe(wanted[n]) for value, n in zip(values, names, strict=True)]
    copies = (
        target.join(F.broadcast(wanted), all_of(same))
        .groupBy(*names)
        .agg(F.count_if(F.lit(True)).alias("_cdc_rows"), F.max(_COPY).alias("_cdc_last"))
    )
    # Numbers with gaps were not written by this kind, so the row to be deleted would be unknown.
    odd = F.raise_error(F.lit(MISSING_BASE)).cast("bigint")
    have = F.when(F.col("_cdc_rows") == F.col("_cdc_last"), F.col("_cdc_last")).otherwise(odd)
    # Cached, not planned again: Spark 4.1 does not find an Iceberg table read by a MERGE's view behind an aggregate
    # ("No plan for TableReference", tested with a window).
    return materialize(copies.select(*names, have.alias("_cdc_have")))
