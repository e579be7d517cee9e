"""What each version of PostgreSQL can do: one behaviour after the other, on the version that is asked for.

`python -m tests.postgres_matrix` runs it on all of them, and makes docs/reference/postgres-matrix.md of what it found.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc_lake.config.project import Project
from cdc_lake.errors import CdcLakeError
from cdc_lake.runtime.receive.lag import list_prepared
from cdc_lake_testing.server import EmbeddedServer
from cdc_lake_testing.workload import Workload
from tests.conftest import Database
from tests.live.test_receive_loop import assert_equal_to_source, bronze_rows, once, project_of

pytestmark = pytest.mark.live


def land(database: Database, root: Path, statements: str, **given: Any) -> Project:
    """A table as copied and as changed afterwards, in bronze."""
    with database.connect() as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS t (id int PRIMARY KEY, a text, b numeric, c timestamptz)")
        conn.execute("INSERT INTO t SELECT n, 'copied', n / 3.0, now() FROM generate_series(1, 50) AS n")
    project = project_of(database, root, **given)
    once(project)
    with database.connect() as conn:
        conn.execute(statements)
    once(project)
    return project


def source(**given: Any) -> dict[str, Any]:
    return {"source": given}


def decoding(**options: Any) -> dict[str, Any]:
    return source(decoding=options)


CHANGES = (
    "INSERT INTO t VALUES (-1, 'x', 1.50, now()); UPDATE t SET b = b + 1 WHERE id < 9; DELETE FROM t WHERE id > 40"
)


def equal(**given: Any) -> Callable[[Database, Path], None]:
    """Changes by a pipeline of these settings end as the source has them."""

    def show(database: Database, root: Path) -> None:
        assert_equal_to_source(land(database, root, CHANGES, **given), database)

    return show


def every_change(database: Database, root: Path) -> None:
    project = project_of(database, root)
    with database.connect() as conn:
        workload = Workload(conn, seed=14)
        workload.create_tables()
        workload.run(20)
        once(project)
        workload.run(80)
    once(project)
    assert_equal_to_source(project, database)


def large(**options: Any) -> Callable[[Database, Path], None]:
    """A transaction that the server streams, with one part of it rolled back."""

    def show(database: Database, root: Path) -> None:
        with database.admin() as admin:
            admin.execute(f'ALTER DATABASE "{database.name}" SET logical_decoding_work_mem = "64kB"')
        rows = "INSERT INTO t SELECT n, repeat('x', 99), n, now() FROM generate_series({}, {}) AS n"
        script = [rows.format(1000, 4000), "SAVEPOINT s", rows.format(5000, 8000), "ROLLBACK TO s"]
        statements = f"BEGIN; {'; '.join([*script, rows.format(9000, 9009)])}; COMMIT"
        project = land(database, root, statements, **decoding(**options), bronze={"spool": {"part": "20 KiB"}})
        with database.admin() as admin:
            query = "SELECT stream_txns FROM pg_stat_replication_slots WHERE slot_name = %s"
            assert admin.execute(query, [project.slot]).fetchone() != (0,)
        assert_equal_to_source(project, database)

    return show


def messages(database: Database, root: Path) -> None:
    project = land(database, root, "SELECT pg_logical_emit_message(true, 'note', 'said')", **decoding(messages=True))
    assert [row["op"] for row in bronze_rows(project)].count("M") == 1


def origins(database: Database, root: Path) -> None:
    name = f"from_{database.name}"
    with database.admin() as admin:
        admin.execute("SELECT pg_replication_origin_create(%s)", [name])
        try:
            project = land(database, root, CHANGES, **decoding(origin="none"))
            before = len(bronze_rows(project))
            admin.execute("SELECT pg_replication_origin_session_setup(%s)", [name])
            admin.execute("INSERT INTO t VALUES (-7)")
            admin.execute("SELECT pg_replication_origin_session_reset()")
            once(project)
            assert len(bronze_rows(project)) == before
        finally:
            admin.execute("SELECT pg_replication_origin_drop(%s)", [name])


def published(
    what: str, columns: list[str] | None = None, ids: range | None = None
) -> Callable[[Database, Path], None]:
    """A publication made by hand carries a part of the table, and bronze has that part."""

    def show(database: Database, root: Path) -> None:
        with database.connect() as conn:
            conn.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b numeric, c timestamptz)")
            conn.execute(f"CREATE PUBLICATION made FOR TABLE t {what}")
        project = land(database, root, "INSERT INTO t VALUES (60, 'late')", **source(publication="made"))
        rows = [row["new"] for row in bronze_rows(project) if row["op"] in ("S", "I")]
        assert {len(row) for row in rows} == {len(columns or "idab")}
        assert {int(row[0]) for row in rows} == set(ids or [*range(1, 51), 60])

    return show


def partitions(database: Database, root: Path) -> None:
    with database.connect() as conn:
        conn.execute(
            "CREATE TABLE t (id int PRIMARY KEY, a text, b numeric, c timestamptz) PARTITION BY RANGE (id);"
            "CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (-9) TO (20); CREATE TABLE t_high PARTITION OF t DEFAULT"
        )
    project = land(database, root, CHANGES, **source(tables=["public.t"]))
    assert {row["relation"] for row in bronze_rows(project) if row["op"] in "SIUD"} == {"public.t"}


def generated(database: Database, root: Path) -> None:
    with database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b numeric, c timestamptz)")
        conn.execute("ALTER TABLE t ADD twice int GENERATED ALWAYS AS (2 * id) STORED")
        conn.execute("CREATE PUBLICATION made FOR TABLE t WITH (publish_generated_columns = stored)")
    project = land(database, root, CHANGES, **source(publication="made"))
    assert_equal_to_source(project, database)


def prepared(**given: Any) -> Callable[[Database, Path], None]:
    """A transaction is parked at its PREPARE, and lands at its COMMIT PREPARED."""

    def show(database: Database, root: Path) -> None:
        project = land(database, root, CHANGES, **source(decoding={"two_phase": True}, **given))
        park_and_commit(project, database)

    return show


def park_and_commit(project: Project, database: Database) -> None:
    with database.connect() as conn:
        conn.execute(f"BEGIN; INSERT INTO t VALUES (-9); PREPARE TRANSACTION '{database.name}'")
        conn.execute(f"BEGIN; SELECT FROM t FOR UPDATE; PREPARE TRANSACTION '{database.name} locks'")
        once(project)
        assert list_prepared(project).transactions[0].gid == database.name
        for gid in (database.name, f"{database.name} locks"):
            conn.execute(f"COMMIT PREPARED '{gid}'")
    once(project)
    assert list_prepared(project).transactions == ()
    assert_equal_to_source(project, database)


def failover(database: Database, root: Path) -> None:
    project = land(database, root, CHANGES, **source(slot={"failover": True}))
    with database.admin() as admin:
        query = "SELECT failover FROM pg_replication_slots WHERE slot_name = %s"
        assert admin.execute(query, [project.slot]).fetchone() == (True,)
    assert_equal_to_source(project, database)


@dataclass(frozen=True)
class Behaviour:
    """`since`: the first version that has it, 14 for all that are older; what `show` does fails before."""

    title: str
    since: int
    show: Callable[[Database, Path], None]


PLUGIN = "`test_decoding`"
BEHAVIOURS = (
    Behaviour("Every kind of change by `pgoutput`, after an exact initial copy", 14, every_change),
    Behaviour(
        f"Changes by {PLUGIN}, after an exact initial copy", 14, equal(**source(slot={"plugin": "test_decoding"}))
    ),
    Behaviour("`mode: polling`, by SQL functions", 14, equal(**source(mode="polling", polling={"interval": "20 ms"}))),
    Behaviour(
        f"`mode: polling` of {PLUGIN}",
        14,
        equal(**source(mode="polling", slot={"plugin": "test_decoding"}, polling={"interval": "20 ms"})),
    ),
    Behaviour(
        "An initial copy by several connections, in parts", 14, equal(snapshot={"parallelism": 3, "chunk_rows": 7})
    ),
    Behaviour("Large transactions streamed while they are under way", 14, large()),
    Behaviour("`streaming: parallel`", 16, large(streaming="parallel")),
    Behaviour("`proto_version: 3`", 15, equal(**decoding(proto_version=3))),
    Behaviour("`proto_version: 4`", 16, equal(**decoding(proto_version=4))),
    Behaviour("`binary: true`", 14, equal(**decoding(binary=True))),
    Behaviour("`two_phase: true`: prepared transactions before their end", 15, prepared()),
    Behaviour(f"`two_phase: true` of {PLUGIN}", 14, prepared(slot={"plugin": "test_decoding"})),
    Behaviour(
        f"`two_phase: true` of {PLUGIN} by `mode: polling`",
        14,
        prepared(mode="polling", slot={"plugin": "test_decoding"}, polling={"interval": "20 ms"}),
    ),
    Behaviour("`messages: true`", 14, messages),
    Behaviour("`origin: none`", 16, origins),
    Behaviour("Partitions as their root", 14, partitions),
    Behaviour("Publications with a list of columns", 15, published("(id, a)", columns=["id", "a"])),
    Behaviour("Publications with a filter of rows", 15, published("WHERE (id < 10)", ids=range(1, 10))),
    Behaviour("Stored generated columns", 18, generated),
    Behaviour("`slot.failover`: a slot that standbys keep", 17, failover),
)


def has_plugin(server: EmbeddedServer) -> bool:
    """Whether the build brings test_decoding."""
    return any(server.binaries.parent.glob("lib/**/test_decoding.*"))


@pytest.fixture(scope="module")
def found() -> Iterator[dict[str, str]]:
    """What the run finds, kept in the file CDC_LAKE_MATRIX where that is asked for."""
    found: dict[str, str] = {}
    yield found
    if "CDC_LAKE_MATRIX" in os.environ:
        Path(os.environ["CDC_LAKE_MATRIX"]).write_text(json.dumps(found))


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda one: one.title)
def test_a_version_does_what_it_has_and_refuses_the_rest(
    behaviour: Behaviour, database: Database, tmp_path: Path, found: dict[str, str]
) -> None:
    with database.connect() as conn:
        version = conn.info.server_version
        found["version"] = f"{version // 10000}.{version % 10000}"
    there = version // 10000 >= behaviour.since
    if PLUGIN in behaviour.title and not has_plugin(database.server):  # the page is of builds that have it
        there, found[behaviour.title] = False, "not in this build"
    if there:
        behaviour.show(database, tmp_path)
    else:
        with pytest.raises((CdcLakeError, psycopg.Error)):
            behaviour.show(database, tmp_path)
    found.setdefault(behaviour.title, "yes" if there else "")
