"""Row rules as apply evaluates them: a name, a check against the column's type, and a Spark predicate.

Guarantees: `fails` is total over the closed union of rules, its column is never NULL, NULL passes every rule except
`not_null`, and a rule that passed `check_rule` cannot raise inside Spark, even with ANSI on; an `expression` may. NaN
is greater than every number, as in PostgreSQL and Spark.

A bound is exact: it is never rounded to the column's type but moved inwards to the next representable value (`x >=
0.005` on two decimals is `x >= 0.01`). `quality.great_expectations` also compiles the same rules; a test asserts that
both count the same. Neither Spark nor Great Expectations is imported here.
"""

from __future__ import annotations

import datetime as dt
import enum
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, InvalidOperation
from functools import reduce
from typing import TYPE_CHECKING, Literal, TypeAlias, assert_never

from cdc_lake.config import rules
from cdc_lake.errors import RuleColumnMissing, RuleDoesNotFit
from cdc_lake.tables.types import quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType


Constant: TypeAlias = bool | int | float | Decimal | dt.date | dt.datetime | str
"""A value of a column's type: `datetime` with a zone for `timestamp`, without one for `timestamp_ntz`."""

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_INTEGER_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,4})?")
_EXACT = Context(prec=500)  # far more than a decimal's 38 digits and a double's 309: nothing is rounded implicitly


class Unfit(ValueError):
    """A constant that is not a value of the column's type. The text gives the reason."""


class Family(enum.Enum):
    """The kind of a column's values, which determines the possible rules."""

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
    def is_ordered(self) -> bool:
        """Whether `between` applies to it."""
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
    """The closed range of passing values, in the column's type. None is no bound; `nothing`: no value can pass."""

    low: Constant | None
    high: Constant | None
    nothing: bool = False


def bounds(low: float | str | None, high: float | str | None, data_type: str) -> Bounds:
    """The bounds of a `between` rule in the column's type. Raises `Unfit`."""
    kind = family(data_type)
    if kind in {Family.INTEGER, Family.DECIMAL}:
        return _grid_bounds(low, high, data_type)
    return Bounds(
        None if low is None else _ordered_constant(low, kind, "min"),
        None if high is None else _ordered_constant(high, kind, "max"),
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
    return _ordered_constant(value, kind, "a value")


def _grid_bounds(low: float | str | None, high: float | str | None, data_type: str) -> Bounds:
    scale, least, most = _grid(data_type)
    at_least = None if low is None else _snap(_number(low, "min"), scale, ROUND_CEILING)
    at_most = None if high is None else _snap(_number(high, "max"), scale, ROUND_FLOOR)
    if (at_least is not None and at_least > most) or (at_most is not None and at_most < least):
        return Bounds(None, None, nothing=True)
    return Bounds(
        None if at_least is None or at_least <= least else _to_constant(at_least, data_type),
        None if at_most is None or at_most >= most else _to_constant(at_most, data_type),
    )


def _grid_member(value: float | str, data_type: str) -> Constant:
    scale, least, most = _grid(data_type)
    number = _number(value, "a value")
    if _snap(number, scale, ROUND_FLOOR) != number or not least <= number <= most:
        raise Unfit(f"`{value}` can never be stored in a column of type {data_type}")
    return _to_constant(_snap(number, scale, ROUND_FLOOR), data_type)


def _grid(data_type: str) -> tuple[int, Decimal, Decimal]:
    """Decimal digits, minimum and maximum of an integer or decimal type."""
    if (match := _DECIMAL.fullmatch(data_type)) is not None:
        precision, scale = int(match[1]), int(match[2])
        most = Decimal(10**precision - 1).scaleb(-scale, _EXACT)
        return scale, most.copy_negate(), most
    half = 1 << (_INTEGER_BITS[data_type] - 1)
    return 0, Decimal(-half), Decimal(half - 1)


def _snap(number: Decimal, scale: int, rounding: str) -> Decimal:
    try:
        return number.quantize(Decimal(1).scaleb(-scale), rounding=rounding, context=_EXACT)
    except InvalidOperation as problem:
        raise Unfit("the number has too many digits") from problem


def _to_constant(number: Decimal, data_type: str) -> Constant:
    return int(number) if data_type in _INTEGER_BITS else number


def _number(value: float | str, what: str) -> Decimal:
    text = str(value).strip()
    if not _NUMBER.fullmatch(text):
        raise Unfit(f"{what} `{text}` is not a number")
    return Decimal(text)


def _ordered_constant(value: float | str, kind: Family, what: str) -> Constant:
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
    """A timestamp. Text without a zone is UTC for `timestamp`; a zone is refused for `timestamp_ntz`."""
    try:
        parsed = dt.datetime.fromisoformat(str(value).strip())
    except ValueError as problem:
        raise Unfit(f"{what} `{value}` is not a timestamp like 2026-01-31T18:00:00+00:00") from problem
    if not zoned:
        if parsed.tzinfo is not None:
            raise Unfit(f"{what} `{value}` has a time zone, but the column has none")
        return parsed
    return parsed.replace(tzinfo=dt.UTC) if parsed.tzinfo is None else parsed.astimezone(dt.UTC)


def reason(rule: rules.RowRule) -> str:  # noqa: PLR0911  # one return a kind of rule
    """Why a value fails the rule, as a sentence without the value."""
    match rule:
        case rules.NotNull():
            return f"{rule.column} is NULL"
        case rules.Between(min=low, max=high):
            return f"{rule.column} is {_outside_text(low, high)}"
        case rules.InSet(values=values):
            return f"{rule.column} is not one of {', '.join(map(str, values))}"
        case rules.Regex(pattern=pattern):
            return f"{rule.column} does not match {pattern}"
        case rules.Length(min=low, max=high):
            return f"the length of {rule.column} is {_outside_text(low, high)}"
        case rules.TypeCastable(type=wanted):
            return f"{rule.column} is not a valid {wanted}"
        case rules.Expression(expression=sql):
            return f"not true: {sql}"
        case _:
            assert_never(rule)


def fails(  # noqa: PLR0911  # one return a kind of rule
    rule: rules.ColumnRule, data_type: DataType | str, column: Column | None = None
) -> Column:
    """True if a value violates the rule; otherwise false, never NULL.

    `data_type` is the column's Spark type or its `simpleString()`. `column` is the column to evaluate, by default the
    rule's. Raises `RuleDoesNotFit` if the rule does not apply to that type.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - configuration and reports need no Spark

    type_name = data_type if isinstance(data_type, str) else data_type.simpleString()
    check_rule(rule, type_name)
    value = F.col(quote_identifier(rule.column)) if column is None else column
    match rule:
        case rules.NotNull():
            return value.isNull()
        case rules.Between(min=low, max=high):
            limits = bounds(low, high, type_name)
            if limits.nothing:
                return value.isNotNull()
            below = None if limits.low is None else value < _literal(limits.low, type_name)
            above = None if limits.high is None else value > _literal(limits.high, type_name)
            return _any(below, above)
        case rules.InSet(values=values):
            allowed = [_literal(member(v, type_name), type_name) for v in values]
            return F.coalesce(~value.isin(*allowed), F.lit(False))
        case rules.Regex(pattern=pattern):
            return F.coalesce(~value.rlike(rules.java(pattern)), F.lit(False))
        case rules.TypeCastable(type=wanted):
            return value.isNotNull() & value.try_cast(wanted).isNull()
        case rules.Length(min=shortest, max=longest):
            size = F.char_length(value)
            return _any(
                None if shortest is None else size < F.lit(shortest), None if longest is None else size > F.lit(longest)
            )
        case _:
            assert_never(rule)


def holds_not(sql: str, condition: Column | None = None) -> Column:
    """True if a rule's expression is false and `condition`, if given, is true; NULL counts as true.

    The expression is not evaluated for rows excluded by `condition`: it might raise.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    broken = ~F.expr(f"({sql})")
    return F.coalesce(broken if condition is None else F.when(condition, broken), F.lit(False))


def check_rule(rule: rules.ColumnRule, data_type: str | None) -> None:
    """Refuse a rule that does not apply to its column. `data_type` is Spark's name of the type, None: no such column.

    Raises `RuleColumnMissing` or `RuleDoesNotFit`, with the location of the rule.
    """
    where = f"rule {rules.rule_name(rule)}"
    if data_type is None:
        raise RuleColumnMissing(f"there is no column `{rule.column}`", where=where)
    try:
        _fit(rule, data_type)
    except Unfit as problem:
        raise RuleDoesNotFit(
            f"`{rule.rule}` does not fit column `{rule.column}` of type {data_type}: {problem}", where=where
        ) from problem


def _fit(rule: rules.ColumnRule, data_type: str) -> None:
    """Raise `Unfit` if the rule does not apply to a column of that type."""
    kind = family(data_type)
    match rule:
        case rules.NotNull():
            return
        case rules.Between(min=low, max=high):
            if not kind.is_ordered:
                raise Unfit("only numbers, dates and timestamps have bounds")
            _some_range(low, high)
            limits = bounds(low, high, data_type)
            if limits.low is not None and limits.high is not None and limits.low > limits.high:  # type: ignore[operator]  # of one type
                raise Unfit("no value is between min and max")
        case rules.InSet(values=values):
            for value in values:
                member(value, data_type)
        case rules.Regex(pattern=pattern):
            _text(kind)
            try:
                rules.check_pattern(pattern)
            except rules.NotPortable as problem:
                raise Unfit(str(problem)) from problem
        case rules.TypeCastable():
            _text(kind)
        case rules.Length(min=low, max=high):
            _text(kind)
            _some_range(low, high)
            if low is not None and high is not None and low > high:
                raise Unfit("min is larger than max")
        case _:
            assert_never(rule)


def _outside_text(low: object, high: object) -> str:
    if low is None:
        return f"above {high}"
    return f"below {low}" if high is None else f"not between {low} and {high}"


def _text(kind: Family) -> None:
    if kind is not Family.TEXT:
        raise Unfit("it applies to text")


def _some_range(low: object, high: object) -> None:
    if low is None and high is None:
        raise Unfit("it needs `min`, `max` or both")


def _any(*conditions: Column | None) -> Column:
    """Whether one of the existing conditions is true; NULL counts as false."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    nothing = F.lit(False)
    return F.coalesce(reduce(lambda a, b: a | b, [c for c in conditions if c is not None], nothing), nothing)


def _literal(value: Constant, type_name: str) -> Column:
    """A constant as a literal of exactly the column's type: no cast of the column, so file statistics still prune."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    if isinstance(value, dt.datetime):
        kind = "TIMESTAMP_NTZ" if value.tzinfo is None else "TIMESTAMP_LTZ"
        return F.expr(f"{kind} '{value.isoformat(sep=' ', timespec='microseconds')}'")
    if isinstance(value, dt.date):
        return F.expr(f"DATE '{value.isoformat()}'")
    # A float column is compared as double: the bound keeps its digits, as when PostgreSQL compares real with a number.
    return F.lit(value) if isinstance(value, str | bool | float) else F.lit(value).cast(type_name)


OnFail = Literal["warn", "quarantine", "stop"]


@dataclass(frozen=True)
class Condition:
    """A condition on a change: `fails` is true if it is violated, never NULL; `columns` are those it reads."""

    name: str
    on_fail: OnFail
    fails: Column
    columns: frozenset[int]


@dataclass(frozen=True, slots=True)
class RuleCount:
    """The result of a condition in a span: changes it evaluated, and changes that failed it."""

    table: str
    rule: str
    on_fail: OnFail
    evaluated: int
    failed: int


def failed_names(conditions: Sequence[Condition]) -> Column:
    """The names of the `quarantine` conditions that a change fails, as an array; empty if it passes."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - counts and names need no Spark

    names = [F.when(c.fails, F.lit(c.name)) for c in conditions if c.on_fail == "quarantine"]
    return F.array_compact(F.array(*names)) if names else F.expr("CAST(array() AS array<string>)")
