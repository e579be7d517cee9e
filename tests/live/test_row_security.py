"""Policies of row security at a real server: what they hide is never left out unseen, by no copy and no comparison."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_lake.comparison.bronze_vs_source import against_source
from cdc_lake.errors import RowsHidden
from cdc_lake.ops.check.runner import check, dba_sql
from tests.conftest import Database
from tests.live.test_receive_loop import bronze_rows, once, project_of

pytestmark = pytest.mark.live

ADMIN = """
CREATE TABLE seen (id int PRIMARY KEY);
INSERT INTO seen SELECT generate_series(1, 3);
ALTER TABLE seen ENABLE ROW LEVEL SECURITY;
CREATE POLICY ours ON seen USING (id < 2);
CREATE PUBLICATION shop FOR TABLE seen;
"""


def test_a_table_whose_policies_hide_rows_is_not_copied_in_part(database: Database, tmp_path: Path) -> None:
    project = project_of(database, tmp_path, source={"publication": "shop", "tables": ["public.seen"]})
    with database.admin() as admin:
        admin.execute(ADMIN)
        admin.execute(f'GRANT SELECT ON seen TO "{database.user}"'.encode())
        [line] = [line for line in check(project) if line.code == RowsHidden.code]
        assert not line.ok
        assert "public.seen" in line.text
        with pytest.raises(RowsHidden):
            once(project)
        assert f'ALTER ROLE "{database.user}" BYPASSRLS;' in dba_sql(project)
        admin.execute(dba_sql(project).encode())
        try:
            assert not [line for line in check(project) if line.code == RowsHidden.code]
            once(project)
            admin.execute("INSERT INTO seen VALUES (4)")
            once(project)
            assert sorted(row["op"] for row in bronze_rows(project) if row["op"] in "SI") == ["I", "S", "S", "S"]
            assert against_source(project).holds
            admin.execute(f'ALTER ROLE "{database.user}" NOBYPASSRLS'.encode())
            with pytest.raises(RowsHidden):
                against_source(project)
        finally:
            admin.execute(f'ALTER ROLE "{database.user}" NOBYPASSRLS'.encode())
