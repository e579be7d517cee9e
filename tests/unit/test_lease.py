"""One process at a time applies a pipeline: on one machine by a locked file, on several by an object in the store."""

from __future__ import annotations

import concurrent.futures
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.compute as pc
import pytest

from cdc_lake.config.project import Project
from cdc_lake.control import coordination
from cdc_lake.control.coordination import StoreLease, apply_lease
from cdc_lake.errors import AnotherApply, StoreUnfenced
from cdc_lake.tables.control_schema import RunRow
from cdc_lake.tables.control_tables import control_tables
from cdc_lake.tables.object_store import ObjectStore
from cdc_lake_testing.faulty_store import Fault, FaultyStore
from cdc_lake_testing.object_store import LocalStore, storage_at
from tests.pipeline_file import make_project

HOLD = """
import sys, time
from pathlib import Path
from cdc_lake.config.project import Project
from cdc_lake.config.model import Pipeline
from cdc_lake.control.coordination import apply_lease
pipeline = Pipeline.model_validate_json(sys.argv[1])
with apply_lease(Project(pipeline, Path(sys.argv[2]) / "shop.yaml", Path(sys.argv[2]))):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def store() -> Iterator[LocalStore]:
    with LocalStore() as running:
        running.bucket("leases")
        yield running


@pytest.fixture(params=["disk", "store"])
def project(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: LocalStore
) -> Project:
    monkeypatch.setattr(coordination, "RENEW_SECONDS", 0.2)
    if request.param == "disk":
        return make_project(tmp_path)
    storage = {**storage_at(store.endpoint).model_dump(), "access_key_id": "kit", "secret_access_key": "kit-secret"}
    return make_project(tmp_path, lake={"control": f"s3://leases/{tmp_path.name}", "storage": storage})


def settings(project: Project) -> str:
    document = project.pipeline.model_dump(mode="json", by_alias=True)
    if document["lake"]["storage"]:
        document["lake"]["storage"] |= {"access_key_id": "kit", "secret_access_key": "kit-secret"}
    return json.dumps(document)


def test_a_lease_is_refused_while_held_and_goes_with_a_killed_process(project: Project) -> None:
    command = [sys.executable, "-c", HOLD, settings(project), str(project.root)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(AnotherApply, match=f"process {holder.pid} "), apply_lease(project):
            pass
    finally:
        holder.kill()
        holder.communicate()
    for _ in range(2):
        with apply_lease(project):
            pass


def held(store: LocalStore, key: str) -> StoreLease:
    """One that is taken at a key, renewed every fifth of a second."""
    taken = lease_at(store, key)
    assert taken.take() is None
    return taken


def lease_at(store: LocalStore, key: str, every: float = 0.2) -> StoreLease:
    return StoreLease(ObjectStore(store.storage()), store.address("leases", key), renew_seconds=every)


def test_a_holder_on_another_machine_that_renews_is_left_alone_and_one_that_does_not_is_replaced(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordination, "_system", lambda: "a machine")
    first, stop = held(store, "elsewhere"), threading.Event()
    monkeypatch.setattr(coordination, "_system", lambda: "another machine")
    renewing = threading.Thread(target=first.renew_until, args=(stop,))
    renewing.start()
    second = lease_at(store, "elsewhere")
    assert second.take() is not None
    stop.set()
    renewing.join()
    begun = time.monotonic()
    assert second.take() is None
    assert time.monotonic() - begun >= 0.6, "three renewals were missed"
    assert second.epoch == first.epoch + 1
    first.renew_until(threading.Event())  # ends: it was replaced
    third = lease_at(store, "elsewhere")
    second.release()
    assert third.take() is None
    assert third.epoch == second.epoch + 1


def test_a_store_that_cannot_keep_a_lease_is_refused(store: LocalStore) -> None:
    with FaultyStore(store, lambda r: Fault.UNFENCED if r.conditional else None) as proxy:
        there = ObjectStore(store.storage(proxy.endpoint))
        with pytest.raises(StoreUnfenced):
            StoreLease(there, store.address("leases", "unfenced"), renew_seconds=1).take()


def test_rows_of_a_holder_that_was_replaced_are_refused(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was suspended for longer than the lease allows, and does not know yet."""
    storage = {**storage_at(store.endpoint).model_dump(), "access_key_id": "kit", "secret_access_key": "kit-secret"}
    project = make_project(tmp_path, lake={"control": f"s3://leases/{tmp_path.name}", "storage": storage})
    first, reader = control_tables(project), control_tables(project)
    monkeypatch.setattr(coordination, "RENEW_SECONDS", 0.2)
    monkeypatch.setattr(StoreLease, "renew_until", lambda _, stop: stop.wait())
    monkeypatch.setattr(coordination, "_system", lambda: "a machine")
    with apply_lease(project):
        first.record(run_row("before"))
        monkeypatch.setattr(coordination, "_system", lambda: "another machine")
        with concurrent.futures.ThreadPoolExecutor(1) as another:
            another.submit(_record_under_lease, project, "between").result()
        with pytest.raises(AnotherApply, match="replaced"):
            first.record(run_row("after"))
        with pytest.raises(AnotherApply, match="replaced"):
            first.delete("runs", pc.field("run") == "before")
    first.record(run_row("without a lease"))
    assert set(reader.read("runs")["run"].to_pylist()) == {"before", "between", "without a lease"}


def _record_under_lease(project: Project, run: str) -> None:
    with apply_lease(project):
        control_tables(project).record(run_row(run))


def run_row(run: str) -> RunRow:
    return RunRow(run, "apply", datetime.now(UTC), None, "running", "{}")


def test_of_many_that_want_a_lease_at_once_one_has_it(store: LocalStore) -> None:
    leases = [lease_at(store, "race", 30.0) for _ in range(8)]
    answers: list[str | None] = []
    threads = [threading.Thread(target=lambda one=one: answers.append(one.take())) for one in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers.count(None) == 1


def test_a_put_whose_reply_was_lost_counts(store: LocalStore) -> None:
    there = ObjectStore(store.storage())
    tag = there.put_if("leases/lost", "mine", "here", tag=None)
    assert tag is not None
    assert there.put_if("leases/lost", "mine", "here", tag=None) == tag
    assert there.put_if("leases/lost", "theirs", "here", tag=None) is None
    assert there.put_if("leases/lost", "next", "here", tag="no such tag") is None
