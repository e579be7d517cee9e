"""Events of OpenLineage of a real run: what tables have and where it comes from; a server that hangs holds nobody up."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.errors import RuleStopped
from tests.lineage_events import read

from .formats import drawn
from .test_apply_cases import Lake, insert

pytestmark = pytest.mark.spark
RULES = [
    {"rule": "not_null", "column": "amount", "on_fail": "stop"},
    {"rule": "between", "column": "amount", "max": 10, "on_fail": "warn"},
]
TABLE = {
    "rename": {"body": "words"}, "exclude": ["amount"], "compute": {"twice": "amount * 2"}, "where": "id > 0",
}  # fmt: skip


@drawn
def test_a_run_says_what_it_made_from_what_and_how_it_ended(spark: Any, lake_root: Path, fmt: str) -> None:
    observe = {"openlineage": {"to": f"lineage_{fmt}.jsonl"}, "textfile": f"lineage_{fmt}.prom"}
    lake = Lake(lake_root, spark, "lineage", fmt, RULES, table=TABLE, observe=observe)
    lake.land(insert("1", "1", "s3cret"), insert("2", "99"), insert("0", "1"))
    lake.advance()
    lake.land(insert("3", None))
    with pytest.raises(RuleStopped):
        lake.advance()

    text = (lake_root / f"lineage_{fmt}.jsonl").read_text()
    assert "s3cret" not in text
    started, done, again, failed = read(text.splitlines())
    assert [one["eventType"] for one in (started, done, again, failed)] == ["START", "COMPLETE", "START", "FAIL"]
    assert started["run"]["runId"] == done["run"]["runId"] != again["run"]["runId"] == failed["run"]["runId"]
    assert done["job"]["namespace"] == "cdc_lake"
    assert done["job"]["name"] == f"lineage_{fmt}.apply"
    assert failed["run"]["facets"]["errorMessage"]["message"].startswith("QUA")
    (source,), (silver,) = done["inputs"], done["outputs"]
    assert (source["namespace"], source["name"]) == ("postgres://h:5432", "d.public.t")
    place = lake_root / "lake" / ("" if fmt == "delta" else "warehouse") / f"lineage_{fmt}" / "t"
    assert (silver["namespace"], silver["name"]) == ("file", str(place))
    assert place.exists()
    fields = [(one["name"], one["type"]) for one in silver["facets"]["schema"]["fields"]]
    assert fields == [("id", "int"), ("words", "string"), ("twice", "int")]
    assert [(one["name"], one["type"]) for one in source["facets"]["schema"]["fields"]] == [
        ("id", "int4"), ("amount", "int4"), ("body", "text"),
    ]  # fmt: skip
    lineage = silver["facets"]["columnLineage"]
    assert {name: [one["field"] for one in to["inputFields"]] for name, to in lineage["fields"].items()} == {
        "id": ["id"], "words": ["body"], "twice": ["amount"],
    }  # fmt: skip
    assert [one["field"] for one in lineage["dataset"]] == ["id"]
    assert silver["outputFacets"]["outputStatistics"]["rowCount"] == 3
    assert silver["outputFacets"]["outputStatistics"]["fileCount"] >= 1
    judged = source["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert [(one["assertion"], one["success"], one["actual"], one["severity"]) for one in judged] == [
        ("not_null", True, "0", "error"), ("between", False, "1", "warn"),
    ]  # fmt: skip


def test_a_server_that_hangs_does_not_hold_apply_up(spark: Any, lake_root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:  # takes connections, and never answers
        to = {"to": f"http://127.0.0.1:{hanging.getsockname()[1]}", "timeout": "200 ms"}
        lake = Lake(lake_root, spark, "hangs", "delta", observe={"openlineage": to})
        lake.land(insert("1", "1"))
        lake.advance()
        assert [one["id"] for one in lake.rows()] == [1]
