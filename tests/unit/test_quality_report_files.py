"""`report` over real Delta tables: what the gate counted, what silver holds now, what waits; and no row value."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Origin, Project
from cdc_lake.control.verdicts import Comparison, DifferingKey, KeyChange, TableComparison
from cdc_lake.control.verdicts import Verdict as Compared
from cdc_lake.errors import ReportNotWritten
from cdc_lake.ops.html_pages import ReportFiles, report
from cdc_lake.ops.report_data import Evidence
from cdc_lake.ops.status import Lag, TableStatus, status
from cdc_lake.tables.control_schema import CutRow, RunRow, StreamRow
from cdc_lake.tables.control_tables import ControlTables

NOW = dt.datetime(2026, 1, 31, 18, 5, tzinfo=dt.UTC)
SECRET = "s3cret-row-value"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    pipeline = Pipeline.model_validate(
        {
            "version": 1,
            "pipeline": "shop",
            "source": {
                "type": "postgres",
                "host": "127.0.0.1",
                "port": 1,
                "database": "shop",
                "user": "cdc",
                "tables": ["public.*"],
            },
            "silver": {
                "tables": [
                    {
                        "from": "public.orders",
                        "rules": [
                            {"rule": "between", "column": "amount", "max": 100, "on_fail": "quarantine"},
                            {"rule": "in_set", "column": "status", "values": ["new"]},
                            {"rule": "not_null", "column": "gone"},
                        ],
                    }
                ]
            },
        }
    )
    place = {"silver.tables[0].rules[0]": Origin("pipelines/shop.yaml", 14, 11)}
    return Project(pipeline, tmp_path / "shop.yaml", tmp_path, origins=place)


def landed(project: Project) -> None:
    """One silver table, one cut, two runs, one held key with a change waiting behind it."""
    rows = {"id": [1, 2, 3], "amount": [Decimal("1.00"), None, Decimal("7.50")], "status": ["new", SECRET, None]}
    write_deltalake(str(project.lake / "silver" / "orders"), pa.table(rows))
    control = ControlTables(project.control, "os")
    control.record(StreamRow(1, "pg:shop", 0, "shop", "7", "shop", "lsn", NOW))
    entry = {
        "table": "silver.orders",
        "format": "delta",
        "version": 0,
        "position": 0x16B3748,
        "state": "active",
        "held": 1,
    }
    control.record(CutRow(1, "pg:shop", 0x16B3748, NOW, json.dumps({"public.orders": entry}), NOW))
    for at, failed in enumerate((0, 2)):
        rules = [
            {
                "table": "silver.orders",
                "rule": "between_amount",
                "on_fail": "quarantine",
                "evaluated": 10,
                "failed": failed,
            }
        ]
        facts = {"rules": rules, "transactions": 3, "changes": 10, "upto": 0x16B3748}
        began = NOW + dt.timedelta(hours=at)
        control.record(RunRow(f"r{at}", "run", began, None, "running", "{}"))
        control.record(RunRow(f"r{at}", "run", began, began + dt.timedelta(seconds=4), "done", json.dumps(facts)))
    quarantined = {
        "stream": "pg:shop", "epoch": 1, "position": 50, "generation": 1, "relation": "public.orders", "table": "silver.orders",
        "op": "U", "from_key": ["9"], "key": ["9"], "layout": 1, "new": ["9", SECRET], "old": None, "old_kind": None,
        "unchanged": None, "span_upto": 60, "recorded_at": NOW,
    }  # fmt: skip
    control.append(
        "quarantine",
        [
            {**quarantined, "ordinal": 1, "reason": "failed", "rules": ["between_amount"]},
            {**quarantined, "ordinal": 2, "reason": "waiting", "rules": None},
        ],
    )


def all_text(files: ReportFiles) -> str:
    return "".join(file.read_text(encoding="utf-8") for file in (files.html, files.json, *files.suites))


def test_the_report_tells_gate_suite_holds_and_runs_without_a_row_value(project: Project) -> None:
    landed(project)
    files = report(project, when=NOW)
    found = json.loads(files.json.read_text(encoding="utf-8"))

    assert len(found["notes"]) == 1
    assert found["notes"][0].startswith("The source could not be queried")
    (table,) = found["tables"]
    assert (table["name"], table["rows"], table["state"], table["watermark"], table["quarantined"]) == (
        "silver.orders", 3, "pending", "0/16B3748", 2,
    )  # fmt: skip
    between, in_set, gone = found["rules"]
    assert between["history"] == [{"evaluated": 10, "failed": 0}, {"evaluated": 10, "failed": 2}]
    assert between["suite"] == {"evaluated": 3, "failed": 0}
    assert between["past"] == [{"evaluated": 3, "failed": 0}]
    assert between["written"] == "pipelines/shop.yaml:14"
    assert in_set["suite"] == {"evaluated": 3, "failed": 1}
    assert gone["broken"] == "there is no column `gone`"
    (group,) = found["quarantined"]
    assert (group["changes"], group["keys"], group["reason"]) == (2, 1, "amount is above 100")
    assert [run["outcome"] for run in found["runs"]] == ["done", "done"]
    assert [file.name for file in files.suites] == ["silver.orders.json"]
    assert json.loads(files.suites[0].read_text(encoding="utf-8"))["statistics"]["evaluated_expectations"] == 2
    assert SECRET not in all_text(files)


def test_states_reasons_and_lags_are_those_of_status(project: Project) -> None:
    landed(project)
    known = status(project, checked_at=NOW)
    table = TableStatus("public.orders", "silver.orders", "delta", "quarantined", "2 changes wait", "0/16B3748", 0, 2)
    known = replace(known, reachable=True, tables=(table,), applied=Lag(4096, 1.5, 7))
    data = Evidence(project, ControlTables(project.control), known).collect()
    assert [(t.state, t.reason, t.watermark, t.watermark_at) for t in data.tables] == [
        ("quarantined", "2 changes wait", "0/16B3748", NOW)
    ]
    assert [(lag.stage, lag.seconds, lag.bytes, lag.transactions) for lag in data.lags][-1] == ("applied", 1.5, 4096, 7)
    assert data.notes == ()


def test_a_report_before_the_first_run_is_a_report(project: Project) -> None:
    found = json.loads(report(project, when=NOW).json.read_text(encoding="utf-8"))
    assert found["tables"][0]["state"] == "pending"
    assert {rule["state"] for rule in found["rules"]} == {"unknown"}


def test_the_last_comparison_is_the_verdict_and_a_torn_one_is_a_note(project: Project) -> None:
    table = TableComparison("public.orders", "silver.orders", Compared.EQUAL_BUT_QUARANTINED, quarantined_keys=2)
    Comparison("shop", NOW, "0/5F", (table,), 1.0).write(project.reports)
    found = json.loads(report(project, when=NOW).json.read_text(encoding="utf-8"))
    assert found["headline"]["text"] == "Silver equals the source, but for 2 quarantined keys"

    (project.reports / "compare.json").write_text('{"tables": [')
    found = json.loads(report(project, when=NOW).json.read_text(encoding="utf-8"))
    assert found["verdict"] is None
    assert any("comparison could not be read" in note for note in found["notes"])


def test_what_differs_is_in_the_report_and_its_keys_and_values_only_where_they_were_asked_for(project: Project) -> None:
    changes = (KeyChange("0/5A", "S"), KeyChange("0/5E", "U", "2026-01-01T00:00:00.000+00:00"))
    row = {"id": "key-7", "amount": "<b>1</b>", "note": None}
    key = DifferingKey("changed", ("key-7", None), ("amount", "note"), changes, 5, row, {**row, "note": "silver's"})
    gone = DifferingKey("missing", ("key-8", "x"), source=row)
    secret = ("key-7", "key-8", "&lt;b&gt;1", "silver&#39;s")
    for values in (False, True):
        told = [one if values else replace(one, source=None, silver=None) for one in (key, gone)]
        table = TableComparison("public.orders", "silver.orders", Compared.DIFFERENT, differing=tuple(told))
        Comparison("shop", NOW, "0/5F", (table,), 1.0, values).write(project.reports)
        files = report(project, when=NOW)
        page, found = files.html.read_text(encoding="utf-8"), json.loads(files.json.read_text(encoding="utf-8"))
        assert [text in page for text in secret] == [values] * 4
        assert "<b>1</b>" not in page
        assert ("This page holds no row values" in page) is not values
        assert "What differs" in page
        assert "0/5E</span> update" in page
        assert "and 2 earlier changes" in page
        first, second = found["verdict"]["differing"]
        assert [name for name, *_ in first["columns"]] == ["amount", "note"]
        assert first["columns"][1][1:] == (["NULL", "silver's"] if values else ["", ""])
        assert len(second["columns"]) == (3 if values else 0)


def test_a_folder_that_cannot_be_written_is_named(project: Project) -> None:
    project.reports.parent.mkdir(parents=True)
    project.reports.write_text("a file in the way")
    with pytest.raises(ReportNotWritten) as caught:
        report(project, when=NOW)
    assert caught.value.where == str(project.reports)
