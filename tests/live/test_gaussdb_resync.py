"""Tables of the GaussDB family copied again beside their stream: placed by CSN, refused where an LSN orders it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_lake.bronze.open import bronze_reader, bronze_writer
from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.errors import CopyUnplaced
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import silent
from cdc_lake.ops.plan import plan
from cdc_lake.runtime.receive.receiver import receive
from cdc_lake.runtime.resync import resync
from cdc_lake_testing.beside import beside, until
from cdc_lake_testing.workload import Workload
from tests.bronze_replay import Tables, tables_from_bronze
from tests.live.bank import ACCOUNTS, make_bank, transfers
from tests.live.test_gaussdb_receive import SEED, assert_equal_to_source, project_of
from tests.live.test_gaussdb_workload import Kind, StandIn, stand_in
from tests.live.test_receive_loop import once, tables_at_source
from tests.live.test_resync_live import ACCOUNTS_ONLY, BOTH, course_of, said

pytestmark = pytest.mark.live

__all__ = ["stand_in"]

CSN = Kind(Style.BINARY, batch=True, by_csn=True)
LSN = Kind(Style.SERIAL)


def test_tables_are_copied_again_where_their_csn_says_while_they_are_received(
    stand_in: StandIn, tmp_path: Path
) -> None:
    project = project_of(stand_in, CSN, tmp_path)
    with stand_in.database.connect() as conn:
        workload = Workload(conn, SEED, truncates=False)
        workload.run(40)
        once(project)
        full = [table for table, rows in tables_at_source(stand_in.database).items() if rows]
        with beside(lambda stop: receive(project, bronze_writer(project), once=False, stop=stop, report=silent)):
            workload.run(20)
            state = bronze_reader(project).state()
            done = resync(project, [str(table) for table in full])
            workload.run(20)
            until(lambda: bronze_reader(project).state() != state)
    assert [table.source for table in done.tables] == [str(table) for table in full]
    once(project)
    assert_equal_to_source(project, stand_in)


@pytest.mark.parametrize("tables", [(0, 0), (0, 1)], ids=["of one table", "of two"])
def test_two_copies_of_a_quiet_server_are_parted_by_a_transaction_of_ours(
    stand_in: StandIn, tmp_path: Path, tables: tuple[int, int]
) -> None:
    project = project_of(stand_in, CSN, tmp_path)
    with stand_in.database.connect() as conn:
        Workload(conn, SEED, truncates=False).run(20)
    once(project)
    full = [str(table) for table, rows in tables_at_source(stand_in.database).items() if rows]
    first, second = (resync(project, [full[table]]).position for table in tables)
    assert first is not None
    assert second is not None
    assert int(first) < int(second)
    once(project)
    assert_equal_to_source(project, stand_in)


def test_a_table_that_comes_is_copied_one_that_goes_is_left_and_copied_anew_when_it_comes_back(
    stand_in: StandIn, tmp_path: Path
) -> None:
    one, both = (project_of(stand_in, CSN, tmp_path, source={"tables": [*some]}) for some in (ACCOUNTS_ONLY, BOTH))
    with stand_in.database.connect() as bank:
        make_bank(bank)
        once(one)
        with beside(lambda stop: transfers(stand_in.database, SEED, stop)):
            assert said(both) == [
                "public.vault added: the next start copies what was added, while the other tables continue"
            ]
            assert "public.vault" in {action.subject for action in plan(both).actions}
            assert once(both).snapshot_rows == ACCOUNTS
        once(both)
        assert said(both) == []
        assert course_of(both, "vault") == [(False, True), (True, False)]
        assert banks(tables_from_bronze(both)) == banks(tables_at_source(stand_in.database))

        told: list[str] = []
        (went,) = said(one)
        assert went.startswith("public.vault removed: not captured from the next start on")
        once(one, lambda progress: told.append(progress.text))
        assert "table public.vault is no longer captured: `source.tables` excludes it" in told
        bank.execute("DELETE FROM vault WHERE id < 50")
        once(one)
        assert course_of(one, "vault") == [(False, True), (True, True)]

        told.clear()
        with beside(
            lambda stop: receive(both, bronze_writer(both), once=False, stop=stop, report=lambda p: told.append(p.text))
        ):
            until(lambda: course_of(both, "vault") == [(False, True), (True, True), (True, False)])
            bank.execute("UPDATE vault SET coins = 1 WHERE id = 60")
        once(both)
        assert banks(tables_from_bronze(both)) == banks(tables_at_source(stand_in.database))


def test_a_table_that_comes_to_a_stream_in_lsn_order_begins_with_its_changes_and_one_that_came_back_stays_left(
    stand_in: StandIn, tmp_path: Path
) -> None:
    one, both = (project_of(stand_in, LSN, tmp_path, source={"tables": [*some]}) for some in (ACCOUNTS_ONLY, BOTH))
    told: list[str] = []
    with stand_in.database.connect() as bank:
        make_bank(bank)
        once(one)
        begins = "it starts with its changes from the next start on"
        assert said(both) == [
            f"public.vault added to a stream that is ordered by LSN: a copy would have no position in it, {begins}"
        ]
        once(both, lambda progress: told.append(progress.text))
        assert [text for text in told if "it starts with its changes from now on" in text]
        bank.execute("UPDATE vault SET coins = 1 WHERE id = 60")
        once(both)
        assert said(both) == []
        once(one)
        assert [text for text in said(both) if text.endswith("it stays as it is")]
        once(both, lambda progress: told.append(progress.text))
        assert [text for text in told if "it stays as it is" in text]


def banks(tables: Tables) -> Tables:
    """Without the partitions of a bank."""
    return {name: rows for name, rows in tables.items() if str(name) in BOTH}


def test_rows_that_went_with_a_partition_are_gone_once_the_table_is_copied_again(
    stand_in: StandIn, tmp_path: Path
) -> None:
    """DROP and EXCHANGE PARTITION send nothing."""
    project = project_of(stand_in, CSN, tmp_path, source={"tables": ["public.t"]})
    with stand_in.database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, note text) PARTITION BY RANGE (id); CREATE SCHEMA aside")
        for low in (0, 3, 6):
            conn.execute(f"CREATE TABLE aside.t_{low} PARTITION OF t FOR VALUES FROM ({low}) TO ({low + 3})")
        conn.execute("INSERT INTO t SELECT id, 'old' FROM generate_series(0, 8) AS id")
        once(project)
        before = tables_from_bronze(project)
        conn.execute("DROP TABLE aside.t_0; ALTER TABLE t DETACH PARTITION aside.t_3")
        once(project)
    assert tables_from_bronze(project) == before
    resync(project, ["public.t"])
    once(project)
    t = TableName("public", "t")
    assert (len(before[t]), len(tables_from_bronze(project)[t])) == (9, 3)
    assert tables_from_bronze(project)[t] == tables_at_source(stand_in.database)[t]


def test_a_stream_that_an_lsn_orders_has_no_place_for_a_copy(stand_in: StandIn, tmp_path: Path) -> None:
    project = project_of(stand_in, LSN, tmp_path)
    with stand_in.database.connect() as conn:
        Workload(conn, SEED).run(20)
    once(project)
    table = next(str(table) for table, rows in tables_at_source(stand_in.database).items() if rows)
    with pytest.raises(CopyUnplaced, match="ordered by LSN"):
        resync(project, [table])
    assert_equal_to_source(project, stand_in)
