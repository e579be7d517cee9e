"""Tables of the GaussDB family copied again beside their stream: placed by CSN, refused where an LSN orders it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_lake.bronze.open import bronze_reader, bronze_writer
from cdc_lake.decode.mppdb.records import Style
from cdc_lake.errors import CopyUnplaced
from cdc_lake.observe.progress import silent
from cdc_lake.pipeline.receive import receive
from cdc_lake.pipeline.resync import resync
from cdc_lake.testing.beside import beside, until
from cdc_lake.testing.workload import Workload
from tests.live.test_gaussdb_receive import SEED, assert_equal_to_source, project_of
from tests.live.test_gaussdb_workload import Kind, StandIn, stand_in
from tests.live.test_receive_loop import once, tables_at_source

pytestmark = pytest.mark.live

__all__ = ["stand_in"]

CSN = Kind(Style.BINARY, batch=True, by_csn=True)
LSN = Kind(Style.SERIAL)


def test_tables_are_copied_again_where_their_csn_says_while_they_are_received(
    stand_in: StandIn, tmp_path: Path
) -> None:
    print("CDC_LAKE_SEED =", SEED)
    project = project_of(stand_in, CSN, tmp_path)
    with stand_in.database.connect() as conn:
        workload = Workload(conn, SEED, truncates=False)
        workload.run(40)
        once(project)
        full = [table for table, rows in tables_at_source(stand_in.database).items() if rows]
        with beside(lambda stop: receive(project, bronze_writer(project), once=False, stop=stop, tell=silent)):
            workload.run(20)
            state = bronze_reader(project).state()
            done = resync(project, [str(table) for table in full])
            workload.run(20)
            until(lambda: bronze_reader(project).state() != state)
    assert [table.source for table in done.tables] == [str(table) for table in full]
    once(project)
    assert_equal_to_source(project, stand_in)


def test_two_copies_at_one_csn_are_not_taken_for_one(stand_in: StandIn, tmp_path: Path) -> None:
    project = project_of(stand_in, CSN, tmp_path)
    with stand_in.database.connect() as conn:
        Workload(conn, SEED, truncates=False).run(20)
    once(project)
    table = next(str(table) for table, rows in tables_at_source(stand_in.database).items() if rows)
    resync(project, [table])
    with pytest.raises(CopyUnplaced, match="bronze has a copy that was begun at CSN"):
        resync(project, [table])
    assert_equal_to_source(project, stand_in)


def test_a_stream_that_an_lsn_orders_has_no_place_for_a_copy(stand_in: StandIn, tmp_path: Path) -> None:
    project = project_of(stand_in, LSN, tmp_path)
    with stand_in.database.connect() as conn:
        Workload(conn, SEED).run(20)
    once(project)
    table = next(str(table) for table, rows in tables_at_source(stand_in.database).items() if rows)
    with pytest.raises(CopyUnplaced, match="ordered by LSN"):
        resync(project, [table])
    assert_equal_to_source(project, stand_in)
