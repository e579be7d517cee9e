"""Attempts: how soon a receiver that lost its source, or its lake, tries again, and how often it says so.

A source is tried at one pace: whoever comes back is tried within a second and a quarter, to be read again within two,
and no server that is down sees more than one attempt a second. The pause is drawn anew each time, so that receivers
that lost one server come back to it one by one. Who takes a connection and drops it again, before anything landed, is
tried with longer and longer pauses. So is a lake, as every attempt there costs requests.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final

from cdc_lake.errors import LakeError, SourceError
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.receiving.outlasting import retrying

SOURCE_PAUSES: Final = (1.0, 1.25)
"""Seconds: the shortest and the longest pause before the source is tried."""
STEADY: Final = 10.0
"""Seconds that a stream stands of which nothing landed, and still counts as one that was there."""
_LONGER_AT_MOST: Final = 20  # times
_LAKE_PAUSES: Final = (0.5, 10.0)  # seconds: the first and the longest
_TOLD_EVERY: Final = 10.0  # seconds; a failure of another kind is told at once


class Attempts:
    """Pauses between the attempts of one receiver."""

    def __init__(
        self, tell: Tell, pauses: tuple[float, float] = SOURCE_PAUSES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tell = tell
        self._pauses = pauses
        self._clock = clock
        self._lake = _LAKE_PAUSES[0]
        self._told: tuple[str, float] | None = None
        self._opened: tuple[float, object] | None = None
        self._dropped = 0  # streams one after the other of which nothing came
        self._longer = 1

    def opened(self, held: object) -> None:
        """A stream is open; `held`: what bronze holds, as `over` compares it."""
        self._opened = self._clock(), held

    def over(self, held: object) -> bool:
        """An attempt is over: whether it succeeded, which is that something landed, or that its stream stood long."""
        opened, self._opened, self._longer = self._opened, None, 1
        if opened is None:
            return False
        if held == opened[1] and self._clock() - opened[0] < STEADY:
            self._longer = min(2**self._dropped, _LONGER_AT_MOST)
            self._dropped += 1
            return False
        self._lake, self._told, self._dropped = _LAKE_PAUSES[0], None, 0
        return True

    def after_source(self, error: SourceError) -> float:
        """The pause behind a failure of the source, which is told."""
        pause = self._longer * random.uniform(*self._pauses)  # noqa: S311 - no secret
        now = self._clock()
        if self._told is None or self._told[0] != error.code or now - self._told[1] >= _TOLD_EVERY:
            self._told = error.code, now
            text = f"{error.message}; next attempt in {pause:.1f} s"
            self._tell(Progress("retry", text, facts={"code": error.code}))
        return pause

    def after_lake(self, error: LakeError) -> float:
        """The same behind one of the lake."""
        pause, self._lake = self._lake, min(2 * self._lake, _LAKE_PAUSES[1])
        self._tell(retrying(error, pause))
        return pause
