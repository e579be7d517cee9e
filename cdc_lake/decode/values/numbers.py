"""Numbers in the server's binary format, as the text that the server prints.

A function takes the bytes of one value. Raises MalformedMessage where they are none. Source: the types' send and output
functions (int.c, float.c, numeric.c, bool.c, xid.c, pg_lsn.c of PostgreSQL).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Final, TypeAlias

import numpy as np

from cdc_lake.errors import MalformedMessage

Text: TypeAlias = Callable[[bytes], str]
"""The text of the bytes of one value. Raises MalformedMessage."""

_HEAD: Final = struct.Struct(">HhHH")  # of a numeric: digits, weight, sign, scale
_GROUP: Final = 10_000  # one digit of a numeric is four decimal ones
_NEGATIVE: Final = 0x4000
_SIGNS: Final = {0: "", _NEGATIVE: "-"}
_NO_NUMBER: Final = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}
_HALVES: Final = {8: 2.0**50, 4: 2.0**20}
"""By bytes: from where on a short decimal may lie halfway between two floats; below, it has too many digits."""


def unpacked(layout: struct.Struct, data: bytes) -> tuple[int, ...]:
    """The numbers of a value of exactly this layout. Raises MalformedMessage."""
    if len(data) != layout.size:
        raise MalformedMessage(f"a binary value of {len(data)} bytes: expected {layout.size}")
    return layout.unpack(data)


def whole(form: str) -> Text:
    """An integer of this form of `struct`."""
    layout = struct.Struct(">" + form)
    return lambda data: str(unpacked(layout, data)[0])


def boolean(data: bytes) -> str:
    """`t` or `f`."""
    if data not in (b"\0", b"\1"):
        raise MalformedMessage("a binary boolean that is neither 0 nor 1")
    return "t" if data == b"\1" else "f"


def lsn(data: bytes) -> str:
    """A WAL position."""
    high, low = unpacked(_LSN, data)
    return f"{high:X}/{low:X}"


_LSN: Final = struct.Struct(">II")


def tid(data: bytes) -> str:
    """A row's place: block and number."""
    block, number = unpacked(_TID, data)
    return f"({block},{number})"


_TID: Final = struct.Struct(">IH")


def numeric(data: bytes) -> str:
    """A numeric with exactly its scale's digits."""
    if len(data) < _HEAD.size:
        raise MalformedMessage("a binary numeric that ends in its head")
    count, weight, sign, scale = _HEAD.unpack_from(data)
    if len(data) != _HEAD.size + 2 * count:
        raise MalformedMessage(f"a binary numeric of {len(data)} bytes for {count} digits")
    if sign in _NO_NUMBER:
        return _NO_NUMBER[sign]
    digits = struct.unpack_from(f">{count}H", data, _HEAD.size)
    if sign not in _SIGNS or any(digit >= _GROUP for digit in digits):
        raise MalformedMessage("a binary numeric with a sign or a digit that there is not")
    groups = [f"{digit:04d}" for digit in digits]
    before = "".join(groups[: max(weight + 1, 0)]).ljust(4 * (weight + 1), "0").lstrip("0") or "0"
    if not scale:
        return _SIGNS[sign] + before
    behind = "0" * (4 * max(-1 - weight, 0)) + "".join(groups[max(weight + 1, 0) :])
    return f"{_SIGNS[sign]}{before}.{behind[:scale].ljust(scale, '0')}"


def float8(data: bytes) -> str:
    """The shortest text that reads back as the same double precision."""
    (value,) = unpacked(_FLOAT8, data)
    return _printed(float(value), 8, 15)


def float4(data: bytes) -> str:
    """The shortest text that reads back as the same real."""
    (value,) = unpacked(_FLOAT4, data)
    return _printed(float(value), 4, 6)


_FLOAT8: Final = struct.Struct(">d")
_FLOAT4: Final = struct.Struct(">f")


def _printed(value: float, size: int, plain_below: int) -> str:
    """With an exponent from ten to that power on, and below 0.0001 (`double_to_shortest_decimal_buf`)."""
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
    before, behind = digits[: exponent + 1].ljust(exponent + 1, "0"), digits[exponent + 1 :]
    return f"{sign}{before}.{behind}" if behind else sign + before


def _shortest(value: float, size: int) -> tuple[str, int]:
    """The fewest digits between the neighbours' halfway points, and the exponent of the first."""
    exact = np.float32(value) if size == 4 else np.float64(value)  # bytes
    text = str(np.format_float_scientific(exact, unique=True, trim="-"))
    if value >= _HALVES[size] and _halfway(text, exact):
        # the server leaves out a decimal that lies exactly halfway, though it reads back as this float
        most = 9 if size == 4 else 17
        tries = (f"{value:.{count}e}" for count in range(most))
        text = next(one for one in tries if type(exact)(one) == exact and not _halfway(one, exact))
    mantissa, exponent = text.split("e")
    return mantissa.replace(".", "").rstrip("0") or "0", int(exponent)


def _halfway(text: str, exact: np.floating) -> bool:
    found, value = Fraction(text), Fraction(float(exact))
    with np.errstate(over="ignore"):  # the greatest one has none beyond
        beyond = np.nextafter(exact, type(exact)(math.inf if found > value else -math.inf))
    return found != value and not np.isinf(beyond) and 2 * found == value + Fraction(float(beyond))
