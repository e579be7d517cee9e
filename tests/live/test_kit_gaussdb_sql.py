"""SQL of a family session over a live PostgreSQL: what only the family has is answered, the rest passes through."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from cdc_lake.model.relation import TableName
from cdc_lake_testing.gaussdb.answers import LiveAnswers
from cdc_lake_testing.gaussdb.live import LivePostgres
from cdc_lake_testing.gaussdb.sql import CopyOut, Done, Failed, ResultSet, SqlSession
from cdc_lake_testing.gaussdb.state import ServerState
from tests.conftest import Database

pytestmark = pytest.mark.live


@dataclass
class Client:
    """Sessions over one stand-in."""

    database: Database
    answers: LiveAnswers
    state: ServerState
    sessions: list[SqlSession] = field(default_factory=list)

    def session(self, **parameters: str) -> SqlSession:
        made = SqlSession("cdc", self.database.name, False, parameters, self.state, pid=len(self.sessions) + 1)
        self.sessions.append(made)
        return made

    def rows(self, session: SqlSession, sql: str) -> list[list[str | None]]:
        (answer,) = self.answers.answer(sql, session)
        assert isinstance(answer, ResultSet), answer
        return [list(row) for row in answer.rows]

    def named(self, session: SqlSession, sql: str) -> list[dict[str, str | None]]:
        (answer,) = self.answers.answer(sql, session)
        assert isinstance(answer, ResultSet), answer
        return [dict(zip([c.name for c in answer.columns], row, strict=True)) for row in answer.rows]

    def do(self, session: SqlSession, sql: str) -> None:
        for answer in self.answers.answer(sql, session):
            assert isinstance(answer, Done), answer


@pytest.fixture
def client(database: Database) -> Iterator[Client]:
    with database.connect() as conn:
        conn.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
        conn.execute("CREATE TABLE bare (n int)")
    with LivePostgres(database.server.dsn(database.name), keyless=[TableName("public", "bare")]) as live:
        answers = LiveAnswers(live, database.dsn)
        client = Client(database, answers, ServerState(live.ledger))
        yield client
        for session in client.sessions:
            answers.end(session)


def test_facts_of_the_family_are_the_stand_ins(client: Client) -> None:
    session = client.session()
    (row,) = client.named(session, "SELECT version(), getdatabaseencoding() AS encoding, pg_is_in_recovery()")
    assert list(row) == ["version", "encoding", "pg_is_in_recovery"]
    assert str(row["version"]).startswith("(openGauss 6.0.2 build")
    assert (row["encoding"], row["pg_is_in_recovery"]) == ("UTF8", "f")
    assert client.rows(session, "SELECT current_setting('wal_level'), current_setting('DateStyle')") == [
        ["logical", "ISO, MDY"]
    ]
    assert client.named(session, "SHOW enable_thread_pool") == [{"enable_thread_pool": "off"}]
    assert client.rows(session, "SHOW server_version") == [["9.2.4"]]
    (found,) = client.rows(session, "SELECT datcompatibility FROM pg_database WHERE datname = current_database()")
    assert found == ["PG"]
    listed = client.rows(session, "SELECT name, setting FROM pg_settings WHERE name IN ('wal_level', 'IntervalStyle')")
    assert sorted(listed) == [["IntervalStyle", "postgres"], ["wal_level", "logical"]]
    assert client.rows(session, "SELECT count(*) FROM pg_stat_replication") == [["0"]]
    # a word inside a string is left alone
    assert client.rows(session, "SELECT 'version() of pg_class'") == [["version() of pg_class"]]


def test_settings_of_the_startup_and_of_the_session_are_postgresqls(client: Client) -> None:
    session = client.session(DateStyle="SQL, DMY", options=r"-c IntervalStyle=iso_8601 -c session_timeout=0")
    assert client.rows(session, "SELECT date '2026-11-21', interval '1 day'") == [["21/11/2026", "P1D"]]
    client.do(session, "SET DateStyle = 'ISO'")
    client.do(session, "SET session_timeout = 5")
    assert client.rows(session, "SHOW session_timeout") == [["5"]]
    assert client.rows(session, "SELECT date '2026-11-21'") == [["2026-11-21"]]


def test_the_catalog_hides_what_the_stand_in_keeps(client: Client) -> None:
    session = client.session()
    query = (
        "SELECT c.relname, c.relreplident, c.parttype FROM pg_catalog.pg_class AS c JOIN pg_namespace n "
        "ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND n.nspname = 'public' ORDER BY 1"
    )
    assert client.rows(session, query) == [["bare", "n", "n"], ["items", "d", "n"]]
    client.do(session, "CREATE UNIQUE INDEX wide ON items (name, id) INCLUDE (id)")
    client.do(session, "CREATE TABLE parts (n int PRIMARY KEY) PARTITION BY RANGE (n)")
    client.do(session, "CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (9)")
    assert client.rows(session, "SELECT indkey FROM pg_index WHERE indexrelid = 'wide'::regclass") == [["2 1"]]
    assert client.rows(session, query) == [["bare", "n", "n"], ["items", "d", "n"], ["parts", "d", "p"]]


def test_transactions_copy_and_errors_pass_through(client: Client) -> None:
    session = client.session()
    client.do(session, "BEGIN")
    assert session.status == "T"
    client.do(session, "INSERT INTO items VALUES (1, E'a\tb'), (2, NULL)")
    (copied,) = client.answers.answer("COPY (SELECT * FROM items ORDER BY id) TO STDOUT", session)
    assert isinstance(copied, CopyOut)
    assert b"".join(copied.data) == b"1\ta\\tb\n2\t\\N\n"
    (failed,) = client.answers.answer("SELECT nothing", session)
    assert isinstance(failed, Failed)
    assert failed.sqlstate == "42703"
    assert session.status == "E"
    client.do(session, "ROLLBACK")
    assert session.status == "I"
    assert client.rows(session, "SELECT count(*) FROM items") == [["0"]]


def test_an_exported_snapshot_has_a_csn_and_is_imported(client: Client) -> None:
    exporter, importer = client.session(), client.session()
    client.do(importer, "INSERT INTO items VALUES (1, 'seen')")
    client.do(exporter, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    ((name, csn),) = client.rows(exporter, "SELECT * FROM pg_export_snapshot_and_csn()")
    client.do(importer, "INSERT INTO items VALUES (2, 'not seen')")
    client.do(importer, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    client.do(importer, f"SET TRANSACTION SNAPSHOT '{name}'")
    assert client.rows(importer, "SELECT name FROM items") == [["seen"]]
    assert client.rows(exporter, "SELECT name FROM items") == [["seen"]]
    client.do(importer, "COMMIT")
    client.rows(importer, "SELECT pg_current_xlog_location()")
    ledger = client.state.ledger.since(0)
    below = [t for t in ledger if t.csn < int(str(csn), 16)]
    assert (len(ledger), len(below)) == (2, 1)


def test_a_product_without_csn_snapshots_says_so(client: Client) -> None:
    client.state.csn_export = False
    (failed,) = client.answers.answer("SELECT * FROM pg_export_snapshot_and_csn()", client.session())
    assert isinstance(failed, Failed)
    assert failed.sqlstate == "42883"


def test_a_snapshot_older_than_the_numbers_is_refused(client: Client) -> None:
    exporter, writer = client.session(), client.session()
    client.do(exporter, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    client.rows(exporter, "SELECT 1 FROM items")
    client.do(writer, "INSERT INTO items VALUES (1, 'x')")
    client.rows(writer, "SELECT pg_current_xlog_location()")
    (failed,) = client.answers.answer("SELECT * FROM pg_export_snapshot_and_csn()", exporter)
    assert isinstance(failed, Failed)
    assert failed.sqlstate == "55000"


def test_a_replication_sessions_snapshot_lives_until_its_next_statement(client: Client) -> None:
    slot, reader = client.session(), client.session()
    client.do(reader, "INSERT INTO items VALUES (1, 'x')")
    exported = client.answers.export(slot, use=False)
    client.do(reader, "DELETE FROM items")
    client.do(reader, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    client.do(reader, f"SET TRANSACTION SNAPSHOT '{exported.name}'")
    assert client.rows(reader, "SELECT id FROM items") == [["1"]]
    client.do(reader, "COMMIT")
    client.rows(slot, "SELECT 1")
    client.do(reader, "BEGIN ISOLATION LEVEL REPEATABLE READ")
    (failed,) = client.answers.answer(f"SET TRANSACTION SNAPSHOT '{exported.name}'", reader)
    assert isinstance(failed, Failed)


def test_a_slot_is_made_polled_advanced_and_dropped_in_sql(client: Client) -> None:
    session = client.session()
    client.do(session, "INSERT INTO items VALUES (0, 'before')")
    made = client.named(session, "SELECT * FROM pg_create_logical_replication_slot('s1', 'mppdb_decoding')")
    assert list(made[0]) == ["slotname", "xlog_position"]
    (composite,) = client.rows(session, "SELECT pg_create_logical_replication_slot('s2', 'test_decoding')")
    assert str(composite[0]).startswith("(s2,")
    client.do(session, "INSERT INTO items VALUES (1, 'it''s')")
    client.do(session, "UPDATE items SET name = NULL WHERE id = 1")
    query = "SELECT location, xid, data FROM pg_logical_slot_{}_changes('s1', NULL, {}, 'include-xids', 'off')"
    peeked = client.rows(session, query.format("peek", "NULL"))
    inserted, updated = (json.loads(str(row[2])) for row in peeked if str(row[2])[0] == "{")
    assert (inserted["op_type"], inserted["columns_val"], inserted["old_keys_val"]) == ("INSERT", ["1", "'it''s'"], [])
    assert (updated["op_type"], updated["columns_val"], updated["old_keys_val"]) == ("UPDATE", ["1", "null"], ["1"])
    assert len(peeked) == 6
    assert client.rows(session, query.format("get", "1")) == peeked[:3]
    assert client.rows(session, query.format("get", "NULL")) == peeked[3:]
    assert client.rows(session, query.format("get", "NULL")) == []
    slots = client.named(session, "SELECT s.* FROM pg_catalog.pg_replication_slots AS s WHERE slot_name = 's2'")
    before = slots[0]["confirmed_flush"]
    assert (slots[0]["active"], slots[0]["plugin"], slots[0]["dummy_standby"]) == ("f", "test_decoding", "f")
    client.rows(session, "SELECT * FROM pg_replication_slot_advance('s2', NULL)")
    (after,) = client.rows(session, "SELECT confirmed_flush FROM pg_replication_slots WHERE slot_name = 's2'")
    assert after != [before]
    client.rows(session, "SELECT pg_drop_replication_slot('s2')")
    assert client.rows(session, "SELECT slot_name FROM pg_replication_slots") == [["s1"]]
    (missing,) = client.answers.answer("SELECT pg_drop_replication_slot('s2')", session)
    assert isinstance(missing, Failed)
    assert (missing.sqlstate, missing.severity) == ("42704", "ERROR")
    (unknown,) = client.answers.answer(
        "SELECT * FROM pg_logical_slot_peek_changes('s1', NULL, NULL, 'no', '1')", session
    )
    assert isinstance(unknown, Failed)
    assert unknown.message == 'option "no" = "1" is unknown'


def test_another_database_is_not_there(client: Client) -> None:
    session = client.session()
    session.database = "nowhere"
    (failed,) = client.answers.answer("SELECT 1", session)
    assert isinstance(failed, Failed)
    assert failed.sqlstate == "3D000"


def test_a_slot_in_csn_order_is_of_gaussdb(client: Client) -> None:
    client.state.product = "GaussDB"
    session = client.session()
    client.rows(session, "SELECT pg_create_logical_replication_slot('c', 'mppdb_decoding', 1)")
    (row,) = client.named(session, "SELECT * FROM pg_replication_slots")
    assert row["confirmed_csn"] == "1999"
