"""Maintains bronze and silver, previews it, and upgrades a lake of an older version.

Retention first, then compaction, then orphan files. Bronze keeps what silver has not merged and, with
`bronze.retention.rebuilds`, what a rebuild of silver needs; if forced, it reports what is lost. In silver these stay
readable: versions of the last `silver.maintenance.keep_versions`, those of pinned cuts (`control.cuts`), and those of
the newest cut. Apply may run concurrently: of two conflicting commits one fails, changes nothing and is retried.

Older schemas of control tables are readable, so an upgrade is never urgent; other readers see complete tables only
after it. A lake of a newer version is refused. Silver tables need no upgrade: the next run changes what a new version
needs.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from cdc_lake.bronze import compaction
from cdc_lake.bronze.compaction import Group, MaintainedTable, Trim, plan
from cdc_lake.bronze.contract import CONTRACT_VERSION, StreamCheckpoint
from cdc_lake.bronze.open import bronze_reader, bronze_table, decoded_transactions
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.config.project import Project, Target
from cdc_lake.control.coordination import apply_lease
from cdc_lake.control.cuts import Cut, kept_versions, last_cut
from cdc_lake.control.ownership import Ownership
from cdc_lake.errors import CdcLakeError, LakeError, NoStream
from cdc_lake.model.diagnostic import pluralize
from cdc_lake.model.position import END, Span
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import ProgressEvent, ProgressReporter, silent
from cdc_lake.source.base import format_stream_position
from cdc_lake.tables import control_schema
from cdc_lake.tables.control_tables import control_tables
from cdc_lake.tables.maintenance import Keep, MaintenanceStep, silver_upkeep
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.orphan_files import OrphanFiles
from cdc_lake.tables.spark_session import derive, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class TableUpkeep:
    """What was, or would be, done to a table. `kept`: versions that stay regardless of their age."""

    table: str
    format: str
    steps: tuple[MaintenanceStep, ...]
    kept: int


def maintain_silver(
    project: Project,
    state: StreamCheckpoint,
    *,
    dry_run: bool,
    now: datetime,
    report: ProgressReporter,
    spark: SparkSession | None = None,
) -> tuple[TableUpkeep, ...]:
    """Maintain the tables of the newest cut one after the other; a failure does not affect the others.

    Starts Spark if there is a table and no session is given. Raises SilverBusy and other failures after all tables were
    tried; JavaMissing, SparkMissing, SparkNotStarted.
    """
    control = control_tables(project)
    cut = last_cut(control, state.stream)
    targets = [project.target(TableName.parse(relation)) for relation in sorted(cut.tables)] if cut else []
    targets = [target for target in targets if table_log(project, target).exists()]
    if not targets:
        return ()
    versions = kept_versions(control, now)
    since = now - timedelta(milliseconds=project.pipeline.silver.maintenance.keep_versions)
    if spark is None:
        report(ProgressEvent("maintain", "starting Spark"))
    spark = start(project, spark, log=project.lake / "logs" / "maintain.log")
    results: list[TableUpkeep] = []
    failed: list[CdcLakeError] = []
    ownership = Ownership(project)
    for target in targets:
        if (refusal := ownership.refusal(target)) is not None:
            failed.append(refusal)
            continue
        keep = Keep(versions.get(str(target.source), frozenset()), since)
        steps: list[MaintenanceStep] = []
        try:
            for step in _steps(derive(spark), project, target, keep, now, dry_run=dry_run):
                facts = {"table": target.label, **step.facts}
                report(ProgressEvent("maintain", f"{target.label}: {step.text}", facts=facts))
                steps.append(step)
        except CdcLakeError as failure:
            failed.append(failure)
        results.append(TableUpkeep(target.label, target.format, tuple(steps), len(keep.versions)))
    if failed:
        raise failed[0]
    return tuple(results)


def _steps(
    spark: SparkSession, project: Project, target: Target, keep: Keep, now: datetime, *, dry_run: bool
) -> Iterator[MaintenanceStep]:
    """A table's steps, with Spark's exceptions converted to this package's."""
    upkeep = silver_upkeep(spark, project, target)
    steps = upkeep.plan_steps(keep, now) if dry_run else upkeep.run_steps(keep, now)
    try:
        yield from (replace(step, facts={"part": step.part, **step.facts}) for step in steps)
    except CdcLakeError:
        raise
    except Exception as cause:
        raise LakeError(f"maintenance of {target.label} failed: {type(cause).__name__}", where=target.label) from cause


_TOGETHER = 2  # minimum of adjacent files that the command merges: it runs rarely


@dataclass(frozen=True, slots=True)
class Step:
    """One maintenance action: a description, and figures."""

    kind: str  # retention, compaction, removal
    text: str
    facts: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Maintenance:
    """What was, or would be, done. `steps`, `files`: of bronze; `lost`: what `--force` gives up; `kept`: what limits
    the retention. `silver`: its tables, None if omitted.
    """

    pipeline: str
    bronze: str
    done: bool
    files: int
    steps: tuple[Step, ...]
    kept: str = ""
    lost: tuple[str, ...] = ()
    silver: tuple[TableUpkeep, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Floor:
    """Epoch and position up to which transactions may be removed, the limiting reason, and what is given up."""

    epoch: int
    position: int
    why: str = ""
    lost: tuple[str, ...] = ()


def maintain(
    project: Project,
    *,
    dry_run: bool = False,
    force: bool = False,
    only: str | None = None,
    report: ProgressReporter = silent,
    started_at: datetime | None = None,
    spark: SparkSession | None = None,
) -> Maintenance:
    """Maintain bronze and silver, or `only` one of them, or preview it.

    Without Spark on this machine silver is omitted, unless `only` requests it; `spark`: the session of the platform,
    otherwise one is started. Raises NoStream, BronzeBusy, SilverBusy, LakeError.
    """
    table, reader, now = bronze_table(project), bronze_reader(project), started_at or datetime.now(UTC)
    state = reader.state()
    if state is None or not table.refresh():
        raise NoStream("bronze contains no stream yet: there is nothing to maintain", where=table.place)
    result = Maintenance(project.name, table.place, not dry_run, len(table.files().paths), ())
    if only != "silver":
        result = _bronze(project, table, reader, state, now, dry_run=dry_run, force=force, report=report)
    # A machine that only receives has no Spark.
    if only == "silver" or (only is None and find_spec("pyspark") is not None):
        kept_up = maintain_silver(project, state, dry_run=dry_run, now=now, report=report, spark=spark)
        result = replace(result, silver=kept_up)
    return result


def _bronze(
    project: Project,
    table: MaintainedTable,
    reader: BronzeReader,
    state: StreamCheckpoint,
    now: datetime,
    *,
    dry_run: bool,
    force: bool,
    report: ProgressReporter,
) -> Maintenance:
    floor = _floor(project, reader, state, force=force)
    trim, retention = None, project.pipeline.bronze.retention
    if retention is not None:
        landed_before = now - timedelta(milliseconds=retention.min_age)
        trim = compaction.trimmable(table.files(), (floor.epoch, floor.position), landed_before)
    lost = floor.lost if trim is not None and force else ()
    steps: list[Step] = []
    work = _plan_steps(project, table, state, trim, now) if dry_run else _run_steps(project, table, state, trim, now)
    for step in work:
        report(ProgressEvent("maintain", step.text, facts={"part": step.kind, **step.facts}))
        steps.append(step)
    table.refresh()
    files = len(table.files().paths)
    return Maintenance(project.name, table.place, not dry_run, files, tuple(steps), floor.why, lost)


def _plan_steps(
    project: Project, table: MaintainedTable, state: StreamCheckpoint, trim: Trim | None, now: datetime
) -> Iterator[Step]:
    if trim is not None:
        yield _retention(trim, state, "would leave")
    if groups := plan(table.files(), _TOGETHER, ignore_tiers=True):
        yield _compaction(groups, "would become")
    keep = project.pipeline.bronze.maintenance.keep_replaced / 1000
    yield from _removal(table.leftovers(now.timestamp(), keep), "would be removed")
    for folder in _copies(project):
        yield Step("removal", f"{folder}, copies of bronze that version 0.4 left, would be removed")


def _run_steps(
    project: Project, table: MaintainedTable, state: StreamCheckpoint, trim: Trim | None, now: datetime
) -> Iterator[Step]:
    compaction.prepare(table)
    if trim is not None and compaction.trim(table, trim):
        yield _retention(trim, state, "left")
    yield from _forgotten(project, table)
    if groups := compaction.compact(table, _TOGETHER, ignore_tiers=True):
        yield _compaction(groups, "became")
    keep = project.pipeline.bronze.maintenance.keep_replaced / 1000
    yield from _removal(compaction.tidy(table, keep, now.timestamp()), "removed")
    for folder in _copies(project):
        shutil.rmtree(folder)
        yield Step("removal", f"{folder}, copies of bronze that version 0.4 left, removed")


def _copies(project: Project) -> list[Path]:
    """Folders in which runs of 0.4 kept copies of a bronze in an object store; a killed run left them."""
    folders = (project.scratch.with_name(f"{project.name}{of}") for of in ("", ".rebuilt-from"))
    return [folder for folder in folders if folder.is_dir()]


def _forgotten(project: Project, table: MaintainedTable) -> Iterator[Step]:
    """Remove the decoded rows of expired undecodable transactions."""
    table.refresh()
    keeper = decoded_transactions(project)
    spent = keeper.expired_rows(table.last_trimmed(), table.files())
    if spent:
        keeper.forget(spent)
        text = f"{pluralize(len(spent), 'transaction')} that were decoded later were removed with their rows in bronze"
        yield Step("retention", text, {"decoded_later": len(spent)})


def _floor(project: Project, reader: BronzeReader, state: StreamCheckpoint, *, force: bool) -> _Floor:
    """The limit of the retention."""
    retention = project.pipeline.bronze.retention
    if retention is None:
        return _Floor(0, -1)
    cut = last_cut(control_tables(project), state.stream)
    if force:
        return _Floor(state.epoch, state.upto, lost=tuple(_losses(reader, state, cut)))
    if cut is None:
        return _Floor(0, -1, "silver has not taken over the latest stream yet, so nothing is removed")
    if retention.rebuilds:
        return _Floor(state.epoch - 1, END, "the latest stream is kept complete, so that silver can be rebuilt from it")
    slowest = min(cut.tables.items(), key=lambda item: item[1].position, default=None)
    if slowest is None or slowest[1].position >= cut.position:
        return _Floor(state.epoch, cut.position, f"silver is at {format_stream_position(state.stream, cut.position)}")
    name, table = slowest
    return _Floor(state.epoch, table.position, f"{name} is at {format_stream_position(state.stream, table.position)}")


def _losses(reader: BronzeReader, state: StreamCheckpoint, cut: Cut | None) -> Iterator[str]:
    yield "silver cannot be rebuilt from bronze"
    if cut is None:
        yield "silver was never loaded from this stream: it needs a new copy"
        return
    applied = cut.position
    if applied < state.upto and (waiting := reader.commits(Span(state.epoch, applied, state.upto))):
        position = format_stream_position(state.stream, applied)
        yield f"up to {pluralize(len(waiting), 'transaction')} after {position} that silver does not contain"
    for relation, table in sorted(cut.tables.items()):
        if table.position < applied:
            since = format_stream_position(state.stream, table.position)
            yield f"changes of {relation} from {since} on that {table.table} ({table.state}) does not contain"


def _retention(trim: Trim, state: StreamCheckpoint, verb: str) -> Step:
    position = format_stream_position(state.stream, trim.position) if trim.epoch == state.epoch else str(trim.position)
    text = (
        f"{pluralize(trim.rows, 'row')} up to {position} of epoch {trim.epoch} {verb} "
        f"({pluralize(len(trim.paths), 'file')})"
    )
    facts = {"rows": trim.rows, "files": len(trim.paths), "bytes": trim.size}
    return Step("retention", text, {**facts, "epoch": trim.epoch, "upto": trim.position})


def _compaction(groups: list[Group], verb: str) -> Step:
    files, size = sum(len(group.paths) for group in groups), sum(group.size for group in groups)
    facts: dict[str, object] = {"files": files, "into": len(groups), "bytes": size}
    return Step("compaction", f"{pluralize(files, 'file')} {verb} {len(groups):,}", facts)


def _removal(orphans: OrphanFiles | None, verb: str) -> Iterator[Step]:
    if orphans is not None and (orphans.entries or orphans.files):
        entries, files = len(orphans.entries), len(orphans.files)
        facts: dict[str, object] = {"log_entries": entries, "files": files, "bytes": orphans.size}
        log = f"{entries:,} log {'entry' if entries == 1 else 'entries'}"
        yield Step("removal", f"{log} and {pluralize(files, 'file')} that are no longer needed {verb}", facts)


@dataclass(frozen=True, slots=True)
class UpgradedTable:
    """A table of the lake: its version, this program's, and the descriptions of the upgrades."""

    table: str
    version: int
    to: int
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The upgrades; `done`: they were carried out."""

    pipeline: str
    done: bool
    tables: tuple[UpgradedTable, ...]

    @property
    def pending(self) -> tuple[UpgradedTable, ...]:
        """The tables that need, or needed, an upgrade."""
        return tuple(table for table in self.tables if table.steps)


def upgrade(project: Project, *, yes: bool = False) -> Upgrade:
    """The upgrades, carried out with `yes`, while apply is stopped. Missing tables are skipped.

    Nothing is changed if one table is newer than this version. Raises BronzeUnknown, ControlNewer, AnotherApply,
    ControlNotWritten; a repeated call continues an interrupted one.
    """
    upgrade_plan = _plan_upgrade(project)
    if yes and upgrade_plan.pending:
        control = control_tables(project)
        with apply_lease(project):
            for name in get_args(control_schema.ControlName):
                if any(table.table == _label(name) for table in upgrade_plan.pending):
                    control_schema.bring(control.place(name), name)
    return Upgrade(upgrade_plan.pipeline, yes, upgrade_plan.tables)


def _plan_upgrade(project: Project) -> Upgrade:
    tables = []
    if bronze_table(project).refresh():  # refuses a newer contract
        tables.append(UpgradedTable("bronze", CONTRACT_VERSION, CONTRACT_VERSION, ()))
    control = control_tables(project)
    for name in get_args(control_schema.ControlName):
        place = control.place(name)
        table = place.open()
        if table is None:
            continue
        version = control_schema.version_of(table)
        control_schema.check_version(version, name, place.name)
        tables.append(
            UpgradedTable(
                _label(name), version, control_schema.CONTROL_VERSION, control_schema.needed_upgrades(table, name)
            )
        )
    return Upgrade(project.name, done=False, tables=tuple(tables))


def _label(name: str) -> str:
    return f"control/{name}"
