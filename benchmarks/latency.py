"""From COMMIT to bronze: how long a change is under way while changes come steadily.

    python benchmarks/latency.py [--rate 1000] [--seconds 60] [--rows 5] [--format delta]

One connection inserts `rows` rows of the table of `pgoutput_backlog.py` in each transaction, at `rate` changes a
second. Ours is `receive()` in a process of its own, with the batches it makes by default. The clock of each transaction
runs from the end of its COMMIT until the commit of bronze that holds it is durable and confirmed. The server is on the
same machine and competes for the same cores. At the end the chain is verified, and bronze amounts to the source's rows.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import as_shipped  # noqa: F401  # before anything else loads Arrow
import psycopg
from end_state import landed, of_source
from measured import carry_out, costing, options_of, table
from served import served
from workload_sql import FILL, TABLE

from cdc_lake.bronze.open import bronze_reader, bronze_writer
from cdc_lake.config.project import Project
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.runtime.receive.receiver import receive
from cdc_lake_testing.server import EmbeddedServer

WARM = 5  # seconds that are not counted: compiled code, caches, the first commits


class _Landings:
    """When how many transactions were in bronze; stops with the last one."""

    def __init__(self, until: int, stop: threading.Event) -> None:
        self._until = until
        self._stop = stop
        self.landed: list[tuple[float, int]] = [(time.monotonic(), 0)]

    def __call__(self, progress: ProgressEvent) -> None:
        if progress.stage == "landed":
            count = self.landed[-1][1] + progress.facts["transactions"]
            self.landed.append((time.monotonic(), count))
            if count >= self._until:
                self._stop.set()


def project_of(server: EmbeddedServer, root: Path, fmt: str) -> Project:
    settings = {"snapshot": {"mode": "none"}, "bronze": {"format": fmt}}
    return served(server, root, "latency", source={"publication": "bench"}, **settings)


def receive_here(given: argparse.Namespace) -> None:
    """The child: receive until so many transactions have landed, say when they did."""
    project = project_of(EmbeddedServer(Path(given.server)), Path(given.root), given.format)
    stop = threading.Event()
    landings = _Landings(given.receive, stop)
    with costing(project.lake) as cost:
        receive(project, bronze_writer(project), once=False, stop=stop, report=landings)
    print(json.dumps({"landed": landings.landed, **cost}))


def measure(given: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    server = EmbeddedServer(folder / "server").start()
    root = folder / "lake"
    root.mkdir()
    transactions = given.rate * (WARM + given.seconds) // given.rows
    command = [
        sys.executable, __file__, "--receive", str(transactions), "--server", str(server.folder), "--root", str(root),
        "--format", given.format,
    ]  # fmt: skip
    try:
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            admin.execute(TABLE)
            admin.execute("CREATE PUBLICATION bench FOR TABLE orders")
            child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            while not _active(admin):
                time.sleep(0.05)
            committed = write(admin, transactions, given.rows, given.rows / given.rate)
            said, _ = child.communicate()
            if child.returncode:
                raise SystemExit(f"the receiver ended with {child.returncode}")
            reader = bronze_reader(project_of(server, root, given.format))
            landed("latency", reader, of_source(admin), transactions, changes=transactions * given.rows)
    finally:
        server.remove()
    facts = json.loads(said.splitlines()[-1])
    warm = given.rate * WARM // given.rows
    waits = sorted(delays(committed, facts["landed"])[warm:])
    run = {
        "transactions": len(waits),
        "commits": sum(at >= committed[warm] for at, _ in facts["landed"]),
        "p50_ms": _quantile(waits, 0.5) * 1000,
        "p99_ms": _quantile(waits, 0.99) * 1000,
        "most_ms": waits[-1] * 1000,
        "late_ms": max(0.0, committed[-1] - committed[0] - transactions * given.rows / given.rate) * 1000,
        **{name: facts[name] for name in ("cpu", "rss_mib", "bytes_written", "files_written")},
    }
    return [run]


def _active(admin: psycopg.Connection[Any]) -> bool:
    row = admin.execute("SELECT bool_or(active) FROM pg_replication_slots WHERE NOT temporary").fetchone()
    return row is not None and bool(row[0])


def write(admin: psycopg.Connection[Any], transactions: int, rows: int, pause: float) -> list[float]:
    """Transactions at an even pace; when each was committed."""
    statement = FILL.replace("generate_series(1, {rows})", "generate_series(%s::int, %s::int)").replace("%", "%%")
    statement = statement.replace("%%s", "%s")
    committed = []
    begun = time.monotonic()
    for nth in range(transactions):
        if (left := begun + nth * pause - time.monotonic()) > 0:
            time.sleep(left)
        admin.execute(statement, [nth * rows + 1, (nth + 1) * rows])
        committed.append(time.monotonic())
    return committed


def delays(committed: Sequence[float], landed: Sequence[tuple[float, int]]) -> list[float]:
    """Seconds from the COMMIT of each transaction until so many had landed."""
    waits, rest = [], iter(landed)
    at, count = next(rest)
    for nth, commit in enumerate(committed, 1):
        while count < nth:
            at, count = next(rest)
        waits.append(at - commit)
    return waits


def _quantile(ascending: Sequence[float], share: float) -> float:
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))]


def summary(run: dict[str, Any]) -> list[dict[str, Any]]:
    milliseconds = [f"{run[name]:.0f}" for name in ("p50_ms", "p99_ms", "most_ms")]
    return [
        table(
            "From COMMIT to bronze",
            ("transactions", "p50 ms", "p99 ms", "most ms", "commits of bronze", "CPU s", "peak MiB"),
            [
                (
                    f"{run['transactions']:,}",
                    *milliseconds,
                    f"{run['commits']:,}",
                    f"{run['cpu']:.1f}",
                    f"{run['rss_mib']:.0f}",
                )
            ],
        ),
    ]


def main() -> None:
    options = options_of(__doc__)
    options.add_argument("--rate", type=int, default=1_000, help="changes a second")
    options.add_argument("--rows", type=int, default=5, help="changes of a transaction")
    options.add_argument("--seconds", type=int, default=60)
    options.add_argument("--format", choices=("delta", "iceberg"), default="delta")
    options.add_argument("--receive", type=int, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.receive:
        receive_here(given)
        return
    carry_out("latency", given, ("rate", "rows", "seconds"), measure, lambda runs: summary(runs[0]))


if __name__ == "__main__":
    main()
