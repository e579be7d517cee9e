"""The initial copy of a large table into bronze, by one connection and by several, beside what the server can send.

    python benchmarks/snapshot.py [--rows 5000000] [--rounds 2] [--format delta] [--parallelism 1 2 3]

The table has the ten columns of `pgoutput_backlog.py`, about 230 bytes of text a row. Ours is `receive()` in a process
of its own that makes the slot, copies the table and ends: COPY, Parquet with zstd, commits of up to 100,000 rows,
fsync. The peer is `psql` with COPY of the whole table to /dev/null. They alternate; the server is on the same machine
and competes for the same cores. Seconds of ours run from before the connection is made until the copy is recorded as
complete.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import as_shipped  # before anything else loads Arrow
import psycopg
from measured import carry_out, median, options_of, peak_mib, table
from served import served
from workload_sql import fill

from cdc_lake.bronze.open import bronze_writer
from cdc_lake.runtime.receive.receiver import receive
from cdc_lake_testing.server import HOST, SUPERUSER, EmbeddedServer


def copy_here(given: argparse.Namespace) -> None:
    """The child: copy the table, say what it cost."""
    folder = Path(given.root) / given.copy
    folder.mkdir()
    settings = {"snapshot": {"parallelism": given.parallelism[0]}, "bronze": {"format": given.format}}
    project = served(
        EmbeddedServer(Path(given.server)), folder, given.copy, source={"publication": "bench"}, **settings
    )
    begun = time.perf_counter()
    done = receive(project, bronze_writer(project), once=True, stop=threading.Event(), report=as_shipped.tell)
    seconds = time.perf_counter() - begun
    used = resource.getrusage(resource.RUSAGE_SELF)
    facts = {
        "seconds": seconds,
        "rows": done.snapshot_rows,
        "cpu": used.ru_utime + used.ru_stime,
        "rss_mib": peak_mib(),
    }
    print(json.dumps(facts))


def ours(server: EmbeddedServer, root: Path, name: str, fmt: str, parallelism: int) -> dict[str, Any]:
    command = [
        sys.executable, __file__, "--copy", name, "--server", str(server.folder), "--root", str(root),
        "--format", fmt, "--parallelism", str(parallelism),
    ]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute("SELECT pg_drop_replication_slot(%s)", [name])
    return {"peer": f"cdc_lake, parallelism {parallelism}", **json.loads(done.stdout.splitlines()[-1])}


def peer(server: EmbeddedServer, rows: int) -> dict[str, Any]:
    command = [
        str(server.binaries / "psql"), "-h", HOST, "-p", str(server.port), "-U", SUPERUSER, "-d", "postgres",
        "-c", "COPY orders TO STDOUT",
    ]  # fmt: skip
    begun = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "PGPASSWORD": server.password})
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"psql ended with {child.returncode}")
    return {
        "peer": "psql COPY",
        "seconds": time.perf_counter() - begun,
        "rows": rows,
        "cpu": used.ru_utime + used.ru_stime,
    }


def measure(given: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    server = EmbeddedServer(folder / "server", settings={"max_wal_size": "8GB"}).start()
    try:
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            print(f"writing {given.rows:,} rows", flush=True)
            fill(admin, given.rows)
            admin.execute("CREATE PUBLICATION bench FOR TABLE orders")
        runs = []
        for n in range(given.rounds + 1):
            sides = [
                partial(ours, server, folder, f"round_{n}_{count}", given.format, count) for count in given.parallelism
            ]
            sides.append(partial(peer, server, given.rows))
            for side in sides if n % 2 else reversed(sides):
                run = {"round": n, **side()}
                run["rate"] = run["rows"] / run["seconds"]
                print(f"  round {n} {run['peer']:25} {run['rate']:10,.0f} rows/s", flush=True)
                runs.append(run)
        if any(run["rows"] != given.rows for run in runs):
            raise SystemExit(f"expected {given.rows} rows: {[run['rows'] for run in runs]}")
        return runs
    finally:
        server.remove()


def summary(runs: list[dict[str, Any]], fmt: str) -> list[dict[str, Any]]:
    counted = [run for run in runs if run["round"] > 0]  # round 0 warms the page cache
    names = sorted({run["peer"] for run in counted})
    rows = []
    for name in names:
        mine = [run for run in counted if run["peer"] == name]
        rate = median(run["rate"] for run in mine)
        memory = f"{max(run['rss_mib'] for run in mine):.0f}" if "rss_mib" in mine[0] else ""
        rows.append((name, f"{rate:,.0f}", f"{median(run['cpu'] for run in mine):.1f}", memory))
    return [
        table(f"Initial copy into {fmt} bronze", ("", "median rows/s", "CPU s", "peak MiB"), rows),
    ]


def main() -> None:
    options = options_of(__doc__, "--copy")
    options.add_argument("--rows", type=int, default=5_000_000)
    options.add_argument("--rounds", type=int, default=2, help="counted rounds; one more warms up")
    options.add_argument("--format", choices=("delta", "iceberg"), default="delta")
    options.add_argument("--parallelism", type=int, nargs="+", default=[1, 2, 3])
    given = options.parse_args()
    if given.copy:
        copy_here(given)
        return
    carry_out("snapshot", given, ("rows", "rounds", "format"), measure, lambda runs: summary(runs, given.format))


if __name__ == "__main__":
    main()
