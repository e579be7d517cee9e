"""Evaluates rules with Great Expectations: one expectation per rule, one suite per table, on Spark or Arrow.

Guarantees: the counts equal those of `quality.rules.fails` (tested rule by rule); no row value leaves the run (no
samples are requested, and exception texts are reduced to their kind); an expectation that raised is reported as a
broken rule, never as bad data. `expression` and `type_castable` are defined by Spark: without a JVM they are not
evaluated, and the result says so.

Only the evaluated columns are passed. Numbers become doubles, so beyond 15 digits only the check in apply is exact; NaN
is greater than every number, as in PostgreSQL and Spark; timestamps without a zone become UTC, dates (for pandas)
midnight UTC. Great Expectations (1.24) takes seconds to import, so it is imported when a suite runs.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, assert_never, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from cdc_lake.config.rules import (
    Between,
    Expression,
    InSet,
    Length,
    NotNull,
    Regex,
    RowRule,
    TypeCastable,
    java,
    named_columns,
    python,
    rule_name,
)
from cdc_lake.errors import QualityEngineMissing, QualityError, RuleDoesNotFit
from cdc_lake.quality.rules import Constant, bounds, check_rule, fails, holds_not, member
from cdc_lake.tables.types import quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


# Counts without the sample of failing values that every other format except BOOLEAN_ONLY contains.
_FORMAT = {"result_format": "SUMMARY", "partial_unexpected_count": 0}
_COUNTS = frozenset(
    {
        "element_count",
        "unexpected_count",
        "unexpected_percent",
        "unexpected_percent_total",
        "unexpected_percent_nonmissing",
        "missing_count",
        "missing_percent",
    }
)
_OF_THE_TABLE = ("expect_table_row_count", "expect_table_column_count")
"""Expectations whose observed value is a number of rows or columns. Others may observe a row value."""


def validate(data: Any, expectations: Sequence[Any], name: str, *, arrow: bool, examples: int = 0) -> dict[str, Any]:
    """Run a suite over a pandas (`arrow`) or Spark DataFrame. Raises QualityEngineMissing.

    With `examples` each result has beside its `result` the numbers of at most so many failing rows, for pandas only;
    the caller must remove them.
    """
    gx = engine()
    context = gx.get_context(mode="ephemeral")
    context.enable_analytics(enable=False)
    bars = sys.modules["great_expectations.data_context.types.base"].ProgressBarsConfig
    context.variables.progress_bars = bars(globally=False, metric_calculations=False)
    # persist would cache the frame in Spark: slower for one pass, and it interferes with a MERGE of the same frame.
    sources = context.data_sources
    source = sources.add_pandas(name="lake") if arrow else sources.add_spark(name="lake", persist=False)
    batch = source.add_dataframe_asset(name=name).add_batch_definition_whole_dataframe("all")
    suite = context.suites.add(gx.ExpectationSuite(name=name, expectations=list(expectations)))
    run = context.validation_definitions.add(gx.ValidationDefinition(name=name, data=batch, suite=suite))
    wanted = {**_FORMAT, "partial_unexpected_count": examples}
    outcome = run.run(batch_parameters={"dataframe": data}, result_format=wanted)
    raw: dict[str, Any] = json.loads(json.dumps(outcome.to_json_dict()))
    for result in raw["results"]:
        if examples:
            result["examples"] = result["result"].get("partial_unexpected_index_list") or []
        result["exception_info"] = _scrub_exceptions(result["exception_info"])
        keep = _COUNTS
        if result["expectation_config"]["type"].startswith(_OF_THE_TABLE):
            keep = keep | {"observed_value"}
        result["result"] = {key: value for key, value in result["result"].items() if key in keep}
    return raw


def _scrub_exceptions(info: Mapping[str, Any]) -> dict[str, Any]:
    """Exceptions by their kind: messages and traces may quote a row. The info has two forms, flat and by metric; the
    result is flat, with the keys that Great Expectations reads.
    """
    entries = [info] if "raised_exception" in info else list(info.values())
    raised = [e for e in entries if e["raised_exception"]]
    kinds = [str(e["exception_traceback"] or "").strip().splitlines() for e in raised]
    kind = next((lines[-1].split(":", 1)[0].rsplit(".", 1)[-1] for lines in kinds if lines), "unknown")
    return {
        "raised_exception": bool(raised),
        "exception_message": kind if raised else None,
        "exception_traceback": "omitted: it may quote a row" if raised else None,
    }


def evaluation_error(result: Mapping[str, Any] | None) -> str:
    """Why an expectation could not be evaluated; empty if it was, or if there is none."""
    if result is None or not result["exception_info"]["raised_exception"]:
        return ""
    return f"the expectation could not be evaluated ({result['exception_info']['exception_message']})"


def engine() -> Any:
    """Great Expectations. Raises QualityEngineMissing if it is not installed."""
    try:
        with quiet():
            import great_expectations as gx  # noqa: PLC0415 - 2.5 s, only for those who run a suite
            import great_expectations.data_context.types.base  # noqa: PLC0415
            import great_expectations.expectations  # noqa: PLC0415
    except ImportError as problem:
        raise QualityEngineMissing("Great Expectations is not installed here") from problem
    return gx


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the engine's own deprecation warnings, and pandas' warning about groups in a pattern."""
    with warnings.catch_warnings():
        for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        warnings.filterwarnings("ignore", message="This pattern is interpreted as a regular expression, and has match")
        yield


_NAMES = {
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.string_view(): "string",
}


def type_name(data_type: pa.DataType) -> str:
    """Spark's name of an Arrow type in silver tables; Arrow's own name for others."""
    if pt.is_decimal(data_type):
        return f"decimal({data_type.precision},{data_type.scale})"
    if pt.is_timestamp(data_type):
        return "timestamp" if data_type.tz else "timestamp_ntz"
    return _NAMES.get(data_type, str(data_type))


def pandas_frame(table: pa.Table, columns: AbstractSet[str]) -> Any:
    """The evaluated columns as a pandas DataFrame of the same number of rows."""
    import pandas as pd  # noqa: PLC0415 - only where a suite runs

    return pd.DataFrame(
        {name: _series(table.column(name)) for name in table.column_names if name in columns},
        index=range(table.num_rows),
    )


def exact_series(values: pa.ChunkedArray) -> Any:
    """Values that pandas compares without loss: integers unchanged, decimals as Python's, the rest as above."""
    import pandas as pd  # noqa: PLC0415

    if pt.is_integer(values.type):
        return pd.Series(values.to_pylist(), dtype="Int64")
    return pd.Series(values.to_pylist(), dtype=object) if pt.is_decimal(values.type) else _series(values)


def _series(values: pa.ChunkedArray) -> Any:
    import pandas as pd  # noqa: PLC0415

    kind = values.type
    if pt.is_integer(kind) or pt.is_decimal(kind):
        return values.cast(pa.float64(), safe=False).to_pandas()
    if pt.is_floating(kind):
        doubles = values.cast(pa.float64())
        return pc.if_else(pc.is_nan(doubles), pa.scalar(float("inf")), doubles).to_pandas()
    if pt.is_timestamp(kind) or pt.is_date(kind):
        instants = values.cast(pa.timestamp("us"), safe=False).cast(pa.timestamp("us", tz="UTC"))
        return instants.to_pandas()
    return pd.Series(values.to_pylist(), dtype=object)


def ordered_frame(
    frame: DataFrame, columns: AbstractSet[str], worked_out: Mapping[str, Column] | None = None
) -> DataFrame:
    """The evaluated columns of a Spark DataFrame; timestamps without a zone are UTC, whatever the session's zone.

    `worked_out`: further columns, by name, computed from the original ones.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - a report needs no Spark

    def column_expression(name: str) -> Any:
        sql = quote_identifier(name)
        if frame.schema[name].dataType.simpleString() != "timestamp_ntz":
            return F.col(sql)
        parts = [f"{part}({sql})" for part in ("year", "month", "day", "hour", "minute")]
        return F.expr(f"make_timestamp({', '.join(parts)}, extract(SECOND FROM {sql}), 'UTC')").alias(name)

    further = [column.alias(name) for name, column in (worked_out or {}).items()]
    return frame.select(*(column_expression(name) for name in sorted(columns)), *further)


_SEVERITY = {"stop": "critical", "quarantine": "warning", "warn": "info"}


@dataclass(frozen=True, slots=True)
class RuleResult:
    """The result of a rule. `evaluated` counts all rows, including NULLs; for a table rule it is 1, and `observed` is
    the observed value. `broken`: why it could not be evaluated at all, `elsewhere`: why not here. `examples`: numbers
    of some failing rows.
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
        """Whether it was evaluated, here or elsewhere, without a failure here."""
        return not self.broken and not self.failed

    @property
    def fraction(self) -> float:
        """Failed of evaluated, 0 to 1; 0 for an empty table."""
        return self.failed / self.evaluated if self.evaluated else 0.0


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """The result of a suite on one table, rules in order. `raw` is Great Expectations' own JSON, without row values."""

    name: str
    rules: tuple[RuleResult, ...]
    raw: Mapping[str, Any]

    @property
    def success(self) -> bool:
        """Whether every rule was evaluated without a failure."""
        return all(rule.success for rule in self.rules)


def expectation(
    rule: RowRule, data_type: str | None, *, on: str = "spark", meta: Mapping[str, object] | None = None
) -> Any:
    """The rule as an expectation of Great Expectations, for a column of that Spark type (an `expression` has none).

    `on` is the engine, `spark` or `pandas`, whose regular expressions differ. `expression` and `type_castable` expect
    `true` in a column computed by Spark, named by `passing`. Raises `RuleDoesNotFit`, and `QualityEngineMissing` if
    Great Expectations is not installed.
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
    """The column with the result of a rule that only Spark can evaluate."""
    return f"passes {rule_name(rule)}"


def run_suite(
    frame: DataFrame | pa.Table,
    rules: Sequence[RowRule],
    name: str,
    *,
    written: Mapping[str, str] | None = None,
    examples: int = 0,
) -> SuiteResult:
    """Evaluate every rule on every row of `frame`. `written` maps rule names to their location (`shop.yaml:14`).

    An Arrow table is evaluated by pandas, without a JVM; a Spark DataFrame by Spark. A rule that does not fit its
    column is reported as broken, the others still run. `examples`: number of failing rows of an Arrow table to report
    for each rule.
    """
    places, arrow = written or {}, isinstance(frame, pa.Table)
    types = {f.name: type_name(f.type) for f in frame.schema} if isinstance(frame, pa.Table) else dict(frame.dtypes)
    built: dict[int, Any] = {}
    worked_out: dict[str, Column] = {}
    unjudged: dict[int, dict[str, str]] = {}
    with quiet():
        for index, rule in enumerate(rules):
            if isinstance(frame, pa.Table) and isinstance(rule, Expression | TypeCastable):
                unjudged[index] = {"elsewhere": "evaluated by apply"}
                continue
            try:
                if isinstance(rule, Expression | TypeCastable):
                    worked_out[passing(rule)] = _passes(cast("DataFrame", frame), rule, types)
                meta = {"index": index, "written": places.get(rule_name(rule), "")}
                of = None if isinstance(rule, Expression) else types.get(rule.column)
                built[index] = expectation(rule, of, on="pandas" if arrow else "spark", meta=meta)
            except QualityEngineMissing:
                raise
            except QualityError as problem:
                unjudged[index] = {"broken": problem.message}
        judged = {c for index in built for c in _columns(rules[index])}
        data = pandas_frame(frame, judged) if isinstance(frame, pa.Table) else ordered_frame(frame, judged, worked_out)
        asked = examples if arrow else 0
        raw = validate(data, list(built.values()), name, arrow=arrow, examples=asked) if built else {}
    results = {r["expectation_config"]["meta"]["index"]: r for r in raw.get("results", [])}
    example_rows = {index: tuple(result.pop("examples", ())) for index, result in results.items()}
    rule_results = tuple(
        replace(_result(rule, results.get(index), **unjudged.get(index, {})), examples=example_rows.get(index, ()))
        for index, rule in enumerate(rules)
    )
    return SuiteResult(name, rule_results, raw)


def _columns(rule: RowRule) -> tuple[str, ...]:
    """The columns of the data that its expectation reads unchanged."""
    return () if isinstance(rule, Expression | TypeCastable) else (rule.column,)


def _passes(frame: DataFrame, rule: Expression | TypeCastable, types: Mapping[str, str]) -> Column:
    """Whether a row passes, computed by Spark. Raises RuleDoesNotFit, RuleColumnMissing."""
    from pyspark.errors import AnalysisException, ParseException  # noqa: PLC0415 - a report needs no Spark

    if isinstance(rule, TypeCastable):
        check_rule(rule, types.get(rule.column))
        return ~fails(rule, types[rule.column])
    passes = ~holds_not(rule.expression)
    try:
        frame.select(passes)
    except (AnalysisException, ParseException) as cause:
        raise RuleDoesNotFit("Spark rejects the expression", where=f"rule {rule_name(rule)}") from cause
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
        broken=broken or evaluation_error(result),
        elsewhere=elsewhere,
    )


def _range(low: float | str | None, high: float | str | None, data_type: str, on: str) -> dict[str, Any]:
    convert = _SEEN[on]
    limits = bounds(low, high, data_type)
    if limits.nothing:
        return {"min_value": sys.float_info.max, "max_value": None}
    if limits.low is None and limits.high is None:  # both are beyond the type: everything passes
        return {"min_value": -sys.float_info.max, "max_value": None}
    return {
        "min_value": None if limits.low is None else convert(limits.low),
        "max_value": None if limits.high is None else convert(limits.high),
    }


def _on_spark(value: Constant) -> Constant:
    """A constant in the form of `ordered_frame`: timestamps in UTC."""
    return value.replace(tzinfo=dt.UTC) if isinstance(value, dt.datetime) and value.tzinfo is None else value


def _on_pandas(value: Constant) -> Constant:
    """A constant in the form of `pandas_frame`: numbers as doubles, timestamps and dates in UTC."""
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return dt.datetime(value.year, value.month, value.day, tzinfo=dt.UTC)
    return _on_spark(value)


_SEEN = {"spark": _on_spark, "pandas": _on_pandas}
