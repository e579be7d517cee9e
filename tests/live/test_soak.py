"""A receiver under load for as long as wanted, with a fault every five seconds: nothing lost, nothing twice, no growth.

A minute for each of `CDC_LAKE_BUDGET`, so ten minutes and 120 faults at full budget. The writer keeps to half of what the
receiver managed at the beginning. Until the middle the receiver is killed too; from there on it is one process, whose
memory is judged where it was watched for long enough.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.pipeline.against_source import against_source
from cdc_lake.testing.beside import beside, until
from cdc_lake.testing.faulty_relay import FaultyRelay
from cdc_lake.testing.kills import inserted
from cdc_lake.testing.server import HOST
from cdc_lake.testing.supervised_receiver import Look, SupervisedReceiver, growth
from tests.conftest import Database, make_database, make_role, start_server
from tests.live.test_receive_loop import once, project_of
from tests.seeds import one_seed
from tests.tally import tally

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(3600)]

SECONDS = 60.0 * int(os.environ.get("CDC_LAKE_BUDGET", "1"))
EVERY = 5.0
WARM = 10.0  # seconds in which the receiver shows what it manages
ROWS = 40
JUDGED = 120.0  # seconds that memory has to be watched for to be judged
SLOPE = 1 << 20  # bytes a minute
BRONZE = {"batch": {"max_transactions": 4, "max_delay": "5 ms"}, "durability": "os"}
"""Commits that are small and follow one another: at half of what the receiver manages there is always one to make. Nobody
cuts the power here, so nothing waits for the disk.
"""


@dataclass
class Writer:
    """Inserts and changes rows, so many transactions a second, over a new connection where the server went."""

    database: Database
    rate: float = 400.0
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def __call__(self, stop: threading.Event) -> None:
        due = time.monotonic()
        while not stop.is_set():
            try:
                with self.database.connect() as conn:
                    while not stop.is_set():
                        self._write(conn, next(self.numbers))
                        due = max(due + 1 / self.rate, time.monotonic() - 1)
                        stop.wait(max(0.0, due - time.monotonic()))
            except psycopg.OperationalError:
                stop.wait(0.1)

    def _write(self, conn: psycopg.Connection, number: int) -> None:
        first = number * ROWS
        rows = "INSERT INTO ledger SELECT n FROM generate_series(%s::bigint, %s) n"
        with conn.transaction():
            conn.execute(rows, [first, first + ROWS - 1])
            conn.execute(
                "UPDATE counted SET n = n + 1, note = repeat('x', %s) WHERE id = %s", [number % 500, number % 7]
            )


class Trouble:
    """What goes wrong, one of it at a time. `killed`: whether the receiver may be."""

    def __init__(self, server: Database, relay: FaultyRelay, receiver: SupervisedReceiver, dice: random.Random) -> None:
        self._server, self._relay, self._receiver, self._dice = server.server, relay, receiver, dice
        self.done: Counter[str] = Counter()
        self._kinds: dict[str, Callable[[], object]] = {
            "kill": receiver.kill,
            "cut": relay.cut,
            "reset": lambda: relay.cut(reset=True),
            "stall": lambda: relay.stall(2.0),
            "half-open": relay.hush,
            "server stopped at once": self._restart,
            "disk full": self._fill,
            "slow disk": lambda: receiver.slow(2.0),
            "frozen": self._freeze,
        }

    def strike(self, *, kills: bool) -> None:
        kind = self._dice.choice([kind for kind in self._kinds if kills or kind != "kill"])
        self.done[kind] += 1
        self._kinds[kind]()

    def _restart(self) -> None:
        self._server.stop("immediate")
        self._server.start()

    def _fill(self) -> None:
        with self._receiver.full():
            time.sleep(1)

    def _freeze(self) -> None:
        with self._receiver.frozen():
            time.sleep(1)


@pytest.fixture
def source() -> Iterator[Database]:
    """A database of a server that may be stopped, which soon gives up who does not answer."""
    server = start_server(settings={"wal_sender_timeout": "3s", "checkpoint_timeout": "30s"})
    try:
        make_role(server)
        database = make_database(server)
        with database.connect() as conn:
            conn.execute("CREATE TABLE ledger (n bigint PRIMARY KEY)")
            conn.execute("CREATE TABLE counted (id int PRIMARY KEY, n int NOT NULL, note text)")
            conn.execute("INSERT INTO counted SELECT id, 0 FROM generate_series(0, 6) id")
        yield database
    finally:
        server.remove()


def lag(database: Database, slot: str) -> int | None:
    """Bytes that the slot is behind the server's log; None while the server is away."""
    try:
        with database.admin() as admin:
            row = admin.execute(
                "SELECT pg_current_wal_lsn() - confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s",
                [slot],
            ).fetchone()
    except psycopg.OperationalError:
        return None
    return None if row is None else int(row[0])


def soaked(
    source: Database, project: Project, receiver: SupervisedReceiver, trouble: Trouble, writer: Writer
) -> tuple[list[int], list[int]]:
    """Go through it; the lags and the numbers of bronze's files that were seen on the way."""
    lags: list[int] = []
    files: list[int] = []
    until(lambda: receiver.commits > 1 or receiver.failed, "it lands")
    began, before = time.monotonic(), receiver.transactions
    time.sleep(WARM)
    writer.rate = max(1.0, 0.5 * (receiver.transactions - before) / (time.monotonic() - began))
    print(f"{2 * writer.rate:.0f} transactions a second at most, so {writer.rate:.0f} are written")
    ends = time.monotonic() + SECONDS
    while (now := time.monotonic()) < ends and not receiver.failed:
        trouble.strike(kills=now < ends - SECONDS / 2)
        time.sleep(max(0.0, now + EVERY - time.monotonic()))
        files.append(len(bronze_reader(project).files().paths))
        if (behind := lag(source, project.slot)) is not None:
            lags.append(behind)
    return lags, files


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="limits of another process are set as Linux has them")
def test_a_receiver_that_meets_a_fault_every_five_seconds_loses_repeats_and_gathers_nothing(
    source: Database, tmp_path: Path
) -> None:
    seed = one_seed()
    print(f"seed {seed}")
    with FaultyRelay(HOST, source.port) as relay:
        given = {"port": relay.port, "tls": {"mode": "disable"}, "silence_timeout": "2 s"}
        project = project_of(source, tmp_path, source=given, bronze=BRONZE)
        document = project.pipeline.model_dump(mode="json", by_alias=True)
        document["source"]["password"] = source.password
        writer = Writer(source)
        with SupervisedReceiver(json.dumps(document), tmp_path) as receiver:
            trouble = Trouble(source, relay, receiver, random.Random(seed))
            until(lambda: relay.streams or receiver.failed, "it streams")
            with beside(writer):
                lags, files = soaked(source, project, receiver, trouble, writer)
            assert not receiver.failed, receiver.failed
            last = receiver.lives
        done = once(project)
        proven(source, project)
    judged([look for look in receiver.looks if look.life == last], lags, files)
    print(f"{dict(trouble.done)}; {receiver.commits} commits, {receiver.lives} lives; at the end {done}")
    counts = {"strikes": trouble.done.total(), "commits": receiver.commits, "changes": receiver.changes}
    tally("R17", trouble.done, **counts, seconds=int(SECONDS))


def proven(source: Database, project: Project) -> None:
    """By the proof that ships, and row by row."""
    proof = against_source(project)
    assert proof.holds, proof
    with source.connect() as conn:
        there = [str(n) for (n,) in conn.execute("SELECT n FROM ledger ORDER BY n")]
    assert sorted(inserted(project, "public.ledger"), key=int) == there


def judged(looks: list[Look], lags: list[int], files: list[int]) -> None:
    """Memory, open files, what the slot keeps and the files of the table stay bounded."""
    settled = looks[len(looks) // 4 :]
    watched = settled[-1].at - settled[0].at
    slope = growth(settled)
    print(f"memory {settled[-1].rss >> 20} MiB, {slope / (1 << 20):+.2f} MiB a minute over {watched:.0f} s")
    print(f"open files {[look.files for look in settled[:: max(1, len(settled) // 12)]]}")
    print(f"lag in KiB {[behind >> 10 for behind in lags]}")
    print(f"files of the table {files}")
    if watched >= JUDGED:
        assert slope < SLOPE
    early, late = settled[: len(settled) // 3], settled[-len(settled) // 3 :]
    assert max(look.files for look in late) <= max(look.files for look in early) + 16
    assert max(files) <= 2 * 100 + 50, "small files are put together"
    third = len(lags) // 3
    assert statistics.median(lags[-third:]) <= 4 * statistics.median(lags[third : 2 * third]) + (64 << 20)
