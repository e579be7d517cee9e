"""A slot of PostgreSQL read by SQL functions: the same rows as by a stream, begun exactly where its copy ends."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
import pytest

from cdc_lake.bronze.contract import BronzeCommit, StreamCheckpoint, Tabulate, TransactionBatch
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.project import Project
from cdc_lake.config.source import PostgresSource
from cdc_lake.connectors.factory import slot_care
from cdc_lake.connectors.postgres.comparison import postgres_side
from cdc_lake.decode.pgoutput.columnar import tabulate
from cdc_lake.decode.transaction import ReceivedTransaction
from cdc_lake.errors import BronzeNotWritten, ServerBusy, SlotActive
from cdc_lake.model.position import Span
from cdc_lake.observability.events import silent
from cdc_lake.ops.check.postgres import findings
from cdc_lake.ops.slots import advance_slot, drop_slot, list_slots
from cdc_lake.ops.status import status
from cdc_lake.runtime.receive import loop as receiving
from cdc_lake.runtime.receive import receiver as attempts
from cdc_lake.runtime.receive.receiver import receive
from cdc_lake.source import polling
from cdc_lake.source.postgres import snapshot as settled_module
from cdc_lake.source.postgres import stream as postgres_polling
from cdc_lake.source.postgres.connection import connect
from cdc_lake.source.postgres.plugins import message_options
from cdc_lake.source.postgres.server import identify
from cdc_lake.source.postgres.stream import PostgresSlotFunctions, PostgresStream
from cdc_lake_testing.beside import beside, until
from cdc_lake_testing.kills import receive_until_killed
from cdc_lake_testing.memory import peak_mib
from cdc_lake_testing.server import EmbeddedServer
from cdc_lake_testing.workload import Workload
from tests.conftest import Database, drop_database, make_database, make_role, start_server
from tests.live.test_receive_loop import bronze_rows, once, project_of, tables_at_source, tables_from_bronze
from tests.live.test_receiver_kills import BUDGET, receivers_of
from tests.live.test_test_decoding_live import streamed
from tests.live.test_wal_budget_live import assert_no_log_kept_beside_a_busy_one
from tests.postgres_with_test_decoding import server  # noqa: F401 - a fixture
from tests.seeds import seeds

pytestmark = pytest.mark.live
PLUGINS = pytest.mark.parametrize("plugin", ["pgoutput", "test_decoding"])
POLLING = {"mode": "polling", "polling": {"interval": "20 ms", "max_changes": 50}}


def polled(database: Database, root: Path, plugin: str, **source: Any) -> Project:
    return project_of(database, root, source={**POLLING, "slot": {"name": "polled", "plugin": plugin}, **source})


@PLUGINS
@pytest.mark.parametrize("seed", seeds(1))
def test_a_workload_lands_the_rows_that_a_stream_lands(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plugin: str, seed: int
) -> None:
    """However much of an answer is handed over at once: what is landed of it is confirmed before its rest is read."""
    monkeypatch.setattr(postgres_polling, "PIECE", random.Random(seed).choice([1, 1000, 4 << 20]))
    (tmp_path / "stream").mkdir()
    stream = project_of(database, tmp_path / "stream", source={"slot": {"name": "streamed", "plugin": plugin}})
    project = polled(database, tmp_path, plugin)
    with database.connect() as conn:
        workload = Workload(conn, seed)
        workload.create_tables()
        workload.run(20)
        assert once(stream).snapshot_rows == once(project).snapshot_rows > 0
        workload.run(120)
        with conn.transaction():
            conn.execute("INSERT INTO w_pairs SELECT -n, 'many', NULL, true FROM generate_series(1, 200) AS n")
    assert once(stream).transactions == once(project).transactions > 50
    assert tables_from_bronze(project) == tables_at_source(database)
    assert [row | {"commit_lsn": None} for row in streamed(project)] == [
        row | {"commit_lsn": None} for row in streamed(stream)
    ]
    state = bronze_reader(project).state()
    assert state is not None
    with database.connect() as conn:
        assert conn.execute(
            "SELECT confirmed_flush_lsn - %s::text::pg_lsn FROM pg_replication_slots WHERE slot_name = 'polled'",
            [f"{state.confirm >> 32:X}/{state.confirm & 0xFFFFFFFF:X}"],
        ).fetchone() == (0,)


def peak_of_receiving(document: str, root: Path, setting: str) -> None:
    """What a process of its own does: receive, and write the most memory that it had, in MiB, to the file `setting`."""
    receive_until_killed(document, root, "")
    (root / setting).write_text(str(peak_mib()))


@pytest.mark.parametrize("plugin", ["pgoutput", "test_decoding"][:BUDGET])
def test_memory_does_not_grow_with_the_transaction(database: Database, tmp_path: Path, plugin: str) -> None:
    project = polled(database, tmp_path, plugin)
    receivers, peaks = receivers_of(project, database.password), []
    with database.connect() as conn:
        conn.execute("CREATE TABLE notes (id int PRIMARY KEY, body text)")
        assert receivers.run() == 0
        for first, megabytes in ((1, 5), (1_000_000, 150 * BUDGET)):
            rows = "SELECT n, repeat('x', 100000) FROM generate_series(%s::int, %s::int) AS n"
            conn.execute(f"INSERT INTO notes {rows}", [first, first + megabytes * 10 - 1])
            assert receivers.run("peak", target=peak_of_receiving) == 0
            peaks.append(float((tmp_path / "peak").read_text()))
    assert peaks[1] < 1.3 * peaks[0], peaks
    reader = bronze_reader(project)
    state = reader.state()
    assert state is not None
    commits = reader.commits(Span(state.epoch, -1, state.upto))
    assert sum(commit.changes for commit in commits) == (5 + 150 * BUDGET) * 10


@pytest.mark.parametrize("seed", seeds(1))
def test_options_of_pgoutput_bring_the_rows_that_they_bring_by_stream(
    database: Database, tmp_path: Path, seed: int
) -> None:
    with database.admin() as admin:
        decoding: dict[str, Any] = {"proto_version": 1, "binary": True, "messages": True}
        if admin.info.server_version >= 160_000:
            decoding["origin"] = "none"
        (tmp_path / "stream").mkdir()
        slot = {"slot": {"name": "streamed"}}
        stream = project_of(database, tmp_path / "stream", source={**slot, "decoding": decoding})
        project = polled(database, tmp_path, "pgoutput", decoding=decoding)
        workload = Workload(admin, seed)
        workload.create_tables()
        admin.execute(f'GRANT SELECT ON ALL TABLES IN SCHEMA public TO "{database.user}"')
        admin.execute(f'CREATE PUBLICATION "{project.publication}" FOR ALL TABLES')
        admin.execute(f'CREATE PUBLICATION "{stream.publication}" FOR ALL TABLES')
        once(stream)
        once(project)
        workload.run(30)
        admin.execute("SELECT pg_replication_origin_create(%s)", [database.name])
        admin.execute("SELECT pg_replication_origin_session_setup(%s)", [database.name])
        admin.execute("INSERT INTO w_pairs VALUES (-1, 'from elsewhere', NULL, true)")
        admin.execute("SELECT pg_replication_origin_session_reset(), pg_replication_origin_drop(%s)", [database.name])
        for transactional in (True, False):
            admin.execute("SELECT pg_logical_emit_message(%s, 'p', 'said')", [transactional])
        workload.run(30)
    assert once(stream).transactions == once(project).transactions > 20
    ours, theirs = ([row | {"commit_lsn": None} for row in streamed(one)] for one in (project, stream))
    assert ours == theirs
    assert [row["op"] for row in ours].count("M") == 2
    elsewhere = [row for row in ours if "from elsewhere" in (row["new"] or ())]
    assert len(elsewhere) == ("origin" not in decoding)


def test_what_lands_no_row_holds_nothing_up(database: Database, tmp_path: Path) -> None:
    """More of it than one answer holds: messages of runs before, which never land."""
    project = polled(database, tmp_path, "pgoutput", decoding={"messages": True})
    with database.connect() as conn:
        conn.execute("CREATE TABLE notes (id int PRIMARY KEY)")
        once(project)
        for number in range(120):
            conn.execute("SELECT pg_logical_emit_message(%s, 'cdc_lake', 'goal')", [number % 3 > 0])
        conn.execute("INSERT INTO notes VALUES (1)")
        assert once(project).transactions == 1


@contextmanager
def writing(database: Database, writers: int) -> Iterator[None]:
    """Transfers between accounts, of several writers, some of whose transactions are long."""
    over = threading.Event()

    def write(seed: int) -> None:
        dice = random.Random(seed)
        with psycopg.connect(database.dsn) as conn:
            while not over.is_set():
                one, other = dice.sample(range(40), 2)
                conn.execute("UPDATE accounts SET amount = amount - 1 WHERE id = %s", [min(one, other)])
                time.sleep(dice.choice((0, 0, 0.002, 0.03)))
                conn.execute("UPDATE accounts SET amount = amount + 1 WHERE id = %s", [max(one, other)])
                conn.commit()

    threads = [threading.Thread(target=write, args=(at,)) for at in range(writers)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


@PLUGINS
def test_the_copy_under_writers_ends_exactly_where_the_slot_begins(
    database: Database, tmp_path: Path, plugin: str
) -> None:
    with database.connect() as conn:
        conn.execute("CREATE TABLE accounts (id int PRIMARY KEY, amount int)")
        conn.execute("INSERT INTO accounts SELECT n, 100 FROM generate_series(0, 39) AS n")
    for turn in range(2):
        root = tmp_path / str(turn)
        root.mkdir()
        project = polled(database, root, plugin, slot={"name": f"polled_{turn}", "plugin": plugin})
        with writing(database, 4):
            time.sleep(0.2)
            once(project)
            time.sleep(0.2)
        once(project)
        copy = [r["new"] for r in bronze_rows(project) if r["op"] == "S"]
        assert sum(int(amount) for _, amount in copy) == 4000
        assert tables_from_bronze(project) == tables_at_source(database)


def test_another_snapshot_is_taken_where_the_log_has_another_order(database: Database, tmp_path: Path) -> None:
    """A transaction that the snapshot does not show stands before one that it shows: brought about by force."""
    project = polled(database, tmp_path, "pgoutput")
    shows, turns = settled_module.SnapshotPredicate.shows, []

    def at_first_otherwise(self: Any, xid: int, position: int) -> bool:
        turns.append(xid)
        return shows(self, xid, position) if len(turns) > 2 else len(turns) == 2

    def between(*given: Any, **named: Any) -> Any:
        with database.connect() as conn:
            conn.execute("INSERT INTO notes VALUES (2)")
            conn.execute("INSERT INTO notes VALUES (3)")
        return ended(*given, **named)

    ended = settled_module._wait_for_running
    with database.connect() as conn:
        conn.execute("CREATE TABLE notes (id int PRIMARY KEY); INSERT INTO notes VALUES (1)")
        with (
            mock.patch.object(settled_module.SnapshotPredicate, "shows", at_first_otherwise),
            mock.patch.object(settled_module, "_wait_for_running", between),
        ):
            assert once(project).snapshot_rows == 3
    assert turns.count(turns[0]) == 2
    assert [r["new"] for r in bronze_rows(project) if r["op"] in "SI"] == [["1"], ["2"], ["3"]]


def test_a_transaction_that_runs_is_waited_for(database: Database, tmp_path: Path) -> None:
    """One that begins behind the slot's making: its commit record may be in the log long before it can be seen."""
    project = polled(database, tmp_path, "pgoutput")
    ended, looks = settled_module._wait_for_running, []
    with database.connect() as conn, database.connect(autocommit=False) as other:
        conn.execute("CREATE TABLE notes (id int PRIMARY KEY)")

        def with_another(session: Any, pause: Any) -> None:
            other.execute("INSERT INTO notes VALUES (1)")

            def look() -> None:
                looks.append(1)
                if len(looks) == 3:
                    other.commit()
                pause()

            ended(session, look)

        with mock.patch.object(settled_module, "_wait_for_running", with_another):
            assert once(project).snapshot_rows == 1
    assert len(looks) >= 3


@PLUGINS
def test_what_was_landed_and_not_confirmed_comes_again_and_lands_once(
    database: Database, tmp_path: Path, plugin: str
) -> None:
    project = polled(database, tmp_path, plugin)
    with database.connect() as conn:
        conn.execute("CREATE TABLE notes (id int PRIMARY KEY)")
        once(project)
        conn.execute("INSERT INTO notes VALUES (1)")
        with (
            mock.patch("cdc_lake.source.polling.PollingStream.confirm", side_effect=OSError("killed")),
            pytest.raises(OSError, match="killed"),
        ):
            once(project)
        assert [r["new"] for r in bronze_rows(project) if r["op"] == "I"] == [["1"]]
        conn.execute("INSERT INTO notes VALUES (2)")
        assert once(project).transactions == 1
    assert tables_from_bronze(project) == tables_at_source(database)


def test_somebody_who_looks_into_the_slot_is_waited_for(database: Database, tmp_path: Path) -> None:
    project, source = polled(database, tmp_path, "pgoutput"), PostgresSource(**database.source)
    with database.connect() as conn:
        conn.execute("CREATE TABLE notes (id int PRIMARY KEY)")
        once(project)
    state = bronze_reader(project).state()
    assert state is not None
    now, options = [0.0], message_options(project.publication)
    with connect(source, Path("/")) as session:
        holder = PostgresStream(
            connect(source, Path("/"), replication=True), "polled", options, state.confirm, status_interval=10
        )
        functions = PostgresSlotFunctions(
            session, session, "polled", "pgoutput", options, clock=lambda: now[0], pause=lambda _: holder.close()
        )
        assert functions.peek(1) is None
        now[0] = 20
        with pytest.raises(SlotActive):
            functions.peek(1)
        functions.advance(state.confirm)
        assert functions.peek(1) is not None


def snapshots_held(database: Database) -> int:
    """How many sessions hold one for what they read of a slot: while it is held, rows of before stay in the tables."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database() "
        "AND query LIKE '%pg_logical_slot_peek%' AND state = 'active' AND backend_xmin IS NOT NULL"
    )
    with database.connect() as conn:
        row = conn.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])


class Outage(DeltaBronze):
    """A lake that can be neither written nor read from the third batch until `over`."""

    over = False
    tried = 0

    def append(
        self, batch: TransactionBatch | Sequence[ReceivedTransaction], tabulate: Tabulate = tabulate
    ) -> BronzeCommit:
        """See BronzeWriter."""
        self.tried += 1
        self._reach()
        return super().append(batch, tabulate)

    def state(self) -> StreamCheckpoint | None:
        """See BronzeWriter."""
        self._reach()
        return super().state()

    def _reach(self) -> None:
        if self.tried >= 3 and not self.over:
            raise BronzeNotWritten("the lake is away")


def test_while_the_lake_is_away_the_server_holds_no_snapshot_for_what_is_not_read(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "UNREAD", 2.0)
    monkeypatch.setattr(postgres_polling, "PIECE", 100_000)
    source = {**POLLING, "slot": {"name": "polled"}, "polling": {"interval": "20 ms", "max_changes": 1_000_000}}
    project = project_of(database, tmp_path, source=source, bronze={"batch": {"max_transactions": 2}})
    with database.connect() as conn:
        conn.execute("CREATE TABLE notes (id int PRIMARY KEY, word text)")
        once(project)
        for n in range(40):  # more than the buffers between hold
            rows = "INSERT INTO notes SELECT %s + n, repeat('x', 6000) FROM generate_series(1, 100) AS n"
            conn.execute(rows, [100 * n])
    bronze = Outage(project.bronze, "os")
    with beside(lambda stop: receive(project, bronze, once=False, stop=stop, report=silent)) as receiver:
        until(lambda: bronze.tried >= 3 or receiver.done(), "the lake goes away")
        assert snapshots_held(database) == 1
        until(lambda: not snapshots_held(database) or receiver.done(), "the server's snapshot goes")
        bronze.over, tried = True, bronze.tried
        until(lambda: bronze.tried > tried + 1 or receiver.done(), "it continues by itself")
    assert receiver.result().reconnects >= 1
    once(project)
    assert tables_from_bronze(project) == tables_at_source(database)


class Slow(DeltaBronze):
    """A lake whose every commit takes longer than an answer of the server may wait."""

    commits = 0

    def append(
        self, batch: TransactionBatch | Sequence[ReceivedTransaction], tabulate: Tabulate = tabulate
    ) -> BronzeCommit:
        """See BronzeWriter."""
        self.commits += 1
        time.sleep(1)
        return super().append(batch, tabulate)


@pytest.mark.parametrize("goal", [True, False], ids=["once", "without end"])
def test_commits_that_take_longer_than_an_answer_may_wait_cost_reconnects_and_nothing_else(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, goal: bool
) -> None:
    monkeypatch.setattr(polling, "UNREAD", 0.5)
    monkeypatch.setattr(attempts, "STEADY", 0.4)  # less than that, as it is
    monkeypatch.setattr(postgres_polling, "PIECE", 100_000)
    source = {**POLLING, "slot": {"name": "polled"}, "polling": {"interval": "20 ms", "max_changes": 1_000_000}}
    project = project_of(database, tmp_path, source=source, bronze={"batch": {"max_transactions": 3}})
    with database.connect() as conn:
        conn.execute("CREATE TABLE notes (id int PRIMARY KEY, word text)")
        once(project)
        for n in range(12):
            rows = "INSERT INTO notes SELECT %s + n, repeat('x', 6000) FROM generate_series(1, 100) AS n"
            conn.execute(rows, [100 * n])
    bronze = Slow(project.bronze, "os")
    with beside(lambda stop: receive(project, bronze, once=goal, stop=stop, report=silent)) as receiver:
        until(lambda: receiver.done() or tables_from_bronze(project) == tables_at_source(database), "all of it lands")
    assert 1 <= receiver.result().reconnects <= bronze.commits, "each of them got further"
    assert bronze.commits <= 2 * 12, "nor is anything landed again and again"
    assert tables_from_bronze(project) == tables_at_source(database)
    assert len({(row["position"], row["ordinal"]) for row in bronze_rows(project)}) == len(bronze_rows(project))


def test_the_server_is_known_by_sql_as_by_its_command(database: Database) -> None:
    source = PostgresSource(**database.source)
    with connect(source, Path("/")) as session, connect(source, Path("/"), replication=True) as replication:
        by_sql, by_command = identify(session, source), identify(replication, source)
    assert by_sql.flushed.value >= 0
    assert (by_sql.system, by_sql.timeline, by_sql.database) == (by_command.system, by_command.timeline, database.name)
    assert (by_sql.product, by_sql.wal_level, by_sql.in_recovery) == (by_command.product, "logical", False)


@pytest.fixture(scope="module")
def refusing() -> Iterator[EmbeddedServer]:
    """A server that takes no replication connection."""
    embedded = start_server(settings={"max_wal_senders": "0"})
    make_role(embedded)
    yield embedded
    embedded.remove()


@pytest.fixture
def guarded(refusing: EmbeddedServer) -> Iterator[Database]:
    """A database of that server."""
    made = make_database(refusing)
    yield made
    drop_database(made)


def test_no_replication_connection_is_opened(guarded: Database, tmp_path: Path) -> None:
    with pytest.raises(ServerBusy):
        connect(PostgresSource(**guarded.source), Path("/"), replication=True)
    project = polled(guarded, tmp_path, "pgoutput")
    with guarded.connect() as conn:
        conn.execute("CREATE TABLE notes (id int PRIMARY KEY); INSERT INTO notes VALUES (1)")
        once(project)
        conn.execute("INSERT INTO notes VALUES (2)")
        assert once(project).transactions == 1
        told = {line.subject: line.ok for line in findings(project)}
        assert not told.keys() & {"replication", "WAL senders"}
        assert told["history"]
        assert "polling" in status(project).slot.reason
        conn.execute("INSERT INTO notes VALUES (3)")
        state = bronze_reader(project).state()
        assert state is not None
        with postgres_side(project, state) as side, side.snapshot([]) as shown:
            ahead = side.ahead(shown, state.upto)
        assert ahead is not None
        assert len(ahead) == 1
        assert advance_slot(project).bytes == 0
        assert once(project).transactions == 1
        assert drop_slot(project, yes=True).done
        assert [one.name for one in list_slots(project).slots] == []


def test_a_slot_is_given_up_without_a_replication_connection(guarded: Database, tmp_path: Path) -> None:
    project = polled(guarded, tmp_path, "pgoutput", wal_budget={"max_bytes": 1 << 20, "on_exceeded": "drop_slot"})
    with guarded.connect() as conn:
        conn.execute("CREATE TABLE notes (id int PRIMARY KEY)")
    once(project)
    slot_care(project).drop(project.slot, 1.0)
    assert [one.name for one in list_slots(project).slots] == []


def test_who_reads_a_slot_is_waited_for_before_it_is_dropped(database: Database, tmp_path: Path) -> None:
    with database.connect() as conn:
        conn.execute("CREATE TABLE notes (id int PRIMARY KEY)")
    project = polled(database, tmp_path, "pgoutput")
    once(project)
    state = bronze_reader(project).state()
    assert state is not None
    options = message_options(project.publication)
    with connect(PostgresSource(**database.source), Path("/"), replication=True) as reading:
        PostgresStream(reading, "polled", options, state.confirm, status_interval=10)
        with pytest.raises(SlotActive):
            drop_slot(project, yes=True)
        with pytest.raises(SlotActive):
            drop_slot(project, yes=True, wait=0.3)
        assert [one.name for one in list_slots(project).slots if one.own]
        with beside(lambda _: drop_slot(project, yes=True, wait=60)) as dropping:
            time.sleep(0.3)
            assert not dropping.done()
            reading.close()
            assert dropping.result(30).done
    assert not [one.name for one in list_slots(project).slots if one.own]


@pytest.mark.parametrize(
    "source",
    [POLLING, {**POLLING, "slot": {"plugin": "test_decoding"}}, {"slot": {"plugin": "test_decoding"}}],
    ids=["polling", "polling test_decoding", "test_decoding"],
)
def test_a_database_that_rests_beside_a_busy_one_keeps_no_log(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: dict[str, Any]
) -> None:
    monkeypatch.setattr(receiving, "ADVANCE_EVERY", 0.2)
    with database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
    project = project_of(database, tmp_path, source=source)
    once(project)
    assert_no_log_kept_beside_a_busy_one(database, project, times=2, mib=4)
