"""Two writers of one Delta table in an object store, Spark and delta-rs: are rows lost whose commit was acknowledged?

    python -m tests.store_race [CLASS]      CLASS: the log store of Spark, by default that of cdc_lake

Spark's requests pass a proxy that holds up each entry of the log on its way, so that the other writer commits between the
moment at which Spark chose a version and the one at which it writes it. Prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from unittest import mock

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from cdc_lake.tables import spark_session
from cdc_lake.tables.store_options import delta_options
from cdc_lake_testing.faulty_store import FaultyStore, Request
from cdc_lake_testing.object_store import LocalStore, storage_at
from tests.pipeline_file import make_project

TABLE = "s3://lake/race"
ROUNDS = 8


def hold_up(request: Request) -> None:
    """Delay what Spark writes into the log."""
    if request.method == "PUT" and "/_delta_log/" in request.key and request.key.endswith(".json"):
        time.sleep(0.5)


def race(log_store: str | None) -> dict[str, object]:
    """What was acknowledged, and what of it is not in the table."""
    with LocalStore() as store, FaultyStore(store, hold_up) as proxy, tempfile.TemporaryDirectory() as folder:
        store.bucket("lake")
        storage = {
            "endpoint": proxy.endpoint, "region": "us-east-1", "allow_http": True,
            "access_key_id": "kit", "secret_access_key": "kit-secret",
        }  # fmt: skip
        project = make_project(Path(folder), lake={"path": "s3://lake/shop", "storage": storage})
        settings = spark_session.secret_settings(project)
        if log_store is not None:
            settings["spark.delta.logStore.s3.impl"] = log_store
        options = delta_options(storage_at(store.endpoint))
        write_deltalake(TABLE, pa.table({"n": pa.array([0], pa.int64())}), storage_options=options)
        with mock.patch.object(spark_session, "secret_settings", return_value=settings):
            spark = spark_session.start(project)
        acknowledged, done = {0}, threading.Event()

        def write_beside() -> None:
            number = 1_000_000
            while not done.is_set():
                write_deltalake(
                    TABLE, pa.table({"n": pa.array([number], pa.int64())}), storage_options=options, mode="append"
                )
                acknowledged.add(number)
                number += 1
                time.sleep(0.2)

        beside = threading.Thread(target=write_beside)
        beside.start()
        for number in range(1, ROUNDS + 1):
            spark.range(number, number + 1).toDF("n").write.format("delta").mode("append").save(TABLE)
            acknowledged.add(number)
        done.set()
        beside.join()
        present = set(DeltaTable(TABLE, storage_options=options).to_pyarrow_table()["n"].to_pylist())
        spark.stop()
        return {"acknowledged": len(acknowledged), "lost": sorted(acknowledged - present)}


if __name__ == "__main__":
    print(json.dumps(race(sys.argv[1] if len(sys.argv) > 1 else None)))
