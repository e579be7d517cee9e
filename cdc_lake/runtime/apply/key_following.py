"""Follows changes of a span one by one on the driver, if keys move or are NULL, changes fail, or keys are held.

Only the changes that touch such keys are collected, as keys and order without values. The trace states for each of
them which row it belongs to and whether it is held, and is joined to the changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from cdc_lake.bronze.contract import SNAPSHOT
from cdc_lake.bronze.span_index import SpanSummary
from cdc_lake.config.project import Target
from cdc_lake.errors import TooManyFollowed
from cdc_lake.model.quarantine import CEILING, DISCARD, NOTHING_DECIDED, ON, Decided, Place, RefetchedRows, place_of
from cdc_lake.quality.rules import failed_names
from cdc_lake.runtime.apply.rule_gate import (
    UNJUDGED,
    KeyPart,
    SpanProfile,
    conditions,
    foreign,
    has_null,
    let_through,
    survey,
)
from cdc_lake.runtime.apply.schema_changes import copied_again
from cdc_lake.silver.changes import FROM, OP, ORDINAL, POSITION, TO, digests, known_column, segment
from cdc_lake.silver.kind import Kind, TablePart
from cdc_lake.silver.layout_mapping import RelationMapping
from cdc_lake.silver.net_change import ORIGIN, ROW, any_of, base_rows, complete_for_rules
from cdc_lake.silver.row_tracing import (
    TRUNCATE,
    Event,
    HoldRelease,
    Key,
    QuarantineState,
    TracedChange,
    Unit,
    find_shared_key_positions,
    trace,
    trace_content,
)
from cdc_lake.silver.transforms import LEFT_TO, Projection, fill_unchanged, moves
from cdc_lake.tables.spark_session import materialize

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


FAILED: Final = "_cdc_failed"
"""Names of the conditions that a change violates, an array."""

PARTIAL: Final = "_cdc_partial"
"""Whether a change requires an existing row, because it did not send every value."""

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
class PartitionedChanges:
    """Changes by their result. `free`: those to be folded, with `_cdc_row` and `_cdc_origin`; `quarantined`: bronze's
    rows of the others, with the violated `rules` (empty: queued), `key` and `from_key`; None if there are none.
    """

    free: DataFrame
    quarantined: pa.Table | None


def events(
    changes: DataFrame, keys: Iterable[Key] | None, summary: SpanSummary, decided: Decided = NOTHING_DECIDED
) -> list[Event]:
    """The changes that touch one of `keys` (None: any), all truncates and all decisions, in order."""
    result = [Event(position, ordinal, TRUNCATE) for position, ordinal in summary.truncates]
    touching = _touching(changes, None if keys is None else frozenset(keys), summary.rereads)
    on = decisions_by_place(decided)
    for event in touching:
        row = on.get((event.position, event.ordinal))
        decides = None if row is None else place_of(row, ON)
        again = event.again or (row is not None and row["op"] == SNAPSHOT)
        result.append(event if row is None else replace(event, decides=decides, again=again))
    for (position, ordinal), row in on.items():
        if row["verb"] == DISCARD:
            of = place_of(row, ON)
            result.append(Event(position, ordinal, row["op"], decides=of, given_up=True))
    return sorted(result, key=lambda event: (event.position, event.ordinal))


def decisions_by_place(decided: Decided) -> dict[Place, dict[str, Any]]:
    """Decisions by the place at which they take effect."""
    if decided.rows is None:
        return {}
    names = ["position", "ordinal", "verb", "op", "key", "from_key", *ON]
    return {place_of(row): row for row in decided.rows.select(names).to_pylist()}


def decided_keys(decided: Decided) -> frozenset[Key]:
    """The keys that decisions concern."""
    rows = decisions_by_place(decided).values()
    return frozenset(tuple(key) for row in rows for key in (row["key"], row["from_key"]) if key is not None)


def _touching(changes: DataFrame, keys: frozenset[Key] | None, rereads: Sequence[RefetchedRows]) -> list[Event]:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - DataFrames come from a session that has it

    if keys is not None and not keys:
        return []
    here = changes.columns
    flags = {
        "failed": F.size(FAILED) > 0 if FAILED in here else F.lit(False),
        "partial": F.col(PARTIAL) if PARTIAL in here else F.lit(False),
        "left": F.col(LEFT_TO) if LEFT_TO in here else F.lit(None),
        "again": any_of([F.col(ORDINAL).between(reread.first, reread.last) for reread in rereads]),
    }
    rows = changes.select(*_PLACE, OP, FROM, TO, *(column.alias(name) for name, column in flags.items()))
    if keys is not None:
        rows = (
            rows.withColumn("_cdc_key", F.explode(F.array_distinct(F.array_compact(F.array(FROM, TO)))))
            .join(F.broadcast(key_frame(changes.sparkSession, keys)), "_cdc_key", "left_semi")
            .drop("_cdc_key")
            .dropDuplicates(_PLACE)
        )
    hit = rows.toArrow()
    columns = (hit[name].to_pylist() for name in (*_PLACE, OP, FROM, TO, *flags))
    return [
        Event(p, o, op, _key(f), _key(t), failed=bad, partial=part, left_to=_key(left), again=again)
        for p, o, op, f, t, bad, part, left, again in zip(*columns, strict=True)
    ]


def with_digests(
    traced_events: Sequence[Event], rows: DataFrame, shape: RelationMapping, positions: frozenset[int]
) -> list[Event]:
    """Events; those of the transactions at `positions` with their digests. `rows` are those of bronze."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - DataFrames come from a session that has it

    wanted = [
        (e.position, e.ordinal)
        for e in traced_events
        if e.position in positions and e.op != TRUNCATE and not e.given_up
    ]
    named = dict(zip(("position", "ordinal"), zip(*wanted, strict=True), strict=True))
    places = rows.sparkSession.createDataFrame(pa.table(named))
    hit = rows.join(F.broadcast(places), list(named)).selectExpr(*named, *digests(shape)).toArrow()
    of = {(p, o): pair for p, o, *pair in zip(*(column.to_pylist() for column in hit.columns), strict=True)}
    nothing = (None, None)
    return [
        replace(event, old_digest=old, new_digest=new)
        for event in traced_events
        for old, new in [of.get((event.position, event.ordinal), nothing)]
    ]


def keys_of(changes: DataFrame) -> frozenset[Key]:
    """The keys that the changes touch."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    touched = changes.select(F.explode(F.array_compact(F.array(FROM, TO))).alias("key")).distinct().toArrow()
    return frozenset(tuple(key) for key in touched["key"].to_pylist())


def join_trace(changes: DataFrame, traced: Sequence[TracedChange], summary: SpanSummary) -> DataFrame:
    """Join changes with their trace (NULL if not traced) and the number of truncates before them."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    table = pa.table(
        [
            pa.array((t.position for t in traced), pa.int64()),
            pa.array((t.ordinal for t in traced), pa.int64()),
            pa.array((t.row for t in traced), pa.int64()),
            pa.array((None if t.origin is None else list(t.origin) for t in traced), pa.list_(pa.string())),
            pa.array((t.quarantined for t in traced), pa.bool_()),
            pa.array((t.waits for t in traced), pa.bool_()),
            pa.array((t.broke for t in traced), pa.string()),
            pa.array((t.dropped for t in traced), pa.bool_()),
        ],
        schema=_TRACED,
    )
    mapping = changes.sparkSession.createDataFrame(table)
    joined = changes.join(F.broadcast(mapping), _PLACE, "left")
    return joined.withColumn(SEGMENT, segment(summary.truncated))


def drop_trace(changes: DataFrame) -> DataFrame:
    """Remove the columns that `join_trace` added."""
    return changes.drop(ROW, ORIGIN, HELD, _WAITS, _BROKE, _DROPPED, SEGMENT)


def apply_trace(
    rows: DataFrame, changes: DataFrame, traced: Sequence[TracedChange], summary: SpanSummary
) -> PartitionedChanges:
    """Partition changes with `_cdc_failed` by their trace; `rows` are bronze's rows of them."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    traced_changes = join_trace(changes, traced, summary)
    free = traced_changes.where(f"NOT coalesce({HELD} OR {_DROPPED}, false)")
    free = free.drop(FAILED, PARTIAL, HELD, _WAITS, _BROKE, _DROPPED, SEGMENT)
    if not any(t.quarantined for t in traced):
        return PartitionedChanges(free, None)
    broken = F.when(F.col(_BROKE).isNull(), F.col(FAILED)).otherwise(F.array_append(FAILED, F.col(_BROKE)))
    rules = F.filter(broken, lambda _: ~F.col(_WAITS))
    return PartitionedChanges(free, with_rules(rows, traced_changes.where(HELD).withColumn(FAILED, rules)))


def with_rules(rows: DataFrame, changes: DataFrame) -> pa.Table:
    """Bronze's rows of changes, with the conditions they violate and their keys."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    place = ["position", "ordinal"]
    quarantined = changes.select(
        F.col(POSITION).alias("position"),
        F.col(ORDINAL).alias("ordinal"),
        F.col(FAILED).alias("rules"),
        F.coalesce(*([LEFT_TO] if LEFT_TO in changes.columns else []), TO, FROM).alias("key"),
        F.col(FROM).alias("from_key"),
    )
    raw: list[Column] = [F.col(c) for c in ("op", "layout", "new", "old", "old_kind", "unchanged")]
    joined = rows.select(*place, *raw).join(F.broadcast(quarantined), place)
    return joined.orderBy(*place).toArrow()


def of_units(changes: DataFrame, units: Iterable[Unit]) -> DataFrame:
    """The changes of these transactions and decisions."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    positions, decided = zip(*sorted(units), strict=True)
    wanted = changes.sparkSession.createDataFrame(
        pa.table({POSITION: pa.array(positions, pa.int64()), "_cdc_decided": pa.array(decided, pa.bool_())})
    )
    ordinal = F.col(ORDINAL)
    here = changes.where((ordinal < CEILING) | (ordinal >= 0)).withColumn("_cdc_decided", ordinal < CEILING)
    return here.join(F.broadcast(wanted), [POSITION, "_cdc_decided"], "left_semi").drop("_cdc_decided")


def key_frame(spark: SparkSession, keys: Iterable[Key]) -> DataFrame:
    """Keys as a DataFrame with the column `_cdc_key`."""
    values = pa.array(([*key] for key in sorted(keys, key=repr)), pa.list_(pa.string()))
    return spark.createDataFrame(pa.table({"_cdc_key": values}))


def _key(value: list[str | None] | None) -> Key | None:
    return None if value is None else tuple(value)


FOLLOWED_AT_MOST = 500_000
"""Changes that are followed one by one in the driver's Python: 1.2 GiB (measured). Spans end before that many; only a
single transaction may have more."""


@dataclass(frozen=True)
class TableChanges:
    """A table's changes in a span, with silver's types in the source's columns.

    Attributes:
        rows: Bronze's rows of `changes`, among them what decisions release.
        changes: Those that silver takes.
        unfiltered: The same before the filter.
        target: Silver's live rows before the span, in the source's columns; None if they are irrelevant.
        live: The same in silver's columns.
        table: The silver table.
        kind: Its kind.
        part: The columns, and which of them some change did not send.
        summary: Summary of the span.
        quarantine: Quarantine before the span.
        recorded_keys: Keys as the quarantine recorded them → current keys.
        projection: From the source's columns to silver's.
        key_parts: How the table is partitioned by its key.
        decided: Decisions that take effect in the span.
        quarantined_units: Transactions that are held as a whole.
    """

    rows: DataFrame
    changes: DataFrame
    unfiltered: DataFrame
    target: DataFrame | None
    live: DataFrame | None
    table: Target
    kind: Kind
    part: TablePart
    summary: SpanSummary
    quarantine: QuarantineState
    recorded_keys: Mapping[Key, Key]
    projection: Projection
    key_parts: tuple[KeyPart, ...] = ()
    decided: Decided = NOTHING_DECIDED
    quarantined_units: frozenset[Unit] = frozenset()

    @property
    def is_filtered(self) -> bool:
        """Whether silver omits rows of the source."""
        return self.projection.where is not None

    @property
    def holds_missing(self) -> bool:
        """Whether changes of rows that silver lacks are held; not with a filter, which keeps rows out of silver."""
        return self.table.missing_row != "stop" and not self.is_filtered

    @property
    def known_keys(self) -> frozenset[Key]:
        """Keys that are always followed."""
        return self.quarantine.apart | decided_keys(self.decided)

    @property
    def needed_unsent(self) -> frozenset[int]:
        """Columns that silver depends on and some change did not send."""
        return self.part.unsent & self.projection.used


@dataclass(frozen=True)
class EvaluatedChanges:
    """Changes after the rules.

    Attributes:
        changes: What was evaluated.
        free: The changes to apply; with `followed` they have `_cdc_row` and `_cdc_origin`.
        quarantined: Bronze's rows of quarantined changes, None if there are none (`PartitionedChanges`).
        closings: What ended holds: truncates, and rows that were read again.
        profile: Counts of the rules.
        followed: Whether changes were followed one by one.
    """

    changes: TableChanges
    free: DataFrame
    quarantined: pa.Table | None
    closings: tuple[HoldRelease, ...]
    profile: SpanProfile
    followed: bool = False


def follow(span: TableChanges, profile: SpanProfile, others: frozenset[Key]) -> EvaluatedChanges:
    """Follow changes of rows that a key identifies, as far as necessary. `others`: keys besides those surveyed."""
    changes, table, part, summary = span.changes, span.table, span.part, span.summary
    source = span.unfiltered if profile.lacking else changes
    moved = profile.moved or (profile.lacking and span.is_filtered)
    uncertain = (_moving_keys(source) if moved else frozenset()) | others
    uncertain |= _null_keys(source) if profile.nulls else frozenset()
    uncertain |= span.known_keys
    check_few(len(uncertain) // 2, table)  # rows that a filter excludes move too
    existing = _existing(span, uncertain)
    if profile.lacking:
        # A filter may depend on unknown values, so rows are followed as the source has them.
        first_events = _told_apart(span, events(source, uncertain, summary), existing)
        first, _ = trace(first_events, existing=existing, filtered=span.is_filtered)
        needed = {
            column for c in conditions(table, part, span.projection) for column in c.columns if column in part.unsent
        }
        changes = complete_for_rules(join_trace(source, first, summary), span.target, part.shape, sorted(needed))
        if span.projection.transforms.any:
            changes = fill_unchanged(changes, span.projection, needed, foreign(table, span.projection))
        # Cached: it is used five times, and each time would cost windows and a join with the target.
        changes = materialize(drop_trace(changes))
    judge = conditions(table, part, span.projection, completed=bool(profile.lacking))
    profile = survey(changes, table, part, judge, summary) if profile.lacking else profile
    changes = changes.withColumn(FAILED, failed_names(judge))
    waiting = (keys_of(changes.where(f"size({FAILED}) > 0")) if profile.failing else frozenset()) | span.quarantine.keys
    if span.quarantined_units:
        waiting |= keys_of(of_units(changes, span.quarantined_units))
    if span.holds_missing or span.is_filtered or summary.rereads:
        existing |= _existing(span, waiting - uncertain)
    if span.holds_missing or span.quarantine.apart or span.decided:
        changes = changes.withColumn(PARTIAL, _partial(span))
    followed = _told_apart(span, events(changes, uncertain | waiting, summary, span.decided), existing)
    traced, closings = trace(
        followed,
        existing=existing,
        quarantined=span.quarantine,
        filtered=span.is_filtered,
        holds_missing=span.holds_missing,
        whole_units=span.quarantined_units,
    )
    partitioned = apply_trace(span.rows, changes, traced, summary)
    return EvaluatedChanges(span, partitioned.free, partitioned.quarantined, tuple(closings), profile, followed=True)


def _told_apart(span: TableChanges, followed: list[Event], existing: frozenset[Key]) -> list[Event]:
    """Events with what distinguishes several rows of one key, if the server logs whole rows."""
    positions = find_shared_key_positions(followed, existing) if span.summary.by_whole else frozenset()
    return with_digests(followed, span.rows, span.part.shape, positions) if positions else followed


def check_few(many: int, table: Target) -> None:
    """Raise TooManyFollowed if more changes would have to be followed than the driver can take."""
    if many > FOLLOWED_AT_MOST:
        text = (
            f"{many:,} changes of {table.source} update a key or are held; at most {FOLLOWED_AT_MOST:,} can be "
            "followed at a time"
        )
        hint = f"{TooManyFollowed.identity_hint}; otherwise {copied_again(table)}"
        raise TooManyFollowed(text, where=table.label, hint=hint)


def follow_content(span: TableChanges) -> EvaluatedChanges:
    """Follow changes of rows that only their content identifies, as far as necessary."""
    part, summary, judge = span.part, span.summary, conditions(span.table, span.part, span.projection)
    profile = survey(span.changes, span.table, part, judge, summary) if judge else UNJUDGED
    if not (profile.failing or span.quarantine or span.decided):
        return EvaluatedChanges(span, span.changes, None, (), profile)
    changes = span.changes.withColumn(FAILED, failed_names(judge))
    keys = keys_of(changes.where(f"size({FAILED}) > 0")) if profile.failing else frozenset()
    keys |= span.quarantine.keys | span.known_keys
    followed = events(changes, keys | _moving_keys(changes), summary, span.decided)
    traced, closings = trace_content(followed, span.quarantine)
    partitioned = apply_trace(span.rows, changes, traced, summary)
    return EvaluatedChanges(span, partitioned.free, partitioned.quarantined, tuple(closings), profile)


def without_failing(span: TableChanges) -> EvaluatedChanges:
    """Partition changes without following: those that fail are held, and none is queued."""
    judge = conditions(span.table, span.part, span.projection, deletes=True)
    profile = survey(span.changes, span.table, span.part, judge, span.summary) if judge else UNJUDGED
    if not (profile.failing or span.decided):
        return EvaluatedChanges(span, span.changes, None, (), profile)
    judged = span.changes.withColumn(FAILED, failed_names(judge))
    if span.decided:
        judged = _without_void(judged, span)
    quarantined = with_rules(span.rows, judged.where(f"size({FAILED}) > 0"))
    return EvaluatedChanges(span, judged.where(f"size({FAILED}) = 0").drop(FAILED), quarantined, (), profile)


def _without_void(judged: DataFrame, span: TableChanges) -> DataFrame:
    """Changes without released ones that have no effect: the change itself was applied."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - DataFrames come from a session that has it

    failing = judged.where(f"size({FAILED}) > 0").select(POSITION, ORDINAL).toArrow()
    waits = {
        *span.quarantine.quarantined,
        *zip(failing[POSITION].to_pylist(), failing[ORDINAL].to_pylist(), strict=True),
    }
    on = decisions_by_place(span.decided)
    made_changes = [
        F.struct(F.lit(position).alias(POSITION), F.lit(ordinal).alias(ORDINAL))
        for (position, ordinal), row in on.items()
        if place_of(row, ON) in waits
    ]
    return judged.where(~let_through() | any_of([F.struct(POSITION, ORDINAL) == change for change in made_changes]))


def missing_keys(span: TableChanges) -> frozenset[Key]:
    """Keys of updates with unchanged values for which silver has no row. Only tracing shows whether an earlier change
    of the span inserts one.
    """
    if not span.holds_missing or not span.needed_unsent:
        return frozenset()
    partial = span.changes.where(_partial(span)).selectExpr(f"{FROM} AS _cdc_base").distinct()
    if span.target is not None and not span.part.truncated:
        present = base_rows(partial, span.target, span.part.shape, ()).select("_cdc_base")
        partial = partial.join(present, "_cdc_base", "left_anti")
    return frozenset(tuple(key) for key in partial.toArrow()["_cdc_base"].to_pylist())


def taken_keys(span: TableChanges) -> frozenset[Key]:
    """Keys that two rows had at once until one left later in the same transaction: only tracing shows which row a
    delete concerns.

    A server allows this if it checks the key at the end of a transaction. Such a key cannot be the replica identity, so
    deletes of the table contain whole rows.
    """
    from pyspark.sql import Window  # noqa: PLC0415 - DataFrames come from a session that has it
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    if not (span.summary.whole_deletes and span.summary.inserts):
        return frozenset()
    changes = span.changes.select(OP, POSITION, ORDINAL, F.coalesce(TO, FROM).alias("_cdc_base"))
    comes, goes = (F.when(F.col(OP) == op, F.col(ORDINAL)) for op in ("I", "D"))
    by_transaction = changes.groupBy("_cdc_base", POSITION).agg(F.min(comes).alias("comes"), F.max(goes).alias("goes"))
    both = by_transaction.where("comes < goes").select("_cdc_base").distinct()
    before = F.lag(OP).over(Window.partitionBy("_cdc_base").orderBy(POSITION, ORDINAL))
    arrivals = changes.join(both, "_cdc_base", "left_semi").withColumn("before", before).where(F.col(OP) == "I")
    occupied = arrivals.where("before <> 'D'").select("_cdc_base")
    if span.target is not None:
        first = arrivals.where("before IS NULL").select("_cdc_base").distinct()
        occupied = occupied.unionByName(base_rows(first, span.target, span.part.shape, ()).select("_cdc_base"))
    return frozenset(tuple(key) for key in occupied.distinct().toArrow()["_cdc_base"].to_pylist())


def _partial(span: TableChanges) -> Column:
    """Updates that omit a value that silver needs."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - DataFrames come from a session that has it

    return (F.col(OP) == "U") & any_of([~F.col(known_column(column)) for column in sorted(span.needed_unsent)])


def _moving_keys(changes: DataFrame) -> frozenset[Key]:
    return keys_of(changes.where(moves(changes)))


def _null_keys(changes: DataFrame) -> frozenset[Key]:
    """Keys with a NULL part: only tracing shows whether two rows have one."""
    return frozenset(key for key in keys_of(changes.where(has_null())) if None in key)


def _existing(span: TableChanges, keys: frozenset[Key]) -> frozenset[Key]:
    """Those of the keys that silver has; needed if keys move, have been shared, or rows may be missing."""
    if not keys or span.target is None:
        return frozenset()
    bases = key_frame(span.rows.sparkSession, keys).withColumnRenamed("_cdc_key", "_cdc_base")
    rows = base_rows(bases, span.target, span.part.shape, ()).select("_cdc_base").toArrow()
    return frozenset(tuple(key) for key in rows["_cdc_base"].to_pylist())
