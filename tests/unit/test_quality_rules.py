"""What a rule's constants become in a column's type, which patterns mean the same in Java and Python, and the catalogue of rules."""

from __future__ import annotations

import datetime as dt
import importlib
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pydantic import TypeAdapter

from cdc_lake.config.rules import (
    EXPECTATIONS,
    ROW_RULES,
    TABLE_RULES,
    Expectation,
    NotPortable,
    Rule,
    check_pattern,
    java,
    python,
    rule_name,
)
from cdc_lake.errors import RuleColumnMissing, RuleDoesNotFit
from cdc_lake.quality.great_expectations import engine, expectation
from cdc_lake.quality.rules import Bounds, bounds, check_rule, member
from cdc_lake.quality.table_rules import Referenced, instants
from cdc_lake.quality.table_suite import TableView, evaluate_with_engine
from tests.unit.test_quality_tables import NOW
from tools.docs.rules import CATALOGUE, Kind

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


TAKEN = [
    "^(n|x)", "(?i)NEW", r"^\w+$", "(?i:a)b", "(?-i:a)", "a++", "(?>a)b", r"\{a}", r"[\]]", "(?=a)b", "(?<!a)b", r"(a)\1",
    "(?i)(?s)a", "[a-z0-9._%+-]+", "^[^@ ]+@[^@ ]+$", "a{2}", "a{2,}b{0,3}", r"[\[{(]", r"\x41я", "[&|~-]",
]  # fmt: skip
REFUSED = {
    "(a": 1, "[a": 1, "a{,3}": 2, "a{": 2, "[[a]": 2, "[a[b]]": 3, "[a&&b]": 3, "[a||b]": 3, "[]a]": 2, "[^]a]": 3,
    r"a\Z": 2, r"a\z": 2, r"\bfoo": 1, r"a\B": 2, r"\v": 1, r"\p{L}": 1, r"\h": 1, r"\0": 1, r"\101": 1, r"(a)\10": 0,
    r"\N{DIGIT ONE}": 1, "(?m)a": 1, "(?m:a)": 1, "(?x)a": 1, "(?u)a": 0, "(?P<x>a)": 1, "(?<x>a)": 2, "(a)(?(1)b)": 4,
    "(?#x)a": 1, "a**": 3, "a{99999999999}": 0, "a{12345}": 2, "\\": 1,
}  # fmt: skip


@pytest.mark.parametrize("pattern", TAKEN)
def test_what_both_read_alike_is_taken(pattern: str) -> None:
    check_pattern(pattern)
    re.compile(python(pattern))


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_they_do_not_read_alike_is_refused_at_its_character(pattern: str) -> None:
    with pytest.raises(NotPortable) as caught:
        check_pattern(pattern)
    at = REFUSED[pattern]
    assert not at or str(caught.value).endswith(f", at character {at}")


def test_each_is_told_what_ends_a_line_and_what_a_letter_is() -> None:
    assert (python("(?i)^a"), python("^a")) == ("(?ai)^a", "(?a)^a")
    assert java("(?i)^a") == "(?d)(?i)^a"


def test_the_expectations_that_a_rule_may_name_are_those_that_are_installed() -> None:
    registry = importlib.import_module(f"{engine().__name__}.expectations.registry")
    installed = registry.list_registered_expectation_implementations()
    elsewhere = {one for one in installed if "query" in one or "other_table" in one or not one.startswith("expect_")}
    assert set(EXPECTATIONS) == set(installed) - elsewhere


TYPES = {"between": "decimal(10,2)"}


def example(kind: Kind) -> Any:
    return TypeAdapter(Rule).validate_python(yaml.safe_load(kind.example))


def test_every_kind_is_in_the_catalogue_once_and_its_example_is_one() -> None:
    assert [kind.rule for kind in CATALOGUE] == [*ROW_RULES, *TABLE_RULES]
    assert [type(example(kind)) for kind in CATALOGUE] == [kind.rule for kind in CATALOGUE]


@pytest.mark.parametrize("kind", [k for k in CATALOGUE if k.rule in ROW_RULES], ids=lambda k: k.rule.__name__)
def test_a_rule_of_rows_becomes_the_expectation_that_the_page_names(kind: Kind) -> None:
    rule = example(kind)
    made = expectation(rule, TYPES.get(rule.rule, "string"))
    assert made.expectation_type == kind.expectation


@pytest.mark.parametrize("kind", [k for k in CATALOGUE if k.rule in TABLE_RULES], ids=lambda k: k.rule.__name__)
def test_a_rule_of_tables_becomes_the_expectation_that_the_page_names(kind: Kind) -> None:
    rule = example(kind)
    if isinstance(rule, Expectation):
        assert kind.expectation == "its own"
        return
    times = instants(pa.chunked_array([pa.array([NOW, NOW])]))
    rows = pa.table(
        {"email": ["a", "b"], "customer_id": [1, 2], "id": [1, 2], "updated_at": times, "created_at": times}
    )
    raw = evaluate_with_engine(TableView(rows, NOW, lambda _: Referenced(None)), rule, "t")
    found = [result["expectation_config"]["type"] for result in raw.get("results", ())]
    assert found == ([kind.expectation] if kind.expectation else [])
