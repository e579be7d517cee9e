"""The catalogue says of every kind of rule what the code does."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import yaml
from pydantic import TypeAdapter

from cdc_lake.config.rules import ROW_RULES, TABLE_RULES, Expectation, Rule
from cdc_lake.quality.great_expectations import expectation
from cdc_lake.quality.table_rules import Referenced, instants
from cdc_lake.quality.table_suite import TableView, evaluate_with_engine
from tests.unit.test_quality_tables import NOW
from tools.docs.rules import CATALOGUE, Kind

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
