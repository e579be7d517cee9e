"""Events of keys: what each transaction of a span left at each key that it touched.

States inside a transaction never existed. Changes are folded by row and transaction, what an update did not send is
taken from the state before, in the span or in silver, and rows become events of keys: there is a row now, or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from cdc_lake.lake.store import quoted
from cdc_lake.model.truncated import Truncated
from cdc_lake.silver.changes import FROM, OP, ORDER, POSITION, TIME, TO, segment
from cdc_lake.silver.complete import MISSING_BASE, any_of, base_rows
from cdc_lake.silver.kind import TablePart
from cdc_lake.silver.net_change import ORIGIN, ROW, last_and_known
from cdc_lake.silver.own_columns import LINEAGE
from cdc_lake.silver.shape import Shape

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SEGMENT: Final = "_cdc_part"
"""How many truncates are before a change."""

HERE: Final = "_cdc_row"
"""The row that is at the key after the transaction, a struct; NULL: there is none."""

BY: Final = "_cdc_by"
"""Of an event without a row: the lineage of the change that ended it, a struct behind `there`, which is true."""


def key_names(shape: Shape) -> list[str]:
    """The columns of events that are the key, typed."""
    return [f"_cdc_key_{index}" for index in range(len(shape.keys))]


def key_events(changes: DataFrame, target: DataFrame | None, part: TablePart, *, traced: bool) -> DataFrame:
    """One event a key and transaction, at `_cdc_position` and `_cdc_ts`: `_cdc_part`, `_cdc_row` and `_cdc_by`.

    `target`: silver's live rows before, None: none; `traced`: as `silver.kind.Kind.net` has it.
    """
    changes = changes.withColumn(SEGMENT, segment(part.truncated))
    states = _states(changes, part.shape, part.unsent, traced=traced)
    if part.unsent:
        states = _whole(states, target, part.shape, part.unsent)
    return _lasting(_events(states, part.shape), part.truncated)


def _states(changes: DataFrame, shape: Shape, unsent: frozenset[int], *, traced: bool) -> DataFrame:
    """The state of each row after each transaction that changed it.

    Beside the columns of changes: `_cdc_group`, which row it is, `_cdc_before`, the key it had before the span (NULL:
    it was none), and `_cdc_kept_<n>`, a struct of the last value sent in the transaction, NULL where none was.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - DataFrames come from a session that has it

    here = F.coalesce(TO, FROM)
    if traced:
        group = F.struct(F.col(ROW).alias("n"), F.when(F.col(ROW).isNull(), here).alias("key"))
        before = F.when(F.col(ROW).isNull(), here).otherwise(F.col(ORIGIN))
    else:
        group, before = F.struct(F.lit(None).cast("bigint").alias("n"), here.alias("key")), here
    by = [F.col(SEGMENT), group.alias("_cdc_group"), F.col(POSITION)]
    changes = changes.withColumn("_cdc_before", before)
    # The row that was at the key before is ended by the first delete of its group: what came after it is another row.
    deleted = F.min_by(_by(shape), F.when(F.col(OP) == "D", F.col(ORDER))).alias("_cdc_deleted")
    states = last_and_known(changes, by, shape, unsent, ("_cdc_before", TIME), (deleted,))
    return states.select("*", "_cdc_last.*").drop("_cdc_last")


def _whole(states: DataFrame, target: DataFrame | None, shape: Shape, unsent: frozenset[int]) -> DataFrame:
    """States with every value: the last one sent before, otherwise that of the version silver has."""
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    so_far = Window.partitionBy(SEGMENT, "_cdc_group").orderBy(POSITION).rowsBetween(Window.unboundedPreceding, 0)
    kept_so_far = {f"_cdc_kept_{at}": F.last(f"_cdc_kept_{at}", ignorenulls=True) for at in sorted(unsent)}
    states = states.withColumns({name: value.over(so_far) for name, value in kept_so_far.items()})
    lacks = (F.col(OP) != "D") & any_of([F.col(f"_cdc_kept_{at}").isNull() for at in sorted(unsent)])
    missing = F.raise_error(F.lit(MISSING_BASE))
    if target is not None:
        based = F.when(lacks & (F.col(SEGMENT) == 0), F.col("_cdc_before"))
        states = states.withColumn("_cdc_base", based)
        found = base_rows(states.select("_cdc_base").distinct(), target, shape, unsent)
        # Kept by the executors, not planned again: Spark 4.1 does not find an Iceberg table that a MERGE's view reads
        # behind a window ("No plan for TableReference", tried).
        found = found.localCheckpoint()
        states = states.join(F.broadcast(found), "_cdc_base", "left")
    values = {}
    for at in sorted(unsent):
        name, kept = shape.columns[at].name, F.col(f"_cdc_kept_{at}")
        base = missing if target is None else F.when(F.col("_cdc_found"), F.col(f"_cdc_base_{at}")).otherwise(missing)
        value = F.when(kept.isNotNull() | (F.col(OP) == "D"), kept["v"]).otherwise(base.cast(shape.columns[at].type))
        values[name] = value
    return states.withColumns(values)


def _events(states: DataFrame, shape: Shape) -> DataFrame:
    """What happened to keys, one a key and transaction."""
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    of_row = Window.partitionBy(SEGMENT, "_cdc_group").orderBy(POSITION)
    state_before = F.lag(F.struct(F.col(TO).alias("key"))).over(of_row)
    left = F.when(state_before.isNull(), F.col("_cdc_before")).otherwise(state_before["key"])
    stays = F.col(OP) != "D"
    row = F.struct(*(F.col(quoted(c.name)) for c in (*shape.columns, *shape.carried))).alias(HERE)
    here = F.struct(*_keys(shape, TO), F.lit(1).alias("_cdc_rank"), row)
    gone = F.struct(*_keys(shape, "_cdc_left"), F.lit(0).alias("_cdc_rank"), F.lit(None).alias(HERE))
    leaves = F.col("_cdc_left").isNotNull() & (~stays | (F.col("_cdc_left") != F.col(TO)))
    both = F.array_compact(F.array(F.when(stays, here), F.when(leaves, gone)))
    by = F.coalesce("_cdc_deleted", _by(shape)).alias(BY)
    events = states.withColumn("_cdc_left", left).select(SEGMENT, POSITION, TIME, by, F.inline(both))
    last = F.max_by(F.struct(SEGMENT, TIME, BY, HERE), F.struct(SEGMENT, "_cdc_rank")).alias("_cdc_event")
    return events.groupBy(*key_names(shape), POSITION).agg(last).select("*", "_cdc_event.*").drop("_cdc_event")


def _by(shape: Shape) -> Column:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    return F.struct(F.lit(True).alias("there"), *(c.name for c in shape.carried if c in LINEAGE))


def _lasting(events: DataFrame, truncated: Sequence[Truncated]) -> DataFrame:
    """The events that stand at the end of their transactions: what the same one truncated later never was."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    if not truncated:
        return events
    next_truncate = F.get(F.array(*(F.lit(one.position) for one in truncated)), F.col(SEGMENT))
    return events.where(next_truncate.isNull() | (next_truncate > F.col(POSITION)))


def _keys(shape: Shape, texts: str) -> list[Column]:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    return [
        F.expr(shape.typed(at, f"{texts}[{index}]")).alias(name)
        for index, (at, name) in enumerate(zip(shape.keys, key_names(shape), strict=True))
    ]
