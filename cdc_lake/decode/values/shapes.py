"""Geometric values in the server's binary format, as the text that the server prints.

All are made of double precisions. A function takes the bytes of one value. Raises MalformedMessage. Source: geo_ops.c
of PostgreSQL.
"""

from __future__ import annotations

import struct
from typing import Final

from cdc_lake.decode.values.numbers import float8
from cdc_lake.errors import MalformedMessage

_SIZE: Final = 8  # bytes of a number
_COUNT: Final = struct.Struct(">I")


def point(data: bytes) -> str:
    """`(x,y)`."""
    return _points(data, 1)


def segment(data: bytes) -> str:
    """`[(x,y),(x,y)]`."""
    return f"[{_points(data, 2)}]"


def box(data: bytes) -> str:
    """Two corners."""
    return _points(data, 2)


def line(data: bytes) -> str:
    """`{A,B,C}`."""
    return "{" + ",".join(_numbers(data, 3)) + "}"


def circle(data: bytes) -> str:
    """`<(x,y),r>`."""
    x, y, radius = _numbers(data, 3)
    return f"<({x},{y}),{radius}>"


def polygon(data: bytes) -> str:
    """`((x,y),…)`."""
    return f"({_counted(data)})"


def path(data: bytes) -> str:
    """Points in round brackets where it is closed, in square ones where it is open."""
    if data[:1] not in (b"\0", b"\1"):
        raise MalformedMessage("a binary path that is neither open nor closed")
    points = _counted(data[1:])
    return f"({points})" if data[0] else f"[{points}]"


def _counted(data: bytes) -> str:
    if len(data) < _COUNT.size:
        raise MalformedMessage("a binary shape that ends in its number of points")
    return _points(data[_COUNT.size :], _COUNT.unpack_from(data)[0])


def _points(data: bytes, count: int) -> str:
    numbers = _numbers(data, 2 * count)
    return ",".join(f"({x},{y})" for x, y in zip(numbers[::2], numbers[1::2], strict=True))


def _numbers(data: bytes, count: int) -> list[str]:
    if len(data) != _SIZE * count:
        raise MalformedMessage(f"{count} binary numbers in {len(data)} bytes")
    return [float8(data[at : at + _SIZE]) for at in range(0, len(data), _SIZE)]
