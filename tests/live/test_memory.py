"""The memory of a receiver does not grow with the transaction: each size in a process of its own, its peak by the system.

10, 100, 300 and 1,000 MB on the wire with a `CDC_LAKE_BUDGET` of ten, else two small ones; of the stand-in, which holds what
it sends in memory, up to 300.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.model.position import Span
from tests.conftest import Database, drop_database, make_database
from tests.live import test_gaussdb_receive, test_receive_loop
from tests.live.kill_sources import decoding_server
from tests.live.test_gaussdb_workload import PASSWORD, Kind, StandIn, stand_in
from tests.live.test_receive_loop import once
from tests.tally import tally

pytestmark = [pytest.mark.live, pytest.mark.timeout(1800)]

__all__ = ["decoding_server", "stand_in"]

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
SIZES = (10, 100, 300, 1000) if BUDGET >= 10 else (10, 60)
SMALLER = SIZES[:3] if BUDGET >= 10 else (10, 30)
ROW = 400  # bytes of a row as it is sent
GROWTH, MOST = 1.2, 400  # times that of the smallest; MiB
CHILD = """
from cdc_lake.cli import arrow_memory as lean_arrow
lean_arrow.load()
import sys, threading
from pathlib import Path
from cdc_lake.bronze.open import bronze_writer
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.observability.events import silent
from cdc_lake.runtime.receive.receiver import receive
from cdc_lake_testing.memory import hashing_beside, peak_mib
root = Path(sys.argv[1])
project = Project(Pipeline.model_validate_json((root / "pipeline.json").read_text()), root / "p.yaml", root)
with hashing_beside() as beside:
    done = receive(
        project, bronze_writer(project), once=True, stop=threading.Event(), report=lean_arrow.giving_back(silent)
    )
print(done.changes, done.bytes, round(peak_mib()), round(max(beside, default=0)))
"""


@dataclass(frozen=True)
class Case:
    """How transactions come. `streaming`: before their end, as PostgreSQL can; `sizes`: in MB."""

    source: str
    fmt: str
    streaming: str = "off"
    sizes: Sequence[int] = SIZES

    def __str__(self) -> str:
        return f"{self.source} {self.streaming} {self.fmt}"


CASES = [
    Case("pgoutput", "delta", "on"),
    Case("test_decoding", "iceberg"),
    Case("family", "delta", sizes=SMALLER),
    Case("pgoutput", "delta"),
    Case("pgoutput", "iceberg", "on"),
    Case("test_decoding", "delta"),
    Case("family", "iceberg", sizes=SMALLER),
]  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A pipeline of one table, which is not there yet, and its database."""

    project: Project
    password: str
    database: Database


@contextmanager
def place(case: Case, request: pytest.FixtureRequest, root: Path) -> Iterator[Place]:
    more: dict[str, Any] = {"bronze": {"format": case.fmt}}
    if case.source == "family":
        site: StandIn = request.getfixturevalue("stand_in")
        kind = Kind(Style.BINARY, batch=True, by_csn=case.fmt == "iceberg")
        project = test_gaussdb_receive.project_of(site, kind, root, source={"tables": ["public.big"]}, **more)
        yield Place(project, PASSWORD, site.database)
    elif case.source == "test_decoding":
        database = make_database(request.getfixturevalue("decoding_server"))
        slot = {"name": f"by_lines_{database.name}", "plugin": "test_decoding"}
        project = test_receive_loop.project_of(database, root, source={"slot": slot}, **more)
        yield Place(project, database.password, database)
        drop_database(database)
    else:
        database = request.getfixturevalue("database")
        streams = {"decoding": {"streaming": case.streaming}}
        yield Place(test_receive_loop.project_of(database, root, source=streams, **more), database.password, database)


@pytest.mark.parametrize("case", CASES if BUDGET >= 10 else CASES[:3], ids=str)
def test_a_transaction_of_any_size_takes_the_memory_of_a_small_one(
    request: pytest.FixtureRequest, tmp_path: Path, case: Case
) -> None:
    with place(case, request, tmp_path) as there, there.database.connect() as conn:
        document = there.project.pipeline.model_dump(mode="json", by_alias=True)
        document["source"]["password"] = there.password
        (tmp_path / "pipeline.json").write_text(json.dumps(document))
        conn.execute("DROP TABLE IF EXISTS big")
        conn.execute("CREATE TABLE big (id bigint PRIMARY KEY, a text, b text)")
        once(there.project)
        peaks = {size: landed(there, conn, size, tmp_path) for size in case.sizes}
        state = bronze_reader(there.project).state()
        assert state is not None
        commits = bronze_reader(there.project).commits(Span(state.epoch, -1, state.upto))
        rows = sum(map(rows_of, case.sizes))
        assert sum(one.counts.get("public.big", {}).get("I", 0) for one in commits) == rows
    smallest = peaks[case.sizes[0]]
    assert max(peaks.values()) <= min(MOST, GROWTH * smallest), peaks
    faults = {f"{size} MB ({case.source})" for size in case.sizes}
    tally("R14", faults, transactions=len(case.sizes), megabytes=sum(case.sizes))


def rows_of(size: int) -> int:
    return size * 1_000_000 // ROW


def landed(there: Place, conn: psycopg.Connection[Any], size: int, root: Path) -> int:
    """Commit a transaction of so many megabytes, and land it; the most memory that took, in MiB."""
    first = size * 1_000_000  # no other size comes so far
    conn.execute(
        "INSERT INTO big SELECT n, repeat(md5(n::text), 5), repeat(md5((n + 1)::text), 6)"
        " FROM generate_series(%s::bigint, %s) n",
        [first, first + rows_of(size) - 1],
    )
    if there.project.pipeline.source.type == "postgres":  # the family does not tell of it
        conn.execute("TRUNCATE big")  # what is committed is sent all the same, and the disk is spared
    words = [sys.executable, "-c", CHILD, str(root)]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    changes, received, peak, beside = map(int, told)
    assert received >= 0.9 * size * 1_000_000
    print(f"{received >> 20} MiB and {changes} changes received, {peak} MiB at most, {beside} beside it")
    return peak + beside
