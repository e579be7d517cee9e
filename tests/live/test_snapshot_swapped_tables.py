"""A table that is rewritten, dropped or replaced between the slot's snapshot and its copy: refused, and copied later."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from cdc_lake.errors import TableRewritten
from cdc_lake.model.relation import TableName
from cdc_lake.source.postgres import slot, snapshot
from cdc_lake.source.postgres.catalog import relation_of
from cdc_lake.source.postgres.connection import connect
from cdc_lake.source.postgres.snapshot import Range
from tests.conftest import Database
from tests.live.test_source_stream import settings

pytestmark = pytest.mark.live

REWRITES = {
    "truncated": "TRUNCATE t",
    "rewritten": "ALTER TABLE t ALTER COLUMN a TYPE varchar(9) USING a || '!'",
    "packed": "CLUSTER t USING t_pkey",
    "a partition truncated": "TRUNCATE parts_1",
}
REPLACEMENTS = {
    "dropped and made again": "DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, a text); INSERT INTO t VALUES (9)",
    "a partition changed for another": "ALTER TABLE parts DETACH PARTITION parts_1; ALTER TABLE parts_1 RENAME TO old; "
    "ALTER TABLE spare RENAME TO parts_1; ALTER TABLE parts ATTACH PARTITION parts_1 DEFAULT",
    "another one in its place": "ALTER TABLE t RENAME TO aside; ALTER TABLE spare RENAME TO t",
}
TABLES = """
CREATE TABLE t (id int PRIMARY KEY, a text); CREATE TABLE spare (id int PRIMARY KEY, a text);
CREATE TABLE parts (id int PRIMARY KEY, a text) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts DEFAULT;
INSERT INTO t VALUES (1, 'a'); INSERT INTO spare VALUES (2, 'b'); INSERT INTO parts VALUES (1);
"""


@pytest.mark.parametrize("what", [*REWRITES, *REPLACEMENTS])
def test_what_is_no_more_the_table_of_the_snapshot_is_not_copied(database: Database, what: str) -> None:
    statement = {**REWRITES, **REPLACEMENTS}[what]
    name = TableName("public", "parts" if "parts" in statement else "t")
    with database.connect() as conn:
        conn.execute(TABLES)
        with (
            closing(connect(settings(database), Path("/"), replication=True)) as holder,
            closing(connect(settings(database), Path("/"))) as reader,
            snapshot.import_snapshot(reader, slot.export_slot(holder, "swapped").snapshot),
        ):
            relation = relation_of(reader, name, None)
            within = Range(TableName("public", "parts_1")) if name.name == "parts" else None
            conn.execute(statement)
            with pytest.raises(TableRewritten, match=str(name)):
                list(snapshot.read_chunks(reader, relation, row_filter=None, chunk_rows=10, within=within))
