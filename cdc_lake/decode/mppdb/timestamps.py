"""Server time text, as BEGIN and COMMIT print it, to microseconds since 1970 UTC.

`YYYY-MM-DD HH:MM:SS[.ffffff]±HH[:MM[:SS]]`: trailing zeros of the fraction are cut, years above 9999 have more digits,
` BC` may follow. The offset is that of the server's session, historical ones have seconds.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from cdc_lake.errors import UnreadableTime

TIME: Final = (
    r"[0-9]{4,7}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?[-+][0-9]{2}(?::[0-9]{2}){0,2}(?: BC)?"
)
"""Pattern of a time, without groups."""

_PARTS: Final = re.compile(
    r"([0-9]{4,7})-([0-9]{2})-([0-9]{2}) ([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?"
    r"([-+])([0-9]{2})(?::([0-9]{2}))?(?::([0-9]{2}))?( BC)?"
)
_DAYS_BEFORE: Final = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)
_DAYS_TO_1970: Final = 719_162  # from 0001-01-01
_ROOM: Final = 1 << 63
"""Microseconds that a column of times has room for, before 1970 and behind it: up to the year 294247."""


def micros(text: str) -> int:
    """Microseconds since 1970-01-01 UTC. Raises UnreadableTime."""
    parts = _PARTS.fullmatch(text)
    if parts is None:
        raise UnreadableTime
    year, month, day, hour, minute, second = map(int, parts.groups()[:6])
    fraction, sign, *offset, era = parts.groups()[6:]
    if era:
        year = 1 - year
    east, south, seconds = (int(part or 0) for part in offset)
    in_range = 1 <= month <= 12 and 1 <= day <= _days_in(year, month) and hour <= 23 and minute <= 59 and second <= 60
    if not in_range or south > 59 or seconds > 59:
        raise UnreadableTime
    away = east * 3600 + south * 60 + seconds
    utc = hour * 3600 + minute * 60 + second + (away if sign == "-" else -away)
    found = (_days(year, month, day) * 86_400 + utc) * 1_000_000 + int((fraction or "").ljust(6, "0"))
    if not -_ROOM <= found < _ROOM:
        raise UnreadableTime
    return found


def _leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _days_in(year: int, month: int) -> int:
    return 29 if month == 2 and _leap(year) else (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[month - 1]


@lru_cache(maxsize=64)
def _days(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 in the proleptic Gregorian calendar, where year 0 is 1 BC."""
    past = year - 1
    whole = past * 365 + past // 4 - past // 100 + past // 400
    return whole + _DAYS_BEFORE[month - 1] + (month > 2 and _leap(year)) + day - 1 - _DAYS_TO_1970
