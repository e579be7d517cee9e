"""A lake whose tables are all in an object store: a machine keeps nothing of it but logs and scratch files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.config.loader import load_project
from cdc_lake.config.project import Project
from cdc_lake.model.relation import TableName
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake_testing.faulty_store import Chance, Fault, FaultyStore, Request, honest
from cdc_lake_testing.object_store import LocalStore
from cdc_lake_testing.server import EmbeddedServer
from cdc_lake_testing.workload import Workload
from tests.conftest import ROOT, Database, drop_database, make_database
from tests.pipeline_file import pipeline_file
from tests.seeds import seeds
from tests.tally import tally
from tools import log_store

pytestmark = [pytest.mark.spark, pytest.mark.live]

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))

LAKE = """\
lake:
  path: s3://lake/{catalog.name}
  storage:
    endpoint: {endpoint}
    region: us-east-1
    access_key_id: kit
    secret_access_key: kit-secret
    allow_http: true
  iceberg:
    uri: postgresql://{catalog.user}:{catalog.password}@{catalog.host}:{catalog.port}/{catalog.name}
"""
SILVER = """
silver:
  tables:
    - {from: public.loans, format: iceberg}
    - {from: public.books, rules: [{rule: not_null, column: title, on_fail: quarantine}]}
"""


@pytest.fixture
def store() -> Iterator[LocalStore]:
    with LocalStore() as running:
        running.bucket("lake")
        yield running


@pytest.fixture
def catalog(server: EmbeddedServer) -> Iterator[Database]:
    """The database of the Iceberg catalog."""
    made = make_database(server)
    yield made
    drop_database(made)


@pytest.fixture
def machines(database: Database, catalog: Database, tmp_path: Path, store: LocalStore) -> list[Path]:
    """The pipeline's file on three machines, which have nothing in common but the store, the catalog and the source."""
    more = LAKE.format(endpoint=store.endpoint, catalog=catalog) + SILVER
    folders = [tmp_path / name for name in ("first", "second", "third")]
    for folder in folders:
        folder.mkdir()
    return [pipeline_file(database, folder, more) for folder in folders]


def cdc_lake(file: Path, *words: str) -> Any:
    """The JSON of a command that runs in a process of its own."""
    command = [sys.executable, "-m", "cdc_lake.cli.app", *words, "--json"]
    done = subprocess.run(command, cwd=file.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
    text = done.stdout.splitlines()[-1] if words[0] == "run" else done.stdout  # `run` prints a line for each event
    return json.loads(text)


def rows(project: Project, name: str) -> int:
    return table_log(project, project.target(TableName("public", name))).count_rows()


def test_what_one_machine_began_another_one_continues_and_a_third_one_compares(
    database: Database, machines: list[Path]
) -> None:
    first, second, third = machines
    with database.connect() as conn:
        conn.execute("CREATE TABLE books (id int PRIMARY KEY, title text)")
        conn.execute("CREATE TABLE loans (id int PRIMARY KEY, book int, note text)")
        conn.execute("INSERT INTO books SELECT g, 'book ' || g FROM generate_series(1, 100) AS g")
        conn.execute("INSERT INTO loans SELECT g, g, 'note' FROM generate_series(1, 100) AS g")
    cdc_lake(first, "run", "--once")
    with database.connect() as conn:
        for number in range(3):
            conn.execute("UPDATE books SET title = title || '!' WHERE id %% 3 = %s", [number])
            conn.execute("DELETE FROM loans WHERE id = %s", [number + 1])
            conn.execute("INSERT INTO loans VALUES (%s, 1, 'new')", [number + 1000])
        conn.execute("INSERT INTO books VALUES (101, NULL)")
    cdc_lake(second, "run", "--once")
    compared = cdc_lake(third, "compare")
    assert compared["verdict"] == "equal but for quarantined keys", compared
    project = load_project(third)
    assert (rows(project, "books"), rows(project, "loans")) == (100, 100)
    cdc_lake(third, "rebuild", "public.books")
    cdc_lake(third, "maintain")
    with database.connect() as conn:
        conn.execute("DELETE FROM books WHERE id = 101")
    cdc_lake(first, "run", "--once")
    assert cdc_lake(second, "compare")["verdict"] == "equal but for quarantined keys", "the deletion waits as well"
    cdc_lake(third, "quarantine", "discard", "public.books", "--all", "--reason", "it is gone", "--yes")
    cdc_lake(first, "run", "--once")
    assert cdc_lake(third, "compare")["verdict"] == "equal but for discarded keys"
    report = cdc_lake(third, "report")
    assert Path(report["html"]).is_relative_to(third.parent), report
    assert {table["state"] for table in cdc_lake(third, "status")["tables"]} == {"live"}
    left = {path.suffix for file in machines for path in file.parent.rglob("*") if path.is_file()}
    assert not left & {".parquet", ".avro", ".crc", ".db"}, left


@pytest.mark.parametrize("seed", seeds(1 if BUDGET == 1 else 4))
def test_a_store_that_fails_and_lies_loses_and_doubles_nothing(
    database: Database, catalog: Database, tmp_path: Path, store: LocalStore, seed: int
) -> None:
    silver = "silver: {tables: [{from: public.w_items, format: iceberg}, {from: public.w_pairs, format: iceberg}]}\n"
    with FaultyStore(store) as proxy, database.connect() as conn:
        file = pipeline_file(database, tmp_path, LAKE.format(endpoint=proxy.endpoint, catalog=catalog) + silver)
        workload = Workload(conn, seed=seed)
        workload.create_tables()
        workload.run(20)
        chance, codes = Chance(seed, 120), []

        def choose(request: Request) -> Fault | None:
            """As Delta and Iceberg require it, and S3 promises it, Spark's listings of silver are current."""
            fault = chance(request)
            return None if fault is Fault.STALE and "/silver/" in request.query.get("prefix", "") else fault

        proxy.choose = choose
        for _ in range(2):
            workload.run(30)
            command = [sys.executable, "-m", "cdc_lake.cli.app", "run", "--once"]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
            assert done.returncode in {0, 4}, done.stderr  # done, or `retry`
            codes.append(done.returncode)
        faults, proxy.choose = dict(proxy.done), honest
        print(f"seed {seed}: exit codes {codes}")
        tally("R24", [fault.name for fault in faults], **{"requests hit": sum(faults.values())})
        assert faults[Fault.DENIED] + faults[Fault.UNHEARD] > 0
        cdc_lake(file, "run", "--once")
        assert cdc_lake(file, "compare")["verdict"] == "equal"


@pytest.mark.parametrize(("log_store", "loses"), [(None, False), ("io.delta.storage.S3SingleDriverLogStore", True)])
def test_two_writers_of_a_table_lose_nothing_and_with_deltas_own_log_store_they_do(
    log_store: str | None, loses: bool
) -> None:
    command = [sys.executable, "-m", "tests.store_race", *([] if log_store is None else [log_store])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    assert bool(found["lost"]) is loses
    if log_store is None:
        tally("R24", **{"commits that raced": found["acknowledged"]})


@pytest.mark.skipif(shutil.which("javac") is None, reason="there is no compiler for Java")
def test_the_log_store_is_what_its_source_compiles_to(spark: Any, tmp_path: Path) -> None:
    assert spark.version, "its start has brought the classes of Delta"
    log_store.build(tmp_path / "again.jar")
    kept, again = (zipfile.ZipFile(jar) for jar in (log_store.JAR, tmp_path / "again.jar"))
    assert {name: kept.read(name) for name in kept.namelist()} == {name: again.read(name) for name in again.namelist()}
