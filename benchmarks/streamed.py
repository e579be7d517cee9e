"""One large transaction into Delta bronze: how quickly with streaming and without, and in how much memory.

    python benchmarks/streamed.py [--changes 1000000] [--rounds 2] [--sizes 10 200 1000]

Rows are those of `snapshot.py`, about 250 bytes a change as it is sent, all inserted by one transaction. Ours is
`receive()` in a process of its own: with the newest protocol, which streams a transaction while it is under way, and
with protocol 1, which sends it once it is committed. *Under way*: the receiver runs beside the transaction; seconds run
from the end of its COMMIT until bronze has it. *Backlog*: the transaction is over before the receiver starts; seconds
run from before the connection is made until bronze has it. Peaks of memory are those of backlogs. The server is on the
same machine and competes for the same cores. Of each run the chain is verified, and bronze amounts
to the source's rows.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import as_shipped  # before anything else loads Arrow
import psycopg
from end_state import landed, of_source
from measured import carry_out, costing, median, options_of, table
from served import served
from workload_sql import FILL, TABLE

from cdc_lake.bronze.contract import TransactionBatch
from cdc_lake.bronze.open import bronze_reader, bronze_writer
from cdc_lake.cli.arrow_memory import giving_back
from cdc_lake.config.project import Project
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.runtime.receive.commit_pipeline import BronzeCommitPipeline
from cdc_lake.runtime.receive.receiver import receive
from cdc_lake_testing.server import EmbeddedServer

CHANGE_BYTES = 249
STREAMED, WHOLE = "streamed", "protocol 1"

Seconds = Callable[[dict[str, Any]], tuple[float, float]]
"""Of what a receiver says: the seconds until the COMMIT had come, and until bronze had the transaction."""


def project_of(server: EmbeddedServer, root: Path, name: str, kind: str) -> Project:
    folder = root / name
    folder.mkdir(exist_ok=True)
    source = {"publication": "bench", "decoding": {"proto_version": 1} if kind == WHOLE else {}}
    return served(server, folder, name, source=source, snapshot={"mode": "none"})


def receive_here(given: argparse.Namespace) -> None:
    """The child: receive until the goal or, under way, until so many changes have landed; say what it cost."""
    project = project_of(EmbeddedServer(Path(given.server)), Path(given.root), given.receive, given.kind)
    stop = threading.Event()
    counting = _Counting(given.until, stop)
    begun = time.monotonic()
    once = given.until is None
    append, whole = BronzeCommitPipeline.append, []

    def noted(landing: BronzeCommitPipeline, batch: TransactionBatch) -> None:
        whole.append(time.monotonic())
        append(landing, batch)

    with costing(project.lake) as cost, mock.patch.object(BronzeCommitPipeline, "append", noted):
        tell = as_shipped.tell if once else giving_back(counting)
        done = receive(project, bronze_writer(project), once=once, stop=stop, report=tell)
    facts = {
        "seconds": time.monotonic() - begun,
        "sending": (whole[-1] if whole else begun) - begun,
        "whole": whole[-1] if whole else None,
        "landed": counting.at,
        "changes": done.changes,
        "bytes": done.bytes,
        **cost,
    }
    print(json.dumps(facts))


class _Counting:
    """Stops when so many changes have landed; `at`: the monotonic clock then."""

    def __init__(self, until: int | None, stop: threading.Event) -> None:
        self._until = until
        self._stop = stop
        self._changes = 0
        self.at: float | None = None

    def __call__(self, progress: ProgressEvent) -> None:
        if progress.stage == "landed":
            self._changes += progress.facts["changes"]
            if self._until is not None and self._changes >= self._until and self.at is None:
                self.at = time.monotonic()
                self._stop.set()


class Bench:
    """A server with an empty table, and receivers of it."""

    def __init__(self, server: EmbeddedServer, root: Path, admin: psycopg.Connection[Any]) -> None:
        self._server = server
        self._root = root
        self._admin = admin
        admin.execute(TABLE)
        admin.execute("CREATE PUBLICATION bench FOR TABLE orders")

    def backlog(self, name: str, kind: str, rows: int) -> dict[str, Any]:
        """The transaction is over, then the receiver starts."""
        self._ended(self._start(name, kind))  # makes the slot and begins the stream
        self._write(rows)
        child = self._start(name, kind)
        return self._result(name, kind, rows, child, lambda facts: (facts["sending"], facts["seconds"]))

    def under_way(self, name: str, kind: str, rows: int) -> dict[str, Any]:
        """The receiver runs, then the transaction begins."""
        self._ended(self._start(name, kind))
        child = self._start(name, kind, "--until", str(rows))
        while not self._value("SELECT active FROM pg_replication_slots WHERE slot_name = %s", name):
            time.sleep(0.05)
        time.sleep(0.5)
        self._write(rows)
        committed = time.monotonic()
        seconds: Seconds = lambda facts: (facts["whole"] - committed, facts["landed"] - committed)  # noqa: E731
        return self._result(name, kind, rows, child, seconds)

    def _result(
        self,
        name: str,
        kind: str,
        rows: int,
        child: subprocess.Popen[str],
        seconds: Seconds,
    ) -> dict[str, Any]:
        facts, reader = self._ended(child), bronze_reader(project_of(self._server, self._root, name, kind))
        landed(name, reader, of_source(self._admin), transactions=1, changes=rows)
        self._admin.execute("SELECT pg_drop_replication_slot(%s)", [name])
        self._admin.execute("TRUNCATE orders")
        sent, all_of_it = seconds(facts)
        facts |= {"kind": kind, "sent": sent, "seconds": all_of_it}
        return facts | {"rate": facts["changes"] / facts["seconds"]}

    def _write(self, rows: int) -> None:
        self._admin.execute(FILL.format(rows=rows))

    def _value(self, query: str, *values: Any) -> Any:
        row = self._admin.execute(query, values).fetchone()
        return row and row[0]

    def _start(self, name: str, kind: str, *more: str) -> subprocess.Popen[str]:
        command = [
            sys.executable, __file__, "--receive", name, "--kind", kind, "--server", str(self._server.folder),
            "--root", str(self._root), *more,
        ]  # fmt: skip
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def _ended(self, child: subprocess.Popen[str]) -> dict[str, Any]:
        said, _ = child.communicate()
        if child.returncode:
            raise SystemExit(f"the receiver ended with {child.returncode}")
        return dict(json.loads(said.splitlines()[-1]))


def measure(given: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    server = EmbeddedServer(folder / "server", settings={"max_wal_size": "8GB", "autovacuum": "off"}).start()
    runs = []
    try:
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            bench = Bench(server, folder, admin)
            for n in range(given.rounds + 1):
                for how, run_it in (("under way", bench.under_way), ("backlog", bench.backlog)):
                    for kind in (STREAMED, WHOLE) if n % 2 else (WHOLE, STREAMED):
                        name = f"{how}_{kind}_{n}".replace(" ", "_")
                        run = {"how": how, "round": n, **run_it(name, kind, given.changes)}
                        print(f"  round {n} {how:10} {kind:10} {run['rate']:10,.0f} changes/s", flush=True)
                        runs.append(run)
            for size in given.sizes:
                run = {"how": "memory", "round": 1, "megabytes": size}
                run |= bench.backlog(f"memory_{size}", STREAMED, size * 1_000_000 // CHANGE_BYTES)
                print(f"  {size:,} MB: {run['rss_mib']:.0f} MiB", flush=True)
                runs.append(run)
        return runs
    finally:
        server.remove()


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    counted = [run for run in runs if run["round"] > 0]  # round 0 warms the page cache
    rates, rows = {}, []
    for how in ("under way", "backlog"):
        for kind in (STREAMED, WHOLE):
            mine = [run for run in counted if (run["how"], run["kind"]) == (how, kind)]
            rates[how, kind] = median(run["rate"] for run in mine)
            seconds, sent, cpu = (median(run[name] for run in mine) for name in ("seconds", "sent", "cpu"))
            behind = median(run["seconds"] - run["sent"] for run in mine)
            times = (f"{seconds:.2f}", f"{sent:.2f}", f"{behind:.2f}")
            rows.append((f"{how}, {kind}", *times, f"{rates[how, kind]:,.0f}", f"{cpu:.1f}"))
    return [
        table(
            "One transaction into bronze",
            ("", "seconds", "until its COMMIT came", "from there to bronze", "changes/s", "CPU s"),
            rows,
        ),
        table(
            "Its memory, streamed",
            ("", "peak MiB", "MB received"),
            [
                (f"{run['megabytes']:,} MB", f"{run['rss_mib']:.0f}", f"{run['bytes'] / 1e6:,.0f}")
                for run in counted
                if run["how"] == "memory"
            ],
        ),
    ]


def main() -> None:
    options = options_of(__doc__, "--receive", "--kind")
    options.add_argument("--changes", type=int, default=1_000_000)
    options.add_argument("--rounds", type=int, default=2, help="counted rounds; one more warms up")
    options.add_argument("--sizes", type=int, nargs="+", default=[10, 200, 1000], help="megabytes")
    options.add_argument("--until", type=int, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.receive:
        receive_here(given)
        return
    carry_out("streamed", given, ("changes", "rounds"), measure, summary)


if __name__ == "__main__":
    main()
