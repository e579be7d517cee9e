"""Loop 2: apply. Bronze to silver, span by span, each table exactly once.

The stream on bronze is only the clock: `advance` asks the tables where they are, walks to the top of bronze in spans
that end at transactions, and is called before the query starts, by each `foreachBatch`, and when nothing has come for a
while. So a lost checkpoint loses nothing and a replayed batch repeats nothing.

A table that cannot go on (a destructive change of its layout, another writer) waits; the others go on, the cuts say so,
and the run ends with the table's error.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.errors import ApplyFailed, CdcLakeError, RuleStopped, SparkDied
from cdc_lake.lake.lease import lease
from cdc_lake.lake.session import death, start
from cdc_lake.observe.failpoint import BATCH_ENTERED, BATCH_LEFT, failpoint
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.applying.advance import Advance
from cdc_lake.pipeline.applying.allowed import Allowed
from cdc_lake.pipeline.applying.applied import Applied
from cdc_lake.pipeline.applying.sessions import SparkLives
from cdc_lake.pipeline.applying.watching import Watcher, watching
from cdc_lake.pipeline.wal.note import GivesWay, never

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

_POLL_SECONDS = 0.2
_TRIES = 3  # streams on bronze that may end by themselves, as where its log is cleaned up meanwhile …
_AGAIN_SECONDS = 60.0  # … each of them within this time of the one before


@dataclass(frozen=True, slots=True)
class ApplySummary:
    """What a run of apply did. `upto`: position of the last cut, None where there is none yet; `paused`: tables that
    somebody paused; `idle`: operations that were allowed and that no table waited with.
    """

    stream: str | None
    upto: int | None
    spans: int
    transactions: int
    changes: int
    merges: int
    held: int
    rules: tuple[dict[str, object], ...]
    broken: dict[str, str]
    paused: tuple[str, ...]
    idle: tuple[str, ...]
    seconds: float


def apply(
    project: Project,
    *,
    once: bool,
    goal: int | None = None,
    stop: threading.Event,
    tell: Tell,
    spark: SparkSession | None = None,
    allowed: frozenset[str] = frozenset(),
    lives: SparkLives | None = None,
) -> ApplySummary:
    """Apply until `goal` (None: what bronze holds) with `once`, otherwise until `stop`. `allowed`: `pipeline.run`;
    `lives`: how Spark fared before in this run.

    Raises the error of the first table that could not go on, RuleStopped, AnotherApply, JavaMissing,
    SparkNotStarted, SparkDied; with `once` TransactionUndecoded, for which a run without end waits.
    """
    began = time.monotonic()
    with lease(project.lease):
        if spark is None:
            tell(Progress("apply", "starting Spark"))
            spark = start(project)
        may = Allowed(allowed)
        done = _apply(project, spark, once=once, goal=goal, stop=stop, tell=tell, allowed=may, lives=lives)
    return summary_of(done, may.idle, time.monotonic() - began)


def _apply(
    project: Project,
    spark: SparkSession,
    *,
    once: bool,
    goal: int | None,
    stop: threading.Event,
    tell: Tell,
    allowed: Allowed,
    lives: SparkLives | None,
) -> Applied:
    began, watcher = time.monotonic(), watching(project, tell, once=once)
    gives_way = never if once else GivesWay(project, watcher.heard)
    with (
        watcher,
        Advance(
            project, spark, watcher.heard, waits=not once, allowed=allowed, gives_way=gives_way, lives=lives
        ) as advance,
    ):
        watcher.follow(advance.done)
        clock, outcome = _Clock(advance, stop, watcher), "failed"
        try:
            advance.run(goal, stop)
            watcher.walked()
            if not stop.is_set():
                allowed.say(watcher.heard)
                _follow(project, spark, clock, once=once, stop=stop, tell=watcher.heard)
            outcome = "failed" if advance.done.broken else "done"
        except RuleStopped:
            outcome = "stopped"
            raise
        except Exception as cause:
            if (how := death(spark)) is None:
                raise
            if not stop.is_set():
                raise SparkDied(how) from cause
            outcome = "stopped"  # who asked us to stop asked the JVM too
        finally:
            advance.record(time.monotonic() - began, outcome)
        if (error := advance.done.error()) is not None:
            raise error
        return advance.done


def _follow(
    project: Project, spark: SparkSession, clock: _Clock, *, once: bool, stop: threading.Event, tell: Tell
) -> None:
    """Let the stream on bronze call `advance`; between its calls the idle timer does.

    A checkpoint that no longer fits bronze is only a hint: it is set aside, and a new one begins; also while it runs,
    when a span took so long that bronze's log went on without it. Where Spark has no stream of bronze, its clock calls
    instead, and a run that ends with what bronze holds has walked there already.
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
            tell(Progress("apply", f"the checkpoint does not fit bronze any more and was set aside as {aside.name}"))
        stop.wait(tries - 1)
    if clock.failure is not None:
        raise clock.failure


def _listen(project: Project, spark: SparkSession, clock: _Clock, *, once: bool, stop: threading.Event) -> None:
    """Run the query until it ends or we are to; raises what ended it."""
    query = _query(project, spark, clock, project.checkpoint, once=once)
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


def _query(project: Project, spark: SparkSession, clock: _Clock, checkpoint: Path, *, once: bool) -> StreamingQuery:
    if not _streams(project):
        return _ticks(project, spark, clock)
    rows = spark.readStream.format("delta").option("skipChangeCommits", "true").load(str(project.bronze))
    writer = (
        rows.select("position").writeStream.foreachBatch(clock.on_batch).option("checkpointLocation", str(checkpoint))
    )
    return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="0 seconds")).start()


def _streams(project: Project) -> bool:
    """Whether Spark streams bronze: a Delta table in a folder.

    Iceberg's source dies with the version that its checkpoint names, and bronze keeps few of them; for tables in an
    object store Spark would need the store's own jars only to be told the time.
    """
    return project.pipeline.bronze.format == "delta" and project.bronze_address is None


def _ticks(project: Project, spark: SparkSession, clock: _Clock) -> StreamingQuery:
    """A query on Spark's own clock. It needs no checkpoint: what was done, the tables say."""
    time_rows = spark.readStream.format("rate").option("rowsPerSecond", "1").load()
    writer = time_rows.writeStream.foreachBatch(clock.on_batch)
    return writer.trigger(processingTime=f"{project.pipeline.apply.idle} milliseconds").start()


class _Clock:
    """Calls `advance`, one call at a time; keeps the first failure for the loop to raise as it is."""

    def __init__(self, advance: Advance, stop: threading.Event, watcher: Watcher) -> None:
        self._advance = advance
        self._stop = stop
        self._watcher = watcher
        self._turn = threading.Lock()
        self._last = time.monotonic()
        self.failure: CdcLakeError | None = None
        self.called = False
        self.raised = False

    def on_batch(self, batch: DataFrame, batch_id: int) -> None:
        """What `foreachBatch` calls; rows and number of the batch mean nothing here."""
        del batch, batch_id
        failpoint(BATCH_ENTERED)
        self.called = True
        self.tick()
        failpoint(BATCH_LEFT)

    def tick(self) -> None:
        """Walk to the top of bronze."""
        with self._turn:
            if self._stop.is_set() or self.failure is not None:
                return
            try:
                self._advance.run(None, self._stop)
                self._watcher.walked()
            except CdcLakeError as failure:
                self.failure = failure
            except Exception:
                self.raised = True
                raise
            finally:
                self._last = time.monotonic()

    def quiet_for(self, seconds: float) -> bool:
        """Whether nothing has called for so long."""
        return time.monotonic() - self._last >= seconds


def summary_of(done: Applied, idle: tuple[str, ...], seconds: float) -> ApplySummary:
    """What a run did. `idle`: operations that were allowed and that no table waited with."""
    return ApplySummary(
        stream=done.stream,
        upto=done.upto,
        spans=done.spans,
        transactions=done.transactions,
        changes=done.changes,
        merges=done.merges,
        held=done.held,
        rules=tuple(done.rule_facts()),
        broken={label: error.message for label, error in done.broken.items()},
        paused=tuple(sorted(done.paused)),
        idle=idle,
        seconds=seconds,
    )
