"""Apply as the command it is, killed at every step, with its JVM or one of the two alone: the next start ends at the
oracle's state.

`CDC_LAKE_BUDGET` 10 takes every point three times on each format; by default one, by the seed that is printed.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
import yaml

from cdc_lake.bronze.open import bronze_writer
from cdc_lake.config.loader import load_project
from cdc_lake.config.project import Project
from cdc_lake.model.change import Transaction
from cdc_lake.model.relation import TableName
from cdc_lake.observability import failpoints as at
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake_testing.committed import Committed
from cdc_lake_testing.faults import KILLED, Pipeline
from cdc_lake_testing.histories import History, interleave, with_column
from cdc_lake_testing.invariants import Known, invariants
from cdc_lake_testing.messages import TYPE_OIDS, raw_transaction
from tests.pipeline_file import lake_section
from tests.seeds import one_seed
from tests.silver_commits import silver_files
from tests.tally import tally

from .committed_lake import LOOKED_AT
from .formats import FORMATS
from .interrupted_pipeline import TRIES
from .two_tables import PLAIN, WHOLE, breaks

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.usefixtures("jars")]

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))

FILE = """\
version: 1
pipeline: killed
source: {{type: postgres, host: h, database: d, user: u, tables: ["public.*"]}}
snapshot: {{mode: none}}
silver:
  defaults: {{format: {fmt}}}
  tables:
    - from: public.plain
      rules: [{{rule: between, column: amount, min: 0, max: 89, on_fail: quarantine}}]
apply: {{parallelism: 1, driver_memory: 1 GiB, span_rows: 40}}
"""

FAILPOINTS = [at.PREPARED, at.QUARANTINE_RECORDED, at.TABLE_MERGED, at.ALL_MERGED, at.CUT_WRITTEN]
if "CDC_LAKE_TEST_LAKE" not in os.environ:  # Spark streams bronze only from a folder
    FAILPOINTS += [at.BATCH_ENTERED, at.BATCH_LEFT]
MERGING, AT_RANDOM = "a merge has written its first file", "at any moment"
POINTS = [*FAILPOINTS, MERGING, AT_RANDOM]
BOTH, PYTHON, JAVA = "both", "python alone", "the JVM alone"


def data_files(project: Project) -> set[str]:
    tables = (PLAIN.table, WHOLE.table)
    return {file for name in tables if exists(project, name) for file in silver_files(project, name)[0]}


def exists(project: Project, name: TableName) -> bool:
    return table_log(project, project.target(name)).exists()


def kill_at(pipeline: Pipeline, project: Project, point: str, who: str, dice: random.Random) -> bool:
    """Start apply, and kill it there, or what of it; a JVM that is left may go on while the next one works. False where
    it came to its end before.
    """
    failpoint = point if point in FAILPOINTS else ""
    before = data_files(project)
    with pipeline.command("run", "--once", "--only", "apply", failpoint=failpoint) as command:
        if failpoint:
            code = command.wait(300)
            assert code in {KILLED, 0}, command.said
            struck = code == KILLED
        else:
            while data_files(project) == before:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    assert command.wait(0.005) == 0, command.said
                    break
            if point == AT_RANDOM:
                time.sleep(dice.uniform(0, 2))
            struck = command.running
        if who == JAVA:
            command.kill_java()
            assert command.wait(120) in {0, 4}, command.said
        elif who == PYTHON:
            if not failpoint:
                command.send(signal.SIGKILL)
            pipeline.do("run", "--once", "--only", "apply")
        # what is left of it goes here
    return struck


@FORMATS
def test_killed_with_its_jvm_anywhere_apply_goes_on_where_the_tables_say(tmp_path: Path, fmt: str) -> None:
    seed = one_seed()
    dice = random.Random(seed)
    kills = [(point, who) for point in POINTS for who in (BOTH, PYTHON, JAVA if point not in FAILPOINTS else BOTH)]
    if BUDGET == 1:
        kills = [dice.choice([(point, who) for point, who in kills if (who == PYTHON) == (fmt == "delta")])]
    dice.shuffle(kills)
    print(f"seed {seed}, {fmt}: {kills}")
    file = tmp_path / "killed.yaml"
    file.write_text(
        FILE.format(fmt=fmt) + "".join(yaml.safe_dump({key: value}) for key, value in lake_section(tmp_path).items())
    )
    project, pipeline = load_project(file), Pipeline(file, {})
    bronze, landed = bronze_writer(project), list[Transaction]()
    bronze.begin_stream("test", 10)
    history, plain = History(seed, [PLAIN, WHOLE], truncates=30), PLAIN
    position = 1000

    def land(count: int) -> None:
        nonlocal position
        made = interleave(dice.randrange(1 << 20), [history], count, first=position)
        position += 10 * count
        landed.extend(made)
        bronze.append([raw_transaction(one) for one in made])

    struck: Counter[str] = Counter()
    for number, (point, who) in enumerate(kills):
        if number % 4 == 3:  # so that the next kill meets a change of columns
            plain = with_column(plain, f"note{number}", "text", TYPE_OIDS["text"])
            history.add_column(plain)
            land(10)
        for _ in range(TRIES):
            land(25)
            if kill_at(pipeline, project, point, who, dice):
                struck.update([point, who])
                break
        else:
            assert point not in FAILPOINTS, f"{point} was not passed"
    land(5)
    pipeline.do("run", "--once", "--only", "apply")
    known = Known(committed=Committed(landed, breaks), applied=True)
    invariants(project, known).assert_held(*LOOKED_AT)
    with_jvm = struck[BOTH] + struck[JAVA]
    tally("R3", struck, **{"kills with the JVM": with_jvm, "kills of Python alone": struck[PYTHON]})
