"""The receive loop over the family's wire when things break: cut connections, servers that repeat, a slot that is taken.

The source is a live PostgreSQL whose transactions are retold with CSNs, three of ten out of the order of the log. What
ends in bronze is the source, each transaction once; and in the csn domain of an ordinary slot every CSN is accounted for.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.connectors.gaussdb.adapter import check_resume
from cdc_lake.connectors.gaussdb.decoding import session_of
from cdc_lake.connectors.gaussdb.introspection import identify_server
from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.errors import CsnMissing, SlotActive, SlotAhead
from cdc_lake.source.gaussdb.slot import find_slot
from cdc_lake_testing.gaussdb.faults import Faults
from cdc_lake_testing.invariants import Known, invariants
from cdc_lake_testing.workload import Workload
from tests.bronze_replay import bronze_rows
from tests.gauss_client import wait_until
from tests.live.test_gaussdb_receive import project_of
from tests.live.test_gaussdb_workload import PASSWORD, Kind, StandIn, stand_in
from tests.live.test_receive_loop import once
from tests.seeds import one_seed

pytestmark = pytest.mark.live

__all__ = ["stand_in"]

SEED = one_seed()
BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
KINDS = [Kind(Style.BINARY, batch=True), Kind(Style.SERIAL), Kind(Style.JSON, batch=True, by_csn=True)]

CHILD = """
import sys, threading
from pathlib import Path
from cdc_lake.bronze.open import bronze_writer
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.runtime.receive.receiver import receive
root = Path(sys.argv[1])
project = Project(Pipeline.model_validate_json((root / "pipeline.json").read_text()), root / "p.yaml", root)
def tell(p):
    print(p.stage, flush=True)
receive(project, bronze_writer(project), once=False, stop=threading.Event(), report=tell)
"""


def assert_whole(project: Project) -> None:
    invariants(project, Known(source=True, silver=False)).assert_held("I1", "I3", "I5", "I6")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.slot)
def test_connections_cut_anywhere_and_repeats_of_what_was_confirmed(
    stand_in: StandIn, kind: Kind, tmp_path: Path
) -> None:
    print("CDC_LAKE_SEED =", SEED)
    dice = random.Random(SEED)
    project = project_of(stand_in, kind, tmp_path)
    server = stand_in.servers[kind.by_csn]
    with stand_in.database.connect() as conn:
        workload = Workload(conn, SEED, truncates=kind.style is Style.SERIAL)
        workload.run(30)
        once(project)
        for _ in range(BUDGET):
            workload.run(60)
            everything = Faults(repeat_from=0, keepalive_ahead=0 if kind.style is Style.SERIAL else 1 << 30)
            server.inject(
                Faults(cut_after=dice.randint(0, 20_000), repeat_from=0),
                Faults(reset_after=dice.randint(0, 20_000), single_bytes=2000, cuts=(1, 2, 3)),
                everything,
            )
            summary = once(project)
            assert summary.reconnects >= 1
    assert_whole(project)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.slot)
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
    assert_whole(project)


@contextmanager
def child(project: Project, folder: Path, wanted: str) -> Iterator[None]:
    """A receiver in a process of its own, up to where it says `wanted`; killed at the end."""
    document = project.pipeline.model_dump(mode="json", by_alias=True)
    document["source"]["password"] = PASSWORD
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
    slots = stand_in.servers[kind.by_csn].state.slots

    def read() -> bool:
        return any(pid is not None for slot, pid in slots.all() if slot.name == project.slot)

    with child(project, tmp_path, "connect"):  # which it also says of other things, before it has the slot
        wait_until(read)
        with pytest.raises(SlotActive):
            once(project, slot_patience=2)
    wait_until(lambda: not read())  # a server that has much to do is slow to notice that its client is gone
    once(project)


def test_a_slot_that_another_receiver_moves_while_it_is_looked_at_is_one_that_is_read(
    stand_in: StandIn, tmp_path: Path
) -> None:
    """As seen by a second receiver, which read bronze before the first one landed and confirmed."""
    project = project_of(stand_in, Kind(Style.BINARY, batch=True), tmp_path)
    once(project)
    before = bronze_reader(project).state()
    with stand_in.database.connect() as conn:
        conn.execute("CREATE TABLE raced (id int PRIMARY KEY); INSERT INTO raced VALUES (1)")
    once(project)
    assert before is not None
    with session_of(project) as session, pytest.raises(SlotActive, match="read by another receiver"):
        check_resume(project, session, identify_server(project, session), before, find_slot(session, project.slot))
    project.bronze.rename(project.bronze.with_name("away"))
    with session_of(project) as session, pytest.raises(SlotAhead):
        check_resume(project, session, identify_server(project, session), before, find_slot(session, project.slot))
