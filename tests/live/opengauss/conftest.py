"""The server the suite runs on, and per test a schema and slots of its own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_lake.source.sql_text import identifier
from tests.conftest import Database, drop_database, make_database
from tests.live.opengauss.receiving import Place
from tests.live.opengauss.site import HOW, STAND_IN, Site, given, real_site, stand_in_site

# without a server only what stands for all of it is collected: one line says how to run the rest
collect_ignore_glob = [] if given() else ["test_opengauss_[!s]*.py", "test_opengauss_silver.py"]


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """The server that CDC_LAKE_OPENGAUSS names; without it tests are skipped."""
    if not given():
        pytest.skip(HOW)
    if given() != STAND_IN:
        with real_site(given()) as real:
            yield real
        return
    database: Database = make_database(request.getfixturevalue("server"))
    try:
        with stand_in_site(database) as made:
            yield made
    finally:
        drop_database(database)


@pytest.fixture
def place(site: Site, tmp_path: Path) -> Iterator[Place]:
    """A schema and a slot's name of the test's own; both are gone afterwards."""
    yield from place_on(site, tmp_path)


def place_on(site: Site, root: Path) -> Iterator[Place]:
    """A schema and a slot's name on a server; both are gone at the end."""
    name = f"live_{secrets.token_hex(4)}"
    made = Place(site, name, root)
    yield made
    for slot in made.slots:
        site.without_slot(slot)
    with site.sql() as session:
        if session.query(f"SELECT 1 FROM pg_namespace WHERE nspname = '{name}'").rows:
            session.query(f"DROP SCHEMA {identifier(name)} CASCADE")
