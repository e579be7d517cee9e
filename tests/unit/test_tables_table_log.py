"""The logs of silver tables in a folder and in an object store, and what is written into commits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.control.cuts import table_states
from cdc_lake.model.relation import TableName
from cdc_lake.tables.object_store import LEASE, HeldLease
from cdc_lake.tables.silver_table import Marker, commit_note, noted_app, planned_for
from cdc_lake_testing.object_store import ACCESS_KEY, SECRET_KEY, LocalStore
from tests.pipeline_file import make_project
from tests.table_log_contract import *  # noqa: F403 - the tests of the contract
from tests.table_log_contract import MakePlace, Place


def serve(connection: Connection) -> None:
    """A store in a process of its own: delta-rs waits for some requests without letting another thread answer them."""
    with LocalStore() as running:
        running.bucket("lake")
        connection.send(running.endpoint)
        connection.recv()


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """Its endpoint."""
    spawn = get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=serve, args=(theirs,))
    process.start()
    yield ours.recv()
    ours.send(None)
    process.join()


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> MakePlace:
    """A place of each kind."""
    lake: dict[str, Any] = {"path": "lake"}
    if request.param == "s3":
        storage = {
            "endpoint": request.getfixturevalue("store"), "region": "us-east-1", "allow_http": True,
            "access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY,
        }  # fmt: skip
        catalog = {"uri": f"sqlite:///{tmp_path}/catalog.db"}
        lake = {"path": f"s3://lake/{tmp_path.name}", "storage": storage, "iceberg": catalog}

    def make_place(fmt: str) -> Place:
        project = make_project(tmp_path, lake=lake, silver={"defaults": {"format": fmt}})
        return Place(project, project.target(TableName("public", "t")))

    return make_place


def test_the_metadata_of_a_commit_says_for_which_watermark_it_was_planned() -> None:
    assert planned_for(commit_note("app", 7, Marker(5, 1))) == (5,)
    assert planned_for(commit_note("app", 7, Marker(None, None))) == (None,)
    held = LEASE.set(HeldLease("apply", 3))
    try:
        assert json.loads(commit_note("app", 7, Marker(5, 1)))["cdc_lake"]["epoch"] == 3
    finally:
        LEASE.reset(held)
    assert noted_app(commit_note("app", 7, Marker(5, 1))) == ("app", 7)
    assert noted_app(commit_note("app", None, Marker(None, None))) == ("app", None)
    assert planned_for("cdc_lake: planned for 5") == (5,)
    assert planned_for("cdc_lake: planned for no watermark") == (None,)
    for other in ("", "null", "5", "[]", '{"cdc_lake": 1}', '{"cdc_lake": {}}', '{"cdc_lake": {"planned_for": "x"}}'):
        assert planned_for(other) is None
        assert noted_app(other) == ("", None)


def test_a_cut_of_an_older_version_knew_only_the_first_generation() -> None:
    facts = {"table": "silver.t", "format": "delta", "version": 3, "position": 10, "state": "active", "held": 0}
    assert table_states(json.dumps({"public.t": facts}))["public.t"].generation == 1
