"""The ladder of a WAL budget: which step fits what the server keeps for the slot now, and where that leads.

    calm → smaller batches (½) → bronze only: apply pauses (¾) → exceeded: it is told → the slot is dropped

A function of looks at the server, without a clock and without a connection. A step is taken early where the growth of
the last minutes leads over the budget soon, and left again only well below where it began, so that it does not flap.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from cdc_lake.config.wal_budget import WalBudget


class Rung(enum.StrEnum):
    """How far up the ladder."""

    CALM = "calm"
    SMALLER = "smaller batches"
    BRONZE_ONLY = "bronze only"
    EXCEEDED = "exceeded"
    DROP = "drop"

    @property
    def height(self) -> int:
        """For comparisons."""
        return list(Rung).index(self)


BEGINS: Final = {Rung.SMALLER: 0.5, Rung.BRONZE_ONLY: 0.75, Rung.EXCEEDED: 1.0}
"""The share of the budget from which on a step is taken."""
LEFT_AT: Final = 0.8
"""The part of that share below which it is left."""
SOON: Final = {Rung.SMALLER: 900.0, Rung.BRONZE_ONLY: 300.0}
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
class WalLook:
    """What the server said. `at`: seconds since 1970; `end` of its log; `retained` for the slot, of which `confirmed`
    tells what bronze has; `safe`: what may be written before the slot is in danger, None where nothing bounds it.
    `in_bytes`: whether `end` and `confirmed` are positions in the log: those of a slot in CSN order are not.
    """

    at: float
    end: int
    confirmed: int
    retained: int
    safe: int | None = None
    in_bytes: bool = True


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where the budget stands. `used`: share of it; `age`: seconds, of the oldest log that is not in bronze, at most;
    `growth`: bytes a second, None before it is known; `exceeded_in`: seconds until the bytes are used up at that rate.
    """

    rung: Rung
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
            return "a transaction that is open for long at the source holds most of it"
        if self.used >= 1:
            return "bronze is behind the source"
        if self.rung is Rung.CALM:
            return "within the budget"
        return "it grows towards the budget" if self.exceeded_in is not None else "most of the budget is used"


def judge(budget: WalBudget, looks: Sequence[WalLook], marks: Sequence[Mark] = (), before: Rung = Rung.CALM) -> Verdict:
    """The step for the last of the looks, which are in order and at least one; `before`: the one until now.

    `marks`: where the log ended at times before the looks.
    """
    now = looks[-1]
    age, growth, most = _age(now, looks, marks), _growth(looks), _most(budget, now)
    exceeded_in = None
    if growth is not None and growth > 0 and most is not None:
        exceeded_in = max(0.0, (most - now.retained) / growth)
    used = max(
        0.0 if most is None else now.retained / most,
        0.0 if budget.max_age is None else 1000 * age / budget.max_age,
    )
    rung = Rung.CALM
    for step, share in BEGINS.items():
        bound = share * LEFT_AT if before.height >= step.height else share
        early = used >= _EARLIEST and exceeded_in is not None and exceeded_in < SOON.get(step, 0.0)
        if used >= bound or early:
            rung = step
    if budget.on_exceeded == "alert" and rung is not Rung.EXCEEDED:
        rung = Rung.CALM
    if budget.on_exceeded == "drop_slot" and rung is Rung.EXCEEDED and _stays_exceeded(budget, looks, marks):
        rung = Rung.DROP
    unconfirmed = max(0, now.end - now.confirmed)
    open_long = rung is not Rung.CALM and now.in_bytes and unconfirmed < now.retained / 2
    return Verdict(rung, used, now.retained, age, growth, exceeded_in, open_long)


def _most(budget: WalBudget, now: WalLook) -> int | None:
    """Bytes that may be kept: the server's own limit counts where it is lower."""
    bounds = [budget.max_bytes, None if now.safe is None else now.retained + max(0, now.safe)]
    return min((bound for bound in bounds if bound), default=None)


def _age(now: WalLook, looks: Sequence[WalLook], marks: Sequence[Mark]) -> float:
    """Seconds since the log ended where bronze is now, at most; where nobody looked then, since somebody did first."""
    if now.confirmed >= now.end:
        return 0.0
    known = [mark for mark in (*marks, *((look.at, look.end) for look in looks)) if mark[0] <= now.at]
    before = [at for at, end in known if end <= now.confirmed]
    return now.at - max(before, default=known[0][0])


def _growth(looks: Sequence[WalLook]) -> float | None:
    now = looks[-1]
    first = next(look for look in looks if now.at - look.at <= WINDOW)
    seconds = now.at - first.at
    return None if seconds < _SPAN else (now.retained - first.retained) / seconds


def _stays_exceeded(budget: WalBudget, looks: Sequence[WalLook], marks: Sequence[Mark]) -> bool:
    """Whether every look of the last minute, and one before it, found the budget exceeded."""
    for look in reversed(looks):
        most = _most(budget, look)
        by_bytes = most is not None and look.retained >= most
        by_age = budget.max_age is not None and 1000 * _age(look, looks, marks) >= budget.max_age
        if not (by_bytes or by_age):
            return False
        if looks[-1].at - look.at >= DROP_AFTER:
            return True
    return False


def remembered(looks: Sequence[WalLook]) -> list[WalLook]:
    """The looks that are still of use."""
    return [look for look in looks if looks[-1].at - look.at <= WINDOW]


def marked(budget: WalBudget, marks: Sequence[Mark], now: WalLook) -> list[Mark]:
    """Marks with the newest, so far apart that few of them reach back twice as far as log may be old."""
    apart = max(WINDOW, 2 * (budget.max_age or 0) / 1000) / _MARKS
    if marks and now.at - marks[-1][0] < apart:
        return list(marks)
    return [*marks, (now.at, now.end)][-_MARKS:]
