"""Suites without a JVM: broken rules are not bad data, no value leaves the run, nothing is left behind."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import TypeAdapter

from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.config.rules import Rule
from cdc_lake.errors import SilverMissing
from cdc_lake.model.relation import TableName
from cdc_lake.quality.great_expectations import run_suite
from cdc_lake.tables.catalog import catalog_address, open_catalog
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.silver_table import column_names

SECRET = "s3cret-row-value"
TABLE = pa.table({"n": pa.array([1, 200, None]), "t": pa.array(["new", SECRET, None])})


def rules(*fields: dict[str, object]) -> list[Rule]:
    return [TypeAdapter(Rule).validate_python(one) for one in fields]


def test_two_rules_of_the_same_content_are_both_judged() -> None:
    found = run_suite(
        TABLE,
        rules(
            {"rule": "between", "column": "n", "max": 100, "name": "a", "on_fail": "stop"},
            {"rule": "between", "column": "n", "max": 100, "name": "b", "on_fail": "stop"},
        ),
        "t",
        written={"a": "shop.yaml:3"},
    )
    assert [(r.rule, r.failed, r.evaluated, r.success) for r in found.rules] == [("a", 1, 3, False), ("b", 1, 3, False)]
    configs = {r["expectation_config"]["meta"]["rule"]: r["expectation_config"] for r in found.raw["results"]}
    assert configs["a"]["severity"] == "critical"
    assert configs["a"]["meta"]["written"] == "shop.yaml:3"


def test_a_rule_that_does_not_fit_is_broken_and_the_others_still_run() -> None:
    found = run_suite(TABLE, rules({"rule": "not_null", "column": "x"}, {"rule": "not_null", "column": "n"}), "t")
    broken, judged = found.rules
    assert (broken.broken, broken.failed, broken.success) == ("there is no column `x`", 0, False)
    assert (judged.broken, judged.failed) == ("", 1)


def test_an_expectation_that_raises_is_a_broken_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    # A type that the check lets through and the engine cannot compare: dates shown as what they are not.
    monkeypatch.setattr("cdc_lake.quality.great_expectations.type_name", lambda _: "int")
    found = run_suite(TABLE, rules({"rule": "between", "column": "t", "max": 100}), "t")
    assert found.rules[0].failed == 0
    assert found.rules[0].broken.startswith("the expectation could not be evaluated (")
    assert SECRET not in json.dumps(found.raw)
    assert not found.success


def test_no_row_value_is_in_the_result_and_nothing_is_left_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = run_suite(TABLE, rules({"rule": "in_set", "column": "t", "values": ["new"]}), "t")
    assert found.rules[0].failed == 1
    assert SECRET not in json.dumps(found.raw)
    assert list(tmp_path.iterdir()) == []


def test_rows_that_fail_are_told_by_their_numbers_where_that_is_asked_for() -> None:
    kinds = rules({"rule": "not_null", "column": "t"}, {"rule": "in_set", "column": "t", "values": ["new"]})
    found, without = run_suite(TABLE, kinds, "t", examples=1), run_suite(TABLE, kinds, "t")
    texts = TABLE["t"].to_pylist()
    assert [one.examples for one in found.rules] == [(texts.index(None),), (texts.index(SECRET),)]
    assert [one.examples for one in without.rules] == [(), ()]
    for with_, plain in zip(found.raw["results"], without.raw["results"], strict=True):
        assert (with_.keys(), with_["result"]) == (plain.keys(), plain["result"])


def test_an_empty_table_fails_nothing() -> None:
    found = run_suite(TABLE.slice(0, 0), rules({"rule": "not_null", "column": "n"}), "t")
    assert (found.success, found.rules[0].evaluated, found.rules[0].fraction) == (True, 0, 0.0)


def test_an_iceberg_table_is_counted_and_judged_without_a_jvm(tmp_path: Path) -> None:
    pipeline = Pipeline.model_validate(
        {
            "version": 1,
            "pipeline": "shop",
            "source": {"type": "postgres", "host": "db", "database": "shop", "user": "cdc", "tables": ["public.*"]},
            "silver": {"defaults": {"format": "iceberg"}},
        }
    )
    project = Project(pipeline, tmp_path / "shop.yaml", tmp_path)
    project.lake.mkdir()
    target = project.target(TableName("public", "t"))
    catalog = open_catalog(catalog_address(project))
    catalog.create_namespace("silver")
    catalog.create_table(("silver", "t"), TABLE.schema).append(TABLE)
    assert column_names(table_log(project, target)) == ("n", "t")
    assert table_log(project, target).count_rows() == 3
    found = run_suite(table_log(project, target).read(columns=["t"]), rules({"rule": "not_null", "column": "t"}), "t")
    assert found.rules[0].failed == 1
    gone = table_log(project, project.target(TableName("public", "gone")))
    assert not gone.exists()
    with pytest.raises(SilverMissing):
        gone.count_rows()
