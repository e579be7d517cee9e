"""Defaults of old rows: what the catalog of the GaussDB family keeps of a column that was added with one.

Such a column is not written into the rows that are there: its default stands in `pg_attribute.attinitdefval`, as the
bytes that a row would hold (`shouldUpdateAllTuples` of openGauss's tablecmds.cpp). The server does that for a list of
types, for constants below 128 bytes; otherwise it writes the table anew, and keeps nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final, TypeAlias

import numpy as np

from cdc_lake.model.relation import Missing

Decode: TypeAlias = Callable[[bytes], str | None]
"""Text from bytes in the database's encoding; None where they are none."""

Print: TypeAlias = Callable[[str], str | None]
"""A numeric as this server prints it: by a setting with or without the zero before a point."""

_EPOCH: Final = datetime(2000, 1, 1)  # noqa: DTZ001 - of no zone
_TEXTS: Final = frozenset({"text", "varchar", "bpchar"})


def missing_of(
    type_name: str, kept: str | None, *, has_default: bool, decode: Decode, printed: Print
) -> Missing | None:
    """What rows from before a column hold in it: from `kept`, the bytes that the catalog keeps, in hexadecimal digits.

    Without them NULL, but where the column has a default (`has_default`): the rows may have been written anew with it,
    or it came later, so nobody can say.
    """
    if kept is None:
        return Missing(None) if has_default else None
    image = bytes.fromhex(kept)
    if type_name in _TEXTS:
        return Missing(decode(_payload(image)))
    text = read(image) if (read := _READ.get(type_name)) is not None else None
    if type_name == "numeric" and text is not None and text.lstrip("-").startswith("0."):
        text = printed(text)
    return Missing(text)


def _payload(image: bytes) -> bytes:
    """Of a value of varying length what is behind its length: one byte with its lowest bit set, or four."""
    return image[1:] if image[0] & 1 else image[4:]


def _number(form: str) -> Callable[[bytes], str]:
    return lambda image: str(struct.unpack(form, image)[0])


def _float(form: str) -> Callable[[bytes], str]:
    def printed(image: bytes) -> str:
        value = np.frombuffer(image, form)[0]
        if np.isnan(value):
            return "NaN"
        return "-" * bool(value < 0) + "Infinity" if np.isinf(value) else str(value)

    return printed


def _numeric(image: bytes) -> str | None:
    """Sign, scale and weight in one header of two bytes or in two, then digits to base 10,000 (`numeric.cpp`)."""
    data = _payload(image)
    (header,) = struct.unpack_from("<H", data)
    if header >> 14 == 3:  # not a number, or a form of its own for columnar tables
        return "NaN" if header == 0xC000 else None
    if header >> 14 == 2:
        negative, scale, weight, at = bool(header & 0x2000), header >> 7 & 0x3F, (header & 0x3F) - (header & 0x40), 2
    else:
        negative, scale, weight, at = bool(header & 0x4000), header & 0x3FFF, struct.unpack_from("<h", data, 2)[0], 4
    digits = struct.unpack_from(f"<{(len(data) - at) // 2}H", data, at)
    value = 0
    for digit in digits:
        value = value * 10_000 + digit
    shift = 4 * (weight + 1 - len(digits)) + scale
    unscaled = str(value * 10**shift if shift >= 0 else value // 10**-shift).rjust(scale + 1, "0")
    whole, fraction = unscaled[: len(unscaled) - scale], unscaled[len(unscaled) - scale :]
    return "-" * negative + whole + (f".{fraction}" if fraction else "")


def _moment(zone: str) -> Callable[[bytes], str | None]:
    def printed(image: bytes) -> str | None:
        """From microseconds since the year 2000; None outside the years 1 to 9999."""
        try:
            moment = _EPOCH + timedelta(microseconds=struct.unpack("<q", image)[0])
        except OverflowError:
            return None
        text = moment.isoformat(" ")
        return (text.rstrip("0") if "." in text else text) + zone

    return printed


def _day(image: bytes) -> str | None:
    try:
        return (_EPOCH + timedelta(days=struct.unpack("<i", image)[0])).date().isoformat()
    except OverflowError:
        return None


_READ: Final[Mapping[str, Callable[[bytes], str | None]]] = {
    "bool": lambda image: "f" if image == b"\0" else "t",
    "int1": _number("<B"),
    "int2": _number("<h"),
    "int4": _number("<i"),
    "int8": _number("<q"),
    "float4": _float("<f4"),
    "float8": _float("<f8"),
    "numeric": _numeric,
    "bytea": lambda image: f"\\x{_payload(image).hex()}",
    "date": _day,
    "timestamp": _moment(""),
    "smalldatetime": _moment(""),
    "timestamptz": _moment("+00"),
}
"""By type: the text that a server prints, None for a value that is not read here. Other types are not."""
