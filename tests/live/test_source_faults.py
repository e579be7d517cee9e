"""What happens to the source while a receiver runs: nothing lost, nothing twice, or the error that names it.

The error comes with the first look at the source behind the fault: for that the receiver pauses a second or a little
more in a stream, its interval where it polls. `CDC_LAKE_BUDGET` above 1 asks for it within five seconds by the clock,
which is fair where nothing else runs, and prints how long it took. A server that stops at once is in test_immediate_stops.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import psycopg
import pytest
from psycopg import sql

from cdc_lake.config.project import Project
from cdc_lake.errors import (
    AuthenticationRefused,
    PublicationMissing,
    SlotAhead,
    SlotInvalidated,
    SlotMissing,
    SourceError,
    WalGone,
)
from cdc_lake.observability.events import ProgressEvent
from cdc_lake_testing.beside import streams, until
from tests.conftest import Database, make_database, make_role, start_server
from tests.live.test_receive_loop import assert_equal_to_source, bronze_rows, once, project_of, running
from tests.source_losses import lived_through

pytestmark = pytest.mark.live

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
IN_TIME = 60 if BUDGET == 1 else 5
"""Seconds until the error has come."""
MODES = pytest.mark.parametrize("mode", ["stream", "polling"])


def make_table(database: Database) -> None:
    with database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
        conn.execute("INSERT INTO t VALUES (0, 'copied')")


def landed(project: Project, ops: str = "SI") -> set[int]:
    """Keys that were copied or inserted, but for that of `make_table`; none of them twice."""
    keys = Counter(int(row["new"][0]) for row in bronze_rows(project) if row["op"] in ops)
    assert set(keys.values()) <= {1}
    return set(keys) - {0}


@dataclass(frozen=True)
class Fault:
    """When something was done to the source, and how much the receiver had told by then."""

    at: float
    told: int


def fault(told: list[ProgressEvent]) -> Fault:
    return Fault(time.monotonic(), len(told))


def ends(receiver: Future[Any], told: list[ProgressEvent], behind: Fault) -> None:
    """It ends by an error of its own, with the first look behind the fault: it tried once, and not again."""
    receiver.exception(timeout=IN_TIME)
    print(f"ended {time.monotonic() - behind.at:.2f} s behind the fault")
    retries = [one.text for one in told[behind.told :] if one.stage == "retry"]
    assert len(retries) <= 1
    receiver.result()


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
            sql.SQL("CREATE ROLE {} LOGIN REPLICATION PASSWORD 'first canary' IN ROLE {}").format(
                role, sql.Identifier(database.user)
            )
        )
    given = {"user": f"reader_{database.name}", "password": "first canary"}
    project = project_of(database, tmp_path, source=given)
    told: list[ProgressEvent] = []
    try:
        with pytest.raises(AuthenticationRefused) as caught, running(project, told) as receiver:  # noqa: PT012 - what it lives through
            until(lambda: streams(told) == 1, "it streams")
            with database.admin() as admin:
                admin.execute(sql.SQL("ALTER ROLE {} PASSWORD 'second canary'").format(role))
                admin.execute("INSERT INTO t VALUES (1, 'meanwhile')")
            changed_at = fault(told)
            disconnect(database, project)
            ends(receiver, told, changed_at)
        lived_through("password changed", tmp_path, told, caught.value, "first canary")
        changed = project_of(database, tmp_path, source=given | {"password": "second canary"})
        once(changed)
        assert landed(changed) == {1}
        assert_equal_to_source(changed, database)
    finally:
        with database.admin() as admin:
            admin.execute("SELECT pg_drop_replication_slot(%s)", [project.slot])
            admin.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(project.publication)))
            admin.execute(sql.SQL("DROP ROLE {}").format(role))


@MODES
def test_a_publication_that_is_dropped_ends_the_run_by_its_name(database: Database, tmp_path: Path, mode: str) -> None:
    make_table(database)
    project = project_of(database, tmp_path, source={"mode": mode})
    told: list[ProgressEvent] = []
    name = sql.Identifier(project.publication)
    with pytest.raises(PublicationMissing) as caught, running(project, told) as receiver:  # noqa: PT012 - what it lives through
        until(lambda: streams(told) == 1, "it streams")
        with database.connect() as conn:
            conn.execute("INSERT INTO t VALUES (1, 'before')")
            until(lambda: landed(project) == {1}, "it landed")
            dropped_at = fault(told)
            conn.execute(sql.SQL("DROP PUBLICATION {}").format(name))
            conn.execute("INSERT INTO t VALUES (2, 'without it')")
            conn.execute(sql.SQL("CREATE PUBLICATION {} FOR TABLE t").format(name))
            conn.execute("INSERT INTO t VALUES (3, 'behind it')")
        ends(receiver, told, dropped_at)
    with pytest.raises(PublicationMissing):
        once(project)
    # the table has another entry in the new publication, so it is copied again: that is no change of the stream
    assert landed(project, "I") == {1}, "nothing behind what was lost"
    lived_through("publication dropped", tmp_path, told, caught.value)


# ── what others do to the slot ──


Meddling: TypeAlias = Callable[[psycopg.Connection[Any], str], None]


def dropped(admin: psycopg.Connection[Any], slot: str) -> None:
    admin.execute("SELECT pg_drop_replication_slot(%s)", [slot])


def recreated(admin: psycopg.Connection[Any], slot: str) -> None:
    dropped(admin, slot)
    admin.execute("INSERT INTO t SELECT max(id) + 1, 'between' FROM t")
    admin.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])


def advanced(admin: psycopg.Connection[Any], slot: str) -> None:
    admin.execute("INSERT INTO t SELECT max(id) + 1, 'passed over' FROM t")
    admin.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_flush_lsn())", [slot])


def meddle(database: Database, project: Project, told: list[ProgressEvent], what: Meddling) -> Fault:
    """Do something to a slot while nobody reads it."""
    with database.admin() as admin:
        while True:
            done = fault(told)
            disconnect(database, project)
            try:
                what(admin, project.slot)
            except psycopg.errors.ObjectInUse:  # it is back, or looks at it just now: nothing was done
                continue
            return done


@MODES
@pytest.mark.parametrize(
    ("what", "error"),
    [(dropped, SlotMissing), (recreated, SlotAhead), (advanced, SlotAhead)],
    ids=lambda one: one.__name__,
)
def test_what_others_do_to_the_slot_ends_the_run_by_its_name(
    database: Database, tmp_path: Path, mode: str, what: Meddling, error: type[SourceError]
) -> None:
    make_table(database)
    project = project_of(database, tmp_path, source={"mode": mode})
    told: list[ProgressEvent] = []
    # a look may fall between the dropping and the making
    either = (error, SlotMissing) if what is recreated else error
    with pytest.raises(either) as caught, running(project, told) as receiver:  # noqa: PT012 - what it lives through
        until(lambda: streams(told) == 1, "it streams")
        with database.connect() as conn:
            conn.execute("INSERT INTO t VALUES (1, 'before')")
        until(lambda: landed(project) == {1}, "it landed")
        ends(receiver, told, meddle(database, project, told, what))
    with pytest.raises(error):
        once(project)
    there = range(1, len(landed(project)) + 1) if what is advanced else [1]  # it may land rows between two attempts
    assert landed(project) == set(there), "nothing behind what was lost"
    lived_through(f"slot {what.__name__}", tmp_path, told, caught.value)


@pytest.fixture
def frugal(tmp_path: Path) -> Iterator[Database]:
    """A database of a server that keeps next to nothing for a slot."""
    server = start_server(settings={"max_slot_wal_keep_size": "1MB"})
    try:
        make_role(server)
        yield make_database(server)
    finally:
        server.remove()


@MODES
def test_a_slot_that_the_server_gives_up_ends_the_run_by_its_name(frugal: Database, tmp_path: Path, mode: str) -> None:
    make_table(frugal)
    project = project_of(frugal, tmp_path, source={"mode": mode})
    told: list[ProgressEvent] = []
    with pytest.raises(SlotInvalidated) as caught, running(project, told) as receiver:  # noqa: PT012 - what it lives through
        until(lambda: streams(told) == 1, "it streams")
        with frugal.connect(autocommit=False) as open_, frugal.admin() as admin:
            open_.execute("INSERT INTO t VALUES (1, 'holds the log')")
            for _ in range(4):
                admin.execute("SELECT pg_logical_emit_message(false, 'p', ''), pg_switch_wal()")
            given_up_at = fault(told)
            admin.execute("CHECKPOINT")
            ends(receiver, told, given_up_at)
    assert type(caught.value) is (WalGone if mode == "stream" else SlotInvalidated)
    with pytest.raises(WalGone):
        once(project)
    assert landed(project) == set()
    lived_through("WAL gone" if mode == "stream" else "slot invalidated", tmp_path, told, caught.value)


def test_a_table_that_is_dropped_while_it_streams_holds_nothing_up(database: Database, tmp_path: Path) -> None:
    make_table(database)
    with database.connect() as conn:
        conn.execute("CREATE TABLE other (id int PRIMARY KEY, a text)")
    project = project_of(database, tmp_path)
    told: list[ProgressEvent] = []
    with running(project, told), database.connect() as conn:
        until(lambda: streams(told) == 1, "it streams")
        conn.execute("INSERT INTO other VALUES (1, 'last')")
        conn.execute("DROP TABLE other")
        conn.execute("INSERT INTO t VALUES (2, 'behind')")
        until(lambda: landed(project) == {1, 2}, "both landed")
    assert not [p for p in told if p.stage == "retry"]
    lived_through("table dropped", tmp_path, told)


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
