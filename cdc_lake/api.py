"""What notebooks, jobs and programs call: the command line's verbs as functions that return values.

They return or raise; none prints, exits or installs a signal handler. What a verb needs (Spark, a driver, Great
Expectations) is imported when it is called.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from cdc_lake.config.loader import load_project, validate
from cdc_lake.config.project import Project
from cdc_lake.model.position import Given
from cdc_lake.model.position import as_of as parsed
from cdc_lake.observability.events import ProgressReporter, silent

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from cdc_lake.bronze.change_reader import ChangeReader
    from cdc_lake.config.loader import Secrets
    from cdc_lake.connectors.base import SlotAdvanced, SlotDetails, SlotDropped, SlotList, SlotMade
    from cdc_lake.control.cut_session import CutSession
    from cdc_lake.control.table_pauses import PauseState
    from cdc_lake.control.verdicts import Comparison
    from cdc_lake.model.quarantine import Verb
    from cdc_lake.ops.check.findings import CheckLine
    from cdc_lake.ops.html_pages import ReportFiles, StatusPage
    from cdc_lake.ops.inspect import RowView, TransactionView
    from cdc_lake.ops.plan import Plan
    from cdc_lake.ops.status import Status
    from cdc_lake.runtime.apply.rebuild import Rebuilt
    from cdc_lake.runtime.cut_retention import CutList, Promised
    from cdc_lake.runtime.maintain import Maintenance, Upgrade
    from cdc_lake.runtime.quarantine import HeldDecision, HeldList
    from cdc_lake.runtime.receive.lag import ParkedList
    from cdc_lake.runtime.restart import Restarted
    from cdc_lake.runtime.resync import Resynced
    from cdc_lake.runtime.run import RunSummary


__all__ = [
    "advance_slot",
    "check",
    "compare",
    "create_slot",
    "cuts",
    "discard_held",
    "drop_slot",
    "end_promise",
    "held",
    "history",
    "inspect_parked",
    "inspect_row",
    "inspect_slot",
    "inspect_transaction",
    "load_pipeline",
    "maintain",
    "open_bronze",
    "pause",
    "plan",
    "promise",
    "read",
    "rebuild",
    "release_held",
    "report",
    "restart",
    "resume",
    "resync",
    "run",
    "run_once",
    "session",
    "slots",
    "status",
    "status_page",
    "upgrade",
    "validate",
]


_P = ParamSpec("_P")
_R = TypeVar("_R")


def _takes_tell(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Accept `report_progress` under its name in 0.3, `tell`, with a warning. To be removed after 0.4."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if "tell" in kwargs:
            message = f"`{function.__name__}(tell=...)` is now `{function.__name__}(report_progress=...)`"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            kwargs["report_progress"] = kwargs.pop("tell")
        return function(*args, **kwargs)

    return call


def load_pipeline(file: str | Path, *, environment: str | None = None, secrets: Secrets | None = None) -> Project:
    """Load a pipeline file. `secrets(scope, key)` answers `${secret:scope/key}`. Raises ConfigInvalid."""
    return load_project(Path(file), environment=environment, secrets=secrets)


def check(project: Project) -> list[CheckLine]:
    """Everything a run needs, each with its fix. See `cdc_lake.ops.check.runner`."""
    from cdc_lake.ops.check.runner import check as look

    return look(project)


def open_bronze(project: Project | str | Path) -> ChangeReader:
    """The bronze of a pipeline, or of a pipeline file, to read. See `cdc_lake.bronze.change_reader`. Raises
    ConfigInvalid.
    """
    from cdc_lake.bronze.change_reader import ChangeReader
    from cdc_lake.bronze.open import bronze_reader

    return ChangeReader(bronze_reader(_load_project(project)))


def held(project: Project) -> HeldList:
    """What waits: changes that rules keep back, transactions that are not decoded. See
    `cdc_lake.runtime.quarantine`.
    """
    from cdc_lake.runtime.quarantine import held_list

    return held_list(project)


def inspect_parked(project: Project | str | Path) -> ParkedList:
    """Prepared transactions that are kept until their COMMIT PREPARED. Raises LakeError, ConfigInvalid."""
    from cdc_lake.runtime.receive.lag import inspect_parked as look_up

    return look_up(_load_project(project))


def inspect_row(project: Project | str | Path, table: str, *key: object) -> RowView:
    """Every change of the rows that had a key: its values in the order of the primary key, or one mapping by column.

    See `cdc_lake.ops.inspect`. Raises NotInBronze, ConfigInvalid.
    """
    from cdc_lake.bronze.open import bronze_reader
    from cdc_lake.control.streams import source_table
    from cdc_lake.ops.inspect import inspect_row as look_up
    from cdc_lake.ops.inspect import row_key
    from cdc_lake.tables.control_tables import control_tables

    loaded, name = _load_project(project), source_table(table)
    bronze = bronze_reader(loaded)
    match key:
        case (Mapping() as named,):
            wanted = {str(column): str(value) for column, value in named.items()}
        case _:
            wanted = row_key(bronze, name, key)
    return look_up(bronze, name, wanted, control_tables(loaded).snapshots())


def inspect_transaction(
    project: Project | str | Path, position: str | int, *, epoch: int | None = None
) -> TransactionView:
    """The transaction at a commit position, as it is printed or as bronze stores it. Raises NotInBronze."""
    from cdc_lake.bronze.open import bronze_reader
    from cdc_lake.model.position import parse_position
    from cdc_lake.ops.inspect import inspect_transaction as look_up

    number = parse_position(position) if isinstance(position, str) else position
    return look_up(bronze_reader(_load_project(project)), number, epoch)


def read(
    project: Project | str | Path,
    table: str,
    *,
    as_of: Given = "latest",
    epoch: int | None = None,
    allow_behind: bool = False,
    versions: bool = False,
) -> pa.Table:
    """A silver table as of a cut, without Spark. See `session`; the other tables may be behind."""
    from cdc_lake.control.cut_session import read_table

    return read_table(_load_project(project), table, parsed(as_of), epoch, allow_behind=allow_behind, versions=versions)


def session(
    project: Project | str | Path, *, as_of: Given = "latest", epoch: int | None = None, allow_behind: bool = False
) -> CutSession:
    """All silver tables as of one cut. See `cdc_lake.control.cut_session`.

    `as_of`: `latest`, a position as it is printed (`0/16B3748`, `951909`) or as tables store it (an integer), a time
    with its zone, or the name of a promise; positions are of the newest stream or of `epoch`. Raises BeforeFirstCut,
    CutNotReached, CutUnknown, MalformedPosition, TableBehind, ConfigInvalid.
    """
    from cdc_lake.control.cut_session import open_session

    return open_session(_load_project(project), parsed(as_of), epoch, allow_behind=allow_behind)


def cuts(project: Project, *, limit: int = 20, promised: bool = False) -> CutList:
    """The newest cuts, or those that stay readable. See `cdc_lake.runtime.cut_retention`."""
    from cdc_lake.runtime.cut_retention import list_cuts

    return list_cuts(project, limit, promised=promised)


@_takes_tell
def promise(
    project: Project,
    name: str,
    *,
    as_of: Given = "latest",
    epoch: int | None = None,
    keep: timedelta | None = None,
    report_progress: ProgressReporter = silent,
) -> Promised:
    """Keep a cut readable under a name, for a time or until it is ended. See `cdc_lake.runtime.cut_retention`."""
    from cdc_lake.runtime.cut_retention import promise_cut

    return promise_cut(project, name, parsed(as_of), epoch, keep, report_progress)


@_takes_tell
def end_promise(project: Project, name: str, *, report_progress: ProgressReporter = silent) -> Promised:
    """End a promise now. Raises NotPromised where none of that name stands."""
    from cdc_lake.runtime.cut_retention import end_promise as end

    return end(project, name, report_progress)


def pause(project: Project, table: str) -> PauseState:
    """Stop one silver table, named by its source, while the others flow. See `cdc_lake.control.table_pauses`."""
    from cdc_lake.control.table_pauses import pause as stop

    return stop(project, table)


def resume(project: Project, table: str) -> PauseState:
    """Let a paused table go on from where it stayed."""
    from cdc_lake.control.table_pauses import resume as go_on

    return go_on(project, table)


def plan(project: Project) -> Plan:
    """What a run would do. See `cdc_lake.ops.plan`."""
    from cdc_lake.ops.plan import plan as work_out

    return work_out(project)


@_takes_tell
def run(
    project: Project,
    *,
    once: bool = False,
    only: str | None = None,
    stop: threading.Event | None = None,
    report_progress: ProgressReporter = silent,
    allowed: Iterable[str] = (),
    adopt: Iterable[str] = (),
    spark: SparkSession | None = None,
) -> RunSummary:
    """Run both loops, or `only` one, until `stop` is set or, with `once`, until the goal fixed at the start.

    `allowed`: destructive operations on silver tables that may be done, in the words of `plan`; `adopt`: silver tables
    (`namespace.table`) whose content is replaced although another pipeline's or nobody's; `spark`: the session of a
    platform that brings its own. Raises SilverNotOwned for a table of somebody else.
    """
    from cdc_lake.runtime.run import run as execute

    event = stop or threading.Event()
    return execute(
        project,
        once=once,
        only=only,
        stop=event,
        report=report_progress,
        allowed=frozenset(allowed),
        adopt=frozenset(adopt),
        spark=spark,
    )


@_takes_tell
def run_once(
    project: Project,
    *,
    only: str | None = None,
    report_progress: ProgressReporter = silent,
    allowed: Iterable[str] = (),
    adopt: Iterable[str] = (),
) -> RunSummary:
    """Bring bronze and silver to where the source is now, and return."""
    return run(project, once=True, only=only, report_progress=report_progress, allowed=allowed, adopt=adopt)


def status(project: Project) -> Status:
    """Where the pipeline stands. See `cdc_lake.ops.status`."""
    from cdc_lake.ops.status import status as look_up

    return look_up(project)


def history(
    project: Project | str | Path,
    table: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int | None = None,
) -> pa.Table:
    """Rows of a control table, oldest first, without Spark. See `cdc_lake.control.cut_session`. Raises LakeError."""
    from cdc_lake.control.cut_session import read_history

    return read_history(_load_project(project), table, since=since, until=until, limit=limit)


def status_page(project: Project, file: str | Path) -> StatusPage:
    """Write a status as an HTML page. See `cdc_lake.ops.html_pages`. Raises ReportNotWritten, LakeError."""
    from cdc_lake.ops.html_pages import write_status_page
    from cdc_lake.ops.status import status as look_up

    return write_status_page(project, look_up(project), Path(file))


@_takes_tell
def compare(
    project: Project,
    tables: Sequence[str] = (),
    *,
    repair: bool = False,
    yes: bool = False,
    values: bool = False,
    at: Given | None = None,
    sample: str | None = None,
    full: bool = False,
    exclude: Sequence[str] = (),
    report_progress: ProgressReporter = silent,
) -> Comparison:
    """Prove silver equal to the source; say what `repair` can bring of what differs, and with `yes` land it in bronze.

    `values`: tell the rows of keys that differ. `at`: silver at a cut, as `cuts` names them, or a position or time;
    `sample`: some rows, such as `5%` or `10000`; `full`: all of them without hashes; `exclude`: tables left out. See
    `cdc_lake.comparison.compare`.
    """
    from cdc_lake.comparison.columns import Sample
    from cdc_lake.comparison.compare import compare as prove

    cut, row_sample = None if at is None else parsed(at), None if sample is None else Sample.parse(sample)
    return prove(
        project,
        tables,
        report_progress,
        repair=repair,
        yes=yes,
        values=values,
        as_of=cut,
        sample=row_sample,
        full=full,
        exclude=exclude,
    )


@_takes_tell
def rebuild(
    project: Project,
    table: str,
    *,
    to: int | None = None,
    into: str | None = None,
    dry_run: bool = False,
    keys: int = 0,
    report_progress: ProgressReporter = silent,
) -> Rebuilt:
    """Make a silver table again from bronze. See `cdc_lake.runtime.apply.rebuild`."""
    from cdc_lake.runtime.apply.rebuild import rebuild as build

    return build(project, table, to=to, into=into, dry_run=dry_run, keys=keys, report=report_progress)


def restart(project: Project, *, yes: bool = False) -> Restarted:
    """Have the next run begin a new stream; without `yes` say what that does. See `cdc_lake.runtime.restart`."""
    from cdc_lake.runtime.restart import restart as start_over

    return start_over(project, yes=yes)


@_takes_tell
def resync(
    project: Project, *tables: str, dry_run: bool = False, report_progress: ProgressReporter = silent
) -> Resynced:
    """Copy tables again from the source while everything flows. See `cdc_lake.runtime.resync`."""
    from cdc_lake.runtime.resync import resync as copy

    return copy(project, tables, dry_run=dry_run, report=report_progress)


def release_held(
    project: Project, table: str, *, key: Sequence[str | None] | None = None, rule: str | None = None, reason: str
) -> HeldDecision:
    """Let held changes of a source table through as they are: those that keep `key`, or all, with `rule` those that
    nothing else holds. The next run does it. See `cdc_lake.runtime.quarantine`.
    """
    return _decide(project, "release", table, key, rule, reason)


def discard_held(
    project: Project, table: str, *, key: Sequence[str | None] | None = None, rule: str | None = None, reason: str
) -> HeldDecision:
    """Give held changes of a source table up for good; silver keeps what it has. Chosen as by `release_held`."""
    return _decide(project, "discard", table, key, rule, reason)


def slots(project: Project) -> SlotList:
    """Every replication slot of the server, the pipeline's own marked. See `cdc_lake.ops.slots`."""
    from cdc_lake.ops.slots import list_slots

    return list_slots(project)


def inspect_slot(project: Project, name: str | None = None) -> SlotDetails:
    """Everything of the pipeline's slot, or of the one named, and what is threatened by it. Raises SlotMissing."""
    from cdc_lake.ops.slots import inspect_slot as inspect

    return inspect(project, name)


@_takes_tell
def create_slot(project: Project, *, report_progress: ProgressReporter = silent) -> SlotMade:
    """Begin the stream as a first run does, with its copy, and receive nothing more."""
    from cdc_lake.ops.slots import create_slot as begin

    return begin(project, report=report_progress)


def advance_slot(project: Project, upto: int | None = None) -> SlotAdvanced:
    """Let the server forget what bronze holds, up to a position or all of it. Raises AdvancePastBronze."""
    from cdc_lake.ops.slots import advance_slot as advance

    return advance(project, upto)


def drop_slot(project: Project, name: str | None = None, *, yes: bool = False, wait: float = 0) -> SlotDropped:
    """Drop the pipeline's slot, or the one named; without `yes` say what is lost by it. `wait`: seconds for its reader
    to leave.
    """
    from cdc_lake.ops.slots import drop_slot as drop

    return drop(project, name, yes=yes, wait=wait)


def report(project: Project) -> ReportFiles:
    """Write the report. See `cdc_lake.ops.html_pages`."""
    from cdc_lake.ops.html_pages import report as write

    return write(project)


@_takes_tell
def maintain(
    project: Project,
    *,
    dry_run: bool = False,
    force: bool = False,
    only: str | None = None,
    report_progress: ProgressReporter = silent,
    spark: SparkSession | None = None,
) -> Maintenance:
    """Keep bronze and silver up, or `only` one of them. See `cdc_lake.runtime.maintain`."""
    from cdc_lake.runtime.maintain import maintain as keep_up

    return keep_up(project, dry_run=dry_run, force=force, only=only, report=report_progress, spark=spark)


def upgrade(project: Project, *, yes: bool = False) -> Upgrade:
    """Bring a lake that an older version left to this one's form; without `yes` say what that takes."""
    from cdc_lake.runtime.maintain import upgrade as bring

    return bring(project, yes=yes)


def _decide(
    project: Project, verb: Verb, table: str, key: Sequence[str | None] | None, rule: str | None, reason: str
) -> HeldDecision:
    from cdc_lake.runtime.quarantine import Choice, decide

    return decide(project, verb, table, Choice(None if key is None else tuple(key), rule), reason, yes=True)


def _load_project(project: Project | str | Path) -> Project:
    return project if isinstance(project, Project) else load_pipeline(project)
