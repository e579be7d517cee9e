"""`skip-generated-columns` of GaussDB: new rows come without generated columns, old rows with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.model.relation import TableName
from tests.bronze_replay import tables_from_bronze
from tests.conftest import TESTED
from tests.live.test_gaussdb_receive import decoding, project_of
from tests.live.test_gaussdb_workload import Kind, StandIn, stand_in
from tests.live.test_receive_loop import once

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(
        TESTED < 18, reason="before 18 PostgreSQL, which the stand-in reads, publishes no generated columns"
    ),
]

__all__ = ["stand_in"]


@pytest.mark.parametrize("style", [Style.BINARY, Style.JSON, Style.TEXT], ids=lambda style: style.name.lower())
def test_generated_columns_are_none_of_the_table_whatever_old_rows_hold(
    stand_in: StandIn, tmp_path: Path, style: Style
) -> None:
    kind = Kind(style, batch=True, by_csn=True)
    options = {**decoding(kind), "skip-generated-columns": "on"}
    project = project_of(stand_in, kind, tmp_path, source={"decoding": options})
    with stand_in.database.connect() as conn:
        conn.execute(
            "CREATE TABLE whole (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED, note text)"
        )
        conn.execute("ALTER TABLE whole REPLICA IDENTITY FULL")
        conn.execute(
            "CREATE TABLE keyed (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED, note text)"
        )
        for table in ("whole", "keyed"):
            conn.execute(f"INSERT INTO {table} (id, note) VALUES (1, 'copied'), (2, 'goes')")
        once(project)
        for table in ("whole", "keyed"):
            conn.execute(f"DELETE FROM {table} WHERE id = 2")  # comes first: its layout is the copy's
            conn.execute(
                f"INSERT INTO {table} (id, note) VALUES (3, 'new'); UPDATE {table} SET note = 'changed' WHERE id = 1"
            )
            conn.execute(f"UPDATE {table} SET id = 4 WHERE id = 3")
        once(project)
    ours = tables_from_bronze(project)
    for table in ("whole", "keyed"):
        rows = ours[TableName("public", table)].values()
        assert sorted((row["id"], row["note"]) for row in rows) == [("1", "changed"), ("4", "new")], table
        assert all("twice" not in row for row in rows), table
