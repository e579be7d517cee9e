"""The demo with its lake in an object store and a Spark cluster: `make demo STORE=s3`.

    python pipelines/shop_store.py           run it
    python pipelines/shop_store.py forget    drop the slot of an earlier run

Starts an S3 server, an Iceberg REST catalog, and a Spark master with two workers that see neither the folder `work` nor
`.demo`; runs the demo with `--env store`; and ends them. The server keeps its objects in memory, so each run begins with
a new lake: the slot of the one before is dropped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg

from cdc_lake_testing.object_store import ACCESS_KEY, SECRET_KEY, LocalStore, storage_at
from cdc_lake_testing.rest_catalog import RestCatalogServer
from cdc_lake_testing.server import EmbeddedServer
from cdc_lake_testing.spark_cluster import SparkCluster

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / ".demo" / "store"


def main() -> int:
    """Run the demo; its exit code."""
    hidden = [ROOT / "work", HERE]
    for folder in hidden:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    with LocalStore() as store:
        store.bucket("lake")
        with (
            RestCatalogServer(HERE / "catalog-of", "s3://lake/tables", storage_at(store.endpoint)) as catalog,
            SparkCluster(ROOT / "work-of-workers", hidden) as cluster,
        ):
            addresses = {"endpoint": store.endpoint, "catalog": catalog.uri, "master": cluster.master}
            for name, text in {**addresses, "key": ACCESS_KEY, "secret": SECRET_KEY}.items():
                (HERE / name).touch(mode=0o600)
                (HERE / name).write_text(text)
            demo = ["sh", str(ROOT / "pipelines" / "demo.sh")]
            return subprocess.run(demo, env={**os.environ, "ENVIRONMENT": "store"}, check=False).returncode


def forget() -> int:
    """Drop the slot of an earlier run, whose lake is gone."""
    with psycopg.connect(EmbeddedServer(HERE.parent / "postgres").dsn(), autocommit=True) as admin:
        admin.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = 'shop_store'"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(forget() if sys.argv[1:] == ["forget"] else main())
