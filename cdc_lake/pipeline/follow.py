"""Following: the span of a table in which keys move, changes fail, or keys are held.

Only the changes that touch such keys are brought to the driver, as keys and order without values, and traced one by
one. What comes back says of each which row it belongs to and whether it is held.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from cdc_lake.bronze.outline import Outline
from cdc_lake.config.project import Target
from cdc_lake.pipeline.judge import Survey, conditions, survey
from cdc_lake.quality.gate import failed_names
from cdc_lake.silver.changes import FROM, OP, TO, segment
from cdc_lake.silver.complete import base_rows, complete_for_rules
from cdc_lake.silver.lineage import TRUNCATE, Closing, Event, Key, Traced, trace
from cdc_lake.silver.net_change import ORIGIN, ROW
from cdc_lake.silver.shape import Shape

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_FAILED = "_cdc_failed"
_HELD = "_cdc_held"
_TRACED = pa.schema(
    [
        ("position", pa.int64()),
        ("ordinal", pa.int64()),
        (ROW, pa.int64()),
        (ORIGIN, pa.list_(pa.string())),
        (_HELD, pa.bool_()),
    ]
)


@dataclass(frozen=True)
class Followed:
    """`free`: the changes to be folded, with `_cdc_row` and `_cdc_origin`. `held`: bronze's rows of the changes kept
    back, with `rules` they fail (empty: they wait), `key` and `from_key`; None where there are none.
    """

    free: DataFrame
    held: pa.Table | None
    closings: tuple[Closing, ...]
    survey: Survey


@dataclass(frozen=True)
class _Span:
    rows: DataFrame
    target: DataFrame | None
    table: Target
    shape: Shape
    unsent: frozenset[int]
    seen: Outline
    held: frozenset[Key]

    @property
    def spark(self) -> SparkSession:
        return self.rows.sparkSession


def follow(
    rows: DataFrame,
    changes: DataFrame,
    target: DataFrame | None,
    table: Target,
    shape: Shape,
    unsent: frozenset[int],
    seen: Outline,
    held: frozenset[Key],
    found: Survey,
) -> Followed:
    """Follow what must be followed. `rows` are bronze's rows of `changes`; `target` is silver before, None: nothing."""
    span = _Span(rows, target, table, shape, unsent, seen, held)
    moving = _moving_keys(changes) if found.moved else frozenset()
    existing = _existing(span, moving)
    if found.lacking:
        mapping = _trace(span, changes, moving, existing, frozenset())[0]
        placed = _placed(span, changes, mapping)
        needed = {at for c in conditions(table, shape, unsent) for at in c.columns if at in unsent}
        changes = complete_for_rules(placed, target, shape, sorted(needed)).drop(ROW, ORIGIN, _HELD, "_cdc_segment")
    judge = conditions(table, shape, unsent, completed=bool(found.lacking))
    found = survey(changes, table, shape, judge, seen) if found.lacking else found
    changes = changes.withColumn(_FAILED, failed_names(judge))
    failing = _keys(changes.where(f"size({_FAILED}) > 0")) if found.failing else frozenset()
    traced, closings = _trace(span, changes, moving | failing | held, existing, held)
    placed = _placed(span, changes, traced)
    return Followed(
        free=placed.where(f"NOT coalesce({_HELD}, false)").drop(_FAILED, _HELD, "_cdc_segment"),
        held=_with_rules(rows, placed.where(_HELD)) if any(t.held for t in traced) else None,
        closings=tuple(closings),
        survey=found,
    )


def without_failing(
    rows: DataFrame,
    changes: DataFrame,
    table: Target,
    shape: Shape,
    unsent: frozenset[int],
    found: Survey,
) -> tuple[DataFrame, pa.Table | None]:
    """Changes of a table without keys: those that do not fail, and bronze's rows of those that do. None waits."""
    if not found.failing:
        return changes, None
    judged = changes.withColumn(_FAILED, failed_names(conditions(table, shape, unsent)))
    held = _with_rules(rows, judged.where(f"size({_FAILED}) > 0"))
    return judged.where(f"size({_FAILED}) = 0").drop(_FAILED), held


def _trace(
    span: _Span, changes: DataFrame, keys: frozenset[Key], existing: frozenset[Key], held: frozenset[Key]
) -> tuple[list[Traced], list[Closing]]:
    events = _events(span, changes, keys)
    events += [Event(position, ordinal, TRUNCATE) for position, ordinal in span.seen.truncates]
    events.sort(key=lambda event: (event.position, event.ordinal))
    return trace(events, existing=existing, held=held)


def _events(span: _Span, changes: DataFrame, keys: frozenset[Key]) -> list[Event]:
    """The changes that touch one of `keys`, without values."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - DataFrames come from a session that has it

    if not keys:
        return []
    failed = F.size(_FAILED) > 0 if _FAILED in changes.columns else F.lit(False)
    touching = _key_frame(span.spark, keys)
    hit = (
        changes.select("position", "ordinal", OP, FROM, TO, failed.alias("failed"))
        .withColumn("_cdc_key", F.explode(F.array_distinct(F.array_compact(F.array(FROM, TO)))))
        .join(F.broadcast(touching), "_cdc_key", "left_semi")
        .drop("_cdc_key")
        .dropDuplicates(["position", "ordinal"])
        .toArrow()
    )
    columns = (hit[name].to_pylist() for name in ("position", "ordinal", OP, FROM, TO, "failed"))
    return [Event(p, o, op, _key(f), _key(t), bad) for p, o, op, f, t, bad in zip(*columns, strict=True)]


def _moving_keys(changes: DataFrame) -> frozenset[Key]:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    return _keys(changes.where((F.col(OP) == "U") & (F.col(FROM) != F.col(TO))))


def _keys(changes: DataFrame) -> frozenset[Key]:
    """The keys that changes touch."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    touched = changes.select(F.explode(F.array_compact(F.array(FROM, TO))).alias("key")).distinct().toArrow()
    return frozenset(tuple(key) for key in touched["key"].to_pylist())


def _existing(span: _Span, keys: frozenset[Key]) -> frozenset[Key]:
    """Which of the keys silver has: only where keys move does it matter who had one first."""
    if not keys or span.target is None:
        return frozenset()
    bases = _key_frame(span.spark, keys).withColumnRenamed("_cdc_key", "_cdc_base")
    found = base_rows(bases, span.target, span.shape, ()).select("_cdc_base").toArrow()
    return frozenset(tuple(key) for key in found["_cdc_base"].to_pylist())


def _placed(span: _Span, changes: DataFrame, traced: Sequence[Traced]) -> DataFrame:
    """Changes with `_cdc_row`, `_cdc_origin`, `_cdc_held` (NULL where they are not traced) and `_cdc_segment`."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    table = pa.table(
        [
            pa.array((t.position for t in traced), pa.int64()),
            pa.array((t.ordinal for t in traced), pa.int64()),
            pa.array((t.row for t in traced), pa.int64()),
            pa.array((None if t.origin is None else list(t.origin) for t in traced), pa.list_(pa.string())),
            pa.array((t.held for t in traced), pa.bool_()),
        ],
        schema=_TRACED,
    )
    mapping = span.spark.createDataFrame(table)
    joined = changes.join(F.broadcast(mapping), ["position", "ordinal"], "left")
    return joined.withColumn("_cdc_segment", segment(span.seen.truncated))


def _with_rules(rows: DataFrame, changes: DataFrame) -> pa.Table:
    """Bronze's rows of changes, with the rules they fail and their keys."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    held = changes.select(
        "position",
        "ordinal",
        F.col(_FAILED).alias("rules"),
        F.coalesce(TO, FROM).alias("key"),
        F.col(FROM).alias("from_key"),
    )
    raw: list[Column] = [F.col(c) for c in ("op", "layout", "new", "old", "old_kind", "unchanged")]
    found = rows.select("position", "ordinal", *raw).join(F.broadcast(held), ["position", "ordinal"])
    return found.orderBy("position", "ordinal").toArrow()


def _key_frame(spark: SparkSession, keys: Iterable[Key]) -> DataFrame:
    values = pa.array(([*key] for key in sorted(keys, key=repr)), pa.list_(pa.string()))
    return spark.createDataFrame(pa.table({"_cdc_key": values}))


def _key(value: list[str | None] | None) -> Key | None:
    return None if value is None else tuple(value)
