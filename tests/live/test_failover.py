"""A standby of a real PostgreSQL takes over: what bronze holds must be in its history, or the run stops and says why."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.errors import BronzeAhead, OtherTimeline, ServerSettings, SeveralPrimaries, SlotMissing
from cdc_lake.model.position import Lsn, Span
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.ops.check.postgres import findings
from cdc_lake.ops.findings import CheckLine
from cdc_lake.ops.slots import inspect_slot
from cdc_lake.runtime.receive.lag import list_prepared
from cdc_lake.source.postgres.server import FAILOVER_SLOTS, TWO_PHASE_ON_STANDBYS
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake_testing.beside import until
from cdc_lake_testing.server import EmbeddedServer
from cdc_lake_testing.standby import promote, standby_of
from tests.bronze_replay import bronze_rows
from tests.conftest import CDC_PASSWORD, CDC_USER, Database, make_database, make_role, start_server
from tests.live.test_receive_loop import once
from tests.source_losses import lived_through

pytestmark = pytest.mark.live


class Cluster:
    """A primary with a database that is fed into bronze, and a standby that follows it."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.primary = start_server()
        make_role(self.primary)
        self.database = make_database(self.primary)
        self.root = root
        self._folder = folder
        self._standbys: list[EmbeddedServer] = []
        self.write("CREATE TABLE t (id int PRIMARY KEY)")

    def standby(self, name: str = "standby", *, slots: bool = False) -> EmbeddedServer:
        """A running standby."""
        if not (self.primary.binaries / "pg_basebackup").exists():
            pytest.skip("this build of PostgreSQL has no pg_basebackup")
        database = self.database.name if slots else None
        standby = standby_of(self.primary, self._folder / name, slot=name, slots_of=database)
        self._standbys.append(standby)
        return standby.start()

    @property
    def version(self) -> int:
        with self.connect(self.primary) as conn:
            return conn.info.server_version // 10000

    def write(self, sql: str, server: EmbeddedServer | None = None) -> None:
        with self.connect(server or self.primary) as conn:
            conn.execute(sql)

    def connect(self, server: EmbeddedServer) -> psycopg.Connection:
        return psycopg.connect(server.dsn(self.database.name, CDC_USER, CDC_PASSWORD), autocommit=True)

    def caught_up(self, standby: EmbeddedServer) -> None:
        """Wait until the standby has replayed all that the primary wrote by now."""
        with self.connect(self.primary) as conn:
            end = conn.execute("SELECT pg_current_wal_flush_lsn()").fetchone()
        with self.connect(standby) as conn:
            deadline = time.monotonic() + 120
            while conn.execute("SELECT pg_last_wal_replay_lsn() >= %s", end).fetchone() != (True,):
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def project(self, *servers: EmbeddedServer, **source: Any) -> Project:
        return project_at(self.database, [(s.port) for s in servers or (self.primary,)], self.root, **source)

    def remove(self) -> None:
        for server in (*self._standbys, self.primary):
            server.remove()


def project_at(database: Database, ports: list[int], root: Path, **source: Any) -> Project:
    document = {
        "version": 1,
        "pipeline": database.name,
        "source": {
            "type": "postgres",
            "hosts": [f"{database.host}:{port}" for port in ports],
            "database": database.name,
            "user": database.user,
            "password": database.password,
            "tables": ["public.*"],
            **source,
        },
        "bronze": {"durability": "os"},
    }
    return Project(Pipeline.model_validate(document), root / "pipeline.yaml", root)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="cdc_standby_"))
    made = Cluster(tmp_path, folder)
    yield made
    made.remove()
    shutil.rmtree(folder, ignore_errors=True)


def inserted(project: Project) -> list[str]:
    return [row["new"][0] for row in bronze_rows(project) if row["op"] in "SI"]


def line(project: Project, subject: str) -> CheckLine:
    (found,) = [line for line in findings(project) if line.subject == subject]
    return found


def copied(cluster: Cluster, standby: EmbeddedServer, project: Project) -> None:
    """Receive until the standby has a lasting copy of the slot, which moves on with the slot's own restart position."""
    lasting = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s AND synced AND NOT temporary"
    deadline = time.monotonic() + 120
    with (
        psycopg.connect(standby.dsn(cluster.database.name), autocommit=True) as standing_by,
        psycopg.connect(cluster.primary.dsn(), autocommit=True) as leading,
    ):
        while standing_by.execute(lasting, [project.slot]).fetchone() != (1,):
            assert time.monotonic() < deadline
            leading.execute("SELECT pg_log_standby_snapshot()")
            once(project)
            time.sleep(0.2)


def test_a_standby_that_has_all_of_bronze_goes_on_with_the_stream(cluster: Cluster) -> None:
    if cluster.version < FAILOVER_SLOTS:
        pytest.skip("before PostgreSQL 17 no standby has the slot")
    standby = cluster.standby(slots=True)
    project = cluster.project(cluster.primary, standby, slot={"failover": True})
    cluster.write("INSERT INTO t VALUES (1)")
    once(project)
    cluster.write("INSERT INTO t VALUES (2)")
    copied(cluster, standby, project)
    ahead = line(project, "failover")
    assert (ahead.ok, "does not wait for a standby" in ahead.text) == (None, True)
    assert "synchronized_standby_slots = 'standby'" in ahead.fix
    assert "will not have the slot" in line(cluster.project(), "failover").text
    there = inspect_slot(cluster.project(standby, slot={"failover": True}))
    assert (there.synced, there.slot.failover, there.wal_status) == (True, True, "reserved")
    assert any("a standby's copy" in threat.text for threat in there.threats)
    assert not inspect_slot(project).synced
    cluster.caught_up(standby)
    cluster.primary.stop("immediate")
    promote(standby)
    cluster.write("INSERT INTO t VALUES (3)", standby)
    assert line(project, "history").text == "everything that bronze contains is in the server's WAL (timeline 2)"

    told: list[ProgressEvent] = []
    once(project, told.append)

    assert inserted(project) == ["1", "2", "3"]
    assert any("the server is now on timeline 2, before that on 1" in progress.text for progress in told)
    rows = ControlTables(project.control).read("timelines").sort_by("recorded_at").to_pylist()
    assert [(row["timeline"], (row["history"] or "").split("@")[0]) for row in rows] == [(1, ""), (2, "1")]

    standby.stop("immediate")
    cluster.primary.start()  # the old primary comes back beside the new one
    with pytest.raises(OtherTimeline, match="on timeline 1, but bronze was already read on timeline 2"):
        once(project)


def test_where_only_a_keepalive_is_ahead_the_stream_goes_on_behind_the_switch(cluster: Cluster) -> None:
    if cluster.version < FAILOVER_SLOTS:
        pytest.skip("before PostgreSQL 17 no standby has the slot")
    standby = cluster.standby(slots=True)
    project = cluster.project(cluster.primary, standby, slot={"failover": True})
    cluster.write("INSERT INTO t VALUES (1)")
    copied(cluster, standby, project)
    cluster.caught_up(standby)
    standby.stop()
    cluster.write("SELECT pg_logical_emit_message(false, 'not ours', repeat('x', 300000), true)")
    once(project)  # recorded as read, and nothing of it is ours
    ahead = bronze_reader(project).state()
    assert ahead is not None
    cluster.primary.stop("immediate")
    promote(standby.start())
    for number in range(2, 12):
        cluster.write(f"INSERT INTO t VALUES ({number})", standby)
    with cluster.connect(standby) as conn:
        assert conn.execute("SELECT pg_current_wal_flush_lsn() < %s::pg_lsn", [str(Lsn(ahead.upto))]).fetchone() == (
            True,
        )
    assert line(project, "history").ok

    told: list[ProgressEvent] = []
    once(project, told.append)

    assert inserted(project) == [str(number) for number in range(1, 12)]
    assert any("the server's WAL has diverged after" in progress.text for progress in told)
    reader = bronze_reader(project)
    assert verify(reader).holds
    state = reader.state()
    assert state is not None
    assert (state.epoch, state.upto < ahead.upto) == (ahead.epoch, True)
    cluster.write("INSERT INTO t VALUES (12)", standby)
    once(project)
    assert inserted(project)[-1] == "12"


def test_what_is_parked_lands_from_the_new_primary_and_ends_as_that_one_says(cluster: Cluster) -> None:
    if cluster.version < TWO_PHASE_ON_STANDBYS:
        pytest.skip("before PostgreSQL 18 no standby has a slot with two-phase decoding")
    standby = cluster.standby(slots=True)
    given = {"slot": {"failover": True}, "decoding": {"two_phase": True}}
    project = cluster.project(cluster.primary, standby, **given)
    cluster.write("INSERT INTO t VALUES (1)")
    once(project)
    copied(cluster, standby, project)  # with something prepared a standby's first copy would not become a lasting one
    for number, gid in enumerate(("lands", "dropped", "dropped there, lands here"), start=2):
        cluster.write(f"BEGIN; INSERT INTO t VALUES ({number}); PREPARE TRANSACTION '{gid}'")
    for number in (5, 6):
        cluster.write(f"INSERT INTO t VALUES ({number})")
        once(project)
    confirmed = "SELECT confirmed_flush_lsn, two_phase FROM pg_replication_slots WHERE slot_name = %s"
    with cluster.connect(cluster.primary) as leading, cluster.connect(standby) as following:
        behind = leading.execute(confirmed, [project.slot]).fetchone()
        until(lambda: following.execute(confirmed, [project.slot]).fetchone() == behind)
    assert [one.gid for one in list_prepared(project).transactions] == [
        "lands",
        "dropped",
        "dropped there, lands here",
    ]
    cluster.caught_up(standby)
    standby.stop()
    cluster.write("ROLLBACK PREPARED 'dropped there, lands here'")
    once(project)
    assert len(list_prepared(project).transactions) == 2
    cluster.primary.stop("immediate")
    promote(standby.start())
    for text in (
        "COMMIT PREPARED 'lands'",
        "ROLLBACK PREPARED 'dropped'",
        "COMMIT PREPARED 'dropped there, lands here'",
    ):
        cluster.write(text, standby)
    cluster.write("INSERT INTO t VALUES (7)", standby)
    once(project)
    assert inserted(project) == ["1", "5", "6", "2", "4", "7"]
    assert list_prepared(project).transactions == ()
    assert verify(bronze_reader(project)).holds


def test_bronze_ahead_of_the_switch_stops_and_lists_what_the_new_primary_never_had(cluster: Cluster) -> None:
    project = cluster.project()
    once(project)
    standby = cluster.standby()
    rival = cluster.standby("rival")
    cluster.write("INSERT INTO t VALUES (1)")
    cluster.caught_up(standby)
    standby.stop()
    state = bronze_reader(project).state()
    assert state is not None
    for number in (2, 3):
        cluster.write(f"INSERT INTO t VALUES ({number})")
    once(project)
    cluster.caught_up(rival)
    cluster.primary.stop("immediate")
    promote(standby.start())
    for number in range(4, 50):  # the new primary's log has long grown past what bronze holds
        cluster.write(f"INSERT INTO t VALUES ({number})", standby)

    with pytest.raises(BronzeAhead) as caught:
        once(cluster.project(standby))
    found = line(cluster.project(standby), "history")
    assert (found.ok, found.text, found.code) == (False, caught.value.message, "SRC217")

    commits = bronze_reader(project).commits(Span(state.epoch, state.upto, 1 << 62))
    two, three = commits[-2:]
    assert "timeline 2, which branched off timeline 1 at" in caught.value.message
    assert "the server does not have 2 transactions of bronze" in caught.value.message
    for lost in (two, three):
        assert f"{Lsn(lost.position)} (xid {lost.xid}, " in caught.value.message
    assert f"(xid {commits[-3].xid}, " not in caught.value.message
    assert inserted(project) == ["1", "2", "3"]

    # another standby that had everything takes over instead, but without the slot
    promote(rival)
    with pytest.raises(SlotMissing) as without:
        once(cluster.project(rival))
    assert inserted(project) == ["1", "2", "3"]
    lived_through("failover without slot", cluster.root, [], without.value)


def test_the_primary_is_found_behind_a_host_that_is_down_and_a_standby(cluster: Cluster) -> None:
    standby, down = cluster.standby(), cluster.standby("down")
    down.stop()
    project = cluster.project(down, standby, cluster.primary)
    cluster.write("INSERT INTO t VALUES (1)")
    once(project)
    assert inserted(project) == ["1"]


@pytest.mark.obeys("SRC251")
def test_of_two_primaries_none_is_read(cluster: Cluster) -> None:
    standby = cluster.standby()
    project = cluster.project(cluster.primary, standby)
    once(project)
    promote(standby)
    with pytest.raises(SeveralPrimaries, match="are all primaries"):
        once(project)
    standby.stop()
    once(project)


def test_a_server_whose_standbys_keep_no_slots_with_two_phase_decoding_refuses_to_be_asked_for_both(
    cluster: Cluster,
) -> None:
    if not FAILOVER_SLOTS <= cluster.version < TWO_PHASE_ON_STANDBYS:
        pytest.skip("17 is the one")
    with pytest.raises(ServerSettings, match="from PostgreSQL 18 on"):
        once(cluster.project(slot={"failover": True}, decoding={"two_phase": True}))


def test_a_server_whose_standbys_keep_no_slots_refuses_to_be_asked_for_it(cluster: Cluster) -> None:
    if cluster.version >= FAILOVER_SLOTS:
        pytest.skip("this one can")
    project = cluster.project(slot={"failover": True})
    with pytest.raises(ServerSettings, match="from PostgreSQL 17 on"):
        once(project)
    with cluster.connect(cluster.primary) as conn:
        assert conn.execute("SELECT count(*) FROM pg_replication_slots").fetchone() == (0,)
    assert line(project, "failover").ok is False
