"""Options of pgoutput at a real server: messages, origins, what a publication leaves out, and DDL in its place."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.errors import OptionRefused
from cdc_lake.model.change import DDL_MESSAGES
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.ops.check.postgres import findings
from cdc_lake.ops.check.runner import ddl_sql
from cdc_lake_testing.beside import streams, until
from tests.conftest import Database
from tests.live.added_columns import layouts, words
from tests.live.test_receive_loop import assert_equal_to_source, bronze_rows, once, project_of, running

pytestmark = pytest.mark.live

T = TableName("public", "t")


def pipeline_of(database: Database, root: Path, name: str = "", **decoding: Any) -> Project:
    """A pipeline with these options, in a folder of its own; with a `name` also with a slot of its own."""
    (root / f"p{name}").mkdir()
    slot = {"slot": {"name": f"{name}_{database.name}"}} if name else {}
    return project_of(database, root / f"p{name}", source={"decoding": decoding, **slot})


def landed_messages(project: Project) -> list[tuple[str, bytes, bool]]:
    """Prefix, content, and whether it was of a transaction, in order."""
    out = []
    for row in bronze_rows(project):
        if row["op"] == "M":
            info = json.loads(row["info"])
            out.append((info["prefix"], base64.b64decode(info["content"]), row["xid"] is not None))
    return out


def origins(project: Project) -> list[str | None]:
    """Of the transactions, in order."""
    return [json.loads(row["info"] or "{}").get("origin") for row in bronze_rows(project) if row["op"] == "B"]


def test_messages_land_inside_and_outside_of_transactions_and_in_streams(database: Database, tmp_path: Path) -> None:
    """The streamed transaction has a type of users, an origin, a truncate and a rolled back part as well."""
    with database.admin() as admin:
        admin.execute(f'ALTER DATABASE "{database.name}" SET logical_decoding_work_mem = "64kB"')
        admin.execute("SELECT pg_replication_origin_create(%s)", [database.name])
    with database.connect() as conn:
        conn.execute("CREATE TYPE mood AS ENUM ('so so', 'well')")
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, note text, mood mood)")
    asked, silent = pipeline_of(database, tmp_path, "m", messages=True), pipeline_of(database, tmp_path, "s")
    once(asked)
    once(silent)
    with database.admin() as conn:
        conn.execute("SELECT pg_logical_emit_message(false, 'out', 'first')")
        with conn.transaction():
            conn.execute("INSERT INTO t VALUES (1, 'a')")
            conn.execute("SELECT pg_logical_emit_message(true, 'in', '\\x00ff'::bytea)")
            conn.execute("SELECT pg_logical_emit_message(false, 'out', 'before the one around it')")
        conn.execute("SELECT pg_replication_origin_session_setup(%s)", [database.name])
        with conn.transaction():
            conn.execute("INSERT INTO t SELECT n, repeat('x', 100), 'well' FROM generate_series(10, 2000) AS n")
            conn.execute("TRUNCATE t")
            conn.execute("SELECT pg_logical_emit_message(true, 'streamed', 'kept')")
            conn.execute("SAVEPOINT s")
            conn.execute("TRUNCATE t")
            conn.execute("SELECT pg_logical_emit_message(true, 'streamed', 'rolled back')")
            conn.execute("INSERT INTO t SELECT n, repeat('y', 100) FROM generate_series(10, 2000) AS n")
            conn.execute("ROLLBACK TO s")
            conn.execute("INSERT INTO t VALUES (3, 'c', 'so so')")
        conn.execute("SELECT pg_replication_origin_session_reset()")
        conn.execute("SELECT pg_logical_emit_message(false, 'out', 'last')")
        conn.execute("INSERT INTO t VALUES (4, 'd')")
        streams = "SELECT stream_txns FROM pg_stat_replication_slots WHERE slot_name = %s"
        for project in (asked, silent, asked):
            once(project)
        assert conn.execute(streams, [asked.slot]).fetchone() == (1,)
        conn.execute("SELECT pg_replication_origin_drop(%s)", [database.name])
    assert landed_messages(asked) == [
        ("out", b"first", False),
        ("out", b"before the one around it", False),
        ("in", b"\0\xff", True),
        ("streamed", b"kept", True),
        ("out", b"last", False),
    ]
    assert landed_messages(silent) == []
    for project in (asked, silent):
        assert_equal_to_source(project, database)
        assert verify(bronze_reader(project)).holds
        assert [origin for origin in origins(project) if origin is not None] == [database.name]


@pytest.mark.parametrize("mode", ["stream", "polling"])
def test_a_transaction_whose_commit_follows_a_landed_message_in_the_log_is_not_passed_over(
    database: Database, tmp_path: Path, mode: str
) -> None:
    """The server leaves out what begins before a confirmed position, if by a byte."""
    project = project_of(database, tmp_path, source={"decoding": {"messages": True}, "mode": mode})
    with database.connect() as conn, database.connect(autocommit=False) as open_:
        if conn.info.server_version < 170_000:
            pytest.skip("before PostgreSQL 17 a message is sent only once something else is flushed behind it")
        conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
        told: list[ProgressEvent] = []
        with running(project, told):
            until(lambda: streams(told))
            open_.execute("INSERT INTO t VALUES (1)")
            open_.execute("SELECT pg_logical_emit_message(false, 'p', 'x', flush => true)")
            until(lambda: landed_messages(project))
        open_.commit()
    once(project)
    assert_equal_to_source(project, database)


def test_with_redaction_no_message_is_landed(database: Database, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k" * 32)
    redact = [{"columns": ["public.t.note"], "strategy": "null"}]
    given = {"source": {"decoding": {"messages": True}}, "bronze": {"redact": redact, "durability": "os"}}
    project = project_of(database, tmp_path, **given)
    with database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
        once(project)
        conn.execute("SELECT pg_logical_emit_message(false, 'p', 'canary')")
        conn.execute("SELECT pg_logical_emit_message(true, 'p', 'canary')")
        once(project)
    assert landed_messages(project) == []


def test_changes_with_an_origin_are_left_out_where_only_local_ones_are_asked_for(
    database: Database, tmp_path: Path
) -> None:
    local, every = pipeline_of(database, tmp_path, "l", origin="none"), pipeline_of(database, tmp_path, "e")
    with database.admin() as admin:
        admin.execute("CREATE TABLE t (id int PRIMARY KEY)")
        admin.execute(f'ALTER TABLE t OWNER TO "{database.user}"')
        if admin.info.server_version < 160_000:
            with pytest.raises(OptionRefused, match="`origin`"):
                once(local)
            return
        once(local)
        once(every)
        admin.execute("SELECT pg_replication_origin_create('far')")
        admin.execute("SELECT pg_replication_origin_session_setup('far')")
        admin.execute("INSERT INTO t VALUES (1)")
        admin.execute("SELECT pg_replication_origin_session_reset()")
        admin.execute("INSERT INTO t VALUES (2)")
        once(local)
        once(every)
        admin.execute("SELECT pg_replication_origin_drop('far')")
    assert [row["new"] for row in bronze_rows(local) if row["op"] == "I"] == [["2"]]
    assert [row["new"] for row in bronze_rows(every) if row["op"] == "I"] == [["1"], ["2"]]
    assert origins(every) == ["far", None]


def test_stored_generated_columns_that_a_publication_has_are_landed(database: Database, tmp_path: Path) -> None:
    project = pipeline_of(database, tmp_path)
    with database.connect() as conn:
        if conn.info.server_version < 180_000:
            pytest.skip("stored generated columns are published since PostgreSQL 18")
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (2 * id) STORED)")
        with database.admin() as admin:
            admin.execute(
                f'CREATE PUBLICATION "{project.publication}" FOR TABLE t WITH (publish_generated_columns = stored)'
            )
        conn.execute("INSERT INTO t VALUES (1)")
        once(project)
        conn.execute("INSERT INTO t VALUES (2)")
        once(project)
    assert_equal_to_source(project, database)


# ── DDL in its place ─────────────────────────────────────────────────────────────────────────────────────────────

CHANGES = [
    "ADD COLUMN f int",
    "RENAME COLUMN a TO aa",
    "DROP COLUMN f, ADD COLUMN f int",
    "ALTER COLUMN f TYPE bigint",
    "RENAME COLUMN id TO ident",
    "DROP COLUMN aa",
    "RENAME COLUMN f TO aa",
]
WORDS = [
    ["add column f int to t"],
    ["rename column a of t to aa"],
    ["drop column f of t", "add column f int to t, rows before it unknown"],  # the next command rewrites the table
    ["change column f of t from int to bigint"],
    ["rename column id of t to ident"],
    ["keep column aa of t, NULL from now on"],
    ["rename column f of t to aa"],
]


def install_trigger(database: Database, project: Project) -> None:
    """As a superuser does who was given what `check --ddl` prints."""
    with database.admin() as admin:
        admin.execute(ddl_sql(project))  # type: ignore[arg-type]


def layouts_of_a_late_receiver(database: Database, project: Project) -> list[Relation]:
    """The layouts that it finds of a table that changed `CHANGES` times, with a row of each, before any of it is read."""
    with database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
        once(project)
        conn.execute("INSERT INTO t VALUES (1)")
        for n, change in enumerate(CHANGES, start=2):
            conn.execute(f"ALTER TABLE t {change}")  # type: ignore[arg-type]
            conn.execute(f"INSERT INTO t ({'ident' if n > 5 else 'id'}) VALUES ({n})")  # type: ignore[arg-type]
    once(project)
    return layouts(project, T)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_receiver_that_is_behind_sees_each_layout_as_it_was(
    database: Database, tmp_path: Path, streamed: bool
) -> None:
    project = pipeline_of(database, tmp_path, messages=True)
    install_trigger(database, project)
    with database.admin() as admin:
        if streamed and admin.info.server_version >= 160_000:
            admin.execute(f'ALTER DATABASE "{database.name}" SET debug_logical_replication_streaming = immediate')
    found = layouts_of_a_late_receiver(database, project)
    assert [words(*pair) for pair in pairwise(found)] == WORDS
    assert [one.primary_key for one in found] == [("id",)] * 5 + [("ident",)] * 3
    prefixes = {prefix for prefix, *_ in landed_messages(project)}
    assert prefixes == {DDL_MESSAGES}


def test_without_the_trigger_a_receiver_that_is_behind_takes_the_shortest_history(
    database: Database, tmp_path: Path
) -> None:
    project = pipeline_of(database, tmp_path, messages=True)
    found = [words(*pair) for pair in pairwise(layouts_of_a_late_receiver(database, project))]
    first, asked = "add column f int to t, rows before it unknown", "take column f of t for a new one"
    assert found == [[first], WORDS[1], [asked, *WORDS[2]], *WORDS[3:]]


def test_a_forged_message_is_said_and_changes_nothing(database: Database, tmp_path: Path) -> None:
    project, said = pipeline_of(database, tmp_path, messages=True), list[ProgressEvent]()
    with database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
        once(project)
        conn.execute("INSERT INTO t VALUES (1)")
        once(project)
        conn.execute("ALTER TABLE t RENAME COLUMN a TO b")
        (oid,) = conn.execute("SELECT 't'::regclass::oid::bigint").fetchone() or ()
        columns = [
            {"name": "id", "number": 1, "type": 23, "modifier": -1, "filled": False},
            {"name": "b", "number": 9, "type": 25, "modifier": -1, "filled": False},
        ]
        for content in (json.dumps({"version": 1, "tables": [{"oid": oid, "columns": columns}]}), "{]"):
            conn.execute("SELECT pg_logical_emit_message(true, %s, %s::text)", [DDL_MESSAGES, content])
        conn.execute("INSERT INTO t VALUES (2)")
        once(project, said.append)
    assert [words(*pair) for pair in pairwise(layouts(project, T))] == [["rename column a of t to b"]]
    warned = [one.text for one in said if one.stage == "warning"]
    assert [text.partition(":")[0] for text in warned] == [
        "a message about altered tables does not have the form of version 1",
        "a message about public.t contradicts the catalog, which has other columns; it is ignored",
    ]


def test_the_trigger_tells_of_tables_alone_and_stands_in_nobodys_way(database: Database, tmp_path: Path) -> None:
    project = pipeline_of(database, tmp_path, messages=True)
    assert [line.ok for line in findings(project) if line.subject == "DDL"] == [None]
    install_trigger(database, project)
    install_trigger(database, project)
    with database.admin() as admin:  # whoever alters a table needs no right to write messages
        forms = admin.execute("SELECT oid::regprocedure::text FROM pg_proc WHERE proname = 'pg_logical_emit_message'")
        for (form,) in forms.fetchall():
            admin.execute(f"REVOKE EXECUTE ON FUNCTION {form} FROM PUBLIC")
    assert [line.ok for line in findings(project) if line.subject == "DDL"] == [True]
    with database.connect() as conn:
        conn.execute("CREATE TYPE mood AS ENUM ('so so'); CREATE TABLE t (id int PRIMARY KEY, mood mood)")
        once(project)
        before = len(landed_messages(project))
        conn.execute("CREATE VIEW seen AS SELECT id FROM t; CREATE TEMP TABLE mine (id int); DROP TABLE mine")
        conn.execute("CREATE FUNCTION one() RETURNS int LANGUAGE sql AS 'SELECT 1'; DROP FUNCTION one()")
        conn.execute("BEGIN; ALTER TABLE t ADD COLUMN never int; ROLLBACK")
        conn.execute("DROP VIEW seen; DROP TYPE mood CASCADE")
        once(project)
    [(_, content, _)] = landed_messages(project)[before:]
    [table] = json.loads(content)["tables"]
    assert [column["name"] for column in table["columns"]] == ["id"]
