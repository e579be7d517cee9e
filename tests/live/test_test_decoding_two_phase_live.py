"""Prepared transactions by test_decoding: parked from their PREPARE on, by stream and by SQL functions, as by pgoutput."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.connectors.factory import source_view
from cdc_lake.connectors.postgres import snapshot as postgres_start
from cdc_lake.errors import SlotForeign, SlotNotTwoPhase, SlotTwoPhase
from cdc_lake.model.position import Lsn
from cdc_lake.observability import failpoints as at
from cdc_lake.ops.check.runner import check
from cdc_lake.ops.status import status
from cdc_lake.runtime.receive.lag import list_prepared
from cdc_lake.runtime.restart import restart
from cdc_lake.source.postgres import slot, snapshot
from cdc_lake.source.postgres.catalog import takes
from cdc_lake.source.postgres.server import wal_position
from cdc_lake.source.postgres.slot_peek import MissingPrepareProbe, by_lines
from cdc_lake.tables.control_tables import control_tables
from cdc_lake_testing.beside import until
from cdc_lake_testing.kills import KILLED
from cdc_lake_testing.server import EmbeddedServer
from tests.conftest import Database, make_role
from tests.live.kill_sources import receivers_of
from tests.live.test_large_transactions import landed, pipeline, streaming
from tests.live.test_receive_loop import bronze_rows, once
from tests.live.test_test_decoding_live import streamed
from tests.live.test_two_phase_live import (
    ON,
    Phases,
    ahead,
    an_error_where_the_file_is_lost_or_damaged,
    assert_whole,
    changed,
    confirmed_beyond,
    ended,
    killed_at_every_durable_step,
    parked,
    parked_and_passed,
    prepared,
    taken_back,
    version,
    write,
)
from tests.postgres_with_test_decoding import start_decoding_server
from tests.seeds import seeds

pytestmark = pytest.mark.live

__all__ = ["streaming"]

MODES: dict[str, dict[str, Any]] = {
    "stream": {},
    "polling": {"mode": "polling", "polling": {"interval": "20 ms"}},
}


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """One that brings the plugin."""
    embedded = start_decoding_server(settings={"max_prepared_transactions": "30", "max_replication_slots": "20"})
    make_role(embedded)
    yield embedded
    embedded.remove()


@pytest.fixture
def phased(streaming: Database) -> Database:
    return streaming


@pytest.fixture(params=list(MODES))
def mode(request: pytest.FixtureRequest) -> dict[str, Any]:
    return MODES[request.param]


def by_lines_of(database: Database, root: Path, name: str = "lines", **source: Any) -> Project:
    made = pipeline(database, root, name, **{**ON, **source})
    source_of = made.pipeline.source
    slot_of = made.postgres.slot.model_copy(update={"plugin": "test_decoding"})
    section = made.pipeline.model_copy(update={"source": source_of.model_copy(update={"slot": slot_of})})
    return Project(section, made.file, made.root)


@pytest.mark.parametrize("seed", seeds(1))
def test_what_is_parked_lands_as_pgoutput_lands_it_and_as_what_comes_whole(
    phased: Database, tmp_path: Path, mode: dict[str, Any], seed: int
) -> None:
    lines = by_lines_of(phased, tmp_path, **mode)
    whole = by_lines_of(phased, tmp_path, "whole", decoding={}, **mode)
    messages = pipeline(phased, tmp_path, "messages", **ON if version(phased) >= 15 else {})
    projects = lines, whole, messages
    for project in projects:
        once(project)
    phases = Phases(phased, random.Random(seed))
    for _ in range(3):
        for _ in range(5):
            phases.step()
        phases.prepare()
        for project in projects:
            once(project)
        assert len(parked(lines)) > 0
    phases.end()
    for project in projects:
        once(project)
    assert parked(lines) == parked(messages) == []
    assert streamed(lines) == streamed(messages) == streamed(whole)
    assert_whole(lines, phased)


def test_a_parked_transaction_outlives_its_receiver_and_lands_where_it_commits(
    phased: Database, tmp_path: Path, mode: dict[str, Any]
) -> None:
    project = by_lines_of(phased, tmp_path, **mode)
    once(project)
    write(phased, "INSERT INTO a VALUES (-1, 1, 'before'), (-2, 1, 'locked')", "CREATE SCHEMA other")
    write(phased, "CREATE TABLE other.c (id int)")
    odd = "it's a \\ 'ü'\n, txid 1"
    prepared(phased, odd, "INSERT INTO a VALUES (1, 1, 'prepared')", "UPDATE a SET n = 2 WHERE id = 1")
    prepared(phased, "large", "INSERT INTO b SELECT g, 1, repeat('y', 100) FROM generate_series(1, 3000) g")
    prepared(phased, "dropped", "DELETE FROM a WHERE id = -1")
    prepared(phased, "empty", "CREATE TABLE not_seen (id int)")
    prepared(phased, "left out", "INSERT INTO other.c VALUES (1)")
    prepared(phased, "locks", "SELECT FROM a WHERE id = -2 FOR SHARE")
    write(phased, "INSERT INTO a VALUES (2, 1, 'between')")
    once(project)
    assert len([row for row in landed(project) if row["op"] == "I"]) == 3
    once(project)
    says_locks = version(phased) >= 18
    gids = [odd, "large", "dropped", "empty", "left out", *["locks"] * says_locks]
    assert _gids(project) == gids
    found = list_prepared(project).transactions
    assert [one.tables for one in found][:5] == [("public.a",), ("public.b",), ("public.a",), (), ()]
    assert [one.changes for one in found][:5] == [2, 3000, 1, 0, 0]
    assert confirmed_beyond(phased, project), "the server sends none of them again"
    ended(phased, "dropped", "ROLLBACK")
    for nth, gid in enumerate(["large", "empty", "left out", "locks", odd]):
        ended(phased, gid)
        write(phased, f"INSERT INTO a VALUES ({100 + nth}, 1, 'behind')")
    prepared(phased, "late", "INSERT INTO b VALUES (-2, 1, 'late')")
    ended(phased, "late")
    assert [sorted(map(str, one.tables)) for one in ahead(project) or ()] == [
        ["public.b"], *[["public.a"]] * 6, ["public.b"],
    ]  # fmt: skip
    once(project)
    assert parked(project) == []
    inserted = [row["new"][0] for row in landed(project) if row["op"] == "I" and row["relation"] == "public.a"]
    assert inserted == ["-1", "-2", "2", "100", "101", "102", "103", "1", "104"]
    assert_whole(project, phased)


def _gids(project: Project) -> list[str]:
    return [one.gid for one in status(project).prepared]


def test_a_lost_or_damaged_file_is_an_error_and_no_change_is_lost_unseen(
    phased: Database, tmp_path: Path, mode: dict[str, Any]
) -> None:
    project = by_lines_of(phased, tmp_path, **mode)
    an_error_where_the_file_is_lost_or_damaged(phased, project)


def test_without_the_file_the_server_still_sends_it_whole(phased: Database, tmp_path: Path) -> None:
    project = by_lines_of(phased, tmp_path)
    parked_and_passed(phased, project)
    for name in parked(project):
        (project.control / "prepared" / name).unlink()
    with pytest.raises(SlotTwoPhase) as refused:
        once(changed(project, {"two_phase": False}))
    assert "two_phase" in refused.value.remedy
    taken_back(phased, project.slot)
    with pytest.raises(SlotNotTwoPhase):
        once(project)
    ended(phased, "one")
    once(changed(project, {"two_phase": False}))
    assert_whole(project, phased)


@pytest.mark.obeys("SRC238")
def test_it_cannot_be_asked_for_of_a_slot_that_was_made_without(
    phased: Database, tmp_path: Path, mode: dict[str, Any]
) -> None:
    project = by_lines_of(phased, tmp_path, decoding={}, **mode)
    once(project)
    later = changed(project, {"two_phase": True})
    with pytest.raises(SlotNotTwoPhase) as refused:
        once(later)
    assert "remove `two_phase`" in refused.value.remedy
    assert [line.code for line in check(later) if line.subject == "slot"] == [SlotNotTwoPhase.code]
    write(phased, "INSERT INTO b VALUES (1, 1, 'behind')")
    once(project)
    assert_whole(project, phased)
    write(phased, "INSERT INTO b VALUES (2, 1, 'left to the copy')")
    restart(project, yes=True)
    once(later)
    prepared(phased, "one", "INSERT INTO a VALUES (1, 1, 'prepared')")
    once(later)
    assert len(parked(later)) == 1
    ended(phased, "one")
    once(later)
    assert_whole(later, phased)


def test_the_server_is_asked_whether_one_whose_prepare_nobody_has_changed_anything(
    phased: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = by_lines_of(phased, tmp_path)
    once(project)
    write(phased, "CREATE SCHEMA other", "CREATE TABLE other.c (id int)", "INSERT INTO a VALUES (-1, 1, 'locked')")
    prepared(phased, "a", "INSERT INTO a VALUES (1, 1, 'prepared')")
    prepared(phased, "locks", "SELECT FROM a WHERE id = -1 FOR UPDATE")
    prepared(phased, "left out", "INSERT INTO other.c VALUES (1)", "TRUNCATE other.c")
    prepared(phased, "b", "TRUNCATE b")
    once(project)
    state = bronze_reader(project).state()
    assert state is not None
    with phased.connect() as session:
        given: Any = session
        xids = dict(session.execute("SELECT gid, transaction::text::bigint FROM pg_prepared_xacts").fetchall())
        taken = takes(given, project.postgres.tables)
        unsent = MissingPrepareProbe(given, project.slot, by_lines(taken), state.confirm, lambda: None)
        ends = {}
        for gid in xids:
            ended(phased, gid)
            ends[gid] = wal_position(given).value
        monkeypatch.setattr("cdc_lake.source.postgres.slot_peek.WINDOW", 0)
        found = {gid: unsent.has_changes(xids[gid], end) for gid, end in ends.items()}
    assert found == {"a": True, "locks": False, "left out": False, "b": True}


@pytest.mark.parametrize("seed", seeds(1))
def test_killed_at_every_durable_step_of_a_prepared_transaction(
    phased: Database, tmp_path: Path, mode: dict[str, Any], seed: int
) -> None:
    project = by_lines_of(phased, tmp_path, **mode)
    killed_at_every_durable_step(project, phased, seed)


# ── the first start ──


def slots_of(database: Database) -> list[tuple[str, bool, bool]]:
    with database.admin() as admin:
        return admin.execute(
            "SELECT slot_name, two_phase, temporary FROM pg_replication_slots WHERE database = %s ORDER BY 1",
            [database.name],
        ).fetchall()


@pytest.mark.parametrize("step", [at.SLOT_KEPT, at.TABLE_COPIED, at.SNAPSHOT_DONE])
def test_a_start_that_is_killed_leaves_no_slot_that_nobody_knows(
    phased: Database, tmp_path: Path, mode: dict[str, Any], step: str
) -> None:
    write(phased, "INSERT INTO a VALUES (1, 1, 'copied')", "INSERT INTO b VALUES (1, 1, 'copied')")
    project = by_lines_of(phased, tmp_path, **mode)
    receivers = receivers_of(project, phased.password)
    assert receivers.run(f"{step}:1") == KILLED
    assert (project.slot, True, False) in slots_of(phased)
    prepared(phased, "meanwhile", "INSERT INTO a VALUES (2, 1, 'prepared')")
    [found] = [line for line in check(project) if line.subject == "slot"]
    assert found.ok is not False, found
    with source_view(project) as view:
        assert [action.text for action in view.steps(lambda: bronze_reader(project).state())]
    ended(phased, "meanwhile")
    assert receivers.run() == 0
    assert slots_of(phased) == [(project.slot, True, False)]
    once(project)
    assert_whole(project, phased)
    assert parked(project) == []


def test_a_slot_that_the_pipeline_did_not_set_out_to_make_is_left_alone(phased: Database, tmp_path: Path) -> None:
    project = by_lines_of(phased, tmp_path)
    with phased.admin() as admin:
        admin.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding', false, true)", [project.slot])
    with pytest.raises(SlotForeign):
        once(project)
    assert slots_of(phased) == [(project.slot, True, False)]
    assert bronze_reader(project).state() is None


@contextmanager
def waited_for(database: Database, statement: str) -> Iterator[Callable[[], None]]:
    """A transaction that is open; what is given returns once somebody waits for its end."""
    with database.connect(autocommit=False) as conn, closing(database.admin()) as admin:
        conn.execute(statement)  # type: ignore[call-overload]
        row = conn.execute("SELECT pg_current_xact_id()::text").fetchone()
        assert row is not None
        query = "SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted AND transactionid::text = %s"

        def waits() -> None:
            until(lambda: admin.execute(query, [row[0]]).fetchone() != (0,))

        yield waits


def during_the_start(database: Database) -> None:
    """What is prepared between the slot and the copy, of which one is committed there, and what makes both visible."""
    prepared(database, "between", "INSERT INTO a VALUES (1, 1, 'prepared before the copy')")
    prepared(database, "over", "INSERT INTO a VALUES (2, 1, 'committed before the copy')")
    prepared(database, "rolled back", "INSERT INTO a VALUES (3, 1, 'rolled back before the copy')")
    write(database, "INSERT INTO b VALUES (1, 1, 'before the copy')")
    ended(database, "over")
    ended(database, "rolled back", "ROLLBACK")


def assert_begun_behind(project: Project, database: Database) -> None:
    """Of what was prepared in between, one lands where it is committed, and the one that was copied does not come."""
    with database.connect() as conn:
        waits = conn.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()").fetchall()
    assert waits == [("between",)]
    assert ids(project, "S") == ["2"]
    state = bronze_reader(project).state()
    assert state is not None
    assert state.confirm < state.upto, "it is read from further back than where it begins"
    write(database, "INSERT INTO a VALUES (4, 1, 'behind the copy')")
    once(project)
    [one] = status(project).prepared
    assert (one.gid, Lsn.parse(one.position).value < state.upto) == ("between", True)
    ended(database, "between")
    once(project)
    assert ids(project, "I") == ["4", "1"]
    assert parked(project) == []
    assert_whole(project, database)


def ids(project: Project, op: str) -> list[str]:
    """Of the rows of `a` that were copied, or inserted."""
    rows = bronze_rows(project)
    return [row["new"][0] for row in rows if row["op"] == op and row["relation"] == "public.a"]


def test_what_is_prepared_before_the_copy_and_committed_behind_it_lands_by_stream(
    phased: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server makes the temporary slot while one transaction after the other has to end."""
    project = by_lines_of(phased, tmp_path)
    export = slot.export_slot

    def exported(*given: Any) -> slot.ExportedSlot:
        made: list[slot.ExportedSlot] = []
        with waited_for(phased, "INSERT INTO b VALUES (-1)") as first_waits:
            making = threading.Thread(target=lambda: made.append(export(*given)))
            making.start()
            first_waits()
            second = waited_for(phased, "INSERT INTO b VALUES (-2)")
            second_waits = second.__enter__()
        write(phased, "DELETE FROM b")
        second_waits()
        during_the_start(phased)
        second.__exit__(None, None, None)
        making.join()
        write(phased, "DELETE FROM b WHERE id < 0")
        return made[0]

    monkeypatch.setattr(postgres_start.slot, "export_slot", exported)
    once(project)
    monkeypatch.undo()
    assert_begun_behind(project, phased)


def test_what_is_prepared_before_the_copy_and_committed_behind_it_lands_by_functions(
    phased: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = by_lines_of(phased, tmp_path, **MODES["polling"])
    wait = snapshot._wait_for_running

    def waited(*given: Any) -> None:
        wait(*given)
        during_the_start(phased)

    monkeypatch.setattr(snapshot, "_wait_for_running", waited)
    once(project)
    monkeypatch.undo()
    assert_begun_behind(project, phased)


def test_plan_and_check_say_what_is_made(phased: Database, tmp_path: Path, mode: dict[str, Any]) -> None:
    project = by_lines_of(phased, tmp_path, **mode)
    with source_view(project) as view:
        said = [action.text for action in view.steps(lambda: None)]
    assert said[0] == f"create slot `{project.slot}` (test_decoding, two-phase)"
    assert [line for line in check(project) if line.ok is False] == []
    once(project)
    assert [line for line in check(project) if line.ok is False] == []
    row = next(row for row in control_tables(project).snapshots() if row.snapshot == f"slot:{project.slot}")
    assert row.epoch == 0
    assert slots_of(phased) == [(project.slot, True, False)]
