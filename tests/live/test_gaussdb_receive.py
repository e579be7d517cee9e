"""The receive loop over the family's wire: a live PostgreSQL's workload through every way to read ends in bronze, whole."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.connectors.gaussdb import adapter as family_start
from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.errors import OptionRefused, ServerSettings, SlotAhead
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.ops.plan import plan
from cdc_lake.runtime.receive import metrics as source_looks
from cdc_lake.source.base import StreamIdentity
from cdc_lake_testing.beside import streams, until
from cdc_lake_testing.gaussdb.answers import LiveAnswers
from cdc_lake_testing.gaussdb.live import LivePostgres
from cdc_lake_testing.gaussdb.server import GaussServer
from cdc_lake_testing.ports import free_port
from cdc_lake_testing.workload import Workload
from tests.bronze_replay import bronze_rows, tables_from_bronze
from tests.conftest import Database
from tests.live.test_gaussdb_workload import KINDS, PASSWORD, Kind, StandIn, stand_in
from tests.live.test_receive_loop import once, running, tables_at_source
from tests.live.test_receiver_metrics import healthz, metrics, receiving
from tests.pipeline_file import lake_section
from tests.seeds import one_seed

pytestmark = pytest.mark.live

__all__ = ["stand_in"]

SEED = one_seed()


def project_of(stand_in: StandIn, kind: Kind, root: Path, **changes: Any) -> Project:
    server = stand_in.servers[kind.by_csn]
    document: dict[str, Any] = {
        "version": 1,
        "pipeline": kind.slot,
        "source": {
            "type": "gaussdb" if kind.by_csn else "opengauss",
            "host": server.host,
            "port": server.port,
            "replication_port": server.replication_port,
            "database": stand_in.database.name,
            "user": "cdc",
            "password": PASSWORD,
            "tls": {"mode": "disable"},
            "slot": {"output_order": "csn"} if kind.by_csn else {},
            "decoding": decoding(kind),
            "tables": ["public.*"],
        },
        "snapshot": {"chunk_rows": 37},
        "bronze": {"batch": {"max_transactions": 20, "max_delay": "20 ms"}, "durability": "os"},
        **lake_section(root),
    }
    for section, values in changes.items():
        document[section] = {**document.get(section, {}), **values}
    return Project(Pipeline.model_validate(document), root / "pipeline.yaml", root)


def decoding(kind: Kind) -> dict[str, Any]:
    if kind.style is Style.SERIAL:
        return {"parallel-decode-num": 1}
    return {"parallel-decode-num": 4, "decode-style": kind.style.value, "sending-batch": int(kind.batch)}


def assert_equal_to_source(project: Project, stand_in: StandIn) -> None:
    assert tables_from_bronze(project) == {t: rows for t, rows in tables_at_source(stand_in.database).items() if rows}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.slot)
def test_copy_and_changes_land_whole_and_a_second_run_goes_on(stand_in: StandIn, kind: Kind, tmp_path: Path) -> None:
    print("CDC_LAKE_SEED =", SEED)
    part = random.Random(f"{SEED} {kind.slot}").choice([400, 4 << 20])  # with the one, half of what comes is large
    project = project_of(stand_in, kind, tmp_path, bronze={"spool": {"part": part}})
    truncates = kind.style is Style.SERIAL
    with stand_in.database.connect() as conn:
        workload = Workload(conn, SEED, truncates=truncates)
        workload.run(40)
        first = once(project)
        assert first.snapshot_rows > 0
        assert_equal_to_source(project, stand_in)
        workload.run(40)
        second = once(project)
        assert second.snapshot_rows == 0
        assert second.transactions > 0
    assert_equal_to_source(project, stand_in)
    positions = [row["position"] for row in bronze_rows(project) if row["op"] == "C"]
    assert positions == sorted(positions)
    domain = StreamIdentity.parse(second.stream or "").domain
    assert domain.value == ("lsn" if kind.style is Style.SERIAL and not kind.by_csn else "csn")


@pytest.mark.parametrize("kind", [Kind(Style.BINARY, batch=True), Kind(Style.TEXT), Kind(Style.SERIAL)], ids=str)
def test_tables_that_the_white_list_cannot_leave_out_are_left_out_here(
    stand_in: StandIn, kind: Kind, tmp_path: Path
) -> None:
    tables = ["public.*", "!public.w_texts", "!public.o*"]
    project = project_of(stand_in, kind, tmp_path, source={"tables": tables}, bronze={"spool": {"part": 400}})
    once(project)
    with stand_in.database.connect() as conn:
        workload = Workload(conn, SEED, truncates=kind.style is Style.SERIAL)
        workload.run(60)
        conn.execute("TRUNCATE w_texts")
        conn.execute("CREATE TABLE other (id int PRIMARY KEY)")
        conn.execute("INSERT INTO other VALUES (1)")
        once(project)
    left_out = {"public.w_texts", "public.other"}
    assert not left_out & {row["relation"] for row in bronze_rows(project)}
    source = tables_at_source(stand_in.database)
    wanted = {t: rows for t, rows in source.items() if t.name not in ("w_texts", "other") and rows}
    assert tables_from_bronze(project) == wanted
    commits = [json.loads(row["info"]) for row in bronze_rows(project) if row["op"] == "C"]
    assert all(commit["counts"] for commit in commits) or kind.style is Style.SERIAL


POLLING = {"mode": "polling", "decoding": {}, "replication_port": 1, "polling": {"max_changes": 50}}


def test_a_slot_behind_sql_functions_gives_the_same(stand_in: StandIn, tmp_path: Path) -> None:
    print("CDC_LAKE_SEED =", SEED)
    project = project_of(stand_in, Kind(Style.SERIAL), tmp_path, source=POLLING)
    with stand_in.database.connect() as conn:
        workload = Workload(conn, SEED)
        workload.run(30)
        first = once(project)
        assert first.snapshot_rows > 0
        workload.run(60)
        second = once(project)
    assert second.transactions > 0
    assert_equal_to_source(project, stand_in)
    assert once(project).transactions == 0


def test_a_slot_that_others_advance_between_two_looks_ends_the_run(stand_in: StandIn, tmp_path: Path) -> None:
    project = project_of(stand_in, Kind(Style.SERIAL), tmp_path, source=POLLING)
    told: list[ProgressEvent] = []
    with pytest.raises(SlotAhead), running(project, told) as receiver:  # noqa: PT012 - what it lives through
        until(lambda: streams(told))
        state = stand_in.servers[False].state
        state.slots.confirm(project.slot, state.ledger.end_lsn + (1 << 20))
        receiver.result(timeout=60)


def test_a_server_that_gives_no_csn_with_a_snapshot_is_copied_in_the_slots_own(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(family_start, "exports_csn", lambda _: False)
    project = project_of(stand_in, Kind(Style.BINARY, batch=True), tmp_path)
    with stand_in.database.connect() as conn:
        workload = Workload(conn, SEED, truncates=False)
        workload.run(30)
        assert once(project).snapshot_rows > 0
        workload.run(30)
        summary = once(project)
    assert_equal_to_source(project, stand_in)
    assert StreamIdentity.parse(summary.stream or "").domain.value == "lsn"
    by_csn = project_of(stand_in, Kind(Style.TEXT, batch=True), tmp_path / "csn", source={"order": "csn"})
    with pytest.raises(ServerSettings, match="no CSN to start from"):
        once(by_csn)


def test_another_product_than_the_file_says_is_refused_before_a_slot_is_made(stand_in: StandIn, tmp_path: Path) -> None:
    """Rules of options and releases would be those of another product."""
    by_lsn, by_csn = Kind(Style.BINARY, batch=True), Kind(Style.BINARY, batch=True, by_csn=True)
    for kind, said in ((by_lsn, "gaussdb"), (by_lsn, "mogdb"), (by_csn, "opengauss")):
        project = project_of(stand_in, kind, tmp_path, source={"type": said, "slot": {"name": "other_product"}})
        is_one = "GaussDB" if kind.by_csn else "openGauss"
        for refused in (once, plan):
            with pytest.raises(ServerSettings, match=f"the server is {is_one} .*says {said}") as caught:
                refused(project)  # type: ignore[operator]
            assert f"source.type: {is_one.lower()}" in caught.value.remedy
        assert "other_product" not in {slot.name for slot, _ in stand_in.servers[kind.by_csn].state.slots.all()}


def test_what_a_release_cannot_give_safely_is_refused_before_a_slot_is_made(database: Database, tmp_path: Path) -> None:
    """Text without batches on the 3.0 line: its headers do not say what may be confirmed."""
    with (
        LivePostgres(database.server.dsn(database.name)) as live,
        GaussServer(
            live.ledger, version="3.0.0", users={"cdc": PASSWORD}, answers=LiveAnswers(live, database.dsn)
        ) as server,
    ):
        kind = Kind(Style.TEXT)
        project = project_of(StandIn(database, live, {False: server}), kind, tmp_path)
        with pytest.raises(OptionRefused, match=r"no position to acknowledge on 3\.0\.0"):
            once(project)
        assert not server.state.slots.all()


def test_tables_altered_and_dropped_before_they_are_read_still_land(stand_in: StandIn, tmp_path: Path) -> None:
    """A DELETE brings its key only: it has the layout that the table had last, not the catalog's of now."""
    project = project_of(stand_in, Kind(Style.BINARY, batch=True), tmp_path)
    with stand_in.database.connect() as conn:
        conn.execute("CREATE TYPE mood AS ENUM ('sad', 'glad')")
        conn.execute("CREATE TABLE a (id int PRIMARY KEY, x text); INSERT INTO a VALUES (1, 'one'), (2, 'two')")
        conn.execute("CREATE TABLE b (id int PRIMARY KEY, y mood); INSERT INTO b VALUES (1, 'sad'), (2, 'glad')")
        once(project)
        conn.execute("DELETE FROM a WHERE id = 1")
        conn.execute("UPDATE b SET y = 'glad' WHERE id = 1")
        stand_in.live.settled()
        conn.execute("ALTER TABLE a ADD z int; ALTER TABLE b DROP y; DROP TABLE w_texts")
        once(project)
    rows = [row for row in bronze_rows(project) if row["relation"] in ("public.a", "public.b")]
    # the two may have exchanged their CSNs
    assert sorted((r["op"], r["new"], r["old"]) for r in rows if r["op"] in "UD") == [
        ("D", None, ["1", None]),
        ("U", ["1", "glad"], ["1", None]),
    ]


def test_starts_that_broke_off_one_after_the_other_do_not_take_their_own_slot_for_foreign(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first inside its copy, the second when its slot was made and bronze knew nothing of it."""

    class BrokenOff(Exception):
        pass

    def break_off(*_: object) -> None:
        raise BrokenOff

    project = project_of(stand_in, Kind(Style.BINARY, batch=True), tmp_path)
    for step in ("copy_tables", "_begin_stream"):
        with stand_in.database.connect() as conn:
            conn.execute("INSERT INTO w_pairs VALUES (-1, %s)", [step])
        with monkeypatch.context() as patch:
            patch.setattr(family_start, step, break_off)
            with pytest.raises(BrokenOff):
                once(project)
    assert once(project).snapshot_rows == 2
    assert_equal_to_source(project, stand_in)


@pytest.mark.parametrize("heartbeats", [False, True])
def test_monitoring_sees_the_lag_in_transactions_where_csns_order_the_stream_and_that_of_decoding_by_heartbeats(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, heartbeats: bool
) -> None:
    monkeypatch.setattr(source_looks, "LOOK_EVERY", 0.1)
    address = f"127.0.0.1:{free_port()}"
    kind = Kind(Style.BINARY, batch=True, by_csn=heartbeats)  # as GaussDB alone has them
    beating = {"decoding": {**decoding(kind), "enable-heartbeat": True}} if heartbeats else {}
    project = project_of(stand_in, kind, tmp_path, source=beating, observe={"metrics": address})
    with stand_in.database.connect() as conn, receiving(project, []):
        until(lambda: healthz(address)[1].get("state") == "streaming", "it streams")
        (workload := Workload(conn, SEED, truncates=False)).run(20)
        until(lambda: metrics(address)["cdc_lake_transactions_total"] > 0, "transactions")
        until(lambda: metrics(address).get("cdc_lake_landed_lag_transactions") == 0, "nothing is missing")
        seen = metrics(address)
        assert (seen["cdc_lake_slot_active"], seen["cdc_lake_source_reachable"]) == (1, 1)
        assert not [key for key in seen if key.endswith("lag_bytes")], "a distance of CSNs is no number of bytes"
        assert str(healthz(address)[1]["position"]).isdecimal()
        lag = "cdc_lake_source_decoding_lag_seconds"
        if not heartbeats:
            assert lag not in seen
            return
        until(lambda: lag in metrics(address), "a heartbeat")
        before = metrics(address)[lag]
        until(lambda: metrics(address)[lag] > before + 1, "nothing newer is decoded")
        workload.run(20)
        until(lambda: metrics(address)[lag] < 1, "what was just committed is decoded")
