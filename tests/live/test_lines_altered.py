"""Rows that `test_decoding` prints are read by the catalog of then, as far as rows and layouts tell it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_lake.config.project import Project
from cdc_lake.model.relation import Missing, TableName
from tests.conftest import Database
from tests.decoding_postgres import server  # noqa: F401 - a fixture
from tests.live.old_rows import layouts
from tests.live.test_historic_catalog import PLAIN, REPLACED, SWAPPED, came_to
from tests.live.test_receive_loop import bronze_rows, once, project_of

pytestmark = pytest.mark.live
T = TableName("public", "t")


def landed(database: Database, folder: Path, made: str, *steps: str) -> Project:
    slot = {"slot": {"name": "by_lines", "plugin": "test_decoding"}}
    project = project_of(database, folder, source=slot)
    with database.connect() as conn:
        conn.execute(made)  # type: ignore[call-overload]
        once(project)
        conn.execute("INSERT INTO t (id) VALUES (1)")
        once(project)
        for step in steps:
            conn.execute(step)  # type: ignore[call-overload]
    once(project)
    return project


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (
            [REPLACED, "INSERT INTO t (id) VALUES (2)"],
            [["add column a_new string to t"], ["rename column a of t to a_old", "rename column a_new of t to a"]],
        ),
        (
            ["ALTER TABLE t ADD b text", "INSERT INTO t VALUES (2, 'a', 'b')", SWAPPED, "INSERT INTO t VALUES (3)"],
            [["add column b string to t"], ["rename column a of t to b", "rename column b of t to a"]],
        ),
        (
            ["ALTER TABLE t ADD c int NOT NULL DEFAULT 5; ALTER TABLE t ALTER c DROP DEFAULT; ALTER TABLE t ALTER a TYPE int USING 1",
             "INSERT INTO t VALUES (2, 1, 1)"],
            [["change column a of t from string to int", "add column c int to t, rows before it unknown"]],
        ),
    ],
)  # fmt: skip
def test_a_column_is_the_one_that_had_its_name_then(
    database: Database, tmp_path: Path, steps: list[str], expected: list[list[str]]
) -> None:
    assert came_to(layouts(landed(database, tmp_path, PLAIN, *steps), T)) == expected


def test_what_old_rows_hold_is_kept_when_the_table_is_rewritten(database: Database, tmp_path: Path) -> None:
    project = landed(database, tmp_path, PLAIN, "ALTER TABLE t ADD c int DEFAULT 5", "INSERT INTO t (id) VALUES (2)")
    with database.connect() as conn:
        conn.execute("VACUUM FULL t")
        conn.execute("INSERT INTO t (id) VALUES (3)")
    once(project)
    newest = layouts(project, T)[-1]
    assert next(c.missing for c in newest.columns if c.name == "c") == Missing("5")


def test_an_identity_that_was_changed_before_it_was_read_makes_no_whole_row_of_a_key(
    database: Database, tmp_path: Path
) -> None:
    large = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 300) AS n)"
    project = landed(
        database,
        tmp_path,
        "CREATE TABLE t (id int PRIMARY KEY, a text, n int)",
        f"UPDATE t SET a = {large}",
        "INSERT INTO t VALUES (7, 'x')",
        "UPDATE t SET id = 2 WHERE id = 1",
        "DELETE FROM t WHERE id = 7",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "UPDATE t SET n = 3 WHERE id = 2",
        "DELETE FROM t WHERE id = 2",
    )
    rows = [row for row in bronze_rows(project) if row["op"] in "UD"]
    assert [(row["op"], row["old_kind"]) for row in rows] == [
        ("U", None), ("U", "key"), ("D", "key"), ("U", "full"), ("D", "full")
    ]  # fmt: skip
