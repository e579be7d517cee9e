"""The SQL of the guides runs as it stands, in its order, as a superuser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import Database

pytestmark = pytest.mark.live

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
BEFORE = """
CREATE TABLE books (id int PRIMARY KEY);
CREATE TABLE loans (id int PRIMARY KEY);
CREATE TABLE visits (member_id int, visited_at date);
"""


def test_the_sql_of_the_guides_runs(database: Database) -> None:
    """Another role: the one of the guide is that of every test."""
    text = "".join((GUIDES / name).read_text(encoding="utf-8") for name in ("postgres.md", "operations.md"))
    found = [m[2] for m in re.finditer(r"^( *)```sql\n(.*?)^\1```", text, re.MULTILINE | re.DOTALL)]
    assert len(found) == 5
    with database.admin() as admin:
        admin.execute(BEFORE)
        admin.execute("SELECT pg_create_logical_replication_slot('library', 'pgoutput')")
        for block in found:
            for statement in filter(str.strip, re.sub(r"\bcdc\b", "guide", block).split(";")):
                admin.execute(statement.encode())
        admin.execute("DROP OWNED BY guide")
        admin.execute("DROP ROLE guide")
        assert admin.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,)
