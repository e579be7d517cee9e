"""Evaluates table rules for a report: by an aggregate of our own and, if there is one, by an expectation.

The counts of a report are the aggregate's; Great Expectations' results are included beside them, and a test asserts
that they are equal. An `expectation` by name is evaluated only by Great Expectations. No row value leaves the run.
"""

from __future__ import annotations

import datetime as dt
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import pyarrow as pa

from cdc_lake.config.rules import (
    Expectation,
    ForeignKey,
    Freshness,
    Monotonic,
    RowCount,
    TableRule,
    Unique,
    named_columns,
    rule_name,
)
from cdc_lake.errors import QualityEngineMissing, QualityError, RuleDoesNotFit
from cdc_lake.quality import great_expectations
from cdc_lake.quality.table_rules import BuiltIn, Referenced, Tally, in_order, instants, tally


@dataclass(frozen=True, slots=True)
class TableView:
    """A silver table for rules of tables. `current_time`: for ages; `referenced`: rows of a `foreign_key`'s table."""

    rows: pa.Table
    current_time: dt.datetime
    referenced: Callable[[ForeignKey], Referenced]


def judge_table(
    view: TableView, rules: Sequence[TableRule], name: str, *, with_engine: bool = True, examples: int = 0
) -> great_expectations.SuiteResult:
    """Evaluate every rule on a table; one that does not fit is reported as broken, the others are still evaluated.

    `with_engine`: whether Great Expectations also evaluates what an aggregate does; `examples`: number of failing rows
    to report for each rule.
    """
    results, raws = [], []
    for rule in rules:
        try:
            result, raw = _judge(view, rule, name, with_engine=with_engine, examples=examples)
        except QualityError as problem:
            result, raw = _rule_result(rule, Tally(0, 0), broken=problem.message), {}
        results.append(result)
        raws += [raw] if raw else []
    return great_expectations.SuiteResult(name, tuple(results), _combine_results(raws))


def _judge(
    view: TableView, rule: TableRule, name: str, *, with_engine: bool, examples: int
) -> tuple[great_expectations.RuleResult, dict[str, Any]]:
    if isinstance(rule, Expectation):
        raw = run_expectation(view.rows, rule, name)
        (result,) = raw["results"]
        return _rule_result(rule, _tally_of_result(result), broken=great_expectations.evaluation_error(result)), raw
    referenced = view.referenced(rule) if isinstance(rule, ForeignKey) else None
    outcome = tally(rule, view.rows, view.current_time, referenced, examples)
    if not with_engine:
        return _rule_result(rule, outcome), {}
    try:
        raw = evaluate_with_engine(view, rule, name)
    except QualityEngineMissing:
        raw = {}  # rules evaluated here need no Great Expectations
    return _rule_result(rule, outcome), raw


def evaluate_with_engine(view: TableView, rule: BuiltIn, name: str) -> dict[str, Any]:
    """The rule evaluated by Great Expectations: its JSON, empty without such an expectation or without data.

    Raises QualityEngineMissing.
    """
    import pandas as pd  # noqa: PLC0415 - only where a suite runs

    with great_expectations.quiet():
        gxe, meta = great_expectations.engine().expectations, {"meta": {"rule": rule_name(rule)}}
        match rule:
            case Unique(columns=columns):
                data = pd.DataFrame({c: great_expectations.exact_series(view.rows.column(c)) for c in columns})
                expectation = _unique(gxe, columns, meta)
            case ForeignKey():
                return {}
            case RowCount(min=low, max=high):
                data = pd.DataFrame(index=range(view.rows.num_rows))
                expectation = gxe.ExpectTableRowCountToBeBetween(min_value=low, max_value=high, **meta)
            case Freshness(column=column, max_age=age):
                values = instants(view.rows.column(column)).drop_null()
                if not len(values):
                    return {}  # without values it reports neither
                data = pd.DataFrame({column: values.to_pandas()})
                oldest = view.current_time - dt.timedelta(milliseconds=age)
                expectation = gxe.ExpectColumnMaxToBeBetween(column=column, min_value=oldest, **meta)
            case Monotonic(column=column, by=by, strict=strict):
                data = pd.DataFrame(
                    {column: great_expectations.exact_series(pa.chunked_array([in_order(view.rows, column, by)]))}
                )
                expectation = gxe.ExpectColumnValuesToBeIncreasing(column=column, strictly=strict, **meta)
            case _:
                assert_never(rule)
        return great_expectations.validate(data, [expectation], name, arrow=True)


def _unique(gxe: Any, columns: Sequence[str], meta: Mapping[str, Any]) -> Any:
    if len(columns) == 1:
        return gxe.ExpectColumnValuesToBeUnique(column=columns[0], **meta)
    return gxe.ExpectCompoundColumnsToBeUnique(column_list=list(columns), ignore_row_if="any_value_is_missing", **meta)


def run_expectation(rows: pa.Table, rule: Expectation, name: str) -> dict[str, Any]:
    """Evaluate an expectation by name over all columns with Great Expectations; its JSON.

    Raises RuleDoesNotFit, QualityEngineMissing.
    """
    expectation = build_expectation(rule)
    with great_expectations.quiet():
        return great_expectations.validate(
            great_expectations.pandas_frame(rows, set(rows.column_names)), [expectation], name, arrow=True
        )


def build_expectation(rule: Expectation) -> Any:
    """The expectation that a rule names, with its arguments.

    Raises RuleDoesNotFit if the name or the arguments are unknown; QualityEngineMissing.
    """
    where = f"rule {rule_name(rule)}"
    with great_expectations.quiet():
        registry = importlib.import_module(f"{great_expectations.engine().__name__}.expectations.registry")
        if rule.expectation not in registry.list_registered_expectation_implementations():
            raise RuleDoesNotFit(f"this Great Expectations has no `{rule.expectation}`", where=where)
        try:
            return registry.get_expectation_impl(rule.expectation)(**rule.arguments, meta={"rule": rule_name(rule)})
        except (TypeError, ValueError) as cause:
            text = f"`{rule.expectation}` does not accept these arguments{_complaints(cause)}"
            raise RuleDoesNotFit(text, where=where) from cause


def _complaints(cause: Exception) -> str:
    """The engine's validation errors, by argument."""
    errors = getattr(cause, "errors", None)
    if not callable(errors):
        return ""
    return ": " + "; ".join(f"`{'.'.join(map(str, error['loc']))}` {error['msg']}" for error in errors())


def _tally_of_result(result: Mapping[str, Any]) -> Tally:
    """Whether an expectation is met; if it counted values, how many were unexpected."""
    counts = result["result"]
    observed = ""
    if counts.get("element_count") is not None and counts.get("unexpected_count") is not None:
        observed = f"{counts['unexpected_count']} of {counts['element_count']} values"
    return Tally(1, 0 if result["success"] else 1, observed)


def _rule_result(rule: TableRule, outcome: Tally, *, broken: str = "") -> great_expectations.RuleResult:
    if broken:
        outcome = Tally(0, 0)
    return great_expectations.RuleResult(
        rule=rule_name(rule),
        kind=rule.rule,
        column=", ".join(named_columns(rule)),
        on_fail=rule.on_fail,
        evaluated=outcome.evaluated,
        failed=outcome.failed,
        broken=broken,
        observed=outcome.observed,
        examples=outcome.examples,
    )


def _combine_results(raws: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The results of single expectations combined into one, in the form of Great Expectations."""
    if not raws:
        return {}
    results = [result for raw in raws for result in raw["results"]]
    good = sum(bool(result["success"]) for result in results)
    statistics = {
        "evaluated_expectations": len(results),
        "successful_expectations": good,
        "unsuccessful_expectations": len(results) - good,
        "success_percent": 100 * good / len(results),
    }
    return {**raws[0], "results": results, "success": good == len(results), "statistics": statistics}
