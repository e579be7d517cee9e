"""One table's part of a span, in four steps: read its changes, evaluate rules, fold them, plan the MERGE.

`prepare` does everything that can be done without writing rows; `runtime.apply.merge` writes. Between them the caller
knows for every table whether a `stop` rule failed, so a span ends before that transaction for all of them.

A typical span has no failing change, no quarantined key and no moving key, and is folded by key in one pass. Otherwise
the few changes that touch such keys are followed one by one (`silver.row_tracing`), and the rest is folded by key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, assert_never

import pyarrow as pa

from cdc_lake.bronze.span_index import SpanSummary, span_files
from cdc_lake.config.project import Target
from cdc_lake.errors import RuleStopped
from cdc_lake.model.position import Span
from cdc_lake.model.quarantine import NOTHING_DECIDED, Decided
from cdc_lake.quality.rules import RuleCount
from cdc_lake.runtime.apply import key_following
from cdc_lake.runtime.apply.rule_gate import KeyPart, SpanProfile, conditions, key_parts, survey
from cdc_lake.runtime.apply.span_planning import TableTask
from cdc_lake.runtime.apply.table_schema import ResolvedTable, resolve_table
from cdc_lake.silver import transforms
from cdc_lake.silver.changes import cast_rows, read_changes
from cdc_lake.silver.kind import Kind, RowIdentity, TablePart
from cdc_lake.silver.kinds import live_rows
from cdc_lake.silver.layout_mapping import RelationMapping
from cdc_lake.silver.row_tracing import HoldRelease, Key, QuarantineState, Unit
from cdc_lake.source.base import format_stream_position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


ONE_TASK = 20_000
"""Up to this many changes are read, evaluated and folded in one task, which needs no exchange and fewer stages."""
_ONE_TASK_FILES = 32  # opening one takes some milliseconds


@dataclass(frozen=True)
class FoldedSpan:
    """The result of folding a table's span.

    `net`: as the table's kind describes it; `part`: from what it was folded; `quarantined`: changes to be recorded as
    such, None if there are none; `closings`: what ended holds; `changes`: what was folded, in the source's columns.
    """

    changes: DataFrame
    net: DataFrame
    part: TablePart
    profile: SpanProfile
    quarantined: pa.Table | None
    closings: tuple[HoldRelease, ...]


@dataclass(frozen=True)
class MergePlan(ResolvedTable):
    """A table's span, ready to be merged."""

    folded: FoldedSpan

    @property
    def shape(self) -> RelationMapping:
        """Silver's columns."""
        return self.projection.silver

    @property
    def counts(self) -> tuple[RuleCount, ...]:
        """Counts of the rules."""
        return self.folded.profile.counts

    @property
    def stop(self) -> tuple[int, str] | None:
        """Position of the first transaction that violates a `stop` rule, and the rule's name."""
        return self.folded.profile.stop


def prepare(spark: SparkSession, task: TableTask) -> MergePlan | None:
    """Do everything of a table's span that precedes its MERGE; meanwhile `spark` is used for nothing else.

    Returns:
        None if there is nothing to merge.

    Raises:
        CdcLakeError: The table cannot continue.
    """
    table = resolve_table(spark, task)
    if table is None:
        return None
    changes = read_table_changes(spark, table)
    folded = fold(evaluate_rules(changes))
    return MergePlan(task, table.summary, table.kind, table.projection, table.silver, table.base, folded)


def read_table_changes(spark: SparkSession, table: ResolvedTable) -> key_following.TableChanges:
    """The changes of a table's span, typed, and silver's live rows."""
    task, summary, kind = table.task, table.summary, table.kind
    chosen = span_files(task.files, task.target.source, task.span, snapshot=task.snapshot)
    rows = read_changes(
        spark,
        task.files.for_spark(chosen),
        task.target.source,
        task.span,
        snapshot=task.snapshot,
        inside=task.files.is_within_span(chosen, task.span),
        truncates=kind.identity is RowIdentity.PLACE,
        rereads=task.rereads,
        released=task.decided.released_rows,
    )
    if summary.rows <= ONE_TASK and len(chosen) <= _ONE_TASK_FILES:
        rows = rows.coalesce(1)
    # a copy replaces all rows: silver's former rows have no part in it
    live = None if table.base.version is None or task.first else live_rows(kind, spark.table(table.silver.name))
    return type_changes(
        rows,
        live,
        task.target,
        kind,
        table.projection,
        summary,
        task.span,
        task.quarantine,
        parts=key_parts(task.project, task.target, table.projection.source),
        decided=task.decided,
        quarantined_units=task.quarantined_units,
    )


def type_changes(
    rows: DataFrame,
    live: DataFrame | None,
    target: Target,
    kind: Kind,
    projection: transforms.Projection | RelationMapping,
    summary: SpanSummary,
    span: Span,
    quarantine: QuarantineState,
    *,
    parts: Sequence[KeyPart] = (),
    decided: Decided = NOTHING_DECIDED,
    quarantined_units: frozenset[Unit] = frozenset(),
) -> key_following.TableChanges:
    """Convert bronze's rows of a table to changes with silver's types.

    Args:
        rows: As bronze has them.
        live: Silver's live rows before the span; None if they are irrelevant.
        target: The silver table.
        kind: Its kind.
        projection: From the source's columns to silver's, or the source's columns where silver has the same.
        summary: Summary of the span.
        span: The span.
        quarantine: Quarantine before the span.
        parts: How the table is partitioned by its key.
        decided: Decisions that take effect in the span; `rows` includes what they release.
        quarantined_units: Transactions that are held as a whole.
    """
    projection = transforms.plain(projection) if isinstance(projection, RelationMapping) else projection
    shape = projection.source
    recorded = {key: shape.recorded_key(key) for key in quarantine.keys | quarantine.apart} if shape.keys else {}
    quarantine = quarantine.rename_keys(recorded)
    decided = decided.rename_keys(shape.recorded_key) if shape.keys else decided
    unsent = unsent_columns(summary, shape)
    typed = cast_rows(rows, shape, unsent, transforms.old_values(projection))
    by_place = kind.identity is RowIdentity.PLACE
    return key_following.TableChanges(
        rows=rows,
        changes=transforms.concerning(typed, projection) if by_place else transforms.filter_changes(typed, projection),
        unfiltered=typed,
        target=None if live is None else projection.to_source_columns(live),
        live=live,
        table=target,
        kind=kind,
        part=TablePart(shape, unsent, summary.truncated, span, released=decided.released_rows is not None),
        summary=summary,
        quarantine=quarantine,
        recorded_keys=recorded,
        projection=projection,
        key_parts=tuple(parts),
        decided=decided,
        quarantined_units=quarantined_units,
    )


def unsent_columns(summary: SpanSummary, shape: RelationMapping) -> frozenset[int]:
    """The positions, in the newest layout, of columns that some change did not send."""
    unsent = {(layout, place) for layout, places in summary.unchanged.items() for place in places}
    return frozenset(
        index
        for layout, places in shape.places.items()
        for index, place in enumerate(places)
        if (layout, place) in unsent
    )


def evaluate_rules(changes: key_following.TableChanges) -> key_following.EvaluatedChanges:
    """Count how the rules fare, and separate changes to apply from held ones; follow changes if necessary."""
    match changes.kind.identity:
        case RowIdentity.KEY:
            rules = conditions(changes.table, changes.part, changes.projection)
            profile = survey(changes.changes, changes.table, changes.part, rules, changes.summary, changes.key_parts)
            others = key_following.missing_keys(changes) | key_following.taken_keys(changes)
            waits = changes.quarantine or others or changes.decided or changes.quarantined_units
            key_following.check_few(profile.moved + profile.nulls + profile.failing + len(others), changes.table)
            if profile.plain and not waits:
                return key_following.EvaluatedChanges(changes, changes.changes, None, (), profile)
            return key_following.follow(changes, profile, others)
        case RowIdentity.CONTENT:
            return key_following.follow_content(changes)
        case RowIdentity.PLACE:
            return key_following.without_failing(changes)
        case other:
            assert_never(other)


def fold(evaluated: key_following.EvaluatedChanges) -> FoldedSpan:
    """Fold the changes to apply into the net change of each row, as the table's kind describes it."""
    changes = evaluated.changes
    projection, unsent, kind = changes.projection, changes.part.unsent, changes.kind
    if kind.identity is RowIdentity.PLACE:
        free, lacking = transforms.projected_changes(evaluated.free, projection, unsent), unsent
    else:
        free, lacking = transforms.project_columns(evaluated.free, projection, unsent)
    part = TablePart(projection.silver, lacking, changes.summary.truncated, changes.part.span)
    net = kind.net(free, changes.live, part, traced=evaluated.followed)
    closings = _as_recorded(evaluated.closings, changes.recorded_keys)
    return FoldedSpan(changes.changes, net, part, evaluated.profile, evaluated.quarantined, closings)


def _as_recorded(closings: Sequence[HoldRelease], recorded: Mapping[Key, Key]) -> tuple[HoldRelease, ...]:
    """Hold releases with all recorded texts of their keys, of which a value may have several."""
    others = [
        replace(closing, key=before)
        for closing in closings
        for before, now in recorded.items()
        if before != now == closing.key
    ]
    return (*closings, *others)


def stopped_by_rule(stops: Sequence[MergePlan], verb: str = "run") -> RuleStopped:
    """The error for the first change that a `stop` rule refuses: the rule, the table, and how to inspect the change."""
    first = min(
        (first for first in stops if first.stop is not None), key=lambda first: (first.stop, first.task.target.label)
    )
    assert first.stop is not None, "it is one that stops"
    (position, rule), table, label = first.stop, first.task.target.source, first.task.target.label
    position_text = format_stream_position(first.task.stream, position)
    if first.task.snapshot:
        what, advice = f"a row of the copy of {table}", f"look up the rows in {table}: {RuleStopped.hint}"
    else:
        what = f"a change of {table} in the transaction at {position_text}"
        advice = f"`cdc-lake inspect tx {position_text}` shows it, with its key; then {RuleStopped.hint}"
    return RuleStopped(f"rule `{rule}` of {label} stops the {verb}: {what} violates it", where=label, hint=advice)
