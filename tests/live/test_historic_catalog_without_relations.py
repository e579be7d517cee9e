"""Rows that name their columns (`test_decoding`, the GaussDB family) are read by the catalog of then, as far as rows and layouts tell it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from cdc_lake.config.project import Project
from cdc_lake.config.source import FamilySource
from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.model.relation import Missing, TableName
from cdc_lake.source.postgres.catalog import RowTables
from cdc_lake.source.postgres.connection import connect
from tests.conftest import Database
from tests.live.added_columns import layouts
from tests.live.test_gaussdb_receive import project_of as family_project
from tests.live.test_gaussdb_workload import Kind, StandIn, stand_in
from tests.live.test_historic_catalog import PLAIN, REPLACED, SWAPPED, came_to
from tests.live.test_receive_loop import bronze_rows, once, project_of
from tests.postgres_with_test_decoding import server  # noqa: F401 - a fixture

pytestmark = pytest.mark.live

__all__ = ["stand_in"]

T = TableName("public", "t")


Source: TypeAlias = tuple[Database, Callable[[Path], Project]]


@pytest.fixture(params=["test_decoding", Kind(Style.BINARY, batch=True), Kind(Style.SERIAL)], ids=str)
def source(request: pytest.FixtureRequest) -> Source:
    """A database, and a pipeline that reads it."""
    if isinstance(kind := request.param, Kind):
        family: StandIn = request.getfixturevalue("stand_in")
        return family.database, lambda folder: family_project(family, kind, folder)
    database: Database = request.getfixturevalue("database")
    slot = {"slot": {"name": "by_lines", "plugin": kind}}
    return database, lambda folder: project_of(database, folder, source=slot)


def landed(source: Source, folder: Path, made: str, *steps: str) -> Project:
    database, project = source[0], source[1](folder)
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
        (
            ["ALTER TABLE t DROP a; ALTER TABLE t ADD a text", "INSERT INTO t VALUES (2)", "UPDATE t SET a = 'b' WHERE id = 2"],
            [["take column a of t for a new one", "drop column a of t", "add column a string to t"]],
        ),
        (
            ["INSERT INTO t VALUES (2)", "ALTER TABLE t DROP a; ALTER TABLE t ADD a text"],
            [["take column a of t for the one that it was"]],
        ),
    ],
)  # fmt: skip
def test_a_column_is_the_one_that_had_its_name_then(
    source: Source, tmp_path: Path, steps: list[str], expected: list[list[str]]
) -> None:
    assert came_to(layouts(landed(source, tmp_path, PLAIN, *steps), T)) == expected


def test_what_old_rows_hold_is_kept_when_the_table_is_rewritten(source: Source, tmp_path: Path) -> None:
    project = landed(source, tmp_path, PLAIN, "ALTER TABLE t ADD c int DEFAULT 5", "INSERT INTO t (id) VALUES (2)")
    with source[0].connect() as conn:
        conn.execute("VACUUM FULL t")
        conn.execute("INSERT INTO t (id) VALUES (3)")
    once(project)
    newest = layouts(project, T)[-1]
    assert next(c.missing for c in newest.columns if c.name == "c") == Missing("5")


@pytest.mark.parametrize(
    ("steps", "known"),
    [
        (["ALTER TABLE t ADD c int DEFAULT 5; ALTER TABLE t ALTER c DROP DEFAULT", "VACUUM FULL t"], None),
        (["ALTER TABLE t ADD c int DEFAULT 5; ALTER TABLE t ALTER c DROP DEFAULT"], "5"),
    ],
)
def test_what_was_rewritten_before_its_column_was_read_is_unknown(
    source: Source, tmp_path: Path, steps: list[str], known: str | None
) -> None:
    found = layouts(landed(source, tmp_path, PLAIN, *steps, "INSERT INTO t (id) VALUES (2)"), T)[-1]
    assert next(c.missing for c in found.columns if c.name == "c") == Missing(known)


def test_the_default_of_a_domain_is_one_too(source: Source, tmp_path: Path) -> None:
    """PostgreSQL 18 keeps it, one before rewrites the table; the family keeps none of a domain's."""
    steps = ["CREATE DOMAIN seven AS int DEFAULT 7", "ALTER TABLE t ADD c seven", "INSERT INTO t (id) VALUES (2)"]
    found = layouts(landed(source, tmp_path, PLAIN, *steps), T)[-1]
    assert next(c.missing for c in found.columns if c.name == "c") in (Missing("7"), Missing(None))


def test_a_key_that_moves_under_identity_full_is_each_rows_own(source: Source, tmp_path: Path) -> None:
    made = "CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL); ALTER TABLE t REPLICA IDENTITY FULL"
    moved = "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (a)"
    steps = ["UPDATE t SET a = 2", moved, "UPDATE t SET id = 3"]
    found = layouts(landed(source, tmp_path, made.replace("NOT NULL", "NOT NULL DEFAULT 1"), *steps), T)
    assert [one.primary_key for one in found] == [("id",), ("a",)]


def test_an_identity_that_was_changed_before_it_was_read_makes_no_whole_row_of_a_key(
    source: Source, tmp_path: Path
) -> None:
    large = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 300) AS n)"
    project = landed(
        source,
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
    # the GaussDB family logs the key with every update
    first = "key" if isinstance(project.pipeline.source, FamilySource) else None
    kinds = Counter((row["op"], row["old_kind"]) for row in bronze_rows(project) if row["op"] in "UD")
    assert kinds == Counter([("U", first), ("U", "key"), ("D", "key"), ("U", "full"), ("D", "full")])


def test_a_type_of_the_users_own_is_known_also_where_its_column_is_gone(source: Source, tmp_path: Path) -> None:
    changes = ["INSERT INTO t (id) VALUES (2)", "DELETE FROM t WHERE id = 2"]
    steps = ["ALTER TABLE t ADD b sevens", *changes, "ALTER TABLE t DROP b"]
    found = layouts(landed(source, tmp_path, f"CREATE DOMAIN sevens AS int DEFAULT 7; {PLAIN}", *steps), T)
    types = {(c.type_name, c.type_oid > 0) for one in found for c in one.columns if c.name == "b"}
    assert types == {("public.sevens", True)}


def test_the_catalog_of_rows_names_any_type_by_its_oid(database: Database, tmp_path: Path) -> None:
    """An old row leaves out its NULLs, and their types with them (walk 11 of seed 2320781929)."""
    with database.connect() as conn:
        conn.execute("CREATE DOMAIN sevens AS int DEFAULT 7")
        conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
        oid = conn.execute("SELECT 'sevens'::regtype::oid::int").fetchone()
    with connect(project_of(database, tmp_path).postgres, tmp_path) as session:
        facts = RowTables(session)(T)
        assert facts is not None
        assert oid is not None
        assert facts.type_names.get(oid[0]) == "public.sevens"
        assert facts.type_names.get(1) is None


def test_whole_old_rows_without_their_nulls_make_no_key_of_what_is_left(source: Source, tmp_path: Path) -> None:
    changes = ["INSERT INTO t VALUES (2, 'x')", "UPDATE t SET a = 'y' WHERE id = 2", "DELETE FROM t WHERE id = 2"]
    full, default = (f"ALTER TABLE t REPLICA IDENTITY {one}" for one in ("FULL", "DEFAULT"))
    project = landed(source, tmp_path, f"{PLAIN}; ALTER TABLE t ADD b text", full, *changes, default)
    assert {row["old_kind"] for row in bronze_rows(project) if row["op"] in "UD"} == {"full"}
    assert {one.primary_key for one in layouts(project, T)} == {("id",)}
