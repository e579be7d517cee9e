"""Maintain, silver's part: every table of the newest cut is kept up, or what that would be is said.

What stays readable: versions of the last `silver.maintenance.keep_versions`, and for as long as they are promised those
of promised cuts (`pipeline.state.promises`); in any case what the newest cut names. Apply may go on meanwhile: where
both commit, one of them loses, changes nothing and does it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING

from cdc_lake.bronze.port import BronzeState
from cdc_lake.config.project import Project, Target
from cdc_lake.errors import CdcLakeError, LakeError
from cdc_lake.lake.control import control_tables
from cdc_lake.lake.read import silver_exists
from cdc_lake.lake.session import derive, start
from cdc_lake.lake.silver_upkeep import Keep, Upkept, silver_upkeep
from cdc_lake.model.relation import TableName
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.state.cuts import last_cut
from cdc_lake.pipeline.state.ownership import Ownership
from cdc_lake.pipeline.state.promises import kept_versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class TableUpkeep:
    """What was done to a table, or would be. `kept`: versions that stay whatever their age."""

    table: str
    format: str
    steps: tuple[Upkept, ...]
    kept: int


def spark_is_here() -> bool:
    """Whether Spark is installed: on the machine of a receiver alone it is not."""
    return find_spec("pyspark") is not None


def maintain_silver(
    project: Project,
    state: BronzeState,
    *,
    dry_run: bool,
    now: datetime,
    tell: Tell,
    spark: SparkSession | None = None,
) -> tuple[TableUpkeep, ...]:
    """Keep the tables of the newest cut up, one after the other; those that fail do not keep the others from it.

    Starts Spark where there is a table and none is given. Raises SilverBusy and what else kept a table from it, when
    all have had their turn; JavaMissing, SparkMissing, SparkNotStarted.
    """
    control = control_tables(project)
    cut = last_cut(control, state.stream)
    targets = [project.target(TableName.parse(relation)) for relation in sorted(cut.tables)] if cut else []
    targets = [target for target in targets if silver_exists(project, target)]
    if not targets:
        return ()
    kept = kept_versions(control, now)
    since = now - timedelta(milliseconds=project.pipeline.silver.maintenance.keep_versions)
    if spark is None:
        tell(Progress("maintain", "starting Spark"))
        spark = start(project, log=project.lake / "logs" / "maintain.log")
    done: list[TableUpkeep] = []
    failed: list[CdcLakeError] = []
    ownership = Ownership(project)
    for target in targets:
        if (refusal := ownership.refusal(target)) is not None:
            failed.append(refusal)
            continue
        keep = Keep(kept.get(str(target.source), frozenset()), since)
        steps: list[Upkept] = []
        try:
            for step in _steps(derive(spark), project, target, keep, now, dry_run=dry_run):
                tell(Progress("maintain", f"{target.label}: {step.text}", facts={"table": target.label, **step.facts}))
                steps.append(step)
        except CdcLakeError as failure:
            failed.append(failure)
        done.append(TableUpkeep(target.label, target.format, tuple(steps), len(keep.versions)))
    if failed:
        raise failed[0]
    return tuple(done)


def _steps(
    spark: SparkSession, project: Project, target: Target, keep: Keep, now: datetime, *, dry_run: bool
) -> Iterator[Upkept]:
    """A table's steps, with what Spark raises in the terms of this package."""
    upkeep = silver_upkeep(spark, project, target)
    steps = upkeep.planned(keep, now) if dry_run else upkeep.worked(keep, now)
    try:
        yield from (replace(step, facts={"part": step.part, **step.facts}) for step in steps)
    except CdcLakeError:
        raise
    except Exception as cause:
        raise LakeError(f"{target.label} could not be kept up: {type(cause).__name__}", where=target.label) from cause
