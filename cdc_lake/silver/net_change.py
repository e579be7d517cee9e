"""Computes the net change of a span: at most one row per key.

Each column has its last known value in the span; only what is unknown in the whole span is left to the target. If keys
move, rows are folded by the row they belong to (`silver.row_tracing`), and the key that a row left is deleted unless
another row ends there.

All functions map DataFrames to DataFrames, without an action. The result has the silver columns and `_cdc_op` (`U`:
this is the row now; `D`: there is none) and, for each column that may be unknown, `_cdc_unknown_<n>`.

Unchanged values are completed from their row for two callers that need them before the MERGE: rules, which evaluate
whole rows, and rows that move to another key, which are inserted there. Only affected rows are joined with the target.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from cdc_lake.silver.changes import FROM, OP, ORDER, TO, F, Window, known_column
from cdc_lake.silver.layout_mapping import RelationMapping
from cdc_lake.tables.types import quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.window import WindowSpec


ROW = "_cdc_row"
ORIGIN = "_cdc_origin"


def unknown(column_index: int) -> str:
    """Name of the column that says whether column `column_index` is left to the target."""
    return f"_cdc_unknown_{column_index}"


def net_change(changes: DataFrame, shape: RelationMapping, unsent: frozenset[int], *, traced: bool) -> DataFrame:
    """Fold typed changes. With `traced` they have `_cdc_row` and `_cdc_origin` if keys moved, and the result is input
    for `collapse_rows`; otherwise it is the net change.
    """
    keys = [F.col(quote_identifier(c.name)) for c in shape.key_columns]
    if not traced:
        return _fold(changes, keys, shape, unsent).drop(FROM, TO)
    here = F.coalesce(TO, FROM)
    by_row = [F.col(ROW), F.when(F.col(ROW).isNull(), here).alias("_cdc_at")]
    return _fold(changes, by_row, shape, unsent, (ROW, ORIGIN))


def collapse_rows(folded: DataFrame, shape: RelationMapping, unsent: frozenset[int]) -> DataFrame:
    """Convert rows folded with `traced` to one row per key: where rows ended, and the keys they left.

    A key at which a row ended was not left. Two rows that ended at one key fail the job: no server allows that.
    """
    # A row without a number was folded by its key, which is the key it leaves.
    left = F.coalesce(ORIGIN, F.when(F.col(ROW).isNull(), F.col(FROM)))
    leaves = F.col("_cdc_left").isNotNull() & ((F.col(OP) == "D") | (F.col("_cdc_left") != F.col(TO)))
    gone = folded.withColumn("_cdc_left", left).where(leaves)
    values = {c.name: F.lit(None).cast(c.type) for c in shape.columns}
    for index, column_index in enumerate(shape.keys):
        values[shape.columns[column_index].name] = F.expr(shape.typed_sql(column_index, f"_cdc_left[{index}]"))
    values |= {c.name: F.col(quote_identifier(c.name)) for c in shape.carried}
    deletes = gone.select(
        *(value.alias(name) for name, value in values.items()),
        *(F.lit(False).alias(unknown(column_index)) for column_index in sorted(unsent)),
        F.lit("D").alias(OP),
    )
    stays = F.col(OP) == "U"
    rows = folded.where(stays).select(*(F.col(quote_identifier(c)) for c in deletes.columns)).unionByName(deletes)
    keys = [F.col(quote_identifier(c.name)).alias(f"_cdc_by_{n}") for n, c in enumerate(shape.key_columns)]
    groups = rows.groupBy(*keys).agg(
        F.max_by(F.struct(*(F.col(quote_identifier(c)) for c in rows.columns)), stays).alias("_cdc_net"),
        F.sum(F.when(stays, 1).otherwise(0)).alias("_cdc_rows"),
    )
    clash = F.raise_error(F.lit("two rows ended at one key"))
    state = F.when(F.col("_cdc_rows") > 1, clash).otherwise(F.col(f"_cdc_net.{OP}")).cast("string").alias(OP)
    return groups.select(*(F.col(f"_cdc_net.{quote_identifier(c)}").alias(c) for c in rows.columns if c != OP), state)


def last_and_known(
    changes: DataFrame,
    by: Sequence[Column],
    shape: RelationMapping,
    unsent: frozenset[int],
    extra: Sequence[str] = (),
    also: Sequence[Column] = (),
) -> DataFrame:
    """Aggregate changes by group: `_cdc_last`, a struct of the last change's operation, keys, `extra` and the columns
    that every change sent, and `_cdc_kept_<n>`, a struct of the last value of any other column, NULL if none was sent;
    `also`: further aggregates.
    """
    certain = [*(c for index, c in enumerate(shape.columns) if index not in unsent), *shape.carried]
    values = (F.col(quote_identifier(c.name)) for c in certain)
    last = F.max_by(F.struct(OP, FROM, TO, *extra, *values), ORDER).alias("_cdc_last")
    known_values = []
    for index in sorted(unsent):
        value = F.struct(F.col(quote_identifier(shape.columns[index].name)).alias("v"))
        place = F.when(F.col(known_column(index)), F.col(ORDER))
        known_values.append(F.max_by(value, place).alias(f"_cdc_kept_{index}"))
    return changes.groupBy(*by).agg(last, *known_values, *also)


def _fold(
    changes: DataFrame, by: Sequence[Column], shape: RelationMapping, unsent: frozenset[int], extra: Sequence[str] = ()
) -> DataFrame:
    """The last state of each group: columns that were always sent from the last change, others by last known value."""
    named = [column.alias(f"_cdc_by_{n}") for n, column in enumerate(by)]
    folded = last_and_known(changes, named, shape, unsent, extra)
    columns = [F.col(f"_cdc_last.{quote_identifier(c.name)}") for c in (*shape.columns, *shape.carried)]
    for index in unsent:
        columns[index] = F.col(f"_cdc_kept_{index}.v").alias(shape.columns[index].name)
    flags = [F.col(f"_cdc_kept_{index}").isNull().alias(unknown(index)) for index in sorted(unsent)]
    state = [F.when(F.col(f"_cdc_last.{OP}") == "D", F.lit("D")).otherwise(F.lit("U")).alias(OP)]
    return folded.select(*columns, *flags, *state, *(f"_cdc_last.{name}" for name in (FROM, TO, *extra)))


FOUND = "_cdc_found"
MISSING_BASE = "cdc_lake: a change refers to a row that silver does not have"


def judged_column(column_index: int) -> str:
    """Name of the column with what a rule evaluates: the value of column `column_index` after the change."""
    return f"_cdc_judged_{column_index}"


def value_known_column(column_index: int) -> str:
    """Name of the column that says whether `_cdc_judged_<n>` is known; otherwise it is only missing."""
    return f"_cdc_told_{column_index}"


def row_window(order: Column) -> WindowSpec:
    """The changes of one row between two truncates."""
    here = F.coalesce(TO, FROM)
    return Window.partitionBy("_cdc_segment", ROW, F.when(F.col(ROW).isNull(), here)).orderBy(order)


def complete_for_rules(
    changes: DataFrame, target: DataFrame | None, shape: RelationMapping, needed: Collection[int]
) -> DataFrame:
    """Add `_cdc_judged_<n>` for the columns in `needed`: the last value sent before, or else the target's.

    `changes` have `_cdc_row`, `_cdc_origin` (NULL if rows are followed by key) and `_cdc_segment`, the number of
    truncates before them: after a truncate the target is irrelevant. Also adds `_cdc_told_<n>`, and `_cdc_found` for
    changes that lacked a value: whether the target has the row.
    """
    so_far = row_window(F.col(ORDER)).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    last_values = {}
    for index in sorted(needed):
        value = F.struct(F.col(quote_identifier(shape.columns[index].name)).alias("v"))
        sent = F.when(F.col(known_column(index)), value)
        last_values[judged_column(index)] = F.last(sent, ignorenulls=True).over(so_far)
    changes = changes.withColumns(last_values)
    has = [] if target is None else [index for index in sorted(needed) if shape.columns[index].name in target.columns]
    if target is None:
        changes = changes.withColumn(FOUND, F.lit(False))
    else:
        # The key of the row in silver; a row that was inserted in the span has none, and all its values are known.
        key = F.when(F.col(ROW).isNull(), F.coalesce(TO, FROM)).otherwise(F.col(ORIGIN))
        lacking = [F.col(judged_column(index)).isNull() for index in sorted(needed)]
        changes = changes.withColumn("_cdc_base", F.when((F.col("_cdc_segment") == 0) & any_of(lacking), key))
        bases = base_rows(changes.select("_cdc_base").distinct(), target, shape, has)
        changes = changes.join(F.broadcast(bases), "_cdc_base", "left").drop("_cdc_base")
        changes = changes.withColumn(FOUND, F.coalesce(F.col(FOUND), F.lit(False)))
    values: dict[str, Column] = {}  # at once: separate steps would each add a layer to the plan
    for index in sorted(needed):
        sent, base = F.col(judged_column(index)), F.col(f"_cdc_base_{index}") if index in has else F.lit(None)
        known_ = sent.isNotNull() | (F.col(FOUND) if index in has else F.lit(False))
        value = F.when(sent.isNull(), base).otherwise(sent["v"])
        values |= {judged_column(index): value, value_known_column(index): known_}
    return changes.withColumns(values).drop(*(f"_cdc_base_{index}" for index in has))


def complete_moved(folded: DataFrame, target: DataFrame, shape: RelationMapping, unsent: frozenset[int]) -> DataFrame:
    """Fill unknown values of rows that moved to another key, from the row at their former key.

    A missing row fails the job: silver is not what the stream changes.
    """
    lacking = any_of([F.col(unknown(index)) for index in sorted(unsent)])
    moved = F.col(ORIGIN).isNotNull() & (F.col(ORIGIN) != F.col(TO)) & lacking
    folded = folded.withColumn("_cdc_base", F.when(moved, F.col(ORIGIN)))
    bases = base_rows(folded.select("_cdc_base").distinct(), target, shape, unsent)
    joined = folded.join(F.broadcast(bases), "_cdc_base", "left")
    fill = F.col("_cdc_base").isNotNull()
    values = {}  # at once: separate steps would each add a layer to the plan
    for index in sorted(unsent):
        name = shape.columns[index].name
        from_base = F.when(F.col(FOUND), F.col(f"_cdc_base_{index}")).otherwise(F.raise_error(F.lit(MISSING_BASE)))
        takes = fill & F.col(unknown(index))
        values[name] = F.when(takes, from_base).otherwise(F.col(quote_identifier(name)))
        values[unknown(index)] = F.col(unknown(index)) & ~fill
    return joined.withColumns(values).select(*(F.col(quote_identifier(c)) for c in folded.columns if c != "_cdc_base"))


def base_rows(bases: DataFrame, target: DataFrame, shape: RelationMapping, columns: Collection[int]) -> DataFrame:
    """For each key as texts in `_cdc_base`: `_cdc_found` and `_cdc_base_<n>`, the values of the target's row."""
    keys = [
        F.expr(shape.typed_sql(number, f"_cdc_base[{index}]")).alias(f"_cdc_key_{index}")
        for index, number in enumerate(shape.keys)
    ]
    wanted = bases.where(F.col("_cdc_base").isNotNull()).select("_cdc_base", *keys)
    names = [quote_identifier(c.name) for c in shape.columns]
    of_key = [F.expr(shape.row_key(n, names[number])).alias(f"_cdc_of_{n}") for n, number in enumerate(shape.keys)]
    values = [F.col(names[number]).alias(f"_cdc_base_{number}") for number in sorted(columns)]
    rows = target.select(*of_key, *values, F.lit(True).alias(FOUND))
    pairs = [(F.col(f"_cdc_of_{index}"), F.col(f"_cdc_key_{index}")) for index in range(len(shape.keys))]
    same = [of.eqNullSafe(key) if number in shape.nullable else of == key for number, (of, key) in enumerate(pairs)]
    joined = rows.join(F.broadcast(wanted), all_of(same))
    return joined.select("_cdc_base", FOUND, *(f"_cdc_base_{number}" for number in sorted(columns)))


def any_of(conditions: Sequence[Column]) -> Column:
    """Whether any of the conditions is true; false without conditions."""
    return _combine(conditions, operator.or_) if conditions else F.lit(False)


def all_of(conditions: Sequence[Column]) -> Column:
    """Whether all of the conditions, at least one, are true."""
    return _combine(conditions, operator.and_)


def _combine(conditions: Sequence[Column], operation: Callable[[Column, Column], Column]) -> Column:
    """In halves: Spark processes an expression recursively, and a chain of a thousand exhausts Java's stack."""
    if len(conditions) == 1:
        return conditions[0]
    half = len(conditions) // 2
    return operation(_combine(conditions[:half], operation), _combine(conditions[half:], operation))
