"""Apply from a bronze in an object store: Spark, which has no client for it, reads copies near by."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lake.bronze import span_index
from cdc_lake.bronze.open import bronze_writer
from cdc_lake.config.project import Project
from cdc_lake.model.change import UNCHANGED, Delete, Insert, OldKind, Transaction, Truncate, Update
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.applier import apply
from cdc_lake.tables.control_schema import SnapshotRow, utc_now
from cdc_lake.tables.control_tables import control_tables
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from cdc_lake_testing.object_store import LocalStore, storage_at
from tests.pipeline_file import make_project

pytestmark = pytest.mark.spark
T = table("public.t", id="int4", amount="int4", body="text")
U = table("public.u", id="int4", amount="int4", body="text")


def stored_project(root: Path, store: LocalStore, kind: str, name: str, **sections: Any) -> Project:
    storage = storage_at(store.endpoint).model_dump()
    if kind == "delta":
        lake = {"path": name, "storage": storage, "control": "s3://lake/control"}
        place = {"bronze": {"path": f"s3://lake/bronze/{name}"}, "lake": lake}
    else:
        iceberg = {"warehouse": f"s3://lake/warehouse/{name}"}
        place = {"bronze": {"format": "iceberg"}, "lake": {"path": name, "storage": storage, "iceberg": iceberg}}
    return make_project(root, name, silver={"defaults": {"namespace": name}}, **place, **sections)


def rows(project: Any, relation: Any = T) -> list[dict[str, Any]]:
    return sorted(table_log(project, project.target(relation.table)).read().to_pylist(), key=lambda row: row["id"])


@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=pytest.mark.slow)])
def test_a_snapshot_and_its_changes_are_merged_from_a_store(
    spark: Any, lake_root: Path, store: LocalStore, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_index, "KEPT_BYTES", 1)
    project = stored_project(lake_root, store, kind, f"stored_{kind}")
    bronze, control = bronze_writer(project), control_tables(project)
    state = bronze.begin_stream("test", 100)
    copied = pa.array([["1", "10", None], ["2", None, "x"]], pa.list_(pa.string()))
    bronze.append_snapshot("initial-1", 0, T, copied, 0, 100)
    told = json.dumps([{"relation": str(T.table), "layout": T.layout, "rows": 2, "chunks": 1}])
    control.record(SnapshotRow("initial-1", state.stream, 1, 100, told, "complete", utc_now()))
    changes = (
        (Insert(T, ("3", "3", "c")), Update(T, ("1", "11", UNCHANGED)), Insert(U, ("5", "5", "u"))),
        (Delete(T, ("2", None, None), OldKind.KEY),),
    )
    for number, some in enumerate(changes):
        bronze.append([raw_transaction(Transaction(boundaries(200 + number), some))])
    apply(project, once=True, goal=201, stop=threading.Event(), report=silent, spark=spark)
    assert rows(project) == [{"id": 1, "amount": 11, "body": None}, {"id": 3, "amount": 3, "body": "c"}]
    assert rows(project, U) == [{"id": 5, "amount": 5, "body": "u"}]
    bronze.append([raw_transaction(Transaction(boundaries(300), (Truncate(T), Insert(T, ("7", "7", "g")))))])
    apply(project, once=True, goal=300, stop=threading.Event(), report=silent, spark=spark)
    assert rows(project) == [{"id": 7, "amount": 7, "body": "g"}]
    assert not project.scratch.exists()


def test_a_run_that_goes_on_takes_what_lands_in_the_store_meanwhile(
    spark: Any, lake_root: Path, store: LocalStore
) -> None:
    project = stored_project(lake_root, store, "delta", "stored_following", snapshot={"mode": "none"})
    left = project.scratch / "left-by-a-killed-run.parquet"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"not a table")
    bronze, stop = bronze_writer(project), threading.Event()
    bronze.begin_stream("test", 100)
    bronze.append([raw_transaction(Transaction(boundaries(200), (Insert(T, ("0", "0", "a")),)))])
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(apply, project, once=False, stop=stop, report=silent, spark=spark)
        try:
            for number in range(1, 5):
                bronze.append(
                    [raw_transaction(Transaction(boundaries(200 + number), (Insert(T, (str(number), "1", "b")),)))]
                )
            target, until = project.target(T.table), time.monotonic() + 120
            while table_log(project, target).marker("test").position != 204:
                assert not done.done(), done.result()
                assert time.monotonic() < until
                time.sleep(0.2)
        finally:
            stop.set()
        assert done.result().transactions == 5
    assert [row["id"] for row in rows(project)] == list(range(5))
    assert not project.scratch.exists()
