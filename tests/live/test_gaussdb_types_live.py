"""Every type over the family's wire, in the stand-in: what lands in bronze is what the server shows, in every style.

Bronze has texts; that silver reads them right is proven by `tests/spark/test_types_*`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_lake.comparison.bronze_vs_source import against_source
from cdc_lake.decode.gaussdb.records import Style
from tests.live.test_gaussdb_receive import project_of
from tests.live.test_gaussdb_workload import Kind, StandIn, stand_in
from tests.live.test_receive_loop import once
from tests.type_cases import create, create_types, every, insert

pytestmark = pytest.mark.live

__all__ = ["stand_in"]

WAYS = [Kind(Style.SERIAL), Kind(Style.BINARY, batch=True, by_csn=True), Kind(Style.TEXT), Kind(Style.JSON)]


def test_every_type_lands_as_the_server_shows_it_in_every_style(stand_in: StandIn, tmp_path: Path) -> None:
    projects = [project_of(stand_in, kind, tmp_path / kind.slot, source={"tables": ["public.every"]}) for kind in WAYS]
    with stand_in.database.connect() as sql:
        create_types(sql)
        create(sql, "every", every(sql))
        insert(sql, "every", every(sql), 0)
        for project in projects:
            once(project)
        insert(sql, "every", every(sql), 1)
        sql.execute("UPDATE every SET id = id + 1000 WHERE id % 3 = 0")
    for project in projects:
        once(project)
        found = against_source(project)
        assert [(table.table, table.verdict) for table in found.tables] == [("public.every", "equal")], project.name
        assert found.tables[0].source_rows > 20
