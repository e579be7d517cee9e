"""What monitoring sees of a real receiver: over HTTP, while it copies, streams, loses its source and gets it back."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cdc_lake.config.loader import load_project
from cdc_lake.config.model import Observe
from cdc_lake.config.project import Project
from cdc_lake.errors import MetricsNotServed
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.observability.metrics import METRICS, Loop
from cdc_lake.runtime.receive import metrics as health
from cdc_lake.runtime.receive import metrics as source_looks
from cdc_lake.runtime.run import ReceiverProcess, run
from cdc_lake_testing.beside import beside, until
from cdc_lake_testing.ports import free_port
from tests.conftest import CDC_PASSWORD, Database
from tests.log_lines import logged
from tests.pipeline_file import pipeline_file, with_orders
from tests.unit.test_metrics import get

pytestmark = pytest.mark.live


@pytest.fixture
def project(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setattr(source_looks, "LOOK_EVERY", 0.1)
    made = with_orders(database, tmp_path)
    observe = Observe(metrics=f"127.0.0.1:{free_port()}")
    return replace(made, pipeline=made.pipeline.model_copy(update={"observe": observe}))


@contextmanager
def receiving(project: Project, told: list[ProgressEvent]) -> Iterator[None]:
    """A receiver without end, in a thread; what it raises is raised at the end."""
    with beside(lambda stop: run(project, once=False, only="receive", stop=stop, report=told.append)):
        yield
    logged(told)


def healthz(address: str) -> tuple[int, dict[str, object]]:
    try:
        status, _, text = get(address, "/healthz")
    except OSError:
        return 0, {}  # not listening yet
    return status, json.loads(text)


def metrics(address: str) -> dict[str, float]:
    """Values by name, with the labels behind it."""
    text = get(address, "/metrics")[2]
    assert CDC_PASSWORD not in text
    return {
        " ".join([one.name, *(f"{k}={v}" for k, v in sorted(one.labels.items()) if k != "pipeline")]): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_a_receiver_says_what_it_does_and_whether_it_does_it(database: Database, project: Project) -> None:
    address = project.pipeline.observe.metrics
    assert address is not None
    told: list[ProgressEvent] = []
    with receiving(project, told):
        until(lambda: healthz(address)[1].get("state") == "streaming", "it streams")
        status, said = healthz(address)
        assert (status, said["healthy"], said["code"], said["pipeline"]) == (200, True, None, "shop")
        assert said["schema"] == "cdc-lake/healthz/1"
        with database.connect() as conn:
            conn.execute("INSERT INTO orders SELECT g, g FROM generate_series(101, 130) AS g")
            conn.execute("UPDATE orders SET amount = 0 WHERE id <= 7")
            conn.execute("DELETE FROM orders WHERE id = 130")
            with conn.transaction():
                conn.execute("TRUNCATE orders")
        until(lambda: metrics(address)["cdc_lake_transactions_total"] == 4, "four transactions")
        until(lambda: metrics(address).get("cdc_lake_landed_lag_seconds") == 0, "bronze has what the source had")
        seen = metrics(address)
        assert {key[-1]: value for key, value in seen.items() if key.startswith("cdc_lake_changes_total")} == {
            "S": 100, "I": 30, "U": 7, "D": 1, "T": 1, "M": 0, "X": 0,
        }  # fmt: skip
        assert seen["cdc_lake_batch_rows_sum"] == 39
        assert 1 <= seen["cdc_lake_batch_rows_count"] <= 4
        assert (seen["cdc_lake_healthy"], seen["cdc_lake_source_reachable"], seen["cdc_lake_slot_active"]) == (1, 1, 1)
        assert seen["cdc_lake_slot_retained_wal_bytes"] > 0
        assert seen["cdc_lake_landed_lag_bytes"] >= 0
        assert abs(time.time() - seen["cdc_lake_last_success_timestamp_seconds loop=receive"]) < 60
        exposed = {key.partition(" ")[0] for key in seen}
        mine = {series for one in METRICS if Loop.RECEIVE in one.loops for series in one.series}
        assert exposed <= mine
        assert mine - exposed == {
            "cdc_lake_landed_lag_transactions",  # no CSNs
            "cdc_lake_prepared_transactions",  # no two-phase decoding
            "cdc_lake_prepared_oldest_seconds",
            "cdc_lake_slot_safe_wal_bytes",  # no limit at the server
            "cdc_lake_source_decoding_lag_seconds",  # no heartbeats of the GaussDB family
            "cdc_lake_wal_budget_used_ratio",  # no budget
        }
        assert {v for key, v in seen.items() if key.startswith("cdc_lake_errors_total")} == {0}
        assert "cdc_lake_errors_total code=SRC201 loop=receive" in seen, "the first one is an increase"
        with pytest.raises(MetricsNotServed, match="Address already in use"):
            run(project, once=False, only="receive", stop=threading.Event(), report=told.append)
        assert healthz(address)[0] == 200, "the other one never touched the slot"
    assert healthz(address) == (0, {}), "nothing answers for a receiver that ended"


def test_an_open_transaction_shows_once_its_changes_come(database: Database, project: Project) -> None:
    """PostgreSQL sends a transaction when it commits, so what is open is what did not fit into one read."""
    address = project.pipeline.observe.metrics
    assert address is not None
    most, number = 0.0, 0
    with receiving(project, []), database.connect() as conn:
        until(lambda: healthz(address)[1].get("state") == "streaming", "it streams")
        while not most:  # who looks may come too late
            number += 1
            conn.execute(
                "INSERT INTO orders SELECT %s + g, g FROM generate_series(1, 100000) AS g", [number * 1_000_000]
            )
            while (seen := metrics(address))["cdc_lake_transactions_total"] < number:
                most = max(most, seen["cdc_lake_open_transaction_bytes"])
        until(lambda: metrics(address)["cdc_lake_open_transaction_bytes"] == 0, "it has landed")


def test_a_receiver_without_its_source_says_so_and_is_well_again_when_it_is_back(
    database: Database, project: Project
) -> None:
    address = project.pipeline.observe.metrics
    assert address is not None
    with receiving(project, []):
        until(lambda: healthz(address)[1].get("state") == "streaming", "it streams")
        until(lambda: metrics(address)["cdc_lake_source_reachable"] == 1, "the source is looked at")
        database.server.stop()
        until(lambda: healthz(address)[1]["state"] == "waiting", "it waits for the source")
        status, said = healthz(address)
        assert (status, said["healthy"]) == (503, False)
        assert str(said["code"]).startswith("SRC")
        assert CDC_PASSWORD not in json.dumps(said)
        until(lambda: metrics(address)["cdc_lake_source_reachable"] == 0, "no look succeeds")
        seen = metrics(address)
        assert seen["cdc_lake_healthy"] == 0
        assert not [key for key in seen if "lag" in key or "slot" in key], "what only the source knows"
        assert sum(value for key, value in seen.items() if key.startswith("cdc_lake_errors_total")) >= 1
        database.server.start()
        until(lambda: healthz(address)[0] == 200, "it continues by itself")
        until(lambda: metrics(address)["cdc_lake_source_reachable"] == 1, "the source is looked at again")
        with database.connect() as conn:
            conn.execute("INSERT INTO orders VALUES (101, 1)")
        until(lambda: metrics(address)["cdc_lake_transactions_total"] == 1, "and lands")


def test_a_source_that_falls_silent_without_closing_its_connection_is_noticed(
    database: Database, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "STALLED_AFTER", 1.0)
    address = project.pipeline.observe.metrics
    assert address is not None
    assert database.server.pid is not None
    postmaster = psutil.Process(database.server.pid)
    with receiving(project, []):
        until(lambda: healthz(address)[1].get("state") == "streaming", "it streams")
        frozen = [postmaster, *postmaster.children(recursive=True)]
        try:
            for process in frozen:
                process.suspend()
            until(lambda: healthz(address)[1]["state"] == "silent", "nothing comes and nobody answers")
            assert healthz(address)[0] == 503
        finally:
            for process in frozen:
                process.resume()
        until(lambda: healthz(address)[0] == 200, "it comes back")


def test_a_run_with_an_end_serves_nothing(project: Project) -> None:
    address = project.pipeline.observe.metrics
    assert address is not None
    answers: list[int] = []
    run(
        project, once=True, only="receive", stop=threading.Event(), report=lambda _: answers.append(healthz(address)[0])
    )
    assert set(answers) == {0}


def test_a_port_in_use_ends_a_run_with_its_receiver_in_a_process_by_the_same_error(
    database: Database, tmp_path: Path
) -> None:
    made = load_project(pipeline_file(database, tmp_path))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with made.file.open("a") as file:
            file.write(f"observe: {{metrics: {address}}}\n")
        told: list[ProgressEvent] = []
        with (
            pytest.raises(MetricsNotServed, match=address) as refused,
            ReceiverProcess(load_project(made.file), threading.Event(), told.append) as receiver,
        ):
            assert receiver.over.wait(60)
    assert "its own port" in refused.value.remedy
    assert not [one for one in told if one.stage == "retry"], "waiting would not help"
