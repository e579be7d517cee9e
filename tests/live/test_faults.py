"""The whole path under faults: a real server, the public commands, kill -9 at failpoints; then proof.

`CDC_LAKE_BUDGET` above 1 kills both loops at every point and adds rounds of random failpoints; a failing seed goes into
`CDC_LAKE_SEED`.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from cdc_lake.observability import failpoints as at
from cdc_lake_testing.beside import beside
from cdc_lake_testing.faults import Pipeline
from cdc_lake_testing.workload import Workload
from tests.conftest import Database

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(1200), pytest.mark.usefixtures("jars")]

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))

FILE = """\
version: 1
pipeline: {name}
source:
  type: postgres
  host: {host}
  port: {port}
  database: {name}
  user: {user}
  password: ${{env:FAULTS_PASSWORD}}
  tables: [public.w_items, public.w_pairs, public.w_texts, public.w_full]
snapshot: {{chunk_rows: 25}}
bronze:
  batch: {{max_transactions: 15, max_delay: 20 ms}}
silver:
  tables:
    - from: public.w_items
      rules: [{{rule: not_null, column: price, on_fail: quarantine}}]
    - {{from: public.w_pairs, format: iceberg}}
    - from: public.w_texts
      format: iceberg
      rules: [{{rule: not_null, column: n, on_fail: quarantine}}]
apply: {{parallelism: 1, driver_memory: 1 GiB}}
"""

RECEIVING = [(at.SNAPSHOT_CHUNK, 2), (at.COMMIT_RECEIVED, 7), (at.BRONZE_COMMITTED, 1), (at.CONFIRMED, 2)]
"""Where the receiver dies, in turn, and at which passage; by default within the copy and at one more by chance. All there
are, and many times, is test_receiver_kills: here it is the command."""

APPLYING = [
    (at.TABLE_MERGED, 2),  # within the first load: some tables have their content, others have not
    (at.QUARANTINE_RECORDED, 1),
    (at.BRANCH_WRITTEN, 1),
    (at.ALL_MERGED, 1),
    (at.PREPARED, 1),
    (at.TABLE_MERGED, 1),
    (at.CUT_WRITTEN, 1),
    (at.BATCH_ENTERED, 1),
]
"""Where apply dies, in turn; each is a start of Spark, so it is one of these by chance, with a greater budget all."""


@pytest.fixture
def pipeline(database: Database, tmp_path: Path) -> Pipeline:
    file = tmp_path / "pipelines" / "faults.yaml"
    file.parent.mkdir()
    where = {"name": database.name, "host": database.host, "port": database.port, "user": database.user}
    file.write_text(FILE.format(**where))
    os.environ["FAULTS_PASSWORD"] = database.password  # also read here, when the lake is looked into
    return Pipeline(file, {})


def go_on(workload: Workload, over: threading.Event) -> None:
    """Transaction after transaction."""
    while not over.wait(0.2):
        workload.run(1)


def test_killed_at_failpoints_both_loops_end_equal_to_the_source(
    database: Database, pipeline: Pipeline, dice: random.Random
) -> None:
    with database.connect() as sql:
        workload = Workload(sql, dice.randrange(1 << 30))
        workload.create_tables()
        workload.run(60)
        for name, passage in RECEIVING if BUDGET > 1 else [RECEIVING[0], dice.choice(RECEIVING[1:])]:
            pipeline.do("run", "--once", "--only", "receive", failpoint=f"{name}:{passage}")
            workload.run(60)
        pipeline.do("run", "--once", "--only", "receive")
        chosen = sorted(dice.sample(range(len(APPLYING)), 1 if BUDGET == 1 else len(APPLYING)))
        for name, passage in (APPLYING[n] for n in chosen):
            pipeline.do("run", "--once", "--only", "apply", failpoint=f"{name}:{passage}")
            workload.run(30)
            pipeline.do("run", "--once", "--only", "receive")
        for _ in range(BUDGET - 1):
            workload.run(40)
            name = dice.choice([*at.FAILPOINTS])
            with pipeline.command("run", "--once", failpoint=f"{name}:{dice.randint(1, 3)}") as run:
                print(name, run.wait(300))
        workload.run(20)
        pipeline.do("run", "--once")
        print(pipeline.prove(), dict(workload.done))


@pytest.mark.slow
@pytest.mark.timeout(3600)  # a dozen starts of Spark, each of which has four minutes
def test_signals_and_a_kill_of_both_loops_leave_a_state_to_go_on_from(
    database: Database, pipeline: Pipeline, dice: random.Random
) -> None:
    with database.connect() as sql:
        workload = Workload(sql, dice.randrange(1 << 30))
        workload.create_tables()
        workload.run(60)
        with beside(partial(go_on, workload)):
            with pipeline.command("run") as run:
                run.until("cut", 2)
                run.send(signal.SIGTERM)
                assert run.wait(60) == 0, f"a service that is asked to stop has done its work:\n{run.said}"
            for _ in range(BUDGET):
                with pipeline.command("run") as run:
                    run.until("cut")
                    time.sleep(dice.uniform(0, 5))
                    run.kill()
            with pipeline.command("run") as run:
                run.until("merge")
                run.kill_java()
                run.until("retry")
                run.until("cut", len(run.events("cut")) + 1)
                run.send(signal.SIGTERM)
                assert run.wait(60) == 0, f"a JVM that ends is started again:\n{run.said}"
            with pipeline.command("run") as run:
                run.until("merge")
                run.send_group(signal.SIGTERM)
                assert run.wait(60) == 0, f"also where the JVM is asked to stop:\n{run.said}"
            with pipeline.command("run", "--only", "apply") as run:
                run.until("cut")
                run.send(signal.SIGINT)
                assert run.wait(60) == 130, run.said
                assert run.events("summary"), f"asked once, it ends by itself:\n{run.said}"
            with pipeline.command("run") as run:
                run.until("merge")
                run.send(signal.SIGINT)
                time.sleep(dice.uniform(0, 0.5))
                run.send(signal.SIGINT)
                assert run.wait(20) == 130, run.said
        pipeline.do("run", "--once")
        print(pipeline.prove(), dict(workload.done))
