"""Names of source tables that come to mean other tables: swapped (blue/green), renamed, dropped, made anew. Nobody
stops for it, and what the names mean in the end is copied."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc_lake.bronze.open import bronze_writer
from cdc_lake.config.project import Project
from cdc_lake.control.snapshots import courses
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.runtime.receive.receiver import receive
from cdc_lake.runtime.resync import resync
from cdc_lake.tables.control_schema import MembershipRow, utc_now
from cdc_lake.tables.control_tables import control_tables
from cdc_lake_testing.beside import beside, streams, until
from tests.bronze_replay import tables_from_bronze
from tests.conftest import Database
from tests.live.test_receive_loop import bronze_rows, once, project_of, tables_at_source
from tests.postgres_with_test_decoding import server  # noqa: F401 - a fixture

pytestmark = pytest.mark.live
PLUGINS = pytest.mark.parametrize("plugin", ["pgoutput", "test_decoding"])
SWAP = "ALTER TABLE orders RENAME TO orders_old; ALTER TABLE orders_new RENAME TO orders"


@pytest.fixture
def shop(database: Database) -> Iterator[psycopg.Connection[Any]]:
    with database.connect() as conn:
        for name in ("orders", "orders_new", "other"):
            conn.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, note text)")
            conn.execute(f"INSERT INTO {name} VALUES (1, '{name}')")
        yield conn


def project_for(database: Database, root: Path, plugin: str, **source: Any) -> Project:
    return project_of(database, root, source={"slot": {"plugin": plugin}, **source})


def assert_as_at_source(project: Project, database: Database, *left: str) -> None:
    """What bronze has is what the source has, but for tables that are left."""
    ours = tables_from_bronze(project)
    assert {name: rows for name, rows in ours.items() if name.name not in left} == tables_at_source(database)
    state = bronze_writer(project).state()
    assert state is not None
    known = courses(control_tables(project).snapshots(), state.stream)
    assert {name.partition(".")[2] for name, course in known.items() if course.waits} == set(left)


@PLUGINS
@pytest.mark.parametrize("pending", [False, True], ids=["quiet", "pending"])
def test_a_swap_of_names_is_followed_with_changes_pending_or_none(
    database: Database, tmp_path: Path, shop: psycopg.Connection[Any], plugin: str, *, pending: bool
) -> None:
    project = project_for(database, tmp_path, plugin)
    once(project)
    if pending:
        shop.execute("UPDATE orders SET note = 'pending'; UPDATE orders_new SET note = 'pending too'")
    shop.execute(SWAP)
    shop.execute("INSERT INTO orders VALUES (2, 'behind the swap'); INSERT INTO orders_old VALUES (3, 'aside')")
    once(project)
    shop.execute("INSERT INTO orders VALUES (4, 'later'); INSERT INTO other VALUES (2, 'goes on')")
    once(project)
    assert_as_at_source(project, database, "orders_new")


@PLUGINS
@pytest.mark.parametrize("read", ["orders", "other"])
def test_a_receiver_that_runs_follows_a_swap_by_itself(
    database: Database, tmp_path: Path, shop: psycopg.Connection[Any], plugin: str, read: str
) -> None:
    project, told = project_for(database, tmp_path, plugin), list[ProgressEvent]()
    with running(project, told):
        until(lambda: streams(told))
        shop.execute(f"UPDATE {read} SET note = 'before'")
        shop.execute(SWAP)
        shop.execute("INSERT INTO orders VALUES (2, 'behind'); INSERT INTO orders_old VALUES (2, 'aside')")
        until(
            lambda: any("copied 2 tables while the stream continued" in one.text for one in told), "no copies were made"
        )
    assert "SRC252" in {one.facts.get("code") for one in told}
    once(project)
    assert_as_at_source(project, database, "orders_new")


@PLUGINS
def test_a_receiver_that_runs_follows_a_renaming_by_itself(
    database: Database, tmp_path: Path, shop: psycopg.Connection[Any], plugin: str
) -> None:
    project, told = project_for(database, tmp_path, plugin), list[ProgressEvent]()
    with running(project, told):
        until(lambda: streams(told))
        shop.execute("UPDATE orders SET note = 'pending'; ALTER TABLE orders RENAME TO purchases")
        shop.execute("INSERT INTO purchases VALUES (2, 'by its new name')")
        until(
            lambda: any("copied 1 table while the stream continued" in one.text for one in told), "no copy was made", 60
        )
    assert "SRC252" in {one.facts.get("code") for one in told}
    assert_as_at_source(project, database, "orders")


@PLUGINS
@pytest.mark.parametrize("away", ["public.orders_old", "aside.orders"])
@pytest.mark.parametrize("runs", [False, True], ids=["stopped", "running"])
def test_changes_of_a_table_that_had_another_name_for_a_while_are_its_own(
    database: Database, tmp_path: Path, shop: psycopg.Connection[Any], plugin: str, away: str, *, runs: bool
) -> None:
    tables = [f"public.{name}" for name in ("orders", "orders_new", "other")]
    project, told = project_for(database, tmp_path, plugin, tables=tables), list[ProgressEvent]()
    shop.execute("CREATE SCHEMA aside")
    schema, name = away.split(".")
    there = "SET SCHEMA aside" if schema == "aside" else f"RENAME TO {name}"
    back = "SET SCHEMA public" if schema == "aside" else "RENAME TO orders"
    once(project)
    with running(project, told) if runs else nullcontext():
        until(lambda: not runs or streams(told))
        shop.execute("UPDATE orders SET note = 'before'")
        shop.execute(f"ALTER TABLE orders {there}")
        shop.execute(f"INSERT INTO {away} VALUES (2, 'meanwhile'), (3, 'meanwhile'); DELETE FROM {away} WHERE id = 1")
        shop.execute(f"ALTER TABLE {away} {back}")
        shop.execute("UPDATE orders SET note = 'behind' WHERE id = 2")
        until(lambda: not runs or (reads(project, "behind") if plugin == "pgoutput" else copied(told)))
    once(project)
    assert_as_at_source(project, database)


def copied(told: list[ProgressEvent]) -> bool:
    """Whether a table was copied beside the stream."""
    return any("copied 1 table while the stream continued" in one.text for one in told)


def reads(project: Project, note: str) -> bool:
    """Whether bronze has a note."""
    rows = tables_from_bronze(project).get(TableName("public", "orders"), {})
    return note in {row["note"] for row in rows.values()}


@PLUGINS
def test_a_renamed_table_is_copied_under_its_new_name_and_the_old_one_is_left(
    database: Database, tmp_path: Path, shop: psycopg.Connection[Any], plugin: str
) -> None:
    project = project_for(database, tmp_path, plugin)
    once(project)
    shop.execute("UPDATE orders SET note = 'pending'")
    shop.execute("ALTER TABLE orders RENAME TO purchases; INSERT INTO purchases VALUES (2, 'by its new name')")
    once(project)
    once(project)
    assert_as_at_source(project, database, "orders")
    assert tables_from_bronze(project)[TableName("public", "orders")][("1",)]["note"] == "pending"


@PLUGINS
def test_where_no_copy_is_asked_for_a_renamed_table_is_said_and_resync_copies_it(
    database: Database, tmp_path: Path, shop: psycopg.Connection[Any], plugin: str
) -> None:
    source, none = {"slot": {"plugin": plugin}}, {"mode": "none"}
    project, told = project_of(database, tmp_path, source=source, snapshot=none), list[ProgressEvent]()
    once(project)
    shop.execute("ALTER TABLE orders RENAME TO purchases; INSERT INTO purchases VALUES (2, 'by its new name')")
    once(project, told.append)
    assert any("resync public.purchases" in one.text for one in told if one.stage == "warning")
    resync(project, ["public.purchases"])
    shop.execute("INSERT INTO purchases VALUES (3, 'behind the copy')")
    once(project)
    found = {table: tables_from_bronze(project)[table] for table in [TableName("public", "purchases")]}
    assert found.items() <= tables_at_source(database).items()


@PLUGINS
def test_a_dropped_table_is_left_with_its_last_rows_and_one_made_anew_is_copied(
    database: Database, tmp_path: Path, shop: psycopg.Connection[Any], plugin: str
) -> None:
    project, told = project_for(database, tmp_path, plugin), list[ProgressEvent]()
    once(project)
    shop.execute("INSERT INTO orders VALUES (2, 'the last one'); DROP TABLE orders")
    once(project, told.append)
    assert "table public.orders no longer exists in the database: silver keeps its last rows" in {
        one.text for one in told
    }
    assert_as_at_source(project, database, "orders")
    notes = {row["note"] for row in tables_from_bronze(project)[TableName("public", "orders")].values()}
    assert notes == {"orders", "the last one"}
    shop.execute("DROP TABLE other; CREATE TABLE other (id int PRIMARY KEY, note text)")
    shop.execute("CREATE TABLE orders (id int PRIMARY KEY, note text); INSERT INTO orders VALUES (7, 'anew')")
    once(project)
    once(project)
    ours = {name: rows for name, rows in tables_from_bronze(project).items() if rows}
    assert ours == {name: rows for name, rows in tables_at_source(database).items() if rows}


def test_a_table_made_anew_in_a_publication_of_all_tables_is_copied(
    database: Database, tmp_path: Path, shop: psycopg.Connection[Any]
) -> None:
    with database.admin() as admin:
        admin.execute("CREATE PUBLICATION made FOR ALL TABLES WITH (publish_via_partition_root)")
    project = project_of(database, tmp_path, source={"publication": "made"})
    once(project)
    shop.execute(SWAP)
    shop.execute("DROP TABLE other; CREATE TABLE other (id int PRIMARY KEY); INSERT INTO other VALUES (9)")
    once(project)
    once(project)
    assert_as_at_source(project, database, "orders_new")


def test_changes_from_before_a_table_was_attached_are_no_changes_of_the_root(
    database: Database, tmp_path: Path
) -> None:
    with database.admin() as admin:
        admin.execute("CREATE PUBLICATION made FOR ALL TABLES WITH (publish_via_partition_root)")
    project = project_of(database, tmp_path, source={"publication": "made"})
    with database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, a text) PARTITION BY RANGE (id)")
        conn.execute("CREATE TABLE t_0 PARTITION OF t FOR VALUES FROM (0) TO (5); INSERT INTO t VALUES (1, 'lives')")
        once(project)
        conn.execute("CREATE TABLE fill (LIKE t INCLUDING ALL)")
        conn.execute("INSERT INTO fill VALUES (1, 'other'), (6, 'six')")
        conn.execute("DELETE FROM fill WHERE id = 1")
        conn.execute("ALTER TABLE t ATTACH PARTITION fill FOR VALUES FROM (5) TO (10)")
        conn.execute("UPDATE t SET a = 'behind it'")
        once(project)
    rows = [row for row in bronze_rows(project) if row["relation"] == "public.t" and row["op"] in "IUDT"]
    assert [(row["op"], row["new"]) for row in rows] == [("U", ["1", "behind it"]), ("U", ["6", "behind it"])]


def test_members_that_an_older_version_recorded_say_nothing_of_oids(
    database: Database, tmp_path: Path, shop: psycopg.Connection[Any]
) -> None:
    project, told = project_of(database, tmp_path), list[ProgressEvent]()
    once(project)
    state, control = bronze_writer(project).state(), control_tables(project)
    assert state is not None
    [row] = control.read("memberships").to_pylist()
    older = json.dumps({name: entry for name, (entry, _) in json.loads(row["tables"]).items()})
    control.record(MembershipRow(state.epoch, state.stream, older, utc_now()))
    shop.execute("INSERT INTO orders VALUES (2, 'x')")
    once(project, told.append)
    assert not [one.text for one in told if "copied again" in one.text]
    assert_as_at_source(project, database)


def running(project: Project, told: list[ProgressEvent]) -> Any:
    def run(stop: threading.Event) -> None:
        receive(project, bronze_writer(project), once=False, stop=stop, report=told.append, pauses=(0.01, 0.01))

    return beside(run)
