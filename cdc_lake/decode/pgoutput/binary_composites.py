"""Arrays, ranges, network addresses and geometric values in binary format, as the text that the server prints.

Each function takes the bytes of one value; those for arrays, ranges and multiranges are created for their element type.
Raises MalformedMessage. Source: arrayfuncs.c, rangetypes.c, multirangetypes.c, network.c, inet_net_ntop.c and geo_ops.c
of PostgreSQL.
"""

from __future__ import annotations

import re
import struct
from itertools import groupby
from math import prod
from typing import Final

from cdc_lake.decode.pgoutput.binary_scalars import Text, float8
from cdc_lake.decode.pgoutput.messages import Reader
from cdc_lake.errors import MalformedMessage

_SPACES: Final = " \t\n\v\f\r"
_EMPTY, _LOWER_IN, _UPPER_IN, _NO_LOWER, _NO_UPPER, _ALL_FLAGS = 1, 2, 4, 8, 16, 31
_IN_BOUND: Final = re.compile(rf"[\"\\()\[\],{_SPACES}]")


def array(element: Text, oid: int, delimiter: str = ",") -> Text:
    """An array of elements of the type with this OID."""
    quoted = re.compile(rf"[\"\\{{}}{re.escape(delimiter)}{_SPACES}]")

    def quote_element(value: str | None) -> str:
        if value is None:
            return "NULL"
        if value and value.upper() != "NULL" and not quoted.search(value):
            return value
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'

    def read(data: bytes) -> str:
        reader = Reader(data)
        dimensions, flags = reader.u32(), reader.u32()
        of = reader.u32()
        if dimensions > 6 or flags > 1 or of != oid:  # MAXDIM
            raise MalformedMessage(f"a binary array of {dimensions} dimensions, of type OID {of}: expected {oid}")
        bounds = [(reader.u32(), reader.i32()) for _ in range(dimensions)]
        count = prod(length for length, _ in bounds) if bounds else 0
        if 4 * count > len(data):
            raise MalformedMessage(f"a binary array of {count} elements in {len(data)} bytes")
        values = [quote_element(_part(reader, element)) for _ in range(count)]
        reader.finish()
        if not count:
            return "{}"
        for length, _ in reversed(bounds):
            groups = (values[offset : offset + length] for offset in range(0, len(values), length))
            values = ["{" + delimiter.join(group) + "}" for group in groups]
        named = any(lower != 1 for _, lower in bounds)
        before = "".join(f"[{lower}:{lower + length - 1}]" for length, lower in bounds) + "=" if named else ""
        return before + values[0]

    return read


def span(element: Text) -> Text:
    """A range of values."""

    def read_bound(reader: Reader) -> str:
        value = _sent_part(reader, element, "range with a bound")
        if value and not _IN_BOUND.search(value):
            return value
        return '"' + value.replace("\\", "\\\\").replace('"', '""') + '"'

    def read(data: bytes) -> str:
        reader = Reader(data)
        if (flags := reader.u8()) & ~_ALL_FLAGS:
            raise MalformedMessage(f"unknown flags {flags:#04x} of a binary range")
        if flags & _EMPTY:
            reader.finish()
            return "empty"
        lower = "" if flags & _NO_LOWER else read_bound(reader)
        upper = "" if flags & _NO_UPPER else read_bound(reader)
        reader.finish()
        return f"{'[' if flags & _LOWER_IN else '('}{lower},{upper}{']' if flags & _UPPER_IN else ')'}"

    return read


def spans(element: Text) -> Text:
    """A multirange of values."""
    range_text = span(element)

    def read(data: bytes) -> str:
        reader = Reader(data)
        ranges = [_sent_part(reader, range_text, "multirange with a range") for _ in range(reader.u32())]
        reader.finish()
        return "{" + ",".join(ranges) + "}"

    return read


def _sent_part(reader: Reader, text: Text, what: str) -> str:
    """A value after its length, which must not be NULL."""
    if (value := _part(reader, text)) is None:
        raise MalformedMessage(f"a binary {what} that is NULL")
    return value


def _part(reader: Reader, text: Text) -> str | None:
    """A value after its length, None for NULL."""
    size = reader.i32()
    return None if size == -1 else text(reader.take(size))


_SIZES: Final = {2: 4, 3: 16}  # bytes of an address by its family, PGSQL_AF_INET and PGSQL_AF_INET6
_HEAD: Final = 4  # bytes: family, bits of the network, whether it is a cidr, bytes of the address
_MAPPED: Final = 0xFFFF


def inet(data: bytes) -> str:
    """An address, with the netmask length unless it covers all bits."""
    address, network, most = _read(data)
    return address if network == most else f"{address}/{network}"


def cidr(data: bytes) -> str:
    """A network, always with its netmask length."""
    address, network, _ = _read(data)
    return f"{address}/{network}"


def _read(data: bytes) -> tuple[str, int, int]:
    size = _SIZES.get(data[0]) if len(data) >= _HEAD else None
    if size is None or data[3] != size or len(data) != _HEAD + size or data[1] > 8 * size:
        raise MalformedMessage(f"a binary address of {len(data)} bytes of an unknown family")
    address = data[_HEAD:]
    return (_four(address) if size == _SIZES[2] else _six(address)), data[1], 8 * size


def _four(address: bytes) -> str:
    return ".".join(map(str, address))


def _six(address: bytes) -> str:
    """Eight words without the first of the longest runs of at least two zeros; may end in an IPv4 address."""
    words = struct.unpack(">8H", address)
    runs, index = [], 0
    for zero, group in groupby(words, lambda word: word == 0):
        length = len(list(group))
        if zero and length > 1:
            runs.append((length, -index))
        index += length
    if not runs:
        return ":".join(f"{word:x}" for word in words)
    length, first = max(runs)
    first = -first
    last = [f"{word:x}" for word in words[first + length :]]
    if first == 0 and (length == 6 or (length == 5 and words[5] == _MAPPED)):
        last = [*(["ffff"] if length == 5 else []), _four(address[12:])]
    return ":".join(f"{word:x}" for word in words[:first]) + "::" + ":".join(last)


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
    return f"({_counted_points(data)})"


def path(data: bytes) -> str:
    """Points in parentheses if it is closed, in brackets if it is open."""
    if data[:1] not in (b"\0", b"\1"):
        raise MalformedMessage("a binary path that is neither open nor closed")
    points = _counted_points(data[1:])
    return f"({points})" if data[0] else f"[{points}]"


def _counted_points(data: bytes) -> str:
    if len(data) < _COUNT.size:
        raise MalformedMessage("a binary shape that ends within its number of points")
    return _points(data[_COUNT.size :], _COUNT.unpack_from(data)[0])


def _points(data: bytes, count: int) -> str:
    numbers = _numbers(data, 2 * count)
    return ",".join(f"({x},{y})" for x, y in zip(numbers[::2], numbers[1::2], strict=True))


def _numbers(data: bytes, count: int) -> list[str]:
    if len(data) != _SIZE * count:
        raise MalformedMessage(f"{count} binary numbers in {len(data)} bytes")
    return [float8(data[offset : offset + _SIZE]) for offset in range(0, len(data), _SIZE)]
