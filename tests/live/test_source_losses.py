"""More of what a source is lost by while a receiver runs (see test_source_faults): rights, identities, time-outs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from cdc_lake.errors import KeylessDelete, NoKey, RoleLacksReplication
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import ProgressEvent
from cdc_lake_testing.beside import streams, until
from cdc_lake_testing.faulty_relay import FaultyRelay
from cdc_lake_testing.folded import Folded
from cdc_lake_testing.server import HOST
from tests.conftest import CDC_PASSWORD, Database, make_database, make_role
from tests.live.test_receive_loop import assert_equal_to_source, bronze_rows, once, project_of, running
from tests.live.test_source_faults import disconnect, ends, fault, landed, make_table
from tests.postgres_with_test_decoding import start_decoding_server
from tests.source_losses import lived_through

pytestmark = pytest.mark.live


@pytest.fixture
def reader(database: Database) -> Iterator[str]:
    """A role of its own that may do what `cdc` may."""
    name = f"reader_{database.name}"
    role = sql.Identifier(name)
    with database.admin() as admin:
        words = sql.SQL("CREATE ROLE {} LOGIN REPLICATION PASSWORD {} IN ROLE {}")
        admin.execute(words.format(role, sql.Literal(CDC_PASSWORD), sql.Identifier(database.user)))
        yield name
        admin.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s",
                      [database.name])  # fmt: skip
        admin.execute(sql.SQL("DROP OWNED BY {}").format(role))
        admin.execute(sql.SQL("DROP ROLE {}").format(role))


def test_a_right_that_is_taken_away_ends_the_run_and_given_back_it_goes_on(
    database: Database, tmp_path: Path, reader: str
) -> None:
    make_table(database)
    project = project_of(database, tmp_path, source={"user": reader})
    told: list[ProgressEvent] = []
    with pytest.raises(RoleLacksReplication) as caught, running(project, told) as receiver:  # noqa: PT012 - what it lives through
        until(lambda: streams(told) == 1, "it streams")
        with database.admin() as admin:
            admin.execute(sql.SQL("ALTER ROLE {} NOREPLICATION").format(sql.Identifier(reader)))
        revoked_at = fault(told)
        disconnect(database, project)
        ends(receiver, told, revoked_at)
    lived_through("privilege revoked", tmp_path, told, caught.value)
    with database.admin() as admin:
        admin.execute("INSERT INTO t VALUES (1, 'meanwhile')")
        admin.execute(sql.SQL("ALTER ROLE {} REPLICATION").format(sql.Identifier(reader)))
    once(project)
    assert landed(project) == {1}


def test_a_table_that_loses_its_identity_is_refused_its_changes_by_the_server(
    database: Database, tmp_path: Path
) -> None:
    """As a publication carries it: what the server lets through lands, the rest was never made."""
    make_table(database)
    project = project_of(database, tmp_path)
    told: list[ProgressEvent] = []
    with running(project, told), database.connect() as conn:
        until(lambda: streams(told) == 1, "it streams")
        conn.execute("ALTER TABLE t REPLICA IDENTITY NOTHING")
        conn.execute("INSERT INTO t VALUES (1, 'lands')")
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            conn.execute("UPDATE t SET a = 'refused' WHERE id = 1")
        until(lambda: landed(project) == {1}, "it landed")
    assert_equal_to_source(project, database)
    lived_through("replica identity nothing", tmp_path, told)


def test_a_delete_that_names_no_row_lands_and_its_table_waits(tmp_path: Path) -> None:
    """As without a publication, where no server refuses it."""
    server = start_decoding_server()
    try:
        make_role(server)
        database = make_database(server)
        make_table(database)
        project = project_of(database, tmp_path, source={"slot": {"plugin": "test_decoding"}})
        told: list[ProgressEvent] = []
        with running(project, told), database.connect() as conn:
            until(lambda: streams(told) == 1, "it streams")
            conn.execute("INSERT INTO t VALUES (1, 'before')")
            until(lambda: landed(project) == {1}, "it landed")
            conn.execute("ALTER TABLE t REPLICA IDENTITY NOTHING")
            conn.execute("DELETE FROM t WHERE id = 1")
            conn.execute("INSERT INTO t VALUES (2, 'behind')")
            until(lambda: landed(project) == {1, 2}, "what is behind it landed")
        assert [row["op"] for row in bronze_rows(project) if row["op"] in "IUD"] == ["I", "D", "I"]
        failed = Folded(project, TableName("public", "t"), lambda text, *_: text, random.Random(1)).advance()
        assert isinstance(failed, KeylessDelete | NoKey)
        assert "resync" in failed.remedy
        lived_through("replica identity nothing, without a publication", tmp_path, told, failed)
    finally:
        server.remove()


def test_a_server_that_hears_nothing_in_time_hangs_up_and_is_met_again(database: Database, tmp_path: Path) -> None:
    make_table(database)
    with database.admin() as admin:
        admin.execute(
            f"ALTER ROLE {database.user} IN DATABASE {database.name} SET wal_sender_timeout = '500ms'".encode()
        )
    with FaultyRelay(HOST, database.port) as relay:
        project = project_of(database, tmp_path, source={"port": relay.port, "tls": {"mode": "disable"}})
        told: list[ProgressEvent] = []
        with running(project, told), database.connect() as conn:
            until(lambda: streams(told) >= 1, "it streams")
            relay.ack_delay = 5.0
            conn.execute("INSERT INTO t VALUES (1, 'before')")
            until(lambda: any(one.stage == "retry" for one in told), "the server hung up")
            relay.ack_delay = 0.0
            conn.execute("INSERT INTO t VALUES (2, 'behind')")
            until(lambda: landed(project) == {1, 2}, "both landed")
            until(lambda: streams(told) > 1, "it streams again")
    assert_equal_to_source(project, database)
    lived_through("sender time-out", tmp_path, told)
