"""Apply from an Iceberg bronze: spans are read from its files, and Spark's own clock calls while a run goes on."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lake.bronze.open import bronze_writer
from cdc_lake.model.change import UNCHANGED, Delete, Insert, OldKind, Transaction, Truncate, Update
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.applier import apply
from cdc_lake.tables.control_schema import SnapshotRow, utc_now
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.iceberg_log import KEEP
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.pipeline_file import make_project

pytestmark = pytest.mark.spark
T = table("public.t", id="int4", amount="int4", body="text")


def rows(project: Any) -> list[dict[str, Any]]:
    return sorted(table_log(project, project.target(T.table)).read().to_pylist(), key=lambda row: row["id"])


def test_a_snapshot_and_its_changes_are_merged_from_iceberg_into_iceberg(spark: Any, lake_root: Path) -> None:
    silver = {"defaults": {"format": "iceberg", "namespace": "from_iceberg"}}
    project = make_project(lake_root, "from_iceberg", silver=silver, bronze={"format": "iceberg"})
    bronze, control = bronze_writer(project), ControlTables(project.control)
    state = bronze.begin_stream("test", 100)
    copied = pa.array([["1", "10", None], ["2", None, "x"]], pa.list_(pa.string()))
    bronze.append_snapshot("initial-1", 0, T, copied, 0, 100)
    told = json.dumps([{"relation": str(T.table), "layout": T.layout, "rows": 2, "chunks": 1}])
    control.record(SnapshotRow("initial-1", state.stream, 1, 100, told, "complete", utc_now()))
    changes = (
        (Insert(T, ("3", "3", "c")), Update(T, ("1", "11", UNCHANGED))),
        (Delete(T, ("2", None, None), OldKind.KEY),),
        (Truncate(T), Insert(T, ("7", "7", "g"))),
    )
    for number, some in enumerate(changes):
        bronze.append([raw_transaction(Transaction(boundaries(200 + number), some))])
        apply(project, once=True, goal=200 + number, stop=threading.Event(), report=silent, spark=spark)
        assert table_log(project, project.target(T.table)).marker("test").position == 200 + number
        if number == 1:
            assert rows(project) == [
                {"id": 1, "amount": 11, "body": None},
                {"id": 3, "amount": 3, "body": "c"},
            ]
    assert rows(project) == [{"id": 7, "amount": 7, "body": "g"}]


def test_a_run_that_goes_on_takes_what_lands_meanwhile_however_many_versions(spark: Any, lake_root: Path) -> None:
    silver = {"defaults": {"namespace": "following"}}
    project = make_project(
        lake_root, "following", silver=silver, bronze={"format": "iceberg"}, snapshot={"mode": "none"}
    )
    bronze, stop = bronze_writer(project), threading.Event()
    bronze.begin_stream("test", 100)
    bronze.append([raw_transaction(Transaction(boundaries(200), (Insert(T, ("0", "0", "a")),)))])
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(apply, project, once=False, stop=stop, report=silent, spark=spark)
        try:
            for number in range(1, KEEP + 10):
                changes = (Insert(T, (str(number), "1", "b")),)
                bronze.append([raw_transaction(Transaction(boundaries(200 + number), changes))])
            target, until = project.target(T.table), time.monotonic() + 120
            while table_log(project, target).marker("test").position != 200 + KEEP + 9:
                assert not done.done(), done.result()
                assert time.monotonic() < until
                time.sleep(0.2)
        finally:
            stop.set()
        assert done.result().transactions == KEEP + 10
    assert [row["id"] for row in rows(project)] == list(range(KEEP + 10))
    assert not project.checkpoint.exists()
