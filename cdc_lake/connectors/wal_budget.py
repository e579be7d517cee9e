"""The WAL budget: determines the level of measures from retained WAL and its growth.

    calm → smaller batches (½) → bronze only: apply pauses (¾) → exceeded: a warning → the slot is dropped

A pure function of samples of the server, without a clock or a connection. A level begins early if the recent growth
will soon exhaust the budget, and ends well below where it began, so that it does not oscillate. The receiver writes the
result to a file for apply, `status` and metrics.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

from cdc_lake.config.project import Project
from cdc_lake.config.source import WalBudget
from cdc_lake.control.coordination import NoteFile
from cdc_lake.observability.events import ProgressEvent, ProgressReporter, silent


class BudgetLevel(enum.StrEnum):
    """Levels of measures."""

    CALM = "calm"
    SMALLER = "smaller batches"
    BRONZE_ONLY = "bronze only"
    EXCEEDED = "exceeded"
    DROP = "drop"

    @property
    def height(self) -> int:
        """The rank, for comparisons."""
        return list(BudgetLevel).index(self)


BEGINS: Final = {BudgetLevel.SMALLER: 0.5, BudgetLevel.BRONZE_ONLY: 0.75, BudgetLevel.EXCEEDED: 1.0}
"""The share of the budget at which a level begins."""
LEFT_AT: Final = 0.8
"""The part of that share below which it ends."""
SOON: Final = {BudgetLevel.SMALLER: 900.0, BudgetLevel.BRONZE_ONLY: 300.0}
"""Seconds until the budget is exhausted, by the current growth, at which a level begins at a lower share …"""
_EARLIEST: Final = 0.25  # … from this share on: below it, growth does not predict the end
WINDOW: Final = 300.0
"""Seconds of samples from which growth is computed."""
_SPAN: Final = 30.0  # the minimum for a result
_MARKS: Final = 40
DROP_AFTER: Final = 60.0
"""Seconds for which a budget must be exceeded without interruption before the slot is dropped."""


Mark: TypeAlias = tuple[float, int]
"""Time of a sample, in seconds since 1970, and the end of the server's WAL then."""


@dataclass(frozen=True, slots=True)
class WalSample:
    """A sample of the server. `observed_at`: seconds since 1970; `end` of its WAL; `retained` for the slot, whose
    `confirmed` position shows what bronze has; `safe`: what may be written before the slot may be lost, None without a
    limit. `in_bytes`: whether `end` and `confirmed` are positions in the WAL; those of a slot in CSN order are not.
    """

    observed_at: float
    end: int
    confirmed: int
    retained: int
    safe: int | None = None
    in_bytes: bool = True


@dataclass(frozen=True, slots=True)
class BudgetVerdict:
    """State of the budget. `used`: share of it; `age`: upper bound of the seconds of the oldest WAL that is not in
    bronze; `growth`: bytes per second, None if unknown yet; `exceeded_in`: seconds until the bytes are used up at that
    rate.
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
        """The reason in words; numbers are reported separately."""
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
    """The level for the last of the ordered samples, at least one; `before`: the previous level.

    `marks`: ends of the WAL at times before the samples.
    """
    now = looks[-1]
    age, growth, most = _age(now, looks, marks), _growth(looks), _max_retained(budget, now)
    exceeded_in = None
    if growth is not None and growth > 0 and most is not None:
        exceeded_in = max(0.0, (most - now.retained) / growth)
    used = max(
        0.0 if most is None else now.retained / most, 0.0 if budget.max_age is None else 1000 * age / budget.max_age
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
    """The maximum of retained bytes: the server's own limit counts if it is lower."""
    bounds = [budget.max_bytes, None if now.safe is None else now.retained + max(0, now.safe)]
    return min((bound for bound in bounds if bound), default=None)


def _age(now: WalSample, looks: Sequence[WalSample], marks: Sequence[Mark]) -> float:
    """Upper bound of the seconds since the WAL ended where bronze is now; if unknown, since the first sample."""
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
    """Whether every sample of the last minute, and one before it, exceeded the budget."""
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
    """The samples that are still needed."""
    return [sample for sample in looks if looks[-1].observed_at - sample.observed_at <= WINDOW]


def add_mark(budget: WalBudget, marks: Sequence[Mark], now: WalSample) -> list[Mark]:
    """Marks with the newest one, spaced so that few of them reach back twice the maximum age."""
    apart = max(WINDOW, 2 * (budget.max_age or 0) / 1000) / _MARKS
    if marks and now.observed_at - marks[-1][0] < apart:
        return list(marks)
    return [*marks, (now.observed_at, now.end)][-_MARKS:]


FRESH: Final = 60.0
"""Seconds after which a status file belongs to a receiver that has ended."""


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """A WAL budget as a receiver saw it at most a minute ago.

    `step`: calm, smaller batches, bronze only, exceeded or drop; `used`: share of the budget; `age_seconds`: upper
    bound for the oldest WAL that is not in bronze; `growth`: bytes per second; `exceeded_in`: seconds until the bytes
    are used up at that rate; `pauses_apply`: whether apply pauses because of it.
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
    """The status file: written only by the receiver, read by anybody."""

    def __init__(self, project: Project, report: ProgressReporter = silent) -> None:
        trouble = "apply and `status` cannot be informed about the WAL budget"
        self._file = NoteFile(project, "wal", trouble, report)

    def begin(self) -> list[Mark]:
        """Create the file; returns the marks of an earlier receiver."""
        before = self._file.read_as(lambda document: [(float(at), int(end)) for at, end in document["marks"]])
        self._file.begin()
        return before or []

    def write(self, observed_at: float, status: BudgetStatus | None, marks: Sequence[Mark]) -> None:
        """Write a status, None if there is none; `marks` are for the next receiver."""
        self._file.write({"at": observed_at, "seen": None if status is None else asdict(status), "marks": marks})

    def read(self) -> BudgetStatus | None:
        """The latest status of a running receiver."""
        return self._file.read_as(_parse_status)


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
    """Whether apply pauses so that the receiver has the machine to itself; reports when a pause begins and ends."""

    def __init__(self, project: Project, report: ProgressReporter) -> None:
        self._note = WalNote(project)
        self._report = report
        self._waits = False

    def __call__(self) -> bool:
        """Read the status file."""
        status = self._note.read()
        waits = status is not None and status.pauses_apply
        if waits is not self._waits:
            self._waits = waits
            text = "silver resumes: the WAL budget is no longer at risk"
            if status is not None and waits:
                text = f"silver waits: {status.used:.0%} of the WAL budget is used, and bronze has priority"
            self._report(ProgressEvent("apply", text))
        return waits
