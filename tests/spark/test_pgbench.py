"""pgbench's transfers while their tables are copied by several connections: what every cut of silver adds up to."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.compute as pc
import pytest

import cdc_lake
from cdc_lake.config.project import Project
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.applier import apply
from cdc_lake.runtime.run import run
from cdc_lake_testing.beside import beside, until
from tests.conftest import Database
from tests.pipeline_file import make_project

from .conftest import BUDGET

pytestmark = [pytest.mark.spark, pytest.mark.live]

COLUMNS = {
    "pgbench_accounts": "abalance", "pgbench_tellers": "tbalance", "pgbench_branches": "bbalance",
    "pgbench_history": "delta",
}  # fmt: skip
SPAN = 240 if BUDGET == 1 else 120
SLOWLY = 30_000  # rows a second: the copy of 100,000 accounts takes a while, and transfers go on in it


def project_of(database: Database, root: Path) -> Project:
    source = {
        "type": "postgres", "host": database.host, "port": database.port, "database": database.name,
        "user": database.user, "password": database.password, "tables": ["public.*"],
    }  # fmt: skip
    silver = {
        "defaults": {"namespace": "bench"},
        "tables": [{"from": f"public.{name}", "format": "iceberg"} for name in ("pgbench_tellers", "pgbench_history")],
    }
    snapshot = {"parallelism": 3, "chunk_rows": 5_000, "max_rows_per_second": SLOWLY}
    return make_project(root, database.name, source=source, silver=silver, snapshot=snapshot, apply={"span_rows": SPAN})


def bench(database: Database, stop: threading.Event) -> None:
    """Its transfers, 20 a second by two clients, until told to stop."""
    program = str(database.server.binaries / "pgbench")
    command = [program, "--client=2", "--rate=20", "--time=600", "--no-vacuum", database.dsn]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as running:
        while running.poll() is None and not stop.wait(0.1):
            pass
        assert running.poll() is None, running.stderr and running.stderr.read()
        running.terminate()


def transfers(database: Database) -> int:
    with psycopg.connect(database.dsn) as conn:
        ((found,),) = conn.execute("SELECT count(*) FROM pgbench_history").fetchall()
    return int(found)


def sums(project: Project, position: str) -> set[int]:
    """What the tables add up to as of a cut: one number where nothing is missing and nothing is twice."""
    session = cdc_lake.Pipeline(project).cut(as_of=position)
    return {int(pc.sum(session.read(f"bench.{name}")[column]).as_py() or 0) for name, column in COLUMNS.items()}


def test_sums_are_right_at_every_cut_while_tables_are_copied_in_parts(
    spark: Any, database: Database, lake_root: Path
) -> None:
    program = str(database.server.binaries / "pgbench")
    subprocess.run([program, "--initialize", "--quiet", database.dsn], check=True, capture_output=True)
    with database.connect() as conn:
        conn.execute("ALTER TABLE pgbench_history REPLICA IDENTITY FULL")
    project = project_of(database, lake_root)

    def receive() -> None:
        run(project, once=True, only="receive", stop=threading.Event(), report=silent)

    with beside(lambda stop: bench(database, stop)):
        until(lambda: transfers(database) > 5)
        before = transfers(database)
        receive()
        after = transfers(database)
        assert after > before + 20, "they went on while tables were copied"
        until(lambda: transfers(database) > after + 60)
    receive()
    apply(project, once=True, goal=None, stop=threading.Event(), report=silent, spark=spark)
    cuts = cdc_lake.Pipeline(project).cuts(limit=1_000).cuts
    assert len(cuts) > 1
    assert [found for cut in cuts if len(found := sums(project, cut.position)) != 1] == []
    with database.connect() as conn:
        ((theirs,),) = conn.execute("SELECT sum(delta) FROM pgbench_history").fetchall()
    assert sums(project, cuts[0].position) == {theirs}
