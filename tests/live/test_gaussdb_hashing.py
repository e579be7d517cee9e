"""The receive loop while rows are hashed in a process beside it: what lands is right, also where that one is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.connectors.hashing_process import HashingProcess
from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.decode.hashing import Canonical
from tests.live.test_gaussdb_receive import assert_equal_to_source, project_of
from tests.live.test_gaussdb_workload import Kind, StandIn, stand_in
from tests.live.test_receive_loop import once

pytestmark = pytest.mark.live

__all__ = ["stand_in"]


def test_a_hashing_process_that_is_killed_costs_a_reconnect_and_nothing_else(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = {"max_transactions": 20, "max_delay": "1 s"}
    project = project_of(stand_in, Kind(Style.BINARY, batch=True), tmp_path, bronze={"batch": batch})
    begin, pids = HashingProcess.__call__, []

    def killed_once(process: HashingProcess, parts: Sequence[Canonical]) -> Callable[[], list[bytes]]:
        found = begin(process, parts)
        if process.pid is not None and process.pid not in pids:
            pids.append(process.pid)
            if len(pids) == 1:
                os.kill(process.pid, signal.SIGKILL)
        return found

    monkeypatch.setattr(HashingProcess, "__call__", killed_once)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)  # whatever machine this is
    with stand_in.database.connect() as conn:
        conn.execute("CREATE TABLE wide (id int PRIMARY KEY, note text)")
        once(project)
        for first in range(0, 6_000, 2_000):
            conn.execute(
                "INSERT INTO wide SELECT n, repeat(md5(n::text), 15) FROM generate_series(%s::int, %s::int) n",
                (first, first + 1_999),
            )
        done = once(project)
    assert done.reconnects == 1
    assert done.changes == 6_000
    assert len(pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert_equal_to_source(project, stand_in)
    assert verify(bronze_reader(project)).holds
