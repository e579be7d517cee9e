"""`inspect chain --against source`: bronze set beside the server's rows and its slot, and what it must find."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc_lake.bronze.contract import SCHEMA
from cdc_lake.bronze.delta_table import DeltaBronzeTable
from cdc_lake.bronze.open import bronze_writer
from cdc_lake.comparison.bronze_vs_source import against_source
from cdc_lake_testing.workload import Workload
from tests.conftest import Database
from tests.live.test_receive_loop import once, project_of

pytestmark = pytest.mark.live
SEED = 11


def rob(table: DeltaBronzeTable, relation: str) -> None:
    """Take one copied row of a source table away."""
    assert table.refresh()
    files, state = table.files(), table.state()
    assert state is not None
    for path in files.select(op="S", relations=[relation]):
        rows = files.read([path], SCHEMA.names)
        if relation in rows["relation"].unique().to_pylist():
            table.exchange([path], [table.write(rows.slice(0, rows.num_rows - 1))], state, gone=True)
            return


def test_bronze_is_its_source_and_what_is_lost_behind_the_chain_is_found(database: Database, tmp_path: Path) -> None:
    project = project_of(database, tmp_path)
    with database.connect() as conn:
        workload = Workload(conn, SEED)
        workload.create_tables()
        workload.run(80)
        once(project)
        workload.run(150)
        behind = against_source(project)
        assert behind.holds
        assert "inconclusive" in {t.verdict for t in behind.tables}, "bronze is behind the source"
        once(project)
        found = against_source(project)
        assert (found.holds, found.forgotten) == (True, False)
        assert {t.verdict for t in found.tables} == {"equal"}
        assert len(found.tables) == 6
        assert sum(t.source_rows for t in found.tables) == sum(t.bronze_rows for t in found.tables) > 50
        # a row of the copy is not part of the chain: only the source knows it was there
        rob(DeltaBronzeTable(project.bronze), "public.w_full")
        robbed = against_source(project)
        assert robbed.chain.holds
        assert not robbed.holds
        (wrong,) = [t for t in robbed.tables if t.verdict == "different"]
        assert wrong.table == "public.w_full"


def wait_until_free(conn: psycopg.Connection[Any], slot: str) -> None:
    """Wait until the server has noticed that the receiver is gone."""
    ends = time.monotonic() + 60
    query = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active"
    while conn.execute(query, [slot]).fetchone():
        assert time.monotonic() < ends, "the slot stays active"
        time.sleep(0.02)


def test_a_slot_that_forgot_more_than_bronze_holds_is_found(database: Database, tmp_path: Path) -> None:
    project = project_of(database, tmp_path)
    with database.connect() as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
        once(project)
        conn.execute("INSERT INTO t VALUES (1)")
        wait_until_free(conn, project.slot)
        conn.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", [project.slot])
    found = against_source(project)
    assert (found.holds, found.forgotten, found.chain.holds) == (False, True, True)
    assert bronze_writer(project).state() is not None


def test_a_table_without_a_key_is_its_source_where_each_row_is_there_as_often(
    database: Database, tmp_path: Path
) -> None:
    project = project_of(database, tmp_path)
    with database.connect() as conn:
        conn.execute("CREATE TABLE bag (a int, b text)")
        conn.execute("ALTER TABLE bag REPLICA IDENTITY FULL")
        conn.execute("INSERT INTO bag VALUES (1, 'x'), (1, 'x'), (1, NULL)")
        once(project)
        conn.execute("DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag)")
        conn.execute("INSERT INTO bag SELECT * FROM bag")
        conn.execute("UPDATE bag SET a = 2 WHERE b IS NULL")
        once(project)
        (bag,) = against_source(project).tables
        assert (bag.verdict, bag.source_rows, bag.bronze_rows) == ("equal", 4, 4)
        rob(DeltaBronzeTable(project.bronze), "public.bag")
        (robbed,) = against_source(project).tables
        assert robbed.verdict == "different"
