"""How much a rule's failures are of concern: by the thresholds of the rule, or any at all where it has none."""

from __future__ import annotations

from typing import Literal, TypeAlias

from cdc_lake.config.rules import Thresholds

Level: TypeAlias = Literal["none", "warn", "error", "critical"]
LEVELS: tuple[Level, ...] = ("none", "warn", "error", "critical")
"""From the least to the worst."""


def level(thresholds: Thresholds | None, evaluated: int, failed: int) -> Level:
    """The highest threshold that the share of failures has reached; `warn` for any failure without thresholds."""
    if not failed:
        return "none"
    if thresholds is None:
        return "warn"
    share = failed / evaluated
    steps: tuple[tuple[Level, float | None], ...] = (
        ("warn", thresholds.warn),
        ("error", thresholds.error),
        ("critical", thresholds.critical),
    )
    reached: list[Level] = [name for name, least in steps if least is not None and share >= least]
    return reached[-1] if reached else "none"


def worst(levels: tuple[Level, ...]) -> Level:
    """The worst of some."""
    return max(levels, key=LEVELS.index, default="none")
