"""A Spark cluster whose executors see nothing of the driver's disk applies what a local Spark applies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_lake_testing.object_store import LocalStore
from cdc_lake_testing.spark_cluster import SparkCluster
from tests.conftest import Database
from tests.pipeline_file import pipeline_file
from tests.spark.test_lake_in_store import SECTIONS, catalog, cdc_lake

__all__ = ["catalog"]

pytestmark = [pytest.mark.spark, pytest.mark.live]

SPARK = """
spark:
  master: {master}
  conf:
    spark.driver.host: 127.0.0.1
    spark.driver.bindAddress: 127.0.0.1
    spark.executor.memory: 768m
    spark.cores.max: "2"
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    hidden = [tmp_path / "driver"]
    hidden[0].mkdir()
    with SparkCluster(tmp_path / "logs", hidden) as running:
        yield running


def test_executors_need_nothing_of_the_drivers_disk(
    database: Database, catalog: Database, tmp_path: Path, cluster: SparkCluster
) -> None:
    with LocalStore() as store:
        store.bucket("lake")
        more = SECTIONS.format(endpoint=store.endpoint, catalog=catalog)
        file = pipeline_file(database, tmp_path / "driver", more + SPARK.format(master=cluster.master))
        with database.connect() as conn:
            conn.execute("CREATE TABLE books (id int PRIMARY KEY, title text)")
            conn.execute("CREATE TABLE loans (id int PRIMARY KEY, book int, note text)")
            conn.execute("INSERT INTO books SELECT g, 'book ' || g FROM generate_series(1, 40000) AS g")
            conn.execute("INSERT INTO loans SELECT g, g, 'note' FROM generate_series(1, 40000) AS g")
        cdc_lake(file, "run", "--once")
        with database.connect() as conn:
            conn.execute("UPDATE books SET title = title || '!'")
            conn.execute("UPDATE loans SET note = note || '!'")
            conn.execute("UPDATE books SET id = id + 100000 WHERE id > 39990")
        cdc_lake(file, "run", "--once")
        assert cdc_lake(file, "compare")["verdict"] == "equal"
