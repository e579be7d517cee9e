"""Maintain: what would be done to bronze and to silver, and doing it.

Retention first, then compaction, then what nobody needs any more. Nothing leaves that silver has not merged, nor,
where `bronze.retention.rebuilds` says so, what silver could be built again from; forced, it says what is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cdc_lake.bronze import upkeep
from cdc_lake.bronze.compaction import Group, plan
from cdc_lake.bronze.open import bronze_reader, bronze_table, decoded
from cdc_lake.bronze.port import BronzeState
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.upkeep import MaintainedTable, Trim
from cdc_lake.config.project import Project
from cdc_lake.errors import NoStream
from cdc_lake.lake.control import control_tables
from cdc_lake.model.counting import counted
from cdc_lake.model.span import Span
from cdc_lake.observe.progress import Progress, Tell, silent
from cdc_lake.pipeline.maintain_silver import TableUpkeep, maintain_silver, spark_is_here
from cdc_lake.pipeline.state.cuts import Cut, last_cut
from cdc_lake.source.stream import shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_END = (1 << 63) - 1
_TOGETHER = 2  # files in a row that the command puts together: it is not called often


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that is done, in words and in numbers."""

    kind: str  # retention, compaction, removal
    text: str
    facts: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Maintenance:
    """What was done, or would be. `steps`, `files`: of bronze; `lost`: what `--force` gives up; `kept`: why retention
    stops where it does. `silver`: its tables, None where they were left out.
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
    """Epoch and position up to which transactions may leave, why not further, and what is given up."""

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
    tell: Tell = silent,
    at: datetime | None = None,
    spark: SparkSession | None = None,
) -> Maintenance:
    """Keep bronze and silver up, or `only` one of them, or say what that would be.

    Without Spark on this machine silver is left out, unless it is asked for by `only`; `spark`: the session of a
    platform that brings its own, otherwise one is started. Raises NoStream, BronzeBusy, SilverBusy, LakeError.
    """
    table, reader, now = bronze_table(project), bronze_reader(project), at or datetime.now(UTC)
    state = reader.state()
    if state is None or not table.look():
        raise NoStream("bronze holds no stream yet: there is nothing to maintain", where=table.place)
    done = Maintenance(project.name, table.place, not dry_run, len(table.files().paths), ())
    if only != "silver":
        done = _bronze(project, table, reader, state, now, dry_run=dry_run, force=force, tell=tell)
    if only == "silver" or (only is None and spark_is_here()):
        kept_up = maintain_silver(project, state, dry_run=dry_run, now=now, tell=tell, spark=spark)
        done = replace(done, silver=kept_up)
    return done


def _bronze(
    project: Project,
    table: MaintainedTable,
    reader: BronzeReader,
    state: BronzeState,
    now: datetime,
    *,
    dry_run: bool,
    force: bool,
    tell: Tell,
) -> Maintenance:
    floor = _floor(project, reader, state, force=force)
    trim = _trim(project, table, floor, now)
    lost = floor.lost if trim is not None and force else ()
    steps: list[Step] = []
    work = _planned(project, table, state, trim, now) if dry_run else _worked(project, table, state, trim, now)
    for step in work:
        tell(Progress("maintain", step.text, facts={"part": step.kind, **step.facts}))
        steps.append(step)
    table.look()
    kept = floor.why if project.pipeline.bronze.retention is not None else ""
    files = len(table.files().paths)
    return Maintenance(project.name, table.place, not dry_run, files, tuple(steps), kept, lost)


def _planned(
    project: Project, table: MaintainedTable, state: BronzeState, trim: Trim | None, now: datetime
) -> Iterator[Step]:
    if trim is not None:
        yield _retention(trim, state, "would leave")
    if groups := plan(table.files(), _TOGETHER, whole=True):
        yield _compaction(groups, "would become")
    found = table.leftovers(now.timestamp(), project.pipeline.bronze.maintenance.keep_replaced / 1000)
    if found is not None and (found.entries or found.files):
        yield _removal(len(found.entries), len(found.files), found.size, "would be removed")


def _worked(
    project: Project, table: MaintainedTable, state: BronzeState, trim: Trim | None, now: datetime
) -> Iterator[Step]:
    upkeep.prepare(table)
    if trim is not None and upkeep.trim(table, trim):
        yield _retention(trim, state, "left")
    yield from _forgotten(project, table)
    if groups := upkeep.compact(table, _TOGETHER, whole=True):
        yield _compaction(groups, "became")
    keep = project.pipeline.bronze.maintenance.keep_replaced / 1000
    found = upkeep.tidy(table, keep, now.timestamp())
    if found is not None and (found.entries or found.files):
        yield _removal(len(found.entries), len(found.files), found.size, "removed")


def _forgotten(project: Project, table: MaintainedTable) -> Iterator[Step]:
    """What undecodable transactions turned out to be goes with them."""
    table.look()
    keeper = decoded(project)
    spent = keeper.spent(table.trimmed(), table.files())
    if spent:
        keeper.forget(spent)
        text = f"{counted(len(spent), 'transaction')} that were decoded later left with their rows in bronze"
        yield Step("retention", text, {"decoded_later": len(spent)})


def _floor(project: Project, reader: BronzeReader, state: BronzeState, *, force: bool) -> _Floor:
    """How far retention may go."""
    retention = project.pipeline.bronze.retention
    if retention is None:
        return _Floor(0, -1)
    cut = last_cut(control_tables(project), state.stream)
    if force:
        return _Floor(state.epoch, state.upto, lost=tuple(_losses(reader, state, cut)))
    if cut is None:
        return _Floor(0, -1, "silver has not taken over the newest stream yet, so everything stays")
    if retention.rebuilds:
        return _Floor(state.epoch - 1, _END, "the newest stream stays whole, so that silver can be built again from it")
    slowest = min(cut.tables.items(), key=lambda item: item[1].position, default=None)
    if slowest is None or slowest[1].position >= cut.position:
        return _Floor(state.epoch, cut.position, f"silver stands at {shown(state.stream, cut.position)}")
    name, table = slowest
    return _Floor(state.epoch, table.position, f"{name} stands at {shown(state.stream, table.position)}")


def _losses(reader: BronzeReader, state: BronzeState, cut: Cut | None) -> Iterator[str]:
    yield "silver cannot be built again from bronze"
    if cut is None:
        yield "silver was never loaded from this stream: it needs a new copy"
        return
    applied = cut.position
    if applied < state.upto and (waiting := reader.commits(Span(state.epoch, applied, state.upto))):
        at = shown(state.stream, applied)
        yield f"up to {counted(len(waiting), 'transaction')} behind {at} that silver does not have"
    for relation, table in sorted(cut.tables.items()):
        if table.position < applied:
            since = shown(state.stream, table.position)
            yield f"what {table.table} ({table.state}) does not have of {relation} from {since} on"


def _trim(project: Project, table: MaintainedTable, floor: _Floor, now: datetime) -> Trim | None:
    retention = project.pipeline.bronze.retention
    if retention is None:
        return None
    landed_before = now - timedelta(milliseconds=retention.min_age)
    return upkeep.trimmable(table.files(), (floor.epoch, floor.position), landed_before)


def _retention(trim: Trim, state: BronzeState, verb: str) -> Step:
    at = shown(state.stream, trim.position) if trim.epoch == state.epoch else str(trim.position)
    text = f"{counted(trim.rows, 'row')} up to {at} of epoch {trim.epoch} {verb} ({counted(len(trim.paths), 'file')})"
    facts = {"rows": trim.rows, "files": len(trim.paths), "bytes": trim.size}
    return Step("retention", text, {**facts, "epoch": trim.epoch, "upto": trim.position})


def _compaction(groups: list[Group], verb: str) -> Step:
    files, size = sum(len(group.paths) for group in groups), sum(group.size for group in groups)
    facts: dict[str, object] = {"files": files, "into": len(groups), "bytes": size}
    return Step("compaction", f"{counted(files, 'file')} {verb} {len(groups):,}", facts)


def _removal(entries: int, files: int, size: int, verb: str) -> Step:
    facts: dict[str, object] = {"log_entries": entries, "files": files, "bytes": size}
    log = f"{entries:,} log {'entry' if entries == 1 else 'entries'}"
    return Step("removal", f"{log} and {counted(files, 'file')} that nobody needs {verb}", facts)
