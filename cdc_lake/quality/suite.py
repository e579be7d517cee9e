"""Rules as Great Expectations runs them: one expectation a rule, one suite a table, on Spark or on Arrow data.

Promises: the counts are those of `cdc_lake.quality.rules.fails` (tested rule by rule); no row value leaves the run (no
samples are asked for, and texts of exceptions are cut down to their kind); an expectation that raised is reported as a
broken rule, never as bad data. Numbers are compared as doubles here: beyond 15 digits only the gate is exact.

Great Expectations (1.24) takes seconds to import, so only `run_suite` and `expectation` do, when called.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, assert_never

import pyarrow as pa

from cdc_lake.config.model import Between, InSet, LengthBetween, Matches, NotNull, Rule
from cdc_lake.errors import QualityEngineMissing, QualityError
from cdc_lake.quality.constants import Constant, bounds, member
from cdc_lake.quality.frame import ordered_frame, pandas_frame, spark_types, type_name
from cdc_lake.quality.rules import check_rule, python_pattern, rule_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SEVERITY = {"stop": "critical", "quarantine": "warning", "warn": "info"}
# Counts without the sample of failing values that every format but BOOLEAN_ONLY carries otherwise.
_FORMAT = {"result_format": "SUMMARY", "partial_unexpected_count": 0}


@dataclass(frozen=True, slots=True)
class RuleResult:
    """What a rule found. `evaluated` counts all rows, NULLs too; `broken` says why it could not be judged at all."""

    rule: str
    kind: str
    column: str
    on_fail: str
    evaluated: int
    failed: int
    broken: str = ""

    @property
    def success(self) -> bool:
        """Whether it was judged and nothing failed."""
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


def expectation(rule: Rule, data_type: str, *, engine: str = "spark", meta: Mapping[str, object] | None = None) -> Any:
    """The rule as an expectation of Great Expectations, for a column of that Spark type.

    `engine` is what will judge it, `spark` or `pandas`: they read regular expressions differently. Raises
    `RuleDoesNotFit`, and `QualityEngineMissing` where Great Expectations is not installed.
    """
    check_rule(rule, data_type)
    gxe = _engine().expectations
    common: dict[str, Any] = {
        "column": rule.column,
        "severity": _SEVERITY[rule.on_fail],
        "meta": {"rule": rule_name(rule), "on_fail": rule.on_fail, **(meta or {})},
    }
    match rule:
        case NotNull():
            return gxe.ExpectColumnValuesToNotBeNull(**common)
        case Between(min=low, max=high):
            return gxe.ExpectColumnValuesToBeBetween(**common, **_range(low, high, data_type, engine))
        case InSet(values=values):
            allowed = [_SEEN[engine](member(value, data_type)) for value in values]
            return gxe.ExpectColumnValuesToBeInSet(**common, value_set=allowed)
        case Matches(pattern=pattern):
            regex = python_pattern(pattern) if engine == "pandas" else pattern
            return gxe.ExpectColumnValuesToMatchRegex(**common, regex=regex)
        case LengthBetween(min=low, max=high):
            return gxe.ExpectColumnValueLengthsToBeBetween(**common, min_value=low, max_value=high)
        case _:
            assert_never(rule)


def run_suite(
    frame: DataFrame | pa.Table, rules: Sequence[Rule], name: str, *, written: Mapping[str, str] | None = None
) -> SuiteResult:
    """Judge every row of `frame` by every rule. `written` maps rule names to where they are written (`shop.yaml:14`).

    An Arrow table is judged by pandas, without a JVM; a Spark DataFrame where it is. A rule that does not fit
    its column is reported as broken, the others still run.
    """
    places = written or {}
    arrow = isinstance(frame, pa.Table)
    types = {f.name: type_name(f.type) for f in frame.schema} if isinstance(frame, pa.Table) else spark_types(frame)
    built: dict[int, Any] = {}
    broken: dict[int, str] = {}
    with _quiet():
        for at, rule in enumerate(rules):
            try:
                check_rule(rule, types.get(rule.column))
            except QualityError as problem:
                broken[at] = problem.message
                continue
            meta = {"index": at, "written": places.get(rule_name(rule), "")}
            engine = "pandas" if arrow else "spark"
            built[at] = expectation(rule, types[rule.column], engine=engine, meta=meta)
        judged = {rules[at].column for at in built}
        data = pandas_frame(frame, judged) if isinstance(frame, pa.Table) else ordered_frame(frame, judged)
        raw = _run(data, list(built.values()), name, arrow=arrow) if built else {}
    results = {r["expectation_config"]["meta"]["index"]: r for r in raw.get("results", [])}
    found = tuple(_result(rule, results.get(at), broken.get(at, "")) for at, rule in enumerate(rules))
    return SuiteResult(name, found, raw)


def _run(data: Any, expectations: list[Any], name: str, *, arrow: bool) -> dict[str, Any]:
    """One run in a context of its own, which lives in memory; its JSON."""
    gx = _engine()
    context = gx.get_context(mode="ephemeral")
    context.enable_analytics(enable=False)
    bars = sys.modules["great_expectations.data_context.types.base"].ProgressBarsConfig
    context.variables.progress_bars = bars(globally=False, metric_calculations=False)
    # persist would cache the frame in Spark: slower for one pass, and in the way of a MERGE of the same frame.
    sources = context.data_sources
    source = sources.add_pandas(name="lake") if arrow else sources.add_spark(name="lake", persist=False)
    batch = source.add_dataframe_asset(name=name).add_batch_definition_whole_dataframe("all")
    suite = context.suites.add(gx.ExpectationSuite(name=name, expectations=expectations))
    run = context.validation_definitions.add(gx.ValidationDefinition(name=name, data=batch, suite=suite))
    outcome = run.run(batch_parameters={"dataframe": data}, result_format=_FORMAT)
    raw: dict[str, Any] = json.loads(json.dumps(outcome.to_json_dict()))
    for result in raw["results"]:
        result["exception_info"] = _scrubbed(result["exception_info"])
    return raw


def _scrubbed(info: Mapping[str, Any]) -> dict[str, Any]:
    """Exceptions by their kind: messages and traces may quote a row. The info has two shapes, flat and by metric."""
    entries = [info] if "raised_exception" in info else list(info.values())
    raised = [e for e in entries if e["raised_exception"]]
    kinds = [str(e["exception_traceback"] or "").strip().splitlines() for e in raised]
    kind = next((lines[-1].split(":", 1)[0].rsplit(".", 1)[-1] for lines in kinds if lines), "unknown")
    return {"raised_exception": bool(raised), "exception_kind": kind if raised else None}


def _result(rule: Rule, result: Mapping[str, Any] | None, broken: str) -> RuleResult:
    counts: Mapping[str, Any] = (result or {}).get("result", {})
    if result is not None and result["exception_info"]["raised_exception"]:
        broken = f"the expectation could not be evaluated ({result['exception_info']['exception_kind']})"
    return RuleResult(
        rule=rule_name(rule),
        kind=rule.rule,
        column=rule.column,
        on_fail=rule.on_fail,
        evaluated=int(counts.get("element_count") or 0),
        failed=int(counts.get("unexpected_count") or 0),
        broken=broken,
    )


def _range(low: float | str | None, high: float | str | None, data_type: str, engine: str) -> dict[str, Any]:
    seen = _SEEN[engine]
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


def _engine() -> Any:
    try:
        import great_expectations as gx  # noqa: PLC0415 - 2.5 s, only for those who run a suite
        import great_expectations.data_context.types.base  # noqa: PLC0415
        import great_expectations.expectations  # noqa: PLC0415
    except ImportError as problem:
        raise QualityEngineMissing("Great Expectations is not installed here") from problem
    return gx


@contextmanager
def _quiet() -> Iterator[None]:
    """The engine's own deprecations, and pandas' remark on groups in a pattern, are nobody's concern here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", message="This pattern is interpreted as a regular expression, and has match")
        yield
