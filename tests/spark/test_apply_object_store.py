"""A bronze in an object store, and what a Spark session needs to read it."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lake.bronze.open import bronze_writer
from cdc_lake.config.project import Project
from cdc_lake.errors import SparkNotStarted
from cdc_lake.model.change import UNCHANGED, Delete, Insert, OldKind, Transaction, Truncate, Update
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.applier import apply
from cdc_lake.tables.control_schema import SnapshotRow, utc_now
from cdc_lake.tables.control_tables import control_tables
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.spark_session import start
from cdc_lake_testing.beside import until
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from cdc_lake_testing.object_store import LocalStore, storage_at
from tests.pipeline_file import make_project

pytestmark = pytest.mark.spark
T = table("public.t", id="int4", amount="int4", body="text")
U = table("public.u", id="int4", amount="int4", body="text")


def stored_project(root: Path, store: LocalStore, kind: str) -> Project:
    """A pipeline whose silver is on this machine if it is Delta."""
    storage, name = storage_at(store.endpoint).model_dump(), f"stored_{kind}"
    if kind == "delta":
        lake = {"path": name, "storage": storage, "control": "s3://lake/control"}
        return make_project(root, name, bronze={"path": f"s3://lake/bronze/{name}"}, lake=lake)
    iceberg = {"warehouse": f"s3://lake/warehouse/{name}"}
    return make_project(
        root, name, bronze={"format": "iceberg"}, lake={"path": name, "storage": storage, "iceberg": iceberg}
    )


def rows(project: Project, relation: Any = T) -> list[dict[str, Any]]:
    return sorted(table_log(project, project.target(relation.table)).read().to_pylist(), key=lambda row: row["id"])


def follow(project: Project, stop: Any, into: Any) -> None:
    """Apply until `stop` is set, in a session of this process."""
    into.put(apply(project, once=False, stop=stop, report=silent).transactions)


@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=pytest.mark.slow)])
def test_a_run_merges_what_is_in_the_store_and_what_lands_there_meanwhile(
    lake_root: Path, store: LocalStore, kind: str
) -> None:
    project = stored_project(lake_root, store, kind)
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
    processes = multiprocessing.get_context("spawn")
    stop, applied = processes.Event(), processes.Queue()
    run = processes.Process(target=follow, args=(project, stop, applied))
    log = table_log(project, project.target(T.table))

    def is_at(position: int) -> bool:
        assert run.is_alive()
        return log.marker("test").position == position

    run.start()
    try:
        until(lambda: is_at(201))
        assert rows(project) == [{"id": 1, "amount": 11, "body": None}, {"id": 3, "amount": 3, "body": "c"}]
        assert rows(project, U) == [{"id": 5, "amount": 5, "body": "u"}]
        bronze.append([raw_transaction(Transaction(boundaries(300), (Truncate(T), Insert(T, ("7", "7", "g")))))])
        until(lambda: is_at(300))
        assert rows(project) == [{"id": 7, "amount": 7, "body": "g"}]
        for number in range(1, 5):
            bronze.append(
                [raw_transaction(Transaction(boundaries(300 + number), (Insert(T, (str(number), "1", "b")),)))]
            )
        until(lambda: is_at(304))
    finally:
        stop.set()
        run.join()
    assert run.exitcode == 0
    assert applied.get() == 7
    assert [row["id"] for row in rows(project)] == [1, 2, 3, 4, 7]
    assert not project.scratch.exists()


def test_a_session_without_a_client_of_the_store_is_refused(spark: Any, lake_root: Path, store: LocalStore) -> None:
    with pytest.raises(SparkNotStarted, match="cannot read s3://") as refused:
        start(stored_project(lake_root, store, "delta"), spark)
    assert "--packages" in refused.value.remedy
    assert "spark.hadoop.fs.s3.impl" in refused.value.remedy
