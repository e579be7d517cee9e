"""One validation run of Great Expectations, in a context that lives in memory; its JSON without a value of a row.

Great Expectations (1.24) takes seconds to import, so it is imported when a run is made.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from cdc_lake.errors import QualityEngineMissing

# Counts without the sample of failing values that every format but BOOLEAN_ONLY carries otherwise.
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
"""Expectations whose observed value is a number of rows or columns. Of others it may be a value of a row."""


def validate(data: Any, expectations: Sequence[Any], name: str, *, arrow: bool, examples: int = 0) -> dict[str, Any]:
    """Run a suite over a pandas (`arrow`) or Spark DataFrame. Raises QualityEngineMissing.

    With `examples` each result has beside its `result` the numbers of at most so many rows that are not as expected,
    of pandas alone; who asks for them takes them out again.
    """
    gx = engine()
    context = gx.get_context(mode="ephemeral")
    context.enable_analytics(enable=False)
    bars = sys.modules["great_expectations.data_context.types.base"].ProgressBarsConfig
    context.variables.progress_bars = bars(globally=False, metric_calculations=False)
    # persist would cache the frame in Spark: slower for one pass, and in the way of a MERGE of the same frame.
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
        result["exception_info"] = _scrubbed(result["exception_info"])
        keep = _COUNTS
        if result["expectation_config"]["type"].startswith(_OF_THE_TABLE):
            keep = keep | {"observed_value"}
        result["result"] = {key: value for key, value in result["result"].items() if key in keep}
    return raw


def _scrubbed(info: Mapping[str, Any]) -> dict[str, Any]:
    """Exceptions by their kind: messages and traces may quote a row. The info has two shapes, flat and by metric; what
    comes out is flat, with the keys that Great Expectations reads.
    """
    entries = [info] if "raised_exception" in info else list(info.values())
    raised = [e for e in entries if e["raised_exception"]]
    kinds = [str(e["exception_traceback"] or "").strip().splitlines() for e in raised]
    kind = next((lines[-1].split(":", 1)[0].rsplit(".", 1)[-1] for lines in kinds if lines), "unknown")
    return {
        "raised_exception": bool(raised),
        "exception_message": kind if raised else None,
        "exception_traceback": "left out: it may quote a row" if raised else None,
    }


def raised(result: Mapping[str, Any] | None) -> str:
    """Why an expectation could not be evaluated; empty where it was, or where there is none."""
    if result is None or not result["exception_info"]["raised_exception"]:
        return ""
    return f"the expectation could not be evaluated ({result['exception_info']['exception_message']})"


def engine() -> Any:
    """Great Expectations. Raises QualityEngineMissing where it is not installed."""
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
    """The engine's own deprecations, and pandas' remark on groups in a pattern, are nobody's concern here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", message="This pattern is interpreted as a regular expression, and has match")
        yield
