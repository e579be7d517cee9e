"""Failures and warnings with a code, counted as a loop tells them.

A counter that begins with its first increment hides it: what asks for an increase sees none between no value and 1. So
the codes that a loop may show are there from the start, with 0: of the receiver those that it waits out, as its other
failures end it, and its numbers with it; of apply every one that it can end with, since its file of metrics stays.
"""

from __future__ import annotations

from typing import Final

from cdc_lake.errors import CdcLakeError, Retry, kinds
from cdc_lake.observe.exposition import Tally
from cdc_lake.observe.metric_names import ERRORS_TOTAL, Loop
from cdc_lake.observe.progress import Progress

_FAMILIES: Final = ("SRC", "DEC", "LAK", "QUA", "STA")


class ErrorCounts:
    """Counts into a tally, for one loop."""

    def __init__(self, tally: Tally, loop: Loop) -> None:
        self._tally = tally
        self._loop = loop
        for kind in kinds(CdcLakeError):
            if kind.code.startswith(_FAMILIES) and (loop is Loop.APPLY or kind.retry is Retry.LATER):
                self.add(kind.code, by=0)

    def heard(self, progress: Progress) -> None:
        """Count what was told, if it has a code."""
        code = progress.facts.get("code")
        if code is not None:
            self.add(str(code))

    def add(self, code: str, by: int = 1) -> None:
        """Count a failure."""
        self._tally.add(ERRORS_TOTAL, self._loop, code, by=by)
