"""A cold start: from starting the process until the first change is applied, beside a bare session and one MERGE.

    python benchmarks/cold_start.py [--rounds 5] [--rows 200000] [--formats delta iceberg]

Each start is a process of its own, with a JVM of its own. Ours is `cdc-lake run --only apply --once` with 1,000 changes
waiting in bronze; the clock stops when the cut that has them is written. The bare one imports pyspark, makes a session
with the same settings (but no other format's jar) and merges the same net rows from a typed Parquet file into a table
like ours; its clock stops when that MERGE is over. Who comes first alternates, and both tables are equal at the end.

The receiver is `cdc-lake run --only receive`, with one transaction of 1,000 changes waiting in its slot: the clock runs
from starting the process until bronze's commit is there. Beside it a Python that imports the libraries it needs, and
nothing else: what a machine with other work makes of a start is in both.

An idle run is `cdc-lake run --once` of that pipeline once silver has everything: from starting the process to its end.
One that starts Spark ends the benchmark.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pyarrow.parquet as pq
from measured import carry_out, median, options_of, table
from span_pair import Pair, project_of
from spans import FORMATS
from workload_spans import Workload, orders
from workload_sql import publish

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.project import Project
from cdc_lake.model.change import Transaction
from cdc_lake.tables.spark_session import PACKAGES, start, static_settings
from cdc_lake_testing.messages import boundaries, raw_transaction
from cdc_lake_testing.server import HOST, SUPERUSER, EmbeddedServer

CHANGES = 1_000
BARE = Path(__file__).parent / "bare_session.py"
LIBRARIES = "import deltalake, numpy, psycopg, pyarrow.dataset, pydantic, structlog, typer, yaml"
COMMAND = [sys.executable, "-c", "from cdc_lake.cli.app import main; main()"]
_PATIENCE = 600.0


class Cold:
    """A pipeline of one format on disk, with its twin, that nobody runs."""

    def __init__(self, root: Path, fmt: str, rows: int) -> None:
        self._root = root
        self.fmt = fmt
        self._workload = Workload(orders("orders"), rows, CHANGES)
        kept = json.loads((root / f"{fmt}.json").read_text())
        self._file, self._twin, self._settings = root / f"cold_{fmt}.yaml", kept["twin"], kept["settings"]
        self._cuts, self._bronze = Path(kept["cuts"]), Path(kept["bronze"])

    def round(self, number: int) -> dict[str, Any]:
        """Land changes, start both; seconds of each."""
        changes, net = self._workload.round(number)
        pq.write_table(net, self._net)
        one = Transaction(boundaries(1_001 + number * 1_000), tuple(changes))
        DeltaBronze(self._bronze).append([raw_transaction(one)])
        sides = [("ours", self._ours), ("bare", self._bare)]
        took: dict[str, Any] = {}
        for name, side in sides if number % 2 else reversed(sides):
            took[name] = side()
        return {"what": "apply", "format": self.fmt, "round": number, **took}

    @property
    def _net(self) -> Path:
        return self._root / f"cold_{self.fmt}.parquet"

    def _ours(self) -> float:
        words = ["run", "--pipeline", str(self._file), "--only", "apply", "--once"]
        return started(words, self._root, _more(self._cuts))[0]

    def _bare(self) -> float:
        given = {"settings": self._settings, "net": str(self._net), "table": self._twin}
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, str(BARE), json.dumps(given)], check=True, capture_output=True, text=True
        )
        return float(done.stdout.splitlines()[-1]) - begun


def started(words: list[str], root: Path, there: Callable[[], bool]) -> tuple[float, float]:
    """Seconds from starting `cdc-lake` with these words until something is there, and its processor seconds until then.

    Then it ends, or is asked to.
    """
    begun = time.monotonic()
    with (root / "said").open("w") as said:
        child = subprocess.Popen([*COMMAND, *words], stdout=said, stderr=subprocess.STDOUT, cwd=root)
        while not there():
            if child.poll() is not None and not there():
                raise SystemExit(f"`{' '.join(words)}` ended with {child.returncode}:\n{(root / 'said').read_text()}")
            if time.monotonic() - begun > _PATIENCE:
                raise SystemExit(f"`{' '.join(words)}` did not get there")
            time.sleep(0.005)
        took, used = time.monotonic() - begun, psutil.Process(child.pid).cpu_times()
        if "--once" not in words:
            child.send_signal(signal.SIGINT)
        child.wait()
    return took, used.user + used.system


def _more(folder: Path) -> Callable[[], bool]:
    """Whether a Delta table has more commits than now."""
    before = len(_commits(folder))
    return lambda: len(_commits(folder)) > before


def _commits(folder: Path) -> list[str]:
    log = folder / "_delta_log"
    return [path.name for path in log.glob("*.json")]


def prepare(root: Path, fmt: str, rows: int) -> None:
    """Make the tables by one span, and say where everything is."""
    spark = start(project_of(root, "bench", fmt, ["orders"]))
    pair = Pair(spark, root, fmt, "cold", tables=1, rows=rows, changes=CHANGES, files=2)
    pair.round(0)
    pair.check()
    pair.close()
    project, (ours, twin) = pair.project, pair.names()
    document = project.pipeline.model_dump(mode="json", by_alias=True, exclude_unset=True)
    (root / f"cold_{fmt}.yaml").write_text(json.dumps(document))
    kept = {
        "ours": ours, "twin": twin, "settings": bare_settings(project, fmt), "cuts": str(project.control / "cuts"),
        "bronze": str(project.bronze),
    }  # fmt: skip
    (root / f"{fmt}.json").write_text(json.dumps(kept))


def bare_settings(project: Project, fmt: str) -> dict[str, str]:
    """Ours, without what only the other format needs."""
    mine = [one for one in PACKAGES if (fmt == "delta") == ("delta" in one)]
    settings = static_settings(project) | {
        "spark.jars.packages": ",".join(mine),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension"
        if fmt == "delta"
        else "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    }
    other = "spark.sql.catalog.spark_catalog" if fmt == "iceberg" else "spark.sql.catalog.lake"
    return {key: value for key, value in settings.items() if not key.startswith(other)}


def check(root: Path, fmt: str) -> None:
    """Raise unless both tables are equal."""
    kept = json.loads((root / f"{fmt}.json").read_text())
    spark = start(project_of(root, "bench", fmt, ["orders"]))
    hashed = "SELECT count(*), sum(cast(xxhash64(*) AS decimal(38,0))) FROM"
    sums = [spark.sql(f"{hashed} {kept[side]}").first() for side in ("ours", "twin")]
    if sums[0] != sums[1]:
        raise SystemExit(f"the tables differ: {sums}")
    print(f"  {fmt}: both tables equal, {sums[0][0]:,} rows", flush=True)


def receiver(root: Path, rounds: int, *, applies: bool) -> list[dict[str, Any]]:
    """Start a receiver again and again, with a transaction waiting for it; `applies`: then have silver take what it
    landed, and run both again and again with nothing to do.
    """
    server = EmbeddedServer(root / "server").start()
    folder = root / "received"
    folder.mkdir()
    file = folder / "started.yaml"
    (folder / "password").write_text(server.password)
    source = {
        "type": "postgres", "host": HOST, "port": server.port, "database": "postgres", "user": SUPERUSER,
        "password": f"${{file:{folder / 'password'}}}", "tables": ["public.orders"], "publication": "bench",
    }  # fmt: skip
    document = {"version": 1, "pipeline": "started", "source": source, "snapshot": {"mode": "none"}}
    file.write_text(json.dumps(document))
    bronze, runs = folder / "lake" / "bronze" / "started", []
    try:
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            publish(admin)
            words = ["run", "--pipeline", str(file), "--only", "receive"]
            subprocess.run([*COMMAND, *words, "--once"], check=True, capture_output=True, cwd=folder)
            for number in range(rounds + 1):
                there = _more(bronze)
                admin.execute("CALL backlog(%s, %s)", [number + 1, number + 1])
                took, used = started(words, folder, there)
                begun = time.monotonic()
                subprocess.run([sys.executable, "-c", LIBRARIES], check=True)
                bare = time.monotonic() - begun
                print(f"  receiver, round {number}: {took:.2f} s, its libraries {bare:.2f} s", flush=True)
                runs.append({"what": "receiver", "round": number, "landed": took, "bare": bare, "cpu": used})
            if applies:
                ended(file)
                runs += [idle(file, number) for number in range(rounds + 1)]
    finally:
        server.remove()
    return runs


def idle(file: Path, number: int) -> dict[str, Any]:
    """A run with nothing to do."""
    begun = time.monotonic()
    said = ended(file)
    took = time.monotonic() - begun
    if "starting Spark" in said:
        raise SystemExit(f"a run with nothing to do started Spark:\n{said}")
    print(f"  idle run, round {number}: {took:.2f} s", flush=True)
    return {"what": "idle", "round": number, "ended": took}


def ended(file: Path) -> str:
    """Do `run --once` to its end; what it said."""
    words = [*COMMAND, "run", "--pipeline", str(file), "--once"]
    done = subprocess.run(words, cwd=file.parent, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"`run --once` ended with {done.returncode}:\n{done.stderr}")
    return done.stdout + done.stderr


def tables_of(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    counted = [run for run in runs if run["round"] > 0]
    rows = []
    for fmt in FORMATS:
        if not (mine := [run for run in counted if run.get("format") == fmt]):
            continue
        ratios = [run["ours"] / run["bare"] for run in mine]
        seconds = [f"{median(run[side] for run in mine):.2f}" for side in ("ours", "bare")]
        rows.append((fmt, *seconds, f"{median(ratios):.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}"))
    started = [run for run in counted if run["what"] == "receiver"]
    receiver = [f"{median(run[fact] for run in started):.2f}" for fact in ("landed", "cpu", "bare")]
    idle = [run["ended"] for run in counted if run["what"] == "idle"]
    spread = [f"{value:.2f}" for value in (min(idle), median(idle), max(idle))] if idle else []
    head = ("", "cdc_lake, s", "bare session and MERGE, s", "ratio", "of the rounds")
    return [
        table("From starting the process to the first applied change", head, rows),
        table("From starting the receiver to its first commit", ("s", "processor s", "its libraries, s"), [receiver]),
        *([table("`run --once` with nothing to do", ("least, s", "median", "most"), [spread])] if spread else []),
    ]


def child(*words: str) -> None:
    subprocess.run([sys.executable, __file__, *words], check=True)


def measure(given: argparse.Namespace, root: Path) -> list[dict[str, Any]]:
    runs = receiver(root, given.rounds, applies=bool(given.formats))
    for fmt in given.formats:
        folder = root / fmt
        folder.mkdir()
        place = ("--root", str(folder), "--formats", fmt, "--rows", str(given.rows))
        child("--child", "prepare", *place)
        cold = Cold(folder, fmt, given.rows)
        for number in range(1, given.rounds + 1):
            runs.append(cold.round(number))
            print(f"  {fmt}, round {number}: {runs[-1]['ours']:.1f} s, bare {runs[-1]['bare']:.1f} s", flush=True)
        child("--child", "check", *place)
    return runs


def main() -> None:
    options = options_of(__doc__, "--child")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--rows", type=int, default=200_000)
    options.add_argument("--formats", nargs="*", choices=FORMATS, default=FORMATS, help="none: the receiver alone")
    given = options.parse_args()
    if given.child:
        place = Path(given.root)
        prepare(place, given.formats[0], given.rows) if given.child == "prepare" else check(place, given.formats[0])
        return
    carry_out("cold_start", given, ("rows", "rounds"), measure, tables_of)


if __name__ == "__main__":
    main()
