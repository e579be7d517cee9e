"""Running a pipeline: both loops, together or one of them.

With `once`, receiving goes to the goal it fixed at its start while Spark comes up in the background, then apply goes to
the same position; if nothing is to be applied, no Spark is started. Without, the receiver is a process of its own
(`pipeline.receiving.process`): a heavy merge cannot delay its answers to the server, and either of the two may die
without taking the other one's state along.
"""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from cdc_lake.bronze.open import bronze_reader, bronze_writer
from cdc_lake.config.project import Project
from cdc_lake.errors import CdcLakeError, SparkDied
from cdc_lake.lake.control import control_tables
from cdc_lake.lake.control_rows import RunRow, new_run
from cdc_lake.observe.progress import Progress, Tell, of_run
from cdc_lake.pipeline.applying.apply import ApplySummary, apply, summary_of
from cdc_lake.pipeline.applying.pending_work import has_pending_work, settle_without_spark
from cdc_lake.pipeline.applying.sessions import SparkLives
from cdc_lake.pipeline.receiving.process import ReceiverProcess
from cdc_lake.pipeline.receiving.upkeep import Upkeep
from cdc_lake.pipeline.server import source_view
from cdc_lake.pipeline.state.ownership import adoption, check_owned
from cdc_lake.pipeline.state.streams import is_complete

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdc_lake.pipeline.receiving.loop import ReceiveSummary

_LOOK_EVERY = 0.3
_BRINGS_WORK = frozenset({"landed", "snapshot"})
"""Stages of the receiver by which it is clear that silver will have something to apply."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds before Spark is started again
_STEADY = 60.0  # seconds after which a JVM counts as having run
_ATTEMPTS = 8  # in a row without having run


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What a run did. `outcome`: `done`, or `stopped` where it was asked to stop before its goal."""

    pipeline: str
    outcome: str
    seconds: float
    receive: ReceiveSummary | None = None
    apply: ApplySummary | None = None


def run(
    project: Project,
    *,
    once: bool,
    only: str | None,
    stop: threading.Event,
    tell: Tell,
    allowed: frozenset[str] = frozenset(),
    adopt: frozenset[str] = frozenset(),
    spark: SparkSession | None = None,
) -> RunSummary:
    """Run until `stop` or, with `once`, until silver is where the source was at the start.

    `only`: `receive` or `apply` for one of the two loops; `allowed`: destructive operations on silver tables that may
    be done, in the words of `plan`; `adopt`: silver tables of others that may be replaced; `spark`: the session of a
    platform that brings its own, otherwise one is started. A row goes to the control table `runs` at the end. Raises
    CdcLakeError; bronze and silver are then whole up to their last commits.
    """
    if only != "receive" and spark is None:
        from cdc_lake.lake.session import require_java  # noqa: PLC0415  # a receiver needs no Spark

        require_java()  # before anything is made: a missing Java is told at once
    if only is None:
        _check_owned(project, adopt)
    allowed |= frozenset(map(adoption, adopt))
    began, verb = time.monotonic(), f"run --only {only}" if only else "run"
    row = RunRow(new_run(), verb, datetime.now(UTC), None, "running", "{}")
    tell = of_run(row.run, tell)
    tell(Progress("run", f"`{verb}` begins"))
    try:
        received, applied = _loops(project, once=once, only=only, stop=stop, tell=tell, allowed=allowed, spark=spark)
    except CdcLakeError as error:
        tell(Progress("run", f"`{verb}` failed: {error.message}", facts={"outcome": "failed", "code": error.code}))
        if project.control_address is not None or project.control.exists():
            _record(project, row, "failed", {"error": error.code})
        raise
    outcome = "stopped" if once and stop.is_set() else "done"
    summary = RunSummary(project.name, outcome, round(time.monotonic() - began, 3), received, applied)
    facts: dict[str, object] = {
        "receive": dataclasses.asdict(received) if received else None,
        "apply": {"upto": applied.upto, "spans": applied.spans, "changes": applied.changes} if applied else None,
        "seconds": summary.seconds,
    }
    _record(project, row, outcome, facts)
    tell(Progress("run", f"`{verb}` ended", facts={"outcome": outcome, "seconds": summary.seconds}))
    return summary


def _check_owned(project: Project, adopt: frozenset[str]) -> None:
    """Before a slot is made and tables are copied: whose are the silver tables? Later each is looked at by apply."""
    if is_complete(bronze_reader(project).state(), control_tables(project)):
        return
    with source_view(project) as source:
        check_owned(project, source.tables(), source.origin, adopt)


def _loops(
    project: Project,
    *,
    once: bool,
    only: str | None,
    stop: threading.Event,
    tell: Tell,
    allowed: frozenset[str],
    spark: SparkSession | None,
) -> tuple[ReceiveSummary | None, ApplySummary | None]:
    match only:
        case "receive":
            return _receive(project, once=once, stop=stop, tell=tell), None
        case "apply":
            work = partial(apply, project, once=once, goal=None, stop=stop, tell=tell, allowed=allowed)
            return None, _outliving(work, spark, stop, tell, own=spark is None)
        case _ if once:
            return _once(project, _Starting(project, spark), stop, tell, allowed)
        case _:
            return None, _continuous(project, _Starting(project, spark), stop, tell, allowed)


def _receive(project: Project, *, once: bool, stop: threading.Event, tell: Tell) -> ReceiveSummary:
    from cdc_lake.pipeline.receiving.receive import receive  # noqa: PLC0415  # applying alone needs no database driver

    bronze, address = bronze_writer(project), project.pipeline.observe.metrics
    if once or address is None:  # a run with an end says what it did
        with Upkeep(project, tell) as upkeep:
            return receive(project, bronze, once=once, stop=stop, tell=upkeep.heard)
    from cdc_lake.pipeline.status.receiver_metrics import ReceiverMetrics  # noqa: PLC0415  # only where it is asked for

    with ReceiverMetrics(project, address, tell) as metrics, Upkeep(project, metrics.heard) as upkeep:
        return receive(project, bronze, once=once, stop=stop, tell=upkeep.heard, pulse=metrics.pulse)


def _once(
    project: Project, spark: _Starting, stop: threading.Event, tell: Tell, allowed: frozenset[str]
) -> tuple[ReceiveSummary | None, ApplySummary | None]:
    began = time.monotonic()
    if allowed or has_pending_work(project):
        spark.begin()  # it comes up while the receiver reads

    def heard(progress: Progress) -> None:
        if progress.stage in _BRINGS_WORK:
            spark.begin()
        tell(progress)

    received = _receive(project, once=True, stop=stop, tell=heard)
    if stop.is_set():
        return received, None
    if not spark.begun and (done := settle_without_spark(project, received.upto, tell)) is not None:
        return received, summary_of(done, (), time.monotonic() - began)
    session = spark.wait(tell)
    work = partial(apply, project, once=True, goal=received.upto, stop=stop, tell=tell, allowed=allowed)
    return received, _outliving(work, session, stop, tell, own=spark.own)


def _continuous(
    project: Project, spark: _Starting, stop: threading.Event, tell: Tell, allowed: frozenset[str]
) -> ApplySummary | None:
    with ReceiverProcess(project, stop, tell) as receiver:
        if not _wait_for_stream(project, receiver.over):
            return None
        session = spark.wait(tell)
        try:
            work = partial(apply, project, once=False, goal=None, stop=receiver.over, tell=tell, allowed=allowed)
            return _outliving(work, session, receiver.over, tell, own=spark.own)
        except SparkDied:
            if not stop.is_set():
                raise
            return None  # who asked us to stop asked the JVM too, and it was quicker than the receiver


def _outliving(
    work: Callable[..., ApplySummary], session: SparkSession | None, stop: threading.Event, tell: Tell, *, own: bool
) -> ApplySummary:
    """Apply, and go on with another JVM where Spark's ended; `own`: it was started here.

    Tables that were worked on when it ended are worked on one by one from then on, and one that ends it alone twice
    waits with its error while the others go on. Raises what `apply` raises; SparkDied where another JVM does not help.
    """
    lives, pause, short = SparkLives(), _FIRST_PAUSE, 0
    while True:
        began = time.monotonic()
        try:
            return work(spark=session, lives=lives)
        except SparkDied as died:
            steady = time.monotonic() - began >= _STEADY
            pause, short = (_FIRST_PAUSE, 1) if steady else (pause, short + 1)
            if not own or stop.is_set() or short >= _ATTEMPTS:
                raise
            lives.ended(died.how)
            for error in lives.given_up.values():
                error.__cause__ = died
            text = f"{died.message}; Spark starts again in {pause:g} s"
            tell(Progress("retry", text, facts={"code": died.code}))
        from cdc_lake.lake.session import forget  # noqa: PLC0415  # a receiver needs no Spark

        forget()
        session = None
        stop.wait(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
        if stop.is_set():
            raise SparkDied("and the run was asked to stop")


def _wait_for_stream(project: Project, over: threading.Event) -> bool:
    """Wait until the initial copy is in bronze: before that there is nothing to apply."""
    reader, control = bronze_reader(project), control_tables(project)
    while not over.is_set():
        state = reader.state()
        if is_complete(state, control):
            return True
        over.wait(_LOOK_EVERY)
    return False


class _Starting:
    """Spark, if it is not given: started in the background once it is asked for."""

    def __init__(self, project: Project, given: SparkSession | None) -> None:
        self._project = project
        self._session = given
        self.own = given is None
        """Whether Spark is started here, and not given."""
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._start, name="spark", daemon=True)
        self._begin = threading.Lock()
        self.begun = given is not None

    def begin(self) -> None:
        """Let it come up, if it does not yet; from any thread."""
        with self._begin:
            if not self.begun:
                self.begun = True
                self._thread.start()

    def wait(self, tell: Tell) -> SparkSession:
        """The session; told if it is not there yet. Raises what its start raised."""
        self.begin()
        if self._thread.is_alive():
            tell(Progress("apply", "starting Spark"))
        if self._session is None:
            self._thread.join()
        if self._failure is not None:
            raise self._failure
        assert self._session is not None
        return self._session

    def _start(self) -> None:
        from cdc_lake.lake.session import start  # noqa: PLC0415  # a receiver needs no Spark

        try:
            self._session = start(self._project)
        except BaseException as failure:  # noqa: BLE001  # raised again by who waits
            self._failure = failure


def _record(project: Project, began: RunRow, outcome: str, facts: dict[str, object]) -> None:
    ended = dataclasses.replace(began, ended_at=datetime.now(UTC), outcome=outcome, facts=json.dumps(facts))
    control_tables(project).record(ended)
