"""What a rule's constants become in a column's type, and what is refused before Spark sees it."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest
from pydantic import TypeAdapter

from cdc_lake.config.rules import Rule, rule_name
from cdc_lake.errors import RuleColumnMissing, RuleDoesNotFit
from cdc_lake.quality.rules import Bounds, bounds, check_rule, member

_RULE = TypeAdapter(Rule)


def rule(**fields: object) -> Rule:
    return _RULE.validate_python({"column": "c", **fields})


def test_a_rule_is_called_by_its_kind_and_column_unless_it_has_a_name() -> None:
    assert rule_name(rule(rule="not_null")) == "not_null_c"
    assert rule_name(rule(rule="not_null", name="customer_known")) == "customer_known"
    assert rule_name(_RULE.validate_python({"rule": "unique", "columns": ["a", "b"]})) == "unique_a_b"
    assert rule_name(_RULE.validate_python({"rule": "row_count", "min": 1})) == "row_count"


@pytest.mark.parametrize(
    ("low", "high", "data_type", "expected"),
    [
        (0.005, "10.019", "decimal(10,2)", Bounds(Decimal("0.01"), Decimal("10.01"))),
        ("-0.005", None, "decimal(10,2)", Bounds(Decimal("0.00"), None)),
        (0.5, 3.5, "int", Bounds(1, 3)),
        (1, 10**30, "int", Bounds(1, None)),
        (10**30, None, "bigint", Bounds(None, None, nothing=True)),
        (None, -129, "tinyint", Bounds(None, None, nothing=True)),
        ("1e2", None, "double", Bounds(100.0, None)),
        ("2026-01-31", None, "date", Bounds(dt.date(2026, 1, 31), None)),
        ("2026-01-31", None, "timestamp", Bounds(dt.datetime(2026, 1, 31, tzinfo=dt.UTC), None)),
        ("2026-01-31T03:00+03:00", None, "timestamp", Bounds(dt.datetime(2026, 1, 31, tzinfo=dt.UTC), None)),
        ("2026-01-31 01:02", None, "timestamp_ntz", Bounds(dt.datetime(2026, 1, 31, 1, 2), None)),  # noqa: DTZ001
    ],
)
def test_bounds_move_inwards_to_what_the_type_can_hold(
    low: float | str | None, high: float | str | None, data_type: str, expected: Bounds
) -> None:
    assert bounds(low, high, data_type) == expected


@pytest.mark.parametrize(
    ("value", "data_type", "expected"),
    [("7", "int", 7), (1.5, "decimal(4,2)", Decimal("1.50")), ("new", "string", "new"), (True, "boolean", True)],
)
def test_a_value_of_a_list_takes_the_columns_type(value: float | str, data_type: str, expected: object) -> None:
    assert member(value, data_type) == expected


@pytest.mark.parametrize(
    ("fields", "data_type"),
    [
        ({"rule": "between", "min": 1}, "string"),
        ({"rule": "between", "min": "one"}, "int"),
        ({"rule": "between", "min": "NaN"}, "double"),
        ({"rule": "between", "min": "1e999"}, "double"),
        ({"rule": "between"}, "int"),
        ({"rule": "between", "min": 2, "max": 1}, "int"),
        ({"rule": "between", "min": "31.01.2026"}, "date"),
        ({"rule": "between", "min": "2026-01-31T00:00Z"}, "timestamp_ntz"),
        ({"rule": "in_set", "values": [1.5]}, "int"),
        ({"rule": "in_set", "values": [300]}, "tinyint"),
        ({"rule": "in_set", "values": [1]}, "string"),
        ({"rule": "in_set", "values": ["yes"]}, "boolean"),
        ({"rule": "in_set", "values": ["a"]}, "binary"),
        ({"rule": "regex", "pattern": "a"}, "int"),
        ({"rule": "regex", "pattern": "[a"}, "string"),
        ({"rule": "type_castable", "type": "int"}, "int"),
        ({"rule": "regex", "pattern": "(?P<x>a)"}, "string"),
        ({"rule": "regex", "pattern": "[a&&b]"}, "string"),
        ({"rule": "regex", "pattern": r"a\Z"}, "string"),
        ({"rule": "regex", "pattern": "(?u)a"}, "string"),
        ({"rule": "length", "min": 3, "max": 2}, "string"),
        ({"rule": "length"}, "string"),
        ({"rule": "length", "min": 3}, "int"),
    ],
)
def test_a_rule_that_cannot_judge_its_column_is_refused_with_place_and_remedy(
    fields: dict[str, object], data_type: str
) -> None:
    with pytest.raises(RuleDoesNotFit) as caught:
        check_rule(rule(**fields), data_type)
    assert caught.value.where.startswith("rule ")
    assert "cdc-lake validate" in caught.value.remedy


def test_a_column_that_is_not_there_is_told() -> None:
    with pytest.raises(RuleColumnMissing, match="there is no column `gone`"):
        check_rule(rule(rule="not_null", column="gone"), None)
