"""Conversions: what a value of one silver type is in another one, where that is sure to be what the server made it.

Also of source types that are one in silver: there ALTER TYPE may give old rows other values without silver's columns
changing (`rewriting`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from cdc_lake.errors import Unconvertible
from cdc_lake.lake.casts import cast_sql, fits_sql
from cdc_lake.lake.store import literal
from cdc_lake.lake.types import column_type, element_of, source_type, type_name
from cdc_lake.model.relation import Column, numeric_modifier

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
"""Types that Spark reads from text as the server does where it reads them at all, decimals too; moments only from what
the server prints.
"""
_PRINTED_ALIKE = {"date": Column("", "date", 1082), "timestamp_ntz": Column("", "timestamp", 1114)}


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
        if new_sql in _PRINTED_ALIKE:  # Spark reads dates and times leniently, '0044-03-15 BC' as one of our era
            kind = column_type(_PRINTED_ALIKE[new_sql])
            return f"CASE WHEN {fits_sql(value, kind)} THEN {cast_sql(value, kind)} ELSE {failed} END"
        return f"CASE WHEN {value} IS NOT NULL THEN coalesce(try_cast({value} AS {new_sql}), {failed}) END"
    return None


def converted(value: str, name: str, old_sql: str, new_sql: str) -> str:
    """SQL of a value in another type. Raises Unconvertible where there is none that is the server's."""
    sql = conversion(value, old_sql, new_sql)
    if sql is None:
        raise Unconvertible(f"column `{name}` changed from {old_sql} to {new_sql}")
    return sql


@dataclass(frozen=True, slots=True)
class Rewriting:
    """Another type at the source that is the same one in silver, whose ALTER TYPE gave old rows other values.

    `old`, `new`: the types as people write them; `sql`: what makes a value of the old one the new one's as the server's
    own cast does, over `{value}`; None if we know of none.
    """

    old: str
    new: str
    sql: str | None = None

    def of(self, value: str, name: str) -> str:
        """SQL of a value of column `name` afterwards. Raises Unconvertible."""
        if self.sql is None:
            raise Unconvertible(f"column `{name}` changed from {self.old} to {self.new}")
        return self.sql.format(value=value)


def rewriting(before: Column, after: Column, old_sql: str, new_sql: str) -> Rewriting | None:
    """How the server rewrites old values of a column beyond the conversion of silver's type `old_sql` to `new_sql`,
    which may be one; None where it does not.

    What is not known to leave all values alone rewrites them. An expression of whoever altered the column (`USING`)
    may give other values all the same, and leaves no trace in the layout if the type stays.
    """
    sql = _rewritten(before, after, old_sql) if old_sql == new_sql else _left(before, after, old_sql, new_sql)
    if sql == _SAME:
        return None
    if "sha256" in {before.redacted, after.redacted}:
        sql = None  # silver has hashes: of the values from before
    elif "null" in {before.redacted, after.redacted}:
        return None
    return Rewriting(source_type(before), source_type(after), sql)


_SAME: Final = "{value}"
_MICROSECONDS: Final = 6
_LENGTH_WORD: Final = 4  # a length's modifier is offset by the length word of a varlena (VARHDRSZ)
_TEXTS: Final = frozenset({"text", "varchar", "nvarchar2", "clob"})
_INTEGERS: Final = frozenset({"int1", "int2", "int4", "int8", "oid"})
_BYTES: Final = frozenset({"bytea", "blob", "raw"})
_SAME_VALUES: Final = frozenset(
    {("jsonb", "json"), ("smalldatetime", "timestamp")} | {(text, kind) for text in _TEXTS for kind in ("json", "xml")}
)
"""Pairs of types whose values have one text."""
_OTHER_AS_TEXT: Final = frozenset({"bool", "bpchar", "inet"})
"""Types that the server casts to text otherwise than it prints them."""
_TOO_LONG: Final = f"raise_error({literal(f'{UNREADABLE} text of that length')})"
_EPOCH: Final = 946_684_800_000_000
"""Microseconds from 1970 to 2000, from where PostgreSQL counts and rounds (AdjustTimestampForTypmod)."""
_YEAR_10000: Final = 253_402_300_800_000_000
"""Microseconds from 1970 to the first year that silver does not have (`lake.casts`)."""


def _rewritten(before: Column, after: Column, silver: str) -> str | None:
    """SQL of the value that the server made of `{value}`, `_SAME` where it is the same one, None where nobody knows."""
    old, new = type_name(before), type_name(after)
    if old == new or (before.type_oid and before.type_oid == after.type_oid):
        return _SAME if before.modifier == after.modifier else _modified(before, after, old, silver)
    if (one := element_of(before)) is not None and (other := element_of(after)) is not None:
        return _SAME if _rewritten(one, other, "string") == _SAME else None
    if new in _TEXTS:
        return _as_text(before, after, old)
    if new == "bpchar" and old in _TEXTS:
        return _padded(after)
    numbers = old in _INTEGERS and new == "numeric" and (silver != "string" or _scale(after) in {None, 0})
    same = {old, new} <= _INTEGERS or {old, new} <= _BYTES or (old, new) in _SAME_VALUES
    return _SAME if same or numbers else None


def _left(before: Column, after: Column, old_sql: str, new_sql: str) -> str | None:
    """The same where silver's type changes, over the value that is of the new one by then."""
    old, new = type_name(before), type_name(after)
    minutes = new == "smalldatetime" and old_sql != "date"
    if minutes or (old_sql == "string" != new_sql and old not in _TEXTS | {"bpchar", "numeric"}):
        return None  # what is printed need not be what is cast: bits print as they are, and are cast as a number
    if new_sql in {"timestamp", "timestamp_ntz"} and old_sql != "date" and 0 <= after.modifier < _MICROSECONDS:
        return _rounded(after.modifier, new_sql)
    if new_sql != "string":
        return _SAME
    if old == new and before.modifier == after.modifier:  # it was declared to be a text
        return "left({value}, 1)" if old_sql == "boolean" else _SAME
    if new in _TEXTS or new == "bpchar":
        return _rewritten(replace(after, type_name="text", type_oid=0, modifier=-1), after, "string")
    whole = old in _INTEGERS and _scale(after) in {None, 0}
    return _SAME if new == "numeric" and (whole or (old == new and _rescaled(before, after, "string"))) else None


def _modified(before: Column, after: Column, name: str, silver: str) -> str | None:  # noqa: PLR0911 - one line a type
    """The same type with another length, precision or scale."""
    old, new = before.modifier, after.modifier
    if (one := element_of(before)) is not None and (other := element_of(after)) is not None:
        return _SAME if _rewritten(one, other, "string") == _SAME else None
    match name:
        case "bpchar":
            return _SAME if new < 0 else _padded(after)
        case "varchar" | "nvarchar2":
            return _within(before, after)
        case "numeric":
            return _SAME if _rescaled(before, after, silver) else None
        case "time" | "timetz" | "timestamp" | "timestamptz" if new < 0 or 0 <= old <= new:
            return _SAME
        case "timestamp" | "timestamptz":
            return _rounded(new, silver)
        case "varbit" if 0 <= old <= new:
            return _SAME
        case _:
            return _SAME if new < 0 or silver != "string" else None


def _as_text(before: Column, after: Column, old: str) -> str | None:
    """What becomes a text is what the server prints of it, which is what silver has, but for a few types."""
    if old in _TEXTS:
        return _within(before, after)
    if old == "bpchar":
        return _cut("rtrim({value})", after)
    if old == "inet":
        bits = "CASE WHEN instr({value}, '/') > 0 THEN '' WHEN instr({value}, ':') > 0 THEN '/128' ELSE '/32' END"
        return _cut(f"concat({{value}}, {bits})", after)
    return None if old in _OTHER_AS_TEXT else _cut(_SAME, after)


def _within(before: Column, after: Column) -> str | None:
    old, new = _length(before), _length(after)
    return _SAME if new is None or (old is not None and old <= new) else _cut(_SAME, after)


def _cut(value: str, column: Column) -> str:
    """A text in a column of bounded length: blanks behind it go, and nothing else may."""
    length = _length(column)
    if length is None:
        return value
    rest = f"rtrim(substr({value}, {length + 1}))"
    fits = f"octet_length({value}) <= {length} OR (char_length({value}) <= {length} AND {value} = rtrim({value}))"
    return (
        f"CASE WHEN {{value}} IS NULL OR {fits} THEN {value} "
        f"WHEN {_counted_alike(value)} AND {rest} = '' THEN left({value}, {length}) ELSE {_TOO_LONG} END"
    )


def _padded(column: Column) -> str:
    """A text in a column of fixed length."""
    length = _length(column)
    bare = "rtrim({value})"
    if length is None:
        return _SAME
    fits = f"{_counted_alike(bare)} AND char_length({bare}) <= {length}"
    return f"CASE WHEN {{value}} IS NULL OR ({fits}) THEN rpad({bare}, {length}, ' ') ELSE {_TOO_LONG} END"


def _counted_alike(text: str) -> str:
    """Whether a text has as many bytes as characters: databases of the GaussDB family may count either."""
    return f"octet_length({text}) = char_length({text})"


def _rounded(precision: int, silver: str) -> str | None:
    """A moment with fewer digits of its second, rounded as the server does: halves away from the year 2000."""
    if silver not in {"timestamp", "timestamp_ntz"}:
        return None
    unit = 10 ** (6 - precision)
    since = f"(unix_micros(CAST({{value}} AS TIMESTAMP)) - {_EPOCH}L)"
    rounded = f"CAST(sign({since}) AS BIGINT) * ((abs({since}) + {unit // 2}L) div {unit}L) * {unit}L + {_EPOCH}L"
    moment = f"CAST(timestamp_micros({rounded}) AS {silver})"
    return (
        f"CASE WHEN {rounded} >= {_YEAR_10000}L THEN raise_error({literal(f'{UNREADABLE} {silver}')}) ELSE {moment} END"
    )


def _rescaled(before: Column, after: Column, silver: str) -> bool:
    """Whether numbers stay the same, and where silver has their texts these too."""
    old, new = _scale(before), _scale(after)
    if new is None:
        return True
    return old == new or (silver != "string" and old is not None and old < new)


def _scale(column: Column) -> int | None:
    given = numeric_modifier(column.modifier)
    return None if given is None else given[1]


def _length(column: Column) -> int | None:
    """How many characters a text may have; None for any number."""
    bounded = column.modifier >= _LENGTH_WORD and type_name(column) in {"bpchar", "varchar", "nvarchar2"}
    return column.modifier - _LENGTH_WORD if bounded else None
