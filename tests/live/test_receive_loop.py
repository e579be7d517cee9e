"""The receive loop against a real server and a real bronze table: nothing lost, nothing twice."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc_lake.bronze.contract import BronzeCommit, Tabulate, TransactionBatch
from cdc_lake.bronze.open import bronze_writer
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.control.coordination import apply_lease
from cdc_lake.decode.pgoutput.columnar import tabulate
from cdc_lake.decode.transaction import ReceivedTransaction
from cdc_lake.errors import (
    BronzeAhead,
    CdcLakeError,
    CopyUnknown,
    OtherSource,
    PublicationMissing,
    SlotActive,
    SlotAhead,
    SlotForeign,
    SlotMissing,
)
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import ProgressEvent, silent
from cdc_lake.runtime.receive.loop import ReceiveSummary
from cdc_lake.runtime.receive.receiver import receive
from cdc_lake.source.base import StreamIdentity
from cdc_lake.source.sql_text import PRINTING
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake_testing.beside import beside, streams, until
from cdc_lake_testing.workload import SHAPES, Workload
from tests.bronze_replay import bronze_rows, tables_from_bronze
from tests.conftest import Database, drop_database, make_database, make_role, start_server
from tests.mistakes import kept
from tests.pipeline_file import lake_section

pytestmark = pytest.mark.live
FORMATS = pytest.mark.parametrize("fmt", ["delta", "iceberg"])


def project_of(database: Database, root: Path, **changes: Any) -> Project:
    document = {
        "version": 1,
        "pipeline": database.name,
        "source": database.source,
        "snapshot": {"chunk_rows": 37},
        "bronze": {"batch": {"max_transactions": 20, "max_delay": "20 ms"}, "durability": "os"},
        **lake_section(root),
    }
    for section, values in changes.items():
        document[section] = {**document.get(section, {}), **values}  # type: ignore[dict-item]
    return Project(Pipeline.model_validate(document), root / "pipeline.yaml", root)


def once(
    project: Project, tell: Callable[[ProgressEvent], None] = silent, slot_patience: float = 60, **given: Any
) -> ReceiveSummary:
    return receive(
        project,
        bronze_writer(project),
        once=True,
        stop=threading.Event(),
        report=tell,
        slot_patience=slot_patience,
        **given,
    )


# ── what bronze holds, folded by the oracle ──────────────────────────────────────────────────────────────────────


def tables_at_source(database: Database) -> dict[TableName, dict[Any, Any]]:
    out: dict[TableName, dict[Any, Any]] = {}
    with database.connect() as conn:
        for name, value in PRINTING.items():
            conn.execute("SELECT set_config(%s, %s, false)", [name, value])
        names = conn.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        for (name,) in names:
            keys = [
                k
                for (k,) in conn.execute(
                    "SELECT a.attname FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY k(n, at) "
                    "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.n "
                    "WHERE i.indrelid = %s::regclass AND indisprimary ORDER BY k.at",
                    ['"' + name.replace('"', '""') + '"'],
                ).fetchall()
            ]
            columns = [
                c
                for (c,) in conn.execute(
                    "SELECT column_name FROM information_schema.columns WHERE table_name = %s ORDER BY ordinal_position",
                    [name],
                ).fetchall()
            ]
            # by the type's own output: a cast to text says true for t, and takes blanks away
            printed = psycopg.sql.SQL("CASE num_nulls({0}) WHEN 0 THEN format('%s', {0}) END")
            listed = psycopg.sql.SQL(", ").join(printed.format(psycopg.sql.Identifier(c)) for c in columns)
            rows = conn.execute(
                psycopg.sql.SQL("SELECT {} FROM {}").format(listed, psycopg.sql.Identifier("public", name))
            ).fetchall()
            found = [dict(zip(columns, row, strict=True)) for row in rows]
            if found:
                out[TableName("public", name)] = {tuple(r[k] for k in keys): r for r in found}
    return out


def assert_equal_to_source(project: Project, database: Database) -> None:
    ours, theirs = tables_from_bronze(project), tables_at_source(database)
    assert ours.keys() == theirs.keys()
    for table in theirs:
        assert ours[table] == theirs[table], f"{table} differs"


# ── the loop ─────────────────────────────────────────────────────────────────────────────────────────────────────


@FORMATS
def test_every_kind_of_change_arrives_and_a_second_run_goes_on(database: Database, tmp_path: Path, fmt: str) -> None:
    project = project_of(database, tmp_path, bronze={"format": fmt})
    with database.connect() as conn:
        workload = Workload(conn, seed=7)
        workload.create_tables()
        workload.run(60)
        first = once(project)
        assert first.snapshot_rows > 37
        assert first.transactions == 0
        assert_equal_to_source(project, database)
        workload.run(400)
        assert len(workload.done) == 12, workload.done
        second = once(project)
        assert second.snapshot_rows == 0
        assert second.transactions > 100
        assert_equal_to_source(project, database)
        third = once(project)
        assert (third.transactions, third.repeats) == (0, 0)
        assert third.upto is not None
        assert second.upto is not None
        assert third.upto >= second.upto
    assert set(tables_from_bronze(project)) <= {TableName("public", s.name) for s in SHAPES}


def test_an_empty_table_makes_its_layout_known_and_the_copy_is_recorded(database: Database, tmp_path: Path) -> None:
    project = project_of(database, tmp_path)
    with database.connect() as conn:
        conn.execute("CREATE TABLE nothing (id int PRIMARY KEY, x text)")
    once(project)
    (layout,) = [r for r in bronze_rows(project) if r["op"] == "R"]
    assert layout["relation"] == "public.nothing"
    (row,) = ControlTables(project.control).snapshots()
    assert row.state == "complete"
    assert json.loads(row.tables) == [
        {"relation": "public.nothing", "layout": layout["layout"], "rows": 0, "chunks": 1, "position": row.position}
    ]
    (stream,) = ControlTables(project.control).streams()
    assert stream.start == row.position == StreamIdentity.parse(stream.stream).start


def test_a_busy_neighbour_database_does_not_hold_the_slot_back(database: Database, tmp_path: Path) -> None:
    project = project_of(database, tmp_path)
    with database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
        before = once(project)
        with psycopg.connect(database.server.dsn(), autocommit=True) as neighbour:
            neighbour.execute("CREATE TABLE elsewhere AS SELECT generate_series(1, 20000)")
            neighbour.execute("DROP TABLE elsewhere")
        after = once(project)
        assert before.upto is not None
        assert after.upto is not None
        assert after.upto - before.upto > 500_000
        assert after.transactions == 0
        row = conn.execute(
            "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s", [project.slot]
        )
        assert int(row.fetchone()[0]) == after.confirm  # type: ignore[index]


def test_the_slot_goes_on_while_apply_stands_in_a_merge(database: Database, tmp_path: Path) -> None:
    project = project_of(database, tmp_path)
    confirmed = "SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots WHERE slot_name = %s"
    with database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, words text)")
        seen = [once(project).confirm]
        with apply_lease(project):  # as apply has it from its start to its end
            for number in range(3):
                rows = "generate_series(1000 * %s::int, 1000 * %s::int + 999) AS g"
                conn.execute(f"INSERT INTO t SELECT g, repeat('x', 100) FROM {rows}", [number, number])
                landed = once(project)
                assert landed.transactions == 1
                seen.append(landed.confirm)
                # the server takes in what it was told last when the connection is gone already
                until(lambda: conn.execute(confirmed, [project.slot]).fetchone() == (seen[-1],))
    assert all(first is not None and then is not None and then - first > 100_000 for first, then in pairwise(seen))


def running(project: Project, told: list[ProgressEvent]) -> AbstractContextManager[Future[ReceiveSummary]]:
    """The loop in a thread, as a long-running receiver."""
    bronze = DeltaBronze(project.bronze, "os")
    return beside(lambda stop: receive(project, bronze, once=False, stop=stop, report=told.append))


def test_a_server_that_restarts_and_one_that_dies_under_load_are_met_again(tmp_path: Path) -> None:
    server = start_server()
    try:
        make_role(server)
        database = make_database(server)
        project = project_of(database, tmp_path)
        with database.connect() as conn:
            Workload(conn, seed=1).create_tables()
        told: list[ProgressEvent] = []

        with running(project, told) as receiver:
            until(lambda: streams(told), "it streams")
            for round_, end in enumerate((lambda: server.stop("fast"), server.kill)):
                before = streams(told)
                with database.connect() as conn:
                    conn.execute("CREATE TABLE IF NOT EXISTS public.seen (n int PRIMARY KEY)")
                    for n in range(200):
                        conn.execute("INSERT INTO w_pairs VALUES (%s, 'x', 'y', true)", [round_ * 1000 + n])
                end()
                server.start()
                until(lambda before=before: streams(told) > before or receiver.done(), "it streams again")
            with database.connect() as conn:
                conn.execute("INSERT INTO w_pairs VALUES (-1, 'last', NULL, NULL)")
            until(
                lambda: (
                    (TableName("public", "w_pairs") in (t := tables_from_bronze(project)))
                    and ("-1", "last") in t[TableName("public", "w_pairs")]
                )
            )
        assert receiver.result().reconnects >= 2
        with database.connect() as conn:
            conn.execute("DROP TABLE seen")
        assert_equal_to_source(project, database)
    finally:
        server.remove()


def test_changes_of_a_table_altered_and_dropped_before_they_are_read_still_land(
    database: Database, tmp_path: Path
) -> None:
    project = project_of(database, tmp_path)
    with database.connect() as conn:
        conn.execute("CREATE TYPE mood AS ENUM ('sad', 'happy')")
        conn.execute("CREATE TABLE stays (id int PRIMARY KEY); CREATE TABLE goes (id int PRIMARY KEY, m mood)")
        once(project)
        conn.execute("INSERT INTO stays VALUES (1)")
        conn.execute("ALTER TABLE stays ADD COLUMN more numeric(6, 2) DEFAULT 0.5")
        conn.execute("INSERT INTO stays VALUES (2, 1.25)")
        conn.execute("INSERT INTO goes VALUES (1, 'happy')")
        conn.execute("DROP TABLE goes; DROP TYPE mood")
        once(project)
    inserts = [r for r in bronze_rows(project) if r["op"] == "I"]
    assert [r["new"] for r in inserts] == [["1"], ["2", "1.25"], ["1", "happy"]]
    layouts = {r["layout"]: json.loads(r["info"]) for r in bronze_rows(project) if r["op"] == "R"}
    described = [[(c["name"], c["type"]) for c in layouts[r["layout"]]["columns"]] for r in inserts]
    assert described == [
        [("id", "int4")],
        [("id", "int4"), ("more", "numeric")],
        [("id", "int4"), ("m", "public.mood")],
    ]


class Slow(DeltaBronze):
    """A bronze table on a very slow disk."""

    def append(
        self, batch: TransactionBatch | Sequence[ReceivedTransaction], tabulate: Tabulate = tabulate
    ) -> BronzeCommit:
        time.sleep(1.5)
        return super().append(batch, tabulate)


def test_a_commit_longer_than_the_servers_patience_does_not_break_the_connection(
    database: Database, tmp_path: Path
) -> None:
    project = project_of(database, tmp_path)
    with database.admin() as admin, database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, pad text)")
        once(project)
        admin.execute(
            f"ALTER ROLE {database.user} IN DATABASE {database.name} SET wal_sender_timeout = '500ms'".encode()
        )
        for n in range(60):  # three batches: one in the commit, one full, one that has to wait in the server
            conn.execute("INSERT INTO t VALUES (%s, repeat('x', 2000))", [n])
        done = receive(project, Slow(project.bronze, "os"), once=True, stop=threading.Event(), report=silent)
        assert done.reconnects == 0
        assert done.transactions == 60
        assert_equal_to_source(project, database)


class Chased(DeltaBronze):
    """A bronze table whose source has always committed once more before a commit to it is done."""

    def chased_by(self, conn: psycopg.Connection[Any], times: int) -> None:
        self._conn, self.left = conn, times

    def append(
        self, batch: TransactionBatch | Sequence[ReceivedTransaction], tabulate: Tabulate = tabulate
    ) -> BronzeCommit:
        if self.left:
            self.left -= 1
            self._conn.execute("INSERT INTO t DEFAULT VALUES")
            time.sleep(0.1)  # long enough to be sent
        return super().append(batch, tabulate)


def test_a_server_that_is_never_idle_does_not_keep_a_run_from_ending(database: Database, tmp_path: Path) -> None:
    project = project_of(database, tmp_path)
    with database.connect() as conn, database.connect() as other:
        conn.execute("CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY)")
        once(project)
        conn.execute("INSERT INTO t DEFAULT VALUES")
        bronze = Chased(project.bronze, "os")
        bronze.chased_by(other, 40)
        done = receive(project, bronze, once=True, stop=threading.Event(), report=silent)
        assert 1 <= done.transactions < 10, "what was committed at the start, and the little that was under way"
        assert bronze.left > 30
        once(project)
        assert_equal_to_source(project, database)


def test_stopping_confirms_what_landed_and_nothing_more(database: Database, tmp_path: Path) -> None:
    project = project_of(database, tmp_path)
    with database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
        told: list[ProgressEvent] = []
        with running(project, told) as receiver:
            until(lambda: streams(told))
            for n in range(50):
                conn.execute("INSERT INTO t VALUES (%s)", [n])
            until(lambda: any(p.stage == "landed" for p in told))
        state = DeltaBronze(project.bronze).state()
        assert state is not None
        assert receiver.result().confirm == state.confirm
        until(lambda: _slot(conn, project)[1] is None)
        assert _slot(conn, project)[0] == state.confirm


def _slot(conn: psycopg.Connection, project: Project) -> tuple[int, int | None]:
    row = conn.execute(
        "SELECT (confirmed_flush_lsn - '0/0')::bigint, active_pid FROM pg_replication_slots WHERE slot_name = %s",
        [project.slot],
    ).fetchone()
    assert row is not None
    return row


# ── what can be wrong ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def landed(database: Database, tmp_path: Path) -> tuple[Database, Project]:
    """A pipeline that ran once."""
    project = project_of(database, tmp_path)
    with database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    once(project)
    return database, project


def test_a_slot_of_unknown_origin_is_not_taken_over(database: Database, tmp_path: Path) -> None:
    with database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
        conn.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [database.name])
        with pytest.raises(SlotForeign, match="bronze is empty"):
            once(project_of(database, tmp_path))


def test_a_slot_that_went_is_named_and_not_made_again(landed: tuple[Database, Project]) -> None:
    database, project = landed
    with database.connect() as conn:
        conn.execute("SELECT pg_drop_replication_slot(%s)", [project.slot])
        with pytest.raises(SlotMissing):
            once(project)
        assert conn.execute(
            "SELECT count(*) FROM pg_replication_slots WHERE database = %s", [database.name]
        ).fetchone() == (0,)


def test_a_slot_that_others_advanced_or_recreated_says_how_much_is_missing(landed: tuple[Database, Project]) -> None:
    database, project = landed
    with database.connect() as conn:
        conn.execute("INSERT INTO t VALUES (2)")
        conn.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", [project.slot])
        with pytest.raises(SlotAhead, match="bytes are missing"):
            once(project)


def test_a_slot_that_somebody_reads_is_waited_for_and_then_named(landed: tuple[Database, Project]) -> None:
    database, project = landed
    told: list[ProgressEvent] = []
    with running(project, told):
        until(lambda: streams(told))
        with pytest.raises(SlotActive) as caught:
            once(project, told.append, slot_patience=2)
    assert caught.value.exit_status == 4
    kept("slot-active", caught.value, slot=project.slot)
    assert any(p.stage == "retry" for p in told)
    with database.connect() as conn:
        conn.execute("INSERT INTO t VALUES (3)")
    once(project)
    assert_equal_to_source(project, database)


def test_a_publication_that_went_is_named(landed: tuple[Database, Project]) -> None:
    database, project = landed
    with database.connect() as conn:
        conn.execute(f"DROP PUBLICATION {project.publication}")
    with pytest.raises(PublicationMissing) as caught:
        once(project)
    kept("publication-missing", caught.value, publication=project.publication)


def test_another_server_or_database_is_refused(landed: tuple[Database, Project], tmp_path: Path) -> None:
    database, project = landed
    other = make_database(database.server)
    try:
        source = project.pipeline.source.model_copy(update={"database": other.name})
        moved = Project(project.pipeline.model_copy(update={"source": source}), project.file, project.root)
        with pytest.raises(OtherSource, match="database"):
            once(moved)
    finally:
        drop_database(other)


def test_a_server_restored_to_an_older_point_is_refused(landed: tuple[Database, Project]) -> None:
    _, project = landed
    bronze = DeltaBronze(project.bronze, "os")
    state = bronze.state()
    assert state is not None
    bronze.advance(*(2 * (state.upto + (1 << 40),)))  # what a server that lost its end looks like from here
    with pytest.raises(BronzeAhead, match="bytes were lost"):
        once(project)


@pytest.mark.obeys("SRC231")
def test_a_table_rewritten_before_its_copy_is_not_copied_as_empty(database: Database, tmp_path: Path) -> None:
    project = project_of(database, tmp_path)
    with database.connect() as conn:
        conn.execute(
            "CREATE TABLE t (id int PRIMARY KEY, x int); INSERT INTO t SELECT n, n FROM generate_series(1, 9) n"
        )

        def rewrite(progress: ProgressEvent) -> None:
            if progress.text.startswith("initial copy"):
                conn.execute("ALTER TABLE t ALTER COLUMN x TYPE bigint")

        with pytest.raises(CdcLakeError) as caught:
            once(project, rewrite)
        assert caught.value.code == "SRC231"
        assert once(project).snapshot_rows == 9


def test_lost_control_tables_are_not_taken_for_an_unfinished_copy(landed: tuple[Database, Project]) -> None:
    database, project = landed
    with database.connect() as conn:
        conn.execute("INSERT INTO t VALUES (2)")
    once(project)
    shutil.rmtree(project.control)
    with pytest.raises(CopyUnknown):
        once(project)
