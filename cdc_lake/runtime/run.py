"""Runs a pipeline: both loops, together or one of them.

With `once`, the receiver reads up to the goal set at its start while Spark starts in the background, then apply goes to
the same position; if there is nothing to apply, no Spark is started. Without `once`, the receiver is a child process: a
heavy merge cannot delay its answers to the server, and if one of the two dies, the other one's state survives.

The child runs `run --json`: one event per line, and its last error as a document. It is restarted if that helps. It
exits when our end of its standard input is closed, so it never outlives us and blocks the slot. Its standard error goes
to `<lake>/logs/receive.log`.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Self

from cdc_lake.bronze.open import bronze_reader, bronze_writer
from cdc_lake.config.project import Project
from cdc_lake.connectors.factory import source_view
from cdc_lake.control.ownership import adoption, check_owned
from cdc_lake.control.streams import is_complete
from cdc_lake.errors import CdcLakeError, ReceiverDied, Retry, SparkDied, kinds
from cdc_lake.observability.events import ProgressEvent, ProgressReporter, of_run
from cdc_lake.runtime.apply.applier import ApplySummary, apply, summary_of
from cdc_lake.runtime.apply.pending_work import has_pending_work, settle_without_spark
from cdc_lake.runtime.apply.spark_sessions import SparkLives
from cdc_lake.runtime.receive.wal_budget_monitor import BronzeMaintenance
from cdc_lake.tables.control_schema import RunRow, new_run
from cdc_lake.tables.control_tables import control_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdc_lake.runtime.receive.loop import ReceiveSummary


_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_STEADY = 60.0  # seconds after which a receiver counts as healthy
_ATTEMPTS = 8  # consecutive ones without becoming healthy
_GRACE = 30.0  # seconds to finish the batch in flight


class ReceiverProcess:
    """Runs the receiver inside the block; `over` is set when the run is over: stopped, or the receiver cannot continue.

    On exit raises the receiver's error if it ended the run.
    """

    def __init__(self, project: Project, stop: threading.Event, report: ProgressReporter) -> None:
        self.over = threading.Event()
        self._project = project
        self._stop = stop
        self._report = report
        self._failure: CdcLakeError | None = None
        self._thread = threading.Thread(target=self._supervise, name="receiver", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, *_: object) -> None:
        self.over.set()
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    def _supervise(self) -> None:
        pause, short = _FIRST_PAUSE, 0
        try:
            while not self._ending():
                began = time.monotonic()
                failure = self._one_life()
                if failure is None or self._ending():
                    return
                steady = time.monotonic() - began >= _STEADY
                pause, short = (_FIRST_PAUSE, 0) if steady else (pause, short + 1)
                if failure.retry is Retry.NEVER or short >= _ATTEMPTS:
                    self._failure = failure
                    return
                text = f"{failure.message}; the receiver restarts in {pause:g} s"
                self._report(ProgressEvent("retry", text, facts={"code": failure.code}))
                self._pause(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            self.over.set()

    def _ending(self) -> bool:
        return self._stop.is_set() or self.over.is_set()

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._ending() and time.monotonic() < until:
            self._stop.wait(0.1)

    def _one_life(self) -> CdcLakeError | None:
        """Run the receiver until it exits; its error, None if it was stopped."""
        log = self._project.lake / "logs" / "receive.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as log_file:
            # Its own session: Ctrl-C at the terminal is sent to us only, and we stop the child.
            child = subprocess.Popen(  # noqa: S603  # our own command
                self._command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log_file, start_new_session=True
            )
        listener = _Listener(child.stdout, self._report)
        while child.poll() is None and not self._ending():
            self._stop.wait(0.1)
        _end(child)
        listener.join()
        if child.returncode == 0 or (self._ending() and listener.failure is None):
            return None
        how = f"signal {-child.returncode}" if child.returncode < 0 else f"exit code {child.returncode}"
        return listener.failure or ReceiverDied(f"the receiver ended unexpectedly ({how})", where=str(log))

    def _command(self) -> list[str]:
        command = [sys.executable, "-m", "cdc_lake.cli.app", "run", "--only", "receive", "--json", "--until-input-ends"]
        command += ["--pipeline", str(self._project.file)]
        return command if self._project.environment is None else [*command, "--env", self._project.environment]


class _Listener(threading.Thread):
    """Passes a receiver's events on, and keeps its error."""

    def __init__(self, stream: IO[bytes] | None, report: ProgressReporter) -> None:
        super().__init__(name="receiver-events", daemon=True)
        assert stream is not None
        self._stream = stream
        self._report = report
        self.failure: CdcLakeError | None = None
        self.start()

    def run(self) -> None:
        """Read to the end of the stream."""
        with self._stream:
            for line in self._stream:
                try:
                    event = json.loads(line)
                except ValueError:
                    continue  # a line truncated by the end of the process
                if event.get("schema") == "cdc-lake/error/1":
                    self.failure = error_of(event)
                elif "text" in event:
                    fields = {name: event[name] for name in ("stage", "text", "done", "total", "unit")}
                    self._report(ProgressEvent(**fields, facts=event.get("facts") or {}))


def error_of(document: dict[str, Any]) -> CdcLakeError:
    """The error in a `--json` document, as the class with its code."""
    kind = next((k for k in kinds(CdcLakeError) if k.code == document["code"]), ReceiverDied)
    error = kind.__new__(kind)
    CdcLakeError.__init__(
        error, str(document["message"]), where=str(document.get("where", "")), hint=document.get("hint")
    )
    return error


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ask it to stop, wait for the current batch, then kill it: commits to bronze are atomic."""
    if child.poll() is None:
        child.terminate()
    try:
        child.wait(_GRACE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdin is not None:
        child.stdin.close()


_LOOK_EVERY = 0.3
_BRINGS_WORK = frozenset({"landed", "snapshot"})
"""Receiver stages after which silver will have something to apply."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The result of a run. `outcome`: `done`, or `stopped` if it was stopped before its goal."""

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
    report: ProgressReporter,
    allowed: frozenset[str] = frozenset(),
    adopt: frozenset[str] = frozenset(),
    spark: SparkSession | None = None,
) -> RunSummary:
    """Run until `stop` or, with `once`, until silver is where the source was at the start.

    `only`: `receive` or `apply` for one of the two loops; `allowed`: approved destructive operations on silver tables,
    in the words of `plan`; `adopt`: silver tables of others that may be replaced; `spark`: the session of the platform,
    otherwise one is started. A row is added to the control table `runs` at the end. Raises CdcLakeError; bronze and
    silver are then consistent up to their last commits.
    """
    if only != "receive" and spark is None:
        from cdc_lake.tables.spark_session import require_java  # noqa: PLC0415  # a receiver needs no Spark

        require_java()  # before anything is created: a missing Java is reported at once
    if only is None:
        _check_owned(project, adopt)
    allowed |= frozenset(map(adoption, adopt))
    began, verb = time.monotonic(), f"run --only {only}" if only else "run"
    row = RunRow(new_run(), verb, datetime.now(UTC), None, "running", "{}")
    report = of_run(row.run, report)
    report(ProgressEvent("run", f"`{verb}` begins"))
    try:
        received, applied = _loops(
            project, once=once, only=only, stop=stop, report=report, allowed=allowed, spark=spark
        )
    except CdcLakeError as error:
        failed = {"outcome": "failed", "code": error.code}
        report(ProgressEvent("run", f"`{verb}` failed: {error.message}", facts=failed))
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
    report(ProgressEvent("run", f"`{verb}` ended", facts={"outcome": outcome, "seconds": summary.seconds}))
    return summary


def _check_owned(project: Project, adopt: frozenset[str]) -> None:
    """Check the owners of silver tables before a slot is created and tables are copied. Apply checks each again."""
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
    report: ProgressReporter,
    allowed: frozenset[str],
    spark: SparkSession | None,
) -> tuple[ReceiveSummary | None, ApplySummary | None]:
    match only:
        case "receive":
            return _receive(project, once=once, stop=stop, report=report), None
        case "apply":
            work = partial(apply, project, once=once, goal=None, stop=stop, report=report, allowed=allowed)
            return None, _outliving(work, spark, stop, report, own=spark is None)
        case _ if once:
            return _run_once(project, _Starting(project, spark), stop, report, allowed)
        case _:
            return None, _continuous(project, _Starting(project, spark), stop, report, allowed)


def _receive(project: Project, *, once: bool, stop: threading.Event, report: ProgressReporter) -> ReceiveSummary:
    from cdc_lake.runtime.receive.receiver import receive  # noqa: PLC0415  # applying alone needs no database driver

    bronze, address = bronze_writer(project), project.pipeline.observe.metrics
    if once or address is None:  # a finite run reports what it did
        with BronzeMaintenance(project, report) as upkeep:
            return receive(project, bronze, once=once, stop=stop, report=upkeep.on_progress)
    from cdc_lake.runtime.receive.metrics import ReceiverMetrics  # noqa: PLC0415  # only where it is asked for

    with (
        ReceiverMetrics(project, address, report) as metrics,
        BronzeMaintenance(project, metrics.on_progress) as upkeep,
    ):
        return receive(project, bronze, once=once, stop=stop, report=upkeep.on_progress, health=metrics.pulse)


def _run_once(
    project: Project, spark: _Starting, stop: threading.Event, report: ProgressReporter, allowed: frozenset[str]
) -> tuple[ReceiveSummary | None, ApplySummary | None]:
    began = time.monotonic()
    if allowed or has_pending_work(project):
        spark.begin()  # it starts while the receiver reads

    def on_progress(progress: ProgressEvent) -> None:
        if progress.stage in _BRINGS_WORK:
            spark.begin()
        report(progress)

    received = _receive(project, once=True, stop=stop, report=on_progress)
    if stop.is_set():
        return received, None
    if not spark.begun and (totals := settle_without_spark(project, received.upto, report)) is not None:
        return received, summary_of(totals, (), time.monotonic() - began)
    session = spark.wait(report)
    work = partial(apply, project, once=True, goal=received.upto, stop=stop, report=report, allowed=allowed)
    return received, _outliving(work, session, stop, report, own=spark.own)


def _continuous(
    project: Project, spark: _Starting, stop: threading.Event, report: ProgressReporter, allowed: frozenset[str]
) -> ApplySummary | None:
    with ReceiverProcess(project, stop, report) as receiver:
        if not _wait_for_stream(project, receiver.over):
            return None
        session = spark.wait(report)
        try:
            work = partial(apply, project, once=False, goal=None, stop=receiver.over, report=report, allowed=allowed)
            return _outliving(work, session, receiver.over, report, own=spark.own)
        except SparkDied:
            if not stop.is_set():
                raise
            return None  # the stop request also reached the JVM, which exited before the receiver


def _outliving(
    work: Callable[..., ApplySummary],
    session: SparkSession | None,
    stop: threading.Event,
    report: ProgressReporter,
    *,
    own: bool,
) -> ApplySummary:
    """Apply, and continue with another JVM if Spark's ended; `own`: it was started here.

    Tables in progress at that time are processed one by one from then on. A table that alone ends the JVM twice fails
    with its error, and the other tables continue. Raises what `apply` raises; SparkDied if another JVM does not help.
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
            lives.record_end(died.how)
            for error in lives.given_up.values():
                error.__cause__ = died
            text = f"{died.message}; Spark restarts in {pause:g} s"
            report(ProgressEvent("retry", text, facts={"code": died.code}))
        from cdc_lake.tables.spark_session import forget  # noqa: PLC0415  # a receiver needs no Spark

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
        if is_complete(reader.state(), control):
            return True
        over.wait(_LOOK_EVERY)
    return False


class _Starting:
    """A given Spark session, or one started in the background when requested."""

    def __init__(self, project: Project, session: SparkSession | None) -> None:
        self._project = project
        self._session = session
        self.own = session is None
        """Whether Spark is started here, and not given."""
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._start, name="spark", daemon=True)
        self._begin = threading.Lock()
        self.begun = session is not None

    def begin(self) -> None:
        """Start Spark, if not yet started; thread-safe."""
        with self._begin:
            if not self.begun:
                self.begun = True
                self._thread.start()

    def wait(self, report: ProgressReporter) -> SparkSession:
        """Wait for the session, and report the wait. Raises the exception of its start."""
        self.begin()
        if self._thread.is_alive():
            report(ProgressEvent("apply", "starting Spark"))
        if self._session is None:
            self._thread.join()
        if self._failure is not None:
            raise self._failure
        assert self._session is not None
        return self._session

    def _start(self) -> None:
        from cdc_lake.tables.spark_session import start  # noqa: PLC0415  # a receiver needs no Spark

        try:
            self._session = start(self._project)
        except BaseException as failure:  # noqa: BLE001  # raised again by the thread that waits
            self._failure = failure


def _record(project: Project, began: RunRow, outcome: str, facts: dict[str, object]) -> None:
    ended = dataclasses.replace(began, ended_at=datetime.now(UTC), outcome=outcome, facts=json.dumps(facts))
    control_tables(project).record(ended)
