"""The family's side of a comparison: its snapshot, its rows, and what the slot still has; nothing is confirmed by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.config.project import Project
from cdc_lake.connectors.base import all_rows
from cdc_lake.connectors.gaussdb.comparison import family_side
from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.model.relation import TableName
from cdc_lake.runtime.apply.snapshot_alignment import point
from cdc_lake.source.gaussdb.slot import find_slot
from cdc_lake.source.gaussdb.wire.session import connect
from cdc_lake_testing.workload import Workload
from tests.live.test_gaussdb_receive import project_of
from tests.live.test_gaussdb_workload import Kind, StandIn, stand_in
from tests.live.test_receive_loop import once, tables_at_source
from tests.seeds import one_seed

pytestmark = pytest.mark.live

__all__ = ["stand_in"]

SEED = one_seed()
KINDS = [Kind(Style.BINARY, batch=True), Kind(Style.JSON, by_csn=True), Kind(Style.SERIAL)]
ITEMS, PAIRS = TableName("public", "w_items"), TableName("public", "w_pairs")


def confirmed(stand_in: StandIn, kind: Kind, project: Project) -> Any:
    session = connect(stand_in.target(by_csn=kind.by_csn))
    slot = find_slot(session, project.slot)
    session.close()
    assert slot is not None
    return slot.confirmed


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.slot)
def test_what_bronze_lacks_is_found_in_the_slot_and_left_there(stand_in: StandIn, kind: Kind, tmp_path: Path) -> None:
    print("CDC_LAKE_SEED =", SEED)
    project = project_of(stand_in, kind, tmp_path)
    bronze = BronzeReader(project.bronze)
    with stand_in.database.connect() as conn:
        workload = Workload(conn, SEED, truncates=False)
        workload.run(20)
        once(project)
        before = confirmed(stand_in, kind, project)
        conn.execute("DELETE FROM w_items WHERE id = 77; INSERT INTO w_items (id) VALUES (77)")
        state = bronze.state()
        assert state is not None
        with family_side(project, state) as side, side.snapshot([ITEMS, PAIRS]) as shown:
            conn.execute("UPDATE w_items SET name = 'later' WHERE id = 77")
            near = point(bronze, shown, state.upto, lambda after: side.ahead(shown, after))
            published = {one.table: one for one in side.captured_tables()}
            rows = all_rows(side, side.relation_of(published[ITEMS]), published[ITEMS]).to_pylist()
        assert near.complete
        waiting = near.gap(ITEMS, state.upto)
        assert waiting is not None
        assert waiting.reason == "the source has transactions that bronze does not"
        assert near.gap(PAIRS, state.upto) is None, "nothing is waiting for this table"
        assert {row["id"]: row["name"] for row in rows}["77"] is None, "what came after the snapshot is not shown"
        assert confirmed(stand_in, kind, project) == before
        once(project)
        state = bronze.state()
        assert state is not None
        with family_side(project, state) as side, side.snapshot([ITEMS]) as shown:
            near = point(bronze, shown, state.upto, lambda after: side.ahead(shown, after))
            rows = all_rows(side, side.relation_of(published[ITEMS]), published[ITEMS]).to_pylist()
        assert near.gap(ITEMS, state.upto) is None
        assert {(row["id"],): row for row in rows} == tables_at_source(stand_in.database)[ITEMS]
