"""The WAL budget: which step fits what the server keeps for the slot now, and where its growth leads.

    calm → smaller batches (½) → bronze only: apply pauses (¾) → exceeded: it is told → the slot is dropped

A function of samples of the server, without a clock and without a connection. A step is taken early if the growth of
the last minutes leads over the budget soon, and left only well below where it began, so that it does not flap. The
receiver writes what it saw last into a file for apply, `status` and metrics.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from cdc_lake.config.project import Project
from cdc_lake.config.source import WalBudget
from cdc_lake.control.status_files import NoteFile
from cdc_lake.observability.events import ProgressEvent, ProgressReporter, silent


class BudgetLevel(enum.StrEnum):
    """How far up the ladder."""

    CALM = "calm"
    SMALLER = "smaller batches"
    BRONZE_ONLY = "bronze only"
    EXCEEDED = "exceeded"
    DROP = "drop"

    @property
    def height(self) -> int:
        """For comparisons."""
        return list(BudgetLevel).index(self)


BEGINS: Final = {BudgetLevel.SMALLER: 0.5, BudgetLevel.BRONZE_ONLY: 0.75, BudgetLevel.EXCEEDED: 1.0}
"""The share of the budget from which on a step is taken."""
LEFT_AT: Final = 0.8
"""The part of that share below which it is left."""
SOON: Final = {BudgetLevel.SMALLER: 900.0, BudgetLevel.BRONZE_ONLY: 300.0}
"""Seconds to the end of the budget, by the growth of now, in which a step is taken whatever the share is …"""
_EARLIEST: Final = 0.25  # … from this share on: a small part of a budget says nothing of its end
WINDOW: Final = 300.0
"""Seconds of looks that growth is worked out from."""
_SPAN: Final = 30.0  # the least of them that says something
_MARKS: Final = 40
DROP_AFTER: Final = 60.0
"""Seconds for which a budget must be exceeded without a break before the slot is dropped."""


Mark: TypeAlias = tuple[float, int]
"""When somebody looked, in seconds since 1970, and where the server's log ended then."""


@dataclass(frozen=True, slots=True)
class WalSample:
    """What the server said. `observed_at`: seconds since 1970; `end` of its log; `retained` for the slot, of which
    `confirmed` tells what bronze has; `safe`: what may be written before the slot is in danger, None where nothing
    bounds it. `in_bytes`: whether `end` and `confirmed` are positions in the log: those of a slot in CSN order are not.
    """

    observed_at: float
    end: int
    confirmed: int
    retained: int
    safe: int | None = None
    in_bytes: bool = True


@dataclass(frozen=True, slots=True)
class BudgetVerdict:
    """Where the budget stands. `used`: share of it; `age`: seconds, of the oldest log that is not in bronze, at most;
    `growth`: bytes a second, None before it is known; `exceeded_in`: seconds until the bytes are used up at that rate.
    """

    rung: BudgetLevel
    used: float
    retained: int
    age: float
    growth: float | None
    exceeded_in: float | None
    open_long: bool

    @property
    def reason(self) -> str:
        """Why, in words; numbers are told beside it."""
        if self.open_long:
            return "a long-running transaction at the source retains most of it"
        if self.used >= 1:
            return "bronze is behind the source"
        if self.rung is BudgetLevel.CALM:
            return "within the budget"
        return "it is growing towards the budget" if self.exceeded_in is not None else "most of the budget is used"


def judge(
    budget: WalBudget, looks: Sequence[WalSample], marks: Sequence[Mark] = (), before: BudgetLevel = BudgetLevel.CALM
) -> BudgetVerdict:
    """The step for the last of the looks, which are in order and at least one; `before`: the one until now.

    `marks`: where the log ended at times before the looks.
    """
    now = looks[-1]
    age, growth, most = _age(now, looks, marks), _growth(looks), _max_retained(budget, now)
    exceeded_in = None
    if growth is not None and growth > 0 and most is not None:
        exceeded_in = max(0.0, (most - now.retained) / growth)
    used = max(
        0.0 if most is None else now.retained / most,
        0.0 if budget.max_age is None else 1000 * age / budget.max_age,
    )
    rung = BudgetLevel.CALM
    for step, share in BEGINS.items():
        bound = share * LEFT_AT if before.height >= step.height else share
        early = used >= _EARLIEST and exceeded_in is not None and exceeded_in < SOON.get(step, 0.0)
        if used >= bound or early:
            rung = step
    if budget.on_exceeded == "alert" and rung is not BudgetLevel.EXCEEDED:
        rung = BudgetLevel.CALM
    if budget.on_exceeded == "drop_slot" and rung is BudgetLevel.EXCEEDED and _stays_exceeded(budget, looks, marks):
        rung = BudgetLevel.DROP
    unconfirmed = max(0, now.end - now.confirmed)
    open_long = rung is not BudgetLevel.CALM and now.in_bytes and unconfirmed < now.retained / 2
    return BudgetVerdict(rung, used, now.retained, age, growth, exceeded_in, open_long)


def _max_retained(budget: WalBudget, now: WalSample) -> int | None:
    """Bytes that may be kept: the server's own limit counts where it is lower."""
    bounds = [budget.max_bytes, None if now.safe is None else now.retained + max(0, now.safe)]
    return min((bound for bound in bounds if bound), default=None)


def _age(now: WalSample, looks: Sequence[WalSample], marks: Sequence[Mark]) -> float:
    """Seconds since the log ended where bronze is now, at most; where nobody looked then, since somebody did first."""
    if now.confirmed >= now.end:
        return 0.0
    samples = [
        mark for mark in (*marks, *((sample.observed_at, sample.end) for sample in looks)) if mark[0] <= now.observed_at
    ]
    before = [moment for moment, end in samples if end <= now.confirmed]
    return now.observed_at - max(before, default=samples[0][0])


def _growth(looks: Sequence[WalSample]) -> float | None:
    now = looks[-1]
    first = next(sample for sample in looks if now.observed_at - sample.observed_at <= WINDOW)
    seconds = now.observed_at - first.observed_at
    return None if seconds < _SPAN else (now.retained - first.retained) / seconds


def _stays_exceeded(budget: WalBudget, looks: Sequence[WalSample], marks: Sequence[Mark]) -> bool:
    """Whether every look of the last minute, and one before it, found the budget exceeded."""
    for sample in reversed(looks):
        most = _max_retained(budget, sample)
        by_bytes = most is not None and sample.retained >= most
        by_age = budget.max_age is not None and 1000 * _age(sample, looks, marks) >= budget.max_age
        if not (by_bytes or by_age):
            return False
        if looks[-1].observed_at - sample.observed_at >= DROP_AFTER:
            return True
    return False


def prune_samples(looks: Sequence[WalSample]) -> list[WalSample]:
    """The looks that are still of use."""
    return [sample for sample in looks if looks[-1].observed_at - sample.observed_at <= WINDOW]


def add_mark(budget: WalBudget, marks: Sequence[Mark], now: WalSample) -> list[Mark]:
    """Marks with the newest, so far apart that few of them reach back twice as far as log may be old."""
    apart = max(WINDOW, 2 * (budget.max_age or 0) / 1000) / _MARKS
    if marks and now.observed_at - marks[-1][0] < apart:
        return list(marks)
    return [*marks, (now.observed_at, now.end)][-_MARKS:]


FRESH: Final = 60.0
"""Seconds after which a note is of a receiver that looks no more."""


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """A WAL budget as a receiver saw it last, at most a minute ago.

    `step`: calm, smaller batches, bronze only, exceeded or drop; `used`: share of the budget; `age_seconds`: of the
    oldest log that is not in bronze, at most; `growth`: bytes a second; `exceeded_in`: seconds until the bytes are used
    up at that rate; `pauses_apply`: whether apply waits for it.
    """

    step: str
    reason: str
    used: float
    retained_bytes: int
    age_seconds: float
    growth: float | None
    exceeded_in: float | None
    pauses_apply: bool


class WalNote:
    """Written by the receiver only; read by anybody."""

    def __init__(self, lake: Path, pipeline: str, report: ProgressReporter = silent) -> None:
        trouble = "apply and `status` cannot be informed about the WAL budget"
        self._file = NoteFile(lake / "logs" / f"{pipeline}.wal", trouble, report)

    def begin(self) -> list[Mark]:
        """Make the note; the marks that a receiver before left."""
        before = self._file.read_as(_marks)
        self._file.begin()
        return before or []

    def write(self, observed_at: float, status: BudgetStatus | None, marks: Sequence[Mark]) -> None:
        """Say what was seen at a time, None: nothing now; `marks` are for the next receiver."""
        self._file.write({"at": observed_at, "seen": None if status is None else asdict(status), "marks": marks})

    def read(self) -> BudgetStatus | None:
        """What a receiver that runs saw last."""
        return self._file.read_as(_parse_status)


def _marks(document: dict[str, Any]) -> list[Mark]:
    return [(float(moment), int(end)) for moment, end in document["marks"]]


def _parse_status(document: dict[str, Any]) -> BudgetStatus | None:
    status = document["seen"]
    if status is None or abs(time.time() - document["at"]) > FRESH:
        return None
    growth, exceeded_in = (
        None if (value := status[name]) is None else float(value) for name in ("growth", "exceeded_in")
    )
    return BudgetStatus(
        step=str(status["step"]),
        reason=str(status["reason"]),
        used=float(status["used"]),
        retained_bytes=int(status["retained_bytes"]),
        age_seconds=float(status["age_seconds"]),
        growth=growth,
        exceeded_in=exceeded_in,
        pauses_apply=status["pauses_apply"] is True,
    )


class ApplyYield:
    """Whether apply waits so that the receiver has the machine to itself; told when it begins and ends to wait."""

    def __init__(self, project: Project, report: ProgressReporter) -> None:
        self._note = WalNote(project.lake, project.name)
        self._report = report
        self._waits = False

    def __call__(self) -> bool:
        """Ask the note."""
        status = self._note.read()
        waits = status is not None and status.pauses_apply
        if waits is not self._waits:
            self._waits = waits
            text = "silver resumes: the WAL budget is no longer at risk"
            if status is not None and waits:
                text = f"silver waits: {status.used:.0%} of the WAL budget is used, and bronze has priority"
            self._report(ProgressEvent("apply", text))
        return waits


def never_yield() -> bool:
    """Of a run with an end: its receiver is done before it applies."""
    return False
