"""What the server keeps for a slot, on a real one: nothing for a database that rests, and the ladder where it grows."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc_lake.bronze.contract import BronzeCommit, Tabulate, TransactionBatch
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.project import Project
from cdc_lake.connectors import wal_budget as wal_ladder
from cdc_lake.connectors.wal_budget import ApplyYield, WalNote
from cdc_lake.decode.pgoutput.columnar import tabulate
from cdc_lake.decode.transaction import ReceivedTransaction
from cdc_lake.errors import SlotGivenUp, SlotMissing, StoreUnavailable
from cdc_lake.observability.events import silent
from cdc_lake.ops.check.postgres import findings
from cdc_lake.ops.status import status
from cdc_lake.runtime.receive import commit_pipeline, wal_budget_monitor
from cdc_lake.runtime.receive import loop as receiving
from cdc_lake.runtime.receive.receiver import receive
from cdc_lake.runtime.restart import restart
from cdc_lake_testing.beside import beside, streams, until
from tests.conftest import Database, drop_database, make_database
from tests.live.test_receive_loop import assert_equal_to_source, once, project_of, running

pytestmark = pytest.mark.live
MIB = 1 << 20
BUDGET = {"max_bytes": 4 * MIB}


class Stuck(DeltaBronze):
    """A bronze whose store is away while `away` is set."""

    away = threading.Event()

    def append(
        self, batch: TransactionBatch | Sequence[ReceivedTransaction], tabulate: Tabulate = tabulate
    ) -> BronzeCommit:
        self._reach()
        return super().append(batch, tabulate)

    def advance(self, position: int, confirm: int, empty: int = 0) -> BronzeCommit:
        self._reach()
        return super().advance(position, confirm, empty)

    def _reach(self) -> None:
        if self.away.is_set():
            raise StoreUnavailable("a request to the object store failed", where="s3://lake/shop")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds become moments."""
    monkeypatch.setattr(wal_budget_monitor, "LOOK_EVERY", 0.05)
    monkeypatch.setattr(wal_ladder, "DROP_AFTER", 0.5)
    monkeypatch.setattr(receiving, "ADVANCE_EVERY", 0.2)
    monkeypatch.setattr(commit_pipeline, "PAUSES", (0.1, 0.2))


def made(database: Database, root: Path, **source: Any) -> Project:
    with database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, words text)")
    project = project_of(database, root, source=source)
    once(project)
    return project


def slot_of(conn: psycopg.Connection, project: Project) -> tuple[int, int] | None:
    """Bytes kept for the slot, and its confirmed position."""
    return conn.execute(
        "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint, (confirmed_flush_lsn - '0/0')::bigint "
        "FROM pg_replication_slots WHERE slot_name = %s",
        [project.slot],
    ).fetchone()


def end_of(conn: psycopg.Connection) -> int:
    row = conn.execute("SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint").fetchone()
    assert row is not None
    return int(row[0])


def freed(conn: psycopg.Connection, project: Project, below: int) -> bool:
    """Whether the server keeps little; a checkpoint notes which transactions run, from where a slot may begin."""
    conn.execute("CHECKPOINT")
    seen = slot_of(conn, project)
    return seen is not None and seen[0] < below


def write(conn: psycopg.Connection, mib: int) -> None:
    conn.execute("INSERT INTO t SELECT g, repeat(md5(g::text), 32) FROM generate_series(1, %s) AS g", [mib * 1000])


def assert_no_log_kept_beside_a_busy_one(database: Database, project: Project, *, times: int, mib: int) -> None:
    """The slot of a database where nothing happens moves on with what another one writes, and nothing of that lands."""
    neighbour = make_database(database.server)
    try:
        with running(project, told := []), database.admin() as admin, neighbour.connect() as busy:
            until(lambda: streams(told))
            busy.execute("CREATE TABLE t (id int, words text)")
            for _ in range(times):
                before = end_of(admin)
                write(busy, mib)
                until(lambda end=before: (slot_of(admin, project) or (0, 0))[1] > end + mib * MIB, "it moves on")  # type: ignore[misc]
                until(lambda: freed(admin, project, MIB), "the server keeps nothing")
        assert not [p for p in told if p.stage == "landed"], "no rows of the neighbour, none of a heartbeat"
    finally:
        drop_database(neighbour)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("heartbeat", [{}, {"heartbeat": 1000}], ids=["keepalives", "heartbeat"])
def test_a_database_that_rests_beside_a_busy_one_keeps_no_log(
    database: Database, tmp_path: Path, heartbeat: dict[str, int]
) -> None:
    project = made(database, tmp_path, **heartbeat)
    assert_no_log_kept_beside_a_busy_one(database, project, times=3, mib=8)
    assert bronze_reader(project).state() is not None


@pytest.mark.usefixtures("quick")
def test_a_heartbeat_moves_a_server_that_rests_altogether(database: Database, tmp_path: Path) -> None:
    project = made(database, tmp_path, heartbeat=1000)
    with running(project, told := []), database.admin() as admin:
        until(lambda: streams(told))
        for _ in range(2):
            at = end_of(admin)
            until(lambda end=at: (slot_of(admin, project) or (0, 0))[1] > end, "its own commit came back")  # type: ignore[misc]
    assert once(project).transactions == 0


@pytest.mark.usefixtures("quick")
def test_a_heartbeat_that_the_server_refuses_is_told_once_and_stops_nothing(database: Database, tmp_path: Path) -> None:
    project = made(database, tmp_path, heartbeat=1000)
    with database.admin() as admin:
        found = admin.execute("SELECT oid::regprocedure::text FROM pg_proc WHERE proname = 'pg_logical_emit_message'")
        for (name,) in found.fetchall():
            admin.execute(f"REVOKE EXECUTE ON FUNCTION {name} FROM PUBLIC")
        with running(project, told := []), database.connect() as conn:
            until(lambda: any("heartbeat failed" in p.text for p in told))
            conn.execute("INSERT INTO t VALUES (1, 'lands all the same')")
            until(lambda: any(p.stage == "landed" for p in told))
        assert [p.facts["code"] for p in told if p.stage == "warning"] == ["SRC224"]


@pytest.mark.usefixtures("quick")
@pytest.mark.obeys("SRC235")
def test_where_bronze_is_away_the_ladder_is_climbed_and_left_again(database: Database, tmp_path: Path) -> None:
    project = made(database, tmp_path, wal_budget=BUDGET)
    bronze, told = Stuck(project.bronze, "os"), []
    gives_way = ApplyYield(project, silent)
    with database.admin() as admin:
        freed(admin, project, MIB)
        with beside(lambda stop: receive(project, bronze, once=False, stop=stop, report=told.append)):
            until(lambda: streams(told))
            until(lambda: WalNote(project).read(), "it is looked at")
            bronze.away.set()
            try:
                write(admin, 8)
                until(lambda: any(p.facts.get("code") == "SRC235" for p in told), "it is told")
                assert gives_way()
                seen = status(project)
                assert seen.wal_budget is not None
                assert (seen.wal_budget.step, seen.wal_budget.pauses_apply) == ("exceeded", True)
                lines = [line for line in findings(project) if line.subject == "WAL budget"]
                assert [(line.ok, line.code) for line in lines] == [(False, "SRC235")]
                assert slot_of(admin, project) is not None, "nobody said that it may be dropped"
            finally:
                bronze.away.clear()
            until(lambda: freed(admin, project, MIB), "it landed, and the server keeps nothing")
            until(lambda: not gives_way(), "apply goes on")
        assert_equal_to_source(project, database)


@pytest.mark.usefixtures("quick")
@pytest.mark.obeys("SRC233")
def test_a_slot_is_dropped_where_the_pipeline_says_so_and_bronze_stays_whole(
    database: Database, tmp_path: Path
) -> None:
    project = made(database, tmp_path, wal_budget={**BUDGET, "on_exceeded": "drop_slot"})
    bronze, told = Stuck(project.bronze, "os"), []
    before = bronze.state()

    def receive_until_it_is_gone(admin: psycopg.Connection) -> None:
        with beside(lambda stop: receive(project, bronze, once=False, stop=stop, report=told.append)):
            until(lambda: streams(told))
            bronze.away.set()
            write(admin, 8)
            until(lambda: slot_of(admin, project) is None, "it is gone")

    try:
        with database.admin() as admin, pytest.raises(SlotGivenUp, match="the slot is dropped") as given_up:
            receive_until_it_is_gone(admin)
    finally:
        bronze.away.clear()
    assert given_up.value.exit_status == 1
    assert bronze.state() == before
    with pytest.raises(SlotMissing):
        once(project)
    restart(project, yes=True)
    once(project)
    assert_equal_to_source(project, database)


@pytest.mark.usefixtures("quick")
def test_a_slot_is_dropped_while_its_copy_still_runs(database: Database, tmp_path: Path) -> None:
    with database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, words text)")
        write(conn, 4)
    budget = {"wal_budget": {**BUDGET, "on_exceeded": "drop_slot"}}
    project, told = project_of(database, tmp_path, source=budget, snapshot={"max_rows_per_second": 100}), []
    bronze = DeltaBronze(project.bronze, "os")

    def receive_until_it_is_gone(admin: psycopg.Connection) -> None:
        with beside(lambda stop: receive(project, bronze, once=False, stop=stop, report=told.append)):
            until(lambda: any(p.text.startswith("copying") for p in told), "the copy runs")
            admin.execute("CREATE TABLE other AS SELECT repeat('x', 900) FROM generate_series(1, 9000)")
            until(lambda: slot_of(admin, project) is None, "it is gone")

    with database.connect() as conn, pytest.raises(SlotGivenUp, match="the slot is dropped"):
        receive_until_it_is_gone(conn)
    assert not streams(told), "the copy was not done"


@pytest.mark.usefixtures("quick")
def test_a_slot_is_dropped_while_a_run_to_an_end_copies_a_table_that_came(database: Database, tmp_path: Path) -> None:
    with database.connect() as conn:
        conn.execute("CREATE TABLE came AS SELECT n AS id, 'x' AS word FROM generate_series(1, 100000) AS n")
        conn.execute("ALTER TABLE came ADD PRIMARY KEY (id)")
    made(database, tmp_path, tables=["public.t"])
    budget = {"wal_budget": {**BUDGET, "on_exceeded": "drop_slot"}}
    project, told = project_of(database, tmp_path, source=budget, snapshot={"max_rows_per_second": 100}), []
    bronze = DeltaBronze(project.bronze, "os")
    before = bronze.state()

    def receive_until_it_is_gone(admin: psycopg.Connection) -> None:
        with beside(lambda stop: receive(project, bronze, once=True, stop=stop, report=told.append)) as receiver:
            until(lambda: receiver.done() or any(p.text.startswith("copying") for p in told), "the copy runs")
            write(admin, 8)
            until(lambda: slot_of(admin, project) is None, "it is gone")

    with database.connect() as conn, pytest.raises(SlotGivenUp, match="the slot is dropped"):
        receive_until_it_is_gone(conn)
    assert any(p.text.startswith("copying") for p in told)
    assert not streams(told), "the copy was not done"
    assert bronze_reader(project).state() == before, "what was copied of it counts for nothing"


@pytest.mark.usefixtures("quick")
def test_what_decoding_took_the_server_is_in_the_status(database: Database, tmp_path: Path) -> None:
    project = made(database, tmp_path)
    with database.admin() as admin:
        admin.execute(
            f"ALTER ROLE {database.user} IN DATABASE {database.name} SET logical_decoding_work_mem = '64kB'".encode()
        )
        write(admin, 2)
        once(project)
        until(lambda: decoded_beyond_memory(project) > MIB, "the server spilled it, or sent it early")
        assert status(project).slot.safe_bytes is None


def decoded_beyond_memory(project: Project) -> int:
    """Bytes that the server spilled, or streamed where the receiver takes a transaction before its end."""
    counters = status(project).slot.counters
    assert counters is not None
    return counters.spilled_bytes + counters.streamed_bytes
