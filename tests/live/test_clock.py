"""Whatever the clock of the machine says, a day behind or ahead or jumping about, bronze and silver are the same.

Two pipelines read one source, one of them by a wrong clock. Order comes from the source, so nothing may differ but when
rows were landed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.config.loader import load_project
from cdc_lake_testing.faults import Pipeline
from cdc_lake_testing.invariants import Known, invariants
from cdc_lake_testing.workload import Workload
from cdc_lake_testing.wrong_clock import WrongClock, can_be_made
from tests.bronze_replay import bronze_rows
from tests.conftest import Database
from tests.tally import tally

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not can_be_made(), reason="a wrong clock needs a C compiler"),
]

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
DAY = 86_400
RECEIVE = ("run", "--only", "receive")

FILE = """\
version: 1
pipeline: {name}
source:
  type: postgres
  host: {database.host}
  port: {database.port}
  database: {database.name}
  user: {database.user}
  password: ${{env:CLOCK_PASSWORD}}
  tables: [public.w_items, public.w_pairs, public.w_texts, public.w_full]
bronze:
  batch: {{max_transactions: 15, max_delay: 20 ms}}
  maintenance: {{compact_after_files: 5}}
silver:
  tables:
    - {{from: public.w_items}}
    - {{from: public.w_pairs, kind: history}}
    - {{from: public.w_texts, format: {fmt}}}
apply: {{parallelism: 1, driver_memory: 1 GiB}}
"""


def until_summer_time_ends() -> int:
    """Seconds to a moment at which the clocks of Berlin are about to go back."""
    return round(datetime(2027, 10, 31, 0, 59, 58, tzinfo=UTC).timestamp() - time.time())


SHIFTS = {
    "a day behind": lambda: -DAY,
    "a day ahead": lambda: DAY,
    "summer time ends": until_summer_time_ends,
}


@pytest.fixture
def clock(tmp_path: Path) -> WrongClock:
    return WrongClock(tmp_path / "clock")


def pipeline_of(database: Database, root: Path, name: str, environment: dict[str, str], fmt: str = "delta") -> Pipeline:
    file = root / name / "pipelines" / "clock.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(FILE.format(name=name, database=database, fmt=fmt))
    os.environ["CLOCK_PASSWORD"] = database.password  # also read here, when the lake is looked into
    return Pipeline(file, environment)


def landed(pipeline: Pipeline) -> tuple[list[dict[str, Any]], set[tuple[str, ...]]]:
    """Everything in bronze but what tells of the stream's own slot and of the time of landing; the layouts apart."""
    rows, layouts, form = [], set(), {}
    for row in bronze_rows(load_project(pipeline.file)):
        told = {name: value for name, value in row.items() if name not in {"stream", "ingest_ts", "info"}}
        info = json.loads(row["info"]) if row["info"] is not None else None
        if row["op"] == "R":  # again with every commit that uses it
            info.pop("storage", None)  # the file of the table when the catalog was asked: TRUNCATE gives it another
            form[row["layout"]] = json.dumps(info, sort_keys=True)
            layouts.add((row["relation"], form[row["layout"]]))
            continue
        if row["op"] == "C":
            assert info.pop("hash")  # of the chain, which begins with the stream
        rows.append({**told, "layout": form.get(row["layout"]), "info": info})
    return rows, layouts


def test_bronze_by_a_wrong_clock_is_bronze_by_a_right_one(
    database: Database, tmp_path: Path, clock: WrongClock, dice: random.Random
) -> None:
    right = pipeline_of(database, tmp_path, "by_a_right_clock", {})
    wrong = pipeline_of(database, tmp_path, "by_a_wrong_clock", {**clock.environment, "TZ": "Europe/Berlin"})
    jumps = 10 * BUDGET
    with database.connect() as conn:
        workload = Workload(conn, dice.randrange(1 << 30))
        workload.create_tables()
        for pipeline in (right, wrong):
            pipeline.do(*RECEIVE, "--once")
        for shift in SHIFTS.values():
            workload.run(20 * BUDGET)
            clock.shift(shift())
            wrong.do(*RECEIVE, "--once")
        clock.shift(0)
        with wrong.command(*RECEIVE) as receiver:
            for number in range(jumps):
                clock.shift(dice.choice([-1, 1]) * dice.randint(1, 3 * DAY))
                workload.run(10)
                receiver.until("landed", number // 3 + 1)
            receiver.send(signal.SIGTERM)
            assert receiver.wait(120) == 0, receiver.said
        for pipeline in (right, wrong):
            pipeline.do(*RECEIVE, "--once")
    (rows, layouts), (expected, others) = landed(wrong), landed(right)
    assert layouts == others
    assert rows == expected
    assert len(rows) > 100
    for pipeline in (right, wrong):
        assert json.loads(pipeline.do("inspect", "chain", "--against", "source").output)["holds"]
        known = Known(source=True, silver=False)
        invariants(load_project(pipeline.file), known).assert_held("I1", "I3", "I5", "I6")
    tally("R18", {*SHIFTS, "jumps"}, shifts=len(SHIFTS) + jumps, rows=len(rows))
