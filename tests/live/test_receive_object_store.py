"""The receiver on a real PostgreSQL and an object store that fails and lies: started again, it ends with the truth."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.open import bronze_reader, bronze_writer
from cdc_lake.config.project import Project
from cdc_lake.control.coordination import ReceiverNote
from cdc_lake.errors import CdcLakeError, Retry, StaleObjectListing, StoreUnavailable
from cdc_lake.model.position import Lsn
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.ops.status import status
from cdc_lake.runtime.receive.metrics import ReceiverMetrics
from cdc_lake.runtime.receive.receiver import receive
from cdc_lake_testing.beside import beside, until
from cdc_lake_testing.faults import Pipeline
from cdc_lake_testing.faulty_store import Chance, Fault, FaultyStore, honest
from cdc_lake_testing.object_store import LocalStore, storage_at
from cdc_lake_testing.ports import free_port
from cdc_lake_testing.workload import Workload
from tests.conftest import Database
from tests.live.test_receive_loop import assert_equal_to_source, once, project_of
from tests.pipeline_file import pipeline_file
from tests.seeds import one_seed
from tests.unit.test_metrics import get

pytestmark = pytest.mark.live
NOTHING = StreamCheckpoint("", 0, -1, -1, b"")


def stored(database: Database, root: Path, kind: str, endpoint: str) -> Project:
    storage = storage_at(endpoint, patience=900).model_dump()
    bronze: dict[str, Any] = {"batch": {"max_transactions": 20, "max_delay": "20 ms"}}
    lake: dict[str, Any] = {"storage": storage}
    if kind == "delta":
        bronze |= {"path": f"s3://lake/{database.name}/bronze"}
        lake |= {"control": f"s3://lake/{database.name}/control"}
    else:
        bronze |= {"format": "iceberg"}
        lake |= {"iceberg": {"warehouse": f"s3://lake/{database.name}/tables"}}
    return project_of(database, root, bronze=bronze, lake=lake)


@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=pytest.mark.slow)])
def test_a_receiver_started_again_on_a_failing_store_holds_what_the_source_has(
    database: Database, tmp_path: Path, store: LocalStore, kind: str
) -> None:
    seed = one_seed()
    print(f"CDC_LAKE_SEED={seed}")
    with FaultyStore(store) as proxy, database.connect() as conn:
        project = stored(database, tmp_path, kind, proxy.endpoint)
        workload = Workload(conn, seed=seed % 1000)
        workload.create_tables()
        workload.run(15)
        proxy.choose, starts = Chance(seed, 40), 0
        for round_ in range(2):
            while True:
                starts += 1
                if starts == 12:
                    proxy.choose = honest
                try:
                    once(project)
                    break
                except CdcLakeError as error:
                    if error.retry is not Retry.LATER:
                        raise  # a human is needed
            if round_ == 0:
                workload.run(40)
        proxy.choose = honest
        print(f"{starts} starts, {proxy.done}")
        assert_equal_to_source(project, database)
        verdict = verify(bronze_reader(project))
        assert verdict.holds, verdict.reason


@pytest.mark.parametrize(
    ("fault", "code", "remedy"),
    [
        (Fault.FAILED, "LAK435", "run again: nothing is lost; if the error persists, check `lake.storage.endpoint`"),
        (Fault.UNFENCED, "LAK438", "honours `If-None-Match`"),
        (None, "LAK436", "create it, or correct its name in the address"),
    ],
)
@pytest.mark.obeys("LAK435", "LAK436", "LAK438")
def test_a_first_run_on_a_store_that_cannot_hold_bronze_leaves_nothing_in_the_way_of_one_that_can(
    database: Database, tmp_path: Path, store: LocalStore, fault: Fault | None, code: str, remedy: str
) -> None:
    with FaultyStore(store, lambda request: fault if request.conditional or fault is Fault.FAILED else None) as proxy:
        with database.connect() as conn:
            workload = Workload(conn, seed=7)
            workload.create_tables()
            workload.run(5)
        project = stored(database, tmp_path, "delta", store.endpoint if fault is None else proxy.endpoint)
        if fault is None:
            bronze = project.pipeline.bronze.model_copy(update={"path": "s3://nowhere/bronze"})
            project = Project(project.pipeline.model_copy(update={"bronze": bronze}), project.file, project.root)
        with pytest.raises(CdcLakeError) as refused:
            once(project)
        assert refused.value.code == code
        assert remedy in refused.value.remedy
    project = stored(database, tmp_path, "delta", store.endpoint)
    once(project)
    with database.connect() as conn:
        Workload(conn, seed=8).run(5)
    once(project)
    assert_equal_to_source(project, database)


@pytest.mark.obeys("LAK437")
def test_a_listing_that_is_behind_is_not_believed_and_the_next_run_goes_on(
    database: Database, tmp_path: Path, store: LocalStore
) -> None:
    with FaultyStore(store) as proxy, database.connect() as conn:
        project = stored(database, tmp_path, "delta", proxy.endpoint)
        workload = Workload(conn, seed=9)
        workload.create_tables()
        for _ in range(3):
            workload.run(5)
            once(project)
        workload.run(5)
        proxy.choose = lambda request: Fault.STALE if request.lists else None
        with pytest.raises(StaleObjectListing) as refused:
            once(project)
        assert refused.value.remedy.startswith("run again")
        proxy.choose = honest
        once(project)
        assert_equal_to_source(project, database)
        assert verify(bronze_reader(project)).holds


def _read_by(conn: psycopg.Connection[Any]) -> tuple[int, str] | None:
    """Who reads the slot of this database, and what they confirmed."""
    found = "SELECT active_pid, confirmed_flush_lsn::text FROM pg_replication_slots"
    return conn.execute(f"{found} WHERE database = current_database() AND active").fetchone()


@contextmanager
def receiving(
    project: Project,
    workload: Workload,
    conn: psycopg.Connection[Any],
    told: list[ProgressEvent],
    *,
    slot_patience: int,
    watched: ReceiverMetrics | None = None,
) -> Iterator[Future[Any]]:
    """A receiver that has landed something; it is asked to stop at the end and waited for."""
    writer, heard = bronze_writer(project), told.append if watched is None else watched.on_progress
    pulse = None if watched is None else watched.pulse

    def loop(stop: threading.Event) -> Any:
        return receive(project, writer, once=False, stop=stop, report=heard, slot_patience=slot_patience, health=pulse)

    with beside(loop) as run:
        until(lambda: _read_by(conn) or run.done())
        workload.run(3)
        until(lambda: any(one.stage == "landed" for one in told) or run.done())
        yield run


@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=pytest.mark.slow)])
def test_a_receiver_outlasts_a_store_that_is_away_and_keeps_its_connection(
    database: Database, tmp_path: Path, store: LocalStore, kind: str
) -> None:
    told: list[ProgressEvent] = []
    with FaultyStore(store) as proxy, database.connect() as conn:
        conn.execute(f"ALTER DATABASE {database.name} SET wal_sender_timeout = '2s'")
        project = stored(database, tmp_path, kind, proxy.endpoint)
        workload = Workload(conn, seed=5)
        workload.create_tables()
        workload.run(10)
        note = ReceiverNote(project)
        address = f"127.0.0.1:{free_port()}"
        with (
            ReceiverMetrics(project, address, told.append) as watched,
            receiving(project, workload, conn, told, slot_patience=2, watched=watched) as run,
        ):
            assert note.read() is None
            assert get(address, "/healthz")[0] == 200
            proxy.choose = lambda _: Fault.FAILED
            workload.run(60)  # more than the batches that wait for the store hold
            until(note.read)
            before = _read_by(conn)
            until(lambda: len([one for one in told if one.stage == "retry"]) >= 3)
            assert (waits := note.read()) is not None
            assert waits.code == {"delta": "LAK435", "iceberg": "LAK420"}[kind]  # what reads, what writes, fails first
            with pytest.raises(StoreUnavailable) as asked:
                status(project)
            assert "the receiver has waited for it since" in asked.value.remedy
            status_code, _, text = get(address, "/healthz")
            said = json.loads(text)
            assert (status_code, said["state"], said["code"]) == (503, "waiting", waits.code)
            assert _read_by(conn) == before, "one connection all the while, and nothing confirmed"
            proxy.choose = honest
            workload.run(5)
            (last,) = conn.execute("SELECT pg_current_wal_lsn()").fetchone() or ()
            until(lambda: (bronze_reader(project).state() or NOTHING).upto >= Lsn.parse(last).value)
            assert (_read_by(conn) or ())[0] == (before or ())[0]
            assert note.read() is None
            until(lambda: get(address, "/healthz")[0] == 200)
        assert run.result().reconnects == 0
        assert_equal_to_source(project, database)
        verdict = verify(bronze_reader(project))
        assert verdict.holds, verdict.reason


@pytest.mark.parametrize("end", ["asked", "disconnected"])
def test_a_receiver_that_waits_for_its_store_can_be_stopped_and_cut_off(
    database: Database, tmp_path: Path, store: LocalStore, end: str
) -> None:
    told: list[ProgressEvent] = []
    with FaultyStore(store) as proxy, database.connect() as conn:
        project = stored(database, tmp_path, "delta", proxy.endpoint)
        workload = Workload(conn, seed=6)
        workload.create_tables()
        with receiving(project, workload, conn, told, slot_patience=9) as run:
            proxy.choose = lambda _: Fault.FAILED
            workload.run(5)
            until(lambda: any(one.stage == "retry" for one in told))
            if end == "disconnected":
                conn.execute(
                    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = current_database()"
                )
                until(lambda: len([one for one in told if one.stage == "retry"]) >= 4)
                proxy.choose = honest
                (last,) = conn.execute("SELECT pg_current_wal_lsn()").fetchone() or ()
                until(lambda: (bronze_reader(project).state() or NOTHING).upto >= Lsn.parse(last).value)
        assert run.result().reconnects >= (end == "disconnected")
        assert ReceiverNote(project).read() is None
        proxy.choose = honest
        once(project)
        assert_equal_to_source(project, database)


def test_the_commands_work_on_a_bronze_in_a_store_and_show_no_key(
    database: Database, tmp_path: Path, store: LocalStore
) -> None:
    secrets = {"PASSWORD": database.password, "KEY": "a-key-of-the-store", "SECRET": "a-secret-of-the-store"}
    with FaultyStore(store) as proxy, database.connect() as conn:
        pipeline_file(
            database,
            tmp_path,
            f"""\
bronze: {{path: s3://lake/{database.name}/shop}}
lake:
  storage:
    endpoint: {proxy.endpoint}
    region: us-east-1
    access_key_id: ${{env:KEY}}
    secret_access_key: ${{env:SECRET}}
    allow_http: true
    patience: 1 s
""",
        )
        Workload(conn, seed=3).create_tables()
        pipeline = Pipeline(tmp_path / "shop.yaml", secrets)
        shown = pipeline.do("plan", "--show-config")
        received = pipeline.do("run", "--once", "--only", "receive")
        chain = pipeline.do("inspect", "chain")
        proxy.choose = lambda _: Fault.FAILED
        down = pipeline.do("run", "--once", "--only", "receive", expect=4)
    assert json.loads(chain.output)["holds"]
    said = "".join(text for one in (shown, received, chain, down) for text in (one.output, one.said))
    assert "LAK435" in said
    assert f"s3://lake/{database.name}/shop" in said
    assert not [name for name, secret in secrets.items() if secret in said]
