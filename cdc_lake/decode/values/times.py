"""Dates and times in the server's binary format, as the text that the server prints under our settings.

Those are DateStyle ISO, TimeZone UTC and IntervalStyle iso_8601 (`source.printing`). Days and microseconds count from
2000-01-01. A function takes the bytes of one value. Raises MalformedMessage. Source: date.c, timestamp.c and datetime.c
of PostgreSQL.
"""

from __future__ import annotations

import struct
from typing import Final

from cdc_lake.decode.values.numbers import unpacked

DAY: Final = 86_400_000_000  # microseconds
_SECOND: Final = 1_000_000
_DATE: Final = struct.Struct(">i")
_TIME: Final = struct.Struct(">q")
_TIMETZ: Final = struct.Struct(">qi")  # microseconds, seconds west of UTC
_INTERVAL: Final = struct.Struct(">qii")  # microseconds, days, months
_MOST: Final = {4: (1 << 31) - 1, 8: (1 << 63) - 1}
_EVER: Final = (_MOST[8], _MOST[4], _MOST[4])
_SINCE_MARCH_0: Final = 730_425  # days from 0000-03-01 to 2000-01-01
_ERA: Final = 146_097  # days of 400 years


def date(data: bytes) -> str:
    """`YYYY-MM-DD`, with ` BC`; `infinity`."""
    (days,) = unpacked(_DATE, data)
    return _endless(days, 4) or "".join(_date(days))


def time(data: bytes) -> str:
    """`HH:MM:SS.ffffff` without zeros at its end."""
    return _clock(unpacked(_TIME, data)[0])


def timetz(data: bytes) -> str:
    """The same, and the zone."""
    micros, west = unpacked(_TIMETZ, data)
    minutes, seconds = divmod(abs(west), 60)
    hours, minutes = divmod(minutes, 60)
    zone = f"{'+' if west <= 0 else '-'}{hours:02d}"
    if minutes or seconds:
        zone += f":{minutes:02d}"
    return _clock(micros) + zone + (f":{seconds:02d}" if seconds else "")


def timestamp(data: bytes) -> str:
    """Date and time; `infinity`."""
    return _timestamp(data, "")


def timestamptz(data: bytes) -> str:
    """The same in UTC, and its zone."""
    return _timestamp(data, "+00")


def interval(data: bytes) -> str:
    """ISO 8601: `P1Y2M3DT4H5M6.7S`, each part with a sign of its own; `infinity`."""
    micros, days, months = unpacked(_INTERVAL, data)
    if (micros, days, months) == _EVER:
        return "infinity"
    if (micros, days, months) == tuple(-1 - most for most in _EVER):
        return "-infinity"
    size, sign = abs(micros), -1 if micros < 0 else 1
    years, more = abs(months) // 12, abs(months) % 12
    turn = -1 if months < 0 else 1
    parts = [(turn * years, "Y"), (turn * more, "M"), (days, "D")]
    seconds, fraction = size // _SECOND % 60, size % _SECOND
    clock = [(sign * (size // (3600 * _SECOND)), "H"), (sign * (size // (60 * _SECOND) % 60), "M")]
    out = "".join(f"{number}{letter}" for number, letter in parts if number)
    behind = "".join(f"{number}{letter}" for number, letter in clock if number)
    if seconds or fraction:
        behind += f"{'-' if sign < 0 else ''}{seconds}{_fraction(fraction)}S"
    return f"P{out}{'T' + behind if behind else ''}" if out or behind else "PT0S"


def _timestamp(data: bytes, zone: str) -> str:
    (micros,) = unpacked(_TIME, data)
    if ever := _endless(micros, 8):
        return ever
    days, rest = divmod(micros, DAY)
    before, era = _date(days)
    return f"{before} {_clock(rest)}{zone}{era}"


def _endless(number: int, size: int) -> str:
    if number == _MOST[size]:
        return "infinity"
    return "-infinity" if number == -1 - _MOST[size] else ""


def _date(days: int) -> tuple[str, str]:
    """A day of the Gregorian calendar, counted from 2000-01-01, and its era where that is before Christ.

    Years begin in March here, so that the leap day is their last one.
    """
    era, day = divmod(days + _SINCE_MARCH_0, _ERA)
    year = (day - day // 1460 + day // 36524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5
    month += 3 if month < 10 else -9
    year += 400 * era + (month <= 2)
    before = year <= 0
    return f"{1 - year if before else year:04d}-{month:02d}-{day + 1:02d}", " BC" if before else ""


def _clock(micros: int) -> str:
    seconds, fraction = divmod(micros, _SECOND)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{seconds:02d}{_fraction(fraction)}"


def _fraction(micros: int) -> str:
    return f".{micros:06d}".rstrip("0") if micros else ""
