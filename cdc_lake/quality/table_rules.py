"""Rules on a table as a whole: their columns, their counts, and the severity of failures.

`row_count`, `freshness`, `monotonic`, and the key rules `unique` and `foreign_key`, which are evaluated exactly in one
aggregate. A row with a NULL among the values passes, as in SQL; floating-point values are equal as in PostgreSQL: NaN
equals NaN, -0 equals 0. No result contains a row value.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from cdc_lake.config.rules import Expectation, ForeignKey, Freshness, Monotonic, RowCount, TableRule, Thresholds, Unique
from cdc_lake.errors import RuleColumnMissing, RuleDoesNotFit
from cdc_lake.observability import html
from cdc_lake.quality.great_expectations import type_name
from cdc_lake.quality.rules import Family, Unfit, family


@dataclass(frozen=True, slots=True)
class Tally:
    """`evaluated` and `failed` count rows; 1 and 0 or 1 if the table is evaluated as a whole. `observed`: the observed
    value for display: a number of rows, an age. `examples`: numbers of some failing rows, if requested.
    """

    evaluated: int
    failed: int
    observed: str = ""
    examples: tuple[int, ...] = ()


_NUMBER = "\0 number"  # cannot be a column name


def alike(kind: pa.DataType) -> bool:
    """Whether values of a type without a family of its own are comparable: bytes."""
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind))


def tally_duplicates(rows: pa.Table, columns: Sequence[str], examples: int = 0) -> Tally:
    """Rows whose values another row also has; each of them counts."""
    keys = _keys(rows, columns)
    groups = keys.group_by(list(columns)).aggregate([([], "count_all")])
    several = groups.filter(pc.greater(groups["count_all"], 1))
    failed = pc.sum(several["count_all"]).as_py() or 0
    duplicates = (
        keys.join(several.drop_columns("count_all"), list(columns), join_type="left semi") if examples else None
    )
    return Tally(rows.num_rows, int(failed), examples=_first(duplicates, examples))


def orphans(
    rows: pa.Table, columns: Sequence[str], others: pa.Table, referenced: Sequence[str], examples: int = 0
) -> Tally:
    """Rows whose values no row of `others` has. Raises Unfit if the types differ."""
    own_keys, theirs = _keys(rows, columns), _keys(others, referenced).rename_columns([*columns, _NUMBER])
    for field, other in zip(own_keys.schema, theirs.schema, strict=True):
        if field.type != other.type:
            raise Unfit(f"column `{field.name}` is of type {field.type}, but the referenced one of type {other.type}")
    referenced_keys = theirs.group_by(list(columns)).aggregate([])
    lost = own_keys.join(referenced_keys, list(columns), join_type="left anti")
    return Tally(rows.num_rows, lost.num_rows, examples=_first(lost, examples))


def _keys(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The values of rows without NULLs, in types common to both formats, and the rows' numbers."""
    keys = pa.table({name: _plain(rows.column(name)) for name in columns})
    keys = keys.append_column(_NUMBER, pa.array(np.arange(rows.num_rows)))
    for name in columns:
        keys = keys.filter(pc.is_valid(keys.column(name)))
    return keys


def _first(rows: pa.Table | None, count: int) -> tuple[int, ...]:
    return () if rows is None else tuple(sorted(rows[_NUMBER].to_pylist())[:count])


def _plain(values: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = values.type
    if pt.is_floating(kind):
        doubles = pc.add(values.cast(pa.float64()), 0.0)  # -0 becomes 0
        return pc.if_else(pc.is_nan(doubles), pa.scalar(float("nan")), doubles)
    if pt.is_integer(kind):
        return values.cast(pa.int64())
    if pt.is_string(kind) or pt.is_string_view(kind):
        return values.cast(pa.large_string())
    if pt.is_binary(kind) or pt.is_fixed_size_binary(kind):
        return values.cast(pa.large_binary())
    return values


def in_order(rows: pa.Table, column: str, by: str) -> pa.Array:
    """The values in the order of `by`; of rows with equal `by` the smallest first. Rows without either are omitted.

    NaN is greater than every number, as in PostgreSQL and Arrow's sort.
    """
    return _sort_by(rows, column, by).column("value").combine_chunks()


def _sort_by(rows: pa.Table, column: str, by: str) -> pa.Table:
    numbers = pa.array(np.arange(rows.num_rows))
    both = pa.table({"by": rows.column(by), "value": rows.column(column), "number": numbers})
    both = both.filter(pc.and_(pc.is_valid(both["by"]), pc.is_valid(both["value"])))
    return both.sort_by([("by", "ascending"), ("value", "ascending")])


def steps_down(rows: pa.Table, column: str, by: str, *, strict: bool, examples: int = 0) -> Tally:
    """Rows whose value is below that of the previous row; with `strict` also those with the same value."""
    ordered = _sort_by(rows, column, by)
    values = ordered.column("value").combine_chunks()
    before, after = values.slice(0, max(len(values) - 1, 0)), values.slice(1)
    wrong = pc.less(after, before)
    same = pc.equal(after, before)
    if pt.is_floating(values.type):
        was, now = pc.is_nan(before), pc.is_nan(after)
        wrong, same = pc.or_(wrong, pc.and_not(was, now)), pc.or_(same, pc.and_(was, now))
    fails = pc.or_(wrong, same) if strict else wrong
    numbers = ordered.column("number").combine_chunks().slice(1).filter(fails)
    return Tally(rows.num_rows, int(pc.sum(fails).as_py() or 0), examples=tuple(numbers.slice(0, examples).to_pylist()))


def tally_row_count(rows: int, low: int | None, high: int | None) -> Tally:
    """Whether the number of rows is within bounds, both inclusive."""
    fails = (low is not None and rows < low) or (high is not None and rows > high)
    return Tally(1, int(fails), html.plural(rows, "row"))


def newest(values: pa.ChunkedArray, now: dt.datetime, age: dt.timedelta) -> Tally:
    """Whether the newest value is at most `age` old at `now`. No value fails; a value in the future passes."""
    last = pc.max(instants(values)).as_py()
    if last is None:
        return Tally(1, 1, "no value")
    old = (now - last).total_seconds()
    observed = f"{html.duration(old)} old" if old > 0 else "newer than the report"
    return Tally(1, int(now - last > age), observed)


def instants(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Timestamps of a column: dates begin at midnight, and values without a zone are UTC."""
    return values.cast(pa.timestamp("us"), safe=False).cast(pa.timestamp("us", tz="UTC"))


BuiltIn = Unique | ForeignKey | RowCount | Freshness | Monotonic
"""The table rules evaluated here; only Great Expectations can evaluate an `expectation`."""


@dataclass(frozen=True, slots=True)
class Referenced:
    """The rows that a `foreign_key` refers to, in its columns, or why there are none."""

    rows: pa.Table | None
    why: str = ""


def read_by(rule: TableRule) -> tuple[str, ...]:
    """The columns that it reads of its own table; for an `expectation` those named by its arguments."""
    match rule:
        case Unique(columns=columns) | ForeignKey(columns=columns):
            return tuple(columns)
        case Freshness(column=column):
            return (column,)
        case Monotonic(column=column, by=by):
            return (column, by)
        case RowCount() | Expectation():
            return ()
        case _:
            assert_never(rule)


def tally(
    rule: BuiltIn, rows: pa.Table, now: dt.datetime, referenced: Referenced | None = None, examples: int = 0
) -> Tally:
    """Evaluate a rule on a table. `now`: the reference time of ages; `examples`: number of failing rows to report.

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
                return tally_duplicates(rows, columns, examples)
            case ForeignKey(columns=columns, referenced=referenced_columns):
                return orphans(
                    rows, columns, _referenced_rows(referenced, referenced_columns), referenced_columns, examples
                )
            case RowCount(min=low, max=high):
                return tally_row_count(rows.num_rows, low, high)
            case Freshness(column=column, max_age=age):
                return newest(rows.column(column), now, dt.timedelta(milliseconds=age))
            case Monotonic(column=column, by=by, strict=strict):
                return steps_down(rows, column, by, strict=strict, examples=examples)
            case _:
                assert_never(rule)
    except Unfit as problem:
        raise RuleDoesNotFit(f"`{rule.rule}` does not fit: {problem}", where=where) from problem


def check_types(rule: BuiltIn, types: Mapping[str, pa.DataType]) -> None:
    """Raise Unfit for a rule that does not apply to columns of these types."""
    named = {name: type_name(types[name]) for name in read_by(rule) if name in types}
    match rule:
        case Unique() | ForeignKey():
            for name, kind in named.items():
                if family(kind) is Family.OTHER and not alike(types[name]):
                    raise Unfit(f"values of column `{name}` of type {kind} cannot be compared")
        case Freshness(column=column):
            if column in named and family(named[column]) not in _TIMES:
                raise Unfit(f"column `{column}` of type {named[column]} does not contain times or dates")
        case Monotonic():
            for name, kind in named.items():
                if not family(kind).is_ordered and family(kind) is not Family.TEXT:
                    raise Unfit(f"column `{name}` of type {kind} cannot be ordered")
            if rule.column in named and family(named[rule.column]) is Family.TEXT:
                raise Unfit(f"column `{rule.column}` is text: each database orders text differently")
        case RowCount():
            pass
        case _:
            assert_never(rule)


_TIMES = {Family.DATE, Family.TIMESTAMP, Family.TIMESTAMP_NTZ}


def _referenced_rows(referenced: Referenced | None, columns: list[str]) -> pa.Table:
    if referenced is None or referenced.rows is None:
        raise Unfit(referenced.why if referenced else "the referenced table was not read")
    for name in columns:
        if name not in referenced.rows.column_names:
            raise Unfit(f"there is no column `{name}` in the referenced table")
    return referenced.rows


Level: TypeAlias = Literal["none", "warn", "error", "critical"]
LEVELS: tuple[Level, ...] = ("none", "warn", "error", "critical")
"""From best to worst."""


def level(thresholds: Thresholds | None, evaluated: int, failed: int) -> Level:
    """The highest threshold reached by the share of failures; `warn` for any failure without thresholds."""
    if not failed:
        return "none"
    if thresholds is None:
        return "warn"
    share = failed / evaluated
    steps: tuple[tuple[Level, float | None], ...] = (
        ("warn", thresholds.warn),
        ("error", thresholds.error),
        ("critical", thresholds.critical),
    )
    reached: list[Level] = [name for name, least in steps if least is not None and share >= least]
    return reached[-1] if reached else "none"


def worst(levels: tuple[Level, ...]) -> Level:
    """The worst of several."""
    return max(levels, key=LEVELS.index, default="none")
