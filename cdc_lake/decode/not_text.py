"""Bytes that are no text in the encoding of their database, kept in hexadecimal digits where the pipeline says so.

    not-text:c3282f        the bytes C3 28 2F, behind a prefix

The form is unambiguous: in a column where it may stand, a text that begins with the prefix itself is written in it too.
So a value that begins with the prefix always stands for the bytes of its digits. In every other column the prefix is
text like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import pyarrow.compute as pc

from cdc_lake.model.change import Tuple, Value
from cdc_lake.model.relation import TableName

PREFIX: Final = "not-text:"

InHex: TypeAlias = Callable[[TableName, str], bool]
"""Whether bytes of a table's column that are no text may be kept in hexadecimal digits."""


class NotText(str):
    """Such a value; `at`: the byte of the message at which it stops being text."""

    __slots__ = ("at",)
    at: int

    @classmethod
    def of(cls, data: bytes, at: int) -> NotText:
        """The value of bytes that are no text."""
        made = cls(PREFIX + data.hex())
        made.at = at
        return made


def settled(
    table: TableName,
    names: Sequence[str],
    values: Tuple,
    in_hex: InHex,
    encode: Callable[[str], bytes],
    error: Callable[[int], Exception],
) -> Tuple:
    """A tuple whose odd values are as their columns want them. `encode` gives a text's bytes in the database.

    Raises what `error` makes of the byte where a value of a column that wants text stops being one.
    """
    if not any(isinstance(value, str) and value.startswith(PREFIX) for value in values):
        return values
    out: list[Value] = []
    for name, value in zip(names, values, strict=True):
        if isinstance(value, str) and value.startswith(PREFIX):
            if isinstance(value, NotText):
                if not in_hex(table, name):
                    raise error(value.at)
                out.append(str(value))
                continue
            out.append(PREFIX + encode(value).hex() if in_hex(table, name) else value)
            continue
        out.append(value)
    return tuple(out)


def any_prefixed(lists: Any) -> bool:
    """Whether a value of a list<string> array begins with the prefix: then `settled` has to look at each."""
    values = pc.list_flatten(lists)
    return bool(len(values)) and bool(pc.any(pc.starts_with(values, PREFIX)).as_py())
