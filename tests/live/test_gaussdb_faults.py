"""The receive loop over the family's wire when things go wrong: cuts, stalls, crashes, kills; nothing lost or twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.config.project import Project
from cdc_lake.decode.mppdb.records import Style
from cdc_lake.errors import CsnMissing, SlotActive
from cdc_lake.observe.progress import silent
from cdc_lake.pipeline.receive import receive
from cdc_lake.testing.gaussdb.faults import Faults
from cdc_lake.testing.workload import Workload
from tests.live.test_gaussdb_receive import assert_equal_to_source, project_of
from tests.live.test_gaussdb_workload import Kind, StandIn, stand_in
from tests.live.test_receive_loop import CHILD, bronze_rows, once

pytestmark = pytest.mark.live

__all__ = ["stand_in"]

SEED = int(os.environ.get("CDC_LAKE_SEED", random.getrandbits(32)))
BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))

KINDS = [
    Kind(Style.BINARY, batch=True),
    Kind(Style.BINARY, batch=True, by_csn=True),
    Kind(Style.JSON),
    Kind(Style.TEXT, batch=True),
    Kind(Style.SERIAL),
]


@pytest.fixture
def dice() -> random.Random:
    print("CDC_LAKE_SEED =", SEED)
    return random.Random(SEED)


def assert_each_landed_once(project: Project) -> None:
    times = Counter(row["csn"] for row in bronze_rows(project) if row["op"] == "C")
    assert max(times.values(), default=1) == 1


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.slot)
def test_connections_cut_anywhere_lose_and_repeat_nothing(
    stand_in: StandIn, kind: Kind, tmp_path: Path, dice: random.Random
) -> None:
    project = project_of(stand_in, kind, tmp_path)
    server = stand_in.servers[kind.by_csn]
    with stand_in.database.connect() as conn:
        workload = Workload(conn, SEED, truncates=kind.style is Style.SERIAL)
        workload.run(20)
        once(project)
        workload.run(60)
        for _ in range(3 * BUDGET):
            after = dice.randrange(20_000)
            server.inject(dice.choice((Faults(cut_after=after), Faults(reset_after=after))))
        # a parallel reader runs ahead of what was sent; what serial decoding announces was sent
        server.inject(Faults(single_bytes=2_000, keepalive_ahead=0 if kind.style is Style.SERIAL else 1 << 20))
        summary = once(project)
        workload.run(20)
        once(project)
    assert summary.reconnects > 0
    assert_equal_to_source(project, stand_in)
    assert_each_landed_once(project)


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[1], KINDS[4]], ids=lambda kind: kind.slot)
def test_what_a_crashed_server_sends_again_is_dropped(stand_in: StandIn, kind: Kind, tmp_path: Path) -> None:
    project = project_of(stand_in, kind, tmp_path)
    server = stand_in.servers[kind.by_csn]
    with stand_in.database.connect() as conn:
        workload = Workload(conn, SEED, truncates=kind.style is Style.SERIAL)
        once(project)
        server.restart()  # a checkpoint: what is confirmed after it, a crash forgets
        for _ in range(3):
            workload.run(20)
            once(project)
            server.crash()
        workload.run(5)
        once(project)
    assert_equal_to_source(project, stand_in)
    assert_each_landed_once(project)


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[4]], ids=lambda kind: kind.slot)
def test_a_receiver_killed_at_random_points_loses_nothing_and_repeats_nothing(
    stand_in: StandIn, kind: Kind, tmp_path: Path, dice: random.Random
) -> None:
    project = project_of(stand_in, kind, tmp_path)
    with stand_in.database.connect() as conn:
        workload = Workload(conn, SEED, truncates=kind.style is Style.SERIAL)
        workload.run(40)
        for wanted in ("snapshot", "snapshot", "connect", "connect") + ("connect",) * (BUDGET - 1):
            with child(project, tmp_path, wanted):
                if wanted == "connect":
                    workload.run(dice.randint(0, 60))
                time.sleep(dice.uniform(0, 0.2))
        workload.run(10)
    receive(project, DeltaBronze(project.bronze, "os"), once=True, stop=threading.Event(), tell=silent)
    assert_equal_to_source(project, stand_in)
    assert_each_landed_once(project)


@contextmanager
def child(project: Project, folder: Path, wanted: str) -> Iterator[None]:
    """A receiver in a process of its own, up to where it says `wanted`; killed at the end."""
    document = project.pipeline.model_dump(mode="json", by_alias=True)
    document["source"]["password"] = project.family.password.get_secret_value()  # type: ignore[union-attr]
    (folder / "pipeline.json").write_text(json.dumps(document))
    process = subprocess.Popen([sys.executable, "-c", CHILD, folder], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == wanted:
                break
        yield
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_csn_that_never_arrives_stops_the_receiver_and_is_named(stand_in: StandIn, tmp_path: Path) -> None:
    project = project_of(stand_in, Kind(Style.BINARY, batch=True), tmp_path, source={"csn_gap": {"bound": "1 s"}})
    once(project)
    with stand_in.database.connect() as conn:
        conn.execute("INSERT INTO w_items (id) VALUES (1)")
        stand_in.live.settled()
        lost = stand_in.live.lose_csn()
        conn.execute("INSERT INTO w_items (id) VALUES (2)")
        with pytest.raises(CsnMissing, match=f"CSN {lost} did not arrive"):
            once(project)
    landed = [row["new"][0] for row in bronze_rows(project) if row["op"] == "I"]
    assert landed == ["1"]


def test_a_slot_that_somebody_reads_is_waited_for_and_then_named(stand_in: StandIn, tmp_path: Path) -> None:
    kind = Kind(Style.BINARY, batch=True)
    project = project_of(stand_in, kind, tmp_path)
    once(project)
    with child(project, tmp_path, "connect"), pytest.raises(SlotActive):
        once(project)
    once(project)
