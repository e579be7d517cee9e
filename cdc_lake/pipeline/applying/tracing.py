"""Tracing: changes brought to the driver as keys and order, and what became of them put back beside them.

Never their values. Which changes must be brought, the callers say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from cdc_lake.bronze.contract import SNAPSHOT
from cdc_lake.bronze.outline import Outline
from cdc_lake.model.decision import CEILING, DISCARD, NOTHING_DECIDED, ON, Decided, Place, place_of
from cdc_lake.model.reread import Reread
from cdc_lake.silver.changes import FROM, OP, ORDINAL, POSITION, TO, digests, segment
from cdc_lake.silver.complete import any_of
from cdc_lake.silver.net_change import ORIGIN, ROW
from cdc_lake.silver.projecting import LEFT_TO
from cdc_lake.silver.row_events import TRUNCATE, Event, Key, Traced, Unit
from cdc_lake.silver.shape import Shape

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FAILED: Final = "_cdc_failed"
"""The conditions that a change fails by its values, an array of names."""

PARTIAL: Final = "_cdc_partial"
"""Whether a change needs a row that is there: it did not send every value."""

HELD: Final = "_cdc_held"
SEGMENT: Final = "_cdc_segment"
_WAITS: Final = "_cdc_waits"
_BROKE: Final = "_cdc_broke"
_DROPPED: Final = "_cdc_dropped"
_PLACE: Final = [POSITION, ORDINAL]
_TRACED: Final = pa.schema(
    [
        (POSITION, pa.int64()),
        (ORDINAL, pa.int64()),
        (ROW, pa.int64()),
        (ORIGIN, pa.list_(pa.string())),
        (HELD, pa.bool_()),
        (_WAITS, pa.bool_()),
        (_BROKE, pa.string()),
        (_DROPPED, pa.bool_()),
    ]
)


@dataclass(frozen=True)
class Sorted:
    """Changes sorted out. `free`: those to be folded, with `_cdc_row` and `_cdc_origin`; `held`: bronze's rows of the
    others, with the `rules` they break (none: they wait), `key` and `from_key`; None where there are none.
    """

    free: DataFrame
    held: pa.Table | None


def events(
    changes: DataFrame, keys: Iterable[Key] | None, seen: Outline, decided: Decided = NOTHING_DECIDED
) -> list[Event]:
    """The changes that touch one of `keys` (None: any), all truncates and what was decided, in order."""
    found = [Event(position, ordinal, TRUNCATE) for position, ordinal in seen.truncates]
    touching = _touching(changes, None if keys is None else frozenset(keys), seen.rereads)
    on = decisions_by_place(decided)
    for event in touching:
        row = on.get((event.position, event.ordinal))
        decides = None if row is None else place_of(row, ON)
        again = event.again or (row is not None and row["op"] == SNAPSHOT)
        found.append(event if row is None else replace(event, decides=decides, again=again))
    for (position, ordinal), row in on.items():
        if row["verb"] == DISCARD:
            of = place_of(row, ON)
            found.append(Event(position, ordinal, row["op"], decides=of, given_up=True))
    return sorted(found, key=lambda event: (event.position, event.ordinal))


def decisions_by_place(decided: Decided) -> dict[Place, dict[str, Any]]:
    """Decisions by the place where they come into force."""
    if decided.rows is None:
        return {}
    names = ["position", "ordinal", "verb", "op", "key", "from_key", *ON]
    return {place_of(row): row for row in decided.rows.select(names).to_pylist()}


def decided_keys(decided: Decided) -> frozenset[Key]:
    """The keys of the changes that decisions are on."""
    rows = decisions_by_place(decided).values()
    return frozenset(tuple(key) for row in rows for key in (row["key"], row["from_key"]) if key is not None)


def _touching(changes: DataFrame, keys: frozenset[Key] | None, rereads: Sequence[Reread]) -> list[Event]:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - DataFrames come from a session that has it

    if keys is not None and not keys:
        return []
    here = changes.columns
    told = {
        "failed": F.size(FAILED) > 0 if FAILED in here else F.lit(False),
        "partial": F.col(PARTIAL) if PARTIAL in here else F.lit(False),
        "left": F.col(LEFT_TO) if LEFT_TO in here else F.lit(None),
        "again": any_of([F.col(ORDINAL).between(one.first, one.last) for one in rereads]),
    }
    rows = changes.select(*_PLACE, OP, FROM, TO, *(column.alias(name) for name, column in told.items()))
    if keys is not None:
        rows = (
            rows.withColumn("_cdc_key", F.explode(F.array_distinct(F.array_compact(F.array(FROM, TO)))))
            .join(F.broadcast(key_frame(changes.sparkSession, keys)), "_cdc_key", "left_semi")
            .drop("_cdc_key")
            .dropDuplicates(_PLACE)
        )
    hit = rows.toArrow()
    columns = (hit[name].to_pylist() for name in (*_PLACE, OP, FROM, TO, *told))
    return [
        Event(p, o, op, _key(f), _key(t), failed=bad, partial=part, left_to=_key(left), again=again)
        for p, o, op, f, t, bad, part, left, again in zip(*columns, strict=True)
    ]


def with_digests(found: Sequence[Event], rows: DataFrame, shape: Shape, positions: frozenset[int]) -> list[Event]:
    """Events, those of the transactions at `positions` with their digests; `rows` are bronze's."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - DataFrames come from a session that has it

    wanted = [(e.position, e.ordinal) for e in found if e.position in positions and e.op != TRUNCATE and not e.given_up]
    named = dict(zip(("position", "ordinal"), zip(*wanted, strict=True), strict=True))
    places = rows.sparkSession.createDataFrame(pa.table(named))
    hit = rows.join(F.broadcast(places), list(named)).selectExpr(*named, *digests(shape)).toArrow()
    of = {(p, o): told for p, o, *told in zip(*(column.to_pylist() for column in hit.columns), strict=True)}
    nothing = (None, None)
    return [
        replace(event, old_digest=old, new_digest=new)
        for event in found
        for old, new in [of.get((event.position, event.ordinal), nothing)]
    ]


def keys_of(changes: DataFrame) -> frozenset[Key]:
    """The keys that changes touch."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    touched = changes.select(F.explode(F.array_compact(F.array(FROM, TO))).alias("key")).distinct().toArrow()
    return frozenset(tuple(key) for key in touched["key"].to_pylist())


def placed(changes: DataFrame, traced: Sequence[Traced], seen: Outline) -> DataFrame:
    """Changes with what became of them, NULL where they are not traced, and the number of truncates before them."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    table = pa.table(
        [
            pa.array((t.position for t in traced), pa.int64()),
            pa.array((t.ordinal for t in traced), pa.int64()),
            pa.array((t.row for t in traced), pa.int64()),
            pa.array((None if t.origin is None else list(t.origin) for t in traced), pa.list_(pa.string())),
            pa.array((t.held for t in traced), pa.bool_()),
            pa.array((t.waits for t in traced), pa.bool_()),
            pa.array((t.broke for t in traced), pa.string()),
            pa.array((t.dropped for t in traced), pa.bool_()),
        ],
        schema=_TRACED,
    )
    mapping = changes.sparkSession.createDataFrame(table)
    joined = changes.join(F.broadcast(mapping), _PLACE, "left")
    return joined.withColumn(SEGMENT, segment(seen.truncated))


def unplaced(changes: DataFrame) -> DataFrame:
    """What `placed` added taken away."""
    return changes.drop(ROW, ORIGIN, HELD, _WAITS, _BROKE, _DROPPED, SEGMENT)


def sorted_out(rows: DataFrame, changes: DataFrame, traced: Sequence[Traced], seen: Outline) -> Sorted:
    """Changes with `_cdc_failed`, sorted out by what tracing found; `rows` are bronze's of them."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    known = placed(changes, traced, seen)
    free = known.where(f"NOT coalesce({HELD} OR {_DROPPED}, false)")
    free = free.drop(FAILED, PARTIAL, HELD, _WAITS, _BROKE, _DROPPED, SEGMENT)
    if not any(t.held for t in traced):
        return Sorted(free, None)
    broken = F.when(F.col(_BROKE).isNull(), F.col(FAILED)).otherwise(F.array_append(FAILED, F.col(_BROKE)))
    rules = F.filter(broken, lambda _: ~F.col(_WAITS))
    return Sorted(free, with_rules(rows, known.where(HELD).withColumn(FAILED, rules)))


def with_rules(rows: DataFrame, changes: DataFrame) -> pa.Table:
    """Bronze's rows of changes, with the conditions they fail and their keys."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    place = ["position", "ordinal"]
    held = changes.select(
        F.col(POSITION).alias("position"),
        F.col(ORDINAL).alias("ordinal"),
        F.col(FAILED).alias("rules"),
        F.coalesce(*([LEFT_TO] if LEFT_TO in changes.columns else []), TO, FROM).alias("key"),
        F.col(FROM).alias("from_key"),
    )
    raw: list[Column] = [F.col(c) for c in ("op", "layout", "new", "old", "old_kind", "unchanged")]
    found = rows.select(*place, *raw).join(F.broadcast(held), place)
    return found.orderBy(*place).toArrow()


def of_units(changes: DataFrame, units: Iterable[Unit]) -> DataFrame:
    """The changes of these transactions, and of these decisions."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    positions, decided = zip(*sorted(units), strict=True)
    wanted = changes.sparkSession.createDataFrame(
        pa.table({POSITION: pa.array(positions, pa.int64()), "_cdc_decided": pa.array(decided, pa.bool_())})
    )
    told = F.col(ORDINAL)
    here = changes.where((told < CEILING) | (told >= 0)).withColumn("_cdc_decided", told < CEILING)
    return here.join(F.broadcast(wanted), [POSITION, "_cdc_decided"], "left_semi").drop("_cdc_decided")


def key_frame(spark: SparkSession, keys: Iterable[Key]) -> DataFrame:
    """Keys as rows of `_cdc_key`."""
    values = pa.array(([*key] for key in sorted(keys, key=repr)), pa.list_(pa.string()))
    return spark.createDataFrame(pa.table({"_cdc_key": values}))


def _key(value: list[str | None] | None) -> Key | None:
    return None if value is None else tuple(value)
