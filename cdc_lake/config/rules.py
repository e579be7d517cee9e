r"""The quality rules of silver tables in the pipeline file: one section per kind of rule, distinguished by `rule`.

A row rule is evaluated on the row after each change, before the change is merged. A table rule is evaluated on a silver
table as a whole; there is no change that it could quarantine or stop at. `EXPECTATIONS` lists the names that a rule
`expectation` may have; expectations that need a database's query language or compare with another table are omitted.

The pattern of a rule `regex` must mean the same in Java, which evaluates changes, and in Python, which makes reports:
what one of the two lacks or interprets differently is rejected with its position. Both get flags (`java`, `python`)
with which only `\n` ends a line, and `\w`, `\d`, `\s` match only ASCII.
"""

from __future__ import annotations

import re
import warnings
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import AfterValidator, Field, Strict, WithJsonSchema

from cdc_lake.config.fields import Milliseconds, Section, Text

Bound = Annotated[int, Strict()] | Annotated[float, Strict()] | Annotated[str, Strict()]
"""Strict, so that `true` is not a number and a quoted number remains text."""

Size = Annotated[int, Field(ge=0, strict=True)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Columns = Annotated[list[Text], Field(min_length=1)]
_KIND = Field(description="Kind of rule.")

_CASTABLE = re.compile(
    r"smallint|int|bigint|float|double|boolean|date|timestamp|timestamp_ntz|decimal\(([1-9][0-9]?),([0-9]{1,2})\)"
)


def _castable(value: str) -> str:
    match = _CASTABLE.fullmatch(value)
    if match is None or (match[1] is not None and not int(match[2]) <= int(match[1]) <= 38):
        msg = f"text cannot be cast to `{value}`: write int, bigint, decimal(10,2), double, date, timestamp …"
        raise ValueError(msg)
    return value


CastType = Annotated[
    str, AfterValidator(_castable), WithJsonSchema({"type": "string", "pattern": f"^({_CASTABLE.pattern})$"})
]


class Thresholds(Section):
    """Shares of failures from which a failing rule counts, and how much; below the lowest it does not."""

    warn: Fraction | None = None
    """Share of failures, greater than 0 and at most 1, from which the report shows a warning."""
    error: Fraction | None = None
    """Share of failures from which the report shows an error."""
    critical: Fraction | None = None
    """Share of failures from which the report shows the rule as critical."""


class RuleBase(Section):
    """Settings of every rule."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_]{1,63}$")] | None = None
    """Name in reports and in quarantine; by default `<rule>_<column>`, or `<rule>` if it names no column."""
    thresholds: Thresholds | None = None
    """Shares of failures from which the rule counts as failed; by default any failure does."""


class RowRuleBase(RuleBase):
    """Settings of every rule that is evaluated on changes."""

    on_fail: Literal["warn", "quarantine", "stop"] = "warn"
    """`warn` counts the failure, `quarantine` holds the change and later changes of its key, `stop` ends the run before
    it."""


class ColumnRuleBase(RowRuleBase):
    """Settings of every rule that is evaluated on one column of a change."""

    column: Text
    """Column to check."""


class NotNull(ColumnRuleBase):
    """The column is not NULL."""

    rule: Annotated[Literal["not_null"], _KIND]


class InSet(ColumnRuleBase):
    """The value is one of a list; NULL passes."""

    rule: Annotated[Literal["in_set"], _KIND]
    values: Annotated[list[str | int | float | bool], Field(min_length=1)]
    """Accepted values."""


class Between(ColumnRuleBase):
    """A number or a date lies within bounds, both inclusive; NULL passes."""

    rule: Annotated[Literal["between"], _KIND]
    min: Bound | None = None
    """Smallest accepted value."""
    max: Bound | None = None
    """Largest accepted value."""


class Regex(ColumnRuleBase):
    """A regular expression matches somewhere in the text; NULL passes."""

    rule: Annotated[Literal["regex"], _KIND]
    pattern: Text
    """Regular expression, in the syntax that means the same in Java and in Python."""


class Length(ColumnRuleBase):
    """The length of the text, in characters, is within bounds; NULL passes."""

    rule: Annotated[Literal["length"], _KIND]
    min: Size | None = None
    """Smallest accepted length."""
    max: Size | None = None
    """Largest accepted length."""


class TypeCastable(ColumnRuleBase):
    """Spark's `try_cast` can convert the text to a type; NULL passes."""

    rule: Annotated[Literal["type_castable"], _KIND]
    type: CastType
    """Spark SQL type: `int`, `bigint`, `decimal(10,2)`, `double`, `boolean`, `date`, `timestamp` …"""


class Expression(RowRuleBase):
    """A Spark SQL condition over the columns of the row is not false; NULL passes, as in a CHECK constraint."""

    rule: Annotated[Literal["expression"], _KIND]
    expression: Text
    """Spark SQL condition over the source columns of the same row, for example `shipped_at >= ordered_at`."""


class TableRuleBase(RuleBase):
    """Settings of every rule that is evaluated on a whole table."""

    on_fail: Literal["warn"] = "warn"
    """`warn` reports the failure. The rule is about the whole table, so there is no change to quarantine or to stop
    at."""


class Unique(TableRuleBase):
    """No two rows have the same values; a row with a NULL among them passes."""

    rule: Annotated[Literal["unique"], _KIND]
    columns: Columns
    """Silver columns that are unique together."""


class ForeignKey(TableRuleBase):
    """The values exist in a row of another table; a row with a NULL among them passes."""

    rule: Annotated[Literal["foreign_key"], _KIND]
    columns: Columns
    """Referencing silver columns."""
    references: Text
    """Referenced source table, `schema.table`; its silver table is read."""
    referenced: Columns
    """Referenced silver columns of that table, as many and in the same order."""


class RowCount(TableRuleBase):
    """The number of rows of the table is within bounds."""

    rule: Annotated[Literal["row_count"], _KIND]
    min: Size | None = None
    """Smallest accepted number of rows."""
    max: Size | None = None
    """Largest accepted number of rows."""


class Freshness(TableRuleBase):
    """The newest value is not older than a maximum age; a table without a value fails."""

    rule: Annotated[Literal["freshness"], _KIND]
    column: Text
    """Silver column of timestamps or dates; those without a time zone are read as UTC."""
    max_age: Annotated[Milliseconds, Field(ge=1)]
    """Maximum age, for example `2 h`."""


class Monotonic(TableRuleBase):
    """The value never decreases from one row to the next; rows with NULL in either column are ignored."""

    rule: Annotated[Literal["monotonic"], _KIND]
    column: Text
    """Silver column whose values increase."""
    by: Text
    """Silver column that orders the rows; among rows equal in it, the smallest value comes first."""
    strict: bool = False
    """Require the value to increase: an equal value fails too."""


class Expectation(TableRuleBase):
    """An expectation of Great Expectations, by its name."""

    rule: Annotated[Literal["expectation"], _KIND]
    expectation: Text
    """Name of the expectation, for example `expect_column_mean_to_be_between`."""
    arguments: dict[str, str | int | float | bool | list[str | int | float | bool] | None] = {}  # noqa: RUF012
    """Arguments, as named by Great Expectations; columns are silver columns."""


ColumnRule: TypeAlias = NotNull | InSet | Between | Regex | Length | TypeCastable
"""Rules that are evaluated on one value."""

RowRule: TypeAlias = ColumnRule | Expression
"""Rules that are evaluated on one row: of a change, and of silver in a report."""

TableRule: TypeAlias = Unique | ForeignKey | RowCount | Freshness | Monotonic | Expectation
"""Rules that are evaluated on a whole table."""

Rule = Annotated[RowRule | TableRule, Field(discriminator="rule")]

ROW_RULES = (NotNull, InSet, Between, Regex, Length, TypeCastable, Expression)
TABLE_RULES = (Unique, ForeignKey, RowCount, Freshness, Monotonic, Expectation)


def rule_name(rule: RowRule | TableRule) -> str:
    """The rule's name in reports and in quarantine: its `name`, or its kind followed by its columns."""
    return rule.name or "_".join([rule.rule, *named_columns(rule)])


def named_columns(rule: RowRule | TableRule) -> tuple[str, ...]:
    """The columns in `column` or `columns` of a rule."""
    match rule:
        case Unique(columns=columns) | ForeignKey(columns=columns):
            return tuple(columns)
        case Expression() | RowCount() | Expectation():
            return ()
        case _:
            return (rule.column,)


EXPECTATIONS: Final = tuple(
    f"expect_{name}"
    for name in """
    column_distinct_values_to_be_in_set column_distinct_values_to_contain_set column_distinct_values_to_equal_set
    column_kl_divergence_to_be_less_than column_max_to_be_between column_mean_to_be_between
    column_median_to_be_between column_min_to_be_between column_most_common_value_to_be_in_set
    column_pair_values_a_to_be_greater_than_b column_pair_values_to_be_equal column_pair_values_to_be_in_set
    column_proportion_of_non_null_values_to_be_between column_proportion_of_unique_values_to_be_between
    column_quantile_values_to_be_between column_stdev_to_be_between column_sum_to_be_between column_to_exist
    column_type_to_be column_unique_value_count_to_be_between column_value_lengths_to_be_between
    column_value_lengths_to_equal column_value_z_scores_to_be_less_than column_values_to_be_between
    column_values_to_be_dateutil_parseable column_values_to_be_decreasing column_values_to_be_in_set
    column_values_to_be_in_type_list column_values_to_be_increasing column_values_to_be_json_parseable
    column_values_to_be_null column_values_to_be_of_type column_values_to_be_unique
    column_values_to_match_json_schema column_values_to_match_like_pattern
    column_values_to_match_like_pattern_list column_values_to_match_regex column_values_to_match_regex_list
    column_values_to_match_strftime_format column_values_to_not_be_in_set column_values_to_not_be_null
    column_values_to_not_be_outliers column_values_to_not_match_like_pattern
    column_values_to_not_match_like_pattern_list column_values_to_not_match_regex
    column_values_to_not_match_regex_list compound_columns_to_be_unique multicolumn_sum_to_equal
    multicolumn_values_to_be_equal select_column_values_to_be_unique_within_record
    table_column_count_to_be_between table_column_count_to_equal table_columns_to_match_ordered_list
    table_columns_to_match_set table_row_count_to_be_between table_row_count_to_equal
    """.split()  # noqa: SIM905  # one name a line is sixty lines
)


_LEADING_FLAGS = re.compile(r"\(\?([is]+)\)")
_COUNT = re.compile(r"\{[0-9]{1,4}(,[0-9]{0,4})?\}")
_ONE_SIDED_ESCAPES = {
    "b": "a word ends elsewhere in each Java: write `(^|[^0-9A-Za-z_])`",
    "B": "a word ends elsewhere in each Java",
    "v": r"Java takes seven characters for it, Python one: write `\x0b`",
    "Z": r"the end of the text is `$`",
    "U": r"Java does not have it: write the character, or `\uXXXX`",
    "N": r"write the character, or `\uXXXX`",
    "0": r"Java reads digits behind it: write `\x00`",
}
_ONE_SIDED_GROUPS = {
    "(?P": "Java names groups otherwise: leave the name out",
    "(?(": "Java does not have it",
    "(?#": "Java does not have it",
}
_FLAGS = re.compile(r"\(\?([a-zA-Z-]+)[:)]")


class NotPortable(ValueError):
    """Why a pattern cannot be used, in words; `position` counts characters from 1, 0 if it is unknown."""

    def __init__(self, why: str, position: int = 0) -> None:
        super().__init__(f"{why}, at character {position}" if position else why)


def check_pattern(pattern: str) -> None:
    """Raise NotPortable if a pattern is not a regular expression, or not the same one in Java and in Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of sets that `_scan` refuses
            re.compile(python(pattern))
    except re.error as problem:
        shift = len(python(pattern)) - len(pattern)
        raise NotPortable(f"{problem.msg}", max(0, (problem.pos or 0) - shift) + 1) from problem
    except (ValueError, OverflowError, RecursionError) as problem:
        raise NotPortable(str(problem)) from problem
    _scan(pattern)


def python(pattern: str) -> str:
    """The pattern with the flags that Python needs."""
    leading = _LEADING_FLAGS.match(pattern)
    return f"(?a{leading[1]}){pattern[leading.end() :]}" if leading else f"(?a){pattern}"


def java(pattern: str) -> str:
    """The pattern with the flags that Java needs."""
    return f"(?d){pattern}"


def _scan(pattern: str) -> None:
    """Check a pattern that Python compiles, character by character."""
    position, in_set = 0, False
    while position < len(pattern):
        sign = pattern[position]
        if sign == "\\":
            _check_escape(pattern, position)
            position += 2
        elif in_set:
            if sign == "[" or pattern[position : position + 2] in {"&&", "--", "~~", "||"}:
                text = rf"`{sign}` in a set is not the same in Java and in Python: write `\{sign}`"
                raise NotPortable(text, position + 1)
            position, in_set = position + 1, sign != "]"
        elif sign == "[":
            opened = position + 2 if pattern[position + 1 : position + 2] == "^" else position + 1
            if pattern[opened : opened + 1] == "]":
                raise NotPortable(r"write `\]` for a bracket in a set", opened + 1)
            position, in_set = opened, True
        elif sign == "{":
            if (count_match := _COUNT.match(pattern, position)) is None:
                text = r"Java takes `{` for a count: write `{2}`, `{2,}` or `{0,2}`, else `\{`"
                raise NotPortable(text, position + 1)
            position = count_match.end()
        else:
            _group(pattern, position)
            position += 1


def _check_escape(pattern: str, position: int) -> None:
    """Check a backslash and the character after it."""
    of = pattern[position + 1]
    if of in _ONE_SIDED_ESCAPES:
        text = rf"`\{of}` does not mean the same in Java and in Python: {_ONE_SIDED_ESCAPES[of]}"
        raise NotPortable(text, position + 1)
    if of.isdigit() and pattern[position + 2 : position + 3].isdigit():
        text = r"Java and Python read two digits behind `\` differently: put `(?:)` between them"
        raise NotPortable(text, position + 1)


def _group(pattern: str, position: int) -> None:
    """Check a group, if one begins at this position."""
    for start, why in _ONE_SIDED_GROUPS.items():
        if pattern.startswith(start, position):
            raise NotPortable(f"`{start}` is not the same in Java and in Python: {why}", position + 1)
    flags = _FLAGS.match(pattern, position)
    if flags is not None and set(flags[1]) - set("is-"):
        raise NotPortable("only the flags `i` and `s` are the same in Java and in Python", position + 1)
