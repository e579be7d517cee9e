"""Numbers, times and sizes as a reader of a report takes them in at a glance. Exact values are in the JSON."""

from __future__ import annotations

import datetime as dt

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
    whole = round(seconds)
    for size, unit, part, small in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size}{_THIN}{unit}" + (f" {rest}{_THIN}{small}" if rest else "")
    return f"{whole // 60}{_THIN}min"


def size(number: int) -> str:
    """`512 B`, `1.5 MiB`."""
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f}{_THIN}{unit}" if unit == "B" else f"{value:.1f}{_THIN}{unit}"
        value /= 1024
    return f"{value:.1f}{_THIN}TiB"


def moment(at: dt.datetime) -> str:
    """`2026-01-31 18:05:00 UTC`."""
    return at.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
