"""The initial copy by several readers: tables side by side and in parts, all in one snapshot, while others write."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.errors import TableLocked
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.source.postgres.catalog import relation_of
from cdc_lake.source.postgres.connection import Session, connect
from cdc_lake.source.postgres.snapshot import Range, ranges_of, read_chunks
from cdc_lake.tables.control_tables import control_tables
from cdc_lake_testing.beside import beside
from tests.bronze_replay import bronze_rows, tables_from_bronze
from tests.conftest import Database
from tests.live.bank import ACCOUNTS, BANKS, SPLIT, assert_sums_right, make_bank, transfers
from tests.live.test_receive_loop import once, project_of, tables_at_source
from tests.live.test_source_stream import ROOT, settings
from tests.seeds import seeds

pytestmark = pytest.mark.live


@pytest.mark.parametrize("seed", seeds(1))
def test_coins_are_right_at_every_transaction_while_tables_are_copied_in_parts(
    database: Database, tmp_path: Path, seed: int
) -> None:
    print(f"seed {seed}")
    project = project_of(database, tmp_path, snapshot=SPLIT)
    readers: set[int] = set()
    with database.connect() as connection:
        make_bank(connection)

        def look(progress: ProgressEvent) -> None:
            if progress.text.startswith("copying"):
                found = connection.execute(
                    "SELECT pid FROM pg_stat_activity WHERE application_name LIKE %s AND query LIKE 'COPY%%'",
                    [f"cdc_lake {project.name}%"],
                ).fetchall()
                readers.update(pid for (pid,) in found)
                time.sleep(0.01)

        with beside(lambda stop: transfers(database, seed, stop)) as moving:
            copied = once(project, look)
        assert moving.result() > 10
        once(project)
    assert copied.snapshot_rows == 2 * ACCOUNTS
    assert len(readers) == SPLIT["parallelism"]
    assert assert_sums_right(project) > 10
    ours, theirs = tables_from_bronze(project), tables_at_source(database)
    assert ours == {name: theirs[name] for name in ours}
    assert {name.name for name in ours} == {*BANKS}
    (row,) = [row for row in control_tables(project).snapshots() if row.state == "complete"]
    assert {(t["relation"], t["rows"]) for t in json.loads(row.tables)} == {
        ("public.accounts", ACCOUNTS), ("public.vault", ACCOUNTS), ("public.empty", 0),
    }  # fmt: skip
    assert {r["relation"] for r in bronze_rows(project) if r["op"] == "R"} >= {"public.empty"}


@pytest.fixture
def session(database: Database) -> Any:
    opened = connect(settings(database), ROOT)
    opened.execute("SET search_path TO public")  # where tests make their tables
    yield opened
    opened.close()


def parts_of(session: Session, name: str, rows: int = 10) -> list[Range]:
    return list(ranges_of(session, relation_of(session, TableName("public", name), None), rows))


def test_a_table_is_cut_by_its_blocks_and_a_partitioned_one_by_its_partitions(session: Session) -> None:
    make_bank(session)
    session.execute("ANALYZE accounts, vault")
    plain = parts_of(session, "accounts")
    assert len(plain) > 3
    assert {part.stored.name for part in plain} == {"accounts"}
    assert [part.first for part in plain[1:]] == [part.until for part in plain[:-1]]
    assert (plain[0].first, plain[-1].until) == (0, None)
    assert {part.stored.name for part in parts_of(session, "vault")} == {"vault_low", "vault_rest"}
    assert parts_of(session, "accounts", rows=100_000) == []
    assert parts_of(session, "empty") == []


@pytest.mark.parametrize("row_filter", [None, "id % 3 = 0 OR coins < 0"])
def test_parts_together_are_the_table(session: Session, row_filter: str | None) -> None:
    make_bank(session)
    for name in BANKS:
        relation = relation_of(session, TableName("public", name), None)
        with session.transaction():
            found = [
                int(row[0])
                for part in parts_of(session, name)
                for chunk in read_chunks(session, relation, row_filter=row_filter, chunk_rows=9, within=part)
                for row in chunk.to_pylist()
            ]
        assert sorted(found) == [n for n in range(1, ACCOUNTS + 1) if row_filter is None or n % 3 == 0]


def test_a_partitioned_table_whose_partitions_may_not_be_read_is_read_as_a_whole(
    session: Session, database: Database
) -> None:
    make_bank(session)
    assert parts_of(session, "vault")
    with database.admin() as admin:
        admin.execute("ALTER TABLE vault_low OWNER TO CURRENT_USER")
    assert parts_of(session, "vault") == []


def test_rows_that_came_before_the_snapshot_into_new_blocks_are_in_the_last_part(session: Session) -> None:
    make_bank(session)
    plain = parts_of(session, "accounts")
    session.execute("INSERT INTO accounts SELECT n, 0, repeat('y', 400) FROM generate_series(1001, 1100) AS n")
    relation = relation_of(session, TableName("public", "accounts"), None)
    with session.transaction():
        last = list(read_chunks(session, relation, row_filter=None, chunk_rows=1000, within=plain[-1]))
    assert {str(n) for n in range(1001, 1101)} <= {row[0] for chunk in last for row in chunk.to_pylist()}


def test_a_part_that_nobody_may_lock_ends_the_copy_instead_of_waiting_for_itself(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ALTER TABLE waits for the first reader, and the second one would wait for the ALTER TABLE."""
    monkeypatch.setattr("cdc_lake.source.postgres.snapshot.LOCK_WAIT", "100ms")
    project = project_of(database, tmp_path, snapshot=SPLIT)
    with database.connect() as connection, database.connect(autocommit=False) as other:
        make_bank(connection)

        def lock(progress: ProgressEvent) -> None:
            if progress.text.startswith("initial copy"):
                other.execute("LOCK TABLE accounts IN ACCESS EXCLUSIVE MODE")

        with pytest.raises(TableLocked, match="lock timeout"):
            once(project, lock)
        other.rollback()
    assert once(project).snapshot_rows == 2 * ACCOUNTS
