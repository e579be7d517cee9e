"""A silver table in a catalog of another make, as Spark and pyiceberg see it; in a process, which has one Spark.

    python -m tests.catalog_silver jdbc|draft|vended|hive|glue

The catalogs: Iceberg's REST server over JDBC with its tables in S3, by branches and by drafts; one that gives each
client credentials of its own, which soon expire; a Hive metastore; Glue, as moto has it. Prints one line of JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

from cdc_lake.config.project import Project
from cdc_lake.errors import ConcurrentModification
from cdc_lake.model.relation import TableName
from cdc_lake.tables import iceberg_silver
from cdc_lake.tables.catalog import DELEGATION, catalog_address, open_catalog
from cdc_lake.tables.catalog_fence import Fence, silver_fence
from cdc_lake.tables.iceberg_silver import IcebergSilver
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.schema_evolution import ChangeType
from cdc_lake.tables.spark_session import derive, start
from cdc_lake.tables.store_options import iceberg_java_properties
from cdc_lake.tables.types import SilverColumn
from cdc_lake_testing.java_catalogs import HiveMetastore, ReferenceRestCatalog
from cdc_lake_testing.object_store import ACCESS_KEY, SECRET_KEY, LocalStore, storage_at
from cdc_lake_testing.rest_catalog import RestCatalogServer
from tests.pipeline_file import make_project

COLUMNS = (SilverColumn("id", "int"), SilverColumn("note", "string"))
MERGE = (
    "MERGE INTO {} AS t USING (SELECT * FROM VALUES (1, 'new'), (2, 'b') AS v(id, note)) AS s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET note = s.note WHEN NOT MATCHED THEN INSERT *"
)


@contextmanager
def catalog(kind: str, folder: Path, store: LocalStore) -> Iterator[dict[str, Any]]:
    """The section `lake` of a pipeline whose catalog runs meanwhile."""
    storage = {
        "endpoint": store.endpoint, "region": "us-east-1", "allow_http": True,
        "access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY,
    }  # fmt: skip
    if kind == "hive":
        with HiveMetastore(folder / "hive") as metastore:
            yield {"iceberg": {"type": "hive", "uri": metastore.uri}}
    elif kind == "glue":
        of_store = {key: storage[key] for key in ("endpoint", "region", "allow_http")}
        iceberg = {"type": "glue", "uri": store.endpoint, "warehouse": "s3://lake/tables"}
        yield {"storage": {**of_store, "credentials": "environment"}, "iceberg": iceberg}
    elif kind == "vended":
        numbers = itertools.count(1)

        def vend() -> dict[str, str]:
            """Keys of which all but the last few have expired."""
            number = next(numbers)
            store.conditional.expired.update(f"VENDED{old}" for old in range(number - 8, number - 4))
            properties = iceberg_java_properties(storage_at(store.endpoint))
            keys = {"s3.access-key-id": f"VENDED{number}", "s3.session-token": f"token{number}"}
            return {**properties, "s3.region": "us-east-1", **keys}

        with RestCatalogServer(folder / "rest", "s3://lake/tables", storage_at(store.endpoint), vend=vend) as server:
            properties = {DELEGATION: "vended-credentials"}
            yield {"iceberg": {"type": "rest", "uri": server.uri, "properties": properties}}
    else:
        properties = iceberg_java_properties(storage_at(store.endpoint))
        with ReferenceRestCatalog(folder / "rest", "s3://lake/tables", properties) as reference:
            yield {"storage": storage, "iceberg": {"type": "rest", "uri": reference.uri}}


def commits(project: Project, spark: Any) -> dict[str, Any]:
    """What came of a row of commits; asserts what must not happen."""
    target = project.target(TableName("public", "t"))
    silver, other = (IcebergSilver(derive(spark), project, target) for _ in range(2))
    log = table_log(project, target)

    def rows(version: int | None = None) -> dict[Any, Any]:
        return {row["id"]: row["note"] for row in log.read(version).to_pylist()}

    silver.create(COLUMNS, "s")
    first = silver.commit("s", silver.marker("s"), 10, lambda to: f"INSERT INTO {to} VALUES (1, 'a')")
    stale = silver.marker("s")
    silver.commit("s", stale, 20, MERGE.format)
    assert rows() == {1: "new", 2: "b"}
    assert rows(first) == {1: "a"}

    def rival(to: str) -> str:
        other.commit("s", other.marker("s"), 30, lambda to: f"INSERT INTO {to} VALUES (3, 'c')")
        return f"INSERT INTO {to} VALUES (4, 'd')"

    refused = 0
    for base, statement in ((stale, MERGE.format), (silver.marker("s"), rival)):
        try:
            silver.commit("s", base, 40, statement)
        except ConcurrentModification:
            refused += 1
    assert (silver.marker("s").position, rows()) == (30, {1: "new", 2: "b", 3: "c"})
    silver.reshape("s", silver.marker("s"), 45, [ChangeType("id", "int", "string")], "true")
    assert rows() == {"1": "new", "2": "b", "3": "c"}
    silver.replace("s", silver.marker("s"), 2, 50, COLUMNS, "SELECT 7 AS id, 'z' AS note")
    silver.commit("s", silver.marker("s"), 60, MERGE.format)
    assert rows() == {7: "z", 1: "new", 2: "b"}
    tables = [name for *_, name in open_catalog(catalog_address(project)).list_tables(target.namespace)]
    return {"refused": refused, "position": silver.marker("s").position, "tables": tables}


def main(kind: str) -> int:
    for name, value in {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}.items():
        if kind == "glue":
            os.environ[name] = value
    with tempfile.TemporaryDirectory() as name, LocalStore() as store:
        store.bucket("lake")
        with catalog(kind, Path(name), store) as lake:
            project = make_project(Path(name), lake=lake, silver={"defaults": {"format": "iceberg"}})
            fence = silver_fence(project)
            spark = start(project)
            if kind == "draft":
                patch: Any = mock.patch.object(iceberg_silver, "silver_fence", return_value=Fence.DRAFT)
            else:
                patch = nullcontext()
            with patch:
                said = commits(project, spark)
            spark.stop()
            print(json.dumps({"fence": fence, **said, "keys": sorted(store.conditional.keys)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
