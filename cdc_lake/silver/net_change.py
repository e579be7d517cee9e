"""Net change: what a span amounts to, one row a key.

Each column keeps its last known value in the span; only what is unknown in the whole span is left to the target. Where
keys move, rows are folded by the row they belong to (`silver.lineage`), and the key a row came from is deleted unless
another row ends there.

Every function is from DataFrame to DataFrame, without an action. The result has the silver columns and
`_cdc_op` (`U`: this is the row now; `D`: there is none) and, for each column that may be unknown, `_cdc_unknown_<n>`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cdc_lake.lake.store import quoted
from cdc_lake.silver.changes import FROM, OP, ORDER, TO, known
from cdc_lake.silver.shape import Shape

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ROW = "_cdc_row"
ORIGIN = "_cdc_origin"


def unknown(at: int) -> str:
    """The name of the column that says whether column `at` is left to the target."""
    return f"_cdc_unknown_{at}"


def net_change(changes: DataFrame, shape: Shape, unsent: frozenset[int], *, traced: bool) -> DataFrame:
    """Fold typed changes. With `traced` they carry `_cdc_row` and `_cdc_origin` where keys moved, and the result is
    what `settle` takes; otherwise it is the net change.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - DataFrames come from a session that has it

    keys = [F.col(quoted(c.name)) for c in shape.key_columns]
    if not traced:
        return _fold(changes, keys, shape, unsent).drop(FROM, TO)
    here = F.coalesce(TO, FROM)
    by_row = [F.col(ROW), F.when(F.col(ROW).isNull(), here).alias("_cdc_at")]
    return _fold(changes, by_row, shape, unsent, (ROW, ORIGIN))


def settle(folded: DataFrame, shape: Shape, unsent: frozenset[int]) -> DataFrame:
    """Turn rows folded with `traced` into one row a key: where rows ended, and the keys they left.

    A key where a row ended is not left. Two rows that ended at one key fail the job: no server allows that.
    """
    ended, gone = _ended_and_gone(folded, shape, unsent)
    return _one_row_a_key(ended.unionByName(gone), shape)


def last_and_known(
    changes: DataFrame,
    by: Sequence[Column],
    shape: Shape,
    unsent: frozenset[int],
    extra: Sequence[str] = (),
    also: Sequence[Column] = (),
) -> DataFrame:
    """Changes grouped: `_cdc_last`, a struct of the last change's operation, keys, `extra` and the columns that every
    change sent, and `_cdc_kept_<n>`, a struct of the last value of another one, NULL where none was sent; `also`:
    further aggregates.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    certain = [*(c.name for at, c in enumerate(shape.columns) if at not in unsent), *(c.name for c in shape.carried)]
    last = F.max_by(F.struct(OP, FROM, TO, *extra, *(F.col(quoted(n)) for n in certain)), ORDER).alias("_cdc_last")
    kept = [
        F.max_by(
            F.struct(F.col(quoted(shape.columns[at].name)).alias("v")), F.when(F.col(known(at)), F.col(ORDER))
        ).alias(f"_cdc_kept_{at}")
        for at in sorted(unsent)
    ]
    return changes.groupBy(*by).agg(last, *kept, *also)


def _fold(
    changes: DataFrame, by: Sequence[Column], shape: Shape, unsent: frozenset[int], extra: Sequence[str] = ()
) -> DataFrame:
    """The last state of each group: certain columns of the last change, others by their last known value."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    named = [column.alias(f"_cdc_by_{n}") for n, column in enumerate(by)]
    folded = last_and_known(changes, named, shape, unsent, extra)
    columns = [
        F.col(f"_cdc_kept_{at}.v").alias(c.name) if at in unsent else F.col(f"_cdc_last.{quoted(c.name)}")
        for at, c in enumerate(shape.columns)
    ]
    columns += [F.col(f"_cdc_last.{quoted(c.name)}") for c in shape.carried]
    flags = [F.col(f"_cdc_kept_{at}").isNull().alias(unknown(at)) for at in sorted(unsent)]
    state = [F.when(F.col(f"_cdc_last.{OP}") == "D", F.lit("D")).otherwise(F.lit("U")).alias(OP)]
    return folded.select(*columns, *flags, *state, *(f"_cdc_last.{name}" for name in (FROM, TO, *extra)))


def _ended_and_gone(folded: DataFrame, shape: Shape, unsent: frozenset[int]) -> tuple[DataFrame, DataFrame]:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    # A row without a number was folded by its key: that key is what it leaves.
    left = F.coalesce(ORIGIN, F.when(F.col(ROW).isNull(), F.col(FROM)))
    gone = folded.withColumn("_cdc_left", left).where(
        F.col("_cdc_left").isNotNull() & ((F.col(OP) == "D") | (F.col("_cdc_left") != F.col(TO)))
    )
    values = {c.name: F.lit(None).cast(c.type) for c in shape.columns}
    for index, at in enumerate(shape.keys):
        values[shape.columns[at].name] = F.expr(shape.typed(at, f"_cdc_left[{index}]"))
    values |= {c.name: F.col(quoted(c.name)) for c in shape.carried}
    deletes = gone.select(
        *(value.alias(name) for name, value in values.items()),
        *(F.lit(False).alias(unknown(at)) for at in sorted(unsent)),
        F.lit("D").alias(OP),
    )
    return folded.where(F.col(OP) == "U").select(*(F.col(quoted(c)) for c in deletes.columns)), deletes


def _one_row_a_key(rows: DataFrame, shape: Shape) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    stays = F.col(OP) == "U"
    keys = [F.col(quoted(c.name)).alias(f"_cdc_by_{n}") for n, c in enumerate(shape.key_columns)]
    one = rows.groupBy(*keys).agg(
        F.max_by(F.struct(*(F.col(quoted(c)) for c in rows.columns)), stays).alias("_cdc_net"),
        F.sum(F.when(stays, 1).otherwise(0)).alias("_cdc_rows"),
    )
    clash = F.raise_error(F.lit("two rows ended at one key"))
    state = F.when(F.col("_cdc_rows") > 1, clash).otherwise(F.col(f"_cdc_net.{OP}")).cast("string").alias(OP)
    return one.select(*(F.col(f"_cdc_net.{quoted(c)}").alias(c) for c in rows.columns if c != OP), state)
