"""Rows that a stream never told, read again at a real server, by a setting or by a repair, on both formats."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.comparison.compare import compare
from cdc_lake.config.project import Project
from cdc_lake.control.verdicts import Repair, Verdict
from cdc_lake.model.relation import TableName
from cdc_lake.observability import failpoints as at
from cdc_lake.observability.events import ProgressEvent, silent
from cdc_lake.ops.status import status
from cdc_lake.runtime.apply.applier import apply
from cdc_lake.runtime.apply.rebuild import rebuild
from cdc_lake.runtime.run import run
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.silver_reader import read_silver
from cdc_lake_testing.broken_off import Failed, broken_off
from cdc_lake_testing.invariants import Known, invariants
from tests.conftest import Database

from .conftest import make_project

pytestmark = [
    pytest.mark.spark,
    pytest.mark.live,
    # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"),
]
RULE = {"rule": "between", "column": "n", "min": 0, "max": 100, "on_fail": "quarantine"}
BREAKS = (f"{at.REREAD_LANDED}:1", f"{at.REREAD_LANDED}:2")
"""Where a run dies that reads rows again, one after the other: of the first table, and of the second."""
ODD = 'it\'s \\ "odd"; --'


def project_of(database: Database, root: Path, missing_row: str = "reread") -> Project:
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
    def __init__(self, spark: Any, database: Database, folder: Path) -> None:
        self.spark, self.database = spark, database
        self.project = project_of(database, folder)
        self.told: list[str] = []

    def both(self, *statements: str) -> None:
        """Run them for both tables, each in one transaction."""
        with self.database.connect() as conn:
            for table in ("delta", "ice"):
                for statement in statements:
                    conn.execute(statement.replace("@", table))

    def run(self) -> None:
        run(self.project, once=True, only="receive", stop=threading.Event(), report=silent)
        apply(self.project, once=True, stop=threading.Event(), report=self._tell, spark=self.spark)

    def _tell(self, told: ProgressEvent) -> None:
        if told.stage in {"reread", "warning"}:
            self.told.append(told.text)

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        rows = read_silver(self.project, self.project.target(TableName("public", table))).to_pylist()
        return sorted((r["id"], r["n"], len(r["body"] or "")) for r in rows if r.get("is_current", True))

    def open_keys(self) -> set[int]:
        cut = ControlTables(self.project.control).last_cut()
        assert cut is not None
        return {entry["held"] for entry in json.loads(cut.tables).values()}

    def verdicts(self) -> list[Verdict]:
        return [t.verdict for t in compare(self.project, [], report=silent).tables]

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


def test_rows_that_silver_never_had_are_read_again_and_the_holds_end(
    spark: Any, database: Database, lake_root: Path
) -> None:
    shop = Shop(spark, database, lake_root)
    shop.both(
        "CREATE TABLE @ (id text PRIMARY KEY, n int, body text)",
        "ALTER TABLE @ ALTER COLUMN body SET STORAGE EXTERNAL",
        "INSERT INTO @ SELECT g::text, g, repeat('x', 5000 + g) FROM generate_series(1, 6) AS g",
    )
    with database.connect() as conn:
        for table in ("delta", "ice"):
            conn.execute(f"INSERT INTO {table} VALUES (%s, 7, repeat('x', 5007))", [ODD])
    shop.run()
    shop.both(
        "UPDATE @ SET n = 10 WHERE id IN ('1', '3')",
        "UPDATE @ SET id = '20', n = 2 WHERE id = '2'",
        "UPDATE @ SET n = 11 WHERE n = 7",
        "DELETE FROM @ WHERE id = '3'",
        "UPDATE @ SET n = 5 WHERE id = '4'",
        "UPDATE @ SET n = 500 WHERE id = '4'",
        "INSERT INTO @ VALUES ('9', 9, 'small')",
    )
    for point in BREAKS:
        with broken_off(point, Failed) as reached:
            shop.run()
        assert reached, point
    shop.run()
    assert shop.told == [f"{shop.project.name}.{table}: read again at the source" for table in ("delta", "ice")]
    shop.both("UPDATE @ SET n = 12 WHERE id = '1'", "INSERT INTO @ VALUES ('3', 3, 'again')")
    shop.run()
    whole = [("1", 12, 5001), ("20", 2, 5002), ("3", 3, 5), ("9", 9, 5), (ODD, 11, 5007)]
    assert [shop.rows(table) for table in ("delta", "ice")] == [whole] * 2
    assert shop.open_keys() == {1}, "a row that breaks a rule is held for that"
    assert shop.verdicts() == [Verdict.DIFFERENT] * 2, "rows that no change ever touched are missing"
    shop.both("UPDATE @ SET n = n WHERE id IN ('5', '6')", "UPDATE @ SET n = 6 WHERE id = '4'")
    shop.run()
    shop.run()  # without another change: at the latest now they are there
    assert shop.verdicts() == [Verdict.EQUAL_BUT_HELD] * 2
    assert len(shop.told) == 4, "what a rule holds is not asked for"
    invariants(shop.project, Known()).assert_held("I1", "I3", "I4", "I5")
    assert rebuilt(shop, "ice") == (0, 0, 0), "a rebuild finds in bronze what was read again"
    shop.project = project_of(database, lake_root, "stop")
    assert_that_a_repair_brings_what_nobody_told(shop)
    shop.project = project_of(database, lake_root)  # the stream began with changes of rows that it had not told
    assert [rebuilt(shop, table) for table in ("delta", "ice")] == [(0, 0, 0)] * 2, "nor does it lose what was repaired"


def assert_that_a_repair_brings_what_nobody_told(shop: Shop) -> None:
    """Whatever the pipeline says of rows that are missing."""
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
    whole = [("1", 12, 5001), ("20", 50, 5002), ("3", 3, 5), ("30", 30, 10), ("31", 33, 8), ("5", 5, 5005)]
    whole += [("6", 6, 5006), (ODD, 11, 5007)]
    assert [shop.rows(table) for table in ("delta", "ice")] == [whole] * 2
    assert shop.open_keys() == {3}, "the rules judge what was repaired, and what came behind it"
    assert shop.verdicts() == [Verdict.EQUAL_BUT_HELD] * 2
    assert {(t.verified_through == t.position, t.different_at) for t in status(shop.project).tables} == {(True, None)}
    assert shop.repairs() == [None, None]


def rebuilt(shop: Shop, table: str) -> tuple[int, int, int]:
    found = rebuild(shop.project, table, dry_run=True, spark=shop.spark).difference
    return found.added, found.removed, found.changed
