"""Conversions: what a value of one silver type is in another one, where that is sure to be what the server made it."""

from __future__ import annotations

import re

from cdc_lake.errors import Unconvertible
from cdc_lake.lake.store import literal

UNREADABLE = "cdc_lake: a text of an old row is no"
"""How Spark's error begins where a conversion meets a value that has none in the new type."""

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_DIGITS = {"smallint": 5, "int": 10, "bigint": 19}
_WIDER = {
    ("smallint", "int"),
    ("smallint", "bigint"),
    ("int", "bigint"),
    ("float", "double"),
    ("date", "timestamp_ntz"),
}
_PRINTED = {"smallint", "int", "bigint", "boolean", "date", "timestamp_ntz"}
"""Types that Spark prints as the server does when it casts them to text; decimals too."""
_READ = {"smallint", "int", "bigint", "date", "timestamp_ntz"}
"""Types that Spark reads from text as the server does where it reads them at all; decimals too."""


def widens(old_sql: str, new_sql: str) -> bool:
    """Whether every value of one Spark SQL type is the same value of the other."""
    old, new = _DECIMAL.fullmatch(old_sql), _DECIMAL.fullmatch(new_sql)
    if new:
        q, t = int(new[1]), int(new[2])
        if old:
            p, s = int(old[1]), int(old[2])
            return t >= s and q - t >= p - s
        return old_sql in _DIGITS and q - t >= _DIGITS[old_sql]
    return old_sql == new_sql or (old_sql, new_sql) in _WIDER


def conversion(value: str, old_sql: str, new_sql: str) -> str | None:
    """SQL that makes a value of one type the other's as the server's own cast does; None where we know of none.

    It fails rather than give a value that is not the server's.
    """
    if old_sql == new_sql:
        return value
    old_decimal, new_decimal = _DECIMAL.fullmatch(old_sql), _DECIMAL.fullmatch(new_sql)
    printed = old_sql in _PRINTED or old_decimal is not None
    narrower = old_sql in _DIGITS and new_sql in {*_DIGITS, "float", "double"}
    if widens(old_sql, new_sql) or narrower or (new_sql == "string" and printed):
        return f"CAST({value} AS {new_sql})"
    if old_sql == "string" and (new_sql in _READ or new_decimal is not None):
        failed = f"raise_error({literal(f'{UNREADABLE} {new_sql}')})"
        return f"CASE WHEN {value} IS NOT NULL THEN coalesce(try_cast({value} AS {new_sql}), {failed}) END"
    return None


def converted(value: str, name: str, old_sql: str, new_sql: str) -> str:
    """SQL of a value in another type. Raises Unconvertible where there is none that is the server's."""
    sql = conversion(value, old_sql, new_sql)
    if sql is None:
        raise Unconvertible(f"column `{name}` changed from {old_sql} to {new_sql}")
    return sql
