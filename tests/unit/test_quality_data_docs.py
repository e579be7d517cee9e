"""What a report leaves of Great Expectations loads into its own classes, and its Data Docs are rendered from it."""

from __future__ import annotations

import datetime as dt
import json
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import TypeAdapter

from cdc_lake.config.rules import Rule
from cdc_lake.quality.great_expectations import engine, quiet, run_suite
from cdc_lake.quality.table_rules import Referenced
from cdc_lake.quality.table_suite import TableView, judge_table

ROWS = pa.table({"a": [1, 2, None], "s": ["x", "secret", "y"]})
NOW = dt.datetime(2026, 1, 31, tzinfo=dt.UTC)
ROW_RULES: tuple[dict[str, Any], ...] = (
    {"rule": "not_null", "column": "a"},
    {"rule": "regex", "column": "s", "pattern": "^.$"},
    {"rule": "between", "column": "a", "min": 1},
)
TABLE_RULES: tuple[dict[str, Any], ...] = (
    {"rule": "unique", "columns": ["a"]},
    {"rule": "row_count", "min": 5},
    {"rule": "expectation", "expectation": "expect_column_mean_to_be_between", "arguments": {"column": "a"}, "name": "good"},
    {"rule": "expectation", "expectation": "expect_column_mean_to_be_between", "arguments": {"column": "gone"}, "name": "raises"},
)  # fmt: skip


def results() -> list[dict[str, Any]]:
    rule = TypeAdapter(Rule).validate_python
    rows = run_suite(ROWS, [rule(one) for one in ROW_RULES], "silver.t")
    view = TableView(ROWS, NOW, lambda _: Referenced(None))
    tables = judge_table(view, [rule(one) for one in TABLE_RULES], "silver.t.table")
    return [json.loads(json.dumps(one.raw)) for one in (rows, tables)]


def docs(result: Any, folder: Path) -> str:
    """The page of a result in a site of Data Docs."""
    from great_expectations.core.run_identifier import RunIdentifier  # noqa: PLC0415 - 2.5 s, in the tests that need it
    from great_expectations.data_context.types.resource_identifiers import (  # noqa: PLC0415
        ExpectationSuiteIdentifier,
        ValidationResultIdentifier,
    )

    context = engine().get_context(mode="ephemeral")
    store = {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder)}
    index = {"class_name": "DefaultSiteIndexBuilder"}
    context.add_data_docs_site(
        "local", {"class_name": "SiteBuilder", "site_index_builder": index, "store_backend": store}
    )
    suite, run = ExpectationSuiteIdentifier(name=result.suite_name), RunIdentifier(run_name="report")
    key = ValidationResultIdentifier(expectation_suite_identifier=suite, run_id=run, batch_identifier="silver")
    context.validation_results_store.set(key, result)
    context.build_data_docs(site_names=["local"])
    (page,) = (folder / "validations").rglob("*.html")
    return page.read_text(encoding="utf-8")


def test_data_docs_are_rendered_from_what_a_report_leaves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with quiet():
        from great_expectations.core.expectation_validation_result import (  # noqa: PLC0415
            ExpectationSuiteValidationResult,
            ExpectationSuiteValidationResultSchema,
        )

        pages = []
        for at, raw in enumerate(results()):
            loaded = ExpectationSuiteValidationResultSchema().load(raw)
            assert isinstance(loaded, ExpectationSuiteValidationResult)
            assert loaded.statistics == raw["statistics"]
            assert [one.success for one in loaded.results] == [one["success"] for one in raw["results"]]
            pages.append(docs(loaded, tmp_path / str(at)))
    failed = [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
    assert failed == [], "nothing is left out of the pages"
    assert "values must match this regular expression" in pages[0]
    assert "values must be unique" in pages[1]
    assert "MetricResolutionError" in pages[1], "why an expectation could not be evaluated, by its kind"
    assert "secret" not in "".join(pages)
