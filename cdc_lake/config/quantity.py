"""Typed quantities of a pipeline file: `32 MiB` and `200 ms`, parsed once, exact afterwards."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_TIMES = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)")


def _parse(value: object, units: dict[str, int], example: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and (m := _QUANTITY.fullmatch(value.strip())) and m[2] in units:
        return round(float(m[1]) * units[m[2]])
    msg = f"expected a quantity with a unit ({', '.join(units)}), for example `{example}`"
    raise ValueError(msg)


def _bytes(value: object) -> int:
    return _parse(value, _UNITS, "32 MiB")


def _milliseconds(value: object) -> int:
    return _parse(value, _TIMES, "200 ms")


def parse_milliseconds(text: str) -> int:
    """A length of time as people write it, `90 d`. Raises ValueError."""
    return _milliseconds(text)


BYTES = BeforeValidator(_bytes, json_schema_input_type=int | str)
MILLISECONDS = BeforeValidator(_milliseconds, json_schema_input_type=int | str)

Bytes = Annotated[int, BYTES, Field(ge=1, examples=["32 MiB"])]
"""A number of bytes, written with a unit."""

Milliseconds = Annotated[int, MILLISECONDS, Field(ge=0, examples=["200 ms"])]
"""A length of time in milliseconds, written with a unit."""


def format_bytes(value: int) -> str:
    """The largest unit that gives a whole number: `32 MiB`, exact and ready to be written back."""
    return _format(value, _UNITS)


def format_milliseconds(value: int) -> str:
    """The largest unit that gives a whole number: `10 s`, exact and ready to be written back."""
    return _format(value, _TIMES)


def _format(value: int, units: dict[str, int]) -> str:
    name, size = max(((n, s) for n, s in units.items() if value % s == 0 and s <= max(value, 1)), key=lambda u: u[1])
    return f"{value // size} {name}"
