"""What a rule of a table comes to, and which columns it needs. The rules of each family have a module of their own."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

import pyarrow as pa

from cdc_lake.config.rules import Expectation, ForeignKey, Freshness, Monotonic, RowCount, TableRule, Unique
from cdc_lake.errors import RuleColumnMissing, RuleDoesNotFit
from cdc_lake.quality.constants import Family, Unfit, family
from cdc_lake.quality.frame import type_name
from cdc_lake.quality.key_rules import alike, orphans, repeated
from cdc_lake.quality.order_rules import steps_down
from cdc_lake.quality.table_facts import Tally
from cdc_lake.quality.whole_rules import counted, newest

BuiltIn = Unique | ForeignKey | RowCount | Freshness | Monotonic
"""The rules of tables that are judged here; an `expectation` only Great Expectations can."""


@dataclass(frozen=True, slots=True)
class Referenced:
    """The rows that a `foreign_key` refers to, in the columns it names, or why there are none."""

    rows: pa.Table | None
    why: str = ""


def read_by(rule: TableRule) -> tuple[str, ...]:
    """The columns that it needs of its own table; of an `expectation` those that its arguments name."""
    match rule:
        case Unique(columns=columns) | ForeignKey(columns=columns):
            return tuple(columns)
        case RowCount():
            return ()
        case Freshness(column=column):
            return (column,)
        case Monotonic(column=column, by=by):
            return (column, by)
        case Expectation():
            return ()
        case _:
            assert_never(rule)


def tally(
    rule: BuiltIn, rows: pa.Table, at: dt.datetime, referenced: Referenced | None = None, examples: int = 0
) -> Tally:
    """Judge a table by a rule. `at`: the time that ages are reckoned to; `examples`: how many rows that fail are told.

    Raises RuleColumnMissing, RuleDoesNotFit.
    """
    types = {field.name: field.type for field in rows.schema}
    where = f"rule {rule.name or rule.rule}"
    for name in read_by(rule):
        if name not in types:
            raise RuleColumnMissing(f"there is no column `{name}` in silver", where=where)
    try:
        check_types(rule, types)
        match rule:
            case Unique(columns=columns):
                return repeated(rows, columns, examples)
            case ForeignKey(columns=columns, referenced=there):
                return orphans(rows, columns, _there(referenced, there), there, examples)
            case RowCount(min=low, max=high):
                return counted(rows.num_rows, low, high)
            case Freshness(column=column, max_age=age):
                return newest(rows.column(column), at, dt.timedelta(milliseconds=age))
            case Monotonic(column=column, by=by, strict=strict):
                return steps_down(rows, column, by, strict=strict, examples=examples)
            case _:
                assert_never(rule)
    except Unfit as problem:
        raise RuleDoesNotFit(f"`{rule.rule}` does not fit: {problem}", where=where) from problem


def check_types(rule: BuiltIn, types: Mapping[str, pa.DataType]) -> None:
    """Raise Unfit for a rule that cannot judge columns of these types."""
    named = {name: type_name(types[name]) for name in read_by(rule) if name in types}
    match rule:
        case Unique() | ForeignKey():
            for name, kind in named.items():
                if family(kind) is Family.OTHER and not alike(types[name]):
                    raise Unfit(f"values of column `{name}` of type {kind} cannot be compared")
        case Freshness(column=column):
            if column in named and family(named[column]) not in _TIMES:
                raise Unfit(f"column `{column}` of type {named[column]} has no points in time or days")
        case Monotonic():
            for name, kind in named.items():
                if not family(kind).ordered and family(kind) is not Family.TEXT:
                    raise Unfit(f"column `{name}` of type {kind} has no order")
            if rule.column in named and family(named[rule.column]) is Family.TEXT:
                raise Unfit(f"column `{rule.column}` is text: text is ordered differently in every database")
        case RowCount():
            pass
        case _:
            assert_never(rule)


_TIMES = {Family.DATE, Family.TIMESTAMP, Family.TIMESTAMP_NTZ}


def _there(referenced: Referenced | None, columns: list[str]) -> pa.Table:
    if referenced is None or referenced.rows is None:
        raise Unfit(referenced.why if referenced else "the table it refers to was not read")
    for name in columns:
        if name not in referenced.rows.column_names:
            raise Unfit(f"there is no column `{name}` in the table it refers to")
    return referenced.rows
