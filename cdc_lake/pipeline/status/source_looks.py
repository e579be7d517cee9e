"""Looks at the source, now and then: where its log ends and what it keeps for the slot, while a receiver runs.

They are made on a thread and a connection of their own; what is read is a value that anybody may ask for at any time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Self

from cdc_lake.bronze.port import BronzeState
from cdc_lake.config.project import Project
from cdc_lake.errors import CdcLakeError
from cdc_lake.pipeline.ports.view import SlotSeen, SourceView
from cdc_lake.pipeline.server import source_view
from cdc_lake.pipeline.status.lags import LakeSide, SourceSide, lags_of
from cdc_lake.pipeline.status.values import Lag
from cdc_lake.pipeline.stream.pulse import Pulse
from cdc_lake.pipeline.stream.rounds import Rounds
from cdc_lake.source.stream import domain_of

LOOK_EVERY: Final = 10.0
"""Seconds between two looks."""
_FRESH: Final = 3 * LOOK_EVERY  # older ones are of a source that does not answer
_REMEMBERED: Final = 360  # an hour of looks: how exactly an older lag is known matters to nobody


@dataclass(frozen=True, slots=True)
class Look:
    """What the source said; lags as `status` has them, empty where no stream is begun."""

    at: float
    slot: SlotSeen | None
    received: Lag
    landed: Lag


class SourceLooks:
    """Looks while it is entered. `pulse` says how far bronze is."""

    def __init__(self, project: Project, pulse: Pulse) -> None:
        self._pulse = pulse
        self._rounds = Rounds("cdc-lake-look", lambda: LOOK_EVERY, lambda: source_view(project), self.look, self._away)
        self.answered: float | None = None
        """When the source was last asked and answered."""
        self._last: Look | None = None
        self._stream: str | None = None
        self._ends: tuple[tuple[float, int], ...] = ()

    def __enter__(self) -> Self:
        self._rounds.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rounds.__exit__(kind, error, trace)

    def last(self) -> Look | None:
        """The newest look, None where the source does not answer."""
        last = self._last
        return last if last is not None and time.monotonic() - last.at <= _FRESH else None

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
        bounds = [time.monotonic() - at for at, end in ends if end <= state.upto][-1:]
        if self._pulse.commit_ts is not None:
            bounds.append(max(0.0, time.time() - self._pulse.commit_ts / 1_000_000))
        return min(bounds, default=None)

    def look(self, view: SourceView) -> None:
        """Ask the source once. Raises SourceError."""
        state, slot, at = self._pulse.state, view.slot(), time.monotonic()
        self.answered = at
        if state is None:
            self._last = Look(at, slot, Lag(), Lag())
            return
        end = view.end(domain_of(state.stream))
        lags = lags_of(SourceSide(None, end, view.received(), slot), _lake(state), datetime.now(UTC))
        before = self._ends if state.stream == self._stream else ()
        self._stream, self._ends = state.stream, (*before, (at, end))[-_REMEMBERED:]
        self._last = Look(at, slot, lags["received"], lags["landed"])

    def _away(self, error: CdcLakeError) -> None:
        """`source_reachable` says so; why, the receiver tells, who needs the source too."""
        del error
        self._last = None


def _lake(state: BronzeState) -> LakeSide:
    """As far as a receiver knows it without asking."""
    return LakeSide(state, copied=False, cut=None, tables={}, waiting=(), last_commit=None, captured=())
