"""Arrays, ranges and multiranges in the server's binary format, as the text that the server prints.

Each is made for the type of what it holds. Raises MalformedMessage. Source: arrayfuncs.c, rangetypes.c and
multirangetypes.c of PostgreSQL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from typing import Final

from cdc_lake.decode.reader import Reader
from cdc_lake.decode.values.numbers import Text
from cdc_lake.errors import MalformedMessage

_MOST_DIMENSIONS: Final = 6  # MAXDIM
_SPACES: Final = " \t\n\v\f\r"
_EMPTY, _LOWER_IN, _UPPER_IN, _NO_LOWER, _NO_UPPER, _ALL_FLAGS = 1, 2, 4, 8, 16, 31
_IN_BOUND: Final = re.compile(rf"[\"\\()\[\],{_SPACES}]")


def array(element: Text, oid: int, delimiter: str = ",") -> Text:
    """An array of elements of the type with this OID."""
    quoted = re.compile(rf"[\"\\{{}}{re.escape(delimiter)}{_SPACES}]")

    def printed(value: str | None) -> str:
        if value is None:
            return "NULL"
        if value and value.upper() != "NULL" and not quoted.search(value):
            return value
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'

    def read(data: bytes) -> str:
        reader = Reader(data)
        dimensions, flags = reader.u32(), reader.u32()
        of = reader.u32()
        if dimensions > _MOST_DIMENSIONS or flags > 1 or of != oid:
            raise MalformedMessage(f"a binary array of {dimensions} dimensions, of type OID {of}: expected {oid}")
        bounds = [(reader.u32(), reader.i32()) for _ in range(dimensions)]
        count = prod(length for length, _ in bounds) if bounds else 0
        if 4 * count > len(data):
            raise MalformedMessage(f"a binary array of {count} elements in {len(data)} bytes")
        values = [printed(_part(reader, element)) for _ in range(count)]
        reader.finish()
        if not count:
            return "{}"
        for length, _ in reversed(bounds):
            groups = (values[at : at + length] for at in range(0, len(values), length))
            values = ["{" + delimiter.join(group) + "}" for group in groups]
        named = any(lower != 1 for _, lower in bounds)
        before = "".join(f"[{lower}:{lower + length - 1}]" for length, lower in bounds) + "=" if named else ""
        return before + values[0]

    return read


def span(element: Text) -> Text:
    """A range of values."""

    def bound(reader: Reader) -> str:
        value = _part(reader, element)
        if value is None:
            raise MalformedMessage("a binary range with a bound that is NULL")
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
        lower = "" if flags & _NO_LOWER else bound(reader)
        upper = "" if flags & _NO_UPPER else bound(reader)
        reader.finish()
        return f"{'[' if flags & _LOWER_IN else '('}{lower},{upper}{']' if flags & _UPPER_IN else ')'}"

    return read


def spans(element: Text) -> Text:
    """A multirange of values."""
    one = span(element)

    def read(data: bytes) -> str:
        reader = Reader(data)
        found = list(_ranges(reader, reader.u32()))
        reader.finish()
        return "{" + ",".join(found) + "}"

    def _ranges(reader: Reader, count: int) -> Iterator[str]:
        for _ in range(count):
            value = _part(reader, one)
            if value is None:
                raise MalformedMessage("a binary multirange with a range that is NULL")
            yield value

    return read


def _part(reader: Reader, text: Text) -> str | None:
    """A value behind its length, None for NULL."""
    size = reader.i32()
    return None if size == -1 else text(reader.take(size))
