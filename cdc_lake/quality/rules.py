"""Rules as the gate runs them: a name, a check against the column's type, and a Spark predicate.

Promises: `fails` is total over the closed union of rules, its column is never NULL, NULL passes every rule except
`not_null`, and a rule that passed `check_rule` cannot raise inside Spark, also with ANSI on; an `expression` may.
NaN counts as larger than every number, as PostgreSQL and Spark order it.
The other compilation of the same rules is `cdc_lake.quality.suite`; a test asserts that both count the same.
"""

from __future__ import annotations

import datetime as dt
from functools import reduce
from typing import TYPE_CHECKING, assert_never

from cdc_lake.config.patterns import NotPortable, check_pattern, java
from cdc_lake.config.rules import (
    Between,
    ColumnRule,
    Expression,
    InSet,
    Length,
    NotNull,
    Regex,
    RowRule,
    TypeCastable,
    rule_name,
)
from cdc_lake.errors import RuleColumnMissing, RuleDoesNotFit
from cdc_lake.lake.store import quoted
from cdc_lake.quality.constants import Constant, Family, Unfit, bounds, family, member

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType


def reason(rule: RowRule) -> str:  # noqa: PLR0911  # one return a kind of rule
    """What is wrong with a value that fails the rule, as a sentence without the value."""
    match rule:
        case NotNull():
            return f"{rule.column} is NULL"
        case Between(min=low, max=high):
            return f"{rule.column} is {_outside(low, high)}"
        case InSet(values=values):
            return f"{rule.column} is none of {', '.join(map(str, values))}"
        case Regex(pattern=pattern):
            return f"{rule.column} does not match {pattern}"
        case Length(min=low, max=high):
            return f"the length of {rule.column} is {_outside(low, high)}"
        case TypeCastable(type=wanted):
            return f"{rule.column} is no {wanted}"
        case Expression(expression=sql):
            return f"not true: {sql}"
        case _:
            assert_never(rule)


def fails(  # noqa: PLR0911  # one return a kind of rule
    rule: ColumnRule, data_type: DataType | str, column: Column | None = None
) -> Column:
    """True where a value breaks the rule; false, never NULL, everywhere else.

    `data_type` is the column's Spark type or its `simpleString()`. `column` is what to judge; the column of the rule's
    name by default. Raises `RuleDoesNotFit` where the rule cannot judge that type.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - configuration and reports need no Spark

    type_name = data_type if isinstance(data_type, str) else data_type.simpleString()
    check_rule(rule, type_name)
    value = F.col(quoted(rule.column)) if column is None else column
    match rule:
        case NotNull():
            return value.isNull()
        case Between(min=low, max=high):
            limits = bounds(low, high, type_name)
            if limits.nothing:
                return value.isNotNull()
            below = None if limits.low is None else value < _literal(limits.low, type_name)
            above = None if limits.high is None else value > _literal(limits.high, type_name)
            return _any(below, above)
        case InSet(values=values):
            allowed = [_literal(member(v, type_name), type_name) for v in values]
            return F.coalesce(~value.isin(*allowed), F.lit(False))
        case Regex(pattern=pattern):
            return F.coalesce(~value.rlike(java(pattern)), F.lit(False))
        case TypeCastable(type=wanted):
            return value.isNotNull() & value.try_cast(wanted).isNull()
        case Length(min=shortest, max=longest):
            size = F.char_length(value)
            return _any(
                None if shortest is None else size < F.lit(shortest), None if longest is None else size > F.lit(longest)
            )
        case _:
            assert_never(rule)


def holds_not(sql: str, given: Column | None = None) -> Column:
    """True where an expression of a rule is false, and `given`, where one is named, is true; NULL counts as true.

    Of what `given` leaves out the expression is not worked out: it might raise.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    broken = ~F.expr(f"({sql})")
    return F.coalesce(broken if given is None else F.when(given, broken), F.lit(False))


def check_rule(rule: ColumnRule, data_type: str | None) -> None:
    """Refuse a rule that cannot judge its column. `data_type` is Spark's name of the type, None: no such column.

    Raises `RuleColumnMissing` or `RuleDoesNotFit`, with the rule as the place.
    """
    where = f"rule {rule_name(rule)}"
    if data_type is None:
        raise RuleColumnMissing(f"there is no column `{rule.column}`", where=where)
    try:
        _fit(rule, data_type)
    except Unfit as problem:
        raise RuleDoesNotFit(
            f"`{rule.rule}` does not fit column `{rule.column}` of type {data_type}: {problem}", where=where
        ) from problem


def _fit(rule: ColumnRule, data_type: str) -> None:
    """Raise `Unfit` if the rule cannot judge a column of that type."""
    kind = family(data_type)
    match rule:
        case NotNull():
            return
        case Between(min=low, max=high):
            if not kind.ordered:
                raise Unfit("only numbers, dates and timestamps have bounds")
            _some_range(low, high)
            limits = bounds(low, high, data_type)
            if limits.low is not None and limits.high is not None and limits.low > limits.high:  # type: ignore[operator]  # of one type
                raise Unfit("no value lies between min and max")
        case InSet(values=values):
            for value in values:
                member(value, data_type)
        case Regex(pattern=pattern):
            _text(kind)
            try:
                check_pattern(pattern)
            except NotPortable as problem:
                raise Unfit(str(problem)) from problem
        case TypeCastable():
            _text(kind)
        case Length(min=low, max=high):
            _text(kind)
            _some_range(low, high)
            if low is not None and high is not None and low > high:
                raise Unfit("min is larger than max")
        case _:
            assert_never(rule)


def _outside(low: object, high: object) -> str:
    if low is None:
        return f"above {high}"
    return f"below {low}" if high is None else f"not between {low} and {high}"


def _text(kind: Family) -> None:
    if kind is not Family.TEXT:
        raise Unfit("it judges text")


def _some_range(low: object, high: object) -> None:
    if low is None and high is None:
        raise Unfit("it needs `min`, `max` or both")


def _any(*conditions: Column | None) -> Column:
    """Whether one of the conditions that exist is true; NULL counts as false."""
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
    # A float column is compared as double: the bound keeps its digits, as PostgreSQL compares real with a number.
    return F.lit(value) if isinstance(value, str | bool | float) else F.lit(value).cast(type_name)
