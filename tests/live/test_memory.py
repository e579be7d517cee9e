"""The memory of a receiver does not grow with the transaction: each size in a process of its own, its peak by the system.

10, 100, 300 and 1,000 MB on the wire with a `CDC_LAKE_BUDGET` of ten, else the two smallest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.model.span import Span
from tests.conftest import Database
from tests.live.test_receive_loop import once, project_of
from tests.tally import tally

pytestmark = [pytest.mark.live, pytest.mark.timeout(1800)]

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
SIZES = (10, 100, 300, 1000) if BUDGET >= 10 else (10, 60)
ROW = 400  # bytes of a row as it is sent
GROWTH, MOST = 1.2, 400  # times that of the smallest; MiB
CHILD = """
from cdc_lake.cli import lean_arrow
lean_arrow.load()
import sys, threading
from pathlib import Path
from cdc_lake.bronze.open import bronze_writer
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.observe.progress import silent
from cdc_lake.pipeline.receive import receive
from cdc_lake.testing.memory import hashing_beside, peak_mib
root = Path(sys.argv[1])
project = Project(Pipeline.model_validate_json((root / "pipeline.json").read_text()), root / "p.yaml", root)
with hashing_beside() as beside:
    done = receive(project, bronze_writer(project), once=True, stop=threading.Event(), tell=silent)
print(done.changes, done.bytes, round(peak_mib()), round(max(beside, default=0)))
"""


@pytest.mark.parametrize("streaming", ["on", "off"])
def test_a_transaction_of_any_size_takes_the_memory_of_a_small_one(
    database: Database, tmp_path: Path, streaming: str
) -> None:
    project = project_of(database, tmp_path, source={"decoding": {"streaming": streaming}})
    document = project.pipeline.model_dump(mode="json", by_alias=True)
    document["source"]["password"] = database.password
    (tmp_path / "pipeline.json").write_text(json.dumps(document))
    peaks: dict[int, int] = {}
    with database.connect() as conn:
        conn.execute("CREATE TABLE big (id bigint PRIMARY KEY, a text, b text)")
        once(project)
        first = 0
        for size in SIZES:
            rows = size * 1_000_000 // ROW
            conn.execute(
                "INSERT INTO big SELECT n, repeat(md5(n::text), 5), repeat(md5((n + 1)::text), 6)"
                " FROM generate_series(%s::bigint, %s) n",
                [first, first + rows - 1],
            )
            first += rows
            conn.execute("TRUNCATE big")  # what is committed is sent all the same, and the disk is spared
            words = [sys.executable, "-c", CHILD, str(tmp_path)]
            told = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
            changes, received, peak, beside = map(int, told)
            assert changes == rows + 1
            assert received >= 0.9 * size * 1_000_000
            peaks[size] = peak + beside
            print(f"{streaming}: {received >> 20} MiB received, {peak} MiB at most, {beside} beside it")
    state = bronze_reader(project).state()
    assert state is not None
    counted = sum(one.changes for one in bronze_reader(project).commits(Span(state.epoch, -1, state.upto)))
    assert counted == first + len(SIZES)
    smallest = peaks[SIZES[0]]
    assert max(peaks.values()) <= min(MOST, GROWTH * smallest), peaks
    tally("R14", {f"{size} MB" for size in SIZES}, transactions=len(SIZES), megabytes=sum(SIZES))
