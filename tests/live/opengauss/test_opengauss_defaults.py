"""Old rows of added columns, and renames, as a real server's catalog tells them."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest

from cdc_lake.model.relation import TableName
from cdc_lake.source.sql_text import identifier
from tests.live.added_columns import CHANGES, WORDS, altered, check_old_rows, layouts, words
from tests.live.opengauss.receiving import FAST, SERIAL, Kind, Place, once

pytestmark = pytest.mark.live


def test_the_catalog_tells_what_old_rows_show(place: Place) -> None:
    with place.site.sql() as session:
        session.query(f"CREATE SCHEMA {identifier(place.name)}")
        check_old_rows(session, TableName(place.name, "old_rows"))


@pytest.mark.parametrize("kind", [FAST, SERIAL], ids=str)
def test_layouts_know_old_rows_and_renames(place: Place, kind: Kind) -> None:
    table = TableName(place.name, "t")
    project, name = place.project(kind), f"{identifier(place.name)}.t"
    with place.site.sql() as session:
        session.query(f"CREATE SCHEMA {identifier(place.name)}")
        altered(session.query, partial(once, project), name, "a text", CHANGES)
    assert [words(*pair) for pair in pairwise(layouts(project, table))] == WORDS
