"""Names of tables of the GaussDB family that come to mean other tables between two runs of the receiver."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.errors import CopyUnplaced
from cdc_lake.observability.events import ProgressEvent
from cdc_lake_testing.beside import streams, until
from tests.live.test_gaussdb_receive import project_of
from tests.live.test_gaussdb_workload import Kind, StandIn, stand_in
from tests.live.test_receive_loop import once
from tests.live.test_tables_swapped import SWAP, assert_as_at_source, running

pytestmark = pytest.mark.live

__all__ = ["stand_in"]


@pytest.mark.parametrize("pending", [False, True], ids=["quiet", "pending"])
def test_a_swap_of_names_is_followed_where_a_csn_orders_the_stream(
    stand_in: StandIn, tmp_path: Path, *, pending: bool
) -> None:
    project = project_of(stand_in, Kind(Style.BINARY, batch=True, by_csn=True), tmp_path)
    with stand_in.database.connect() as conn:
        for name in ("orders", "orders_new", "gone", "kept"):
            conn.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, note text)")
            conn.execute(f"INSERT INTO {name} VALUES (1, '{name}')")
        once(project)
        if pending:
            conn.execute("UPDATE orders SET note = 'pending'; UPDATE gone SET note = 'its last'")
        conn.execute(SWAP)
        conn.execute("ALTER TABLE kept RENAME TO other; DROP TABLE gone")
        conn.execute("INSERT INTO orders VALUES (2, 'behind the swap'); INSERT INTO orders_old VALUES (3, 'aside')")
        conn.execute("INSERT INTO other VALUES (5, 'by its new name')")
        once(project)
        conn.execute("INSERT INTO orders VALUES (4, 'later'); INSERT INTO other VALUES (6, 'goes on')")
        once(project)
    assert_as_at_source(project, stand_in.database, "orders_new", "gone", "kept")


def test_where_an_lsn_orders_the_stream_a_swapped_table_is_left_and_said(stand_in: StandIn, tmp_path: Path) -> None:
    project, told = project_of(stand_in, Kind(Style.SERIAL), tmp_path), list[ProgressEvent]()
    with stand_in.database.connect() as conn:
        for name in ("orders", "orders_new"):
            conn.execute(
                f"CREATE TABLE {name} (id int PRIMARY KEY, note text); INSERT INTO {name} VALUES (1, '{name}')"
            )
        once(project)
        conn.execute(SWAP)
        once(project, told.append)
    said = [one.text for one in told if one.facts.get("code") == CopyUnplaced.code]
    assert any("table public.orders was added" in text and "stays as it is" in text for text in said)


def test_a_receiver_that_runs_follows_a_swap_by_itself(stand_in: StandIn, tmp_path: Path) -> None:
    project, told = project_of(stand_in, Kind(Style.BINARY, batch=True, by_csn=True), tmp_path), list[ProgressEvent]()
    with stand_in.database.connect() as conn:
        for name in ("orders", "orders_new"):
            conn.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, note text)")
            conn.execute(f"INSERT INTO {name} VALUES (1, '{name}')")
        with running(project, told):
            until(lambda: streams(told))
            conn.execute("UPDATE orders SET note = 'before'")
            conn.execute(SWAP)
            conn.execute("INSERT INTO orders VALUES (2, 'behind'); INSERT INTO orders_old VALUES (2, 'aside')")
            until(
                lambda: any("copied 2 tables while the stream continued" in one.text for one in told),
                "no copies were made",
            )
        once(project)
    assert "SRC252" in {one.facts.get("code") for one in told}
    assert_as_at_source(project, stand_in.database, "orders_new")
