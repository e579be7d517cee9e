"""Large transactions of a real server: what is streamed lands as what is sent whole, in one commit, when it commits."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.errors import SpoolFull, SpoolNotWritten
from cdc_lake.observability import failpoints as at
from cdc_lake.observability.events import ProgressEvent
from cdc_lake_testing.beside import streams, until
from cdc_lake_testing.kills import KILLED
from cdc_lake_testing.whole import assert_whole_transactions
from tests.conftest import Database
from tests.live.kill_sources import receivers_of
from tests.live.test_receive_loop import assert_equal_to_source, bronze_rows, once, project_of, running
from tests.seeds import seeds

pytestmark = pytest.mark.live

PART = 20_000
SPOOL = {"spool": {"part": PART}}
DEATHS = (f"{at.SPOOLED}:1", f"{at.SPOOLED}:5", f"{at.FILE_OPEN}:2")
"""Where a receiver dies that is sent a transaction before it ends."""
TABLES = """
CREATE TABLE a (id int PRIMARY KEY, n int, note text);
CREATE TABLE b (id int PRIMARY KEY, n int, note text);
ALTER TABLE b REPLICA IDENTITY FULL;
"""


@pytest.fixture
def streaming(database: Database) -> Database:
    """A database whose server sends transactions long before they end."""
    with database.admin() as admin:
        admin.execute(f'ALTER DATABASE "{database.name}" SET logical_decoding_work_mem = "64kB"')
    with database.connect() as conn:
        conn.execute(TABLES)
    return database


def pipeline(database: Database, root: Path, name: str, **source: Any) -> Project:
    """A pipeline of its own slot and publication."""
    slot = f"{name}_{database.name}"
    (root / name).mkdir()
    return project_of(database, root / name, source={"slot": {"name": slot}, **source}, bronze=SPOOL)


def streamed_by(database: Database, project: Project) -> int:
    """Transactions that the server streamed."""
    with database.admin() as admin:
        row = admin.execute(
            "SELECT stream_txns FROM pg_stat_replication_slots WHERE slot_name = %s", [project.slot]
        ).fetchone()
    return 0 if row is None else int(row[0])


class Writer:
    """Transactions with subtransactions on one connection, a step at a time."""

    def __init__(self, database: Database, dice: random.Random, first: int) -> None:
        self._connection = database.connect(autocommit=False)
        self._dice = dice
        self._next = self._first = first
        self._depth = 0

    def step(self) -> None:
        dice, execute = self._dice, self._connection.execute
        table = dice.choice("ab")
        match dice.randrange(10):
            case 0:
                self._depth += 1
                execute(f"SAVEPOINT s{self._depth}")
            case 1 if self._depth:
                execute(f"ROLLBACK TO SAVEPOINT s{self._depth}")
            case 2 if self._depth:
                execute(f"RELEASE SAVEPOINT s{self._depth}")
                self._depth -= 1
            case 3:
                execute(f"UPDATE {table} SET n = n + 1 WHERE id BETWEEN %s AND %s", [self._next - 30, self._next])
            case 4:
                execute(f"DELETE FROM {table} WHERE id BETWEEN %s AND %s", [self._first, self._first + 5])
            case _:
                rows = dice.randint(1, 100)
                execute(
                    f"INSERT INTO {table} SELECT g, 0, repeat('x', 100) FROM generate_series(%s::int, %s) g "
                    "ON CONFLICT DO NOTHING",
                    [self._next, self._next + rows],
                )
                self._next += rows

    def end(self) -> None:
        if self._dice.random() < 0.2:
            self._connection.rollback()
        else:
            self._connection.commit()
        self._depth = 0

    def close(self) -> None:
        self._connection.close()


def write(database: Database, dice: random.Random, steps: int) -> None:
    """Two writers by turns, the one's transactions across the other's; an ALTER TABLE in the middle of one."""
    writers = [Writer(database, dice, 1_000_000 * n) for n in (1, 2)]
    for _ in range(steps):
        writer = dice.choice(writers)
        for _ in range(dice.randint(3, 12)):
            writer.step()
        if dice.random() < 0.5:
            writer.end()
    for writer in writers:
        writer.end()
        writer.close()
    with database.connect(autocommit=False) as conn:
        conn.execute("INSERT INTO a SELECT g, 1, repeat('y', 50) FROM generate_series(1, 700) g")
        conn.execute("ALTER TABLE a ALTER n TYPE bigint")
        conn.execute("INSERT INTO a SELECT g, 1, repeat('z', 50) FROM generate_series(701, 1400) g")
        conn.execute("TRUNCATE b")
        conn.execute("INSERT INTO b SELECT g, 1, repeat('z', 50) FROM generate_series(1, 700) g")


def landed(project: Project) -> list[dict[str, Any]]:
    """Everything that bronze says of changes but when it was written, and by which stream."""
    rows = [row for row in bronze_rows(project) if row["op"] not in ("R", "S")]
    return [{name: value for name, value in row.items() if name not in ("stream", "ingest_ts")} for row in rows]


@pytest.mark.parametrize("seed", seeds(1))
def test_what_is_streamed_lands_as_what_is_sent_whole(streaming: Database, tmp_path: Path, seed: int) -> None:
    streamed, whole = (
        pipeline(streaming, tmp_path, "streamed"),
        pipeline(streaming, tmp_path, "whole", decoding={"proto_version": 1}),
    )
    once(streamed)
    once(whole)
    write(streaming, random.Random(seed), 6)
    once(streamed)
    once(whole)
    assert streamed_by(streaming, streamed) > 0
    assert streamed_by(streaming, whole) == 0
    assert landed(streamed) == landed(whole)
    assert_equal_to_source(streamed, streaming)
    for project in (streamed, whole):
        reader = bronze_reader(project)
        verdict = verify(reader)
        assert verdict.holds, verdict
        assert_whole_transactions(reader)
        assert list(project.spool.iterdir()) == []


def test_a_large_transaction_is_one_commit_of_many_files_seen_when_it_commits(
    streaming: Database, tmp_path: Path
) -> None:
    project = pipeline(streaming, tmp_path, "large")
    once(project)
    reader, told = bronze_reader(project), list[ProgressEvent]()
    with running(project, told), streaming.connect(autocommit=False) as conn:
        until(lambda: streams(told), "it streams")
        version = reader.version()
        conn.execute("INSERT INTO a SELECT g, 1, repeat('y', 100) FROM generate_series(1, 3000) g")
        with streaming.connect() as other:
            other.execute("INSERT INTO b VALUES (1, 1, 'beside it')")
        until(lambda: streamed_by(streaming, project) == 1, "the server sends it")
        until(lambda: len(reader.files().paths) > 0 and reader.version() != version, "the other one is there")
        assert [r["relation"] for r in landed(project) if r["op"] == "I"] == ["public.b"]
        before = set(reader.files().paths)
        conn.commit()
        until(lambda: set(reader.files().paths) != before, "it is there")
    new = set(reader.files().paths) - before
    assert len(new) > 3000 * 100 // PART
    assert len([p for p in told if p.stage == "landed"]) == 2
    assert_equal_to_source(project, streaming)
    assert list(project.spool.iterdir()) == []


@pytest.mark.obeys("LAK481")
def test_a_transaction_beyond_the_disk_budget_stops_the_receiver_and_nothing_is_lost(
    streaming: Database, tmp_path: Path
) -> None:
    project = pipeline(streaming, tmp_path, "small")
    once(project)
    tight = project_of(
        streaming,
        tmp_path / "small",
        source={"slot": {"name": project.slot}},
        bronze={"spool": {"part": PART, "max_bytes": 5 * PART}},
    )
    with streaming.connect() as conn:
        conn.execute("INSERT INTO b VALUES (1, 1, 'before')")
        conn.execute("INSERT INTO a SELECT g, 1, repeat('y', 100) FROM generate_series(1, 3000) g")
    with pytest.raises(SpoolFull):
        once(tight)
    once(project)
    assert_equal_to_source(project, streaming)


@pytest.mark.obeys("LAK482")
def test_a_spool_that_cannot_be_written_is_put_elsewhere_and_nothing_is_lost(
    streaming: Database, tmp_path: Path
) -> None:
    project = pipeline(streaming, tmp_path, "elsewhere")
    once(project)
    (tmp_path / "taken").touch()
    spool = {"part": PART, "path": str(tmp_path / "taken")}
    nowhere = project_of(
        streaming, tmp_path / "elsewhere", source={"slot": {"name": project.slot}}, bronze={"spool": spool}
    )
    with streaming.connect() as conn:
        conn.execute("INSERT INTO a SELECT g, 1, repeat('y', 100) FROM generate_series(1, 3000) g")
    with pytest.raises(SpoolNotWritten) as refused:
        once(nowhere)
    assert "`bronze.spool.path`" in refused.value.remedy
    once(project)
    assert_equal_to_source(project, streaming)


def test_a_receiver_killed_while_a_transaction_is_streamed_starts_over_with_it(
    streaming: Database, tmp_path: Path
) -> None:
    project = pipeline(streaming, tmp_path, "killed")
    receivers = receivers_of(project, streaming.password)
    assert receivers.run() == 0
    write(streaming, random.Random(3), 3)
    for setting in DEATHS:
        assert receivers.run(setting) == KILLED
        assert list(project.spool.iterdir()) == []
    assert receivers.run() == 0
    assert_equal_to_source(project, streaming)
    assert verify(bronze_reader(project)).holds
