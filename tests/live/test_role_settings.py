"""Settings that somebody gave the pipeline's role: none of them changes what is read, printed or waited for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from cdc_lake.ops.check.runner import check
from tests.conftest import Database
from tests.live.test_receive_loop import bronze_rows, once, project_of

pytestmark = pytest.mark.live
MODES = pytest.mark.parametrize("mode", ["stream", "polling"])

HOSTILE = """
CREATE SCHEMA hostile; GRANT USAGE ON SCHEMA hostile TO PUBLIC;
CREATE VIEW hostile.pg_replication_slots AS SELECT slot_name, plugin, slot_type, datoid, database, temporary, active,
  active_pid, xmin, catalog_xmin, restart_lsn, '0/1'::pg_lsn AS confirmed_flush_lsn, wal_status, safe_wal_size, two_phase
  FROM pg_catalog.pg_replication_slots;
CREATE VIEW hostile.pg_publication_tables AS SELECT pubname, 'hostile'::name AS schemaname, 'bait'::name AS tablename
  FROM pg_catalog.pg_publication_tables;
CREATE FUNCTION hostile.pg_current_snapshot() RETURNS pg_snapshot LANGUAGE sql AS $$ SELECT '1:1:'::pg_snapshot $$;
CREATE FUNCTION hostile.format(text, name, name) RETURNS text LANGUAGE sql AS $$ SELECT 'hostile.bait' $$;
CREATE TABLE hostile.bait (id int PRIMARY KEY);
GRANT SELECT ON ALL TABLES IN SCHEMA hostile TO PUBLIC;
"""


@pytest.fixture
def role(database: Database) -> Iterator[Any]:
    """Gives the role settings in this database; the names of tables that are there: `t`."""
    with database.admin() as admin:
        admin.execute("CREATE TABLE t (id int PRIMARY KEY, kind regclass)")
        admin.execute(sql.SQL("ALTER TABLE t OWNER TO {}").format(sql.Identifier(database.user)))
        admin.execute("INSERT INTO t VALUES (1, 't')")
        who = (sql.Identifier(database.user), sql.Identifier(database.name))

        def given(**settings: str) -> psycopg.Connection[Any]:
            for name, value in settings.items():
                parts = (*who, sql.Identifier(name), sql.SQL(value))
                admin.execute(sql.SQL("ALTER ROLE {} IN DATABASE {} SET {} = {}").format(*parts))
            return admin

        yield given
        admin.execute(sql.SQL("ALTER ROLE {} IN DATABASE {} RESET ALL").format(*who))


def rows(project: Any) -> list[tuple[str, list[str]]]:
    return [(row["op"], row["new"]) for row in bronze_rows(project) if row["op"] in "SI"]


@MODES
def test_a_first_start_waits_for_transactions_whatever_the_roles_lock_timeout(
    role: Any, database: Database, tmp_path: Path, mode: str
) -> None:
    """A new slot begins when every transaction has ended that ran when it was asked for, and waits for them as for locks."""
    role(lock_timeout="'50ms'")
    project = project_of(database, tmp_path, source={"mode": mode, "polling": {"interval": "20 ms"}})
    with database.connect(autocommit=False) as other:
        other.execute("SET lock_timeout = 0; INSERT INTO t VALUES (2, 't')")
        ends = threading.Timer(1, other.commit)
        ends.start()
        try:
            once(project)
        finally:
            ends.join()
    assert sorted(row[0] for _, row in rows(project)) == ["1", "2"]


@MODES
def test_a_role_whose_transactions_are_read_only_and_serializable_receives_like_any_other(
    role: Any, database: Database, tmp_path: Path, mode: str
) -> None:
    admin = role(
        default_transaction_read_only="on",
        default_transaction_isolation="'serializable'",
        default_transaction_deferrable="on",
    )
    project = project_of(database, tmp_path, source={"mode": mode, "polling": {"interval": "20 ms"}})
    once(project)
    admin.execute("INSERT INTO t VALUES (2, 't')")
    once(project)
    assert [row[0] for _, row in rows(project)] == ["1", "2"]
    assert not [line.text for line in check(project) if line.ok is False]


@MODES
def test_what_stands_first_on_the_roles_search_path_is_not_asked_for_what_the_catalog_says(
    role: Any, database: Database, tmp_path: Path, mode: str
) -> None:
    admin = role(search_path="hostile, public, pg_catalog")
    admin.execute(HOSTILE)
    project = project_of(
        database, tmp_path, source={"mode": mode, "polling": {"interval": "20 ms"}, "tables": ["public.*"]}
    )
    once(project)
    admin.execute("INSERT INTO t VALUES (2, 't')")
    once(project)
    assert [row[0] for _, row in rows(project)] == ["1", "2"]


def test_names_are_printed_whole_in_copy_and_stream_whatever_the_role_has_in_view(
    role: Any, database: Database, tmp_path: Path
) -> None:
    admin = role(search_path="public", quote_all_identifiers="on")
    project = project_of(database, tmp_path)
    once(project)
    role(search_path="pg_catalog", quote_all_identifiers="off")
    admin.execute("INSERT INTO t VALUES (2, 't')")
    once(project)
    assert rows(project) == [("S", ["1", "public.t"]), ("I", ["2", "public.t"])]
