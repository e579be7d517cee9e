"""The rules of silver tables as they are written: one section a kind, told apart by `rule`.

A row rule judges the row after each change, before it is merged. A table rule judges a silver table as it stands, when
silver is judged: there is no change it could hold or stop.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field, Strict, WithJsonSchema

from cdc_lake.config.quantity import Milliseconds
from cdc_lake.config.section import Section, Text

Bound = Annotated[int, Strict()] | Annotated[float, Strict()] | Annotated[str, Strict()]
"""Strict, so that `true` is no number and a quoted number stays text."""

Size = Annotated[int, Field(ge=0, strict=True)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Columns = Annotated[list[Text], Field(min_length=1)]

_CASTABLE = re.compile(
    r"smallint|int|bigint|float|double|boolean|date|timestamp|timestamp_ntz|decimal\(([1-9][0-9]?),([0-9]{1,2})\)"
)


def _castable(value: str) -> str:
    found = _CASTABLE.fullmatch(value)
    if found is None or (found[1] is not None and not int(found[2]) <= int(found[1]) <= 38):
        msg = f"`{value}` is no type that text is cast to: write int, bigint, decimal(10,2), double, date, timestamp …"
        raise ValueError(msg)
    return value


CastType = Annotated[
    str, AfterValidator(_castable), WithJsonSchema({"type": "string", "pattern": f"^({_CASTABLE.pattern})$"})
]


class Thresholds(Section):
    """From which share of failures on a rule is of concern, and how much; below the lowest it is not."""

    warn: Fraction | None = None
    """Share of failures, above 0 and up to 1, from which on the report warns."""
    error: Fraction | None = None
    """Share of failures from which on the report says error."""
    critical: Fraction | None = None
    """Share of failures from which on the report says critical."""


class RuleBase(Section):
    """What every rule has."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_]{1,63}$")] | None = None
    """Name in reports and held rows; `<rule>_<column>` by default, `<rule>` alone where it names none."""
    thresholds: Thresholds | None = None
    """From which share of failures on it is of concern; by default any failure is."""


class RowRuleBase(RuleBase):
    """What every rule has that judges changes."""

    on_fail: Literal["warn", "quarantine", "stop"] = "warn"
    """`warn` counts, `quarantine` holds the change and later ones of its key, `stop` ends the run before it."""


class NotNull(RowRuleBase):
    """The column is not NULL."""

    rule: Literal["not_null"]
    """Kind of rule."""
    column: Text
    """Column it judges."""


class InSet(RowRuleBase):
    """The value is one of a list; NULL passes."""

    rule: Literal["in_set"]
    """Kind of rule."""
    column: Text
    """Column it judges."""
    values: Annotated[list[str | int | float | bool], Field(min_length=1)]
    """Values that pass."""


class Between(RowRuleBase):
    """A number or a date lies within bounds, both inclusive; NULL passes."""

    rule: Literal["between"]
    """Kind of rule."""
    column: Text
    """Column it judges."""
    min: Bound | None = None
    """Smallest value that passes."""
    max: Bound | None = None
    """Largest value that passes."""


class Regex(RowRuleBase):
    """The text matches a regular expression somewhere; NULL passes."""

    rule: Literal["regex"]
    """Kind of rule."""
    column: Text
    """Column it judges."""
    pattern: Text
    """Regular expression that means the same in Java and in Python."""


class Length(RowRuleBase):
    """The text has a length within bounds, in characters; NULL passes."""

    rule: Literal["length"]
    """Kind of rule."""
    column: Text
    """Column it judges."""
    min: Size | None = None
    """Smallest length that passes."""
    max: Size | None = None
    """Largest length that passes."""


class TypeCastable(RowRuleBase):
    """The text is a value of a type, as Spark's `try_cast` reads it; NULL passes."""

    rule: Literal["type_castable"]
    """Kind of rule."""
    column: Text
    """Column of text that it judges."""
    type: CastType
    """Spark SQL type: `int`, `bigint`, `decimal(10,2)`, `double`, `boolean`, `date`, `timestamp` …"""


class Expression(RowRuleBase):
    """A condition in Spark SQL over the columns of the row is not false; NULL passes, as in a CHECK."""

    rule: Literal["expression"]
    """Kind of rule."""
    expression: Text
    """Spark SQL over the source's columns of the same row, true or false: `shipped_at >= ordered_at`."""


class TableRuleBase(RuleBase):
    """What every rule has that judges a table as it stands."""

    on_fail: Literal["warn"] = "warn"
    """`warn`: it is said. It judges the table when silver is judged: there is no change to hold or to stop."""


class Unique(TableRuleBase):
    """No two rows have the same values; a row with a NULL among them passes."""

    rule: Literal["unique"]
    """Kind of rule."""
    columns: Columns
    """Silver columns that are unique together."""


class ForeignKey(TableRuleBase):
    """The values are those of a row of another table; a row with a NULL among them passes."""

    rule: Literal["foreign_key"]
    """Kind of rule."""
    columns: Columns
    """Silver columns that refer."""
    references: Text
    """Source table that they refer to, `schema.table`; its silver table is read."""
    referenced: Columns
    """Silver columns of that table, as many and in the same order."""


class RowCount(TableRuleBase):
    """The table has a number of rows within bounds."""

    rule: Literal["row_count"]
    """Kind of rule."""
    min: Size | None = None
    """Smallest number of rows that passes."""
    max: Size | None = None
    """Largest number of rows that passes."""


class Freshness(TableRuleBase):
    """The newest value is not older than a length of time; a table without a value fails."""

    rule: Literal["freshness"]
    """Kind of rule."""
    column: Text
    """Silver column with points in time or days; without a zone they are read as UTC."""
    max_age: Annotated[Milliseconds, Field(ge=1)]
    """Greatest age that passes, for example `2 h`."""


class Monotonic(TableRuleBase):
    """The value never goes down from one row to the next; rows without value or place are left out."""

    rule: Literal["monotonic"]
    """Kind of rule."""
    column: Text
    """Silver column whose values grow."""
    by: Text
    """Silver column that puts the rows into order; rows of one place are taken from the smallest value on."""
    strict: bool = False
    """True: it has to go up, an equal value fails too."""


class Expectation(TableRuleBase):
    """An expectation of Great Expectations, by its name."""

    rule: Literal["expectation"]
    """Kind of rule."""
    expectation: Text
    """Its name: `expect_column_mean_to_be_between`."""
    arguments: dict[str, str | int | float | bool | list[str | int | float | bool] | None] = {}  # noqa: RUF012
    """Its arguments, as Great Expectations names them; columns are silver's."""


ColumnRule: TypeAlias = NotNull | InSet | Between | Regex | Length | TypeCastable
"""Rules that judge one value."""

RowRule: TypeAlias = ColumnRule | Expression
"""Rules that judge one row: at the gate, and silver as it stands."""

TableRule: TypeAlias = Unique | ForeignKey | RowCount | Freshness | Monotonic | Expectation
"""Rules that judge a table as it stands."""

Rule = Annotated[RowRule | TableRule, Field(discriminator="rule")]

ROW_RULES = (NotNull, InSet, Between, Regex, Length, TypeCastable, Expression)
TABLE_RULES = (Unique, ForeignKey, RowCount, Freshness, Monotonic, Expectation)


def rule_name(rule: RowRule | TableRule) -> str:
    """The rule's name in reports and held rows: the given one, or what kind it is and of which columns."""
    return rule.name or "_".join([rule.rule, *named_columns(rule)])


def named_columns(rule: RowRule | TableRule) -> tuple[str, ...]:
    """The columns that a rule names as its own."""
    match rule:
        case Unique(columns=columns) | ForeignKey(columns=columns):
            return tuple(columns)
        case Expression() | RowCount() | Expectation():
            return ()
        case _:
            return (rule.column,)
