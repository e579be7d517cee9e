"""Metrics and health of the receiver: counters, state, and what the source retains for the slot.

`/healthz` says whether the receiver lands and acknowledges, with the reason; `/metrics` adds numbers. A separate thread
queries the source now and then by its own connection, so a source that hangs delays neither the receiver nor an answer.
Nothing runs unless it is configured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Self

from cdc_lake.config.project import Project
from cdc_lake.connectors.base import SlotSeen, SourceIntrospection
from cdc_lake.connectors.factory import source_view
from cdc_lake.connectors.open_stream import ReceiverHealth
from cdc_lake.connectors.snapshot_copy import PeriodicTask
from cdc_lake.connectors.wal_budget import WalNote
from cdc_lake.errors import CdcLakeError
from cdc_lake.observability import metrics
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.observability.exposition import ErrorCounts, Exposition, Sample, Tally, serve
from cdc_lake.runtime.receive.lag import Lag, LakeSide, SourceSide, lags_of
from cdc_lake.source.base import domain_of, format_stream_position

LOOK_EVERY: Final = 10.0
"""Seconds between two queries."""
_FRESH: Final = 3 * LOOK_EVERY  # after this time without an answer the source counts as unreachable
_REMEMBERED: Final = 360  # an hour of samples, enough precision for an older lag


@dataclass(frozen=True, slots=True)
class SourceSample:
    """What the source reported; lags as in `status`, empty without a stream."""

    looked_at: float
    slot: SlotSeen | None
    received: Lag
    landed: Lag


class SourceProbe:
    """Queries the source while it is entered. `pulse` says how far bronze is."""

    def __init__(self, project: Project, pulse: ReceiverHealth) -> None:
        self._pulse = pulse
        self._rounds = PeriodicTask(
            "cdc-lake-look", lambda: LOOK_EVERY, lambda: source_view(project), self.probe_source, self._mark_unreachable
        )
        self.answered: float | None = None
        """When the source last answered."""
        self._last: SourceSample | None = None
        self._stream: str | None = None
        self._ends: tuple[tuple[float, int], ...] = ()

    def __enter__(self) -> Self:
        self._rounds.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._rounds.__exit__()

    def last(self) -> SourceSample | None:
        """The newest sample, None if the source does not answer."""
        last = self._last
        return last if last is not None and time.monotonic() - last.looked_at <= _FRESH else None

    def landed_seconds(self) -> float | None:
        """Upper bound of the seconds since the commit of the oldest transaction that is not in bronze.

        What is missing was committed after the newest landed transaction, and after a sample in which the source's WAL
        ended where bronze is now: at an idle source the first grows old, the second does not.
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
        """Query the source once. Raises SourceError."""
        state, slot, now = self._pulse.state, view.slot(), time.monotonic()
        self.answered = now
        if state is None:
            self._last = SourceSample(now, slot, Lag(), Lag())
            return
        end = view.end(domain_of(state.stream))
        # the lake as far as a receiver knows it without reading
        lake = LakeSide(state, copied=False, cut=None, tables={}, waiting=(), last_commit=None, captured=())
        lags = lags_of(SourceSide(None, end, view.received_position(), slot), lake, datetime.now(UTC))
        before = self._ends if state.stream == self._stream else ()
        self._stream, self._ends = state.stream, (*before, (now, end))[-_REMEMBERED:]
        self._last = SourceSample(now, slot, lags["received"], lags["landed"])

    def _mark_unreachable(self, error: CdcLakeError) -> None:
        """Set `source_reachable` to 0; the receiver, which needs the source too, reports the reason."""
        del error
        self._last = None


STALLED_AFTER: Final = 120.0
"""Seconds without progress while something waits to be landed, or without an answer of the source while nothing does,
after which a receiver is unhealthy."""


@dataclass(frozen=True, slots=True)
class Health:
    """`state`: `starting`, `copying`, `streaming`, `waiting`, `stalled` or `silent`; the reason, and `code` of the
    error that it waits for, None without one; `idle_for`: seconds since the last progress, None if there was none yet.
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

    `copied`: when rows of the initial copy last came; `answered`: when the source last answered a query, which a
    silently broken connection does not; `trouble`: the last failure that is being retried, and when; later progress
    cancels it.
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


class ReceiverMetrics:
    """Serves metrics while it is entered; `on_progress` passes on the receiver's events; the receiver gets `pulse`."""

    def __init__(self, project: Project, address: str, report: ProgressReporter) -> None:
        self._name = project.name
        self._report = report
        self._tally = Tally()
        self._errors = ErrorCounts(self._tally, metrics.Loop.RECEIVE)
        self.pulse = ReceiverHealth()
        self._looks = SourceProbe(project, self.pulse)
        self._budget = WalNote(project)
        self._copied: float | None = None
        self._trouble: tuple[float, ProgressEvent] | None = None
        self._tally.add(metrics.TRANSACTIONS_TOTAL, by=0)
        for op in "IUDTMXS":
            self._tally.add(metrics.CHANGES_TOTAL, op, by=0)
        self._endpoint = serve(address, Exposition(project.name, self.samples), self._healthz)
        self._entered = ExitStack()

    def __enter__(self) -> Self:
        """Raises MetricsNotServed."""
        self._entered.enter_context(self._endpoint)
        self._entered.enter_context(self._looks)
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.close()

    def on_progress(self, progress: ProgressEvent) -> None:
        """Pass an event on, and count it."""
        self._report(progress)
        self._errors.on_progress(progress)
        match progress.stage:
            case "landed":
                facts = progress.facts
                transactions, changes, operations = facts["transactions"], facts["changes"], facts["operations"]
                assert isinstance(transactions, int)
                assert isinstance(changes, int)
                assert isinstance(operations, dict)
                self._tally.add(metrics.TRANSACTIONS_TOTAL, by=transactions)
                self._tally.observe(metrics.BATCH_ROWS, changes)
                for op, number in operations.items():
                    self._tally.add(metrics.CHANGES_TOTAL, op, by=number)
            case "snapshot":
                self._copied = time.monotonic()
                if "epoch" in progress.facts and progress.total is not None:  # the total, after the single steps
                    self._tally.add(metrics.CHANGES_TOTAL, "S", by=progress.total)
            case "retry" if "code" in progress.facts:
                self._trouble = time.monotonic(), progress
            case _:
                pass

    def health(self) -> Health:
        """The health now."""
        return health_of(
            time.monotonic(), self.pulse, copied=self._copied, answered=self._looks.answered, trouble=self._trouble
        )

    def samples(self) -> list[Sample]:
        """All metrics that have a value now."""
        health, last_look, pulse = self.health(), self._looks.last(), self.pulse
        result = self._tally.samples()

        def show(metric: metrics.Metric, value: float | None, *labels: str) -> None:
            if value is not None:
                result.append(Sample(metric, float(value), labels))

        show(metrics.HEALTHY, health.healthy)
        show(metrics.OPEN_TRANSACTION_BYTES, pulse.open_bytes)
        if (newest := pulse.newest_decoded) is not None:
            show(metrics.DECODING_LAG_SECONDS, max(0.0, time.time() - newest / 1e6))
        show(metrics.SPILLED_BYTES_TOTAL, pulse.spilled_bytes)
        if (prepared := pulse.prepared) is not None:
            show(metrics.PREPARED_TRANSACTIONS, len(prepared))
            oldest = min((transaction.prepared_at for transaction in prepared), default=None)
            show(metrics.PREPARED_OLDEST_SECONDS, 0 if oldest is None else max(0.0, time.time() - oldest / 1e6))
        show(metrics.SOURCE_REACHABLE, last_look is not None)
        if health.idle_for is not None:
            show(metrics.LAST_SUCCESS_TIMESTAMP_SECONDS, time.time() - health.idle_for, metrics.Loop.RECEIVE)
        show(metrics.LANDED_LAG_SECONDS, self._looks.landed_seconds())
        budget = self._budget.read()
        show(metrics.WAL_BUDGET_USED_RATIO, None if budget is None else budget.used)
        if last_look is not None:
            show(metrics.RECEIVED_LAG_BYTES, last_look.received.bytes)
            show(metrics.LANDED_LAG_BYTES, last_look.landed.bytes)
            show(metrics.LANDED_LAG_TRANSACTIONS, last_look.landed.transactions)
            show(metrics.SLOT_ACTIVE, last_look.slot is not None and last_look.slot.read_by is not None)
            if last_look.slot is not None:
                show(metrics.SLOT_RETAINED_WAL_BYTES, last_look.slot.retained)
                show(metrics.SLOT_SAFE_WAL_BYTES, last_look.slot.safe)
                if (counters := last_look.slot.counters) is not None:
                    show(metrics.SLOT_SPILLED_TRANSACTIONS_TOTAL, counters.spilled_transactions)
                    show(metrics.SLOT_SPILLED_BYTES_TOTAL, counters.spilled_bytes)
                    show(metrics.SLOT_STREAMED_TRANSACTIONS_TOTAL, counters.streamed_transactions)
                    show(metrics.SLOT_STREAMED_BYTES_TOTAL, counters.streamed_bytes)
        return result

    def _healthz(self) -> tuple[bool, Mapping[str, object]]:
        health, state = self.health(), self.pulse.state
        progress = None if health.idle_for is None else datetime.now(UTC) - timedelta(seconds=health.idle_for)
        return health.healthy, {
            "schema": "cdc-lake/healthz/1",
            "pipeline": self._name,
            "healthy": health.healthy,
            "state": health.state,
            "reason": health.reason,
            "code": health.code,
            "last_progress": None if progress is None else progress.isoformat(timespec="milliseconds"),
            "position": None if state is None else format_stream_position(state.stream, state.upto),
        }
