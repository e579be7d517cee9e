"""What the family's catalog says of columns: old rows of added ones, renames. On the stand-in; `tests/live/opengauss`
asks a real server the same.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.model.relation import TableName
from cdc_lake.source.gaussdb.wire.session import connect
from tests.live.added_columns import CHANGES, WORDS, altered, check_old_rows, layouts, words
from tests.live.test_gaussdb_receive import project_of
from tests.live.test_gaussdb_workload import Kind, StandIn, stand_in
from tests.live.test_receive_loop import once

pytestmark = pytest.mark.live

__all__ = ["stand_in"]

T = TableName("public", "t")


def test_the_catalog_tells_what_old_rows_show(stand_in: StandIn) -> None:
    with connect(stand_in.target(by_csn=False)) as session:
        check_old_rows(session, TableName("public", "old_rows"))


@pytest.mark.parametrize("kind", [Kind(Style.BINARY, batch=True), Kind(Style.SERIAL)], ids=str)
def test_layouts_know_old_rows_and_renames(stand_in: StandIn, kind: Kind, tmp_path: Path) -> None:
    project = project_of(stand_in, kind, tmp_path)
    with stand_in.database.connect() as conn:
        altered(conn.execute, partial(once, project), "t", "a text", CHANGES)
    found = layouts(project, T)
    assert [words(*pair) for pair in pairwise(found)] == WORDS


def test_a_default_of_a_redacted_column_is_redacted_too(stand_in: StandIn, tmp_path: Path) -> None:
    redact = [
        {"columns": ["public.t.secret"], "strategy": "sha256"},
        {"columns": ["public.t.none"], "strategy": "null"},
    ]
    bronze = {"redact": redact, "redact_key": "k" * 32}
    project = project_of(stand_in, Kind(Style.BINARY, batch=True), tmp_path, bronze=bronze)
    again = "ADD COLUMN secret text DEFAULT 'canary', ADD COLUMN none text DEFAULT 'canary'"
    changes = ["DROP COLUMN secret, DROP COLUMN none", again]
    with stand_in.database.connect() as conn:
        altered(conn.execute, partial(once, project), "t", "secret text, none text", changes)
    found = {c.name: c for c in layouts(project, T)[-1].columns}
    secret = found["secret"].missing
    assert secret is not None
    assert len(secret.text or "") == 64
    assert found["none"].missing is None or found["none"].missing.text is None
    assert not any(b"canary" in file.read_bytes() for file in (tmp_path / "lake").rglob("*.parquet"))
