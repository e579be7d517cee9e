"""Stages of progress as text: which ones repeat, how far one is, how fast it goes and how long it will take."""

from __future__ import annotations

import time
from collections.abc import Callable

from cdc_lake.cli.render import seconds, size
from cdc_lake.observe.progress import Progress

REPEATING = frozenset({"receive", "landed", "backlog", "maintain", "apply", "merge", "cut"})
"""Stages told over and over while a loop runs: they have one line that changes."""

_BYTES = "bytes"
_SETTLED = 1.0  # seconds from which on a rate says something
LOGGED = frozenset({"run"})
"""Stages that only programs read: people see a command begin and end."""


def count(told: Progress) -> str:
    """`12,000 of 40,000 rows`, `3.0 MiB of 1.2 GiB of WAL`, as far as it is known."""
    if told.done is None:
        return ""
    if told.unit.startswith(_BYTES):
        of = f" of {size(told.total)}" if told.total is not None else ""
        return f"{size(told.done)}{of}{told.unit.removeprefix(_BYTES)}"
    of = f" of {told.total:,}" if told.total is not None else ""
    unit = told.unit.removesuffix("s") if told.done == 1 and told.total is None else told.unit
    return f"{told.done:,}{of} {unit}".rstrip()


class Pace:
    """How fast stages go, since the first that was told of each way to its end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[str, tuple[float, int, int]] = {}

    def of(self, told: Progress) -> str:
        """`1,200 rows/s, 25 s left`; empty where no end is known, at it, and before a second has passed."""
        if told.done is None or told.total is None:
            return ""
        if told.done >= told.total:
            self._since.pop(told.stage, None)
            return ""
        now = self._clock()
        began, first, total = self._since.setdefault(told.stage, (now, told.done, told.total))
        if told.done < first or total != told.total:  # another way than the one that was begun
            self._since[told.stage] = now, told.done, told.total
            return ""
        gained, passed = told.done - first, now - began
        if passed < _SETTLED or gained <= 0:
            return ""
        rate = gained / passed
        return f"{_rate(rate, told.unit)}, {seconds((told.total - told.done) / rate)} left"


def line(told: Progress, pace: str = "") -> str:
    """One line of narration."""
    return f"{told.stage:<9} {' · '.join(part for part in (told.text, count(told), pace) if part)}"


def _rate(rate: float, unit: str) -> str:
    if unit.startswith(_BYTES):
        return f"{size(int(rate))}/s"
    number = f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
    return f"{number} {unit}/s"
