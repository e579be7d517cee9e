"""One large transaction, whole at its COMMIT or streamed: how much memory the receiver takes, by plugin and style,
and how much for rows that are large themselves.

    python benchmarks/large_memory.py [--programs DIR] [--sizes 10 200 1000] [--only NAME …]
    python benchmarks/large_memory.py [--programs DIR] --row 64

`test_decoding` needs the programs of a PostgreSQL that has it, such as /usr/lib/postgresql/15/bin. The GaussDB family's
sender is the test kit's server with everything encoded beforehand. Sizes are of what is received, a row about 250
(PostgreSQL) and 390 bytes. Each is a backlog of one transaction for a receiver of its own process; peaks are of it and,
beside it, of the process that hashes. `prepared` is parked at its PREPARE. What is streamed before its COMMIT is
measured by `streamed.py`, but for large rows.

With `--row`, a row has one value of so many megabytes: text that hardly compresses, stored uncompressed. Then three
times as much belongs to the row, and what else there is has to stay within the same limit.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import as_shipped  # before anything else loads Arrow
import psycopg
from decode_mppdb import COLUMNS, some_row
from gaussdb_backlog import RELATION
from measured import conclude, table
from workload_sql import FILL, TABLE

from cdc_lake.bronze.open import bronze_writer
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project, effective_options
from cdc_lake.decode.gaussdb.records import Operation
from cdc_lake.runtime.receive.receiver import receive
from cdc_lake_testing.gaussdb.declared import DeclaredTable
from cdc_lake_testing.gaussdb.ledger import Ledger, LedgerTransaction
from cdc_lake_testing.gaussdb.scripted import ScriptedAnswers
from cdc_lake_testing.gaussdb.server import GaussServer
from cdc_lake_testing.memory import hashing_beside, peak_mib
from cdc_lake_testing.server import HOST, SUPERUSER, EmbeddedServer

TYPES = {"int8": "bigint", "varchar": "character varying", "bpchar": "character"}
PRINTED = {name: TYPES.get(kind, kind) for name, (kind, _) in COLUMNS.items()}
BLOCK = 1_000


@dataclass(frozen=True)
class Kind:
    """What sends the transaction: `source` is the pipeline's, `row` the bytes of a row as they are received; `large`:
    it is measured with large rows, or with small ones too.
    """

    source: dict[str, Any]
    row: int
    gauss: bool = False
    large: Literal["too", "only", "no"] = "no"


def family(large: Literal["too", "no"] = "no", **source: Any) -> Kind:
    return Kind({"type": "opengauss", "database": "postgres", "user": "cdc", **source}, 390, gauss=True, large=large)


KINDS = {
    "pgoutput 1": Kind({"publication": "bench", "decoding": {"proto_version": 1}}, 250, large="too"),
    "streamed": Kind({"publication": "bench"}, 250, large="only"),
    "prepared": Kind({"publication": "bench", "decoding": {"two_phase": True}}, 250),
    "test_decoding": Kind({"slot": {"plugin": "test_decoding"}}, 370, large="too"),
    "style b": family("too"),
    "style t": family(decoding={"decode-style": "t"}),
    "style j": family(decoding={"decode-style": "j"}),
    "serial": family(decoding={"parallel-decode-num": "1"}),
}


def receive_here(folder: Path) -> None:
    """The receiver's process: the pipeline in this folder."""
    project = project_of(folder)
    begun = time.perf_counter()
    with hashing_beside() as peaks:
        done = receive(project, bronze_writer(project), once=True, stop=threading.Event(), report=as_shipped.tell)
    facts = {"seconds": time.perf_counter() - begun, "changes": done.changes, "bytes": done.bytes}
    print(json.dumps(facts | {"rss_mib": peak_mib(), "beside_mib": max(peaks, default=0.0)}))


def project_of(folder: Path) -> Project:
    document = json.loads((folder / "document.json").read_text())
    return Project(Pipeline.model_validate(document), folder / "pipeline.yaml", folder)


def pipeline(root: Path, name: str, source: dict[str, Any]) -> Path:
    folder = root / name
    folder.mkdir()
    document = {"version": 1, "pipeline": name, "source": source, "snapshot": {"mode": "none"}}
    (folder / "document.json").write_text(json.dumps(document))
    return folder


def received(folder: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--receive", str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


# ── senders ──


@contextmanager
def postgres(programs: Path | None, root: Path) -> Iterator[tuple[dict[str, Any], Callable[[Path, int, int], None]]]:
    """What a pipeline's source has of it, and how so many rows are written for the pipeline of a folder."""
    settings = {"max_wal_size": "8GB", "max_prepared_transactions": "5"}
    server = EmbeddedServer(root / "server", settings=settings, binaries=programs).start()
    try:
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            admin.execute(TABLE)
            admin.execute("ALTER TABLE orders ALTER note SET STORAGE EXTERNAL")
            admin.execute("CREATE PUBLICATION bench FOR TABLE orders")

            def write(folder: Path, rows: int, row: int) -> None:
                admin.execute("TRUNCATE orders")
                prepared = project_of(folder).postgres.decoding.two_phase
                admin.execute("BEGIN")
                if row:
                    fill_large(admin, rows, row)
                else:
                    admin.execute(FILL.format(rows=rows))
                for statement in (
                    ("PREPARE TRANSACTION 'large'", "COMMIT PREPARED 'large'") if prepared else ("COMMIT",)
                ):
                    admin.execute(statement)

            there = {"type": "postgres", "host": HOST, "port": server.port, "database": "postgres", "user": SUPERUSER}
            yield there | {"password": server.password, "tables": ["public.orders"]}, write
    finally:
        server.remove()


def fill_large(admin: psycopg.Connection[Any], rows: int, row: int) -> None:
    for number in range(rows):
        values = number, 7, "new", large_text(number, row)
        admin.execute("INSERT INTO orders (id, customer, state, note) VALUES (%s, %s, %s, %s)", values, binary=True)


def large_text(number: int, size: int) -> str:
    """A text of so many megabytes that does not compress, but for its letters being of 64."""
    return base64.b64encode(random.Random(number).randbytes(size * 750_000)).decode()


@contextmanager
def gauss() -> Iterator[tuple[dict[str, Any], Callable[[Path, int, int], None]]]:
    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        sink, source = server.stdin, server.stdout
        assert sink is not None
        assert source is not None
        port, replication_port = json.loads(source.readline())

        def write(folder: Path, rows: int, row: int) -> None:
            print(json.dumps([effective_options(project_of(folder).family), rows, row]), file=sink, flush=True)
            source.readline()

        there = {"host": "127.0.0.1", "port": port, "replication_port": replication_port, "tables": ["public.*"]}
        yield there | {"tls": {"mode": "disable"}}, write
        sink.close()


def serve() -> None:
    """The family's sender: a transaction for each line of its options and size, until the input ends."""
    answers = ScriptedAnswers(tables=[DeclaredTable(RELATION, (), tuple(PRINTED.values()))])
    with GaussServer(Ledger(), answers=answers) as server:
        print(json.dumps([server.port, server.replication_port]), flush=True)
        for line in sys.stdin:
            options, rows, row = json.loads(line)
            server.prepare([transaction(server.ledger, rows, row)], list(options.items()))
            print("done", flush=True)


def transaction(ledger: Ledger, rows: int, row: int) -> LedgerTransaction:
    """The same thousand rows again and again, or large ones."""
    at, rng = ledger.end_lsn, random.Random(11)
    some = [typed(some_row(rng, nth, at + nth)) for nth in range(BLOCK)]
    if row:
        some = [one for one in some if one.operation is Operation.INSERT][:rows]
        some = [
            replace(one, new=(*one.new[:-1], replace(one.new[-1], value=large_text(nth, row))))
            for nth, one in enumerate(some)
        ]
    changes = tuple(some[nth % BLOCK] for nth in range(rows))
    return LedgerTransaction(ledger.next_csn, 50_000, at, at + BLOCK, at + BLOCK + 64, 1_700_000_000_000_000, changes)


def typed(row: Any) -> Any:
    """The row with names of types, which text prints."""
    new, old = (
        None if some is None else tuple(replace(one, type_name=PRINTED[one.name]) for one in some)
        for some in (row.new, row.old)
    )
    return replace(row, new=new, old=old)


# ── measuring ──


def measure(given: argparse.Namespace, root: Path) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = []
    other = "no" if given.row else "only"
    names = [name for name, kind in KINDS.items() if (name in given.only if given.only else kind.large != other)]
    if not given.programs:
        names = [name for name in names if name != "test_decoding"]
    for family_, opened in ((False, lambda: postgres(given.programs, root)), (True, gauss)):
        mine = [name for name in names if KINDS[name].gauss is family_]
        if not mine:
            continue
        with opened() as (there, write):
            runs += [one(root, name, there, write, size, given.row) for name in mine for size in given.sizes]
    return runs


def one(
    root: Path, name: str, there: dict[str, Any], write: Callable[[Path, int, int], None], megabytes: int, row: int
) -> dict[str, Any]:
    kind = KINDS[name]
    folder = pipeline(root, f"{name} {megabytes}".replace(" ", "_"), there | kind.source)
    received(folder)  # makes the slot and begins the stream
    write(folder, megabytes // row if row else megabytes * 1_000_000 // kind.row, row)
    run = {"kind": name, "megabytes": megabytes, "row": row, **received(folder)}
    rate = f"{run['changes'] / run['seconds']:10,.0f} rows/s, {run['bytes'] / 1e6 / run['seconds']:.0f} MB/s"
    print(f"  {name:14} {megabytes:6,} MB: {run['rss_mib']:4.0f} + {run['beside_mib']:.0f} MiB, {rate}", flush=True)
    return run


def summary(runs: list[dict[str, Any]], sizes: list[int], row: int) -> list[dict[str, Any]]:
    rows = []
    for name in dict.fromkeys(run["kind"] for run in runs):
        peaks = {run["megabytes"]: run for run in runs if run["kind"] == name}
        most = max(run["rss_mib"] + run["beside_mib"] for run in peaks.values())
        largest = peaks[max(sizes)]
        rate = largest["changes"] / largest["seconds"]
        rows.append((name, *(f"{peaks[size]['rss_mib']:.0f}" for size in sizes), f"{most:.0f}", f"{rate:,.0f}"))
    head = ("peak MiB", *(f"{size:,} MB" for size in sizes), "with hashing", "rows/s")
    return [table(f"A transaction of rows of {row} MB" if row else "A transaction that comes whole", head, rows)]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--programs", type=Path, help="of a PostgreSQL with test_decoding; without, it is left out")
    options.add_argument("--sizes", type=int, nargs="+", help="megabytes; 10 200 1000, of large rows 1, 4 and 8 rows")
    options.add_argument("--row", type=int, default=0, help="megabytes of a large row; 0: rows are small")
    options.add_argument("--only", nargs="+", choices=list(KINDS), help="by default all")
    options.add_argument("--no-save", action="store_true", help="print only")
    options.add_argument("--receive", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.serve:
        serve()
        return
    if given.receive:
        receive_here(given.receive)
        return
    given.sizes = given.sizes or ([given.row * rows for rows in (1, 4, 8)] if given.row else [10, 200, 1000])
    with tempfile.TemporaryDirectory() as temporary:
        Path(temporary).chmod(0o755)
        runs = measure(given, Path(temporary))
    name, tables = "large_rows" if given.row else "large_memory", summary(runs, given.sizes, given.row)
    parameters = {"sizes": given.sizes, "row": given.row}
    conclude(name, parameters=parameters, runs=runs, tables=tables, keep=not given.no_save)


if __name__ == "__main__":
    main()
