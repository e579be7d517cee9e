"""Rows that a stream never contained: repaired, or held and copied again, at a real server, on both formats."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from cdc_lake.comparison.compare import compare
from cdc_lake.comparison.row_sets import SilverRowSet
from cdc_lake.config.project import Project
from cdc_lake.control.verdicts import Repair, Verdict
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import silent
from cdc_lake.ops.status import status
from cdc_lake.runtime.apply.applier import apply
from cdc_lake.runtime.apply.rebuild import rebuild
from cdc_lake.runtime.resync import resync
from cdc_lake.runtime.run import run
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake_testing.invariants import Known, invariants
from tests.conftest import Database
from tests.pipeline_file import make_project

pytestmark = [
    pytest.mark.spark,
    pytest.mark.live,
    # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"),
]
RULE = {"rule": "between", "column": "n", "min": 0, "max": 100, "on_fail": "quarantine"}
ODD = 'it\'s \\ "odd"; --'


def project_of(database: Database, root: Path, missing_row: str = "stop") -> Project:
    name = database.name[:63].lower()
    source = {**database.source, "slot": {"name": name}}
    silver = {
        "defaults": {"namespace": name, "missing_row": missing_row},
        "tables": [
            {"from": "public.delta", "rules": [RULE]},
            {"from": "public.ice", "rules": [RULE], "format": "iceberg", "kind": "history"},
        ],
    }
    return make_project(root, name, source=source, silver=silver, snapshot={"mode": "none"})


class Shop:
    def __init__(self, spark: Any, database: Database, folder: Path, missing_row: str = "stop") -> None:
        self.spark, self.database = spark, database
        self.project = project_of(database, folder, missing_row)

    def both(self, *statements: str) -> None:
        """Run them for both tables, each in one transaction."""
        with self.database.connect() as conn:
            for table in ("delta", "ice"):
                for statement in statements:
                    conn.execute(statement.replace("@", table))

    def run(self) -> None:
        run(self.project, once=True, only="receive", stop=threading.Event(), report=silent)
        apply(self.project, once=True, stop=threading.Event(), report=silent, spark=self.spark)

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        rows = table_log(self.project, self.project.target(TableName("public", table))).read().to_pylist()
        return sorted((r["id"], r["n"], len(r["body"] or "")) for r in rows if r.get("is_current", True))

    def open_keys(self) -> set[int]:
        cut = ControlTables(self.project.control).last_cut()
        assert cut is not None
        return {entry["quarantined_keys"] for entry in json.loads(cut.tables).values()}

    def verdicts(self) -> list[Verdict]:
        said = [t.verdict for t in compare(self.project, [], report=silent).tables]
        with mock.patch.object(SilverRowSet, "_is_for_executors", return_value=True):  # summed up by tasks of Spark
            assert [t.verdict for t in compare(self.project, [], report=silent).tables] == said
        return said

    def repairs(self) -> list[Repair | None]:
        return [t.repair for t in compare(self.project, [], report=silent, repair=True, yes=True).tables]

    def untold(self, *statements: str) -> None:
        """Run them while the publication leaves changes of rows out."""
        self.publish("truncate")
        self.both(*statements)
        self.publish("insert, update, delete, truncate")
        self.run()

    def publish(self, operations: str) -> None:
        with self.database.connect() as conn:
            conn.execute(f"ALTER PUBLICATION {self.project.publication} SET (publish = '{operations}')")


CREATE = (
    "CREATE TABLE @ (id text PRIMARY KEY, n int, body text)",
    "ALTER TABLE @ ALTER COLUMN body SET STORAGE EXTERNAL",
)
FILL = "INSERT INTO @ SELECT g::text, g, repeat('x', 5000 + g) FROM generate_series(1, 6) AS g"


def test_a_repair_brings_what_the_stream_never_contained(spark: Any, database: Database, lake_root: Path) -> None:
    shop = Shop(spark, database, lake_root)
    shop.both(*CREATE)
    shop.run()
    shop.both(FILL, "UPDATE @ SET id = '20' WHERE id = '2'", "UPDATE @ SET n = 500 WHERE id = '4'")
    shop.both("INSERT INTO @ VALUES ('9', 9, 'small')")
    with database.connect() as conn:
        for table in ("delta", "ice"):
            conn.execute(f"INSERT INTO {table} VALUES (%s, 7, repeat('x', 5007))", [ODD])
    shop.run()
    assert shop.open_keys() == {1}, "a row that breaks a rule is held for that"
    assert shop.verdicts() == [Verdict.EQUAL_BUT_QUARANTINED] * 2
    assert_that_a_repair_brings_what_nobody_told(shop)
    invariants(shop.project, Known()).assert_held("I1", "I3", "I4", "I5")
    assert [rebuilt(shop, table) for table in ("delta", "ice")] == [(0, 0, 0)] * 2, "a rebuild keeps what was repaired"


def test_changes_of_rows_that_silver_never_had_wait_until_the_table_is_copied_again(
    spark: Any, database: Database, lake_root: Path
) -> None:
    shop = Shop(spark, database, lake_root, "hold")
    shop.both(*CREATE, FILL)
    shop.run()
    shop.both("UPDATE @ SET n = 10 WHERE id IN ('1', '3')", "UPDATE @ SET n = 11 WHERE id = '1'")
    shop.run()
    assert shop.open_keys() == {2}
    resync(shop.project, ["public.delta"])
    shop.run()
    assert shop.verdicts()[0] == Verdict.EQUAL


def assert_that_a_repair_brings_what_nobody_told(shop: Shop) -> None:
    shop.untold(
        "UPDATE @ SET n = 50 WHERE id = '20'",
        "DELETE FROM @ WHERE id = '9'",
        "INSERT INTO @ VALUES ('30', 30, 'never told'), ('31', 31, 'nor this'), ('32', 300, 'breaks the rule')",
    )
    assert shop.verdicts() == [Verdict.DIFFERENT] * 2
    assert all(t.verified_through and t.different_at for t in status(shop.project).tables), "both were equal before"
    assert [repair and (repair.keys, repair.left) for repair in shop.repairs()] == [(5, 0)] * 2
    assert shop.verdicts() == [Verdict.DIFFERENT] * 2, "silver is as it was"
    again = shop.repairs()
    assert [repair and (repair.keys, repair.left) for repair in again] == [(0, 5)] * 2
    assert "not merged yet" in str(again)
    shop.both("UPDATE @ SET n = 33 WHERE id = '31'", "INSERT INTO @ VALUES ('9', 900, 'breaks the rule')")
    shop.run()
    whole = [
        ("1", 1, 5001),
        ("20", 50, 5002),
        ("3", 3, 5003),
        ("30", 30, 10),
        ("31", 33, 8),
        ("4", 4, 5004),
        ("5", 5, 5005),
    ]
    whole += [("6", 6, 5006), (ODD, 7, 5007)]
    assert [shop.rows(table) for table in ("delta", "ice")] == [whole] * 2
    assert shop.open_keys() == {3}, "the rules judge what was repaired, and what came behind it"
    assert shop.verdicts() == [Verdict.EQUAL_BUT_QUARANTINED] * 2
    assert {(t.verified_through == t.position, t.different_at) for t in status(shop.project).tables} == {(True, None)}
    assert shop.repairs() == [None, None]


def rebuilt(shop: Shop, table: str) -> tuple[int, int, int]:
    found = rebuild(shop.project, table, dry_run=True, spark=shop.spark).difference
    return found.added, found.removed, found.changed
