"""Synchronous replication: PostgreSQL's commits wait until the receiver, named in `synchronous_standby_names`, has
landed them in bronze."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql

from cdc_lake.config.project import Project
from cdc_lake.ops.check.runner import check
from cdc_lake.runtime.receive.loop import ADVANCE_EVERY
from cdc_lake.source.postgres.server import names_standby
from cdc_lake_testing.beside import until
from tests.conftest import Database, make_database, make_role, start_server
from tests.live.test_receive_loop import assert_equal_to_source, once, project_of, running

pytestmark = pytest.mark.live
COMMITS = 60


@pytest.fixture
def database() -> Iterator[Database]:
    """On a server of its own: what its commits wait for, those of every database wait for."""
    server = start_server()
    make_role(server)
    try:
        yield make_database(server)
    finally:
        server.remove()


@contextmanager
def synchronous(database: Database, project: Project) -> Iterator[None]:
    """Commits wait for the receiver meanwhile."""
    with database.admin() as admin:

        def name(standby: str) -> None:
            admin.execute("SET synchronous_commit = local")
            quoted = '"' + standby + '"' if standby else ""
            admin.execute(sql.SQL("ALTER SYSTEM SET synchronous_standby_names = {}").format(sql.Literal(quoted)))
            admin.execute("SELECT pg_reload_conf()")

        name(f"cdc_lake {project.name} stream")
        try:
            yield
        finally:
            name("")


def commit(database: Database, done: list[float], failed: list[Exception], numbers: range) -> None:
    """One transaction a number, each with the seconds that its COMMIT took."""
    try:
        with database.connect() as conn:
            for number in numbers:
                began = time.monotonic()
                conn.execute("INSERT INTO t VALUES (%s, %s)", [number, "x" * number])
                done.append(time.monotonic() - began)
    except Exception as problem:  # noqa: BLE001 - raised by the test, in its own thread
        failed.append(problem)


def test_a_receiver_that_is_the_synchronous_standby_starts_again_while_commits_wait_for_it(
    database: Database, tmp_path: Path
) -> None:
    project = project_of(database, tmp_path)
    with database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
    once(project)
    done: list[float] = []
    failed: list[Exception] = []
    with synchronous(database, project):
        writer = threading.Thread(target=commit, args=(database, done, failed, range(COMMITS)), daemon=True)
        writer.start()
        until(lambda: waits_for_standby(database), "no commit waits for the receiver")
        for reached in (COMMITS // 3, 2 * COMMITS // 3):
            with running(project, []):
                until(lambda reached=reached: len(done) >= reached or failed, "commits stay without an answer", 60)
            at = len(done)
            until(lambda at=at: len(done) == COMMITS or waits_for_standby(database), "no commit waits")
            assert len(done) <= at + 1  # one was landed, and its answer under way
        with running(project, []):
            writer.join(60)
        assert not failed
        assert len(done) == COMMITS
        once(project)  # the goal of a run is a commit of its own, which must not wait for the run
    assert_equal_to_source(project, database)


def test_a_commit_of_which_the_stream_sends_nothing_is_answered_soon(database: Database, tmp_path: Path) -> None:
    """Those of other databases and of tables that are not captured wait like others: the receiver's answer is a
    keepalive's, which it keeps in bronze first."""
    project = project_of(database, tmp_path)
    with database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE SCHEMA other; CREATE TABLE other.u (id int)")
    once(project)
    took = []
    with synchronous(database, project), running(project, []), database.connect() as conn:
        conn.execute("INSERT INTO t VALUES (1)")
        for number in range(4):
            began = time.monotonic()
            conn.execute("INSERT INTO other.u VALUES (%s)", [number])
            took.append(time.monotonic() - began)
    # between two empty commits that nobody waits for are ten seconds; a stalled machine may add some to one of them
    assert sorted(took)[len(took) // 2] < ADVANCE_EVERY / 2, took


def test_check_says_what_commits_that_wait_for_the_receiver_need(database: Database, tmp_path: Path) -> None:
    def said(**changes: Any) -> list[tuple[str, str]]:
        lines = check(project_of(database, tmp_path, **changes))
        return [(line.text, line.fix) for line in lines if line.subject == "synchronous_standby_names"]

    with database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
    project = project_of(database, tmp_path)
    assert not said()
    with synchronous(database, project):
        until(said, "check does not see the setting")
        assert "until the initial copy is made" in said()[0][0]
        assert "`mode: stream`" in said(source={"mode": "polling"})[0][1]
        once(project)
        assert said() == [("commits of this server, in every database, may wait until bronze contains them", "")]
    until(lambda: not said(), "check still sees the setting")


def test_check_names_who_holds_a_catalog(database: Database, tmp_path: Path) -> None:
    with database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with database.admin() as admin, admin.transaction():
        admin.execute("LOCK TABLE pg_catalog.pg_trigger")
        pid = admin.info.backend_pid
        lines = [line for line in check(project_of(database, tmp_path)) if line.subject == "catalog locks"]
    assert f"pg_catalog.pg_trigger is locked by server process {pid}" in lines[0].text
    assert f"pg_terminate_backend({pid})" in lines[0].fix


@pytest.mark.parametrize(
    ("names", "listed"),
    [
        ("", False),
        ('"cdc_lake shop stream"', True),
        ('FIRST 1 (a, "CDC_LAKE shop STREAM")', True),
        ('ANY 2 ("b ""c""", d)', False),
        ("*", True),
        ("cdc_lake, shop, stream", False),
        ('"cdc_lake shop stream 2"', False),
    ],
)
def test_a_standby_is_named_as_postgresql_reads_the_setting(names: str, *, listed: bool) -> None:
    assert names_standby(names, "cdc_lake shop stream") is listed


def waits_for_standby(database: Database) -> bool:
    with database.admin() as admin:
        row = admin.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = %s", [database.name]
        ).fetchone()
    return row is not None and row[0] > 0
