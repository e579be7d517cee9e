"""Merging: a prepared span of a table is written in one commit that carries its position."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc_lake.lake.frames import viewed
from cdc_lake.lake.store import SilverColumn
from cdc_lake.lake.written import Written, written
from cdc_lake.pipeline.applying.strategy import Strategy, choose
from cdc_lake.pipeline.applying.table_span import Prepared
from cdc_lake.pipeline.target.layout_changes import held_as
from cdc_lake.silver.kind import RowIdentity

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_VIEW = "cdc_lake_net"
_OVERWRITE = Strategy("overwrite", sent=False)
_APPEND = Strategy("append", sent=False)


@dataclass(frozen=True, slots=True)
class Merged:
    """What became of it: the table's new version, how it was written, what that took, and how long."""

    version: int
    strategy: Strategy
    written: Written
    seconds: float


def merge(spark: SparkSession, prepared: Prepared) -> Merged:
    """Merge a prepared span; `spark` is used for nothing else meanwhile. Raises TableChangedMeanwhile."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the receiver shares this package and has no Spark

    began, job, net = time.monotonic(), prepared.job, prepared.folded.net
    strategy = strategy_of(prepared)
    with viewed(F.broadcast(net) if strategy.sent else net, _VIEW):
        if strategy is _OVERWRITE and (columns := _other_columns(prepared)):
            base, query = prepared.base, prepared.kind.first(_VIEW, prepared.shape)
            version = prepared.store.replace(job.stream, base, base.generation, job.span.upto, columns, query)
        else:
            version = prepared.store.commit(
                job.stream, prepared.base, job.span.upto, lambda table: _run(spark, table, prepared, strategy)
            )
    return Merged(version, strategy, written(job.project, job.target, version), time.monotonic() - began)


def strategy_of(prepared: Prepared) -> Strategy:
    """How a prepared span is written."""
    job, folded = prepared.job, prepared.folded
    if job.first:
        return _OVERWRITE
    if prepared.kind.identity is RowIdentity.PLACE:
        return _APPEND
    return choose(job.project, job.target, prepared.base, folded.part, prepared.seen, folded.survey, job.size)


def _other_columns(prepared: Prepared) -> tuple[SilverColumn, ...]:
    """The columns of a table's first content where the table that is there, of an earlier stream, has others."""
    have, wanted = set(prepared.store.columns() or ()), prepared.kind.columns(prepared.shape)
    fits = {SilverColumn(column.name, held_as(column.type)) for column in wanted} | set(wanted)
    return () if have <= fits and len(have) == len(wanted) else tuple(wanted)


def _run(spark: SparkSession, table: str, prepared: Prepared, strategy: Strategy) -> None:
    kind, part = prepared.kind, prepared.folded.part
    match strategy.way:
        case "overwrite":
            statement = f"INSERT OVERWRITE {table} BY NAME {kind.first(_VIEW, prepared.shape)}"
        case "append":
            statement = kind.appended(table, _VIEW, part)
        case "merge":
            statement = kind.statement(table, _VIEW, part, strategy.within)
    spark.sql(statement)
