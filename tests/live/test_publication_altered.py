"""What somebody else does to the publication of a stream that lives: seen, and the table copied again, nothing lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc_lake.bronze.open import bronze_writer
from cdc_lake.config.project import Project
from cdc_lake.connectors.base import ActionKind
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.ops.check.runner import check
from cdc_lake.ops.plan import plan
from cdc_lake.runtime.receive.receiver import receive
from cdc_lake_testing.beside import beside, streams, until
from tests.bronze_replay import tables_from_bronze
from tests.conftest import TESTED, Database
from tests.live.test_receive_loop import bronze_rows, once, project_of, tables_at_source

pytestmark = pytest.mark.live
PARTS = pytest.mark.skipif(TESTED < 15, reason="lists of columns and filters of rows came with 15")


@pytest.fixture
def shop(database: Database) -> Iterator[psycopg.Connection[Any]]:
    with database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b text); CREATE TABLE other (id int PRIMARY KEY)")
        conn.execute("INSERT INTO t VALUES (1, 'a', 'b'); INSERT INTO other VALUES (1)")
        yield conn


def assert_as_at_source(project: Project, database: Database) -> None:
    assert tables_from_bronze(project) == tables_at_source(database)


def again(project: Project) -> list[str]:
    """Receives, and gives the tables that were copied again for it."""
    told: list[ProgressEvent] = []
    once(project, told.append)
    return [one.text for one in told if one.text.endswith("is copied again")]


def test_a_table_that_was_out_of_the_publication_for_a_while_is_copied_again(
    database: Database, tmp_path: Path, shop: psycopg.Connection[Any]
) -> None:
    project = project_of(database, tmp_path)
    once(project)
    name = project.publication
    shop.execute(f"ALTER PUBLICATION {name} DROP TABLE t")
    shop.execute("INSERT INTO t VALUES (2, 'unseen')")
    shop.execute(f"ALTER PUBLICATION {name} ADD TABLE t")
    said = (
        "public.t: the publication was altered, and the next start copies again the tables that are published "
        "differently"
    )
    assert said in {line.text for line in check(project)}
    assert [action.subject for action in plan(project).actions if action.kind is ActionKind.SNAPSHOT] == ["public.t"]
    assert again(project) == [f"publication `{name}` was altered: table public.t is copied again"]
    shop.execute("UPDATE t SET a = 'later'")
    assert again(project) == []
    assert_as_at_source(project, database)


@pytest.mark.obeys("SRC252")
def test_a_receiver_that_runs_notices_it_at_the_next_change_and_goes_on(
    database: Database, tmp_path: Path, shop: psycopg.Connection[Any]
) -> None:
    project, told = project_of(database, tmp_path), list[ProgressEvent]()
    name = project.publication

    def run(stop: threading.Event) -> None:
        receive(project, bronze_writer(project), once=False, stop=stop, report=told.append, pauses=(0.01, 0.01))

    with beside(run):
        until(lambda: streams(told))
        shop.execute("INSERT INTO t VALUES (2, 'seen')")
        until(lambda: any(row["op"] == "I" for row in bronze_rows(project)))
        shop.execute(f"ALTER PUBLICATION {name} DROP TABLE t")
        shop.execute("INSERT INTO t VALUES (3, 'unseen')")
        shop.execute(f"ALTER PUBLICATION {name} ADD TABLE t")
        shop.execute("INSERT INTO t VALUES (4, 'seen'); INSERT INTO other VALUES (2)")
        until(lambda: any("copied 1 table while the stream continued" in one.text for one in told))
    assert "SRC252" in {one.facts.get("code") for one in told}
    once(project)
    assert_as_at_source(project, database)


@PARTS
def test_other_columns_or_other_rows_that_are_published_are_copied(
    database: Database, tmp_path: Path, shop: psycopg.Connection[Any]
) -> None:
    shop.execute("CREATE PUBLICATION made FOR TABLE other, t (id, a) WHERE (id > 1)")
    shop.execute("INSERT INTO t VALUES (2, 'a', 'b')")
    project = project_of(database, tmp_path, source={"publication": "made"})
    once(project)
    assert again(project) == []
    for part in ("(id, a, b) WHERE (id > 1)", "(id, a, b)", "", "(id, b)"):
        shop.execute(f"ALTER PUBLICATION made SET TABLE other, t {part}")
        assert again(project) == ["publication `made` was altered: table public.t is copied again"], part
        last = max(row["position"] for row in bronze_rows(project) if row["op"] == "S")
        rows = [row["new"] for row in bronze_rows(project) if row["op"] == "S" and row["position"] == last]
        assert {int(row[0]) for row in rows} == ({2} if "WHERE" in part else {1, 2})
        assert {tuple(row[1:]) for row in rows} == {("b",) if part == "(id, b)" else ("a", "b")}
    shop.execute("ALTER PUBLICATION made SET TABLE other, t (id, b)")
    assert again(project) == []


def test_a_publication_of_all_tables_is_read_on_as_it_is(
    database: Database, tmp_path: Path, shop: psycopg.Connection[Any]
) -> None:
    with database.admin() as admin:
        admin.execute("CREATE PUBLICATION made FOR ALL TABLES")
    project = project_of(database, tmp_path, source={"publication": "made"})
    once(project)
    shop.execute("INSERT INTO t VALUES (2)")
    assert again(project) == []
    shop.execute("ALTER TABLE t ADD COLUMN c int; INSERT INTO t VALUES (3)")
    assert again(project) == []


def test_it_is_seen_beside_a_table_that_is_gone(
    database: Database, tmp_path: Path, shop: psycopg.Connection[Any]
) -> None:
    project = project_of(database, tmp_path, source={"tables": ["public.t", "public.other"]})
    once(project)
    name = project.publication
    shop.execute(f"DROP TABLE other; ALTER PUBLICATION {name} DROP TABLE t")
    shop.execute("INSERT INTO t VALUES (2, 'unseen')")
    shop.execute(f"ALTER PUBLICATION {name} ADD TABLE t; INSERT INTO t VALUES (3, 'seen')")
    assert again(project) == [f"publication `{name}` was altered: table public.t is copied again"]
    assert [row["id"] for row in tables_from_bronze(project)[TableName("public", "t")].values()] == ["1", "2", "3"]


def test_a_pipeline_that_copies_nothing_says_what_is_missing_and_goes_on(
    database: Database, tmp_path: Path, shop: psycopg.Connection[Any]
) -> None:
    project = project_of(database, tmp_path, snapshot={"mode": "none"})
    once(project)
    name, told = project.publication, list[ProgressEvent]()
    shop.execute(f"ALTER PUBLICATION {name} DROP TABLE t; ALTER PUBLICATION {name} ADD TABLE t")
    shop.execute("INSERT INTO t VALUES (3, 'seen')")
    once(project, told.append)
    assert [one.text for one in told if one.stage == "warning"] == [
        (
            f"publication `{name}` was altered: changes of table public.t that it did not publish are missing, and "
            "`snapshot.mode` disables the copy: cdc-lake resync public.t"
        )
    ]
    assert [row["new"][0] for row in bronze_rows(project) if row["op"] == "I"] == ["3"]
