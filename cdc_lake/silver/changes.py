"""Changes as a Spark DataFrame: bronze rows of one table, typed, with their order and keys.

Working columns start with `_cdc_`; the others are the silver columns.

`_cdc_position`, `_cdc_ordinal` and the struct of both, `_cdc_order`: the place of the change; `_cdc_op`: I U D, and T
if truncates were requested; `_cdc_from`: the key as texts before the change (NULL for an insert), `_cdc_to` after it
(NULL for a delete); `_cdc_ts`: commit time of its transaction; `_cdc_known_<n>` for each column that some change did
not send: whether the value in this row is known; `_cdc_fits_<n>` for each column whose text may not convert: whether
this one does.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cdc_lake.model.change import Truncated
from cdc_lake.model.position import Span
from cdc_lake.model.quarantine import RefetchedRows
from cdc_lake.model.relation import TableName
from cdc_lake.silver.layout_mapping import RelationMapping


class _Deferred:
    """An object of Spark that is imported when it is used: what reads bronze imports this package without Spark."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Any:
        return getattr(pkgutil.resolve_name(self._path), name)


if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession, functions, window

    F = functions
    Window = window.Window
else:
    F, Window = _Deferred("pyspark.sql.functions"), _Deferred("pyspark.sql:Window")

POSITION = "_cdc_position"
ORDINAL = "_cdc_ordinal"
ORDER = "_cdc_order"
OP = "_cdc_op"
FROM = "_cdc_from"
TO = "_cdc_to"
TIME = "_cdc_ts"

_BRONZE = (
    "epoch INT, position BIGINT, ordinal BIGINT, op STRING, csn BIGINT, lsn BIGINT, xid BIGINT, commit_ts TIMESTAMP, "
    "relation STRING, layout BIGINT, "
    "new ARRAY<STRING>, old ARRAY<STRING>, old_kind STRING, unchanged ARRAY<INT>"
)


def known_column(column_index: int) -> str:
    """Name of the column that says whether the value of column `column_index` is known."""
    return f"_cdc_known_{column_index}"


def fits(column_index: int) -> str:
    """Name of the column that says whether the text of column `column_index` converts to a silver value."""
    return f"_cdc_fits_{column_index}"


def fits_old(column_index: int) -> str:
    """Name of the column that says whether the text of a column in the old tuple converts to a silver value."""
    return f"_cdc_fits_old_{column_index}"


def is_after(position: int, ordinal: int) -> Column:
    """Whether a change follows the place `(position, ordinal)`."""
    position_column = F.col(POSITION)
    return (position_column > position) | ((position_column == position) & (F.col(ORDINAL) > ordinal))


def segment(truncated: Sequence[Truncated]) -> Column:
    """The number of truncates before a change."""
    passed: Column = F.lit(0)
    for truncate in truncated:
        passed = passed + F.when(is_after(truncate.position, truncate.ordinal), 1).otherwise(0)
    return passed


def read_changes(
    spark: SparkSession,
    files: Sequence[str],
    table: TableName,
    span: Span,
    *,
    snapshot: bool,
    inside: bool = False,
    truncates: bool = False,
    rereads: Sequence[RefetchedRows] = (),
    released: pa.Table | None = None,
) -> DataFrame:
    """The bronze rows of a table's changes in a span; with `snapshot` its snapshot rows at `span.upto`.

    `inside`: the files have no row of another position; `truncates`, `rereads`: include these; `released`: released
    quarantined changes, which are added to bronze's.

    `files` are the data files that may contain them: bronze is append-only and has neither deletion vectors nor renamed
    columns, so its files are read without planning by the log (saves 0.2 s per table, measured).
    """
    rows = spark.read.schema(_BRONZE).parquet(*files) if files else spark.createDataFrame([], _BRONZE)
    position = F.col("position")
    where = (F.col("epoch") == span.epoch) & (F.col("relation") == str(table))
    if snapshot:
        return rows.where(where & (position == span.upto) & (F.col("op") == "S"))
    op = F.col("op")
    wanted = op.isin("I", "U", "D", *("T" * truncates))
    for reread in rereads:
        wanted |= (op == "S") & F.col("ordinal").between(reread.first, reread.last)
    # The code that Spark compiles contains these numbers, so each span with its own bounds is compiled again.
    bounded = F.lit(True) if inside else (position > span.after) & (position <= span.upto)
    changes = rows.where(where & bounded & wanted)
    if released is None:
        return changes
    names = [name for name in changes.columns if name in released.column_names]
    return changes.unionByName(spark.createDataFrame(released.select(names)))


def cast_rows(
    rows: DataFrame, shape: RelationMapping, unsent: Iterable[int] = (), extra: Mapping[str, str] | None = None
) -> DataFrame:
    """Bronze rows with the silver columns; `unsent`: columns that some change did not send; `extra`: further columns by
    SQL over bronze's row.

    The value of a column is that of the new tuple, for a delete of the old one; if it was not sent, that of a full old
    tuple; otherwise it is unknown.
    """
    unsent = frozenset(unsent)
    columns = [
        F.expr("struct(position, ordinal)").alias(ORDER),
        F.expr("CASE WHEN op <> 'S' THEN op WHEN new IS NULL THEN 'D' ELSE 'I' END").alias(OP),
        F.expr(
            "CASE WHEN op = 'I' OR (op = 'S' AND new IS NOT NULL) THEN NULL "
            f"WHEN old IS NOT NULL THEN {shape.key_texts('old')} ELSE {shape.key_texts('new')} END"
        ).alias(FROM),
        F.expr(f"CASE WHEN new IS NOT NULL THEN {shape.key_texts('new')} END").alias(TO),
        F.col("commit_ts").alias(TIME),
    ]
    columns += [F.expr(text).alias(column.name) for column, text in shape.carried.items()]
    columns += [F.expr(text).alias(name) for name, text in (extra or {}).items()]
    for index, column in enumerate(shape.columns):
        text = f"({value_text(shape, index, unsent)})"
        columns.append(F.expr(shape.value(index, text)).alias(column.name))
        if index in unsent:
            # A key part that was not sent is in the old tuple too: the server logs a long key with every update.
            has_old = shape.whole_old if index not in shape.keys else "old IS NOT NULL"
            columns.append(F.expr(f"({shape.sent_sql(index)} OR {has_old})").alias(known_column(index)))
        if shape.may_misfit(index):
            columns.append(F.expr(shape.fits(index, text)).alias(fits(index)))
            if shape.old_values:
                columns.append(F.expr(shape.fits(index, f"({shape.text(index, 'old')})")).alias(fits_old(index)))
    return rows.select(F.col("position").alias(POSITION), F.col("ordinal").alias(ORDINAL), *columns)


def after_truncates(changes: DataFrame, truncated: Sequence[Truncated]) -> DataFrame:
    """The changes after the last truncate, which removed everything before it."""
    return changes.where(is_after(truncated[-1].position, truncated[-1].ordinal)) if truncated else changes


def value_text(shape: RelationMapping, column_index: int, unsent: frozenset[int]) -> str:
    """The text of column `column_index` in a bronze row, from the tuple that has it."""
    new, old = shape.text(column_index, "new"), shape.text(column_index, "old")
    if column_index not in unsent:
        return f"CASE WHEN new IS NULL THEN {old} ELSE {new} END"
    return f"CASE WHEN new IS NULL OR NOT {shape.sent_sql(column_index)} THEN {old} ELSE {new} END"


def digests(shape: RelationMapping) -> tuple[str, str]:
    """SQL over a bronze row for digests of the whole row before and after the change; NULL if values are missing.

    Different texts of one value count as one, as in keys (`RelationMapping.key_texts`).
    """
    old, new = [], []
    for index, column in enumerate(shape.typed_columns):
        if not column.companion:
            before, after = shape.text(index, "old"), shape.text(index, "new")
            old.append(shape.key_part(index, f"({before})"))
            new.append(shape.key_part(index, f"(CASE WHEN {shape.sent_sql(index)} THEN {after} ELSE {before} END)"))
    is_complete = f"new IS NOT NULL AND ({shape.whole_old} OR coalesce(size(unchanged), 0) <= 0)"
    # As JSON, because a hash of columns ignores NULLs.
    of_old, of_new = (f"xxhash64(to_json(array({', '.join(texts)})))" for texts in (old, new))
    return f"CASE WHEN {shape.whole_old} THEN {of_old} END", f"CASE WHEN {is_complete} THEN {of_new} END"
