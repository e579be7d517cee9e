"""Rules of tables in a report: over the rows that hold, at the last cut, with thresholds, and kept in `quality`."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.ops.html_pages import report
from cdc_lake.tables.control_schema import CutRow, StreamRow
from cdc_lake.tables.control_tables import ControlTables

NOW = dt.datetime(2026, 1, 31, 18, 5, tzinfo=dt.UTC)
RULES = [
    {"rule": "unique", "columns": ["mail"], "thresholds": {"warn": 0.4, "error": 0.5}},
    {"rule": "foreign_key", "columns": ["customer"], "references": "public.customers", "referenced": ["id"]},
    {"rule": "row_count", "min": 4, "max": 4},
    {"rule": "freshness", "column": "at", "max_age": "2 h"},
    {"rule": "unique", "columns": ["mails"]},
    {"rule": "expression", "expression": "customer > 0"},
    {"rule": "expectation", "expectation": "expect_column_mean_to_be_between", "arguments": {"column": "customer", "max_value": 9}},
]  # fmt: skip


def write(project: Project, name: str, rows: dict[str, Any], mode: Any = "overwrite") -> int:
    path = str(project.lake / "silver" / name)
    write_deltalake(path, pa.table(rows), mode=mode)
    return DeltaTable(path).version()


def cut(project: Project, position: int, **versions: int) -> None:
    entries = {
        f"public.{name}": {"table": f"silver.{name}", "format": "delta", "version": version, "position": position, "state": "active", "held": 0}
        for name, version in versions.items()
    }  # fmt: skip
    ControlTables(project.control, "os").record(CutRow(1, "pg:shop", position, NOW, json.dumps(entries), NOW))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    source = {"type": "postgres", "host": "127.0.0.1", "port": 1, "database": "d", "user": "u", "tables": ["public.*"]}
    tables = [{"from": "public.orders", "deletes": "soft", "rules": RULES}]
    sections = {"version": 1, "pipeline": "shop", "source": source, "silver": {"tables": tables}}
    made = Project(Pipeline.model_validate(sections), tmp_path / "shop.yaml", tmp_path)
    ControlTables(made.control, "os").record(StreamRow(1, "pg:shop", 0, "shop", "7", "shop", "lsn", NOW))
    rows = {
        "id": [1, 2, 3, 4, 5],
        "mail": ["a", "a", "b", None, "b"],
        "customer": [1, 2, 2, None, 9],
        "at": [NOW - dt.timedelta(hours=3)] * 5,
        "_is_deleted": [False, False, False, False, True],
    }
    orders = write(made, "orders", rows)
    customers = write(made, "customers", {"id": [1, 2]})
    cut(made, 100, orders=orders, customers=customers)
    write(made, "customers", {"id": [1]})  # a commit behind the cut: it is not looked at
    return made


def rules(project: Project, at: dt.datetime) -> dict[str, Any]:
    files = report(project, when=at)
    found = json.loads(files.json.read_text(encoding="utf-8"))
    assert found["suites"]["silver.orders.table"] == "gx/silver.orders.table.json"
    assert "2026-01-31T15:05" not in "".join(file.read_text(encoding="utf-8") for file in (*files.suites, files.html))
    return {rule["rule"]: rule for rule in found["rules"]}


def test_rules_of_tables_are_judged_over_the_rows_that_hold_at_the_last_cut(project: Project) -> None:
    found = rules(project, NOW)
    assert {name: rule["suite"] for name, rule in found.items()} == {
        "unique_mail": {"evaluated": 4, "failed": 2},  # of the deleted row nothing counts
        "foreign_key_customer": {"evaluated": 4, "failed": 0},
        "row_count": {"evaluated": 1, "failed": 0},
        "freshness_at": {"evaluated": 1, "failed": 1},
        "unique_mails": None,
        "expression": None,
        "expectation": {"evaluated": 1, "failed": 0},
    }
    assert {name: rule["observed"] for name, rule in found.items() if rule["observed"]} == {
        "row_count": "4 rows",
        "freshness_at": "3\u202fh old",
    }
    assert (found["unique_mail"]["level"], found["unique_mail"]["state"]) == ("error", "bad")
    assert (found["freshness_at"]["level"], found["freshness_at"]["state"]) == ("warn", "attention")
    assert found["unique_mails"]["broken"] == "there is no column `mails` in silver"
    assert (found["expression"]["suite_note"], found["expression"]["state"]) == ("evaluated by apply", "unknown")


def test_what_reports_found_is_kept_and_becomes_the_trend(project: Project) -> None:
    rules(project, NOW)
    write(project, "orders", {"id": [1], "mail": ["a"], "customer": [3], "at": [NOW], "_is_deleted": [False]})
    cut(project, 200, orders=1, customers=1)
    later = NOW + dt.timedelta(days=1)
    found = rules(project, later)
    assert found["unique_mail"]["past"] == [{"evaluated": 4, "failed": 2}, {"evaluated": 1, "failed": 0}]
    assert found["unique_mail"]["state"] == "good"
    assert found["foreign_key_customer"]["suite"] == {"evaluated": 1, "failed": 1}
    kept = ControlTables(project.control).read("quality").to_pylist()
    of_mail = sorted((row["judged_at"], row["failed"], row["level"]) for row in kept if row["rule"] == "unique_mail")
    assert of_mail == [(NOW, 2, "error"), (later, 0, "none")]
    assert {row["rule"] for row in kept if row["error"]} == {"unique_mails"}
    assert not any(row["rule"] == "expression" for row in kept)  # no report judged it


def test_a_reference_to_a_table_that_is_not_in_the_cut_is_not_judged(project: Project) -> None:
    cut(project, 300, orders=0)
    found = rules(project, NOW)["foreign_key_customer"]
    assert found["suite"] is None
    assert "silver.customers is not in the latest cut" in found["broken"]
