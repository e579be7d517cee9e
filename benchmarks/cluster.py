"""A span on a Spark cluster with one worker and with two: what a second one saves, and what the driver does alone.

    python benchmarks/cluster.py [--rows 3000000] [--changes 1000000] [--rounds 2] [--load 2.5]

Bronze, silver and control tables are in an object store: moto's server in a process of its own. A worker has one core,
to which it is pinned, and does not see the disk of the driver. Driver and store run at the lowest priority, so that on
a machine of two cores they do not take what is measured. Runs with one and two workers alternate, each with a lake of
its own. The machine has to be idle otherwise: the benchmark ends if the load stays above `--load`.

Then a span has small tables, alone and with the large one: Spark shares its cores fairly among the tables that are
merged at once, so that no small one should wait more than twice as long.

Serial is the time in which no task runs. Bytes of bronze are those of its data files that the store sent to the driver
and to executors; the driver reads the narrow columns of which it plans a span.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

from measured import conclude, median, table
from span_pair import PER_TRANSACTION, project_of
from workload_spans import BASE, ROUNDS_AT_MOST, Workload, orders

from cdc_lake.bronze.open import bronze_writer
from cdc_lake.model.change import Change, Transaction
from cdc_lake.model.relation import Relation
from cdc_lake.observability.events import silent
from cdc_lake.runtime.apply.span_loop import SpanLoop
from cdc_lake.silver.layout_mapping import make_shape
from cdc_lake.tables.delta_table_log import DeltaTableLog
from cdc_lake.tables.open_silver_table import mark_when_large, store
from cdc_lake.tables.spark_session import derive, start
from cdc_lake_testing.messages import boundaries, raw_transaction
from cdc_lake_testing.object_store import ACCESS_KEY, SECRET_KEY, LocalStore
from cdc_lake_testing.spark_cluster import SparkCluster

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

COUNTED = "/counted"
SETTLES = 300
"""Seconds in which the load of the run before must be over."""
SMALL_TABLES = 20
SMALL_ROWS = 2_000


class Counting:
    """Counts the bytes of bronze's data files that are sent, by the library that asks for them."""

    def __init__(self, app: WSGIApplication) -> None:
        self._app = app
        self._sent: Counter[str] = Counter()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] == COUNTED:
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self._sent).encode()]
        answer = list(self._app(environ, start_response))
        path = environ["PATH_INFO"]
        if environ["REQUEST_METHOD"] == "GET" and "/bronze/" in path and path.endswith(".parquet"):
            reader = "executors" if "java" in environ.get("HTTP_USER_AGENT", "") else "driver"
            self._sent[reader] += sum(map(len, answer))
        return answer


def serve() -> None:
    """Be the store, until this process is killed."""
    with LocalStore() as local:
        server = local._server._server  # noqa: SLF001 - moto offers no other way to it
        server.app = Counting(server.app)
        local.bucket("lake")
        print(local.endpoint, flush=True)
        threading.Event().wait()


class Driver:
    """A lake in the store, and a session of Spark on the cluster; tables, the first of which is large."""

    def __init__(self, folder: Path, name: str, master: str, endpoint: str, rows: Sequence[int], span: int) -> None:
        storage = {
            "endpoint": endpoint, "region": "us-east-1", "allow_http": True,
            "access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY,
        }  # fmt: skip
        conf = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "3g",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": f"file://{folder}",
        }
        sections: dict[str, Any] = {
            "lake": {"path": f"s3://lake/{name}", "storage": storage},
            "spark": {"master": master, "conf": conf},
            "apply": {"span_rows": span},
        }
        tables = [f"orders_{number}" for number in range(len(rows))]
        self.project = project_of(folder, name, "delta", tables, **sections)
        self.spark = start(self.project)
        self.relations = [orders(table) for table in tables]
        self._bronze = bronze_writer(self.project)
        self._bronze.begin_stream("bench", 1)
        self._position = 1_000
        own = derive(self.spark)
        for layout, count in zip(self.relations, rows, strict=True):
            silver = store(own, self.project, self.project.target(layout.table))
            silver.create(make_shape([layout.layout], {layout.layout: layout}, None).columns, "bench")
            base = own.range(0, count, 1, 8 if count > PER_TRANSACTION else 1)
            base.selectExpr(*(f"{sql} AS `{column}`" for column, sql in BASE.items())).createOrReplaceTempView("base")
            own.sql(f"INSERT INTO {silver.name} SELECT * FROM base")
            mark_when_large(own, self.project, self.project.target(layout.table))

    def land(self, changes: Sequence[Change]) -> None:
        """Land changes in bronze."""
        parts = []
        for at in range(0, len(changes), PER_TRANSACTION):
            self._position += 1_000
            some = tuple(changes[at : at + PER_TRANSACTION])
            parts.append(raw_transaction(Transaction(boundaries(self._position), some)))
        for at in range(0, len(parts), 100):
            self._bronze.append(parts[at : at + 100])

    def apply(self) -> tuple[float, float]:
        """Apply what was landed; when it began and ended."""
        begun = time.time()
        with SpanLoop(self.project, self.spark, silent) as loop:
            loop.run(None, threading.Event())
            for error in loop.totals.failed.values():
                raise error
        return begun, time.time()


def drive(name: str, master: str, endpoint: str, rows: int, changes: int) -> dict[str, float]:
    """Apply a span to a large table, as the driver; what it took."""
    with tempfile.TemporaryDirectory() as folder:
        driver = Driver(Path(folder), name, master, endpoint, [rows], changes)
        driver.land(large_change(driver.relations[0], rows, changes))
        before = counted(endpoint)
        begun, ended = driver.apply()
        sent = counted(endpoint)
        driver.spark.stop()
        (log,) = Path(folder).glob("app-*")
        took = of_tasks(log, begun, ended)
    for reader in ("driver", "executors"):
        took[f"{reader}_bytes"] = sent.get(reader, 0) - before.get(reader, 0)
    return took


def drive_beside(name: str, master: str, endpoint: str, rows: int, changes: int) -> dict[str, float]:
    """Apply spans to small tables, alone and with a large one; by how much later each is committed with it."""
    with tempfile.TemporaryDirectory() as folder:
        driver = Driver(Path(folder), name, master, endpoint, [rows, *[SMALL_ROWS] * SMALL_TABLES], changes)
        large, *small = driver.relations
        logs = [DeltaTableLog(driver.project, driver.project.target(layout.table)) for layout in small]
        seconds: list[list[float]] = []
        for number in range(3):  # the first warms up
            made = [
                change for layout in small for change in Workload(layout, SMALL_ROWS, SMALL_ROWS // 20).round(number)[0]
            ]
            if number == 2:
                made += large_change(large, rows, changes)
            driver.land(made)
            begun, _ = driver.apply()
            seconds.append([committed(log) - begun for log in logs])
        driver.spark.stop()
    _, alone, beside = seconds
    ratios = [with_it / without for without, with_it in zip(alone, beside, strict=True)]
    return {"alone": median(alone), "beside": median(beside), "ratio": median(ratios), "worst": max(ratios)}


def large_change(layout: Relation, rows: int, changes: int) -> list[Change]:
    """Changes of a large part of a table."""
    workload = Workload(layout, rows, changes // ROUNDS_AT_MOST)
    return [change for number in range(ROUNDS_AT_MOST) for change in workload.round(number)[0]]


def committed(log: DeltaTableLog) -> float:
    """When the newest version of a table was committed."""
    version = log.version()
    assert version is not None
    at = log.committed_at(version)
    assert at is not None
    return at.timestamp()


def counted(endpoint: str) -> dict[str, int]:
    with urlopen(f"{endpoint}{COUNTED}") as answer:
        return dict(json.load(answer))


def of_tasks(log: Path, begun: float, ended: float) -> dict[str, float]:
    """Seconds of a period: as the clock has it, of the processor in tasks, and without a task."""
    tasks, cpu = [], 0
    for line in log.read_text().splitlines():
        event = json.loads(line)
        if event["Event"] == "SparkListenerTaskEnd" and event["Task Info"]["Launch Time"] / 1000 >= begun:
            tasks.append((event["Task Info"]["Launch Time"] / 1000, event["Task Info"]["Finish Time"] / 1000))
            cpu += event["Task Metrics"]["Executor CPU Time"]
    busy, until = 0.0, begun
    for first, last in sorted(tasks):
        busy += max(0.0, last - max(first, until))
        until = max(until, last)
    return {"seconds": ended - begun, "executor_cpu": cpu / 1e9, "serial": ended - begun - busy, "tasks": len(tasks)}


def measure(what: str, workers: int, round_: int, endpoint: str, given: argparse.Namespace) -> dict[str, Any]:
    """A run in processes of its own, with a lake of its own."""
    until = time.monotonic() + SETTLES
    while (load := os.getloadavg()[0]) > given.load:  # it still counts the run before
        if time.monotonic() > until:
            raise SystemExit(f"the machine is not idle: its load is {load:.1f}")
        time.sleep(1)
    with tempfile.TemporaryDirectory() as folder:
        hidden = [Path(folder) / "hidden"]
        hidden[0].mkdir()
        with SparkCluster(Path(folder) / "logs", hidden, workers, memory="4g", pinned=True) as cluster:
            sizes = map(str, (given.rows, given.changes))
            words = [f"bench_{what}_{workers}_{round_}", cluster.master, endpoint, *sizes]
            command = ["nice", "-n", "19", sys.executable, __file__, f"--{what}", *words]
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=hidden[0])
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    took = {"what": what, "workers": workers, "round": round_, **json.loads(done.stdout.splitlines()[-1])}
    print(f"  {took}", flush=True)
    return took


def main() -> None:
    match sys.argv[1:]:
        case ["--serve"]:
            serve()
        case ["--drive" | "--beside" as what, name, master, endpoint, rows, changes]:
            driven = drive if what == "--drive" else drive_beside
            print(json.dumps(driven(name, master, endpoint, int(rows), int(changes))))
        case _:
            compare()


def compare() -> None:
    """Measure one worker and two."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"rows": 3_000_000, "changes": 1_000_000, "rounds": 2}.items():
        options.add_argument(f"--{name}", type=int, default=value)
    options.add_argument("--load", type=float, default=2.5)
    options.add_argument("--no-save", action="store_true", help="print only")
    given = options.parse_args()
    command = ["nice", "-n", "19", sys.executable, __file__, "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        endpoint = served.stdout.readline().strip()
        try:
            order = [workers for n in range(given.rounds) for workers in ((1, 2) if n % 2 == 0 else (2, 1))]
            runs = [measure("drive", workers, n, endpoint, given) for n, workers in enumerate(order)]
            runs += [measure("beside", 2, n, endpoint, given) for n in range(given.rounds)]
        finally:
            served.kill()
    parameters = {"rows": given.rows, "changes": given.changes}
    conclude("cluster", parameters=parameters, runs=runs, tables=tables_of(runs), keep=not given.no_save)


def tables_of(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows, walls = [], {}
    for workers in (1, 2):
        mine = [run for run in runs if run["what"] == "drive" and run["workers"] == workers]
        walls[workers] = median(run["seconds"] for run in mine)
        rows.append(
            (
                workers,
                f"{walls[workers]:.1f}",
                f"{walls[1] / walls[workers]:.2f}",
                f"{median(run['executor_cpu'] for run in mine):.1f}",
                f"{median(100 * run['serial'] / run['seconds'] for run in mine):.0f} %",
                f"{median(run['driver_bytes'] for run in mine) / 2**20:.1f}",
                f"{median(run['executors_bytes'] for run in mine) / 2**20:.1f}",
            )
        )
    head = (
        "workers",
        "span, s",
        "times as fast",
        "processor, s",
        "without a task",
        "bronze to driver, MiB",
        "to executors",
    )
    mine = [run for run in runs if run["what"] == "beside"]
    cells = (f"{median(run[name] for run in mine):.2f}" for name in ("alone", "beside", "ratio", "worst"))
    of_small = ("alone, s", "beside a large merge, s", "times as late", "the latest")
    return [
        table("A span on a Spark cluster", head, rows),
        table(f"The commits of {SMALL_TABLES} small tables on two workers", of_small, [tuple(cells)]),
    ]


if __name__ == "__main__":
    main()
