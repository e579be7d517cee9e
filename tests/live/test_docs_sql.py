"""The SQL of the guides runs as it stands, in its order, as a superuser; that of openGauss is PostgreSQL's as well."""

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
CREATE TABLE customers (id int PRIMARY KEY);
CREATE TABLE orders (id int PRIMARY KEY);
CREATE TABLE visits (member_id int, visited_at date);
"""


def statements(*pages: str) -> list[str]:
    """The SQL of some guides, for another role: theirs is that of every test."""
    text = "".join((GUIDES / name).read_text(encoding="utf-8") for name in pages)
    found = [m[2] for m in re.finditer(r"^( *)```sql\n(.*?)^\1```", text, re.MULTILINE | re.DOTALL)]
    return [one for block in found for one in re.sub(r"\bcdc\b", "guide", block).split(";") if one.strip()]


@pytest.mark.parametrize(
    ("pages", "slot", "count"),
    [(("postgres.md", "operations.md"), "library", 9), (("opengauss.md",), "shop", 5)],
    ids=["postgres", "opengauss"],
)
def test_the_sql_of_the_guides_runs(database: Database, pages: tuple[str, ...], slot: str, count: int) -> None:
    found = statements(*pages)
    assert len(found) == count
    with database.admin() as admin:
        admin.execute(BEFORE)
        admin.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        for statement in found:
            admin.execute(statement.encode())
        admin.execute("DROP OWNED BY guide")
        admin.execute("DROP ROLE guide")
        assert admin.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,)
