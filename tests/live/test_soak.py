"""A receiver under load for as long as wanted, with a fault every five seconds: nothing lost, nothing twice, no growth.

A minute for each of `CDC_LAKE_BUDGET`, so ten minutes and 120 faults at full budget, and on from there until so many commits
are made as in a day of one every five seconds. First nobody holds the writer back, and the receiver shows what it lands
while more waits for it; half of that is written from then on. In the first half of its minutes the receiver is killed too;
from there on it is one process, whose memory is judged where it was watched for long enough.
"""

from __future__ import annotations

import json
import math
import os
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake_testing.beside import beside, until
from cdc_lake_testing.faulty_relay import FaultyRelay
from cdc_lake_testing.invariants import Bound, Known, invariants
from cdc_lake_testing.ledger import at_source
from cdc_lake_testing.server import HOST
from cdc_lake_testing.supervised_receiver import Look, SupervisedReceiver, growth
from cdc_lake_testing.watermarks import Watch
from tests.conftest import Database, make_database, make_role, start_server
from tests.live.test_receive_loop import once, project_of
from tests.seeds import one_seed
from tests.tally import tally

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(3600)]

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
SECONDS = 60.0 * BUDGET
COMMITS = 1_728 * BUDGET
PATIENCE = 4 * SECONDS  # a receiver that needs longer for them is none that manages its load
EVERY = 5.0
PEAK = 8.0  # seconds in which the receiver shows what it lands at most …
BEHIND = 200  # … all the while with so many transactions waiting for it
ROWS, CHANGED = 4, 36  # rows that a transaction inserts, and others that it changes
WIDE = 1_800  # bytes of what it changes at least: behind a fault a commit has the megabyte that is read at a time
JUDGED = 120.0  # seconds that memory has to be watched for to be judged
SLOPE = 1 << 20  # bytes a minute
PROMISED = 400_000_000  # bytes, where rows are small
FILES = 5 * 100  # of the table: as many as wait in each of the four tiers, and come while a tier is put together
BRONZE = {"batch": {"max_transactions": 4, "max_delay": "5 ms"}, "durability": "os"}
"""Commits that are small and follow one another: at half of what the receiver manages there is always one to make. Nobody
cuts the power here, so nothing waits for the disk.
"""


@dataclass
class Writer:
    """Inserts and changes rows, so many transactions a second on average, over a new connection where the server went. `written`:
    how many it began and, but for those that were under way where the server went, committed.
    """

    database: Database
    rate: float = math.inf
    written: int = 0

    def __call__(self, stop: threading.Event) -> None:
        due = time.monotonic()
        while not stop.is_set():
            try:
                with self.database.connect() as conn:
                    while not stop.is_set():
                        self._write(conn, self.written)
                        self.written += 1
                        due = max(due + 1 / self.rate, time.monotonic() - 10)
                        stop.wait(max(0.0, due - time.monotonic()))
            except psycopg.OperationalError:
                self.written += 1  # its last one may be committed, and its rows be there
                stop.wait(0.1)

    def _write(self, conn: psycopg.Connection, number: int) -> None:
        first, changed = number * ROWS, number % 7 * CHANGED
        conn.execute(
            "WITH added AS (INSERT INTO ledger SELECT n FROM generate_series(%s::bigint, %s) n)"
            " UPDATE counted SET n = n + 1, note = repeat('x', %s) WHERE id BETWEEN %s AND %s",
            [first, first + ROWS - 1, WIDE + number % 50, changed, changed + CHANGED - 1],
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
            conn.execute("INSERT INTO counted SELECT id, 0 FROM generate_series(0, %s) id", [7 * CHANGED - 1])
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


def peak(receiver: SupervisedReceiver, writer: Writer) -> float:
    """How many transactions a second the receiver lands of a writer that nobody holds back, counted while enough of them
    wait for it. Where it has caught up it stands still for a second, and there is more again.
    """
    seconds, landed, stood = 0.0, 0, 0
    while seconds < PEAK and not receiver.failed:
        if writer.written - receiver.transactions < BEHIND:
            stood += 1
            with receiver.frozen():
                time.sleep(1)
            continue
        began, before = time.monotonic(), receiver.transactions
        time.sleep(0.1)
        seconds, landed = seconds + time.monotonic() - began, landed + receiver.transactions - before
    print(f"{landed / seconds:.0f} transactions a second at most, in {seconds:.0f} s; it had caught up {stood} times")
    return landed / seconds


@dataclass
class Soak:
    """What was seen on the way: lags of the slot, files of bronze, its positions; since the peak was known, seconds, commits
    and how much of that was written.
    """

    lags: list[int]
    files: list[int]
    watch: Watch
    seconds: float = 0.0
    commits: int = 0
    percent: int = 0


def soaked(source: Database, project: Project, receiver: SupervisedReceiver, trouble: Trouble, writer: Writer) -> Soak:
    """Go through it."""
    seen = Soak([], [], Watch(project))
    until(lambda: receiver.commits > 1 or receiver.failed, "it lands")
    most = peak(receiver, writer)
    writer.rate = most / 2
    before, written, began = receiver.commits, writer.written, time.monotonic()
    while (seen.seconds < SECONDS or seen.commits < COMMITS) and not receiver.failed:
        assert seen.seconds < PATIENCE, f"{seen.commits} commits in {seen.seconds:.0f} s"
        now = time.monotonic()
        trouble.strike(kills=seen.seconds < SECONDS / 2)
        time.sleep(max(0.0, now + EVERY - time.monotonic()))
        seen.files.append(len(bronze_reader(project).files().paths))
        seen.watch.look()
        if (behind := lag(source, project.slot)) is not None:
            seen.lags.append(behind)
        seen.seconds, seen.commits = time.monotonic() - began, receiver.commits - before
    seen.percent = round(100 * (writer.written - written) / seen.seconds / most)
    return seen


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
                seen = soaked(source, project, receiver, trouble, writer)
            assert not receiver.failed, receiver.failed
            last = receiver.lives
        done = once(project)
        with source.connect() as conn:
            rows = at_source(conn, "public.ledger", "n")
        used = bounds(receiver.looks, last, seen)
        known = Known(
            source=True, silver=False, ledger=rows, watch=seen.watch, bounds=list(used),
            secrets=[source.password], said=receiver.said,
        )  # fmt: skip
        invariants(project, known).assert_held("I1", "I2", "I3", "I5", "I6", "I7", "I8")
    print(f"{dict(trouble.done)}; {seen.commits} commits, {receiver.lives} lives; at the end {done}")
    counts = {"strikes": trouble.done.total(), "commits": seen.commits, "changes": receiver.changes}
    tally("R17", trouble.done, **counts, seconds=int(seen.seconds), **{"percent of the peak": seen.percent})


def bounds(looks: list[Look], last: int, seen: Soak) -> Iterator[Bound]:
    """Memory, of every life; growth of memory and open files, of the last; what the slot keeps, and the files of the table."""
    most = max(look.rss for look in looks)
    lived = [look for look in looks if look.life == last]
    settled, lags = lived[len(lived) // 4 :], seen.lags
    watched = settled[-1].at - settled[0].at
    slope = growth(settled)
    print(f"memory {most >> 20} MiB at most, {slope / (1 << 20):+.2f} MiB a minute over {watched:.0f} s")
    print(f"open files {[look.files for look in settled[:: max(1, len(settled) // 12)]]}")
    print(f"lag in KiB {[behind >> 10 for behind in lags]}")
    print(f"files of the table {seen.files}")
    yield Bound("bytes of memory", most, PROMISED)
    if watched >= JUDGED:
        yield Bound("bytes that memory grows by in a minute", round(slope), SLOPE)
    early, late = (
        max(look.files for look in some) for some in (settled[: len(settled) // 3], settled[-len(settled) // 3 :])
    )
    yield Bound("open files in the last third", late, early + 16)
    yield Bound("files of the table, which are put together", max(seen.files), FILES)
    third = len(lags) // 3
    before, behind = (round(statistics.median(some)) for some in (lags[third : 2 * third], lags[-third:]))
    yield Bound("bytes that the slot is behind in the last third", behind, 4 * before + (64 << 20))
