"""What a real server's catalog says of a table whose layout changes, and what becomes of it in bronze and in `plan`."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path

import pytest

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.load import load_project
from cdc_lake.config.project import Project
from cdc_lake.lake.evolution import operations
from cdc_lake.model.relation import Missing, Relation, TableName
from cdc_lake.model.span import Span
from cdc_lake.pipeline.run import run
from cdc_lake.pipeline.source_view import source_view
from tests.conftest import Database

pytestmark = pytest.mark.live
T = TableName("public", "t")


def project_of(database: Database, folder: Path, more: str = "") -> Project:
    (folder / "password.txt").write_text(database.password)
    file = folder / "shop.yaml"
    file.write_text(f"""\
version: 1
pipeline: shop
source:
  type: postgres
  host: {database.host}
  port: {database.port}
  database: {database.name}
  user: {database.user}
  password: ${{file:password.txt}}
  slot: {{name: {database.name[:63].lower()}}}
  tables: ["public.*"]
{more}""")
    return load_project(file)


def receive(project: Project) -> None:
    run(project, once=True, only="receive", stop=threading.Event(), tell=lambda _: None)


def layouts(project: Project) -> list[Relation]:
    """Those of the changes in bronze, in their order."""
    reader = bronze_reader(project)
    state = reader.state()
    assert state is not None
    found = reader.layouts([T])
    numbers = reader.changes(T, Span(state.epoch, 0, state.upto))["layout"].to_pylist()
    return [found[number] for number in dict.fromkeys(numbers)]


def words(before: Relation, after: Relation) -> list[str]:
    return [change.text("t") for change in operations(before, after)]


def test_a_layout_says_what_the_stream_leaves_out(database: Database, tmp_path: Path) -> None:
    project = project_of(database, tmp_path)
    with database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
        receive(project)
        conn.execute("INSERT INTO t VALUES (1, 'x')")
        receive(project)
        changes = [
            "ADD COLUMN b text DEFAULT E'it''s {a,\"b\"}'",
            "ADD COLUMN c int[] DEFAULT '{1,NULL}'",
            "ADD COLUMN d timestamptz DEFAULT '2026-01-01 12:00:00+02'",
            "ADD COLUMN e serial",
            "ADD COLUMN f int",
            "RENAME COLUMN a TO aa",
            "DROP COLUMN f, ADD COLUMN f int",
            "ALTER COLUMN f TYPE bigint",
            "DROP COLUMN aa",
        ]
        for n, change in enumerate(changes, start=2):
            conn.execute(f"ALTER TABLE t {change}")
            conn.execute(f"INSERT INTO t (id) VALUES ({n})")
            receive(project)
    found = layouts(project)
    assert [words(*pair) for pair in pairwise(found)] == [
        ["add column b string to t"],
        ["add column c string to t"],
        ["add column d timestamp to t"],
        ["add column e int to t, rows before it unknown"],
        ["add column f int to t"],
        ["rename column a of t to aa"],
        ["drop column f of t", "add column f int to t"],
        ["change column f of t from int to bigint"],
        ["keep column aa of t, NULL from now on"],
    ]
    missing = [next(c.missing for c in found[n].columns if c.name == name) for n, name in enumerate("bcd", start=1)]
    assert missing == [Missing('it\'s {a,"b"}'), Missing("{1,NULL}"), Missing("2026-01-01 10:00:00+00")]
    with source_view(project) as source:
        assert source.layout(T) == found[-1]


def test_a_table_dropped_and_made_again_is_another_one(database: Database, tmp_path: Path) -> None:
    project = project_of(database, tmp_path)
    with database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
        receive(project)
        conn.execute("INSERT INTO t VALUES (1)")
        receive(project)
        conn.execute("DROP TABLE t")
        conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
        conn.execute(f"ALTER PUBLICATION {project.publication} ADD TABLE t")
        conn.execute("INSERT INTO t VALUES (2)")
        receive(project)
    assert words(*layouts(project)) == ["begin t again"]


def test_a_default_of_a_redacted_column_is_redacted_too(database: Database, tmp_path: Path) -> None:
    (tmp_path / "key.txt").write_text("k" * 32)
    more = """\
bronze:
  redact: [{columns: [public.t.secret], strategy: sha256}, {columns: [public.t.none], strategy: "null"}]
  redact_key: ${file:key.txt}
"""
    project = project_of(database, tmp_path, more)
    with database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, secret text, none text)")
        receive(project)
        conn.execute("ALTER TABLE t DROP COLUMN secret, DROP COLUMN none")
        conn.execute("ALTER TABLE t ADD COLUMN secret text DEFAULT 'canary', ADD COLUMN none text DEFAULT 'canary'")
        conn.execute("INSERT INTO t (id) VALUES (1), (2)")
        receive(project)
    (found,) = layouts(project)
    reader = bronze_reader(project)
    state = reader.state()
    assert state is not None
    landed = reader.changes(T, Span(state.epoch, 0, state.upto))["new"].to_pylist()[0]
    assert [c.missing for c in found.columns] == [None, Missing(landed[1]), None]
    assert "canary" not in str(found.describe())
