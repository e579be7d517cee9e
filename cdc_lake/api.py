"""What notebooks, jobs and programs call: the command line's verbs as functions that return values.

They return or raise; none prints, exits or installs a signal handler. What a verb needs (Spark, a driver, Great
Expectations) is imported when it is called.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from cdc_lake.config.load import load_project, validate
from cdc_lake.config.project import Project
from cdc_lake.model.as_of import Given
from cdc_lake.model.as_of import as_of as parsed
from cdc_lake.observe.progress import Tell, silent

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from cdc_lake.bronze.ledger import Ledger
    from cdc_lake.config.references import Secrets
    from cdc_lake.model.decision import Verb
    from cdc_lake.pipeline.applying.rebuild import Rebuilt
    from cdc_lake.pipeline.check.line import CheckLine
    from cdc_lake.pipeline.held.decide import HeldDecision
    from cdc_lake.pipeline.held.listing import HeldList
    from cdc_lake.pipeline.inspect.bronze import RowView, TransactionView
    from cdc_lake.pipeline.inspect.parked import ParkedList
    from cdc_lake.pipeline.judging.cut_list import CutList
    from cdc_lake.pipeline.judging.promising import Promised
    from cdc_lake.pipeline.maintain import Maintenance
    from cdc_lake.pipeline.plan import Plan
    from cdc_lake.pipeline.ports.slot_details import SlotDetails
    from cdc_lake.pipeline.ports.slot_values import SlotAdvanced, SlotDropped, SlotList, SlotMade
    from cdc_lake.pipeline.restart import Restarted
    from cdc_lake.pipeline.resync import Resynced
    from cdc_lake.pipeline.run import RunSummary
    from cdc_lake.pipeline.state.comparison import Comparison
    from cdc_lake.pipeline.state.pauses import PauseState
    from cdc_lake.pipeline.state.reading import CutSession
    from cdc_lake.pipeline.status.page import StatusPage
    from cdc_lake.pipeline.status.report import ReportFiles
    from cdc_lake.pipeline.status.standing import Status
    from cdc_lake.pipeline.upgrade import Upgrade

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


def load_pipeline(file: str | Path, *, environment: str | None = None, secrets: Secrets | None = None) -> Project:
    """Load a pipeline file. `secrets(scope, key)` answers `${secret:scope/key}`. Raises ConfigInvalid."""
    return load_project(Path(file), environment=environment, secrets=secrets)


def check(project: Project) -> list[CheckLine]:
    """Everything a run needs, each with its fix. See `cdc_lake.pipeline.check.doctor`."""
    from cdc_lake.pipeline.check.doctor import check as look

    return look(project)


def open_bronze(project: Project | str | Path) -> Ledger:
    """The bronze of a pipeline, or of a pipeline file, to read. See `cdc_lake.bronze.ledger`. Raises ConfigInvalid."""
    from cdc_lake.bronze.ledger import Ledger
    from cdc_lake.bronze.open import bronze_reader

    return Ledger(bronze_reader(_loaded(project)))


def held(project: Project) -> HeldList:
    """What waits: changes that rules keep back, transactions that are not decoded. See
    `cdc_lake.pipeline.held.listing`.
    """
    from cdc_lake.pipeline.held.listing import held_list

    return held_list(project)


def inspect_parked(project: Project | str | Path) -> ParkedList:
    """Prepared transactions that are kept until their COMMIT PREPARED. Raises LakeError, ConfigInvalid."""
    from cdc_lake.pipeline.inspect.parked import inspect_parked as look_up

    return look_up(_loaded(project))


def inspect_row(project: Project | str | Path, table: str, *key: object) -> RowView:
    """Every change of the rows that had a key: its values in the order of the primary key, or one mapping by column.

    See `cdc_lake.pipeline.inspect.bronze`. Raises NotInBronze, ConfigInvalid.
    """
    from cdc_lake.bronze.open import bronze_reader
    from cdc_lake.lake.control import control_tables
    from cdc_lake.pipeline.inspect.bronze import inspect_row as look_up
    from cdc_lake.pipeline.inspect.bronze import row_key
    from cdc_lake.pipeline.state.source_table import source_table

    loaded, name = _loaded(project), source_table(table)
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
    from cdc_lake.pipeline.inspect.bronze import inspect_transaction as look_up

    number = parse_position(position) if isinstance(position, str) else position
    return look_up(bronze_reader(_loaded(project)), number, epoch)


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
    from cdc_lake.pipeline.state.reading import read_table

    return read_table(_loaded(project), table, parsed(as_of), epoch, allow_behind=allow_behind, versions=versions)


def session(
    project: Project | str | Path, *, as_of: Given = "latest", epoch: int | None = None, allow_behind: bool = False
) -> CutSession:
    """All silver tables as of one cut. See `cdc_lake.pipeline.state.reading`.

    `as_of`: `latest`, a position as it is printed (`0/16B3748`, `951909`) or as tables store it (an integer), a time
    with its zone, or the name of a promise; positions are of the newest stream or of `epoch`. Raises BeforeFirstCut,
    CutNotReached, CutUnknown, MalformedPosition, TableBehind, ConfigInvalid.
    """
    from cdc_lake.pipeline.state.reading import open_session

    return open_session(_loaded(project), parsed(as_of), epoch, allow_behind=allow_behind)


def cuts(project: Project, *, limit: int = 20, promised: bool = False) -> CutList:
    """The newest cuts, or those that stay readable. See `cdc_lake.pipeline.judging.cut_list`."""
    from cdc_lake.pipeline.judging.cut_list import list_cuts

    return list_cuts(project, limit, promised=promised)


def promise(
    project: Project,
    name: str,
    *,
    as_of: Given = "latest",
    epoch: int | None = None,
    keep: timedelta | None = None,
    tell: Tell = silent,
) -> Promised:
    """Keep a cut readable under a name, for a time or until it is ended. See `cdc_lake.pipeline.judging.promising`."""
    from cdc_lake.pipeline.judging.promising import promise_cut

    return promise_cut(project, name, parsed(as_of), epoch, keep, tell)


def end_promise(project: Project, name: str, *, tell: Tell = silent) -> Promised:
    """End a promise now. Raises NotPromised where none of that name stands."""
    from cdc_lake.pipeline.judging.promising import end_promise as end

    return end(project, name, tell)


def pause(project: Project, table: str) -> PauseState:
    """Stop one silver table, named by its source, while the others flow. See `cdc_lake.pipeline.state.pauses`."""
    from cdc_lake.pipeline.state.pauses import pause as stop

    return stop(project, table)


def resume(project: Project, table: str) -> PauseState:
    """Let a paused table go on from where it stayed."""
    from cdc_lake.pipeline.state.pauses import resume as go_on

    return go_on(project, table)


def plan(project: Project) -> Plan:
    """What a run would do. See `cdc_lake.pipeline.plan`."""
    from cdc_lake.pipeline.plan import plan as work_out

    return work_out(project)


def run(
    project: Project,
    *,
    once: bool = False,
    only: str | None = None,
    stop: threading.Event | None = None,
    tell: Tell = silent,
    allowed: Iterable[str] = (),
    adopt: Iterable[str] = (),
    spark: SparkSession | None = None,
) -> RunSummary:
    """Run both loops, or `only` one, until `stop` is set or, with `once`, until the goal fixed at the start.

    `allowed`: destructive operations on silver tables that may be done, in the words of `plan`; `adopt`: silver tables
    (`namespace.table`) whose content is replaced although another pipeline's or nobody's; `spark`: the session of a
    platform that brings its own. Raises SilverNotOwned for a table of somebody else.
    """
    from cdc_lake.pipeline.run import run as execute

    event = stop or threading.Event()
    return execute(
        project,
        once=once,
        only=only,
        stop=event,
        tell=tell,
        allowed=frozenset(allowed),
        adopt=frozenset(adopt),
        spark=spark,
    )


def run_once(
    project: Project,
    *,
    only: str | None = None,
    tell: Tell = silent,
    allowed: Iterable[str] = (),
    adopt: Iterable[str] = (),
) -> RunSummary:
    """Bring bronze and silver to where the source is now, and return."""
    return run(project, once=True, only=only, tell=tell, allowed=allowed, adopt=adopt)


def status(project: Project) -> Status:
    """Where the pipeline stands. See `cdc_lake.pipeline.status.standing`."""
    from cdc_lake.pipeline.status.standing import status as look_up

    return look_up(project)


def history(
    project: Project | str | Path,
    table: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int | None = None,
) -> pa.Table:
    """Rows of a control table, oldest first, without Spark. See `cdc_lake.pipeline.state.history`. Raises LakeError."""
    from cdc_lake.pipeline.state.history import read_history

    return read_history(_loaded(project), table, since=since, until=until, limit=limit)


def status_page(project: Project, file: str | Path) -> StatusPage:
    """Write a status as an HTML page. See `cdc_lake.pipeline.status.page`. Raises ReportNotWritten, LakeError."""
    from cdc_lake.pipeline.status.page import write_status_page
    from cdc_lake.pipeline.status.standing import status as look_up

    return write_status_page(project, look_up(project), Path(file))


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
    tell: Tell = silent,
) -> Comparison:
    """Prove silver equal to the source; say what `repair` can bring of what differs, and with `yes` land it in bronze.

    `values`: tell the rows of keys that differ. `at`: silver at a cut, as `cuts` names them, or a position or time;
    `sample`: some rows, such as `5%` or `10000`; `full`: all of them without hashes; `exclude`: tables left out. See
    `cdc_lake.pipeline.compare.prove`.
    """
    from cdc_lake.pipeline.compare.prove import compare as prove
    from cdc_lake.pipeline.compare.sample import Sample

    cut, some = None if at is None else parsed(at), None if sample is None else Sample.parse(sample)
    return prove(
        project, tables, tell, repair=repair, yes=yes, values=values, at=cut, sample=some, full=full, exclude=exclude
    )


def rebuild(
    project: Project,
    table: str,
    *,
    to: int | None = None,
    into: str | None = None,
    dry_run: bool = False,
    keys: int = 0,
    tell: Tell = silent,
) -> Rebuilt:
    """Make a silver table again from bronze. See `cdc_lake.pipeline.applying.rebuild`."""
    from cdc_lake.pipeline.applying.rebuild import rebuild as build

    return build(project, table, to=to, into=into, dry_run=dry_run, keys=keys, tell=tell)


def restart(project: Project, *, yes: bool = False) -> Restarted:
    """Have the next run begin a new stream; without `yes` say what that does. See `cdc_lake.pipeline.restart`."""
    from cdc_lake.pipeline.restart import restart as start_over

    return start_over(project, yes=yes)


def resync(project: Project, *tables: str, dry_run: bool = False, tell: Tell = silent) -> Resynced:
    """Copy tables again from the source while everything flows. See `cdc_lake.pipeline.resync`."""
    from cdc_lake.pipeline.resync import resync as copy

    return copy(project, tables, dry_run=dry_run, tell=tell)


def release_held(
    project: Project, table: str, *, key: Sequence[str | None] | None = None, rule: str | None = None, reason: str
) -> HeldDecision:
    """Let held changes of a source table through as they are: those that keep `key`, or all, with `rule` those that
    nothing else holds. The next run does it. See `cdc_lake.pipeline.held.decide`.
    """
    return _decide(project, "release", table, key, rule, reason)


def discard_held(
    project: Project, table: str, *, key: Sequence[str | None] | None = None, rule: str | None = None, reason: str
) -> HeldDecision:
    """Give held changes of a source table up for good; silver keeps what it has. Chosen as by `release_held`."""
    return _decide(project, "discard", table, key, rule, reason)


def slots(project: Project) -> SlotList:
    """Every replication slot of the server, the pipeline's own marked. See `cdc_lake.pipeline.slots`."""
    from cdc_lake.pipeline.slots import list_slots

    return list_slots(project)


def inspect_slot(project: Project, name: str | None = None) -> SlotDetails:
    """Everything of the pipeline's slot, or of the one named, and what is threatened by it. Raises SlotMissing."""
    from cdc_lake.pipeline.slots import inspect_slot as inspect

    return inspect(project, name)


def create_slot(project: Project, *, tell: Tell = silent) -> SlotMade:
    """Begin the stream as a first run does, with its copy, and receive nothing more."""
    from cdc_lake.pipeline.slots import create_slot as begin

    return begin(project, tell=tell)


def advance_slot(project: Project, upto: int | None = None) -> SlotAdvanced:
    """Let the server forget what bronze holds, up to a position or all of it. Raises AdvancePastBronze."""
    from cdc_lake.pipeline.slots import advance_slot as advance

    return advance(project, upto)


def drop_slot(project: Project, name: str | None = None, *, yes: bool = False, wait: float = 0) -> SlotDropped:
    """Drop the pipeline's slot, or the one named; without `yes` say what is lost by it. `wait`: seconds for its reader
    to leave.
    """
    from cdc_lake.pipeline.slots import drop_slot as drop

    return drop(project, name, yes=yes, wait=wait)


def report(project: Project) -> ReportFiles:
    """Write the report. See `cdc_lake.pipeline.status.report`."""
    from cdc_lake.pipeline.status.report import report as write

    return write(project)


def maintain(
    project: Project,
    *,
    dry_run: bool = False,
    force: bool = False,
    only: str | None = None,
    tell: Tell = silent,
    spark: SparkSession | None = None,
) -> Maintenance:
    """Keep bronze and silver up, or `only` one of them. See `cdc_lake.pipeline.maintain`."""
    from cdc_lake.pipeline.maintain import maintain as keep_up

    return keep_up(project, dry_run=dry_run, force=force, only=only, tell=tell, spark=spark)


def upgrade(project: Project, *, yes: bool = False) -> Upgrade:
    """Bring a lake that an older version left to this one's form; without `yes` say what that takes."""
    from cdc_lake.pipeline.upgrade import upgrade as bring

    return bring(project, yes=yes)


def _decide(
    project: Project, verb: Verb, table: str, key: Sequence[str | None] | None, rule: str | None, reason: str
) -> HeldDecision:
    from cdc_lake.pipeline.held.decide import Choice, decide

    return decide(project, verb, table, Choice(None if key is None else tuple(key), rule), reason, yes=True)


def _loaded(project: Project | str | Path) -> Project:
    return project if isinstance(project, Project) else load_pipeline(project)
