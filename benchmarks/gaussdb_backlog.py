"""A backlog of a GaussDB slot, style b in batches, from the wire into committed Delta bronze.

    python benchmarks/gaussdb_backlog.py [--rows 1000000] [--rounds 3] [--long 6000000]

Ten columns, about 390 bytes a row on the wire, 1,000 rows a transaction, 80/15/5 insert/update/delete, one transaction
in a hundred against the order of the CSNs. The sender is the test kit's server with everything encoded beforehand, in
a process of its own on the same cores. Ours is `receive()` with everything on: hash chain, CSN order, Parquet, Delta
commit, fsync, confirmation. The peer reads the same stream and throws it away: what sender and socket give. One more
run of ours, which does not count, times its steps, and one has a longer backlog, for the memory it takes.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import as_shipped  # before anything else loads Arrow
import psutil
import pyarrow.parquet as pq
from decode_mppdb import COLUMNS, ORDERS, some_row
from measured import conclude, median, table
from steps import Steps

from cdc_lake.bronze import row_builder, writer
from cdc_lake.bronze.open import bronze_writer
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project, effective_options
from cdc_lake.connectors import hashing_process
from cdc_lake.connectors.gaussdb.decoding import assembler_of, frames_of
from cdc_lake.decode import hashing
from cdc_lake.decode.gaussdb import columnar
from cdc_lake.decode.gaussdb.assembler import GaussDbAssembler
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import Column, Relation, ReplicaIdentity
from cdc_lake.runtime.receive.receiver import receive
from cdc_lake.source.gaussdb.server import target_of
from cdc_lake.source.gaussdb.stream import GaussDbStream
from cdc_lake.source.gaussdb.wire.session import connect
from cdc_lake_testing.gaussdb.declared import DeclaredTable
from cdc_lake_testing.gaussdb.ledger import Ledger, LedgerTransaction
from cdc_lake_testing.gaussdb.scripted import ScriptedAnswers
from cdc_lake_testing.gaussdb.server import GaussServer
from cdc_lake_testing.memory import hashing_beside, peak_mib

BLOCK = 1_000
STEP = 500  # bytes of WAL a row
FIGURES = ("", "best MB/s", "median MB/s", "rows/s", "CPU s", "sender's CPU s", "peak MiB")
RELATION = Relation(
    ORDERS,
    tuple(Column(name, kind, oid, -1, name == "id") for name, (kind, oid) in COLUMNS.items()),
    ReplicaIdentity.DEFAULT,
    ("id",),
)


def project_of(root: Path, name: str, port: int, replication_port: int) -> Project:
    source = {
        "type": "opengauss", "host": "127.0.0.1", "port": port, "replication_port": replication_port,
        "database": "postgres", "user": "cdc", "tls": {"mode": "disable"}, "tables": ["public.*"], "order": "csn",
    }  # fmt: skip
    document = {"version": 1, "pipeline": name, "source": source, "snapshot": {"mode": "none"}}
    (root / name).mkdir(exist_ok=True)
    return Project(Pipeline.model_validate(document), root / name / "pipeline.yaml", root / name)


def transactions(ledger: Ledger, rows: int) -> Iterator[LedgerTransaction]:
    """The backlog, behind what the ledger holds."""
    rng = random.Random(11)
    at, csn, count = ledger.end_lsn, ledger.next_csn, rows // BLOCK
    order = list(range(count))
    for nth in range(50, count - 1, 100):
        order[nth], order[nth + 1] = order[nth + 1], order[nth]
    for nth in range(count):
        changes = tuple(some_row(rng, nth * BLOCK + n, at + n * STEP) for n in range(BLOCK))
        end = at + BLOCK * STEP
        yield LedgerTransaction(csn + order[nth], 50_000 + nth, at, end, end + 64, 1_700_000_000_000_000, changes)
        at = end + 64


def serve() -> None:
    """The sender's process: a server, then the backlog when a line with its size comes, until the input ends."""
    types = {"int8": "bigint", "varchar": "character varying", "bpchar": "character"}
    printed = tuple(types.get(kind, kind) for kind, _ in COLUMNS.values())
    answers = ScriptedAnswers(tables=[DeclaredTable(RELATION, (), printed)])
    with GaussServer(Ledger(), answers=answers) as server:
        server.state.batch_seconds = 0.01
        print(json.dumps([server.port, server.replication_port]), flush=True)
        for line in sys.stdin:
            options, rows = json.loads(line)
            size = server.prepare(transactions(server.ledger, rows), list(options.items()))
            print(json.dumps(size), flush=True)


def receive_here(project: Project, timed: Steps | None = None) -> None:
    """The receiver's process."""
    bronze = bronze_writer(project)
    begun = time.perf_counter()
    with timed or nullcontext(), hashing_beside() as peaks:
        done = receive(project, bronze, once=True, stop=threading.Event(), report=as_shipped.tell)
    hashed = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = {"hashing": hashed.ru_utime + hashed.ru_stime, "beside_mib": max(peaks, default=0.0)}
    report(time.perf_counter() - begun, done.changes, timed.seconds if timed is not None else {}, used)


def steps() -> Steps:
    """What a receiver does, in the order in which a row sees it."""
    return Steps(
        [
            (GaussDbStream, "poll", "read the socket"),
            (GaussDbAssembler, "feed", "assemble transactions"),
            (columnar, "_walk_chunk", "decode: find rows and values"),
            (columnar, "_tabulate", "decode: columns of them"),
            (columnar, "canonical_rows", "decode: digests' bytes"),
            (hashing_process, "ask", "decode: digests' bytes"),
            (hashing_process, "read_answer", "decode: digests' bytes"),
            (hashing, "_digests", "decode: hashed here"),
            (columnar, "in_rows", "decode: digests' bytes"),
            (row_builder, "build", "bronze's rows"),
            (pq.ParquetWriter, "write_table", "Parquet, zstd"),
            (writer.TableBronze, "_commit", "commit"),
        ]
    )


def drain_here(project: Project, rows: int) -> None:
    """The peer's process: read as many rows, confirm, keep nothing."""
    target = target_of(project.family, project.root)
    frames = frames_of(project, connect(target, replication=True), 0)
    assembler = assembler_of(project, OrderDomain.CSN, "UTF8")
    begun, changes = time.perf_counter(), 0
    while changes < rows:
        for number, payload in frames.poll(1.0):
            changes += sum(raw.count for raw in assembler.feed(payload, number))
    report(time.perf_counter() - begun, changes, {}, {})
    frames.close()


def report(seconds: float, changes: int, timed: dict[str, float], beside: dict[str, float]) -> None:
    """What a run took: `cpu` and `rss_mib` are of all its processes."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = used.ru_utime + used.ru_stime + beside.get("hashing", 0.0)
    facts = {"seconds": seconds, "changes": changes, "cpu": cpu, "steps": timed, **beside}
    print(json.dumps(facts | {"rss_mib": peak_mib() + beside.get("beside_mib", 0.0)}))


def child(role: str, root: Path, name: str, ports: list[int], rows: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--role", role, "--root", str(root), "--name", name]
    command += ["--ports", *map(str, ports), "--rows", str(rows)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return {"peer": role, **json.loads(done.stdout.splitlines()[-1])}


class Sender:
    """The sender's process while it is entered; `ports`: of its sessions and of its streams."""

    def __enter__(self) -> Self:
        command = [sys.executable, __file__, "--role", "serve"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ports: list[int] = self._answer()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    @property
    def cpu(self) -> float:
        """Its processor time until now, in s."""
        return sum(psutil.Process(self._process.pid).cpu_times()[:2])

    def encode(self, rows: int, root: Path, name: str) -> int:
        """Encode the backlog as the pipeline of this name asks for it; its bytes."""
        print(f"encoding {rows:,} rows", flush=True)
        options = effective_options(project_of(root, name, *self.ports).family)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([options, rows]) + "\n")
        self._process.stdin.flush()
        return int(self._answer())

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


def measure(rows: int, rounds: int, root: Path) -> list[dict[str, Any]]:
    """Rounds of both, and one of ours whose steps are timed."""
    with Sender() as sender:
        names = {n: (f"ours_{n}", f"peer_{n}") for n in range(rounds + 1)}
        for name in ("steps", *(one for both in names.values() for one in both)):
            child("receive", root, name, sender.ports, rows)  # makes the slot, begins the stream
        size = sender.encode(rows, root, "ours_0")
        runs = []
        for n, (ours, peer) in names.items():
            for role, name in (("receive", ours), ("drain", peer)) if n % 2 else (("drain", peer), ("receive", ours)):
                run = {"round": n, "bytes": size, **sent_by(sender, role, root, name, rows)}
                run["mb"] = size / run["seconds"] / 1e6
                print(f"  round {n} {role:8} {run['mb']:6.0f} MB/s {rows / run['seconds']:10,.0f} rows/s", flush=True)
                runs.append(run)
        runs.append({"round": rounds + 1, "bytes": size, **child("steps", root, "steps", sender.ports, rows)})
    return runs


def measure_long(rows: int, root: Path) -> dict[str, Any]:
    """One run of ours with a longer backlog, which is to take no more memory."""
    with Sender() as sender:
        child("receive", root, "long", sender.ports, rows)
        size = sender.encode(rows, root, "long")
        return {"round": 1, "bytes": size, **sent_by(sender, "receive", root, "long", rows), "peer": "long"}


def sent_by(sender: Sender, role: str, root: Path, name: str, rows: int) -> dict[str, Any]:
    """A child's run, and the processor time that the sender took for it."""
    before = sender.cpu
    run = child(role, root, name, sender.ports, rows)
    if run["changes"] != rows:
        raise SystemExit(f"expected {rows} changes: {run['changes']}")
    return run | {"sender": sender.cpu - before}


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    counted = [run for run in runs if run["round"] > 0]
    rows = []
    for role, label in (("drain", "read, thrown away"), ("receive", "cdc_lake, into bronze")):
        mine = [run for run in counted if run["peer"] == role]
        rows.append(
            [
                label,
                f"{max(run['mb'] for run in mine):,.0f}",
                f"{median(run['mb'] for run in mine):,.0f}",
                f"{median(run['changes'] / run['seconds'] for run in mine):,.0f}",
                f"{median(run['cpu'] for run in mine):.1f}",
                f"{median(run['sender'] for run in mine):.1f}",
                f"{max(run['rss_mib'] for run in mine):.0f}",
            ]
        )
    return [
        table("From the wire into bronze", FIGURES, rows),
        table("The receiver's memory", ("rows of the backlog", "peak MiB"), memory(counted)),
        profile(next(run for run in runs if run["peer"] == "steps")),
    ]


def memory(runs: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Of each length of a backlog the most that the receiver had."""
    ours = [run for run in runs if run["peer"] in {"receive", "long"}]
    peaks = {run["changes"]: max(one["rss_mib"] for one in ours if one["changes"] == run["changes"]) for run in ours}
    return [(f"{rows:,}", f"{peak:.0f}") for rows, peak in sorted(peaks.items())]


def profile(run: dict[str, Any]) -> dict[str, Any]:
    """CPU seconds for a million rows, by step; what is left are threads, order, confirmation and Python's start."""
    share = 1e6 / run["changes"]
    rows = [(step, f"{seconds * share:.2f}") for step, seconds in run["steps"].items()]
    rows.append(("hashed beside the receiver", f"{run['hashing'] * share:.2f}"))
    rest = run["cpu"] - run["hashing"] - sum(run["steps"].values())
    rows.append(("everything else, Python's start too", f"{rest * share:.2f}"))
    return table("Where the receiver's CPU goes", ("step", "s for a million rows"), rows)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=1_000_000)
    options.add_argument("--rounds", type=int, default=3, help="counted rounds; one more warms up")
    options.add_argument("--long", type=int, default=6_000_000, help="rows of one run more, for its memory; 0: none")
    options.add_argument("--no-save", action="store_true", help="print only")
    for hidden in ("--role", "--root", "--name"):
        options.add_argument(hidden, help=argparse.SUPPRESS)
    options.add_argument("--ports", nargs=2, type=int, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.role == "serve":
        serve()
        return
    if given.role:
        project = project_of(Path(given.root), given.name, *given.ports)
        match given.role:
            case "receive":
                receive_here(project)
            case "steps":
                receive_here(project, steps())
            case _:
                drain_here(project, given.rows)
        return
    with tempfile.TemporaryDirectory() as temporary:
        runs = measure(given.rows, given.rounds, Path(temporary))
        if given.long:
            runs.append(measure_long(given.long, Path(temporary)))
    parameters = {"rows": given.rows, "rounds": given.rounds, "long": given.long}
    conclude("gaussdb_backlog", parameters=parameters, runs=runs, tables=summary(runs), keep=not given.no_save)


if __name__ == "__main__":
    main()
