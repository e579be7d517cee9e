"""HTML pages: what all of them share. Each is one file with its style in it, light and dark, on a desk and on a phone.

Promises: nothing is fetched (no script, no address, a policy that forbids both), and every text is escaped.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import jinja2

from cdc_lake.errors import ReportNotWritten
from cdc_lake.page import wording

State: TypeAlias = Literal["good", "attention", "bad", "unknown"]
"""How a thing stands; each has a colour, a mark and a word, so that colour alone never carries it."""


@dataclass(frozen=True, slots=True)
class Headline:
    """The first sentence of a page."""

    state: State
    text: str
    detail: str


def environment(package: str) -> jinja2.Environment:
    """Templates of a package, which may extend `base.html.j2` and import `parts.html.j2`."""
    made = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package), jinja2.PackageLoader("cdc_lake.page")]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "count": wording.count,
        "duration": wording.duration,
        "moment": wording.moment,
        "percent": wording.percent,
        "size": wording.size,
        "bars": bars,
        "sparkline": sparkline,
    }
    made.globals["plural"] = wording.plural
    return made


def sparkline(values: Sequence[float], width: int = 96, height: int = 24) -> str:
    """Points of a polyline for values over time, oldest first, scaled to the largest, which touches the top; empty
    where there are less than two: that is no trend.
    """
    if len(values) < 2:
        return ""
    top = max(values, default=0.0) or 1.0
    step = width / (len(values) - 1)
    inner = height - 4  # two pixels above and below keep the stroke inside
    points = [(at * step, 2 + inner * (1 - value / top)) for at, value in enumerate(values)]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def bars(values: Sequence[float], width: int = 480, height: int = 96) -> list[tuple[float, float, float, float]]:
    """Left, top, width and height of a bar a value, oldest first, scaled to the largest; none is too low to be seen,
    nor wider than a third.
    """
    top, step = max(values, default=0.0) or 1.0, width / max(len(values), 3)
    tall = [max(height * value / top, 1.0) if value else 0.0 for value in values]
    return [(round(at * step + step * 0.1, 2), height - one, round(step * 0.8, 2), one) for at, one in enumerate(tall)]


def write_page(file: Path, text: str) -> None:
    """Replace the file in one step: a reader sees the old page or the new one, never half of it.

    Raises ReportNotWritten.
    """
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        draft.replace(file)
    except OSError as cause:
        raise ReportNotWritten(f"`{file.name}` could not be written", where=str(file.parent)) from cause
