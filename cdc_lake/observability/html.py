"""What all HTML pages share: formats of numbers, times and sizes, and the page around the content.

Each page is one file with its style included, light and dark, for wide and narrow screens. Nothing is loaded (no
scripts or external addresses, and a policy that forbids both), and every text is escaped. Exact values are in the JSON.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from cdc_lake.errors import ReportNotWritten
from cdc_lake.model import diagnostic

if TYPE_CHECKING:
    import jinja2

_THIN = "\u202f"  # narrow no-break space, between groups of three digits and before a unit


def count(number: int) -> str:
    """`1 234 567`."""
    return f"{number:,}".replace(",", _THIN)


def plural(number: int, noun: str) -> str:
    """`1 table`, `5 tables`."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def percent(fraction: float) -> str:
    """A share: `0 %`, `< 0.01 %`, `0.25 %`, `12.5 %`; never `100 %` for less than all."""
    value = fraction * 100
    if value in {0, 100}:
        return f"{value:.0f}{_THIN}%"
    if value < 0.01:
        return f"<{_THIN}0.01{_THIN}%"
    if value > 99.9:
        return f">{_THIN}99.9{_THIN}%"
    return f"{value:.2f}{_THIN}%" if value < 1 else f"{value:.1f}{_THIN}%"


def duration(seconds: float) -> str:
    """`120 ms`, `4.2 s`, `3 min`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}{_THIN}ms"
    if seconds < 60:
        return f"{seconds:.1f}{_THIN}s"
    total = round(seconds)
    for size, unit, part, small in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if total >= size:
            rest = total % size // part
            return f"{total // size}{_THIN}{unit}" + (f" {rest}{_THIN}{small}" if rest else "")
    return f"{total // 60}{_THIN}min"


def size(number: int) -> str:
    """`512 B`, `1.5 MiB`."""
    return diagnostic.size(number).replace(" ", _THIN)


def moment(time: dt.datetime) -> str:
    """`2026-01-31 18:05:00 UTC`."""
    return time.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


State: TypeAlias = Literal["good", "attention", "bad", "unknown"]
"""The state of a thing; each has a colour, a mark and a word, so that colour is never the only sign."""


@dataclass(frozen=True, slots=True)
class Headline:
    """The first sentence of a page."""

    state: State
    text: str
    detail: str


def environment(package: str) -> jinja2.Environment:
    """Templates of a package, which may extend `base.html.j2` and import `parts.html.j2`."""
    import jinja2  # noqa: PLC0415  # the loops use the wording alone

    jinja_environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package), jinja2.PackageLoader("cdc_lake.observability")]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    formats = (count, duration, moment, percent, size, bars, sparkline)
    jinja_environment.filters |= {function.__name__: function for function in formats}
    jinja_environment.globals["plural"] = plural
    return jinja_environment


def sparkline(values: Sequence[float], width: int = 96, height: int = 24) -> str:
    """Points of a polyline for values over time, oldest first, scaled to the maximum; empty below two values."""
    if len(values) < 2:
        return ""
    top = max(values, default=0.0) or 1.0
    step = width / (len(values) - 1)
    inner = height - 4  # two pixels above and below for the stroke
    points = [(index * step, 2 + inner * (1 - value / top)) for index, value in enumerate(values)]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def bars(values: Sequence[float], width: int = 480, height: int = 96) -> list[tuple[float, float, float, float]]:
    """Left, top, width, height of each value's bar, oldest first, scaled to the maximum; always visible."""
    top, step = max(values, default=0.0) or 1.0, width / max(len(values), 3)
    tall = [max(height * value / top, 1.0) if value else 0.0 for value in values]
    return [
        (round(index * step + step * 0.1, 2), height - bar_height, round(step * 0.8, 2), bar_height)
        for index, bar_height in enumerate(tall)
    ]


def write_page(file: Path, text: str) -> None:
    """Replace the file atomically: a reader sees the old page or the new one.

    Raises ReportNotWritten.
    """
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        draft.replace(file)
    except OSError as cause:
        raise ReportNotWritten(f"`{file.name}` could not be written", where=str(file.parent)) from cause
