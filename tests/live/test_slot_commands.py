"""The verbs of `slot` on a real server: what is there, and nothing that loses a change unseen."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.cli.commands.slots import advanced_text, dropped_text, list_text, made_text
from cdc_lake.config.project import Project
from cdc_lake.errors import (
    AdvancePastBronze,
    NoStream,
    OtherSource,
    SlotActive,
    SlotInvalidated,
    SlotMissing,
    SlotOfOtherDatabase,
    SlotOfOtherPlugin,
    WalGone,
)
from cdc_lake.model.position import Lsn
from cdc_lake.ops.check.runner import check
from cdc_lake.ops.plan import plan
from cdc_lake.ops.slots import advance_slot, create_slot, drop_slot, inspect_slot, list_slots
from cdc_lake.runtime.receive.loop import ReceiveSummary
from cdc_lake.source.base import useless
from cdc_lake.source.postgres import slot
from cdc_lake_testing.beside import beside, streams, until
from tests.conftest import Database, drop_database, make_database, start_server
from tests.live.test_receive_loop import assert_equal_to_source, once, running
from tests.pipeline_file import with_orders

pytestmark = pytest.mark.live


@pytest.fixture
def project(database: Database, tmp_path: Path) -> Project:
    return with_orders(database, tmp_path)


def confirmed(conn: psycopg.Connection, project: Project) -> int:
    row = conn.execute(
        "SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots WHERE slot_name = %s", [project.slot]
    ).fetchone()
    assert row is not None
    return int(row[0])


def end(conn: psycopg.Connection) -> int:
    row = conn.execute("SELECT (pg_current_wal_lsn() - '0/0')::bigint").fetchone()
    assert row is not None
    return int(row[0])


def test_a_slot_made_beforehand_keeps_every_change_for_the_first_run(database: Database, project: Project) -> None:
    made = create_slot(project)
    assert (made.created, made.rows) == (True, 100)
    assert "with a snapshot of 100 rows" in made_text(made)
    with database.connect() as conn:
        conn.execute("INSERT INTO orders VALUES (101); DELETE FROM orders WHERE id = 1")
        again = create_slot(project)
        assert (again.created, again.rows, again.position) == (False, 0, made.position)
        assert "already exists" in made_text(again)
        assert once(project).transactions == 1
        assert_equal_to_source(project, database)


def test_every_slot_of_the_server_is_listed_and_ones_own_is_marked(database: Database, project: Project) -> None:
    create_slot(project)
    other = make_database(database.server)
    try:
        with other.connect() as conn:
            conn.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [other.name])
            found = list_slots(project)
            by_name = {one.name: one for one in found.slots}
            mine, theirs = by_name[project.slot], by_name[other.name]
            assert (mine.own, mine.plugin, mine.database, mine.state) == (True, "pgoutput", database.name, "idle")
            assert (theirs.own, theirs.database) == (False, other.name)
            assert mine.retained_bytes is not None
            assert mine.safe_bytes is None, "no limit on the WAL retained"
            text = list_text(found)
            assert any(line.startswith("*") and project.slot in line for line in text.splitlines()), text
            told = drop_slot(project, other.name)
            assert (told.own, told.done) == (False, False)
            assert "add --yes" in dropped_text(told)
            drop_slot(project, other.name, yes=True)
            assert other.name not in {one.name for one in list_slots(project).slots}
    finally:
        drop_database(other)


def test_a_slot_goes_as_far_as_bronze_and_never_further(database: Database, project: Project) -> None:
    with pytest.raises(NoStream):
        advance_slot(project)
    once(project)
    with database.connect() as conn:
        conn.execute("INSERT INTO orders VALUES (101)")
        state = bronze_reader(project).state()
        assert state is not None
        with pytest.raises(AdvancePastBronze, match=r"1 bytes would be missing") as past:
            advance_slot(project, state.confirm + 1)
        assert past.value.exit_status == 1
        with pytest.raises(AdvancePastBronze):
            advance_slot(project, end(conn))
        still = advance_slot(project)
        assert (still.bytes, confirmed(conn, project)) == (0, state.confirm)
        assert "already" in advanced_text(still)
        assert once(project).transactions == 1
        assert_equal_to_source(project, database)


def settled(project: Project) -> bool:
    """Whether the server has heard all that the last run confirmed, and knows that nobody reads the slot."""
    found = inspect_slot(project)
    return found.slot.state != "active" and found.bronze is not None and (found.bronze.unconfirmed or 0) <= 0


def receiver_beside(
    database: Database, project: Project, monkeypatch: pytest.MonkeyPatch, *modules: str
) -> list[ReceiveSummary]:
    """Have a receiver land and confirm one more row whenever one of the modules looks the slot up, just before;
    its runs.
    """
    runs: list[ReceiveSummary] = []
    under_way = False

    def wrapped(look: Callable[..., Any]) -> Callable[..., Any]:
        def looked(*given: Any) -> Any:
            nonlocal under_way
            if not under_way:
                under_way = True
                with database.connect() as conn:
                    conn.execute("INSERT INTO orders SELECT max(id) + 1 FROM orders")
                runs.append(once(project))
                until(lambda: settled(project), "the server heard what was confirmed")
                under_way = False
            return look(*given)

        return looked

    # all are imported before the first is replaced: who imports from another one would keep what is put there
    for module in [importlib.import_module(name) for name in modules]:
        monkeypatch.setattr(module, "find_slot", wrapped(module.find_slot))
    return runs


def test_a_receiver_that_lands_while_a_verb_looks_takes_nothing_away(
    database: Database, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    once(project)
    runs = receiver_beside(database, project, monkeypatch, "cdc_lake.source.postgres.slot")
    assert advance_slot(project).bytes == 0
    assert any("resume slot" in action.text for action in plan(project).actions)
    assert [line for line in check(project) if line.subject == "slot" and line.ok is False] == []
    assert len(runs) >= 3
    assert all(run.transactions == 1 for run in runs)


def test_a_slot_that_fell_back_is_brought_to_where_bronze_is(database: Database, project: Project) -> None:
    """As after a crash of the server, which saves what was confirmed now and then only."""
    once(project)
    with database.connect() as conn:
        before = confirmed(conn, project)
        conn.execute("SELECT pg_copy_logical_replication_slot(%s, 'older')", [project.slot])
        conn.execute("INSERT INTO orders VALUES (101)")
        once(project)
        state = bronze_reader(project).state()
        assert state is not None
        conn.execute("SELECT pg_drop_replication_slot(%s)", [project.slot])
        conn.execute("SELECT pg_copy_logical_replication_slot('older', %s)", [project.slot])
        conn.execute("SELECT pg_drop_replication_slot('older')")
        halfway = advance_slot(project, before)
        assert (halfway.bytes, confirmed(conn, project)) == (0, before)
        done = advance_slot(project)
        assert done.bytes > 0
        assert Lsn.parse(done.position).value == confirmed(conn, project) <= state.confirm
        conn.execute("INSERT INTO orders VALUES (102)")
        once(project)
        assert_equal_to_source(project, database)


def test_advancing_asks_first_whether_the_server_is_the_one_that_bronze_was_fed_from(
    database: Database, project: Project
) -> None:
    once(project)
    other = make_database(database.server)
    try:
        source = project.pipeline.source.model_copy(update={"database": other.name})
        moved = Project(project.pipeline.model_copy(update={"source": source}), project.file, project.root)
        with pytest.raises(OtherSource):
            advance_slot(moved)
    finally:
        drop_database(other)


@pytest.mark.obeys("SRC213")
def test_a_drop_says_what_is_lost_and_waits_for_who_reads(database: Database, project: Project) -> None:
    with pytest.raises(SlotMissing, match="does not exist") as absent:
        drop_slot(project)
    assert "slot list" in absent.value.remedy
    once(project)
    with database.connect() as conn:
        conn.execute("INSERT INTO orders VALUES (101)")
    told = drop_slot(project)
    assert (told.own, told.done) == (True, False)
    assert "all changes after" in told.lost
    with running(project, said := []):
        until(lambda: streams(said))
        with pytest.raises(SlotActive) as active:
            drop_slot(project, yes=True)
        assert "cdc-lake slot drop --yes --wait" in active.value.remedy
        with pytest.raises(SlotActive, match=r"still being read after 0\.3 s"):
            drop_slot(project, yes=True, wait=0.3)
    assert project.slot in {one.name for one in list_slots(project).slots}

    with ExitStack() as dropping, database.admin() as admin:
        with running(project, said := []):
            until(lambda: streams(said))
            done = dropping.enter_context(beside(lambda _: drop_slot(project, yes=True, wait=60).done))
            until(lambda: waits(admin), "it waits for the reader")
            assert not done.done()
        assert done.result(30)
    assert not [one for one in list_slots(project).slots if one.own]
    with pytest.raises(SlotMissing):
        once(project)


def waits(admin: psycopg.Connection) -> bool:
    rows = admin.execute("SELECT query FROM pg_stat_activity WHERE query LIKE 'DROP_REPLICATION_SLOT%' AND pid <> 0")
    return bool(rows.fetchall())


def test_each_reason_to_refuse_a_slot_is_its_own_error(database: Database, project: Project) -> None:
    once(project)
    with database.connect() as conn:
        facts = slot.find_slot(conn, project.slot)
    assert facts is not None
    held = bronze_reader(project).state()
    assert held is not None
    fields = {name: getattr(facts, name) for name in facts.__slots__}

    def check(**changed: object) -> None:
        slot.check_slot(slot.SlotFacts(**{**fields, **changed}), project.slot, database.name, held.confirm)

    check()
    for error, changed in (
        (SlotOfOtherPlugin, {"plugin": "test_decoding"}),
        (SlotOfOtherDatabase, {"database": "elsewhere"}),
        (WalGone, {"wal_status": "lost"}),
        (WalGone, {"invalidation": "wal_removed"}),
        (SlotInvalidated, {"invalidation": "idle_timeout"}),
        (SlotInvalidated, {"invalidation": "rows_removed"}),
        (SlotInvalidated, {"invalidation": "wal_level_insufficient"}),
        (SlotInvalidated, {"confirmed": None}),
    ):
        with pytest.raises(error) as caught:
            check(**changed)
        assert type(caught.value) is error


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("idle_timeout", "idle_replication_slot_timeout"),
        ("rows_removed", "hot_standby_feedback = on"),
        ("wal_level_insufficient", "wal_level = logical"),
    ],
)
def test_each_reason_of_the_server_has_its_remedy(reason: str, remedy: str) -> None:
    assert remedy in useless("s", reason, "0/0").remedy


def test_a_slot_that_nobody_read_for_too_long_is_told() -> None:
    resting = start_server(version=18, settings={"idle_replication_slot_timeout": "1s"})
    try:
        with psycopg.connect(resting.dsn(), autocommit=True) as admin:
            admin.execute("SELECT pg_create_logical_replication_slot('late', 'pgoutput')")
            until(lambda: given_up(admin), "the server invalidates it")
            found = slot.find_slot(admin, "late")
            with pytest.raises(SlotInvalidated, match="idle_timeout") as told:
                slot.check_slot(found, "late", "postgres", end(admin))
            assert "idle_replication_slot_timeout" in told.value.remedy
            with pytest.raises(SlotInvalidated):
                slot.advance_slot(admin, "late", Lsn(end(admin)))
    finally:
        resting.remove()


def given_up(conn: psycopg.Connection) -> bool:
    """Whether a checkpoint, which looks for such slots, made it so."""
    conn.execute("SELECT pg_switch_wal(); CHECKPOINT")
    found = slot.find_slot(conn, "late")
    return found is not None and found.is_lost


def test_a_slot_that_was_given_up_is_told_also_by_the_attempt_to_read_it() -> None:
    """The facts may be older than the server's decision."""
    little = start_server(settings={"max_slot_wal_keep_size": "1MB"})
    try:
        with psycopg.connect(little.dsn(), autocommit=True) as admin:
            admin.execute("SELECT pg_create_logical_replication_slot('late', 'pgoutput')")
            for _ in range(3):
                admin.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000)); SELECT pg_switch_wal()")
            admin.execute("CHECKPOINT")
            with pytest.raises(SlotInvalidated):
                slot.advance_slot(admin, "late", Lsn(end(admin)))
            found = slot.find_slot(admin, "late")
            assert found is not None
            assert found.is_lost
            assert found.safe is None
    finally:
        little.remove()
