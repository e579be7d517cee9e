"""A server that is stopped at once, as in a crash, again and again while it is written to: nothing lost, nothing twice.

Its slot forgets what was confirmed since its last checkpoint, and the receiver begins behind what bronze holds.
`CDC_LAKE_BUDGET` 10 stops it twenty times, in a stream and where it is polled; how many rows land before each stop is by
chance, and it is counted how often the slot stood behind bronze when the server was back.
"""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import psycopg
import pytest

from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.model.position import Lsn
from cdc_lake.observability.events import ProgressEvent
from cdc_lake_testing.beside import beside, streams, until
from cdc_lake_testing.invariants import Known, invariants
from cdc_lake_testing.ledger import at_source
from cdc_lake_testing.watermarks import Watch
from tests.conftest import Database, make_database, make_role, start_server
from tests.live.test_receive_loop import once, project_of, running
from tests.live.test_source_faults import landed, make_table
from tests.seeds import one_seed
from tests.tally import tally

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
STOPS = 2 * BUDGET


def write_until(stop: threading.Event, database: Database) -> None:
    """Rows one by one, over a new connection where the server went."""
    number = 0
    while not stop.is_set():
        try:
            with database.connect() as conn:
                while not stop.is_set():
                    number += 1
                    conn.execute("INSERT INTO t VALUES (%s, 'under load')", [number])
                    stop.wait(0.003)
        except psycopg.OperationalError:
            stop.wait(0.05)


def confirmed(database: Database, slot: str) -> int:
    """What the server knows of the slot."""
    with database.connect() as conn:
        row = conn.execute("SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s", [slot])
        (text,) = row.fetchone() or ("0/0",)
    return Lsn.parse(text).value


@pytest.mark.parametrize("mode", ["stream", "polling"] if BUDGET > 1 else ["stream"])
def test_a_server_that_is_stopped_at_once_under_load_loses_nothing(tmp_path: Path, mode: str) -> None:
    seed = one_seed()
    print(f"seed {seed}")
    dice = random.Random(seed)
    server = start_server()
    try:
        make_role(server)
        database = make_database(server)
        make_table(database)
        project = project_of(database, tmp_path, source={"mode": mode, "polling": {"interval": "50 ms"}})
        told: list[ProgressEvent] = []
        watch, rewound = Watch(project), 0
        with running(project, told) as receiver, beside(lambda stop: write_until(stop, database)):
            for round_ in range(STOPS):
                until(lambda seen=round_: streams(told) > seen, "it streams")
                least = max(landed(project), default=0) + dice.randint(1, 60)
                until(lambda least=least: max(landed(project), default=0) > least, "rows land")
                server.stop("immediate")
                held = BronzeReader(project.bronze).state()
                server.start()
                watch.look()
                rewound += held is not None and confirmed(database, project.slot) < held.confirm
            until(lambda: streams(told) > STOPS, "it streams again")
        done = receiver.result()
        assert done.reconnects >= STOPS
        once(project)
        with database.connect() as conn:
            rows = at_source(conn, "public.t", "id")
        known = Known(source=True, silver=False, ledger=rows, watch=watch)
        invariants(project, known).assert_held("I1", "I2", "I3", "I5", "I6")
        tally("R5", [mode], stops=STOPS, changes=len(rows.written), **{"slots behind bronze": rewound})
    finally:
        server.remove()
