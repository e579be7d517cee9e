"""Compare while writes go on: silver stays behind, and only what was planted in it is told."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from cdc_lake.bronze.open import bronze_writer
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.comparison.compare import compare
from cdc_lake.config.project import Project
from cdc_lake.control.verdicts import TableComparison, Verdict
from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import silent
from cdc_lake.runtime.receive.receiver import receive
from cdc_lake.tables.silver_table import FIRST, app_id
from tests.conftest import Database
from tests.live.test_compare_tables import Lake
from tests.live.test_gaussdb_receive import project_of
from tests.live.test_gaussdb_workload import Kind, StandIn, stand_in
from tests.live.test_receive_loop import once
from tests.seeds import seeds

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore:The 'without_files' parameter:DeprecationWarning")]

__all__ = ["stand_in"]

ROWS = 1_000
PLANTED = 77
BUSY = TableName("public", "busy")
SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("note", pa.string()), ("wide", pa.string())])


def fill(sql: psycopg.Connection[Any]) -> None:
    sql.execute("CREATE TABLE busy (id int8 PRIMARY KEY, n int4, note text, wide text)")
    sql.execute(
        "INSERT INTO busy SELECT i, 0, 'row ' || i, repeat(md5(i::text), 100) FROM generate_series(1, %s) i", (ROWS,)
    )


def write_silver(project: Project, sql: psycopg.Connection[Any]) -> None:
    """Silver as the source is now, but for one value."""
    rows = sql.execute(
        "SELECT id, n, CASE WHEN id = %s THEN 'other' ELSE note END, wide FROM busy", (PLANTED,)
    ).fetchall()
    columns = zip(*rows, strict=True)
    made = pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
    target, state = project.target(BUSY), BronzeReader(project.bronze).state()
    assert state is not None
    marker = Transaction(app_id(state.stream, target, FIRST), state.upto)
    properties = CommitProperties(app_transactions=[marker])
    write_deltalake(str(project.silver_path(target)), made, commit_properties=properties)


@contextmanager
def writes(database: Database, seed: int) -> Iterator[list[int]]:
    """Writers of their own that leave the planted row alone; what is given grows with their transactions."""
    stop, done = threading.Event(), []

    def write(number: int) -> None:
        dice = random.Random(seed + number)
        with database.connect() as sql:
            for new in itertools.count(1_000_000 + number, 3):
                if stop.is_set():
                    return
                key, other = [k for k in dice.sample(range(number + 1, ROWS, 3), 3) if k != PLANTED][:2]
                with sql.transaction():
                    sql.execute("UPDATE busy SET n = n + 1 WHERE id = %s", (key,))
                    sql.execute("DELETE FROM busy WHERE id = %s", (other,))
                    sql.execute("INSERT INTO busy VALUES (%s, 1, 'new', 'x')", (other,))
                    if dice.random() < 0.2:
                        sql.execute("UPDATE busy SET id = %s WHERE id = %s", (new, key))
                done.append(key)
                time.sleep(0.02)  # the stand-in is in this process

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)


@contextmanager
def receiver(project: Project) -> Iterator[None]:
    stop = threading.Event()
    given = {"once": False, "stop": stop, "report": silent}
    running = threading.Thread(target=receive, args=(project, bronze_writer(project)), kwargs=given)
    running.start()
    try:
        yield
    finally:
        stop.set()
        running.join(30)


def compared(database: Database, project: Project, seed: int) -> list[TableComparison]:
    """Some comparisons while writers and a receiver run."""
    bronze = BronzeReader(project.bronze)

    def upto() -> int:
        state = bronze.state()
        assert state is not None
        return state.upto

    with receiver(project), writes(database, seed) as done:
        found = []
        for _ in range(2):
            before, reached, deadline = len(done), upto(), time.monotonic() + 120
            while len(done) < before + 10 or upto() == reached:
                assert time.monotonic() < deadline, "the writers or the receiver have stopped"
                time.sleep(0.01)
            (one,) = compare(project, ["busy"], silent).tables
            found.append(one)
    return found


def check(found: list[TableComparison]) -> None:
    for one in found:
        assert (one.verdict, one.reason) == (Verdict.DIFFERENT, "")
        assert (one.missing, one.extra, one.changed, one.repeated) == (0, 0, 1, 0)
        assert (dict(one.samples), one.columns) == ({"changed": ((str(PLANTED),),)}, (("note", 1),))
    assert found[-1].rolled_forward > found[0].rolled_forward > 0


@pytest.mark.parametrize("seed", seeds(1))
def test_postgres_is_compared_while_writes_go_on(seed: int, database: Database, tmp_path: Path) -> None:
    with closing(Lake(database, tmp_path)) as lake:
        fill(lake.sql)
        lake.receive()
        write_silver(lake.project, lake.sql)
        check(compared(database, lake.project, seed))


@pytest.mark.parametrize("kind", [Kind(Style.BINARY, batch=True), Kind(Style.JSON, by_csn=True)], ids=lambda k: k.slot)
@pytest.mark.parametrize("seed", seeds(1))
def test_the_family_is_compared_while_writes_go_on(seed: int, kind: Kind, stand_in: StandIn, tmp_path: Path) -> None:
    project = project_of(stand_in, kind, tmp_path)
    with stand_in.database.connect() as sql:
        fill(sql)
        once(project)
        write_silver(project, sql)
        check(compared(stand_in.database, project, seed))
