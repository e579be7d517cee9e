"""The receiver: reads the replication slot and writes bronze, without Spark or a JVM.

    frames → whole transactions → in order → one commit, durable → only then acknowledged to the server

It survives the loss of its connection and of the lake; `runtime.receive.loop` processes one connection's stream. A WAL
budget monitor and the heartbeat of a PostgreSQL run in parallel, if configured.

A lost source is retried at a constant rate: within a second and a quarter after it is back, and at most once a second.
The pause is random, so that the receivers of one server do not all reconnect at once. If a server accepts connections
and drops them before anything landed, pauses increase. So do those for a lake, where every attempt costs requests.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Final

from cdc_lake.bronze.contract import BronzeWriter
from cdc_lake.config.project import Project
from cdc_lake.config.source import PostgresSource
from cdc_lake.connectors.open_stream import PATIENCE, OpenStream, ReceiverHealth, do_nothing
from cdc_lake.connectors.snapshot_copy import Stopped
from cdc_lake.control.coordination import ReceiverNote
from cdc_lake.errors import LakeError, Retry, SlotGivenUp, SourceError
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.observability.failpoints import CONNECTED, failpoint
from cdc_lake.runtime.receive.commit_pipeline import RetryingBronzeWriter, retrying
from cdc_lake.runtime.receive.loop import ReceiveLoop, ReceiveSummary
from cdc_lake.runtime.receive.stream_setup import open_stream
from cdc_lake.runtime.receive.wal_budget_monitor import WalBudgetMonitor
from cdc_lake.tables.control_tables import control_tables

SOURCE_PAUSES: Final = (1.0, 1.25)
"""Seconds: the shortest and the longest pause before the source is tried."""
STEADY: Final = 10.0
"""Seconds after which a stream counts as successful even if it landed no transaction."""
_LONGER_AT_MOST: Final = 20  # maximum factor of the pause
_LAKE_PAUSES: Final = (0.5, 10.0)  # seconds: the first and the longest
_TOLD_EVERY: Final = 10.0  # seconds; a failure of another kind is reported at once


class ReconnectBackoff:
    """Pauses between the attempts of one receiver."""

    def __init__(
        self,
        report: ProgressReporter,
        pauses: tuple[float, float] = SOURCE_PAUSES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._report = report
        self._pauses = pauses
        self._clock = clock
        self._lake = _LAKE_PAUSES[0]
        self._last_reported: tuple[str, float] | None = None
        self._opened: tuple[float, object] | None = None
        self._dropped = 0  # consecutive streams without a result
        self._longer = 1

    def record_open(self, held: object) -> None:
        """A stream is open; `held`: what bronze contains, to be compared at its end."""
        self._opened = self._clock(), held

    def record_end(self, held: object) -> bool:
        """An attempt has ended; returns whether it succeeded: something landed, or the stream was open for long."""
        opened, self._opened, self._longer = self._opened, None, 1
        if opened is None:
            return False
        if held == opened[1] and self._clock() - opened[0] < STEADY:
            self._longer = min(2**self._dropped, _LONGER_AT_MOST)
            self._dropped += 1
            return False
        self._lake, self._last_reported, self._dropped = _LAKE_PAUSES[0], None, 0
        return True

    def after_source(self, error: SourceError) -> float:
        """Report a failure of the source; returns the pause after it."""
        pause = self._longer * random.uniform(*self._pauses)  # noqa: S311 - no secret
        now = self._clock()
        code, reported_at = self._last_reported or ("", -math.inf)
        if code != error.code or now - reported_at >= _TOLD_EVERY:
            self._last_reported = error.code, now
            text = f"{error.message}; next attempt in {pause:.1f} s"
            self._report(ProgressEvent("retry", text, facts={"code": error.code}))
        return pause

    def after_lake(self, error: LakeError) -> float:
        """The same for the lake."""
        pause, self._lake = self._lake, min(2 * self._lake, _LAKE_PAUSES[1])
        self._report(retrying(error, pause))
        return pause


@contextmanager
def beside_the_stream(project: Project, report: ProgressReporter, *, once: bool) -> Iterator[WalBudgetMonitor | None]:
    """Run the budget monitor and, without `once`, the heartbeat while a receiver runs; drop a slot that is given up."""
    source = project.pipeline.source
    with ExitStack() as entered:
        if isinstance(source, PostgresSource) and source.heartbeat is not None and not once:
            # imported here: each type of source needs only its own driver
            from cdc_lake.connectors.postgres.adapter import heartbeat  # noqa: PLC0415

            entered.enter_context(heartbeat(project, source.heartbeat, report))
        if source.wal_budget is None:
            yield None
            return
        watch = entered.enter_context(WalBudgetMonitor(project, source.wal_budget, report))
        try:
            yield watch
        except SlotGivenUp:
            watch.give_up()
            raise


ONCE_PATIENCE = 60.0
"""Seconds for which a run with a goal keeps trying while nothing lands and no stream stays open."""


def receive(
    project: Project,
    bronze: BronzeWriter,
    *,
    once: bool,
    stop: threading.Event,
    report: ProgressReporter,
    slot_patience: float = PATIENCE,
    health: ReceiverHealth | None = None,
    pauses: tuple[float, float] = SOURCE_PAUSES,
) -> ReceiveSummary:
    """Receive until `stop` is set or, with `once`, until bronze holds everything committed before the start.

    Reconnects if it was connected once: without a limit, or with `once` for at most `ONCE_PATIENCE` seconds without a
    successful attempt. It waits without a limit for a lake that is unavailable or full; with `once` the run ends.
    `health`: updated by the loop; `pauses`: seconds, the shortest and the longest before the source is tried again.
    Raises SourceError, DecodeError, LakeError, StateError; bronze is then complete up to its last commit.
    """
    control = control_tables(project, project.pipeline.bronze.durability)
    with ReceiverNote(project, report) as note:
        outlasting = None if once else RetryingBronzeWriter(bronze, stop, report, note)
        bronze, waiting = outlasting or bronze, outlasting or nullcontext()
        health = health or ReceiverHealth()
        with beside_the_stream(project, report, once=once) as watch:
            loop = ReceiveLoop(
                project, bronze, control,
                once=once, stop=stop, report=report, connected=waiting, health=health, watch=watch,
            )  # fmt: skip
            enforce_wal_budget, checked_report = (
                (do_nothing, report) if watch is None else (watch.enforce_wal_budget, _checking_budget(watch, report))
            )
            connect = partial(
                open_stream, project, bronze, control, stop, checked_report,
                patience=slot_patience, first=once, enforce_wal_budget=enforce_wal_budget,
            )  # fmt: skip
            _connections(loop, connect, note, ReconnectBackoff(report, pauses))
    return loop.summary()


def _checking_budget(watch: WalBudgetMonitor, report: ProgressReporter) -> ProgressReporter:
    """A reporter that ends the initial copy, which reports every chunk, if the slot is given up.

    Copies in parallel with the stream are ended by it, those before it by `enforce_wal_budget` in `open_stream`.
    """
    receiver = threading.current_thread()

    def report_and_check(progress: ProgressEvent) -> None:
        if threading.current_thread() is receiver:
            watch.enforce_wal_budget()
        report(progress)

    return report_and_check


def _connections(
    loop: ReceiveLoop,
    connect: Callable[[], AbstractContextManager[OpenStream]],
    note: ReceiverNote,
    attempts: ReconnectBackoff,
) -> None:
    """Yield one connection after another, until the run is done or waiting is pointless."""
    give_up: float | None = None
    while not loop.stop.is_set():
        loop.enforce_wal_budget()
        try:
            with connect() as stream:
                attempts.record_open((stream.state.upto, stream.state.confirm))
                note.goes_on()
                failpoint(CONNECTED)
                loop.run(stream)
                return
        except Stopped:
            return
        except SourceError as error:
            now = time.monotonic()
            give_up = (None if attempts.record_end(_landed_positions(loop)) else give_up) or now + ONCE_PATIENCE
            if error.retry is Retry.NEVER or not loop.has_connected or (loop.once and now > give_up):
                raise
            pause = attempts.after_source(error)
        except LakeError as error:
            if error.retry is Retry.NEVER or not loop.has_connected or loop.once:
                raise
            attempts.record_end(_landed_positions(loop))
            note.waits(error)
            pause = attempts.after_lake(error)
        loop.count(reconnects=1)
        loop.stop.wait(pause)


def _landed_positions(loop: ReceiveLoop) -> tuple[int | None, int | None]:
    """The position that bronze has reached, and the one that it lets the server discard."""
    summary = loop.summary()
    return summary.upto, summary.confirm
