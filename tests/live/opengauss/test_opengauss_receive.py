"""Every way to read a slot of a server of the family ends in bronze, whole: also after kill -9."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cdc_lake.errors import ServerSettings
from cdc_lake.source.base import StreamIdentity
from tests.bronze_replay import bronze_rows
from tests.live.opengauss.receiving import FAST, KINDS, SERIAL, Kind, Place, assert_equal, once
from tests.live.test_gaussdb_faults import CHILD
from tests.seeds import one_seed

pytestmark = pytest.mark.live

SEED = one_seed()
BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))


def lands_whole(place: Place, kind: Kind, transactions: int) -> None:
    """Copy, changes, and a second run that goes on: each ends equal to the source."""
    print("CDC_LAKE_SEED =", SEED)
    project = place.project(kind)
    with place.site.sql() as session:
        workload = place.workload(session, SEED, truncates=kind.serial)
        workload.run(transactions)
        first = once(project)
        assert first.snapshot_rows > 0
        assert_equal(project, place, workload)
        workload.run(transactions)
        second = once(project)
        assert second.snapshot_rows == 0
        assert second.transactions > 0
        assert_equal(project, place, workload)
    positions = [row["position"] for row in bronze_rows(project) if row["op"] == "C"]
    assert positions == sorted(set(positions))
    assert StreamIdentity.parse(second.stream or "").domain.value == ("lsn" if kind.serial else "csn")
    assert once(project).transactions == 0


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_copy_and_changes_land_whole_and_a_second_run_goes_on(place: Place, kind: Kind) -> None:
    lands_whole(place, kind, 80 * BUDGET)


def test_a_slot_behind_sql_functions_gives_the_same(place: Place) -> None:
    polling = {"mode": "polling", "decoding": {}, "replication_port": 1, "polling": {"max_changes": 50}}
    project = place.project(SERIAL, source=place.document(SERIAL)["source"] | polling)
    with place.site.sql() as session:
        workload = place.workload(session, SEED, truncates=True)
        workload.run(40)
        assert once(project).snapshot_rows > 0
        workload.run(80 * BUDGET)
        assert once(project).transactions > 0
        assert_equal(project, place, workload)
    assert once(project).transactions == 0


def test_settings_of_the_database_that_parallel_decoders_print_by(place: Place) -> None:
    """Other than serial decoding they do not look at what a session asks for."""
    database = place.site.address.database
    with place.site.sql() as session:
        workload = place.workload(session, SEED, truncates=True)
        session.query(f"ALTER DATABASE \"{database}\" SET DateStyle = 'SQL, DMY'")
        session.query(f'ALTER DATABASE "{database}" SET bytea_output = escape')
        session.query(f"ALTER DATABASE \"{database}\" SET TimeZone = 'Asia/Shanghai'")
        try:
            with pytest.raises(ServerSettings, match="DateStyle = SQL, DMY, bytea_output = escape"):
                once(place.project(FAST))
            project = place.project(SERIAL)
            once(project)
            workload.run(60)
            once(project)
            assert_equal(project, place, workload)
        finally:
            for name in ("DateStyle", "bytea_output", "TimeZone"):
                session.query(f'ALTER DATABASE "{database}" RESET {name}')


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", [FAST, SERIAL], ids=str)
def test_a_receiver_killed_at_random_points_loses_nothing_and_repeats_nothing(
    place: Place, kind: Kind, tmp_path: Path
) -> None:
    print("CDC_LAKE_SEED =", SEED)
    dice = random.Random(SEED)
    (tmp_path / "pipeline.json").write_text(json.dumps(place.document(kind)))
    with place.site.sql() as session:
        workload = place.workload(session, SEED, truncates=kind.serial)
        workload.run(40)
        # twice inside the copy, then at any moment of streaming
        for wanted in ("snapshot", "snapshot", *("connect",) * 4 * BUDGET):
            child = subprocess.Popen([sys.executable, "-c", CHILD, tmp_path], stdout=subprocess.PIPE, text=True)
            try:
                assert child.stdout is not None
                for line in child.stdout:
                    if line.strip() in {wanted, "connect"}:  # the copy may have ended before the kill
                        break
                if wanted == "connect":
                    workload.run(dice.randint(0, 60))
                time.sleep(dice.uniform(0, 0.3))
            finally:
                os.kill(child.pid, signal.SIGKILL)
                child.communicate()
        workload.run(10)
        project = place.project(kind)
        once(project)
        assert_equal(project, place, workload)
