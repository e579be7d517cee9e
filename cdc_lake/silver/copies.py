"""The kind `current` of a table without a key: its rows as they are now, the same one as often as the source has it.

Nothing but its values says which row a change is of, so the server must log all of them (REPLICA IDENTITY FULL), and
which of several equal rows goes makes no difference to the source. Silver numbers equal rows in `_copy`, and the one
that came last goes first. To take away what is not there fails the job: silver is then not what the stream changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from cdc_lake.lake.store import quoted
from cdc_lake.silver.changes import FROM, OP, ORDER, TO, after_truncates
from cdc_lake.silver.complete import MISSING_BASE, all_of
from cdc_lake.silver.kind import Kind, RowIdentity, TablePart
from cdc_lake.silver.merge_sql import insert, same_key, select
from cdc_lake.silver.own_columns import COPY
from cdc_lake.silver.shape import Shape

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_COPY = quoted(COPY.name)


@dataclass(frozen=True, slots=True)
class Copies(Kind):
    """Rows that only their values identify."""

    words: ClassVar = "`kind: current` without a key"
    own: ClassVar = (COPY,)
    identity: ClassVar = RowIdentity.CONTENT

    def net(self, changes: DataFrame, target: DataFrame | None, part: TablePart, *, traced: bool) -> DataFrame:
        """Copies to be added, `_cdc_op` U, and taken away, D."""
        from pyspark.sql import functions as F  # noqa: N812, PLC0415 - DataFrames come from a session that has it

        del traced
        shape = part.shape
        counted = _counted(after_truncates(changes, part.truncated), shape)
        have = F.lit(0).cast("bigint")
        if target is not None and not part.truncated:
            there = _there(target, counted, shape)
            same = [
                there[f"_cdc_of_{at}"].eqNullSafe(counted[quoted(c.name)]) for at, c in enumerate(shape.key_columns)
            ]
            counted = counted.join(F.broadcast(there), all_of(same), "left")
            have = F.coalesce("_cdc_have", have)
        missing = F.raise_error(F.lit(MISSING_BASE)).cast("bigint")
        number = have + F.col("_cdc_level")
        return counted.select(
            *(F.col(quoted(c.name)) for c in shape.columns),
            *(F.col(f"_cdc_carried.{quoted(c.name)}").alias(c.name) for c in shape.carried),
            F.when(number < 1, missing).otherwise(number).alias(COPY.name),
            F.col(OP),
        )

    def statement(self, table: str, view: str, part: TablePart, within: Sequence[str]) -> str:
        """A MERGE by values and number; where there was a truncate, the other rows go."""
        names = [quoted(c.name) for c in self.columns(part.shape)]
        carried = [quoted(c.name) for c in part.shape.carried]
        update = f"WHEN MATCHED THEN UPDATE SET {', '.join(f'{n} = s.{n}' for n in carried)} " if carried else ""
        gone = " WHEN NOT MATCHED BY SOURCE THEN DELETE" if part.truncated else ""
        return (
            f"MERGE INTO {table} t USING {view} s ON {same_key(part, within)} AND t.{_COPY} = s.{_COPY} "
            f"WHEN MATCHED AND s.{OP} = 'D' THEN DELETE {update}"
            f"WHEN NOT MATCHED AND s.{OP} = 'U' THEN INSERT ({', '.join(names)}) "
            f"VALUES ({', '.join(f's.{n}' for n in names)}){gone}"
        )

    def appended(self, table: str, view: str, part: TablePart) -> str:
        """Copies alone: there is none to be taken away."""
        return insert(table, view, (quoted(c.name) for c in self.columns(part.shape)), "U")

    def first(self, view: str, shape: Shape) -> str:
        """All that was copied."""
        return select(view, (quoted(c.name) for c in self.columns(shape)), "U")


def _counted(changes: DataFrame, shape: Shape) -> DataFrame:
    """The copies of each row that changes brought (U) or took away (D) at last, by `_cdc_level`, and `_cdc_carried`.

    Copies are a stack: what a change takes away is the one that came last. So what is said of one that stays does not
    depend on what came and went above it. Levels count from what was there before the changes: 1 is the first new one.
    """
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    values = [F.col(quoted(c.name)) for c in shape.columns]
    place = F.struct(ORDER, "_cdc_by")  # an update takes before it brings
    height = F.sum("_cdc_by").over(Window.partitionBy(*values).orderBy(place))
    level = F.when(F.col("_cdc_by") > 0, height).otherwise(height + 1).alias("_cdc_level")
    last = F.max_by(F.struct("_cdc_by", "_cdc_carried"), place).alias("_cdc_last")
    touched = _steps(changes, shape).withColumn("_cdc_level", level).groupBy(*values, "_cdc_level").agg(last)
    op = F.when(F.col("_cdc_by") > 0, F.lit("U")).otherwise(F.lit("D")).alias(OP)
    came_and_went = (F.col("_cdc_by") < 0) & (F.col("_cdc_level") > 0)
    return touched.select("*", "_cdc_last.*").where(~came_and_went).select(*values, "_cdc_level", "_cdc_carried", op)


def _steps(changes: DataFrame, shape: Shape) -> DataFrame:
    """Each row that a change brought, `_cdc_by` 1, or took away, -1, and what comes with the change."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    carried = F.struct(F.lit(True).alias("there"), *(F.col(quoted(c.name)) for c in shape.carried))

    def one(texts: str, more: int) -> Column:
        # The key is the layout's columns in their order; a companion is made of the text of one of them.
        places = [shape.relation.names.index(one.source.name) for one in shape.made]
        values = [
            F.expr(shape.typed(at, f"{texts}[{place}]")).alias(c.name)
            for at, (place, c) in enumerate(zip(places, shape.columns, strict=True))
        ]
        by = F.lit(more).cast("bigint").alias("_cdc_by")
        signed = F.struct(*values, by, F.col(ORDER), carried.alias("_cdc_carried"))
        return F.when(F.col(texts).isNotNull(), signed)

    return changes.select(F.inline(F.array_compact(F.array(one(TO, 1), one(FROM, -1)))))


def _there(target: DataFrame, counted: DataFrame, shape: Shape) -> DataFrame:
    """How many rows of each kind silver has, by `_cdc_of_<n>`."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    names = [f"_cdc_of_{at}" for at in range(len(shape.key_columns))]
    wanted = counted.select(*(F.col(quoted(c.name)).alias(n) for c, n in zip(shape.key_columns, names, strict=True)))
    wanted = wanted.distinct()
    values = [F.expr(shape.row_key(at, quoted(c.name))) for at, c in enumerate(shape.key_columns)]
    same = [value.eqNullSafe(wanted[n]) for value, n in zip(values, names, strict=True)]
    found = (
        target.join(F.broadcast(wanted), all_of(same))
        .groupBy(*names)
        .agg(F.count_if(F.lit(True)).alias("_cdc_rows"), F.max(_COPY).alias("_cdc_last"))
    )
    # Numbers with gaps were not written by this kind: which row would go is not known then.
    odd = F.raise_error(F.lit(MISSING_BASE)).cast("bigint")
    have = F.when(F.col("_cdc_rows") == F.col("_cdc_last"), F.col("_cdc_last")).otherwise(odd)
    # Kept by the executors, not planned again: Spark 4.1 does not find an Iceberg table that a MERGE's view reads
    # behind an aggregate ("No plan for TableReference", tried with a window).
    return found.select(*names, have.alias("_cdc_have")).localCheckpoint()
