"""The stand-in as a process: found again by its folder, it goes on where it was."""

from __future__ import annotations

import fcntl
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cdc_lake.decode.gaussdb.assembler import GaussDbAssembler
from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.model.position import OrderDomain
from cdc_lake.source.gaussdb.slot import create_slot_by_function, find_slot
from cdc_lake.source.gaussdb.stream import GaussDbStream
from cdc_lake.source.gaussdb.wire.protocol import WireTarget, WireTls
from cdc_lake.source.gaussdb.wire.session import connect
from cdc_lake_testing.gaussdb.live import LivePostgres
from cdc_lake_testing.gaussdb.standin import Settings, StandIn
from tests.conftest import Database

pytestmark = pytest.mark.live

OPTIONS = {"parallel-decode-num": "2", "decode-style": "b", "sending-batch": "0"}


@pytest.fixture
def stand_in(database: Database, tmp_path: Path) -> Iterator[tuple[StandIn, Settings]]:
    made = StandIn(tmp_path / "standin")
    superuser = database.server.dsn(database.name)
    yield made, Settings(superuser, database.dsn, "cdc", "Gauss@123")
    made.stop()


def target(database: Database, settings: Settings) -> WireTarget:
    address = (("127.0.0.1", settings.port),)
    return WireTarget(address, database.name, "cdc", settings.password, settings.replication_port, WireTls("disable"))


def received(where: WireTarget, count: int) -> list[tuple[int | None, int]]:
    """CSN and rows of the next transactions of slot `s`, which are then confirmed."""
    stream = GaussDbStream(
        connect(where, replication=True), "s", 0, OPTIONS, keepalives_confirm=False, status_interval=5
    )
    assembler = GaussDbAssembler(Style.BINARY, batch=False, domain=OrderDomain.CSN)
    done = []
    while len(done) < count:
        frames = stream.poll(60)
        assert frames
        for lsn, payload in frames:
            done.extend(assembler.feed(payload, lsn))
    stream.confirm(done[-1].bounds.confirm)
    session = connect(where)
    while (slot := find_slot(session, "s")) is None or slot.confirmed != done[-1].bounds.confirm:
        stream.poll(0.05)
    session.close()
    stream.close()
    return [(raw.bounds.csn, raw.count) for raw in done]


def test_what_came_while_it_was_down_comes_with_the_next_csns(
    database: Database, stand_in: tuple[StandIn, Settings]
) -> None:
    process, settings = stand_in
    with database.connect() as conn:
        conn.execute("CREATE TABLE items (id int PRIMARY KEY)")
        settings = process.start(settings)
        where = target(database, settings)
        session = connect(where)
        made = create_slot_by_function(session, "s", "mppdb_decoding", None)
        session.close()
        conn.execute("INSERT INTO items VALUES (1), (2)")
        assert received(where, 1) == [(2000, 2)]
        conn.execute("DELETE FROM items WHERE id = 1")
        process.stop()
        assert not process.running
        conn.execute("INSERT INTO items VALUES (3)")
        assert process.start(settings) == settings  # on the same ports
        session = connect(where)
        facts = find_slot(session, "s")
        assert facts is not None
        assert facts.confirmed is not None
        assert facts.confirmed > made.consistent.value
        assert received(where, 2) == [(2001, 1), (2002, 1)]
        session.close()


def test_transactions_that_it_makes_begin_behind_what_is_confirmed_of_others(database: Database) -> None:
    """A slot is confirmed by the place of a COMMIT: one that began before it would not come again."""
    with database.connect() as one, database.connect() as other:
        one.execute("CREATE TABLE items (id int PRIMARY KEY)")
        with LivePostgres(database.server.dsn(database.name), foreign=0.5) as live:
            for number in range(20):
                with one.transaction():  # its COMMIT is the record behind what is read meanwhile
                    one.execute("INSERT INTO items VALUES (%s)", [number])
                    other.execute("INSERT INTO items VALUES (%s)", [number + 100])
                    live.beat()
                    live.beat()
            live.settled()
            for _ in range(9):  # nothing is written beside them
                live.beat()
            live.settled()
            told = live.ledger.since(0)
    assert len(told) >= 89
    for one, following in itertools.pairwise(told):
        assert following.commit_start >= one.commit_end, "what is confirmed of one lies before its end"
        assert following.commit_start > one.commit_start + 1, "or right behind its start"


def test_a_second_start_finds_the_running_process(database: Database, stand_in: tuple[StandIn, Settings]) -> None:
    process, settings = stand_in
    first = process.start(settings)
    children = {child.pid for child in psutil.Process().children(recursive=True)}
    assert StandIn(process.folder).start(settings) == first
    assert {child.pid for child in psutil.Process().children(recursive=True)} == children


def test_it_keeps_nothing_open_of_whoever_started_it(
    database: Database, stand_in: tuple[StandIn, Settings], tmp_path: Path
) -> None:
    """As with `flock FILE make demo`: the lock is a descriptor that children inherit."""
    process, settings = stand_in
    with (tmp_path / "lock").open("w") as lock:
        os.set_inheritable(lock.fileno(), True)
        fcntl.flock(lock, fcntl.LOCK_EX)
        process.start(settings)
    with (tmp_path / "lock").open("w") as again:
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_stand_in_that_cannot_start_says_why(database: Database, stand_in: tuple[StandIn, Settings]) -> None:
    process, settings = stand_in
    wrong = Settings(database.server.dsn("nowhere"), database.dsn, "cdc", "x")
    with pytest.raises(RuntimeError, match='database "nowhere" does not exist'):
        process.start(wrong)
    assert process.start(settings).port
