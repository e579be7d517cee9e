"""Following: the span of a table in which keys move or are NULL, changes fail, or keys are held.

Only the changes that touch such keys are brought to the driver, as keys and order without values, and traced one by
one. What comes back says of each which row it belongs to and whether it is held.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from cdc_lake.bronze.outline import Outline
from cdc_lake.config.project import Target
from cdc_lake.errors import TooManyFollowed
from cdc_lake.model.decision import NOTHING_DECIDED, ON, Decided, place_of
from cdc_lake.pipeline.applying.evolve import copied_again
from cdc_lake.pipeline.applying.judge import UNJUDGED, Survey, conditions, foreign, has_null, let_through, survey
from cdc_lake.pipeline.applying.tracing import (
    FAILED,
    PARTIAL,
    decided_keys,
    decisions_by_place,
    events,
    key_frame,
    keys_of,
    of_units,
    placed,
    sorted_out,
    unplaced,
    with_digests,
    with_rules,
)
from cdc_lake.quality.gate import failed_names
from cdc_lake.silver.changes import FROM, OP, ORDINAL, POSITION, TO, known
from cdc_lake.silver.complete import any_of, base_rows, complete_for_rules
from cdc_lake.silver.holding import Waiting
from cdc_lake.silver.kind import TablePart
from cdc_lake.silver.lineage import crowded, trace, trace_content
from cdc_lake.silver.projecting import filled, moves
from cdc_lake.silver.projection import Projection
from cdc_lake.silver.row_events import Closing, Event, Key, Unit

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FOLLOWED_AT_MOST = 500_000
"""Changes that are followed one by one, by their keys and in the driver's Python: 1.2 GiB (measured). Spans are closed
before; only one transaction may hold more."""


@dataclass(frozen=True)
class Followed:
    """`free` and `held`: as `tracing.Sorted` has them. `closings`: truncates that ended holds."""

    free: DataFrame
    held: pa.Table | None
    closings: tuple[Closing, ...]
    survey: Survey


@dataclass(frozen=True)
class TableChanges:
    """What is to be followed. `rows`: bronze's rows of `changes`; `unfiltered`: these before a filter left any out;
    `target`: silver's live rows before, None: nothing; `held`: what waits. All have the columns of the source
    (`silver.projection.Projection.back`). `decided`: the decisions that come into force, among `rows` what they let
    through. `whole`: what is held as a whole.
    """

    rows: DataFrame
    changes: DataFrame
    unfiltered: DataFrame
    target: DataFrame | None
    table: Target
    part: TablePart
    seen: Outline
    held: Waiting
    projection: Projection
    decided: Decided = NOTHING_DECIDED
    whole: frozenset[Unit] = frozenset()

    @property
    def filtered(self) -> bool:
        """Whether the source has rows that silver does not."""
        return self.projection.where is not None

    @property
    def holds_missing(self) -> bool:
        """Whether changes of rows that silver lacks are held for that; a filter keeps rows out of silver itself."""
        return self.table.missing_row != "stop" and not self.filtered

    @property
    def known_keys(self) -> frozenset[Key]:
        """Keys that are followed whatever the changes are."""
        return self.held.apart | decided_keys(self.decided)

    @property
    def needed_unsent(self) -> frozenset[int]:
        """Columns that some change did not send and that silver depends on."""
        return self.part.unsent & self.projection.used


def follow(span: TableChanges, found: Survey, others: frozenset[Key]) -> Followed:
    """Follow what must be followed, of rows that a key identifies. `others`: keys that the survey knows nothing of."""
    changes, table, part, seen = span.changes, span.table, span.part, span.seen
    source = span.unfiltered if found.lacking else changes
    moved = found.moved or (found.lacking and span.filtered)
    uncertain = (_moving_keys(source) if moved else frozenset()) | others
    uncertain |= _null_keys(source) if found.nulls else frozenset()
    uncertain |= span.known_keys
    check_few(len(uncertain) // 2, table)  # what a filter leaves out moves too
    existing = _existing(span, uncertain)
    if found.lacking:
        # Values that are not known decide what a filter leaves out, so rows are followed as the source has them.
        told = _told_apart(span, events(source, uncertain, seen), existing)
        first, _ = trace(told, existing=existing, filtered=span.filtered)
        needed = {at for c in conditions(table, part, span.projection) for at in c.columns if at in part.unsent}
        changes = complete_for_rules(placed(source, first, seen), span.target, part.shape, sorted(needed))
        if span.projection.transforms.any:
            changes = filled(changes, span.projection, needed, foreign(table, span.projection))
        # Kept by the executors: it is asked five times, and each time would cost windows and a join with the target.
        changes = unplaced(changes).localCheckpoint()
    judge = conditions(table, part, span.projection, completed=bool(found.lacking))
    found = survey(changes, table, part, judge, seen) if found.lacking else found
    changes = changes.withColumn(FAILED, failed_names(judge))
    waiting = (keys_of(changes.where(f"size({FAILED}) > 0")) if found.failing else frozenset()) | span.held.keys
    if span.whole:
        waiting |= keys_of(of_units(changes, span.whole))
    if span.holds_missing or span.filtered or seen.rereads:
        existing |= _existing(span, waiting - uncertain)
    if span.holds_missing or span.held.apart or span.decided:
        changes = changes.withColumn(PARTIAL, _partial(span))
    followed = _told_apart(span, events(changes, uncertain | waiting, seen, span.decided), existing)
    traced, closings = trace(
        followed,
        existing=existing,
        held=span.held,
        filtered=span.filtered,
        holds_missing=span.holds_missing,
        whole=span.whole,
    )
    done = sorted_out(span.rows, changes, traced, seen)
    return Followed(done.free, done.held, tuple(closings), found)


def _told_apart(span: TableChanges, followed: list[Event], existing: frozenset[Key]) -> list[Event]:
    """Events with what tells which of several rows at a key they are of, as far as the server logs whole rows."""
    positions = crowded(followed, existing) if span.seen.by_whole else frozenset()
    return with_digests(followed, span.rows, span.part.shape, positions) if positions else followed


def check_few(many: int, table: Target) -> None:
    """Raise TooManyFollowed where more changes would have to be followed than the driver takes."""
    if many > FOLLOWED_AT_MOST:
        text = (
            f"{many:,} changes of {table.source} move a key or are held; {FOLLOWED_AT_MOST:,} can be followed at a time"
        )
        raise TooManyFollowed(text, where=table.label, hint=f"{TooManyFollowed.given}; or else {copied_again(table)}")


def follow_content(span: TableChanges) -> Followed:
    """Follow what must be followed, of rows that nothing but their content identifies."""
    part, seen, judge = span.part, span.seen, conditions(span.table, span.part, span.projection)
    found = survey(span.changes, span.table, part, judge, seen) if judge else UNJUDGED
    if not (found.failing or span.held or span.decided):
        return Followed(span.changes, None, (), found)
    changes = span.changes.withColumn(FAILED, failed_names(judge))
    keys = (
        (keys_of(changes.where(f"size({FAILED}) > 0")) if found.failing else frozenset())
        | span.held.keys
        | span.known_keys
    )
    followed = events(changes, keys | _moving_keys(changes), seen, span.decided)
    traced, closings = trace_content(followed, span.held)
    done = sorted_out(span.rows, changes, traced, seen)
    return Followed(done.free, done.held, tuple(closings), found)


def without_failing(span: TableChanges) -> Followed:
    """Changes that nothing refers to: those that do not fail, and the others. None waits."""
    judge = conditions(span.table, span.part, span.projection, deletes=True)
    found = survey(span.changes, span.table, span.part, judge, span.seen) if judge else UNJUDGED
    if not (found.failing or span.decided):
        return Followed(span.changes, None, (), found)
    judged = span.changes.withColumn(FAILED, failed_names(judge))
    if span.decided:
        judged = _without_void(judged, span)
    held = with_rules(span.rows, judged.where(f"size({FAILED}) > 0"))
    return Followed(judged.where(f"size({FAILED}) = 0").drop(FAILED), held, (), found)


def _without_void(judged: DataFrame, span: TableChanges) -> DataFrame:
    """Changes without those that were let through and that nothing keeps: the change itself was made."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - DataFrames come from a session that has it

    kept = judged.where(f"size({FAILED}) > 0").select(POSITION, ORDINAL).toArrow()
    waits = {*span.held.held, *zip(kept[POSITION].to_pylist(), kept[ORDINAL].to_pylist(), strict=True)}
    on = decisions_by_place(span.decided)
    made = [
        F.struct(F.lit(position).alias(POSITION), F.lit(ordinal).alias(ORDINAL))
        for (position, ordinal), row in on.items()
        if place_of(row, ON) in waits
    ]
    return judged.where(~let_through() | any_of([F.struct(POSITION, ORDINAL) == one for one in made]))


def missing_keys(span: TableChanges) -> frozenset[Key]:
    """Keys of updates that did not send every value, where silver has no row: whether the span itself brings one
    before, only tracing tells.
    """
    if not span.holds_missing or not span.needed_unsent:
        return frozenset()
    partial = span.changes.where(_partial(span)).selectExpr(f"{FROM} AS _cdc_base").distinct()
    if span.target is not None and not span.part.truncated:
        there = base_rows(partial, span.target, span.part.shape, ()).select("_cdc_base")
        partial = partial.join(there, "_cdc_base", "left_anti")
    return frozenset(tuple(key) for key in partial.toArrow()["_cdc_base"].to_pylist())


def taken_keys(span: TableChanges) -> frozenset[Key]:
    """Keys that a new row came to while another one had them, and that one of the two left later in the same
    transaction: only tracing tells which of them a delete is of.

    A server allows that where a key is checked at the end of a transaction. Such a key is no replica identity, so the
    deletes of its table name whole rows.
    """
    from pyspark.sql import Window  # noqa: PLC0415 - DataFrames come from a session that has it
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    if not (span.seen.whole_deletes and span.seen.inserts):
        return frozenset()
    changes = span.changes.select(OP, POSITION, ORDINAL, F.coalesce(TO, FROM).alias("_cdc_base"))
    comes, goes = (F.when(F.col(OP) == op, F.col(ORDINAL)) for op in ("I", "D"))
    by_transaction = changes.groupBy("_cdc_base", POSITION).agg(F.min(comes).alias("comes"), F.max(goes).alias("goes"))
    both = by_transaction.where("comes < goes").select("_cdc_base").distinct()
    before = F.lag(OP).over(Window.partitionBy("_cdc_base").orderBy(POSITION, ORDINAL))
    arrivals = changes.join(both, "_cdc_base", "left_semi").withColumn("before", before).where(F.col(OP) == "I")
    taken = arrivals.where("before <> 'D'").select("_cdc_base")
    if span.target is not None:
        first = arrivals.where("before IS NULL").select("_cdc_base").distinct()
        taken = taken.unionByName(base_rows(first, span.target, span.part.shape, ()).select("_cdc_base"))
    return frozenset(tuple(key) for key in taken.distinct().toArrow()["_cdc_base"].to_pylist())


def _partial(span: TableChanges) -> Column:
    """Updates that leave out a value that silver needs."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - DataFrames come from a session that has it

    return (F.col(OP) == "U") & any_of([~F.col(known(at)) for at in sorted(span.needed_unsent)])


def _moving_keys(changes: DataFrame) -> frozenset[Key]:
    return keys_of(changes.where(moves(changes)))


def _null_keys(changes: DataFrame) -> frozenset[Key]:
    """Keys with a part that is NULL: only tracing tells whether two rows have one."""
    return frozenset(key for key in keys_of(changes.where(has_null())) if None in key)


def _existing(span: TableChanges, keys: frozenset[Key]) -> frozenset[Key]:
    """Which of the keys silver has: it matters where keys move, who had one first, and where rows may be missing."""
    if not keys or span.target is None:
        return frozenset()
    bases = key_frame(span.rows.sparkSession, keys).withColumnRenamed("_cdc_key", "_cdc_base")
    found = base_rows(bases, span.target, span.part.shape, ()).select("_cdc_base").toArrow()
    return frozenset(tuple(key) for key in found["_cdc_base"].to_pylist())
