"""One table's part of a span: read, judged, folded, merged.

`prepare` does everything that can be done without writing rows and says what it found; `merge` writes. Between the two
the caller knows of every table whether a `stop` rule failed, so a span ends before that transaction for all of them.

The common span has no failing change, no hold and no moving key, and is folded by key in one pass. Otherwise the few
changes that touch such keys are followed one by one (`silver.lineage`) and the rest still is folded by key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from cdc_lake.bronze.files import Files
from cdc_lake.bronze.nearby import as_they_are
from cdc_lake.bronze.outline import Outline, outline, span_files
from cdc_lake.config.project import Project, Target
from cdc_lake.errors import KeylessDelete
from cdc_lake.lake.control import ControlTables
from cdc_lake.lake.marker import Marker
from cdc_lake.lake.store import SilverColumn, SilverStore, store
from cdc_lake.model.relation import Relation
from cdc_lake.model.span import Span
from cdc_lake.pipeline.follow import follow
from cdc_lake.pipeline.judge import Survey, conditions, survey
from cdc_lake.pipeline.redaction_change import check_unchanged
from cdc_lake.quality.gate import RuleCount
from cdc_lake.silver.changes import behind, read_changes, typed
from cdc_lake.silver.complete import complete_moved
from cdc_lake.silver.lineage import Closing, Key
from cdc_lake.silver.merge import merge_sql, overwrite_sql
from cdc_lake.silver.net_change import net_change, settle
from cdc_lake.silver.shape import Shape, check_evolution, make_shape
from cdc_lake.source.stream import shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_VIEW = "cdc_lake_net"

BROADCAST_CHANGES = 500_000
"""Up to this many changes the net change is sent to every task: no shuffle of the target (measured: 1.7 times)."""


@dataclass(frozen=True)
class TableJob:
    """What to prepare: a table's changes in `span`, or the rows of its snapshot at the span's end, then with the layout
    they follow. `held`: keys with open holds. `near`: where Spark reads data files.
    """

    project: Project
    target: Target
    stream: str
    span: Span
    files: Files
    layouts: Mapping[int, Relation]
    held: frozenset[Key]
    layout: int | None = None
    near: Callable[[Files, Sequence[str]], list[str]] = as_they_are

    @property
    def snapshot(self) -> bool:
        """Whether this is the table's first content."""
        return self.layout is not None


@dataclass(frozen=True)
class Folded:
    """What a table's span amounts to. `net` as `silver.net_change` describes it, `unsent` the columns it may not know;
    `held` the changes to be recorded as held, None where there are none; `closings` the truncates that ended holds.
    """

    net: DataFrame
    unsent: frozenset[int]
    survey: Survey
    held: pa.Table | None
    closings: tuple[Closing, ...]


@dataclass(frozen=True)
class Prepared:
    """A table's span, ready to be merged."""

    job: TableJob
    shape: Shape
    store: SilverStore
    base: Marker
    seen: Outline
    folded: Folded

    @property
    def counts(self) -> tuple[RuleCount, ...]:
        """How the rules fared."""
        return self.folded.survey.counts

    @property
    def stop(self) -> tuple[int, str] | None:
        """Position of the first transaction that fails a `stop` rule, and the rule's name."""
        return self.folded.survey.stop


def prepare(spark: SparkSession, job: TableJob) -> Prepared | None:
    """Read and judge a table's span; None where nothing of it is there. `spark` is used for nothing else meanwhile."""
    table, span, snapshot = job.target.source, job.span, job.snapshot
    seen = outline(job.files, table, span, snapshot=snapshot)
    if seen.rows == 0:
        if job.layout is not None:
            # The source's table was empty: so is silver, but it is there.
            evolve(
                store(spark, job.project, job.target),
                make_shape((job.layout,), job.layouts, job.target.keys).columns,
                job.target,
            )
        return None
    shape = make_shape(seen.layouts, job.layouts, job.target.keys)
    check_unchanged(ControlTables(job.project.control).configurations(), table, span)
    if seen.nameless is not None:
        at = shown(job.stream, seen.nameless)
        raise KeylessDelete(f"a delete of {table} at {at} does not say which row went")
    silver = store(spark, job.project, job.target)
    evolve(silver, shape.columns, job.target)
    base = silver.marker(job.stream)
    paths = job.near(job.files, span_files(job.files, table, span, snapshot=snapshot))
    rows = read_changes(spark, paths, table, span, snapshot=snapshot)
    target = None if base.version is None else spark.table(silver.name)
    return Prepared(job, shape, silver, base, seen, fold(rows, target, job.target, shape, seen, job.held))


def fold(
    rows: DataFrame, target: DataFrame | None, table: Target, shape: Shape, seen: Outline, held: frozenset[Key]
) -> Folded:
    """The net change of bronze's rows of a table. `target` is silver before it, None: empty; `held`: keys that wait."""
    unsent = unsent_columns(seen, shape)
    changes = typed(rows, shape, unsent)
    found = survey(changes, table, shape, conditions(table, shape, unsent), seen)
    if found.plain and not held:
        net = net_change(after_truncates(changes, seen), shape, unsent, traced=False)
        return Folded(net, unsent, found, None, ())
    followed = follow(rows, changes, target, table, shape, unsent, seen, held, found)
    by_row = net_change(after_truncates(followed.free, seen), shape, unsent, traced=True)
    if unsent and target is not None:
        by_row = complete_moved(by_row, target, shape, unsent)
    return Folded(settle(by_row, shape, unsent), unsent, followed.survey, followed.held, followed.closings)


def merge(spark: SparkSession, prepared: Prepared) -> int:
    """Merge a prepared span in one commit that carries its position; the table's new version."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the receiver shares this package and has no Spark

    job, shape, folded = prepared.job, prepared.shape, prepared.folded
    small = prepared.seen.rows <= BROADCAST_CHANGES and not job.snapshot

    def work(table: str) -> None:
        if job.snapshot:
            statement = overwrite_sql(table, _VIEW, shape)
        else:
            truncate, bounds = bool(prepared.seen.truncates), folded.survey.bounds
            statement = merge_sql(table, _VIEW, shape, folded.unsent, truncate=truncate, bounds=bounds)
        (F.broadcast(folded.net) if small else folded.net).createOrReplaceTempView(_VIEW)
        try:
            spark.sql(statement)
        finally:
            spark.catalog.dropTempView(_VIEW)

    return prepared.store.commit(job.stream, prepared.base, job.span.upto, work)


def evolve(silver: SilverStore, columns: Sequence[SilverColumn], target: Target) -> None:
    """Make the silver table, or add the columns it lacks. Raises DestructiveChange for anything else."""
    have = silver.columns()
    if have is None:
        silver.create(columns)
    elif missing := check_evolution(have, columns, target.label):
        silver.add(missing)


def unsent_columns(seen: Outline, shape: Shape) -> frozenset[int]:
    """The positions, in the newest layout, of columns that some change did not send."""
    names = {shape.layouts[layout].names[at] for layout, places in seen.unchanged.items() for at in places}
    return frozenset(at for at, name in enumerate(shape.relation.names) if name in names)


def after_truncates(changes: DataFrame, seen: Outline) -> DataFrame:
    """The changes behind the last truncate: what was before it is gone."""
    return changes.where(behind(*seen.truncates[-1])) if seen.truncates else changes
