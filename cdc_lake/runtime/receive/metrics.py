"""What the receiver shows to monitoring: counters, its health, and what the source keeps for the slot.

`/healthz` says whether it lands and confirms, with the reason; `/metrics` adds numbers. The source is looked at now
and then on a thread and by a connection of its own, so a source that hangs keeps neither the receiver nor an answer
waiting. Nothing of it exists unless it is asked for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Final, Self

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.config.project import Project
from cdc_lake.connectors.base import SlotSeen, SourceIntrospection
from cdc_lake.connectors.factory import source_view
from cdc_lake.connectors.open_stream import ReceiverHealth
from cdc_lake.connectors.snapshot_copy import PeriodicTask
from cdc_lake.connectors.wal_budget import WalNote
from cdc_lake.errors import CdcLakeError
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.observability.exposition import Endpoint, ErrorCounts, Exposition, Sample, Tally
from cdc_lake.observability.metrics import (
    BATCH_ROWS,
    CHANGES_TOTAL,
    DECODING_LAG_SECONDS,
    HEALTHY,
    LANDED_LAG_BYTES,
    LANDED_LAG_SECONDS,
    LANDED_LAG_TRANSACTIONS,
    LAST_SUCCESS_TIMESTAMP_SECONDS,
    OPEN_TRANSACTION_BYTES,
    PREPARED_OLDEST_SECONDS,
    PREPARED_TRANSACTIONS,
    RECEIVED_LAG_BYTES,
    SLOT_ACTIVE,
    SLOT_RETAINED_WAL_BYTES,
    SLOT_SAFE_WAL_BYTES,
    SLOT_SPILLED_BYTES_TOTAL,
    SLOT_SPILLED_TRANSACTIONS_TOTAL,
    SLOT_STREAMED_BYTES_TOTAL,
    SLOT_STREAMED_TRANSACTIONS_TOTAL,
    SOURCE_REACHABLE,
    SPILLED_BYTES_TOTAL,
    TRANSACTIONS_TOTAL,
    WAL_BUDGET_USED_RATIO,
    Loop,
    Metric,
)
from cdc_lake.runtime.receive.lag import Lag, LakeSide, SourceSide, lags_of
from cdc_lake.source.base import domain_of, format_stream_position

LOOK_EVERY: Final = 10.0
"""Seconds between two looks."""
_FRESH: Final = 3 * LOOK_EVERY  # older ones are of a source that does not answer
_REMEMBERED: Final = 360  # an hour of looks: how exactly an older lag is known matters to nobody


@dataclass(frozen=True, slots=True)
class SourceSample:
    """What the source said; lags as `status` has them, empty where no stream is begun."""

    looked_at: float
    slot: SlotSeen | None
    received: Lag
    landed: Lag


class SourceProbe:
    """Looks while it is entered. `pulse` says how far bronze is."""

    def __init__(self, project: Project, pulse: ReceiverHealth) -> None:
        self._pulse = pulse
        self._rounds = PeriodicTask(
            "cdc-lake-look", lambda: LOOK_EVERY, lambda: source_view(project), self.probe_source, self._mark_unreachable
        )
        self.answered: float | None = None
        """When the source was last asked and answered."""
        self._last: SourceSample | None = None
        self._stream: str | None = None
        self._ends: tuple[tuple[float, int], ...] = ()

    def __enter__(self) -> Self:
        self._rounds.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rounds.__exit__(kind, error, trace)

    def last(self) -> SourceSample | None:
        """The newest look, None where the source does not answer."""
        last = self._last
        return last if last is not None and time.monotonic() - last.looked_at <= _FRESH else None

    def landed_seconds(self) -> float | None:
        """How long ago the oldest transaction that is not in bronze was committed, at most.

        Whatever is missing was committed after the newest that landed, and after a look at which the source's log ended
        where bronze is now: a source that rests lets the first grow old, but not the second.
        """
        state, ends = self._pulse.state, self._ends
        if state is None or not ends or self.last() is None or self._stream != state.stream:
            return None
        if ends[-1][1] <= state.upto:
            return 0.0
        bounds = [time.monotonic() - looked_at for looked_at, end in ends if end <= state.upto][-1:]
        if self._pulse.commit_ts is not None:
            bounds.append(max(0.0, time.time() - self._pulse.commit_ts / 1_000_000))
        return min(bounds, default=None)

    def probe_source(self, view: SourceIntrospection) -> None:
        """Ask the source once. Raises SourceError."""
        state, slot, now = self._pulse.state, view.slot(), time.monotonic()
        self.answered = now
        if state is None:
            self._last = SourceSample(now, slot, Lag(), Lag())
            return
        end = view.end(domain_of(state.stream))
        lags = lags_of(SourceSide(None, end, view.received_position(), slot), _lake(state), datetime.now(UTC))
        before = self._ends if state.stream == self._stream else ()
        self._stream, self._ends = state.stream, (*before, (now, end))[-_REMEMBERED:]
        self._last = SourceSample(now, slot, lags["received"], lags["landed"])

    def _mark_unreachable(self, error: CdcLakeError) -> None:
        """`source_reachable` says so; why, the receiver tells, who needs the source too."""
        del error
        self._last = None


def _lake(state: StreamCheckpoint) -> LakeSide:
    """As far as a receiver knows it without asking."""
    return LakeSide(state, copied=False, cut=None, tables={}, waiting=(), last_commit=None, captured=())


STALLED_AFTER: Final = 120.0
"""Seconds without any progress while something waits to be landed, or without a sign of the source while nothing does,
from which on a receiver is not healthy."""


@dataclass(frozen=True, slots=True)
class Health:
    """`state`: `starting`, `copying`, `streaming`, `waiting`, `stalled` or `silent`; why, and `code` of what is waited
    for, None: nothing; `idle_for`: seconds since the last progress, None where there was none yet.
    """

    healthy: bool
    state: str
    reason: str
    code: str | None = None
    idle_for: float | None = None


def health_of(  # noqa: PLR0911 - one return a state
    now: float,
    pulse: ReceiverHealth,
    *,
    copied: float | None,
    answered: float | None,
    trouble: tuple[float, ProgressEvent] | None,
) -> Health:
    """The health at `now`, in seconds of the pulse's clock.

    `copied`: when rows of the initial copy last came; `answered`: when the source last answered a question, which a
    connection that broke without a word does not; `trouble`: what failed last and is tried again, and when. What made
    progress since has left its trouble behind.
    """
    progressed = max(pulse.progressed, -math.inf if copied is None else copied)
    idle_for = None if progressed == -math.inf else max(0.0, now - progressed)
    if trouble is not None and trouble[0] >= progressed:
        return Health(False, "waiting", trouble[1].text, str(trouble[1].facts["code"]), idle_for)
    if idle_for is None:
        return Health(False, "starting", "it is not connected to the source yet")
    if idle_for > STALLED_AFTER:
        return Health(False, "stalled", f"nothing has landed for {idle_for:.0f} s", None, idle_for)
    if pulse.streaming:
        heard = max(pulse.landed_at, -math.inf if answered is None else answered)
        if now - heard > STALLED_AFTER:
            reason = f"nothing is received, and the source has not responded for {now - heard:.0f} s"
            return Health(False, "silent", reason, None, idle_for)
        return Health(True, "streaming", "everything received is landed and acknowledged", None, idle_for)
    if pulse.state is None:
        return Health(True, "copying", "rows of the initial copy are being landed", None, idle_for)
    return Health(False, "starting", "it is not connected to the source", None, idle_for)


HEALTH_SCHEMA: Final = "cdc-lake/healthz/1"


class ReceiverMetrics:
    """Serves while it is entered; `on_progress` passes on what the receiver tells, `pulse` is to be given to it."""

    def __init__(self, project: Project, address: str, report: ProgressReporter) -> None:
        self._name = project.name
        self._report = report
        self._tally = Tally()
        self._errors = ErrorCounts(self._tally, Loop.RECEIVE)
        self.pulse = ReceiverHealth()
        self._looks = SourceProbe(project, self.pulse)
        self._budget = WalNote(project.lake, project.name)
        self._copied: float | None = None
        self._trouble: tuple[float, ProgressEvent] | None = None
        self._tally.add(TRANSACTIONS_TOTAL, by=0)
        for op in "IUDTMXS":
            self._tally.add(CHANGES_TOTAL, op, by=0)
        self._endpoint = Endpoint(address, Exposition(project.name, self.samples), self._healthz)

    def __enter__(self) -> Self:
        """Raises MetricsNotServed."""
        self._endpoint.__enter__()
        self._looks.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._endpoint.__exit__(kind, error, trace)
        self._looks.__exit__(kind, error, trace)

    def on_progress(self, progress: ProgressEvent) -> None:
        """Pass on what is told, and count it."""
        self._report(progress)
        self._errors.on_progress(progress)
        match progress.stage:
            case "landed":
                self._count_commit(progress.facts)
            case "snapshot":
                self._copied = time.monotonic()
                if "epoch" in progress.facts and progress.total is not None:  # all of it, after its steps
                    self._tally.add(CHANGES_TOTAL, "S", by=progress.total)
            case "retry" if "code" in progress.facts:
                self._trouble = time.monotonic(), progress
            case _:
                pass

    def _count_commit(self, facts: Mapping[str, object]) -> None:
        transactions, changes, operations = facts["transactions"], facts["changes"], facts["operations"]
        assert isinstance(transactions, int)
        assert isinstance(changes, int)
        assert isinstance(operations, dict)
        self._tally.add(TRANSACTIONS_TOTAL, by=transactions)
        self._tally.observe(BATCH_ROWS, changes)
        for op, number in operations.items():
            self._tally.add(CHANGES_TOTAL, op, by=number)

    def health(self) -> Health:
        """How the receiver is doing now."""
        return health_of(
            time.monotonic(), self.pulse, copied=self._copied, answered=self._looks.answered, trouble=self._trouble
        )

    def samples(self) -> list[Sample]:
        """Everything that has a value now."""
        health, last_look, pulse = self.health(), self._looks.last(), self.pulse
        result = self._tally.samples()

        def show(metric: Metric, value: float | None, *labels: str) -> None:
            if value is not None:
                result.append(Sample(metric, float(value), labels))

        show(HEALTHY, health.healthy)
        show(OPEN_TRANSACTION_BYTES, pulse.open_bytes)
        if (newest := pulse.newest_decoded) is not None:
            show(DECODING_LAG_SECONDS, max(0.0, time.time() - newest / 1e6))
        show(SPILLED_BYTES_TOTAL, pulse.spilled_bytes)
        if (prepared := pulse.prepared) is not None:
            show(PREPARED_TRANSACTIONS, len(prepared))
            oldest = min((transaction.prepared_at for transaction in prepared), default=None)
            show(PREPARED_OLDEST_SECONDS, 0 if oldest is None else max(0.0, time.time() - oldest / 1e6))
        show(SOURCE_REACHABLE, last_look is not None)
        if health.idle_for is not None:
            show(LAST_SUCCESS_TIMESTAMP_SECONDS, time.time() - health.idle_for, Loop.RECEIVE)
        show(LANDED_LAG_SECONDS, self._looks.landed_seconds())
        budget = self._budget.read()
        show(WAL_BUDGET_USED_RATIO, None if budget is None else budget.used)
        if last_look is not None:
            show(RECEIVED_LAG_BYTES, last_look.received.bytes)
            show(LANDED_LAG_BYTES, last_look.landed.bytes)
            show(LANDED_LAG_TRANSACTIONS, last_look.landed.transactions)
            show(SLOT_ACTIVE, last_look.slot is not None and last_look.slot.read_by is not None)
            if last_look.slot is not None:
                show(SLOT_RETAINED_WAL_BYTES, last_look.slot.retained)
                show(SLOT_SAFE_WAL_BYTES, last_look.slot.safe)
                if (counters := last_look.slot.counters) is not None:
                    show(SLOT_SPILLED_TRANSACTIONS_TOTAL, counters.spilled_transactions)
                    show(SLOT_SPILLED_BYTES_TOTAL, counters.spilled_bytes)
                    show(SLOT_STREAMED_TRANSACTIONS_TOTAL, counters.streamed_transactions)
                    show(SLOT_STREAMED_BYTES_TOTAL, counters.streamed_bytes)
        return result

    def _healthz(self) -> tuple[bool, Mapping[str, object]]:
        health, state = self.health(), self.pulse.state
        progress = None if health.idle_for is None else datetime.now(UTC) - timedelta(seconds=health.idle_for)
        return health.healthy, {
            "schema": HEALTH_SCHEMA,
            "pipeline": self._name,
            "healthy": health.healthy,
            "state": health.state,
            "reason": health.reason,
            "code": health.code,
            "last_progress": None if progress is None else progress.isoformat(timespec="milliseconds"),
            "position": None if state is None else format_stream_position(state.stream, state.upto),
        }
