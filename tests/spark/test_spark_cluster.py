"""A Spark cluster whose executors see nothing of the driver's disk applies what a local Spark applies, whoever dies."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_lake_testing.object_store import LocalStore
from cdc_lake_testing.spark_cluster import SparkCluster
from tests.conftest import ROOT, Database
from tests.pipeline_file import pipeline_file
from tests.spark.test_lake_in_store import LAKE, SILVER, catalog, cdc_lake

__all__ = ["catalog"]

pytestmark = [pytest.mark.spark, pytest.mark.live]

SPARK = """
spark:
  master: {master}
  python_on_executors: true
  conf:
    spark.driver.host: 127.0.0.1
    spark.driver.bindAddress: 127.0.0.1
    spark.executor.memory: 768m
    spark.cores.max: "2"
"""
BY_EXECUTORS = """
import runpy, sys
from cdc_lake.comparison import row_sets
row_sets.LARGE = 0  # bytes from which executors sum up a table
sys.argv = ["cdc-lake", "compare", "--json"]
runpy.run_module("cdc_lake.cli.app", run_name="__main__")
"""
APART = ["unshare", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc"]
"""A program whose processes and mounts are its own, as those of another machine."""


@pytest.fixture
def machines(tmp_path: Path) -> list[Path]:
    folders = [tmp_path / name for name in ("first", "second", "third")]
    for folder in folders:
        folder.mkdir()
    return folders


@pytest.fixture
def cluster(tmp_path: Path, machines: list[Path]) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path / "logs", machines) as running:
        yield running


@pytest.fixture
def files(database: Database, catalog: Database, machines: list[Path], cluster: SparkCluster) -> Iterator[list[Path]]:
    """The pipeline's file on three machines, whose folders the workers do not see."""
    with database.connect() as conn:
        conn.execute("CREATE TABLE books (id int PRIMARY KEY, title text)")
        conn.execute("CREATE TABLE loans (id int PRIMARY KEY, book int, note text)")
        conn.execute("INSERT INTO books SELECT g, 'book ' || g FROM generate_series(1, 40000) AS g")
        conn.execute("INSERT INTO loans SELECT g, g, 'note' FROM generate_series(1, 40000) AS g")
    with LocalStore() as store:
        store.bucket("lake")
        more = LAKE.format(endpoint=store.endpoint, catalog=catalog) + SILVER + SPARK.format(master=cluster.master)
        yield [pipeline_file(database, folder, more) for folder in machines]


def change(database: Database) -> None:
    with database.connect() as conn:
        conn.execute("UPDATE books SET title = title || '!'")
        conn.execute("UPDATE loans SET note = note || '!'")
        conn.execute("UPDATE books SET id = id + 100000 WHERE id > 39990 AND id < 100000")


def begun(file: Path, *before: str) -> subprocess.Popen[str]:
    """`run --once`, in a process of its own."""
    command = [*before, sys.executable, "-m", "cdc_lake.cli.app", "run", "--once", "--json"]
    return subprocess.Popen(command, cwd=file.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def until_executors(cluster: SparkCluster) -> list[int]:
    end = time.monotonic() + 120
    while not (found := cluster.executors()):
        assert time.monotonic() < end, "no executor began"
        time.sleep(0.2)
    return found


def submitted(file: Path, cluster: SparkCluster, *jars: str) -> subprocess.CompletedProcess[str]:
    """A program that applies the pipeline once, started by `spark-submit`."""
    program = file.parent / "apply.py"
    program.write_text(f"from cdc_lake import Pipeline\n\nPipeline.load({str(file)!r}).run_once()\n")
    settings = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.cores.max": "2"}
    words = [f"--conf={name}={value}" for name, value in settings.items()]
    command = [str(Path(sys.executable).with_name("spark-submit")), "--master", cluster.master, *words, *jars]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    environment.pop("PYSPARK_SUBMIT_ARGS", None)
    started = [*command, "--executor-memory", "768m", str(program)]
    return subprocess.run(started, cwd=file.parent, capture_output=True, text=True, check=False, env=environment)


def test_executors_need_nothing_of_the_drivers_disk(
    database: Database, files: list[Path], cluster: SparkCluster
) -> None:
    cdc_lake(files[0], "run", "--once")
    change(database)
    refused = submitted(files[1], cluster)
    assert refused.returncode != 0
    hint = re.search(r"add `(--packages .+ --jars .+)` to `spark-submit`", refused.stdout)
    assert hint is not None, refused.stdout
    done = submitted(files[1], cluster, *hint[1].split())
    assert done.returncode == 0, done.stdout
    compared = subprocess.run(
        [sys.executable, "-c", BY_EXECUTORS], cwd=files[2].parent, capture_output=True, check=False
    )
    assert json.loads(compared.stdout)["verdict"] == "equal", compared
    assert (files[2].parent / "work/logs/compare.log").exists(), "no Spark was started"


def test_executors_and_drivers_that_die_lose_nothing(
    database: Database, files: list[Path], cluster: SparkCluster
) -> None:
    first, second, third = files
    run = begun(first)
    for pause in (1, 9):
        until_executors(cluster)
        time.sleep(pause)
        os.kill(cluster.executors()[0], signal.SIGKILL)
    told, complaint = run.communicate(timeout=300)
    assert run.returncode == 0, told + complaint
    change(database)
    run = begun(first)
    until_executors(cluster)
    time.sleep(8)
    run.kill()
    assert "applies this pipeline already" not in "".join(run.communicate())
    run = begun(second, *APART)
    told, complaint = run.communicate(timeout=300)
    assert run.returncode == 0, told + complaint
    assert cdc_lake(third, "compare")["verdict"] == "equal"
