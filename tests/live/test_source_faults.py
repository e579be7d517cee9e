"""What happens to the source while a receiver runs: nothing lost, nothing twice, or the error that names it.

`CDC_LAKE_BUDGET` above 1 stops the server as many times as wanted under load: twenty with ten.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from cdc_lake.config.project import Project
from cdc_lake.errors import AuthenticationRefused, PublicationMissing
from cdc_lake.observe.progress import Progress
from cdc_lake.testing.beside import beside, until
from tests.conftest import Database, make_database, make_role, start_server
from tests.live.test_receive_loop import assert_equal_to_source, bronze_rows, once, project_of, running

pytestmark = pytest.mark.live

STOPS = 2 * int(os.environ.get("CDC_LAKE_BUDGET", "1"))


def make_table(database: Database) -> None:
    with database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
        conn.execute("INSERT INTO t VALUES (0, 'copied')")


def streams(told: list[Progress]) -> int:
    """How many times the receiver has begun to stream."""
    return sum(p.stage == "connect" and "streams" in p.text for p in told)


def landed(project: Project) -> set[int]:
    """Keys that were copied or inserted, but for that of `make_table`; none of them twice."""
    keys = Counter(int(row["new"][0]) for row in bronze_rows(project) if row["op"] in "SI")
    assert set(keys.values()) <= {1}
    return set(keys) - {0}


def write_until(stop: threading.Event, database: Database) -> None:
    """Rows one by one, over a new connection where the server went."""
    number = 0
    while not stop.is_set():
        try:
            with database.connect() as conn:
                while not stop.is_set():
                    number += 1
                    conn.execute("INSERT INTO t VALUES (%s, 'under load')", [number])
                    stop.wait(0.003)
        except psycopg.OperationalError:
            stop.wait(0.05)


@pytest.mark.timeout(900)
def test_a_server_that_is_stopped_at_once_under_load_loses_nothing(tmp_path: Path) -> None:
    server = start_server()
    try:
        make_role(server)
        database = make_database(server)
        make_table(database)
        project = project_of(database, tmp_path)
        told: list[Progress] = []
        with running(project, told) as receiver, beside(lambda stop: write_until(stop, database)):
            for round_ in range(STOPS):
                until(lambda seen=round_: streams(told) > seen, "it streams")
                before = max(landed(project), default=0)
                until(lambda least=before: max(landed(project), default=0) > least + 20, "rows land")
                server.stop("immediate")
                server.start()
            until(lambda: streams(told) > STOPS, "it streams again")
        assert receiver.result().reconnects >= STOPS
        once(project)
        with database.connect() as conn:
            there = {id_ for (id_,) in conn.execute("SELECT id FROM t WHERE id > 0")}
        assert landed(project) == there
        assert len(there) > 20 * STOPS
    finally:
        server.remove()


def disconnect(database: Database, project: Project) -> None:
    """End the connection that reads the slot, as a server that restarts does."""
    with database.admin() as admin:
        admin.execute(
            "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE slot_name = %s",
            [project.slot],
        )


def test_a_password_that_is_changed_ends_the_run_and_the_new_one_goes_on(database: Database, tmp_path: Path) -> None:
    make_table(database)
    role = sql.Identifier(f"reader_{database.name}")
    with database.admin() as admin:
        admin.execute(
            sql.SQL("CREATE ROLE {} LOGIN REPLICATION PASSWORD 'first' IN ROLE {}").format(
                role, sql.Identifier(database.user)
            )
        )
    given = {"user": f"reader_{database.name}", "password": "first"}
    project = project_of(database, tmp_path, source=given)
    told: list[Progress] = []
    try:
        with pytest.raises(AuthenticationRefused), running(project, told) as receiver:  # noqa: PT012 - what it lives through
            until(lambda: streams(told) == 1, "it streams")
            with database.admin() as admin:
                admin.execute(sql.SQL("ALTER ROLE {} PASSWORD 'second'").format(role))
                admin.execute("INSERT INTO t VALUES (1, 'meanwhile')")
            disconnect(database, project)
            receiver.result(timeout=60)
        changed = project_of(database, tmp_path, source=given | {"password": "second"})
        once(changed)
        assert landed(changed) == {1}
        assert_equal_to_source(changed, database)
    finally:
        with database.admin() as admin:
            admin.execute("SELECT pg_drop_replication_slot(%s)", [project.slot])
            admin.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(project.publication)))
            admin.execute(sql.SQL("DROP ROLE {}").format(role))


@pytest.mark.parametrize("mode", ["stream", "polling"])
def test_a_publication_that_is_dropped_ends_the_run_by_its_name(database: Database, tmp_path: Path, mode: str) -> None:
    make_table(database)
    project = project_of(database, tmp_path, source={"mode": mode})
    told: list[Progress] = []
    name = sql.Identifier(project.publication)
    with pytest.raises(PublicationMissing), running(project, told) as receiver:  # noqa: PT012 - what it lives through
        until(lambda: streams(told) == 1, "it streams")
        with database.connect() as conn:
            conn.execute("INSERT INTO t VALUES (1, 'before')")
            until(lambda: landed(project) == {1}, "it landed")
            conn.execute(sql.SQL("DROP PUBLICATION {}").format(name))
            conn.execute("INSERT INTO t VALUES (2, 'without it')")
            conn.execute(sql.SQL("CREATE PUBLICATION {} FOR TABLE t").format(name))
            conn.execute("INSERT INTO t VALUES (3, 'behind it')")
        receiver.result(timeout=60)
    with pytest.raises(PublicationMissing):
        once(project)
    assert landed(project) == {1}, "nothing behind what was lost"


def test_a_table_that_is_dropped_while_it_streams_holds_nothing_up(database: Database, tmp_path: Path) -> None:
    make_table(database)
    with database.connect() as conn:
        conn.execute("CREATE TABLE other (id int PRIMARY KEY, a text)")
    project = project_of(database, tmp_path)
    told: list[Progress] = []
    with running(project, told), database.connect() as conn:
        until(lambda: streams(told) == 1, "it streams")
        conn.execute("INSERT INTO other VALUES (1, 'last')")
        conn.execute("DROP TABLE other")
        conn.execute("INSERT INTO t VALUES (2, 'behind')")
        until(lambda: landed(project) == {1, 2}, "both landed")
    assert not [p for p in told if p.stage == "retry"]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_transaction_that_is_open_over_restarts_of_the_receiver_lands_once(
    database: Database, tmp_path: Path, *, streamed: bool
) -> None:
    make_table(database)
    with database.admin() as admin:
        admin.execute(f'ALTER DATABASE "{database.name}" SET logical_decoding_work_mem = "64kB"')
    options = {} if streamed else {"proto_version": 1}
    project = project_of(database, tmp_path, source={"decoding": options}, bronze={"spool": {"part": "20 KiB"}})
    once(project)
    rows = "INSERT INTO t SELECT n, repeat('x', 99) FROM generate_series(%s::int, %s::int) AS n"
    with database.connect() as conn, database.connect(autocommit=False) as open_:
        for number in range(3):
            open_.execute(rows, [1000 * (number + 1), 1000 * (number + 2) - 1])
            conn.execute("INSERT INTO t VALUES (%s, 'beside it')", [number + 1])
            once(project)
            assert landed(project) == set(range(1, number + 2))
        open_.commit()
    once(project)
    assert landed(project) == {1, 2, 3, *range(1000, 4000)}
    assert_equal_to_source(project, database)
