"""Tracked columns: which transactions make a version of a key in `history`, and which only amend the one that holds.

A transaction that leaves a row at a key where there was one before, with the same values in all tracked columns, makes
no version: the other columns of the one that holds become what they are now, and from when it holds stays. A TRUNCATE
always ends versions. It makes no difference how a row came to the key: only what stands there before and after counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from cdc_lake.lake.store import SilverColumn, quoted
from cdc_lake.silver.changes import POSITION, TIME
from cdc_lake.silver.events import HERE, SEGMENT, key_names
from cdc_lake.silver.shape import Shape

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

AMENDS: Final = "_cdc_amends"
"""Whether an event goes on with the version that silver has."""


def merged_runs(
    events: DataFrame, target: DataFrame | None, shape: Shape, tracked: Sequence[SilverColumn]
) -> DataFrame:
    """Events of keys, one for each run of them in which no tracked column changes: the place of its first, the row of
    its last, and `_cdc_amends`. `target`: the versions that hold in silver, None: none.
    """
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - DataFrames come from a session that has it

    keys = key_names(shape)
    of_key = Window.partitionBy(*keys).orderBy(POSITION)
    values = F.struct(*(F.col(f"{HERE}.{quoted(c.name)}").alias(f"v{n}") for n, c in enumerate(tracked)))
    here = F.when(F.col(HERE).isNotNull(), F.struct(F.col(SEGMENT).alias("part"), values.alias("tracked")))
    before = F.lag(here).over(of_key)
    if target is not None:
        found = _holding(events, target, shape, tracked)
        events = events.join(F.broadcast(found), [_same(events, found, n, shape) for n in range(len(keys))], "left")
        holds = F.struct(F.lit(0).alias("part"), F.col("_cdc_holds").alias("tracked"))
        first = F.when(F.col("_cdc_holds").isNotNull(), holds)
        before = F.when(F.row_number().over(of_key) == 1, first).otherwise(before)
    same = (before["part"] == here["part"]) & before["tracked"].eqNullSafe(here["tracked"])
    so_far = of_key.rowsBetween(Window.unboundedPreceding, 0)
    run = F.sum(F.when(F.col("_cdc_same"), 0).otherwise(1)).over(so_far)
    numbered = events.withColumn("_cdc_same", same).withColumn("_cdc_run", run)
    begins = F.min_by(F.struct(POSITION, TIME, SEGMENT), POSITION).alias("_cdc_begins")
    ends = F.max_by(F.struct(HERE), POSITION).alias("_cdc_ends")
    runs = numbered.groupBy(*keys, "_cdc_run").agg(begins, ends)
    return runs.select(*keys, "_cdc_begins.*", "_cdc_ends.*", (F.col("_cdc_run") == 0).alias(AMENDS))


def _holding(events: DataFrame, target: DataFrame, shape: Shape, tracked: Sequence[SilverColumn]) -> DataFrame:
    """The tracked values that hold in silver, `_cdc_holds`, by `_cdc_at_<n>`, the key."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    names = [f"_cdc_at_{n}" for n in range(len(shape.keys))]
    wanted = events.select(*(F.col(key).alias(n) for key, n in zip(key_names(shape), names, strict=True))).distinct()
    same = [_equal(target[quoted(c.name)], wanted[names[n]], n, shape) for n, c in enumerate(shape.key_columns)]
    values = F.struct(*(F.col(quoted(c.name)).cast(c.type).alias(f"v{n}") for n, c in enumerate(tracked)))
    # Kept by the executors, not planned again: Spark 4.1 does not find an Iceberg table that a MERGE's view reads
    # behind a window ("No plan for TableReference", tried).
    return target.join(F.broadcast(wanted), same).select(*names, values.alias("_cdc_holds")).localCheckpoint()


def _same(events: DataFrame, found: DataFrame, n: int, shape: Shape) -> Column:
    return _equal(events[key_names(shape)[n]], found[f"_cdc_at_{n}"], n, shape)


def _equal(one: Column, other: Column, n: int, shape: Shape) -> Column:
    return one.eqNullSafe(other) if n in shape.nullable else one == other
