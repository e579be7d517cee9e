"""Charts for notebooks: bars and lines as SVG that stands by itself, without a library or an address.

A chart shows itself where it is the last value of a cell; `svg` is its text. Every text is escaped, and colours read on
light and on dark paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Final

_WIDTH: Final = 720
_LETTER: Final = 7  # pixels, at most, of a letter on the average
_INK: Final = "#7a828c"
_COLOURS: Final = ("#2f7fd1", "#d9822b", "#2e9e64", "#c2453e", "#8a63c9", "#3aa5a8")


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture. `svg`: one element `svg`."""

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg


def bars(title: str, values: Mapping[str, float], *, unit: str = "") -> Chart:
    """A horizontal bar for each value, in the order given; values below zero have none."""
    top = max((*values.values(), 0.0)) or 1.0
    left = min(_WIDTH // 2, 10 + _LETTER * max(map(len, values), default=0))
    body = []
    for index, (name, value) in enumerate(values.items()):
        y = 34 + 26 * index
        width = (_WIDTH - left - 100) * max(value, 0.0) / top
        body += [
            _text(left - 8, y + 14, name, anchor="end"),
            f'<rect x="{left}" y="{y}" width="{width:.1f}" height="18" rx="3" fill="{_COLOURS[0]}"/>',
            _text(left + width + 6, y + 14, f"{value:,.6g}{unit}"),
        ]
    return _chart(title, 38 + 26 * len(values), body)


def lines(title: str, series: Mapping[str, Sequence[tuple[datetime, float]]], *, unit: str = "") -> Chart:
    """Values over time, a line for each series, from zero up to the largest value of all."""
    points = [point for line in series.values() for point in line]
    top = max((*(value for _, value in points), 0.0)) or 1.0
    begin = min((time for time, _ in points), default=None)
    end = max((time for time, _ in points), default=None)
    body = [
        f'<path d="M60 40V220H{_WIDTH - 20}" fill="none" stroke="{_INK}"/>',
        _text(54, 50, f"{top:,.4g}{unit}", anchor="end"),
        _text(54, 220, f"0{unit}", anchor="end"),
    ]
    if begin is not None and end is not None:
        body += [_text(60, 238, f"{begin:%Y-%m-%d %H:%M:%S}"), _text(_WIDTH - 20, 238, f"{end:%H:%M:%S}", anchor="end")]
        span = (end - begin).total_seconds() or 1.0
        for number, line in enumerate(series.values()):
            body.append(_line(line, begin, span, top, _COLOURS[number % len(_COLOURS)]))
    for number, name in enumerate(series):
        colour, y = _COLOURS[number % len(_COLOURS)], 252 + 20 * number
        body += [f'<rect x="60" y="{y}" width="12" height="12" rx="2" fill="{colour}"/>', _text(78, y + 10, name)]
    return _chart(title, 252 + 20 * len(series), body)


def _line(line: Sequence[tuple[datetime, float]], begin: datetime, span: float, top: float, colour: str) -> str:
    """A polyline, and a dot for each point, so that a single one is seen."""
    places = [
        (60 + (_WIDTH - 80) * (time - begin).total_seconds() / span, 220 - 176 * max(value, 0.0) / top)
        for time, value in line
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{colour}"/>' for x, y in places)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>{dots}'


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: int = 400) -> str:
    """A line of text at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'


def _chart(title: str, height: int, body: Sequence[str]) -> Chart:
    """The parts under a title."""
    return Chart(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="12" fill="{_INK}">'
        f"{_text(0, 18, title, weight=600)}{''.join(body)}</svg>"
    )
