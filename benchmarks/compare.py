"""One changed value in a large table found by `compare` while writes go on, beside the time of its initial copy.

    python benchmarks/compare.py [--rows 5000000] [--rounds 3] [--no-save]

The table of `pgoutput_backlog.py`, ten columns and about 270 bytes a row. The copy is `receive()` from an empty lake
until bronze has the table, which is only the first half of the way to silver. Silver is then written here as a Delta
table with one value changed, and stays as it is. A receiver runs and a writer does 20 transactions a second of 10
changes each while `compare` runs, each in a process of its own, on the server's two cores. Seconds run from before the
connection is made until the verdict; starting Python is not in them. Target: compare takes no longer than the copy.
Processor time of the server is that of all its processes, those that serve the receiver and the writer among them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pyarrow as pa
from deltalake import CommitProperties, Transaction, write_deltalake
from measured import conclude, median, peak_mib, table
from pyarrow import csv
from served import served
from steps import Place, Steps
from workload_sql import fill

from cdc_lake.bronze.open import bronze_reader, bronze_writer
from cdc_lake.comparison import compare as compare_table
from cdc_lake.comparison import row_sets
from cdc_lake.comparison.compare import compare
from cdc_lake.comparison.row_sets import SilverRowSet, SourceRowSet
from cdc_lake.config.project import Project
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import silent
from cdc_lake.runtime.receive.receiver import receive
from cdc_lake.tables.silver_table import FIRST, app_id
from cdc_lake_testing.server import EmbeddedServer

PLANTED = 4_321
ORDERS = TableName("public", "orders")
PHASES: list[Place] = [
    (SourceRowSet, "sums", "the source's sums"),
    (SilverRowSet, "sums", "silver's sums, beside them"),
    (row_sets, "both_sums", "waiting for the source's"),
    (compare_table, "_match_rows", "buckets that differ, read again"),
    (row_sets, "differing_keys", "what touched the key, in bronze"),
]
SCHEMA = pa.schema(
    [
        ("id", pa.int64()), ("customer", pa.int64()), ("state", pa.string()), ("amount", pa.decimal128(12, 2)),
        ("quantity", pa.int32()), ("note", pa.string()), ("email", pa.string()),
        ("created", pa.timestamp("us", tz="UTC")), ("changed", pa.timestamp("us")), ("paid", pa.bool_()),
    ]
)  # fmt: skip
WRITE = """
UPDATE orders SET quantity = quantity + 1
  WHERE id IN (SELECT 10000 + (random() * 100000)::int FROM generate_series(1, 9));
INSERT INTO orders (id, customer, state, note) SELECT max(id) + 1, 1, 'new', 'while it is compared' FROM orders
"""


def child(role: str, project: Project) -> None:
    """What one process does; it prints what it cost."""
    begun, cpu = time.perf_counter(), time.process_time()
    facts: dict[str, Any] = {}
    if role == "compare":
        with Steps(PHASES, clock=time.perf_counter) as phases:
            (found,) = compare(project, (), silent).tables
        facts = {
            "phases": phases.seconds,
            "verdict": found.text, "changed": found.changed, "others": found.missing + found.extra + found.repeated,
            "forward": found.rolled_forward, "hashed_by": found.hashed_by, "source_rows": found.source_rows,
            "matched": found.rows_matched, "reason": found.reason,
        }  # fmt: skip
    else:
        receive(project, bronze_writer(project), once=role == "copy", stop=threading.Event(), report=silent)
    facts |= {"seconds": time.perf_counter() - begun, "cpu": time.process_time() - cpu, "rss_mib": peak_mib()}
    print(json.dumps(facts))


def command(role: str, server: EmbeddedServer, root: Path) -> list[str]:
    return [sys.executable, __file__, "--role", role, "--server", str(server.folder), "--root", str(root)]


def ran(role: str, server: EmbeddedServer, root: Path) -> dict[str, Any]:
    before = processor_seconds(server)
    done = subprocess.run(command(role, server, root), check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"role": role, **found, "server_cpu": processor_seconds(server) - before}


def processor_seconds(server: EmbeddedServer) -> float:
    """What all processes of the server took so far."""
    postmaster = psutil.Process(server.pid)
    total = 0.0
    for one in (postmaster, *postmaster.children()):
        with suppress(psutil.NoSuchProcess):  # it ended: the postmaster has it among its children's
            used = one.cpu_times()
            total += used.user + used.system
    ended = postmaster.cpu_times()
    return total + ended.children_user + ended.children_system


def write_silver(project: Project, admin: psycopg.Connection[Any], root: Path) -> None:
    """Silver as the source is, but for one value."""
    columns = ", ".join(SCHEMA.names).replace("note", f"CASE WHEN id = {PLANTED} THEN 'other' ELSE note END")
    columns = columns.replace("paid", "CASE WHEN paid THEN 'true' ELSE 'false' END")
    file = root / "orders.csv"
    with (
        file.open("wb") as out,
        admin.cursor().copy(f"COPY (SELECT {columns} FROM orders) TO STDOUT (FORMAT csv)") as rows,
    ):
        for row in rows:
            out.write(row)
    options = csv.ConvertOptions(column_types=SCHEMA)
    read = csv.ReadOptions(column_names=SCHEMA.names)
    state, target = bronze_reader(project).state(), project.target(ORDERS)
    assert state is not None
    marker = CommitProperties(app_transactions=[Transaction(app_id(state.stream, target, FIRST), state.upto)])
    with csv.open_csv(file, read_options=read, convert_options=options) as blocks:
        write_deltalake(str(project.silver_path(target)), blocks, commit_properties=marker)
    file.unlink()


@contextmanager
def busy(server: EmbeddedServer, root: Path) -> Iterator[None]:
    """A receiver and a writer, as long as it lasts."""
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(server.dsn("postgres"), autocommit=False) as session:
            while not stop.wait(0.05):
                session.execute(WRITE)
                session.commit()

    receiver, writer = subprocess.Popen(command("receive", server, root)), threading.Thread(target=write)
    writer.start()
    try:
        time.sleep(3)  # until the receiver has the slot
        yield
    finally:
        stop.set()
        writer.join()
        receiver.kill()
        receiver.wait()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=5_000_000)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--no-save", action="store_true")
    options.add_argument("--role", choices=["copy", "receive", "compare"], help=argparse.SUPPRESS)
    options.add_argument("--server", help=argparse.SUPPRESS)
    options.add_argument("--root", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.role:
        child(given.role, served(EmbeddedServer(Path(given.server)), Path(given.root), "compared"))
        return
    with tempfile.TemporaryDirectory() as folder:
        runs = measure(given, Path(folder))
    report(given, runs)


def measure(given: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    server = EmbeddedServer(folder / "server")
    server.start()
    root = folder / "lake"
    root.mkdir()
    project = served(server, root, "compared")
    try:
        with psycopg.connect(server.dsn("postgres"), autocommit=True) as admin:
            fill(admin, given.rows)
            runs = [ran("copy", server, root)]
            write_silver(project, admin, root)
        with busy(server, root):
            runs += [ran("compare", server, root) for _ in range(given.rounds)]
    finally:
        server.stop()
    for run in runs[1:]:
        if (run["changed"], run["others"]) != (1, 0) or not run["forward"]:
            raise SystemExit(f"that is not the one value that was changed: {run}")
    return runs


def report(given: argparse.Namespace, runs: list[dict[str, Any]]) -> None:
    copy, compares = runs[0], runs[1:]
    tables = [
        table(
            "One changed value found",
            ["", "s", "its processor s", "the server's", "transactions folded", "rows matched", "peak MiB"],
            [
                ["initial copy into bronze", *spent(copy), "", "", f"{copy['rss_mib']:.0f}"],
                *(
                    [f"compare {n}", *spent(run), f"{run['forward']:,}", f"{run['matched']:,}", f"{run['rss_mib']:.0f}"]
                    for n, run in enumerate(compares, 1)
                ),
            ],
        ),
        table(
            "Where the seconds of compare go (median)",
            ["", "s"],
            [
                *([step, f"{median(run['phases'][step] for run in compares):.1f}"] for _, _, step in PHASES),
                ["the snapshot, rolling forward, the report", f"{median(map(rest, compares)):.1f}"],
            ],
        ),
    ]
    parameters = {"rows": given.rows, "rounds": given.rounds}
    conclude("compare", parameters=parameters, runs=runs, tables=tables, keep=not given.no_save)


def rest(run: dict[str, Any]) -> float:
    """The seconds outside the phases; the source's sums are beside silver's."""
    _, *alone = (run["phases"][step] for _, _, step in PHASES)
    return float(run["seconds"] - sum(alone))


def spent(run: dict[str, Any]) -> list[str]:
    return [f"{run[name]:.1f}" for name in ("seconds", "cpu", "server_cpu")]


if __name__ == "__main__":
    main()
