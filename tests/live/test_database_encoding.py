"""A database in another encoding than UTF-8: names and values land as text, in copy and stream, in either mode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from psycopg import sql

from tests.conftest import Database, drop_database
from tests.live.test_receive_loop import assert_equal_to_source, bronze_rows, once, project_of

pytestmark = pytest.mark.live


@pytest.fixture
def latin1(database: Database) -> Iterator[Database]:
    made = replace(database, name=f"{database.name}_latin1")
    with database.admin() as admin:
        admin.execute(
            sql.SQL(
                "CREATE DATABASE {} OWNER {} TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'"
            ).format(sql.Identifier(made.name), sql.Identifier(made.user))
        )
    yield made
    drop_database(made)


@pytest.mark.parametrize("mode", ["stream", "polling"])
def test_text_of_a_database_in_latin1_lands_as_it_reads(latin1: Database, tmp_path: Path, mode: str) -> None:
    with latin1.connect() as conn:
        conn.execute('CREATE TABLE "größe" (id int PRIMARY KEY, "straße" text)')
        conn.execute('INSERT INTO "größe" VALUES (1, %s)', ["£ ÿ copied"])
        project = project_of(latin1, tmp_path, source={"mode": mode, "polling": {"interval": "20 ms"}})
        once(project)
        conn.execute('INSERT INTO "größe" VALUES (2, %s)', ["é" * 3000])
        conn.execute('UPDATE "größe" SET id = 3, "straße" = \'§\' WHERE id = 1')
        once(project)
    assert_equal_to_source(project, latin1)
    assert [row["new"][1] for row in bronze_rows(project) if row["op"] in "SIU"] == ["£ ÿ copied", "é" * 3000, "§"]
