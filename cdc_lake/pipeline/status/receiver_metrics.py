"""What the receiver shows to monitoring: counters of what it tells, its pulse, and a look at the source now and then.

`/healthz` says whether it lands and confirms; `/metrics` adds numbers. The source is looked at on a thread and by a
connection of its own, so a source that hangs keeps neither the receiver nor an answer waiting. Only where it is asked
for is any of it there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Final, Self

from cdc_lake.config.project import Project
from cdc_lake.observe.endpoint import Endpoint
from cdc_lake.observe.error_counts import ErrorCounts
from cdc_lake.observe.exposition import Exposition, Sample, Tally
from cdc_lake.observe.metric_names import (
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
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.status.health import Health, health_of
from cdc_lake.pipeline.status.source_looks import SourceLooks
from cdc_lake.pipeline.stream.pulse import Pulse
from cdc_lake.pipeline.wal.note import WalNote
from cdc_lake.source.stream import shown

HEALTH_SCHEMA: Final = "cdc-lake/healthz/1"


class ReceiverMetrics:
    """Serves while it is entered; `heard` passes on what the receiver tells, `pulse` is to be given to it."""

    def __init__(self, project: Project, address: str, tell: Tell) -> None:
        self._name = project.name
        self._tell = tell
        self._tally = Tally()
        self._errors = ErrorCounts(self._tally, Loop.RECEIVE)
        self.pulse = Pulse()
        self._looks = SourceLooks(project, self.pulse)
        self._budget = WalNote(project.lake, project.name)
        self._copied: float | None = None
        self._trouble: tuple[float, Progress] | None = None
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

    def heard(self, progress: Progress) -> None:
        """Pass on what is told, and count it."""
        self._tell(progress)
        self._errors.heard(progress)
        match progress.stage:
            case "landed":
                self._landed(progress.facts)
            case "snapshot":
                self._copied = time.monotonic()
                if "epoch" in progress.facts and progress.total is not None:  # all of it, after its steps
                    self._tally.add(CHANGES_TOTAL, "S", by=progress.total)
            case "retry" if "code" in progress.facts:
                self._trouble = time.monotonic(), progress
            case _:
                pass

    def _landed(self, facts: Mapping[str, object]) -> None:
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
        health, look, pulse = self.health(), self._looks.last(), self.pulse
        out = self._tally.samples()

        def show(metric: Metric, value: float | None, *labels: str) -> None:
            if value is not None:
                out.append(Sample(metric, float(value), labels))

        show(HEALTHY, health.healthy)
        show(OPEN_TRANSACTION_BYTES, pulse.open_bytes)
        if (newest := pulse.newest_decoded) is not None:
            show(DECODING_LAG_SECONDS, max(0.0, time.time() - newest / 1e6))
        show(SPILLED_BYTES_TOTAL, pulse.spilled_bytes)
        if (prepared := pulse.prepared) is not None:
            show(PREPARED_TRANSACTIONS, len(prepared))
            oldest = min((one.at for one in prepared), default=None)
            show(PREPARED_OLDEST_SECONDS, 0 if oldest is None else max(0.0, time.time() - oldest / 1e6))
        show(SOURCE_REACHABLE, look is not None)
        if health.idle_for is not None:
            show(LAST_SUCCESS_TIMESTAMP_SECONDS, time.time() - health.idle_for, Loop.RECEIVE)
        show(LANDED_LAG_SECONDS, self._looks.landed_seconds())
        seen = self._budget.read()
        show(WAL_BUDGET_USED_RATIO, None if seen is None else seen.used)
        if look is not None:
            show(RECEIVED_LAG_BYTES, look.received.bytes)
            show(LANDED_LAG_BYTES, look.landed.bytes)
            show(LANDED_LAG_TRANSACTIONS, look.landed.transactions)
            show(SLOT_ACTIVE, look.slot is not None and look.slot.read_by is not None)
            if look.slot is not None:
                show(SLOT_RETAINED_WAL_BYTES, look.slot.retained)
                show(SLOT_SAFE_WAL_BYTES, look.slot.safe)
                if (told := look.slot.counters) is not None:
                    show(SLOT_SPILLED_TRANSACTIONS_TOTAL, told.spilled_transactions)
                    show(SLOT_SPILLED_BYTES_TOTAL, told.spilled_bytes)
                    show(SLOT_STREAMED_TRANSACTIONS_TOTAL, told.streamed_transactions)
                    show(SLOT_STREAMED_BYTES_TOTAL, told.streamed_bytes)
        return out

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
            "position": None if state is None else shown(state.stream, state.upto),
        }
