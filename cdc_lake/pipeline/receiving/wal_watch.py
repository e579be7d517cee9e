"""Watching the WAL budget while a receiver runs: looks at the server, and what each step of the ladder asks for.

smaller batches   the receiver's, at once
bronze only       apply waits, told by a note (`pipeline.wal.note`), as it may run elsewhere
exceeded          a warning with its code, again every ten minutes
drop              the receiver stops, and the slot is dropped: only where the pipeline says so
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from cdc_lake.config.model import Batch
from cdc_lake.config.project import Project
from cdc_lake.config.quantity import format_milliseconds
from cdc_lake.config.wal_budget import WalBudget
from cdc_lake.errors import CdcLakeError, SlotGivenUp, WalBudgetExceeded
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.ports.action import size
from cdc_lake.pipeline.server import kept_wal
from cdc_lake.pipeline.stream.rounds import Rounds
from cdc_lake.pipeline.wal.ladder import Mark, Rung, Verdict, WalLook, judge, marked, remembered
from cdc_lake.pipeline.wal.note import BudgetStatus, WalNote

LOOK_EVERY: Final = 10.0
"""Seconds between two looks."""
AGAIN_AFTER: Final = 600.0
"""Seconds after which a budget that stays exceeded is told again."""
SMALLER: Final = 4
"""What the bounds of a batch are divided by, so that log is confirmed more often."""
_PATIENCE: Final = 30.0  # seconds for our own reader to be gone before its slot is dropped


class WalWatch:
    """Watches while it is entered."""

    def __init__(self, project: Project, budget: WalBudget, tell: Tell) -> None:
        self._project = project
        self._budget = budget
        self._tell = tell
        self._note = WalNote(project.lake, project.name, tell)
        self._looks: list[WalLook] = []
        self._marks: list[Mark] = []
        self._rung = Rung.CALM
        self._told_at = 0.0
        self._given_up: SlotGivenUp | None = None
        self._kept = kept_wal(project)
        self._rounds = Rounds("cdc-lake-wal", lambda: LOOK_EVERY, self._kept.looking, self._ask, _away)

    def __enter__(self) -> Self:
        self._marks = self._note.begin()
        self._rounds.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rounds.__exit__(kind, error, trace)
        self._note.write(time.time(), None, self._marks)

    def limits(self, given: Batch) -> Batch:
        """The bounds of a batch as they are to be now."""
        if self._budget.on_exceeded == "alert" or self._rung is Rung.CALM:
            return given
        names = ("max_bytes", "max_rows", "max_transactions", "max_delay")
        return given.model_copy(update={name: max(1, getattr(given, name) // SMALLER) for name in names})

    def heed(self) -> None:
        """Raise SlotGivenUp where the slot is to be dropped."""
        if self._given_up is not None:
            raise self._given_up

    def give_up(self) -> None:
        """Drop the slot, once its reader has gone. Raises SourceError."""
        self._kept.drop(_PATIENCE)

    def _ask(self, ask: Callable[[], WalLook | None]) -> None:
        """Look once."""
        if (seen := ask()) is not None:  # a slot that is not made yet, or lost, the receiver tells
            self.look(seen)

    def look(self, now: WalLook) -> None:
        """Judge what was seen, and let everybody know."""
        self._looks = remembered([*self._looks, now])
        found = judge(self._budget, self._looks, self._marks, self._rung)
        self._marks = marked(self._budget, self._marks, now)
        if found.rung is not self._rung:
            self._stepped(found)
        if found.rung.height >= Rung.EXCEEDED.height and now.at - self._told_at >= AGAIN_AFTER:
            self._told_at = now.at
            error = exceeded(self._project.slot, self._budget, found)
            self._tell(Progress("warning", error.message, facts={"code": error.code}))
        if found.rung is Rung.DROP:
            words = exceeded(self._project.slot, self._budget, found).message
            self._given_up = SlotGivenUp(f"{words}: the slot is dropped, as the pipeline says")
        self._rung = found.rung
        self._note.write(now.at, self._status(found), self._marks)

    def _stepped(self, found: Verdict) -> None:
        kept = f"{size(found.retained)} of WAL are kept, {found.used:.0%} of the budget"
        self._tell(Progress("receive", f"WAL budget: {found.rung}: {kept}; {found.reason}"))
        if found.rung.height < Rung.EXCEEDED.height:
            self._told_at = 0.0

    def _status(self, found: Verdict) -> BudgetStatus:
        pauses = self._budget.on_exceeded != "alert" and found.rung.height >= Rung.BRONZE_ONLY.height
        return BudgetStatus(
            step=found.rung.value,
            reason=found.reason,
            used=round(found.used, 4),
            retained_bytes=found.retained,
            age_seconds=round(found.age, 1),
            growth=None if found.growth is None else round(found.growth, 1),
            exceeded_in=None if found.exceeded_in is None else round(found.exceeded_in, 1),
            pauses_apply=pauses,
        )


def exceeded(name: str, budget: WalBudget, found: Verdict) -> WalBudgetExceeded:
    """The error for a budget that is exceeded."""
    limits = []
    if budget.max_bytes is not None:
        limits.append(size(budget.max_bytes))
    if budget.max_age is not None:
        limits.append(format_milliseconds(budget.max_age))
    whole = 60 if found.age >= 120 else 1
    age = format_milliseconds(1000 * whole * round(found.age / whole))
    kept = f"{size(found.retained)} of WAL for slot `{name}`, and bronze lacks what is {age} old"
    return WalBudgetExceeded(f"the server keeps {kept}: the budget is {' or '.join(limits)}; {found.reason}")


def _away(error: CdcLakeError) -> None:
    """The receiver needs the source too, and says why it cannot be asked."""
    del error
