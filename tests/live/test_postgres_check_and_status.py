"""Check, plan, status and the receiver's process against a real server, without Spark."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.cli.app import app
from cdc_lake.cli.process import run_command
from cdc_lake.config.loader import load_project
from cdc_lake.config.project import Project
from cdc_lake.control.cuts import table_facts
from cdc_lake.errors import AuthenticationRefused, NoReplicaIdentity, SlotMissing, SparkNotStarted
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.ops.check.runner import check, dba_sql
from cdc_lake.ops.plan import ActionKind, plan
from cdc_lake.ops.status import status
from cdc_lake.runtime.run import ReceiverProcess, run
from cdc_lake.tables.control_schema import CutRow
from cdc_lake.tables.control_tables import control_tables
from cdc_lake_testing.beside import until
from tests.conftest import Database
from tests.mistakes import kept
from tests.pipeline_file import pipeline_file, with_orders

pytestmark = pytest.mark.live


@pytest.fixture
def project(database: Database, tmp_path: Path) -> Project:
    return with_orders(database, tmp_path)


def receive(project: Project) -> None:
    run(project, once=True, only="receive", stop=threading.Event(), report=lambda _: None)


def drop_slot(database: Database, project: Project) -> None:
    with database.admin() as admin:
        admin.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", [project.slot]
        )


def test_from_nothing_to_received_as_plan_and_status_tell_it(database: Database, project: Project) -> None:
    kinds = [a.kind for a in plan(project).actions]
    assert kinds == [
        ActionKind.CREATE_PUBLICATION,
        ActionKind.CREATE_SLOT,
        ActionKind.SNAPSHOT,
        ActionKind.CREATE_TABLE,
    ]
    before = status(project)
    assert before.reachable
    assert before.slot.state == "missing"
    assert [(t.source, t.state) for t in before.tables] == [("public.orders", "pending")]

    receive(project)
    try:
        with database.connect() as conn:
            conn.execute("UPDATE orders SET amount = 0 WHERE id = 1")
        receive(project)
        after = status(project)
        assert (after.slot.state, after.epoch) == ("idle", 1)
        assert [(t.source, t.state) for t in after.tables] == [("public.orders", "catching-up")]
        assert after.applied.transactions == 1
        assert after.last_commit is not None
        assert after.source_position is not None
        planned = plan(project)
        assert [a.kind for a in planned.actions] == [ActionKind.RESUME, ActionKind.CREATE_TABLE]
        assert planned.changes
        assert not planned.destructive
        assert all(line.ok is not False or line.subject == "java" for line in check(project))
    finally:
        drop_slot(database, project)
    assert status(project).slot.state == "missing"
    with pytest.raises(SlotMissing) as missing:
        plan(project)
    kept("slot-missing", missing.value, slot=project.slot)
    assert [line.code for line in check(project) if line.subject == "slot"] == ["SRC212"]


def test_check_names_each_thing_to_fix(database: Database, project: Project) -> None:
    with database.connect() as conn:
        conn.execute("CREATE TABLE bare (a int)")
    wrong = {(line.subject, line.code) for line in check(project) if line.ok is False}
    assert wrong - {("java", "LAK401")} == {("identity", "SRC223")}
    with pytest.raises(NoReplicaIdentity):
        plan(project)
    said = dba_sql(project)
    assert 'GRANT SELECT ON "public"."bare"' in said
    with database.admin() as admin:
        admin.execute(said.encode())
    with database.connect() as conn:
        conn.execute("INSERT INTO bare VALUES (1); UPDATE bare SET a = 2")
    assert [line.code for line in check(project) if line.subject == "identity"] == []


def test_both_kinds_of_sql_are_printed_where_both_are_asked_for(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    for given, kinds in ((["--sql"], {"GRANT"}), (["--ddl"], {"TRIGGER"}), (["--ddl", "--sql"], {"GRANT", "TRIGGER"})):
        assert run_command(app, ["check", "-p", str(project.file), *given]) == 0
        said = capsys.readouterr().out
        assert {word for word in ("GRANT", "TRIGGER") if f"{word} " in said} == kinds


def test_check_of_a_wrong_password_stops_at_the_connection(
    database: Database, project: Project, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = load_project(pipeline_file(database, tmp_path / "other", password="not the password"))
    lines = [line for line in check(other) if line.ok is False and line.subject == "server"]
    assert [line.code for line in lines] == [AuthenticationRefused.code]
    assert "not the password" not in repr(lines)
    found = status(other)
    assert not found.reachable
    assert found.slot.state == "unknown"


@pytest.mark.parametrize("needed", [True, False])
def test_a_run_says_that_spark_starts_if_it_has_to_wait_for_it_and_starts_none_with_nothing_to_apply(
    project: Project, monkeypatch: pytest.MonkeyPatch, *, needed: bool
) -> None:
    told: list[str] = []

    def slow(_: Project) -> None:
        until(lambda: "starting Spark" in told, "it was not said", 60)
        raise SparkNotStarted("it was not to")

    monkeypatch.setattr("cdc_lake.tables.spark_session.require_java", lambda: None)
    monkeypatch.setattr("cdc_lake.tables.spark_session.start", slow)
    receive(project)
    if not needed:
        state = bronze_reader(project).state()
        assert state is not None
        cut = CutRow(state.epoch, state.stream, state.upto, None, table_facts({}), datetime.now(UTC))
        control_tables(project).record(cut)  # as if silver had it
    ends = pytest.raises(SparkNotStarted) if needed else nullcontext()
    with ends:
        run(project, once=True, only=None, stop=threading.Event(), report=lambda one: told.append(one.text))
    assert told.count("starting Spark") == needed


def test_the_receiver_comes_back_when_it_is_killed_and_goes_when_asked(database: Database, project: Project) -> None:
    stop, told = threading.Event(), []
    with ReceiverProcess(project, stop, told.append):
        first = until(lambda: reader_of(database, project))
        with database.connect() as conn:
            conn.execute("UPDATE orders SET amount = 1 WHERE id = 1")
        children = [p for p in Path("/proc").iterdir() if p.name.isdigit() and is_receiver(p, project)]
        assert len(children) == 1
        os.kill(int(children[0].name), signal.SIGKILL)
        until(lambda: (now := reader_of(database, project)) is not None and now != first)
        stop.set()
    assert not [p for p in Path("/proc").iterdir() if p.name.isdigit() and is_receiver(p, project)]
    assert any(isinstance(p, ProgressEvent) and p.stage == "retry" for p in told)
    drop_slot(database, project)


def is_receiver(process: Path, project: Project) -> bool:
    try:
        return (
            str(project.file).encode() in (process / "cmdline").read_bytes()
            and b"--only" in (process / "cmdline").read_bytes()
        )
    except OSError:
        return False


def reader_of(database: Database, project: Project) -> int | None:
    """The process that streams from the slot; while the slot is made, another one holds it."""
    with psycopg.connect(database.server.dsn(database.name)) as conn:
        row = conn.execute(
            "SELECT s.active_pid FROM pg_replication_slots AS s JOIN pg_stat_replication AS r ON r.pid = s.active_pid "
            "WHERE s.slot_name = %s AND NOT s.temporary",
            [project.slot],
        ).fetchone()
    return row[0] if row else None
