"""Check, plan and status of the GaussDB family against its stand-in, without Spark; every version and its traps."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.cli.output import document, dumps
from cdc_lake.config.project import Project
from cdc_lake.connectors.base import ActionKind
from cdc_lake.connectors.gaussdb import adapter as family_start
from cdc_lake.connectors.gaussdb import introspection as source_view_family
from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.errors import NoReplicaIdentity, ServerSettings, ServerUnreachable, SlotAhead, SlotForeign, SlotMissing
from cdc_lake.ops.check import gaussdb as check_family
from cdc_lake.ops.check.runner import check, dba_sql, examine
from cdc_lake.ops.findings import CheckLine
from cdc_lake.ops.plan import KEY_ONLY, plan
from cdc_lake.ops.status import status
from cdc_lake.runtime.receive.stream_setup import open_stream
from cdc_lake.source.base import StreamIdentity
from cdc_lake.source.gaussdb.slot import create_slot_by_function, drop_slot
from cdc_lake.source.gaussdb.wire.session import connect
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake_testing.gaussdb.answers import LiveAnswers
from cdc_lake_testing.gaussdb.authentication import Method
from cdc_lake_testing.gaussdb.dialect import Product, Version
from cdc_lake_testing.gaussdb.server import GaussServer
from cdc_lake_testing.gaussdb.sql import Answer, Failed, SqlSession
from tests.live.test_gaussdb_receive import project_of
from tests.live.test_gaussdb_workload import KNOWN, Kind, StandIn, stand_in, write
from tests.live.test_receive_loop import once

pytestmark = pytest.mark.live

__all__ = ["stand_in"]

PARALLEL = Kind(Style.BINARY, batch=True)
SERIAL = Kind(Style.SERIAL)
BY_CSN = Kind(Style.BINARY, batch=True, by_csn=True)


@pytest.fixture(autouse=True)
def source_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what `check` says of the source: it starts Java otherwise."""
    monkeypatch.setattr("cdc_lake.ops.check.runner.machine", lambda _, **_more: ())


def settled(stand_in: StandIn, kind: Kind, root: Path, **changes: Any) -> Project:
    """A pipeline whose order is given, so that a first run does not look for it in the stream."""
    order = {"order": "csn"} if kind is PARALLEL else {}
    return project_of(stand_in, kind, root, source={**order, **changes})


def lines(project: Project, subject: str | None = None) -> list[CheckLine]:
    return [line for line in check(project) if subject in {None, line.subject}]


def wrong(project: Project) -> set[tuple[str, str]]:
    return {(line.subject, line.code) for line in lines(project) if line.ok is False}


@contextmanager
def server_of(stand_in: StandIn, version: Version, product: Product = "openGauss", **given: Any) -> Iterator[StandIn]:
    """The same database behind a server of its own."""
    given = {"thread_pool": True, "databases": [stand_in.database.name], **given}
    given.setdefault("answers", LiveAnswers(stand_in.live, stand_in.database.dsn))
    with GaussServer(
        stand_in.live.ledger,
        version=version,
        product=product,
        users={"cdc": KNOWN},
        method=Method.SHA256,
        **given,
    ) as server:
        yield StandIn(stand_in.database, stand_in.live, {False: server, True: server})


# ── from nothing to a stream that goes on ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [PARALLEL, SERIAL, BY_CSN], ids=lambda kind: kind.slot)
def test_from_nothing_to_received_as_check_plan_and_status_tell_it(
    stand_in: StandIn, kind: Kind, tmp_path: Path
) -> None:
    project = project_of(stand_in, kind, tmp_path, source={"tables": ["public.w_items", "public.w_texts"]})
    assert wrong(project) == set()
    planned = plan(project)
    kinds = [action.kind for action in planned.actions]
    assert kinds == [
        ActionKind.CREATE_SLOT,
        *[ActionKind.SNAPSHOT] * 2,
        ActionKind.DECODE,
        *[ActionKind.CREATE_TABLE] * 2,
    ]
    assert planned.changes
    order = {PARALLEL: "if a probe of it finds every CSN", SERIAL: "by LSN", BY_CSN: "by CSN"}[kind]
    assert order in planned.actions[0].text
    assert order in lines(project, "order")[0].text
    before = status(project)
    assert (before.reachable, before.slot.state) == (True, "missing")
    assert [(t.source, t.state) for t in before.tables] == [
        ("public.w_items", "pending"),
        ("public.w_texts", "pending"),
    ]

    once(project)
    with stand_in.database.connect() as conn:
        for number in (7001, 7002, 7003):
            conn.execute("INSERT INTO w_items (id) VALUES (%s)", [number])
    stand_in.live.settled()
    behind = status(project)
    domain = StreamIdentity.parse(behind.stream or "").domain
    assert domain.value == ("lsn" if kind is SERIAL else "csn")
    assert behind.slot.state == "idle"
    assert behind.slot.retained_bytes is not None
    assert behind.source_position != behind.bronze_position
    (resumed, decoded, *_) = plan(project).actions
    assert (resumed.kind, decoded.kind) == (ActionKind.RESUME, ActionKind.DECODE)
    assert not resumed.changes
    if domain.value == "csn":
        assert (behind.landed.transactions or 0) >= 3
        assert behind.landed.bytes is None
        assert (resumed.transactions or 0) >= 3
        assert "CSNs" in resumed.text
    else:
        assert (behind.landed.bytes or 0) > 0
        assert behind.landed.transactions is None
        assert (resumed.bytes or 0) > 0

    once(project)
    after = status(project)
    assert after.epoch == 1
    assert after.applied.transactions is not None
    assert after.applied.transactions >= 3
    assert after.last_commit is not None
    assert {t.state for t in after.tables} == {"catching-up"}
    assert wrong(project) == set()
    (slot,) = lines(project, "slot")
    assert "is free" in slot.text
    assert ("CSN" if kind.by_csn else "LSN") in slot.text
    assert lines(project, "order")[0].text == f"the stream is ordered by {domain.name}, as it was started"
    assert json.loads(dumps(document("plan", plan(project))))["actions"][0]["kind"] == "resume"

    with connect(stand_in.target(by_csn=kind.by_csn)) as session:
        drop_slot(session, project.slot)
    assert status(project).slot.state == "missing"
    assert wrong(project) == {("slot", SlotMissing.code)}
    with pytest.raises(SlotMissing):
        plan(project)


def test_a_slot_that_is_read_is_active(stand_in: StandIn, tmp_path: Path) -> None:
    project = settled(stand_in, PARALLEL, tmp_path)
    once(project)
    bronze, control = DeltaBronze(project.bronze, durability="os"), ControlTables(project.control)
    with open_stream(project, bronze, control, threading.Event(), lambda _: None):
        assert status(project).slot.state == "active"
        assert [(line.ok, line.code) for line in lines(project, "slot")] == [(None, "SRC213")]


def test_a_slot_that_was_read_by_somebody_else_is_ahead(stand_in: StandIn, tmp_path: Path) -> None:
    project = settled(stand_in, PARALLEL, tmp_path)
    once(project)
    with stand_in.database.connect() as conn:
        conn.execute("INSERT INTO w_items (id) VALUES (7001)")
    with connect(stand_in.target(by_csn=False)) as session:
        session.query(f"SELECT * FROM pg_replication_slot_advance('{project.slot}', NULL)")
    assert wrong(project) == {("slot", SlotAhead.code)}
    with pytest.raises(SlotAhead):
        plan(project)


def test_a_slot_that_nobody_here_made_is_foreign_and_one_of_a_broken_start_is_not(
    stand_in: StandIn, tmp_path: Path
) -> None:
    project = settled(stand_in, PARALLEL, tmp_path)
    with connect(stand_in.target(by_csn=False)) as session:
        create_slot_by_function(session, project.slot, "mppdb_decoding", None)
        assert wrong(project) == {("slot", SlotForeign.code)}
        with pytest.raises(SlotForeign):
            plan(project)
        drop_slot(session, project.slot)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(family_start, "copy_tables", break_off)
        with pytest.raises(BrokenOff):
            once(project)
    assert ControlTables(project.control).snapshots()
    assert wrong(project) == set()
    (slot,) = lines(project, "slot")
    assert "interrupted start" in slot.text
    assert plan(project).actions[0].text.startswith("drop the remains of an earlier start and create slot")


class BrokenOff(Exception):
    pass


def break_off(*_: object, **__: object) -> None:
    raise BrokenOff


# ── what check finds ─────────────────────────────────────────────────────────────────────────────────────────────


def test_check_names_each_thing_to_fix(stand_in: StandIn, tmp_path: Path) -> None:
    project = project_of(stand_in, PARALLEL, tmp_path)
    with stand_in.database.admin() as admin:
        admin.execute("CREATE TABLE bare (a int)")
        admin.execute("CREATE SCHEMA closed")
        admin.execute("CREATE TABLE closed.hidden (a int PRIMARY KEY)")
    both = project_of(stand_in, PARALLEL, tmp_path, source={"tables": ["public.*", "closed.*"]})
    assert wrong(both) == {("identity", "SRC223"), ("tables", "SRC224")}
    (bare,) = lines(both, "identity")
    assert bare.fix.endswith('its owner runs: ALTER TABLE "public"."bare" REPLICA IDENTITY FULL;')
    told = {table.table: (table.identity, table.unsent) for table in examine(project).types}
    assert told["public.bare"] == ("none", "updates and deletes of it do not identify a row")
    assert {words[1] for words in told.values() if words[0].startswith("primary key (")} == {KEY_ONLY}
    with pytest.raises(NoReplicaIdentity):
        plan(project)
    said = dba_sql(both)
    assert 'GRANT USAGE ON SCHEMA "closed" TO "cdc";' in said
    assert 'GRANT SELECT ON "closed"."hidden" TO "cdc";' in said
    assert 'ALTER TABLE "public"."bare" REPLICA IDENTITY FULL;' in said
    assert "ALTER ROLE" not in said
    nothing = project_of(stand_in, PARALLEL, tmp_path, source={"tables": ["public.no_such"]})
    assert wrong(nothing) == {("tables", "SRC222")}


def test_check_says_what_the_settings_of_a_server_lack(stand_in: StandIn, tmp_path: Path) -> None:
    project = project_of(stand_in, PARALLEL, tmp_path)
    state = stand_in.servers[False].state
    state.settings |= {"wal_level": "hot_standby", "max_replication_slots": "0"}
    assert wrong(project) == {("wal_level", "SRC208"), ("replication slots", "SRC211")}
    assert "gs_guc" in dba_sql(project)
    state.settings.clear()
    state.in_recovery = True
    assert ("server", "SRC250") in wrong(project)
    state.in_recovery = False
    state.sender_timeout = 15.0
    (slow,) = [line for line in lines(project, "options") if line.ok is None]
    assert "15 s" in slow.text
    state.encoding = "EUC_TW"
    assert ("encoding", "DEC312") in wrong(project)


def test_check_bounds_memory_for_decoding_by_what_the_server_has(stand_in: StandIn, tmp_path: Path) -> None:
    def found(**given: int) -> list[tuple[bool | None, str, str]]:
        project = settled(stand_in, BY_CSN, tmp_path, decoding={f"max-{n}-in-memory": v for n, v in given.items()})
        return [(line.ok, line.code, line.fix) for line in lines(project, "decoding")]

    assert found(txn=3072, reorderbuffer=6) == []
    assert found(txn=3073, reorderbuffer=7) == [
        (False, "SRC247", "source.decoding: {max-txn-in-memory: 3072}"),
        (False, "SRC247", "source.decoding: {max-reorderbuffer-in-memory: 6}"),
    ]
    stand_in.servers[True].state.settings["max_process_memory"] = "14GB"
    assert found(txn=3584, reorderbuffer=7) == []


def test_check_says_that_a_standby_is_for_one_parallel_connection(stand_in: StandIn, tmp_path: Path) -> None:
    decoding = {"standby-connection": True}
    for more, said in (({}, [None]), ({"parallel-decode-num": 1}, [])):
        project = settled(stand_in, BY_CSN, tmp_path, decoding={**decoding, **more})
        found = lines(project, "standby")
        assert [line.ok for line in found] == said
        assert all("one parallel decoding connection for each standby" in line.text for line in found)


def test_check_says_where_standbys_would_not_have_the_slot(stand_in: StandIn, tmp_path: Path) -> None:
    server = stand_in.servers[False]
    twice = {"host": None, "hosts": [f"{server.host}:{server.port}"] * 2}
    project = project_of(stand_in, PARALLEL, tmp_path, source=twice)
    (line,) = lines(project, "failover")
    assert (line.ok, "enable_slot_log = on" in line.fix) == (None, True)
    server.state.settings["enable_slot_log"] = "on"
    assert not lines(project, "failover")
    server.state.settings.clear()
    assert not lines(project_of(stand_in, PARALLEL, tmp_path), "failover")


def test_check_compares_product_and_release_with_the_file(stand_in: StandIn, tmp_path: Path) -> None:
    other = project_of(stand_in, PARALLEL, tmp_path, source={"type": "mogdb", "version": "5.0.3"})
    assert wrong(other) == {("product", "SRC208")}
    (product,), (version,) = lines(other, "product"), lines(other, "version")
    assert product.fix == "source.type: opengauss"
    assert version.fix == 'source.version: "6.0.2"'
    gaussdb = project_of(stand_in, BY_CSN, tmp_path)
    assert "GaussDB 505.1.0" in lines(gaussdb, "server")[0].text


class Hiding(LiveAnswers):
    """A server that shows roles and WAL senders to administrators only."""

    def answer(self, sql: str, session: SqlSession) -> Sequence[Answer]:
        for hidden in ("pg_roles", "pg_stat_replication"):
            if hidden in sql:
                return [Failed("42501", f"permission denied for relation {hidden}")]
        return super().answer(sql, session)


def test_what_a_server_hides_is_said_and_the_rest_is_looked_at(stand_in: StandIn, tmp_path: Path) -> None:
    answers = Hiding(stand_in.live, stand_in.database.dsn)
    with server_of(stand_in, "5.0.3", "MogDB", answers=answers) as server:
        project = project_of(server, PARALLEL, tmp_path, source={"type": "mogdb"})
        assert wrong(project) == set()
        assert lines(project, "server")[0].text.startswith("MogDB 5.0.3 at ")
        (role,), (senders,) = lines(project, "role"), lines(project, "WAL senders")
        assert (role.ok, senders.ok) == (True, None)
        assert "pg_roles does not show" in role.text
        assert lines(project, "tables")[0].ok
        by_sql = project_of(server, SERIAL, tmp_path, source={"type": "mogdb", "mode": "polling"})
        by_sql.family.decoding.clear()
        assert wrong(by_sql) == {("role", "SRC205")}


def test_status_plan_and_check_go_on_while_others_write(stand_in: StandIn, tmp_path: Path) -> None:
    project = settled(stand_in, PARALLEL, tmp_path)
    once(project)
    stop = threading.Event()
    writers = [threading.Thread(target=write, args=(stand_in, n, n, stop)) for n in range(2)]
    for writer in writers:
        writer.start()
    try:
        behind = [status(project).landed.transactions or 0 for _ in range(10)]
        assert plan(project).actions[0].kind is ActionKind.RESUME
        assert wrong(project) == set()
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert behind == sorted(behind)
    assert behind[-1] > behind[0]


def test_without_a_csn_of_the_snapshot_check_and_plan_say_what_orders_the_stream(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, by_csn = project_of(stand_in, PARALLEL, tmp_path), settled(stand_in, PARALLEL, tmp_path)
    for module in (check_family, source_view_family):
        monkeypatch.setattr(module, "exports_csn", lambda _: False)
    (order,) = lines(project, "order")
    assert order.ok is None
    assert "ordered by LSN" in order.text
    assert plan(project).actions[0].text.endswith("the stream is ordered by LSN")
    with pytest.raises(ServerSettings, match="no CSN to start from"):
        plan(by_csn)
    assert wrong(by_csn) == {("order", "SRC208")}


def test_rules_of_options_are_judged_with_the_release_that_the_server_names(stand_in: StandIn, tmp_path: Path) -> None:
    with server_of(stand_in, "3.0.0") as old:
        project = project_of(old, Kind(Style.TEXT), tmp_path)
        assert wrong(project) == {("options", "CFG128")}
        (options,) = lines(project, "options")
        assert "3.0.0" in options.text
        assert wrong(project_of(old, PARALLEL, tmp_path)) == set()


PARALLEL_TRAPS = {"3.0.0": ["crash", "truncate", "ddl-then-rows", "keyless-delete"]}
SERIAL_TRAPS = {"3.0.0": ["truncate", "ddl-then-rows"], "5.0.3": ["truncate", "ddl-then-rows"]}
HANDLED = {
    ("3.0.0", PARALLEL): ["old-nulls", "speculative", "neighbours", "garbage-lsn", "confirm-rule", "leading-zero"],
    ("3.0.0", SERIAL): ["old-nulls", "speculative", "leading-zero"],
    ("5.0.3", PARALLEL): ["speculative", "neighbours", "confirm-rule", "leading-zero"],
    ("5.0.3", SERIAL): ["speculative", "leading-zero"],
    ("6.0.2", PARALLEL): ["speculative", "neighbours", "confirm-rule", "leading-zero"],
    ("6.0.2", SERIAL): ["speculative", "leading-zero"],
}


@pytest.mark.parametrize("kind", [PARALLEL, SERIAL], ids=lambda kind: kind.slot)
@pytest.mark.parametrize("version", ["3.0.0", "5.0.3", "6.0.2"])
def test_check_warns_of_every_trap_of_the_version_and_says_what_helps(
    stand_in: StandIn, version: Version, kind: Kind, tmp_path: Path
) -> None:
    with server_of(stand_in, version) as server:
        project = settled(server, kind, tmp_path)
        found = lines(project, "trap")
        assert f"openGauss {version}" in lines(project, "server")[0].text
        handled = [line for line in lines(project, "traps") if line.ok]
        assert wrong(project) == set()
        once(project)
        assert wrong(project) == set()
        assert status(project).slot.state == "idle"
    wanted = (
        SERIAL_TRAPS.get(version, []) if kind is SERIAL else PARALLEL_TRAPS.get(version, PARALLEL_TRAPS["3.0.0"][1:3])
    )
    assert [line.text.split(",")[0] for line in found] == wanted
    assert all(line.ok is None and line.fix for line in found)
    effects = [line.text.split(": ")[0].split(", ")[1] for line in found]
    assert effects == ["the server shuts down" if name == "crash" else "changes do not arrive" for name in wanted]
    assert [line.text for line in handled] == [f"handled here: {', '.join(HANDLED[version, kind])}"]


# ── ports, rights, and a server that is down ─────────────────────────────────────────────────────────────────────


def test_check_finds_the_port_that_takes_replication(stand_in: StandIn, tmp_path: Path) -> None:
    server = stand_in.servers[False]
    to_service = project_of(stand_in, PARALLEL, tmp_path, source={"replication_port": server.port})
    found = lines(to_service, "replication")
    assert [(line.ok, line.code) for line in found] == [(False, "SRC240")]
    assert "HA port" in lines(to_service, "port")[0].text + lines(to_service, "port")[0].fix
    to_ha = project_of(stand_in, PARALLEL, tmp_path, source={"port": server.replication_port})
    assert wrong(to_ha) == {("server", "SRC241")}
    with server_of(stand_in, "6.0.2", thread_pool=False) as open_to_all:
        nowhere = project_of(open_to_all, PARALLEL, tmp_path, source={"replication_port": 1})
        (port,) = lines(nowhere, "port")
        assert port.fix == f"source.replication_port: {open_to_all.servers[False].port}"
        assert wrong(nowhere) == {("replication", "SRC201")}


def test_check_says_who_grants_the_right_to_replicate(stand_in: StandIn, tmp_path: Path) -> None:
    with stand_in.database.admin() as admin:
        admin.execute("ALTER ROLE cdc NOREPLICATION")
    try:
        with server_of(stand_in, "6.0.2", strangers=["cdc"]) as strict:
            project = project_of(strict, PARALLEL, tmp_path)
            assert wrong(project) == {("role", "SRC205"), ("replication", "SRC205")}
            assert lines(project, "slot") == []
            assert 'ALTER ROLE "cdc" REPLICATION;' in dba_sql(project)
        (role,) = lines(project_of(stand_in, PARALLEL, tmp_path), "role")
        assert role.ok
        assert "does not show" in role.text
    finally:
        with stand_in.database.admin() as admin:
            admin.execute("ALTER ROLE cdc REPLICATION")


def test_polling_needs_no_replication_connection(stand_in: StandIn, tmp_path: Path) -> None:
    source = {"mode": "polling", "replication_port": 1, "decoding": {}}
    project = project_of(stand_in, SERIAL, tmp_path, source=source)
    project.family.decoding.clear()
    assert wrong(project) == set()
    assert lines(project, "replication") == []
    once(project)
    assert [action.kind for action in plan(project).actions][:2] == [ActionKind.RESUME, ActionKind.DECODE]
    assert status(project).slot.state == "idle"


def test_a_server_that_is_down_is_told_in_words(stand_in: StandIn, tmp_path: Path) -> None:
    project = settled(stand_in, PARALLEL, tmp_path)
    once(project)
    stand_in.servers[False].stop()
    assert wrong(project) == {("server", ServerUnreachable.code)}
    seen = status(project)
    assert not seen.reachable
    assert seen.slot.state == "unknown"
    assert seen.unreachable_because
    assert seen.tables
    for ask in (plan, dba_sql):
        with pytest.raises(ServerUnreachable) as refused:
            ask(project)
        assert refused.value.exit_status == 4
    stand_in.servers[False].start()


def test_a_wrong_password_is_not_repeated(stand_in: StandIn, tmp_path: Path) -> None:
    project = project_of(stand_in, PARALLEL, tmp_path, source={"password": "not the password"})
    found = lines(project)
    assert [(line.subject, line.code) for line in found] == [("server", "SRC202")]
    assert "not the password" not in repr((found, status(project)))
