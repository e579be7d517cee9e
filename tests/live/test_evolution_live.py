"""What a real server's catalog says of a table whose layout changes, and what becomes of it in bronze and in `plan`."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.loader import load_project
from cdc_lake.config.project import Project
from cdc_lake.connectors.base import ActionKind
from cdc_lake.connectors.factory import source_view
from cdc_lake.control.cuts import ACTIVE, Cut, TableState, write_cut
from cdc_lake.model.position import Span
from cdc_lake.model.relation import Missing, TableName
from cdc_lake.ops.plan import plan
from cdc_lake.runtime.run import run
from cdc_lake.tables.control_tables import ControlTables
from tests.conftest import TESTED, Database
from tests.live.added_columns import altered, layouts, words
from tests.pipeline_file import pipeline_file

pytestmark = pytest.mark.live
T = TableName("public", "t")


def project_of(database: Database, folder: Path, more: str = "") -> Project:
    return load_project(pipeline_file(database, folder, more))


def receive(project: Project) -> None:
    run(project, once=True, only="receive", stop=threading.Event(), report=lambda _: None)


def test_a_layout_says_what_the_stream_leaves_out(database: Database, tmp_path: Path) -> None:
    project = project_of(database, tmp_path)
    with database.connect() as conn:
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
        altered(conn.execute, partial(receive, project), "t", "a text", changes)
    found = layouts(project, T)
    assert [words(*pair) for pair in pairwise(found)] == [
        ["add column b string to t"],
        ["add column c string to t"],
        ["add column d timestamp to t"],
        ["add column e int to t, rows before it unknown"],
        ["add column f int to t"],
        ["rename column a of t to aa"],
        ["take column f of t for a new one", "drop column f of t", "add column f int to t"],
        ["change column f of t from int to bigint"],
        ["keep column aa of t, NULL from now on"],
    ]
    missing = [next(c.missing for c in found[n].columns if c.name == name) for n, name in enumerate("bcd", start=1)]
    assert missing == [Missing('it\'s {a,"b"}'), Missing("{1,NULL}"), Missing("2026-01-01 10:00:00+00")]
    with source_view(project) as source:
        sure = replace(found[-1], columns=tuple(replace(c, ambiguous=False) for c in found[-1].columns))
        assert source.layout(T) == sure


@pytest.mark.skipif(TESTED < 18, reason="publications carry generated columns since 18")
def test_what_old_rows_hold_in_a_generated_column_that_is_added_is_unknown(database: Database, tmp_path: Path) -> None:
    project = project_of(database, tmp_path)
    with database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
        name = project.publication
        conn.execute(f"CREATE PUBLICATION {name} FOR TABLE t WITH (publish_generated_columns = stored)")
        receive(project)
        conn.execute("INSERT INTO t VALUES (1)")
        receive(project)
        conn.execute("ALTER TABLE t ADD COLUMN twice int GENERATED ALWAYS AS (2 * id) STORED")
        conn.execute("INSERT INTO t VALUES (2)")
        receive(project)
    assert words(*layouts(project, T)) == ["add column twice int to t, rows before it unknown"]


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
    assert words(*layouts(project, T)) == ["begin t again"]


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
    (found,) = layouts(project, T)
    reader = bronze_reader(project)
    state = reader.state()
    assert state is not None
    landed = reader.changes(T, Span(state.epoch, 0, state.upto))["new"].to_pylist()[0]
    assert [c.missing for c in found.columns] == [None, Missing(landed[1]), None]
    assert "canary" not in str(found.describe())


def test_plan_lists_what_bronze_has_and_then_what_the_source_has_with_their_marks(
    database: Database, tmp_path: Path
) -> None:
    project = project_of(database, tmp_path, "silver: {defaults: {on_drop: drop}}\n")
    target = project.target(T)
    with database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b int)")
        receive(project)
        write_deltalake(
            str(project.silver_path(target)),
            pa.table({"id": pa.array([], pa.int32()), "a": pa.array([], pa.string()), "b": pa.array([], pa.int32())}),
        )
        conn.execute("INSERT INTO t VALUES (1, 'x', 1)")
        receive(project)
        cut_here(project, layouts(project, T)[-1].layout)
        assert pending(project) == []
        conn.execute("ALTER TABLE t RENAME COLUMN a TO aa")
        conn.execute("INSERT INTO t VALUES (2, 'x', 1)")
        receive(project)
        conn.execute("ALTER TABLE t ALTER COLUMN b TYPE bigint")
        conn.execute("ALTER TABLE t DROP COLUMN aa, ADD COLUMN more text DEFAULT 'm'")
        assert pending(project) == [
            ("rename column a of silver.t to aa", True),
            ("drop column aa of silver.t", True),
            ("change column b of silver.t from int to bigint", False),
            ("add column more string to silver.t", False),
        ]
        conn.execute(f"ALTER PUBLICATION {project.publication} DROP TABLE t")
        assert [a.text for a in plan(project).actions if a.kind is ActionKind.TABLE_GONE] == [
            "public.t is no longer captured: silver.t stays as it is"
        ]


def pending(project: Project) -> list[tuple[str, bool]]:
    return [(a.text, a.destructive) for a in plan(project).actions if a.subject == "silver.t"]


def cut_here(project: Project, layout: int) -> None:
    """As if all that bronze holds were applied."""
    state = bronze_reader(project).state()
    assert state is not None
    table = TableState("silver.t", "delta", 0, state.upto, ACTIVE, 0, layout=layout)
    write_cut(ControlTables(project.control), state, Cut(state.upto, {str(T): table}), None, lambda _: None)
