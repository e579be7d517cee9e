"""Apply: merges bronze into silver, span by span, each table exactly once.

Spark's stream on bronze only triggers it: `SpanLoop.run` reads the position of each table and applies spans of whole
transactions up to the end of bronze. It is called before the query starts, by each `foreachBatch`, and after a while
without a batch. A lost checkpoint therefore loses nothing, and a replayed batch repeats nothing.

A table that cannot continue (a destructive schema change, another writer) waits; the others continue, cuts show it as
broken, and the run ends with the table's error. Listeners write metrics and send lineage if the pipeline asks for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.connectors.wal_budget import ApplyYield
from cdc_lake.control.coordination import apply_lease
from cdc_lake.errors import ApplyFailed, CdcLakeError, RuleStopped, SparkDied
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.observability.failpoints import BATCH_ENTERED, BATCH_LEFT, failpoint
from cdc_lake.runtime.apply.merge import ApplyTotals
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.runtime.apply.spark_sessions import SparkLives
from cdc_lake.runtime.apply.table_integrity import ApprovedOperations
from cdc_lake.tables.spark_session import death, start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


class RunListener(AbstractContextManager["RunListener"], Protocol):
    """Receives the progress of apply and passes it on. It is entered for one run, and its exit receives the error."""

    def on_progress(self, progress: ProgressEvent) -> None:
        """Handle a progress event."""
        ...

    def follow(self, totals: ApplyTotals) -> None:
        """Take the counters of the run, at its start."""
        ...

    def on_pass_end(self) -> None:
        """Called after each pass, also one without work; `done` says how far it got."""
        ...


class NullListener:
    """Only passes events on."""

    def __init__(self, report: ProgressReporter) -> None:
        self.on_progress = report

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing."""

    def follow(self, totals: ApplyTotals) -> None:
        """Nothing."""

    def on_pass_end(self) -> None:
        """Nothing."""


class ChainedListener:
    """Two listeners: the second receives an event first, and passes it on to the first."""

    def __init__(self, first: RunListener, second: RunListener) -> None:
        self._first = first
        self._second = second
        self._entered = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as entered:
            entered.enter_context(self._first)
            entered.enter_context(self._second)
            self._entered = entered.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.__exit__(kind, error, trace)

    def on_progress(self, progress: ProgressEvent) -> None:
        """Handle a progress event."""
        self._second.on_progress(progress)

    def follow(self, totals: ApplyTotals) -> None:
        """Take the counters of the run, at its start."""
        self._first.follow(totals)
        self._second.follow(totals)

    def on_pass_end(self) -> None:
        """Called after each pass, also one without work."""
        self._first.on_pass_end()
        self._second.on_pass_end()


def watching(project: Project, report: ProgressReporter, *, once: bool = True) -> RunListener:
    """The listeners that the pipeline configures; with `once` the run has an end."""
    lineage: RunListener | None = None
    if (to := project.pipeline.observe.openlineage) is not None:
        from cdc_lake.runtime.apply.lineage_listener import LineageWatch  # noqa: PLC0415  # only where it is asked for

        lineage = LineageWatch(project, to, report, once=once)
    if project.textfile is None:
        return lineage or NullListener(report)
    from cdc_lake.runtime.apply.metrics import ApplyMetrics  # noqa: PLC0415  # only where it is asked for

    metrics = ApplyMetrics(project, project.textfile, lineage.on_progress if lineage else report)
    return ChainedListener(lineage, metrics) if lineage else metrics


_POLL_SECONDS = 0.2
_TRIES = 3  # times that the stream on bronze may end by itself, for example if bronze's log was cleaned up …
_AGAIN_SECONDS = 60.0  # … each within this time of the previous one


@dataclass(frozen=True, slots=True)
class ApplySummary:
    """Result of a run of apply. `upto`: position of the last cut, None if there is none; `paused`: paused tables;
    `idle`: approved operations that no table needed.
    """

    stream: str | None
    upto: int | None
    spans: int
    transactions: int
    changes: int
    merges: int
    quarantined: int
    rules: tuple[dict[str, object], ...]
    failed: dict[str, str]
    paused: tuple[str, ...]
    idle: tuple[str, ...]
    seconds: float


def apply(
    project: Project,
    *,
    once: bool,
    goal: int | None = None,
    stop: threading.Event,
    report: ProgressReporter,
    spark: SparkSession | None = None,
    allowed: frozenset[str] = frozenset(),
    lives: SparkLives | None = None,
) -> ApplySummary:
    """Apply up to `goal` (None: the end of bronze) with `once`, otherwise until `stop`. `allowed`: see `runtime.run`;
    `lives`: earlier crashes of Spark in this run.

    Raises the error of the first table that could not continue, RuleStopped, AnotherApply, JavaMissing,
    SparkNotStarted, SparkDied; with `once` TransactionUndecoded, for which a run without `once` waits.
    """
    began = time.monotonic()
    with apply_lease(project):
        if spark is None:
            report(ProgressEvent("apply", "starting Spark"))
        spark = start(project, spark)
        approved, listener = ApprovedOperations(allowed), watching(project, report, once=once)
        report = listener.on_progress
        gives_way = bool if once else ApplyYield(project, report)  # with a goal, the receiver is done before it applies
        with (
            listener,
            SpanLoop(
                project, spark, report, waits=not once, allowed=approved, gives_way=gives_way, lives=lives
            ) as loop,
        ):
            listener.follow(loop.totals)
            with _recorded(loop, spark, stop):
                loop.run(goal, stop)
                listener.on_pass_end()
                if not stop.is_set():
                    approved.say(report)
                    _follow(project, spark, _Clock(loop, stop, listener), once=once, stop=stop, report=report)
            if (error := loop.totals.error()) is not None:
                raise error
    return summary_of(loop.totals, approved.idle, time.monotonic() - began)


@contextmanager
def _recorded(loop: SpanLoop, spark: SparkSession, stop: threading.Event) -> Iterator[None]:
    """Write the row of the run to `runs` at its end. Raises SparkDied for errors caused by the end of the JVM."""
    began, outcome = time.monotonic(), "failed"
    try:
        yield
        outcome = "failed" if loop.totals.failed else "done"
    except RuleStopped:
        outcome = "stopped"
        raise
    except Exception as cause:
        if (how := death(spark)) is None:
            raise
        if not stop.is_set():
            raise SparkDied(how) from cause
        outcome = "stopped"  # a signal that stopped this process stopped the JVM too
    finally:
        loop.record(time.monotonic() - began, outcome)


def _follow(
    project: Project, spark: SparkSession, clock: _Clock, *, once: bool, stop: threading.Event, report: ProgressReporter
) -> None:
    """Let the stream on bronze call `SpanLoop.run`, and a timer if the stream is idle.

    If the checkpoint no longer fits bronze, it is set aside and a new one begins; this also happens during the run, if
    a span took so long that the stream can no longer follow bronze's log. If Spark cannot stream bronze, its rate
    source is used instead; a run with `once` is then already finished.
    """
    if bronze_reader(project).version() is None or (once and not _streams(project)):
        return
    tries, last = 0, -_AGAIN_SECONDS
    while True:
        try:
            _listen(project, spark, clock, once=once, stop=stop)
            break
        except Exception as cause:
            if death(spark):
                raise
            now = time.monotonic()
            tries, last = 1 if now - last >= _AGAIN_SECONDS else tries + 1, now
            if clock.raised or tries > _TRIES:
                raise ApplyFailed("the stream on bronze ended") from cause
        if project.checkpoint.exists():
            aside = project.checkpoint.with_name(f"{project.checkpoint.name}.aside-{time.time_ns()}")
            project.checkpoint.rename(aside)
            text = f"the checkpoint does not match bronze any more and was set aside as {aside.name}"
            report(ProgressEvent("apply", text))
        stop.wait(tries - 1)
    if clock.failure is not None:
        raise clock.failure


def _listen(project: Project, spark: SparkSession, clock: _Clock, *, once: bool, stop: threading.Event) -> None:
    """Run the query until it or the run ends; raises the error that ended it."""
    query = _query(project, spark, clock, once=once)
    idle = project.pipeline.apply.idle / 1000
    try:
        while not query.awaitTermination(_POLL_SECONDS):
            if stop.is_set() or clock.failure is not None:
                return
            if clock.quiet_for(idle):
                clock.tick()
    finally:
        if not death(spark) and query.isActive:
            query.stop()


def _query(project: Project, spark: SparkSession, clock: _Clock, *, once: bool) -> StreamingQuery:
    if not _streams(project):
        # Spark's rate source, without a checkpoint: the tables themselves record what was done.
        time_rows = spark.readStream.format("rate").option("rowsPerSecond", "1").load()
        ticks = time_rows.writeStream.foreachBatch(clock.on_batch)
        return ticks.trigger(processingTime=f"{project.pipeline.apply.idle} milliseconds").start()
    rows = spark.readStream.format("delta").option("skipChangeCommits", "true").load(str(project.bronze))
    writer = rows.select("position").writeStream.foreachBatch(clock.on_batch)
    writer = writer.option("checkpointLocation", str(project.checkpoint))
    return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="0 seconds")).start()


def _streams(project: Project) -> bool:
    """Whether Spark streams bronze: a Delta table in a folder.

    Iceberg's source fails once the version in its checkpoint is expired, and bronze keeps few versions; for tables in
    an object store Spark would need a client just for a trigger.
    """
    return project.pipeline.bronze.format == "delta" and project.bronze_address is None


class _Clock:
    """Calls `SpanLoop.run`, one call at a time; keeps the first error for the loop to raise."""

    def __init__(self, loop: SpanLoop, stop: threading.Event, listener: RunListener) -> None:
        self._loop = loop
        self._stop = stop
        self._listener = listener
        self._turn = threading.Lock()
        self._last = time.monotonic()
        self.failure: CdcLakeError | None = None
        self.raised = False

    def on_batch(self, batch: DataFrame, batch_id: int) -> None:
        """Called by `foreachBatch`; rows and batch number are ignored."""
        del batch, batch_id
        failpoint(BATCH_ENTERED)
        self.tick()
        failpoint(BATCH_LEFT)

    def tick(self) -> None:
        """Apply up to the end of bronze."""
        with self._turn:
            if self._stop.is_set() or self.failure is not None:
                return
            try:
                self._loop.run(None, self._stop)
                self._listener.on_pass_end()
            except CdcLakeError as failure:
                self.failure = failure
            except Exception:
                self.raised = True
                raise
            finally:
                self._last = time.monotonic()

    def quiet_for(self, seconds: float) -> bool:
        """Whether there was no call for that long."""
        return time.monotonic() - self._last >= seconds


def summary_of(totals: ApplyTotals, idle: tuple[str, ...], seconds: float) -> ApplySummary:
    """The result of a run. `idle`: approved operations that no table needed."""
    return ApplySummary(
        stream=totals.stream,
        upto=totals.upto,
        spans=totals.spans,
        transactions=totals.transactions,
        changes=totals.changes,
        merges=totals.merges,
        quarantined=totals.quarantined,
        rules=tuple(totals.rule_facts()),
        failed={label: error.message for label, error in totals.failed.items()},
        paused=tuple(sorted(totals.paused)),
        idle=idle,
        seconds=seconds,
    )
