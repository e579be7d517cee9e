"""Old rows of added columns, on the stand-in; `tests/live/opengauss` asks a real server the same."""

from __future__ import annotations

import pytest

from cdc_lake.model.relation import TableName
from cdc_lake.source.wire.connect import connect
from tests.live.old_rows import check_old_rows
from tests.live.test_gaussdb_workload import StandIn, stand_in

pytestmark = pytest.mark.live

__all__ = ["stand_in"]


def test_the_catalog_tells_what_old_rows_show(stand_in: StandIn) -> None:
    with connect(stand_in.target(by_csn=False)) as session:
        check_old_rows(session, TableName("public", "old_rows"))
