"""Whether a ratio to a peer fell since the baseline: by more than the rounds differ among themselves.

    python benchmarks/run.py --check        compares `results/*.json` with `baseline.json`; exit code 1 where one fell
    python benchmarks/run.py --keep         makes the results the baseline

Only ratios of one run are compared: what a machine does at once to both sides leaves them alone. The allowance is half
the range of the rounds, to their median, of both sides together, and at least `FLOOR`; of a ratio with a single value
nobody knows its range, so `ALONE` stands for it. Where rounds differ by more than `NOISE` nothing can be said, which is
said.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures import FIGURES, Figure, printed, spread

BASELINE = Path(__file__).parent / "baseline.json"
FLOOR, ALONE, NOISE = 0.10, 0.15, 0.60

Values = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Compared:
    """One ratio. `change`: how much better it is, 0.1 for a tenth; `verdict`: `as good`, `fell` or `too noisy`."""

    figure: Figure
    before: float
    now: float
    change: float
    allowance: float

    @property
    def verdict(self) -> str:
        if self.allowance > NOISE:
            return "too noisy"
        return "fell" if self.change < -self.allowance else "as good"

    def row(self) -> list[str]:
        change, allowed = f"{self.change:+.0%}", f"{self.allowance:.0%}"
        return [
            f"{self.figure.name}: {self.figure.words}",
            printed(self.before),
            printed(self.now),
            change,
            allowed,
            self.verdict,
        ]


HEAD = ("beside a peer", "baseline", "now", "better by", "allowance", "")


def half_range(values: Sequence[float]) -> float:
    """Half of what the rounds differ by, to their median."""
    low, middle, high = spread(values)
    return (high - low) / 2 / middle if len(values) > 1 else ALONE


def compared(figure: Figure, before: Sequence[float], now: Sequence[float]) -> Compared:
    old, new = spread(before)[1], spread(now)[1]
    change = old / new - 1 if figure.most else new / old - 1
    return Compared(figure, old, new, change, max(FLOOR, half_range(before) + half_range(now)))


def ratios(documents: Mapping[str, Mapping[str, Any]]) -> dict[str, list[float]]:
    """The values of each ratio that was measured."""
    found = {figure.name: figure.of(documents) for figure in FIGURES if figure.peer}
    return {name: values for name, values in found.items() if values}


def check(documents: Mapping[str, Mapping[str, Any]], path: Path = BASELINE) -> list[Compared]:
    """Each ratio that both have."""
    before: Values = json.loads(path.read_text())["ratios"]
    now = ratios(documents)
    return [
        compared(figure, before[figure.name], now[figure.name])
        for figure in FIGURES
        if figure.name in before and figure.name in now
    ]


def keep(documents: Mapping[str, Mapping[str, Any]], version: str, path: Path = BASELINE) -> None:
    """Make these results the baseline; a ratio that is not among them stays."""
    before = json.loads(path.read_text())["ratios"] if path.exists() else {}
    kept = {name: [round(value, 4) for value in values] for name, values in (before | ratios(documents)).items()}
    path.write_text(json.dumps({"version": version, "ratios": kept}, indent=1) + "\n")
