"""Rules of tables: our aggregate, Great Expectations and a plain Python count agree, and say what NULL means."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
from collections import Counter
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from pydantic import TypeAdapter

from cdc_lake.config.rules import Expectation, Rule, Thresholds, rule_name
from cdc_lake.errors import RuleColumnMissing, RuleDoesNotFit
from cdc_lake.quality.great_expectations import RuleResult
from cdc_lake.quality.table_rules import Referenced, level, tally
from cdc_lake.quality.table_suite import TableView, evaluate_with_engine, judge_table, run_expectation
from tests.seeds import one_seed

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
NOW = dt.datetime(2026, 1, 31, 18, 5, tzinfo=dt.UTC)
SECRET = "s3cret-row-value"
NAN = float("nan")
ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3, 4, 5, 6], pa.int64()),
        "big": pa.array([1 << 62, (1 << 62) + 1, 7, 7, None, None], pa.int64()),
        "code": [SECRET, "b", SECRET, SECRET, None, "B"],
        "part": pa.array([1, 1, 1, 2, 2, None], pa.int32()),
        "price": [Decimal("1.10"), Decimal("1.1"), None, Decimal("2.00"), Decimal("3.00"), Decimal("2.50")],
        "ratio": pa.array([0.0, -0.0, NAN, NAN, None, 1.5]),
        "raw": pa.array([b"a", b"a", None, b"", b"b", b"c"]),
        "at": pa.array([NOW - dt.timedelta(hours=h) if h is not None else None for h in (9, 7, None, 2, 2, 3)], pa.timestamp("us", tz="UTC")),
        "wall": pa.array([dt.datetime(2026, 1, 31, 16, 5)] * 6, pa.timestamp("us")),  # noqa: DTZ001
        "day": pa.array([dt.date(2026, 1, 31)] * 5 + [None]),
        "empty": pa.array([None] * 6, pa.timestamp("us", tz="UTC")),
        "tags": pa.array([["a"]] * 6),
    }
)  # fmt: skip
OTHERS = pa.table({"key": pa.array([7, 1 << 62, None], pa.int64()), "name": ["b", None, "x"], "n": pa.array([1, 1, 2], pa.int64())})  # fmt: skip

CASES: list[tuple[dict[str, object], int]] = [
    ({"rule": "unique", "columns": ["id"]}, 0),
    ({"rule": "unique", "columns": ["big"]}, 2),  # NULLs pass, and neighbours above 2^53 are two values
    ({"rule": "unique", "columns": ["code"]}, 3),
    ({"rule": "unique", "columns": ["code", "part"]}, 2),
    ({"rule": "unique", "columns": ["price"]}, 2),
    ({"rule": "unique", "columns": ["raw"]}, 2),
    ({"rule": "row_count", "min": 6, "max": 6}, 0),
    ({"rule": "row_count", "max": 5}, 1),
    ({"rule": "row_count", "min": 7}, 1),
    ({"rule": "freshness", "column": "at", "max_age": "2 h"}, 0),
    ({"rule": "freshness", "column": "at", "max_age": "119 min"}, 1),
    ({"rule": "freshness", "column": "wall", "max_age": "2 h"}, 0),
    ({"rule": "freshness", "column": "wall", "max_age": "7199999 ms"}, 1),
    ({"rule": "freshness", "column": "day", "max_age": "18 h"}, 1),
    ({"rule": "freshness", "column": "day", "max_age": "1 d"}, 0),
    ({"rule": "monotonic", "column": "at", "by": "id"}, 1),
    ({"rule": "monotonic", "column": "at", "by": "id", "strict": True}, 2),
    ({"rule": "monotonic", "column": "price", "by": "id"}, 1),
    ({"rule": "monotonic", "column": "id", "by": "at"}, 1),
    ({"rule": "monotonic", "column": "big", "by": "id", "strict": True}, 2),
]
ALONE: list[tuple[dict[str, object], int]] = [
    ({"rule": "unique", "columns": ["ratio"]}, 4),  # NaN is NaN, -0 is 0; pandas takes NaN for missing
    ({"rule": "freshness", "column": "empty", "max_age": "1 d"}, 1),
    ({"rule": "foreign_key", "columns": ["big"], "references": "public.o", "referenced": ["key"]}, 1),
    ({"rule": "foreign_key", "columns": ["code"], "references": "public.o", "referenced": ["name"]}, 4),
    ({"rule": "foreign_key", "columns": ["part", "code"], "references": "public.o", "referenced": ["n", "name"]}, 3),
]


def rule(**fields: object) -> Any:
    return TypeAdapter(Rule).validate_python(fields)


def view(rows: pa.Table, others: pa.Table | None = None, why: str = "") -> TableView:
    return TableView(rows, NOW, lambda _: Referenced(others, why))


def gx(found: dict[str, Any]) -> int:
    """What Great Expectations counted; 0 or 1 where it judges a table as a whole."""
    (result,) = found["results"]
    assert not result["exception_info"]["raised_exception"]
    return int(result["result"].get("unexpected_count", 0 if result["success"] else 1))


@pytest.mark.parametrize(("fields", "failed"), CASES, ids=[f"{c['rule']}-{at}" for at, (c, _) in enumerate(CASES)])
def test_our_aggregate_and_great_expectations_count_what_the_rule_says(fields: dict[str, object], failed: int) -> None:
    one = rule(**fields)
    assert tally(one, ROWS, NOW).failed == failed
    assert gx(evaluate_with_engine(view(ROWS), one, "t")) == failed


@pytest.mark.parametrize(("fields", "failed"), ALONE, ids=[f"{c['rule']}-{at}" for at, (c, _) in enumerate(ALONE)])
def test_what_great_expectations_cannot_say_is_counted_all_the_same(fields: dict[str, object], failed: int) -> None:
    assert tally(rule(**fields), ROWS, NOW, Referenced(OTHERS)).failed == failed


def test_three_ways_of_counting_agree_on_random_tables() -> None:
    seed = one_seed()
    print(f"CDC_LAKE_SEED={seed}")
    rng = random.Random(seed)
    many = 1_000_000 if BUDGET > 1 else 2_000
    a = [None if rng.random() < 0.1 else rng.randrange(many) for _ in range(many)]
    b = [rng.choice([None, "x", "y", "z"]) for _ in range(many)]
    by = rng.sample(range(many), many)
    at = [None if rng.random() < 0.05 else place * 10 + rng.randrange(12) for place in by]
    rows = pa.table({"a": pa.array(a, pa.int64()), "b": b, "by": by, "at": pa.array(at, pa.int64())})
    others = pa.table({"k": pa.array(rng.sample(range(many), many // 3), pa.int64())})

    pairs = [pair for pair in zip(a, b, strict=True) if None not in pair]
    times, a_times = Counter(pairs), Counter(v for v in a if v is not None)
    by_hand = {
        "unique_a": sum(n for n in a_times.values() if n > 1),
        "unique_a_b": sum(n for n in times.values() if n > 1),
        "row_count": 0,
        "monotonic_at": _down([v for _, v in sorted(zip(by, at, strict=True)) if v is not None]),
    }
    known = set(others["k"].to_pylist())
    orphans = sum(v is not None and v not in known for v in a)
    rules = [
        rule(rule="unique", columns=["a"]),
        rule(rule="unique", columns=["a", "b"]),
        rule(rule="row_count", min=many, max=many),
        rule(rule="monotonic", column="at", by="by"),
    ]
    assert {rule_name(one): tally(one, rows, NOW).failed for one in rules} == by_hand
    assert {rule_name(one): gx(evaluate_with_engine(view(rows), one, "t")) for one in rules} == by_hand
    refers = rule(rule="foreign_key", columns=["a"], references="public.o", referenced=["k"])
    assert tally(refers, rows, NOW, Referenced(others)).failed == orphans
    told = {rule_name(one): tally(one, rows, NOW, Referenced(others), many).examples for one in (*rules, refers)}
    assert told == {
        "unique_a": tuple(n for n, v in enumerate(a) if v is not None and a_times[v] > 1),
        "unique_a_b": tuple(n for n, pair in enumerate(zip(a, b, strict=True)) if None not in pair and times[pair] > 1),
        "row_count": (),
        "monotonic_at": tuple(n for before, after, n in _pairs_of(at, by) if after < before),
        "foreign_key_a": tuple(n for n, v in enumerate(a) if v is not None and v not in known),
    }
    assert all(tally(one, rows, NOW, Referenced(others), 3).examples == told[rule_name(one)][:3] for one in rules)


def _pairs_of(at: list[int | None], by: list[int]) -> list[tuple[int, int, int]]:
    """Each value beside the one before it in the order of `by`, and the number of its row."""
    ordered = [(at[n], n) for n in sorted(range(len(by)), key=by.__getitem__)]
    known = [(value, n) for value, n in ordered if value is not None]
    return [(before, after, n) for (before, _), (after, n) in pairwise(known)]


def _down(values: list[int]) -> int:
    return sum(after < before for before, after in pairwise(values))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rule": "unique", "columns": ["tags"]}, "cannot be compared"),
        ({"rule": "freshness", "column": "id", "max_age": "1 h"}, "does not contain times"),
        ({"rule": "monotonic", "column": "code", "by": "id"}, "is text"),
        ({"rule": "monotonic", "column": "id", "by": "tags"}, "cannot be ordered"),
        ({"rule": "foreign_key", "columns": ["id"], "references": "public.o", "referenced": ["name"]}, "of type"),
        ({"rule": "foreign_key", "columns": ["id"], "references": "public.o", "referenced": ["x"]}, "no column `x`"),
    ],
)
def test_a_rule_that_does_not_fit_its_table_is_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(RuleDoesNotFit, match=words):
        tally(rule(**fields), ROWS, NOW, Referenced(OTHERS))


def test_a_column_that_is_not_there_is_named() -> None:
    with pytest.raises(RuleColumnMissing, match="`gone`"):
        tally(rule(rule="unique", columns=["gone"]), ROWS, NOW)


def test_an_empty_table_is_unique_and_orderly_but_not_fresh() -> None:
    none = ROWS.slice(0, 0)
    rules = [rule(**fields) for fields, _ in CASES if fields["rule"] in {"unique", "monotonic", "freshness"}]
    judged = judge_table(view(none), rules, "t")
    assert {one.kind for one in judged.rules if one.failed} == {"freshness"}
    assert not any(one.broken for one in judged.rules)


def test_a_broken_rule_leaves_the_others_and_no_row_value_leaves_the_run() -> None:
    rules = [rule(**fields) for fields, _ in CASES]
    rules += [
        rule(rule="unique", columns=["gone"]),
        rule(rule="foreign_key", columns=["id"], references="public.o", referenced=["key"], name="lost"),
        rule(rule="expectation", expectation="expect_column_most_common_value_to_be_in_set", arguments={"column": "code", "value_set": ["b"]}, name="most"),
        rule(rule="expectation", expectation="expect_column_values_to_be_in_set", arguments={"column": "code", "value_set": ["b"]}, name="set"),
    ]  # fmt: skip
    judged = judge_table(view(ROWS, None, "silver.o could not be read"), rules, "t")
    found = {one.rule: one for one in judged.rules}
    assert found["unique_gone"].broken == "there is no column `gone` in silver"
    assert "silver.o could not be read" in found["lost"].broken
    assert (found["set"].evaluated, found["set"].failed, found["set"].observed) == (1, 1, "4 of 6 values")
    assert SECRET not in json.dumps(judged.raw)
    assert SECRET not in repr(judged.rules)
    assert judged.raw["statistics"]["evaluated_expectations"] == len(judged.raw["results"]) == len(CASES) + 2


def test_any_expectation_can_be_named_and_is_met_or_not() -> None:
    def met(name: str, **arguments: object) -> RuleResult:
        one = Expectation.model_validate({"rule": "expectation", "expectation": name, "arguments": arguments})
        (result,) = judge_table(view(ROWS), [one], "t").rules
        return result

    assert met("expect_column_mean_to_be_between", column="id", min_value=3, max_value=4).failed == 0
    assert met("expect_column_mean_to_be_between", column="id", min_value=4).failed == 1
    assert met("expect_column_values_to_not_be_null", column="code", mostly=0.5).failed == 0
    assert met("expect_column_values_to_not_be_null", column="code").failed == 1
    assert met("expect_table_columns_to_match_ordered_list", column_list=ROWS.column_names).failed == 0
    assert met("expect_column_pair_values_a_to_be_greater_than_b", column_A="id", column_B="part").failed == 1
    assert "does not accept these arguments: `column` " in met("expect_column_mean_to_be_between", colum="id").broken
    assert met("expect_column_mean_to_be_between", column="gone").broken.startswith("the expectation could not be")


def test_an_expectation_that_this_version_lacks_is_named() -> None:
    with pytest.raises(RuleDoesNotFit, match="has no `expect_peace`"):
        run_expectation(ROWS, Expectation(rule="expectation", expectation="expect_peace"), "t")


@pytest.mark.parametrize(
    ("failed", "worst"), [(0, "none"), (9, "none"), (10, "warn"), (49, "warn"), (50, "error"), (200, "critical")]
)
def test_a_threshold_is_reached_at_its_share(failed: int, worst: str) -> None:
    thresholds = Thresholds(warn=0.01, error=0.05, critical=0.2)
    assert level(thresholds, 1000, failed) == worst


def test_without_thresholds_any_failure_is_of_concern_and_with_some_only_those() -> None:
    assert level(None, 1000, 1) == "warn"
    assert level(Thresholds(critical=0.5), 1000, 499) == "none"
    assert level(Thresholds(critical=0.5), 1, 1) == "critical"
    assert level(Thresholds(warn=0.5), 0, 0) == "none"
