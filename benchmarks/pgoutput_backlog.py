"""A retained backlog drained into Delta bronze, beside `pg_recvlogical -f /dev/null` on a copy of the same slot.

    python benchmarks/pgoutput_backlog.py [--changes 1000000] [--rounds 3] [--plugin test_decoding --programs DIR]

Ten columns, about 270 bytes a change, 1,000 changes a transaction: 80 % inserts, 15 % updates, 5 % deletes. Ours is
`receive()` in a process of its own: protocol, decoding, hash chain, Parquet, Delta commit, fsync, confirmation. The two
alternate; the server is on the same machine and competes for the same cores. Seconds of ours run from before the
connection is made until bronze is complete; starting Python is not in it (`process` has it).

With `test_decoding`, which the wheel does not bring, the programs of a server that has it are named, such as
/usr/lib/postgresql/15/bin.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import as_shipped  # before anything else loads Arrow
import psycopg
from measured import carry_out, costing, median, options_of, table
from served import served
from workload_sql import BLOCK, publish

from cdc_lake.bronze.open import bronze_writer
from cdc_lake.config.project import Project
from cdc_lake.runtime.receive.receiver import receive
from cdc_lake.source.postgres.plugins import LINE_OPTIONS, PGOUTPUT, TEST_DECODING, message_options
from cdc_lake_testing.server import HOST, SUPERUSER, EmbeddedServer


def project_of(server: EmbeddedServer, root: Path, name: str, plugin: str) -> Project:
    folder = root / name
    folder.mkdir(exist_ok=True)
    source = {"publication": "bench"} if plugin == PGOUTPUT else {"slot": {"plugin": plugin}}
    return served(server, folder, name, source=source, snapshot={"mode": "none"})


def receive_here(arguments: argparse.Namespace) -> None:
    """The child: receive until the goal, say what it cost."""
    server = EmbeddedServer(Path(arguments.server), binaries=arguments.programs)
    project = project_of(server, Path(arguments.root), arguments.receive, arguments.plugin)
    begun = time.perf_counter()
    bronze = bronze_writer(project)
    with costing(project.lake) as cost:
        if arguments.profile:
            profile = cProfile.Profile()
            done = profile.runcall(receive, project, bronze, once=True, stop=threading.Event(), report=as_shipped.tell)
            profile.dump_stats(arguments.profile)
        else:
            done = receive(project, bronze, once=True, stop=threading.Event(), report=as_shipped.tell)
    seconds = time.perf_counter() - begun
    facts = {
        "seconds": seconds,
        "changes": done.changes,
        "bytes": done.bytes,
        **cost,
        "files": sum(1 for _ in project.bronze.glob("*.parquet")),
        "bronze_bytes": sum(path.stat().st_size for path in project.bronze.glob("*.parquet")),
    }
    print(json.dumps(facts))


def ours(server: EmbeddedServer, root: Path, name: str, plugin: str, profile: str | None) -> dict[str, Any]:
    command = [sys.executable, __file__, "--receive", name, "--server", str(server.folder), "--root", str(root)]
    command += ["--plugin", plugin, "--programs", str(server.binaries)]
    if profile:
        command += ["--profile", profile]
    begun = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return {"peer": "cdc_lake", "process": time.perf_counter() - begun, **json.loads(done.stdout.splitlines()[-1])}


def peer(server: EmbeddedServer, slot: str, plugin: str, end: str, changes: int) -> dict[str, Any]:
    asked = message_options("bench") if plugin == PGOUTPUT else LINE_OPTIONS
    command = [
        str(server.binaries / "pg_recvlogical"), "--start", "--slot", slot, "-f", os.devnull, "--endpos", end,
        "--no-loop", *(word for name, value in asked.items() for word in ("-o", f"{name}={value}")),
        "-h", HOST, "-p", str(server.port), "-U", SUPERUSER, "-d", "postgres",
    ]  # fmt: skip
    begun = time.perf_counter()
    child = subprocess.Popen(command, env={**os.environ, "PGPASSWORD": server.password})
    _, status, used = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - begun
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"pg_recvlogical ended with {child.returncode}")
    return {"peer": "pg_recvlogical", "seconds": seconds, "changes": changes, "cpu": used.ru_utime + used.ru_stime}


def measure(given: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    changes, rounds, plugin, profile = given.changes, given.rounds, given.plugin, given.profile
    blocks = changes // BLOCK
    server = EmbeddedServer(folder / "server", settings={"max_wal_size": "8GB"}, binaries=given.programs).start()
    try:
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            publish(admin)
            names = [f"round_{n}" for n in range(rounds + 1)]
            for name in names:  # a first run on a quiet server makes the slot and begins the stream
                ours(server, folder, name, plugin, None)
            print(f"writing {blocks * BLOCK:,} changes", flush=True)
            admin.execute("CALL backlog(1, %s)", [blocks])
            (end,) = admin.execute("SELECT pg_current_wal_lsn()::text").fetchone() or ("",)
            for name in names:
                admin.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", [name, f"peer_{name}"])
            runs = []
            for n, name in enumerate(names):
                sides = [
                    partial(ours, server, folder, name, plugin, profile),
                    partial(peer, server, f"peer_{name}", plugin, end, changes),
                ]
                for side in sides if n % 2 else reversed(sides):
                    run = {"round": n, **side()}
                    run["rate"] = run["changes"] / run["seconds"]
                    print(f"  round {n} {run['peer']:15} {run['rate']:10,.0f} changes/s", flush=True)
                    runs.append(run)
                admin.execute(
                    "SELECT pg_drop_replication_slot(%s), pg_drop_replication_slot(%s)", [name, f"peer_{name}"]
                )
            expected = blocks * BLOCK
            if any(run["changes"] != expected for run in runs):
                raise SystemExit(f"expected {expected} changes: {[run['changes'] for run in runs]}")
            return runs
    finally:
        server.remove()


def summary(runs: list[dict[str, Any]], plugin: str) -> list[dict[str, Any]]:
    counted = [run for run in runs if run["round"] > 0]  # round 0 warms the page cache for both
    rows = []
    for name in ("pg_recvlogical", "cdc_lake"):
        mine = [run for run in counted if run["peer"] == name]
        rates = [run["rate"] for run in mine]
        rows.append(
            (
                name,
                f"{max(rates):,.0f}",
                f"{median(rates):,.0f}",
                f"{median(run['cpu'] for run in mine):.1f}",
                f"{max(run['rss_mib'] for run in mine):.0f}" if "rss_mib" in mine[0] else "",
            )
        )
    return [
        table(f"{plugin} backlog into bronze", ("", "best changes/s", "median changes/s", "CPU s", "peak MiB"), rows)
    ]


def main() -> None:
    options = options_of(__doc__, "--receive")
    options.add_argument("--changes", type=int, default=1_000_000)
    options.add_argument("--rounds", type=int, default=3, help="counted rounds; one more warms up")
    options.add_argument("--plugin", choices=(PGOUTPUT, TEST_DECODING), default=PGOUTPUT)
    options.add_argument("--programs", type=Path, help="the server's; those of the wheel if left out")
    options.add_argument("--profile", help="write a cProfile of the last round of ours to this file")
    given = options.parse_args()
    if given.receive:
        receive_here(given)
        return
    carry_out(
        f"{given.plugin}_backlog", given, ("changes", "rounds"), measure, lambda runs: summary(runs, given.plugin)
    )


if __name__ == "__main__":
    main()
