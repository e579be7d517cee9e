"""Rows that break a rule, named by their keys in a report: only where the pipeline asks for it, and from no other place."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.model.change import Insert, Transaction
from cdc_lake.model.relation import Relation, ReplicaIdentity
from cdc_lake.ops.html_pages import ReportFiles, report
from cdc_lake.tables.control_schema import CutRow, StreamRow
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake_testing.messages import boundaries, raw_transaction, table

NOW = dt.datetime(2026, 1, 31, 18, 5, tzinfo=dt.UTC)
ORDERS = table("public.orders", key=["region", "id"], id="int8", region="text", mail="text", customer="int8")
BARE = table(
    "public.orders", key=[], identity=ReplicaIdentity.FULL, id="int8", region="text", mail="text", customer="int8"
)
RULES = [
    {"rule": "not_null", "column": "mail"},
    {"rule": "in_set", "column": "mail", "values": ["a", "b"]},
    {"rule": "unique", "columns": ["mail"]},
    {"rule": "foreign_key", "columns": ["customer"], "references": "public.orders", "referenced": ["number"]},
    {"rule": "between", "column": "customer", "max": 100},
    {"rule": "row_count", "min": 9},
]
ROWS = {
    "number": [1, 2, 3, 4],
    "region": ["eu, north", "<b>us</b>", None, "eu"],
    "mail": ["a", None, "a", "secret"],
    "customer": [1, 2, 77, 3],
}


def written(root: Path, relation: Relation, **quality: int) -> ReportFiles:
    """The report of a table whose silver calls `id` `number`."""
    source = {"type": "postgres", "host": "127.0.0.1", "port": 1, "database": "d", "user": "u", "tables": ["public.*"]}
    tables = [{"from": "public.orders", "rename": {"id": "number"}, "rules": RULES}]
    sections: dict[str, Any] = {"version": 1, "pipeline": "shop", "source": source, "silver": {"tables": tables}}
    project = Project(Pipeline.model_validate(sections | {"quality": quality}), root / "shop.yaml", root)
    bronze = DeltaBronze(project.bronze, durability="os")
    bronze.begin_stream("pg:shop", 0)
    insert = Insert(relation, ("1", "eu, north", "a", "1"))
    bronze.append([raw_transaction(Transaction(boundaries(100), (insert,)))])
    control = ControlTables(project.control, "os")
    control.record(StreamRow(1, "pg:shop", 0, "shop", "7", "shop", "lsn", NOW))
    write_deltalake(str(project.lake / "silver" / "orders"), pa.table(ROWS))
    (layout,) = bronze_reader(project).layouts([relation.table])
    there = {"table": "silver.orders", "format": "delta", "version": 0, "position": 100, "state": "active", "held": 0}
    control.record(CutRow(1, "pg:shop", 100, NOW, json.dumps({"public.orders": there | {"layout": layout}}), NOW))
    return report(project, when=NOW)


def keys(files: ReportFiles) -> dict[str, list[list[str | None]]]:
    return {rule["rule"]: rule["keys"] for rule in json.loads(files.json.read_text(encoding="utf-8"))["rules"]}


def test_rows_are_named_by_their_keys_in_the_order_of_the_key(tmp_path: Path) -> None:
    files = written(tmp_path, ORDERS, sample_keys=2)
    assert keys(files) == {
        "not_null_mail": [["<b>us</b>", "2"]],
        "in_set_mail": [["eu", "4"]],
        "unique_mail": [["eu, north", "1"], [None, "3"]],
        "foreign_key_customer": [[None, "3"]],
        "between_customer": [],
        "row_count": [],
    }
    page = files.html.read_text(encoding="utf-8")
    assert "&lt;b&gt;us&lt;/b&gt;, 2" in page
    assert "NULL, 3" in page
    assert "holds keys of rows that break a rule" in page
    assert "secret" not in page + "".join(file.read_text(encoding="utf-8") for file in (files.json, *files.suites))
    assert "north" not in "".join(file.read_text(encoding="utf-8") for file in files.suites)


@pytest.mark.parametrize(("relation", "quality"), [(ORDERS, {}), (BARE, {"sample_keys": 5})], ids=["default", "no key"])
def test_no_row_is_named_where_nobody_asks_or_nothing_names_it(
    tmp_path: Path, relation: Relation, quality: dict[str, int]
) -> None:
    files = written(tmp_path, relation, **quality)
    assert not any(keys(files).values())
    page = files.html.read_text(encoding="utf-8")
    assert "holds no row values" in page
    assert "north" not in page + files.json.read_text(encoding="utf-8")
