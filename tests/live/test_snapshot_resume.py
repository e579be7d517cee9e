"""A copy that breaks off goes on: tables that are whole stay, the others come in a snapshot of their own."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc_lake.bronze.open import bronze_reader, bronze_writer
from cdc_lake.comparison.bronze_vs_source import against_source
from cdc_lake.config.project import Project
from cdc_lake.control.snapshots import copies_in_force
from cdc_lake.errors import SlotForeign
from cdc_lake.model.position import Span
from cdc_lake.model.relation import TableName
from cdc_lake.observability import failpoints as at
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.ops.inspect import inspect_row
from cdc_lake.ops.plan import plan
from cdc_lake.runtime.receive.receiver import receive
from cdc_lake.source.postgres.connection import connect
from cdc_lake.source.postgres.slot import export_slot
from cdc_lake.source.postgres.snapshot import import_snapshot
from cdc_lake.source.postgres.snapshot_visibility import SnapshotPredicate
from cdc_lake.tables.control_tables import control_tables
from cdc_lake_testing.beside import beside
from cdc_lake_testing.kills import COPYING, KILLED
from tests.bronze_replay import tables_from_bronze
from tests.conftest import Database
from tests.live.bank import BANKS, SPLIT, assert_sums_right, bank, transfers
from tests.live.kill_sources import receivers_of
from tests.live.test_receive_loop import once, project_of, tables_at_source
from tests.live.test_source_stream import ROOT, settings
from tests.seeds import seeds

pytestmark = pytest.mark.live

__all__ = ["bank"]

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))


def stopped(project: Project, when: str) -> list[str]:
    """Copy until something is told that begins so; all that was told."""
    stop, told = threading.Event(), []

    def tell(progress: ProgressEvent) -> None:
        told.append(progress.text)
        if progress.text.startswith(when):
            stop.set()

    receive(project, bronze_writer(project), once=True, stop=stop, report=tell)
    return told


def assert_as_at_source(project: Project, database: Database) -> None:
    ours, theirs = tables_from_bronze(project), tables_at_source(database)
    assert ours == {name: theirs[name] for name in ours}
    assert {name.name for name in ours} == {*BANKS}


def points(project: Project) -> dict[str, int]:
    state = bronze_reader(project).state()
    assert state is not None
    copies = copies_in_force(control_tables(project).snapshots(), state.stream, state.upto)
    assert copies is not None
    return {name: copy.position for name, copy in copies.items()}


def test_tables_that_are_whole_are_not_copied_again(
    database: Database, tmp_path: Path, bank: psycopg.Connection[Any]
) -> None:
    project = project_of(database, tmp_path, snapshot={"parallelism": 1, "chunk_rows": 50})
    stopped(project, "copied public.accounts")
    bank.execute("UPDATE accounts SET coins = coins - 1 WHERE id = 1")
    bank.execute("UPDATE vault SET coins = coins + 1 WHERE id = 1")
    bank.execute("DELETE FROM vault WHERE id = 2")
    assert [action.kind.value for action in plan(project).actions][:2] == ["resume", "snapshot"]
    told: list[str] = []
    done = once(project, lambda progress: told.append(progress.text))
    assert done.snapshot_rows == 239, "the vault alone"
    assert any(text.startswith("initial copy continues") for text in told)
    state = bronze_reader(project).state()
    assert state is not None
    assert state.epoch == 1
    where = points(project)
    assert where["public.accounts"] < where["public.vault"] == where["public.empty"]
    assert_as_at_source(project, database)
    proof = against_source(project)
    assert proof.holds
    assert {table.verdict for table in proof.tables} == {"equal"}, proof.tables


def test_rows_of_a_copy_that_broke_off_are_of_no_account(
    database: Database, tmp_path: Path, bank: psycopg.Connection[Any]
) -> None:
    project = project_of(database, tmp_path, snapshot={"parallelism": 1, "chunk_rows": 50})
    stopped(project, "copying public.vault")
    bank.execute("DELETE FROM vault WHERE id <= 120")
    assert once(project).snapshot_rows == 120
    reader = bronze_reader(project)
    events = inspect_row(
        reader, TableName("public", "vault"), {"id": "150"}, control_tables(project).snapshots()
    ).events
    assert [event.op for event in events] == ["S"]
    assert events[0].position == points(project)["public.vault"]
    assert_as_at_source(project, database)


def test_a_copy_whose_slot_is_gone_starts_a_new_stream(
    database: Database, tmp_path: Path, bank: psycopg.Connection[Any]
) -> None:
    project = project_of(database, tmp_path, snapshot=SPLIT)
    stopped(project, "copied public.accounts")
    bank.execute("SELECT pg_drop_replication_slot(%s)", [project.slot])
    assert once(project).snapshot_rows == 480
    state = bronze_reader(project).state()
    assert state is not None
    assert state.epoch == 2
    assert_as_at_source(project, database)


def test_a_copy_under_another_configuration_starts_a_new_stream(
    database: Database, tmp_path: Path, bank: psycopg.Connection[Any]
) -> None:
    del bank
    stopped(project_of(database, tmp_path, snapshot=SPLIT), "copied public.accounts")
    redacted = {"redact": [{"columns": ["public.accounts.note"], "strategy": "null"}]}
    project = project_of(database, tmp_path, snapshot=SPLIT, bronze=redacted)
    assert once(project).snapshot_rows == 480
    assert {row["note"] for row in tables_from_bronze(project)[TableName("public", "accounts")].values()} == {None}


def test_a_slot_that_was_read_meanwhile_is_not_taken_over(
    database: Database, tmp_path: Path, bank: psycopg.Connection[Any]
) -> None:
    project = project_of(database, tmp_path, snapshot=SPLIT)
    stopped(project, "copied public.accounts")
    bank.execute("UPDATE accounts SET coins = coins")
    bank.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", [project.slot])
    with pytest.raises(SlotForeign, match="read by another program or recreated"):
        once(project)


@pytest.mark.parametrize("seed", seeds(1))
def test_killed_at_every_step_under_load_the_copy_is_right_at_every_transaction(
    database: Database, tmp_path: Path, bank: psycopg.Connection[Any], seed: int
) -> None:
    print(f"seed {seed}")
    del bank
    dice = random.Random(seed)
    project = project_of(database, tmp_path, snapshot=SPLIT)
    receivers, deaths = receivers_of(project, database.password), 0
    with beside(lambda stop: transfers(database, seed, stop)):
        for name in [name for _ in range(BUDGET) for name in dice.sample(COPYING, len(COPYING))]:
            if name != at.SNAPSHOT_DONE:
                deaths += receivers.run(f"{name}:{dice.randint(1, 30 if name == at.SNAPSHOT_CHUNK else 2)}") == KILLED
        deaths += receivers.run(at.SNAPSHOT_DONE) == KILLED
        assert receivers.run() == 0
    assert receivers.run() == 0
    print(f"{deaths} kills, positions {points(project)}")
    assert deaths, "each start passes some of the steps"
    assert assert_sums_right(project) > 0
    assert_as_at_source(project, database)


def test_a_slots_snapshot_shows_exactly_the_transactions_that_end_at_or_below_its_point(
    database: Database, tmp_path: Path, bank: psycopg.Connection[Any]
) -> None:
    """Why no transaction has to be left out behind a copy's position: asked by xid, under load."""
    del bank
    project = project_of(database, tmp_path, snapshot={"mode": "none"})
    once(project)
    shown: list[tuple[int, SnapshotPredicate]] = []

    with beside(lambda stop: transfers(database, 1, stop, 0)), beside(lambda stop: transfers(database, 2, stop, 0)):
        for n in range(12):
            replication = connect(settings(database), ROOT, replication=True)
            session = connect(settings(database), ROOT)
            made = export_slot(replication, f"seen{n}")  # the one before goes when its server process does
            with import_snapshot(session, made.snapshot) as inside:
                row = inside.execute("SELECT pg_current_snapshot()::text").fetchone()
            assert row is not None
            shown.append((made.consistent.value, SnapshotPredicate.parse(str(row[0]), made.consistent.value)))
            session.close()
            replication.close()
    once(project)
    reader = bronze_reader(project)
    state = reader.state()
    assert state is not None

    commits = reader.commits(Span(1, 0, state.upto))
    assert len(commits) > 20
    assert [position for position, _ in shown] == sorted({position for position, _ in shown})
    for position, seen in shown:
        for commit in commits:
            assert commit.xid is not None
            assert seen.shows(commit.xid, commit.position) == (commit.position <= position)
