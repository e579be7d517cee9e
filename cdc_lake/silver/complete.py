"""Completion: values that were not sent, taken from the row they stand in.

Two callers need them before the MERGE can supply them: rules, which judge whole rows, and rows that move to another
key, which are inserted there. Only the rows concerned are joined with the target.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from cdc_lake.lake.store import quoted
from cdc_lake.silver.changes import FROM, ORDER, TO, known
from cdc_lake.silver.net_change import ORIGIN, ROW, unknown
from cdc_lake.silver.shape import Shape

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.window import WindowSpec

FOUND = "_cdc_found"
MISSING_BASE = "cdc_lake: a change refers to a row that silver does not have"


def judged(at: int) -> str:
    """The name of the column that holds what a rule judges: the value of column `at` after the change."""
    return f"_cdc_judged_{at}"


def told(at: int) -> str:
    """The name of the column that says whether `_cdc_judged_<n>` is the value, and not the want of one."""
    return f"_cdc_told_{at}"


def row_window(order: Column) -> WindowSpec:
    """The changes of one row between two truncates."""
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - DataFrames come from a session that has it

    here = F.coalesce(TO, FROM)
    return Window.partitionBy("_cdc_segment", ROW, F.when(F.col(ROW).isNull(), here)).orderBy(order)


def complete_for_rules(
    changes: DataFrame, target: DataFrame | None, shape: Shape, needed: Collection[int]
) -> DataFrame:
    """Add `_cdc_judged_<n>` for the columns in `needed`: the last value sent before, else the target's.

    `changes` carry `_cdc_row`, `_cdc_origin` (NULL where rows are followed by key) and `_cdc_segment`, the number of
    truncates before them: behind a truncate the target has nothing to say. Added too: `_cdc_told_<n>`, and
    `_cdc_found` for changes that lacked a value: whether the target has the row.
    """
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    so_far = row_window(F.col(ORDER)).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    sent_values = {
        at: F.when(F.col(known(at)), F.struct(F.col(quoted(shape.columns[at].name)).alias("v")))
        for at in sorted(needed)
    }
    changes = changes.withColumns(
        {judged(at): F.last(value, ignorenulls=True).over(so_far) for at, value in sent_values.items()}
    )
    has = [] if target is None else [at for at in sorted(needed) if shape.columns[at].name in target.columns]
    if target is None:
        changes = changes.withColumn(FOUND, F.lit(False))
    else:
        # The key silver has the row under; a row born in the span has none and every value of it is known.
        key = F.when(F.col(ROW).isNull(), F.coalesce(TO, FROM)).otherwise(F.col(ORIGIN))
        lacking = [F.col(judged(at)).isNull() for at in sorted(needed)]
        changes = changes.withColumn("_cdc_base", F.when((F.col("_cdc_segment") == 0) & any_of(lacking), key))
        found = base_rows(changes.select("_cdc_base").distinct(), target, shape, has)
        changes = changes.join(F.broadcast(found), "_cdc_base", "left").drop("_cdc_base")
        changes = changes.withColumn(FOUND, F.coalesce(F.col(FOUND), F.lit(False)))
    values: dict[str, Column] = {}  # at once: each step of its own would be a layer of the plan
    for at in sorted(needed):
        sent, base = F.col(judged(at)), F.col(f"_cdc_base_{at}") if at in has else F.lit(None)
        known_ = sent.isNotNull() | (F.col(FOUND) if at in has else F.lit(False))
        value = F.when(sent.isNull(), base).otherwise(sent["v"])
        values |= {judged(at): value, told(at): known_}
    return changes.withColumns(values).drop(*(f"_cdc_base_{at}" for at in has))


def complete_moved(folded: DataFrame, target: DataFrame, shape: Shape, unsent: frozenset[int]) -> DataFrame:
    """Fill what is unknown in rows that moved to another key, from the row at the key they had.

    A row that is not there fails the job: silver is not what the stream changes.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    lacking = any_of([F.col(unknown(at)) for at in sorted(unsent)])
    moved = F.col(ORIGIN).isNotNull() & (F.col(ORIGIN) != F.col(TO)) & lacking
    folded = folded.withColumn("_cdc_base", F.when(moved, F.col(ORIGIN)))
    found = base_rows(folded.select("_cdc_base").distinct(), target, shape, unsent)
    out = folded.join(F.broadcast(found), "_cdc_base", "left")
    fill = F.col("_cdc_base").isNotNull()
    values = {}  # at once: each step of its own would be a layer of the plan
    for at in sorted(unsent):
        name = shape.columns[at].name
        from_base = F.when(F.col(FOUND), F.col(f"_cdc_base_{at}")).otherwise(F.raise_error(F.lit(MISSING_BASE)))
        takes = fill & F.col(unknown(at))
        values[name] = F.when(takes, from_base).otherwise(F.col(quoted(name)))
        values[unknown(at)] = F.col(unknown(at)) & ~fill
    return out.withColumns(values).select(*(F.col(quoted(c)) for c in folded.columns if c != "_cdc_base"))


def base_rows(bases: DataFrame, target: DataFrame, shape: Shape, columns: Collection[int]) -> DataFrame:
    """For each key as texts in `_cdc_base`: `_cdc_found` and `_cdc_base_<n>`, the target's values of its row."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    keys = [
        F.expr(shape.typed(at, f"_cdc_base[{index}]")).alias(f"_cdc_key_{index}") for index, at in enumerate(shape.keys)
    ]
    wanted = bases.where(F.col("_cdc_base").isNotNull()).select("_cdc_base", *keys)
    rows = target.select(
        *(F.expr(shape.row_key(n, quoted(c.name))).alias(f"_cdc_of_{n}") for n, c in enumerate(shape.key_columns)),
        *(F.col(quoted(shape.columns[at].name)).alias(f"_cdc_base_{at}") for at in sorted(columns)),
        F.lit(True).alias(FOUND),
    )
    pairs = [(F.col(f"_cdc_of_{index}"), F.col(f"_cdc_key_{index}")) for index in range(len(shape.keys))]
    same = [of.eqNullSafe(key) if at in shape.nullable else of == key for at, (of, key) in enumerate(pairs)]
    joined = rows.join(F.broadcast(wanted), all_of(same))
    return joined.select("_cdc_base", FOUND, *(f"_cdc_base_{at}" for at in sorted(columns)))


def any_of(conditions: Sequence[Column]) -> Column:
    """Whether one of the conditions is true; false of none."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    if not conditions:
        return F.lit(False)
    if len(conditions) == 1:
        return conditions[0]
    # In halves: Spark walks an expression by recursion, and Java's stack ends at a thousand of them in a row.
    half = len(conditions) // 2
    return any_of(conditions[:half]) | any_of(conditions[half:])


def all_of(conditions: Sequence[Column]) -> Column:
    """Whether all of the conditions are true, of one at least; in halves, as `any_of`."""
    if len(conditions) == 1:
        return conditions[0]
    half = len(conditions) // 2
    return all_of(conditions[:half]) & all_of(conditions[half:])
