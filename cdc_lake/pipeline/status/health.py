"""Health of a receiver: whether it lands and confirms what comes, as one value with its reason."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from cdc_lake.observe.progress import Progress
from cdc_lake.pipeline.stream.pulse import Pulse

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
    now: float, pulse: Pulse, *, copied: float | None, answered: float | None, trouble: tuple[float, Progress] | None
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
        return Health(False, "stalled", f"nothing was landed for {idle_for:.0f} s", None, idle_for)
    if pulse.streaming:
        heard = max(pulse.landed_at, -math.inf if answered is None else answered)
        if now - heard > STALLED_AFTER:
            reason = f"nothing comes, and the source has not answered for {now - heard:.0f} s"
            return Health(False, "silent", reason, None, idle_for)
        return Health(True, "streaming", "what comes is landed and confirmed", None, idle_for)
    if pulse.state is None:
        return Health(True, "copying", "rows of the initial copy are landed", None, idle_for)
    return Health(False, "starting", "it is not connected to the source", None, idle_for)
