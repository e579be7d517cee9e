"""Numbers, texts, bits, dates and times in the server's binary format, as the text that the server prints.

Settings are DateStyle ISO, TimeZone UTC and IntervalStyle iso_8601 (`source.sql_text`); days and microseconds count
from 2000-01-01. A function takes the bytes of one value. Raises MalformedMessage, and InvalidText for what is not
UTF-8. Source: the types' send and output functions in PostgreSQL's backend/utils/adt (int.c, float.c, numeric.c,
bool.c, xid.c, pg_lsn.c, varlena.c, char.c, json.c, jsonb.c, varbit.c, uuid.c, mac.c, date.c, timestamp.c, datetime.c).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Final, TypeAlias

import numpy as np

from cdc_lake.decode.pgoutput.messages import utf8
from cdc_lake.errors import MalformedMessage

Text: TypeAlias = Callable[[bytes], str]
"""The text of the bytes of one value. Raises MalformedMessage."""

_HEAD: Final = struct.Struct(">HhHH")  # of a numeric: digits, weight, sign, scale
_GROUP: Final = 10_000  # one digit of a numeric is four decimal ones
_NEGATIVE: Final = 0x4000
_SIGNS: Final = {0: "", _NEGATIVE: "-"}
_NO_NUMBER: Final = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}
_HALVES: Final = {8: 2.0**50, 4: 2.0**20}
"""By size: from where on a short decimal may lie halfway between two floats; below, it has too many digits."""


def unpack(layout: struct.Struct, data: bytes) -> tuple[int, ...]:
    """The numbers of a value of exactly this layout. Raises MalformedMessage."""
    if len(data) != layout.size:
        raise MalformedMessage(f"a binary value of {len(data)} bytes: expected {layout.size}")
    return layout.unpack(data)


def integer(form: str) -> Text:
    """An integer of this form of `struct`."""
    layout = struct.Struct(">" + form)
    return lambda data: str(unpack(layout, data)[0])


def boolean(data: bytes) -> str:
    """`t` or `f`."""
    if data not in (b"\0", b"\1"):
        raise MalformedMessage("a binary boolean that is neither 0 nor 1")
    return "t" if data == b"\1" else "f"


def lsn(data: bytes) -> str:
    """A WAL position."""
    high, low = unpack(_LSN, data)
    return f"{high:X}/{low:X}"


_LSN: Final = struct.Struct(">II")


def tid(data: bytes) -> str:
    """A row's location: block and number."""
    block, number = unpack(_TID, data)
    return f"({block},{number})"


_TID: Final = struct.Struct(">IH")


def numeric(data: bytes) -> str:
    """A numeric with exactly its scale's digits."""
    if len(data) < _HEAD.size:
        raise MalformedMessage("a binary numeric that ends within its header")
    count, weight, sign, scale = _HEAD.unpack_from(data)
    if len(data) != _HEAD.size + 2 * count:
        raise MalformedMessage(f"a binary numeric of {len(data)} bytes for {count} digits")
    if sign in _NO_NUMBER:
        return _NO_NUMBER[sign]
    digits = struct.unpack_from(f">{count}H", data, _HEAD.size)
    if sign not in _SIGNS or any(digit >= _GROUP for digit in digits):
        raise MalformedMessage("a binary numeric with an invalid sign or digit")
    groups = [f"{digit:04d}" for digit in digits]
    before = "".join(groups[: max(weight + 1, 0)]).ljust(4 * (weight + 1), "0").lstrip("0") or "0"
    if not scale:
        return _SIGNS[sign] + before
    fraction = "0" * (4 * max(-1 - weight, 0)) + "".join(groups[max(weight + 1, 0) :])
    return f"{_SIGNS[sign]}{before}.{fraction[:scale].ljust(scale, '0')}"


def float8(data: bytes) -> str:
    """The shortest text that reads back as the same double precision."""
    return _format_float(unpack(_FLOAT8, data)[0], 8, 15)


def float4(data: bytes) -> str:
    """The shortest text that reads back as the same real."""
    return _format_float(unpack(_FLOAT4, data)[0], 4, 6)


_FLOAT8: Final = struct.Struct(">d")
_FLOAT4: Final = struct.Struct(">f")


def _format_float(value: float, size: int, plain_below: int) -> str:
    """With an exponent from that power of ten on, and below 0.0001 (`double_to_shortest_decimal_buf`)."""
    if math.isnan(value):
        return "NaN"
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    if math.isinf(value) or value == 0:
        return sign + ("0" if value == 0 else "Infinity")
    digits, exponent = _shortest(abs(value), size)
    if not -4 <= exponent < plain_below:
        rest = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{rest}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-1 - exponent)}{digits}"
    before, fraction = digits[: exponent + 1].ljust(exponent + 1, "0"), digits[exponent + 1 :]
    return f"{sign}{before}.{fraction}" if fraction else sign + before


def _shortest(value: float, size: int) -> tuple[str, int]:
    """The fewest digits between the halfway points to both neighbours, and the exponent of the first digit."""
    exact = np.float32(value) if size == 4 else np.float64(value)  # bytes
    text = str(np.format_float_scientific(exact, unique=True, trim="-"))
    if value >= _HALVES[size] and _halfway(text, exact):
        # the server excludes a decimal exactly halfway, although it reads back as this float
        most = 9 if size == 4 else 17
        tries = (f"{value:.{count}e}" for count in range(most))
        text = next(short for short in tries if type(exact)(short) == exact and not _halfway(short, exact))
    mantissa, exponent = text.split("e")
    return mantissa.replace(".", "").rstrip("0") or "0", int(exponent)


def _halfway(text: str, exact: np.floating) -> bool:
    decimal, value = Fraction(text), Fraction(float(exact))
    with np.errstate(over="ignore"):  # the greatest float has no greater neighbour
        beyond = np.nextafter(exact, type(exact)(math.inf if decimal > value else -math.inf))
    return decimal != value and not np.isinf(beyond) and 2 * decimal == value + Fraction(float(beyond))


_LENGTH: Final = struct.Struct(">I")
_UUID: Final = 16  # bytes


def versioned_text(data: bytes) -> str:
    """Text after a byte with the version of its format (jsonb, jsonpath): 1."""
    if data[:1] != b"\1":
        raise MalformedMessage("a binary document that is not of version 1")
    return utf8(data[1:])


def letter(data: bytes) -> str:
    """The type `"char"`: one byte; zero is printed as nothing, and from version 16 on non-ASCII in octal digits."""
    if len(data) != 1 or data[0] >= 0x80:
        text = 'a binary "char" that is not one byte of ASCII: server versions print others differently'
        raise MalformedMessage(text)
    return "" if data == b"\0" else chr(data[0])


def octets(data: bytes) -> str:
    """Bytes in hexadecimal digits."""
    return "\\x" + data.hex()


def bits(data: bytes) -> str:
    """Digits 0 and 1."""
    if len(data) < _LENGTH.size:
        raise MalformedMessage("binary bits that end within their length")
    (count,) = _LENGTH.unpack_from(data)
    if len(data) != _LENGTH.size + (count + 7) // 8:
        raise MalformedMessage(f"{count} binary bits in {len(data)} bytes")
    return "".join(f"{byte:08b}" for byte in data[_LENGTH.size :])[:count]


def uuid(data: bytes) -> str:
    """Hexadecimal digits in five groups."""
    if len(data) != _UUID:
        raise MalformedMessage(f"a binary uuid of {len(data)} bytes")
    digits = data.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def hardware(size: int) -> Text:
    """A hardware address of so many bytes."""

    def format_address(data: bytes) -> str:
        if len(data) != size:
            raise MalformedMessage(f"a binary hardware address of {len(data)} bytes: expected {size}")
        return data.hex(":")

    return format_address


DAY: Final = 86_400_000_000  # microseconds
_SECOND: Final = 1_000_000
_DATE: Final = struct.Struct(">i")
_TIME: Final = struct.Struct(">q")
_TIMETZ: Final = struct.Struct(">qi")  # microseconds, seconds west of UTC
_INTERVAL: Final = struct.Struct(">qii")  # microseconds, days, months
_MOST: Final = {4: (1 << 31) - 1, 8: (1 << 63) - 1}
_EVER: Final = (_MOST[8], _MOST[4], _MOST[4])
_SINCE_MARCH_0: Final = 730_425  # days from 0000-03-01 to 2000-01-01


def date(data: bytes) -> str:
    """`YYYY-MM-DD`, with ` BC`; `infinity`."""
    (days,) = unpack(_DATE, data)
    return _endless(days, 4) or "".join(_date(days))


def time(data: bytes) -> str:
    """`HH:MM:SS.ffffff` without trailing zeros."""
    return _clock(unpack(_TIME, data)[0])


def timetz(data: bytes) -> str:
    """The same with its zone."""
    micros, west = unpack(_TIMETZ, data)
    minutes, seconds = divmod(abs(west), 60)
    hours, minutes = divmod(minutes, 60)
    zone = f"{'+' if west <= 0 else '-'}{hours:02d}"
    if minutes or seconds:
        zone += f":{minutes:02d}"
    return _clock(micros) + zone + (f":{seconds:02d}" if seconds else "")


def timestamp(data: bytes, zone: str = "") -> str:
    """Date and time; `infinity`."""
    (micros,) = unpack(_TIME, data)
    if ever := _endless(micros, 8):
        return ever
    days, rest = divmod(micros, DAY)
    before, era = _date(days)
    return f"{before} {_clock(rest)}{zone}{era}"


def timestamptz(data: bytes) -> str:
    """The same in UTC, and its zone."""
    return timestamp(data, "+00")


def interval(data: bytes) -> str:
    """ISO 8601: `P1Y2M3DT4H5M6.7S`, with a sign for each part; `infinity`."""
    micros, days, months = unpack(_INTERVAL, data)
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
    date_part = "".join(f"{number}{letter}" for number, letter in parts if number)
    time_part = "".join(f"{number}{letter}" for number, letter in clock if number)
    if seconds or fraction:
        time_part += f"{'-' if sign < 0 else ''}{seconds}{_fraction(fraction)}S"
    return f"P{date_part}{'T' + time_part if time_part else ''}" if date_part or time_part else "PT0S"


def _endless(number: int, size: int) -> str:
    if number == _MOST[size]:
        return "infinity"
    return "-infinity" if number == -1 - _MOST[size] else ""


def _date(days: int) -> tuple[str, str]:
    """A day of the Gregorian calendar, counted from 2000-01-01, and its era if it is BC.

    Years begin in March here, so that the leap day is the last one.
    """
    era, day = divmod(days + _SINCE_MARCH_0, 146_097)  # days of 400 years
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
