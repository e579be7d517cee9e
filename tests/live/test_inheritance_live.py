"""Tables that inherit from others: each is a table of its own, whatever is captured of the rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc_lake.ops.check.postgres import dba_sql
from cdc_lake.ops.check.runner import check
from tests.conftest import Database
from tests.live.test_receive_loop import bronze_rows, once, project_of

pytestmark = pytest.mark.live

TABLES = """
CREATE TABLE parent (id int PRIMARY KEY, a text);
CREATE TABLE child (secret text, PRIMARY KEY (id)) INHERITS (parent);
CREATE TABLE other (id int PRIMARY KEY);
INSERT INTO parent VALUES (1, 'p'); INSERT INTO child VALUES (2, 'c', 'canary');
"""
CHANGES = "UPDATE parent SET a = a || '!'; INSERT INTO parent VALUES (3); INSERT INTO child VALUES (4); DELETE FROM child WHERE id = 2"


@pytest.fixture
def family(database: Database) -> Iterator[psycopg.Connection[Any]]:
    with database.connect() as conn:
        conn.execute(TABLES)
        yield conn


def landed(database: Database, root: Path, *tables: str) -> list[tuple[str, str, str]]:
    """What bronze has: operation, table, id."""
    project = project_of(database, root, source={"tables": list(tables)})
    once(project)
    return [
        (row["op"], row["relation"], (row["new"] or row["old"])[0])
        for row in bronze_rows(project)
        if row["op"] in "SIUD"
    ]


@pytest.mark.parametrize("tables", [("public.parent",), ("public.*", "!public.child")])
def test_a_table_that_inherits_from_a_captured_one_is_not_captured_with_it(
    family: psycopg.Connection[Any], database: Database, tmp_path: Path, tables: tuple[str, ...]
) -> None:
    landed(database, tmp_path, *tables)
    family.execute(CHANGES)
    found = [one for one in landed(database, tmp_path, *tables) if one[1] != "public.other"]
    assert found == [("S", "public.parent", "1"), ("U", "public.parent", "1"), ("I", "public.parent", "3")]


def test_both_are_captured_each_with_its_own_rows(
    family: psycopg.Connection[Any], database: Database, tmp_path: Path
) -> None:
    landed(database, tmp_path, "public.*")
    family.execute(CHANGES)
    found = landed(database, tmp_path, "public.*")
    assert sorted(found[:2]) == [("S", "public.child", "2"), ("S", "public.parent", "1")]
    assert found[2:] == [
        ("U", "public.parent", "1"),
        ("U", "public.child", "2"),
        ("I", "public.parent", "3"),
        ("I", "public.child", "4"),
        ("D", "public.child", "2"),
    ]


def test_the_table_that_others_inherit_from_comes_and_goes_without_them(
    family: psycopg.Connection[Any], database: Database, tmp_path: Path
) -> None:
    landed(database, tmp_path, "public.child")
    landed(database, tmp_path, "public.child", "public.parent")
    family.execute("INSERT INTO parent VALUES (5); INSERT INTO child VALUES (6)")
    landed(database, tmp_path, "public.child", "public.parent")
    landed(database, tmp_path, "public.child")
    family.execute("INSERT INTO parent VALUES (7); INSERT INTO child VALUES (8)")
    assert landed(database, tmp_path, "public.child") == [
        ("S", "public.child", "2"),
        ("S", "public.parent", "1"),
        ("I", "public.parent", "5"),
        ("I", "public.child", "6"),
        ("I", "public.child", "8"),
    ]


def test_a_publication_that_is_made_by_hand_as_check_prints_it_has_no_other_table(
    family: psycopg.Connection[Any], database: Database, tmp_path: Path
) -> None:
    project = project_of(database, tmp_path, source={"tables": ["public.parent"]})
    for line in dba_sql(project).splitlines():
        if line.startswith("CREATE PUBLICATION"):
            family.execute(line)
    [line] = [line for line in check(project) if line.subject == "publication"]
    assert line.ok
    assert line.text.endswith("publishes 1 table")
