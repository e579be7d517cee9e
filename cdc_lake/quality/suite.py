"""Rules as Great Expectations runs them: one expectation a rule, one suite a table, on Spark or on Arrow data.

Promises: the counts are those of `cdc_lake.quality.rules.fails` (tested rule by rule); no row value leaves the run (no
samples are asked for, and texts of exceptions are cut down to their kind); an expectation that raised is reported as a
broken rule, never as bad data. Numbers are compared as doubles here: beyond 15 digits only the gate is exact.
An `expression` and `type_castable` mean what Spark makes of them: without a JVM they are not judged, and that is said.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, assert_never, cast

import pyarrow as pa

from cdc_lake.config.patterns import java, python
from cdc_lake.config.rules import (
    Between,
    Expression,
    InSet,
    Length,
    NotNull,
    Regex,
    RowRule,
    TypeCastable,
    named_columns,
    rule_name,
)
from cdc_lake.errors import QualityEngineMissing, QualityError, RuleDoesNotFit
from cdc_lake.quality.constants import Constant, bounds, member
from cdc_lake.quality.engine import engine, quiet, raised, validate
from cdc_lake.quality.frame import ordered_frame, pandas_frame, spark_types, type_name
from cdc_lake.quality.rules import check_rule, fails, holds_not

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SEVERITY = {"stop": "critical", "quarantine": "warning", "warn": "info"}


@dataclass(frozen=True, slots=True)
class RuleResult:
    """What a rule found. `evaluated` counts all rows, NULLs too; of a rule that judges a table as a whole it is 1, and
    `observed` is what was seen. `broken` says why it could not be judged at all, `elsewhere` why not here. `examples`:
    numbers of some rows that failed.
    """

    rule: str
    kind: str
    column: str
    on_fail: str
    evaluated: int
    failed: int
    broken: str = ""
    elsewhere: str = ""
    observed: str = ""
    examples: tuple[int, ...] = ()

    @property
    def success(self) -> bool:
        """Whether it was judged, here or elsewhere, and nothing failed here."""
        return not self.broken and not self.failed

    @property
    def fraction(self) -> float:
        """Failed of evaluated, 0 to 1; 0 of an empty table."""
        return self.failed / self.evaluated if self.evaluated else 0.0


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """A suite's run over one table, rules in their order. `raw` is Great Expectations' own JSON, without row values."""

    name: str
    rules: tuple[RuleResult, ...]
    raw: Mapping[str, Any]

    @property
    def success(self) -> bool:
        """Whether every rule was judged and found nothing."""
        return all(rule.success for rule in self.rules)


def expectation(
    rule: RowRule, data_type: str | None, *, on: str = "spark", meta: Mapping[str, object] | None = None
) -> Any:
    """The rule as an expectation of Great Expectations, for a column of that Spark type (an `expression` has none).

    `on` is what will judge it, `spark` or `pandas`: they read regular expressions differently. An `expression` and
    `type_castable` expect `true` of a column that Spark has worked out, `passing` names it. Raises `RuleDoesNotFit`,
    and `QualityEngineMissing` where Great Expectations is not installed.
    """
    if not isinstance(rule, Expression):
        check_rule(rule, data_type)
    kind = data_type or ""
    gxe = engine().expectations
    common: dict[str, Any] = {
        "column": passing(rule) if isinstance(rule, Expression | TypeCastable) else rule.column,
        "severity": _SEVERITY[rule.on_fail],
        "meta": {"rule": rule_name(rule), "on_fail": rule.on_fail, **(meta or {})},
    }
    match rule:
        case NotNull():
            return gxe.ExpectColumnValuesToNotBeNull(**common)
        case Between(min=low, max=high):
            return gxe.ExpectColumnValuesToBeBetween(**common, **_range(low, high, kind, on))
        case InSet(values=values):
            return gxe.ExpectColumnValuesToBeInSet(**common, value_set=[_SEEN[on](member(v, kind)) for v in values])
        case Regex(pattern=pattern):
            regex = python(pattern) if on == "pandas" else java(pattern)
            return gxe.ExpectColumnValuesToMatchRegex(**common, regex=regex)
        case Length(min=low, max=high):
            return gxe.ExpectColumnValueLengthsToBeBetween(**common, min_value=low, max_value=high)
        case TypeCastable() | Expression():
            return gxe.ExpectColumnValuesToBeInSet(**common, value_set=[True])
        case _:
            assert_never(rule)


def passing(rule: RowRule) -> str:
    """The column that says of each row whether it passes a rule that only Spark can judge."""
    return f"passes {rule_name(rule)}"


def run_suite(
    frame: DataFrame | pa.Table,
    rules: Sequence[RowRule],
    name: str,
    *,
    written: Mapping[str, str] | None = None,
    examples: int = 0,
) -> SuiteResult:
    """Judge every row of `frame` by every rule. `written` maps rule names to where they are written (`shop.yaml:14`).

    An Arrow table is judged by pandas, without a JVM; a Spark DataFrame where it is. A rule that does not fit
    its column is reported as broken, the others still run. `examples`: how many rows of an Arrow table are told of
    each rule that fails.
    """
    places, arrow = written or {}, isinstance(frame, pa.Table)
    types = {f.name: type_name(f.type) for f in frame.schema} if isinstance(frame, pa.Table) else spark_types(frame)
    built: dict[int, Any] = {}
    worked_out: dict[str, Column] = {}
    unjudged: dict[int, dict[str, str]] = {}
    with quiet():
        for at, rule in enumerate(rules):
            if isinstance(frame, pa.Table) and isinstance(rule, Expression | TypeCastable):
                unjudged[at] = {"elsewhere": "judged at the gate"}
                continue
            try:
                if isinstance(rule, Expression | TypeCastable):
                    worked_out[passing(rule)] = _passes(cast("DataFrame", frame), rule, types)
                meta = {"index": at, "written": places.get(rule_name(rule), "")}
                of = None if isinstance(rule, Expression) else types.get(rule.column)
                built[at] = expectation(rule, of, on="pandas" if arrow else "spark", meta=meta)
            except QualityEngineMissing:
                raise
            except QualityError as problem:
                unjudged[at] = {"broken": problem.message}
        judged = {c for at in built for c in _columns(rules[at])}
        data = pandas_frame(frame, judged) if isinstance(frame, pa.Table) else ordered_frame(frame, judged, worked_out)
        asked = examples if arrow else 0
        raw = validate(data, list(built.values()), name, arrow=arrow, examples=asked) if built else {}
    results = {r["expectation_config"]["meta"]["index"]: r for r in raw.get("results", [])}
    some = {at: tuple(result.pop("examples", ())) for at, result in results.items()}
    found = tuple(
        replace(_result(rule, results.get(at), **unjudged.get(at, {})), examples=some.get(at, ()))
        for at, rule in enumerate(rules)
    )
    return SuiteResult(name, found, raw)


def _columns(rule: RowRule) -> tuple[str, ...]:
    """The columns of the data that its expectation looks at as they are."""
    return () if isinstance(rule, Expression | TypeCastable) else (rule.column,)


def _passes(frame: DataFrame, rule: Expression | TypeCastable, types: Mapping[str, str]) -> Column:
    """Whether a row passes, worked out by Spark. Raises RuleDoesNotFit, RuleColumnMissing."""
    from pyspark.errors import AnalysisException, ParseException  # noqa: PLC0415 - a report needs no Spark

    if isinstance(rule, TypeCastable):
        check_rule(rule, types.get(rule.column))
        return ~fails(rule, types[rule.column])
    passes = ~holds_not(rule.expression)
    try:
        frame.select(passes)
    except (AnalysisException, ParseException) as cause:
        raise RuleDoesNotFit("Spark does not take the expression", where=f"rule {rule_name(rule)}") from cause
    return passes


def _result(rule: RowRule, result: Mapping[str, Any] | None, *, broken: str = "", elsewhere: str = "") -> RuleResult:
    counts: Mapping[str, Any] = (result or {}).get("result", {})
    return RuleResult(
        rule=rule_name(rule),
        kind=rule.rule,
        column=", ".join(named_columns(rule)),
        on_fail=rule.on_fail,
        evaluated=int(counts.get("element_count") or 0),
        failed=int(counts.get("unexpected_count") or 0),
        broken=broken or raised(result),
        elsewhere=elsewhere,
    )


def _range(low: float | str | None, high: float | str | None, data_type: str, on: str) -> dict[str, Any]:
    seen = _SEEN[on]
    limits = bounds(low, high, data_type)
    if limits.nothing:
        return {"min_value": sys.float_info.max, "max_value": None}
    if limits.low is None and limits.high is None:  # both lie beyond the type: everything passes
        return {"min_value": -sys.float_info.max, "max_value": None}
    return {
        "min_value": None if limits.low is None else seen(limits.low),
        "max_value": None if limits.high is None else seen(limits.high),
    }


def _on_spark(value: Constant) -> Constant:
    """A constant as `ordered_frame` shows the column's values: points in time in UTC."""
    return value.replace(tzinfo=dt.UTC) if isinstance(value, dt.datetime) and value.tzinfo is None else value


def _on_pandas(value: Constant) -> Constant:
    """A constant as `pandas_frame` shows the column's values: numbers as doubles, points in time and days in UTC."""
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return dt.datetime(value.year, value.month, value.day, tzinfo=dt.UTC)
    return _on_spark(value)


_SEEN = {"spark": _on_spark, "pandas": _on_pandas}
