"""From the source's commit to silver that can be read: a backlog's rate, and how late small transactions are.

    python benchmarks/source_to_silver.py [--changes 1000000] [--rows 5000000] [--rounds 20] [--one 1000000]

Receiver and apply run as `run` runs them: two processes, beside the server on the same two cores. First a slot has
retained `--changes` changes (80 % inserts, 15 % updates, 5 % deletes, 1,000 a transaction) of a table whose silver
table has `--rows` rows already; seconds are from the start of both loops, with a Spark session, until the cut with
the last transaction is written. Then transactions of 1,000 changes, one at a time: of one table, and of ten tables with
100 changes each; seconds from the source's commit until a cut has it. At the end one transaction of `--one` new rows,
which is one span. Memory is the most that Spark's driver had until then. `--shipped`: with the driver memory that is
the default, as a result of its own. Targets: 50,000 changes/s; p50 of 2 s with one table and 6 s with ten. At the end
`compare` has to find every row of every table that was written equal to the source's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psycopg
from end_state import compared
from measured import conclude, median, table
from spans import options, session
from spark_costs import costing, driver_mib
from workload_spans import BASE, orders
from workload_sql import BLOCK, TABLE, WORKLOAD

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.loader import load_project
from cdc_lake.config.model import Apply
from cdc_lake.config.project import Project
from cdc_lake.observability.events import silent
from cdc_lake.runtime.run import run
from cdc_lake.silver.layout_mapping import make_shape
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.open_silver_table import mark_when_large, store
from cdc_lake.tables.spark_session import derive
from cdc_lake_testing.beside import beside
from cdc_lake_testing.server import HOST, SUPERUSER, EmbeddedServer

SMALL = [f"small_{n}" for n in range(10)]
WARM = 20  # blocks of the backlog before the clock starts
_PATIENCE = 900.0
SETTLED = """
INSERT INTO orders SELECT
  n, n::bigint * 7919 % 100003, (ARRAY['new', 'packed', 'sent', 'returned'])[1 + abs(n) % 4], (abs(n) % 99999) / 100.0,
  abs(n) % 17, md5(n::text) || md5((n + 1)::text) || md5((n + 2)::text),
  'customer' || abs(n) % 100003 || '@example.org',
  timestamptz '2026-01-01 00:00+00' + n * interval '1 second', timestamp '2026-01-01' + n * interval '1 second',
  abs(n) % 3 = 0
  FROM generate_series(-{rows}, -1) AS n
"""
"""The rows that silver has already, in the source, which has them before there is a slot."""


def project_of(server: EmbeddedServer, root: Path, fmt: str, heap: int) -> Project:
    """A pipeline over all tables, as a file: the receiver's process reads it too."""
    (root / "password").write_text(server.password)
    file = root / f"live_{fmt}.yaml"  # one folder, so one lake: a session has one catalog of Iceberg
    file.write_text(
        f"""version: 1
pipeline: live_{fmt}
source: {{type: postgres, host: {HOST}, port: {server.port}, database: postgres, user: {SUPERUSER},
         password: "${{file:{root / "password"}}}", tables: ["public.*"]}}
snapshot: {{mode: none}}
silver: {{defaults: {{format: {fmt}, namespace: live_{fmt}}}}}
apply: {{driver_memory: {heap} MiB}}
"""
    )
    return load_project(file)


def fill(spark: Any, project: Project, rows: int) -> None:
    """Rows that silver has already, below those of the backlog, by the store that apply uses; `SETTLED` in Spark."""
    layout, own = orders("orders"), derive(spark)
    target = project.target(layout.table)
    silver = store(own, project, target)
    state = bronze_reader(project).state()
    assert state is not None, "the stream has begun"
    silver.create(make_shape([layout.layout], {layout.layout: layout}, None).columns, state.stream)
    columns = [f"{sql.replace('id %', 'abs(id) %')} AS `{name}`" for name, sql in BASE.items()]
    own.range(-rows, 0, 1, 10).selectExpr(*columns).createOrReplaceTempView("base")
    own.sql(f"INSERT INTO {silver.name} SELECT * FROM base")
    mark_when_large(own, project, target)


class Live:
    """A pipeline that runs, and a connection to its source."""

    def __init__(self, project: Project, admin: psycopg.Connection[Any]) -> None:
        self._admin = admin
        self._control = ControlTables(project.control)
        self._cuts = project.control / "cuts" / "_delta_log"

    def late(self, work: Callable[[], None]) -> float:
        """Seconds from the end of `work`, which commits last, until silver has it."""
        (before,) = self._admin.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone() or (0,)
        work()
        return self.wait(int(before), time.perf_counter())

    def wait(self, before: int, begun: float) -> float:
        """Seconds since `begun` until a cut lies behind the LSN `before`."""
        seen = None
        while True:
            # A look at the folder costs nothing; reading the cuts at each look took a third of a processor (seen).
            at = time.perf_counter()
            changed = self._cuts.stat().st_mtime_ns if self._cuts.exists() else None
            if changed != seen:
                seen = changed
                if (cut := self._control.last_cut()) is not None and cut.position > before:
                    return at - begun
            if at - begun > _PATIENCE:
                raise SystemExit("silver did not get there")
            time.sleep(0.005)


def running(project: Project) -> AbstractContextManager[Any]:
    """Both loops, as `run` runs them."""
    return beside(lambda stop: run(project, once=False, only=None, stop=stop, report=silent))


def measure(admin: psycopg.Connection[Any], project: Project, spark: Any, given: Any) -> dict[str, Any]:
    """All of it for one format."""
    run(
        project, once=True, only="receive", stop=threading.Event(), report=silent
    )  # the slot and the stream's beginning
    fill(spark, project, given.rows)
    admin.execute("CALL backlog(1, %s)", [WARM])
    run(project, once=True, only=None, stop=threading.Event(), report=silent)
    blocks, live = given.changes // BLOCK, Live(project, admin)
    print(f"  {project.name}: writing {blocks * BLOCK:,} changes", flush=True)
    admin.execute("CALL backlog(%s, %s)", [WARM + 1, WARM + blocks - 1])
    (before,) = admin.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone() or (0,)
    admin.execute("CALL backlog(%s, %s)", [WARM + blocks, WARM + blocks])
    out: dict[str, Any] = {"format": project.name.removeprefix("live_")}
    begun = time.perf_counter()
    with running(project):
        with costing(spark, project.lake) as cost:
            seconds = live.wait(int(before), begun)
        out |= cost | {"seconds": seconds}
        out["rate"] = blocks * BLOCK / out["seconds"]
        print(f"  {project.name}: {out['rate']:,.0f} changes/s", flush=True)
        for name, work in (("one", one_table), ("ten", ten_tables)):
            out[name] = []
            for number in range(given.rounds + 2 if given.rounds else 0):
                seconds = live.late(lambda work=work: work(admin))  # type: ignore[misc]
                print(f"  {project.name}, {name}: {seconds:.2f} s", flush=True)
                out[name] += [seconds] if number > 1 else []
                time.sleep(0.5)
        out["one_transaction"] = live.late(lambda: large(admin, given.one)) if given.one else 0.0
        out["driver_mib"] = driver_mib(spark)
        print(
            f"  {project.name}: one of {given.one:,}: {out['one_transaction']:.1f} s, {out['driver_mib']} MiB",
            flush=True,
        )
    out["rows"] = compared(project, ["orders", *SMALL] if given.rounds else ["orders"])
    print(f"  {project.name}: equal to the source, {sum(out['rows'].values()):,} rows", flush=True)
    return out


def begin_anew(admin: psycopg.Connection[Any]) -> None:
    """Leave the source with the rows that silver has before the backlog."""
    admin.execute("DELETE FROM orders WHERE id >= 0")
    admin.execute(f"TRUNCATE {', '.join(SMALL)}")
    admin.execute("VACUUM (ANALYZE, FREEZE) orders")


def large(admin: psycopg.Connection[Any], rows: int) -> None:
    """New rows in one transaction."""
    admin.execute(
        "INSERT INTO orders SELECT n, 1, 'new', 1, 1, md5(n::text) || md5((n + 1)::text), 'e', now(), now(), true "
        "FROM generate_series((SELECT max(id) + 1 FROM orders), (SELECT max(id) + %s FROM orders)) AS n",
        [rows],
    )


def one_table(admin: psycopg.Connection[Any]) -> None:
    """1,000 changes in one transaction: new rows, and others of some time ago."""
    with admin.transaction():
        admin.execute(
            "INSERT INTO orders SELECT n, 1, 'new', 1, 1, 'n', 'e', now(), now(), true "
            "FROM generate_series((SELECT max(id) + 1 FROM orders), (SELECT max(id) + 500 FROM orders)) AS n"
        )
        some = "SELECT id FROM orders WHERE id >= 0 ORDER BY random() LIMIT 500"
        admin.execute(f"UPDATE orders SET state = 'live' WHERE id IN ({some})")


def ten_tables(admin: psycopg.Connection[Any]) -> None:
    """100 changes of each of ten tables in one transaction."""
    with admin.transaction():
        for name in SMALL:
            admin.execute(
                f"INSERT INTO {name} SELECT n, 'new' FROM generate_series("
                f"(SELECT coalesce(max(id), 0) + 1 FROM {name}), (SELECT coalesce(max(id), 0) + 50 FROM {name})) AS n"
            )
            admin.execute(f"UPDATE {name} SET note = 'live' WHERE id IN (SELECT id FROM {name} ORDER BY id LIMIT 50)")


def results(runs: list[dict[str, Any]], changes: int) -> list[dict[str, Any]]:
    rows = []
    live = all(run_["one"] for run_ in runs)
    for run_ in runs:
        name = run_["format"]
        small: list[str] = []
        for key in ("one", "ten") if live else ():
            some = sorted(run_[key])
            small += [f"{median(some):.2f}", f"{some[int(len(some) * 0.95)]:.2f}"]
        rows.append((name, f"{run_['rate']:,.0f}", *small, f"{run_['one_transaction']:.1f}", f"{run_['driver_mib']:,}"))
    late = ("one table, p50 s", "p95", "ten tables, p50 s", "p95") if live else ()
    head = ("", "changes/s", *late, "one transaction, s", "driver MiB")
    title = f"{changes:,} changes, then {'transactions of 1,000' if live else 'one transaction'}"
    return [table(title, head, rows)]


def main() -> None:
    parser = options(__doc__, changes=1_000_000, rows=5_000_000, rounds=20, one=1_000_000)
    parser.add_argument("--shipped", action="store_true", help="the default driver memory; saved as commit_to_silver")
    given = parser.parse_args()
    if given.shipped:
        given.heap = Apply().driver_memory >> 20
    runs = []
    with session(given.folder, given.heap) as (spark, root):
        root.chmod(0o755)
        server = EmbeddedServer(root / "server", settings={"max_wal_size": "8GB"}).start()
        try:
            with psycopg.connect(server.dsn(), autocommit=True) as admin:
                admin.execute(TABLE)
                admin.execute(WORKLOAD)
                for name in SMALL:
                    admin.execute(f"CREATE TABLE {name} (id bigint PRIMARY KEY, note text)")
                admin.execute(SETTLED.format(rows=given.rows))
                for fmt in given.formats:
                    begin_anew(admin)
                    project = project_of(server, root, fmt, given.heap)
                    runs.append(measure(admin, project, spark, given))
                    admin.execute("SELECT pg_drop_replication_slot(%s)", [project.slot])
        finally:
            server.remove()
    tables = results(runs, given.changes)
    parameters = {name: getattr(given, name) for name in ("changes", "rows", "rounds", "one")}
    name = "source_to_silver" if given.rounds else "source_to_silver_backlog"
    name = "commit_to_silver" if given.shipped else name
    conclude(name, parameters=parameters | {"heap_mib": given.heap}, runs=runs, tables=tables, keep=not given.no_save)


if __name__ == "__main__":
    main()
