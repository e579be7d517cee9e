"""A rule's constants in the type of the column it judges: what both compilations of a rule start from.

Promises: a bound is exact. It is never rounded into the column's type but moved inwards to the next value the type can
hold (`x >= 0.005` on two decimals is `x >= 0.01`), and a bound beyond the type's range decides for every value.
So the Spark predicate and the Great Expectations expectation compare the same numbers, whatever text the file had.

Types are named as Spark's `simpleString()` names them. Neither Spark nor Great Expectations is imported here.
"""

from __future__ import annotations

import datetime as dt
import enum
import math
import re
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, InvalidOperation
from typing import TypeAlias

Constant: TypeAlias = bool | int | float | Decimal | dt.date | dt.datetime | str
"""A value of a column's type: `datetime` with a zone for `timestamp`, without one for `timestamp_ntz`."""

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_INTEGER_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,4})?")
_EXACT = Context(prec=500)  # far above the 38 digits of a decimal and the 309 of a double: nothing rounds by itself


class Unfit(ValueError):
    """A constant that is no value of the column's type. The text says why, to a person."""


class Family(enum.Enum):
    """What can be asked of a column."""

    INTEGER = "integer"
    DECIMAL = "decimal"
    FLOAT = "float"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMP_NTZ = "timestamp_ntz"
    TEXT = "text"
    BOOLEAN = "boolean"
    OTHER = "other"

    @property
    def ordered(self) -> bool:
        """Whether `between` can judge it."""
        return self not in {Family.TEXT, Family.BOOLEAN, Family.OTHER}


_FAMILIES = {
    **dict.fromkeys(_INTEGER_BITS, Family.INTEGER),
    "float": Family.FLOAT,
    "double": Family.FLOAT,
    "date": Family.DATE,
    "timestamp": Family.TIMESTAMP,
    "timestamp_ntz": Family.TIMESTAMP_NTZ,
    "string": Family.TEXT,
    "boolean": Family.BOOLEAN,
}


def family(data_type: str) -> Family:
    """The family of a Spark type, by its `simpleString()` name; `varchar(n)` and `char(n)` are text."""
    if _DECIMAL.fullmatch(data_type):
        return Family.DECIMAL
    if data_type.startswith(("varchar(", "char(")):
        return Family.TEXT
    return _FAMILIES.get(data_type, Family.OTHER)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The closed range of values that pass, in the column's type. None is no bound; `nothing`: no value can pass."""

    low: Constant | None
    high: Constant | None
    nothing: bool = False


def bounds(low: float | str | None, high: float | str | None, data_type: str) -> Bounds:
    """The bounds of a `between` rule in the column's type. Raises `Unfit`."""
    kind = family(data_type)
    if kind in {Family.INTEGER, Family.DECIMAL}:
        return _grid_bounds(low, high, data_type)
    return Bounds(
        None if low is None else _ordered(low, kind, "min"), None if high is None else _ordered(high, kind, "max")
    )


def member(value: bool | float | str, data_type: str) -> Constant:
    """One value of an `in_set` rule in the column's type. Raises `Unfit`."""
    kind = family(data_type)
    if kind is Family.TEXT:
        if isinstance(value, str):
            return value
        raise Unfit(f"`{value}` is not text: put it in quotes")
    if kind is Family.BOOLEAN:
        if isinstance(value, bool):
            return value
        raise Unfit(f"`{value}` is neither `true` nor `false`")
    if isinstance(value, bool) or kind is Family.OTHER:
        raise Unfit(f"`{value}` cannot be compared with a column of type {data_type}")
    if kind in {Family.INTEGER, Family.DECIMAL}:
        return _grid_member(value, data_type)
    return _ordered(value, kind, "a value")


def _grid_bounds(low: float | str | None, high: float | str | None, data_type: str) -> Bounds:
    scale, least, most = _grid(data_type)
    at_least = None if low is None else _snap(_number(low, "min"), scale, ROUND_CEILING)
    at_most = None if high is None else _snap(_number(high, "max"), scale, ROUND_FLOOR)
    if (at_least is not None and at_least > most) or (at_most is not None and at_most < least):
        return Bounds(None, None, nothing=True)
    return Bounds(
        None if at_least is None or at_least <= least else _as(at_least, data_type),
        None if at_most is None or at_most >= most else _as(at_most, data_type),
    )


def _grid_member(value: float | str, data_type: str) -> Constant:
    scale, least, most = _grid(data_type)
    number = _number(value, "a value")
    if _snap(number, scale, ROUND_FLOOR) != number or not least <= number <= most:
        raise Unfit(f"`{value}` can never be stored in a column of type {data_type}")
    return _as(_snap(number, scale, ROUND_FLOOR), data_type)


def _grid(data_type: str) -> tuple[int, Decimal, Decimal]:
    """Digits after the point, smallest and largest value of an integer or decimal type."""
    if (found := _DECIMAL.fullmatch(data_type)) is not None:
        precision, scale = int(found[1]), int(found[2])
        most = Decimal(10**precision - 1).scaleb(-scale, _EXACT)
        return scale, most.copy_negate(), most
    half = 1 << (_INTEGER_BITS[data_type] - 1)
    return 0, Decimal(-half), Decimal(half - 1)


def _snap(number: Decimal, scale: int, rounding: str) -> Decimal:
    try:
        return number.quantize(Decimal(1).scaleb(-scale), rounding=rounding, context=_EXACT)
    except InvalidOperation as problem:
        raise Unfit("the number has too many digits") from problem


def _as(number: Decimal, data_type: str) -> Constant:
    return int(number) if data_type in _INTEGER_BITS else number


def _number(value: float | str, what: str) -> Decimal:
    text = str(value).strip()
    if not _NUMBER.fullmatch(text):
        raise Unfit(f"{what} `{text}` is not a number")
    return Decimal(text)


def _ordered(value: float | str, kind: Family, what: str) -> Constant:
    match kind:
        case Family.FLOAT:
            number = float(_number(value, what))
            if math.isinf(number):
                raise Unfit(f"{what} `{value}` is too large")
            return number
        case Family.DATE:
            return _date(value, what)
        case Family.TIMESTAMP | Family.TIMESTAMP_NTZ:
            return _timestamp(value, what, zoned=kind is Family.TIMESTAMP)
        case _:
            raise Unfit("only numbers, dates and timestamps have bounds")


def _date(value: float | str, what: str) -> dt.date:
    try:
        return dt.date.fromisoformat(str(value).strip())
    except ValueError as problem:
        raise Unfit(f"{what} `{value}` is not a date like 2026-01-31") from problem


def _timestamp(value: float | str, what: str, *, zoned: bool) -> dt.datetime:
    """A point in time. Text without a zone is UTC for `timestamp`; a zone is refused for `timestamp_ntz`."""
    try:
        parsed = dt.datetime.fromisoformat(str(value).strip())
    except ValueError as problem:
        raise Unfit(f"{what} `{value}` is not a timestamp like 2026-01-31T18:00:00+00:00") from problem
    if not zoned:
        if parsed.tzinfo is not None:
            raise Unfit(f"{what} `{value}` has a time zone and the column has none")
        return parsed
    return parsed.replace(tzinfo=dt.UTC) if parsed.tzinfo is None else parsed.astimezone(dt.UTC)
