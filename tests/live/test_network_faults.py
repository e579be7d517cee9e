"""A network that fails between receiver and source: nothing is lost, nothing comes twice, and nobody waits for ever.

One receiver lives through all cuts of a test, into one bronze. `CDC_LAKE_BUDGET` of ten cuts at every byte of three
transactions; below, at some of them by chance.
"""

from __future__ import annotations

import itertools
import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc_lake.bronze.open import bronze_writer
from cdc_lake.config.project import Project
from cdc_lake.config.source import FamilySource
from cdc_lake.connectors import snapshot_copy
from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.devtools.replay import Limits, Recorded, record
from cdc_lake.errors import ServerUnreachable
from cdc_lake.observability.events import ProgressEvent
from cdc_lake.runtime.receive.loop import ReceiveSummary
from cdc_lake.runtime.receive.receiver import SOURCE_PAUSES, receive
from cdc_lake.source.gaussdb.server import target_of
from cdc_lake.source.gaussdb.wire import session as wire
from cdc_lake.source.postgres.connection import connect, translate_errors
from cdc_lake_testing.beside import beside, streams, until
from cdc_lake_testing.faulty_relay import FaultyRelay
from cdc_lake_testing.gaussdb.faults import Faults
from cdc_lake_testing.invariants import Known, invariants
from cdc_lake_testing.relay import Connection, Relay
from cdc_lake_testing.server import HOST
from tests.conftest import Database, drop_database, make_database, make_role
from tests.live import test_gaussdb_receive, test_receive_loop
from tests.live.test_gaussdb_workload import Kind, StandIn, stand_in
from tests.live.test_receive_loop import bronze_rows
from tests.postgres_with_test_decoding import start_decoding_server
from tests.tally import tally

pytestmark = [pytest.mark.live, pytest.mark.timeout(3600)]

__all__ = ["stand_in"]

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
EVERYWHERE = BUDGET >= 10
CUTS = 7 * BUDGET
OUTAGES = [2.5] if BUDGET == 1 else [6.0, 12.0, 3.0]
BACK_WITHIN = 2.0  # seconds, as the promise has it
FAMILY = Kind(Style.BINARY, batch=True)
AT_ONCE = (0.0, 0.001)  # seconds, and up to twenty times that behind a stream that was cut before anything came


@dataclass
class Line:
    """A source behind a network that fails: a table `t`, whose changes are counted as they are made.

    `relay` is before the port of the stream, `sql` before that of sessions, which is the same one at a PostgreSQL.
    """

    name: str
    database: Database
    relay: FaultyRelay
    sql: FaultyRelay
    make_project: Callable[..., Project]
    made: Counter[str]

    def write_three(self, session: psycopg.Connection[Any], number: int) -> None:
        """Three transactions: a row of every kind of change, and one that changes several."""
        session.execute("INSERT INTO t VALUES (%s, 'new')", [2 * number])
        with session.transaction():
            session.execute("INSERT INTO t VALUES (%s, NULL)", [2 * number + 1])
            session.execute("UPDATE t SET a = 'changed' WHERE id = %s", [2 * number])
        session.execute("DELETE FROM t WHERE id = %s", [2 * number + 1])
        self.made.update(I=2, U=1, D=1)

    def hasten(self, admin: psycopg.Connection[Any]) -> None:
        """A server that gives up soon who does not answer: else the slot stays with who is gone."""
        admin.execute(
            f"ALTER ROLE {self.database.user} IN DATABASE {self.database.name} SET wal_sender_timeout = '1s'".encode()
        )


@pytest.fixture(scope="module")
def decoding() -> Iterator[Database]:
    """A database of a server that has test_decoding."""
    server = start_decoding_server()
    make_role(server)
    yield make_database(server)
    server.remove()


@pytest.fixture(params=["pgoutput", "test_decoding", "mppdb_decoding"])
def line(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Line]:
    """By each way to read."""
    with opened(request, tmp_path) as (name, database, (port, service), make), ExitStack() as entered:
        with database.connect() as session:
            session.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
        relay = sql = entered.enter_context(FaultyRelay(HOST, port))
        if service != port:
            sql = entered.enter_context(FaultyRelay(HOST, service))

        def make_project(**source: Any) -> Project:
            return make(relay.port, {"port": sql.port, **source})

        yield Line(name, database, relay, sql, make_project, Counter())


Opened = tuple[str, Database, tuple[int, int], Callable[[int, dict[str, Any]], Project]]


@contextmanager
def opened(request: pytest.FixtureRequest, root: Path) -> Iterator[Opened]:
    name = request.param
    if name == "mppdb_decoding":
        site: StandIn = request.getfixturevalue("stand_in")

        def by_family(port: int, source: dict[str, Any]) -> Project:
            given = {"replication_port": port, "tables": ["public.t"], **source}
            return test_gaussdb_receive.project_of(site, FAMILY, root, source=given)

        server = site.servers[FAMILY.by_csn]
        yield name, site.database, (server.replication_port, server.port), by_family
        return
    shared: Database = request.getfixturevalue("database" if name == "pgoutput" else "decoding")
    database = shared if name == "pgoutput" else make_database(shared.server)

    def by_plugin(port: int, source: dict[str, Any]) -> Project:
        given = {**source, "port": port, "tls": {"mode": "disable"}, "slot": {"plugin": name}}
        return test_receive_loop.project_of(database, root, source=given)

    yield name, database, (database.port, database.port), by_plugin
    if database is not shared:
        drop_database(database)


def receiving(
    project: Project, told: list[ProgressEvent], pauses: tuple[float, float] = AT_ONCE
) -> AbstractContextManager[Future[ReceiveSummary]]:
    """One receiver, as a service runs it."""
    bronze = bronze_writer(project)
    return beside(
        lambda stop: receive(
            project, bronze, once=False, stop=stop, report=told.append, pauses=pauses, slot_patience=60
        )
    )


def landed(project: Project) -> Counter[str]:
    """How many changes of each kind bronze holds."""
    return Counter(row["op"] for row in bronze_rows(project) if row["op"] in "IUD")


def all_landed(line: Line, project: Project, receiver: Future[Any]) -> None:
    """What was made is there, each once, and is what the source has."""

    def there() -> bool:
        if receiver.done():
            receiver.result()
        return landed(project) == line.made

    until(there, f"not everything landed, or something twice: {line.made} were made", 300)


def proven(line: Line, project: Project) -> None:
    """By the number of changes, and by the checker, against the source itself."""
    assert landed(project) == line.made
    invariants(project, Known(source=True, silver=False)).assert_held("I1", "I3", "I5", "I6")


def measured(line: Line, project: Project, receiver: Future[Any], session: psycopg.Connection[Any]) -> int:
    """Bytes of a stream of three transactions."""
    line.relay.cut()
    before = line.relay.streams
    line.write_three(session, 0)
    until(lambda: line.relay.streams > before or receiver.done(), "it streams again")
    all_landed(line, project, receiver)
    return line.relay.sent


def test_a_connection_cut_at_any_byte_of_three_transactions_loses_and_repeats_nothing(
    line: Line, dice: random.Random
) -> None:
    project, told = line.make_project(), list[ProgressEvent]()
    with line.database.connect() as session, receiving(project, told) as receiver:
        until(lambda: streams(told) or receiver.done(), "it streams")
        size = measured(line, project, receiver, session)
        places = [*range(size)] if EVERYWHERE else [0, size - 1, *dice.sample(range(1, size - 1), CUTS - 2)]
        dice.shuffle(places)
        ends = [Faults(cut_after=at) if dice.random() < 0.7 else Faults(reset_after=at) for at in places]
        line.relay.inject(*ends)
        line.relay.cut()
        numbers = itertools.count(1)
        for least in range(1, len(places) + 1):
            begun = time.monotonic()
            while line.relay.struck < least and not receiver.done():  # what was measured may have had more keepalives
                line.write_three(session, next(numbers))
                waited = time.monotonic() + 3
                while line.relay.struck < least and time.monotonic() < waited and not receiver.done():
                    time.sleep(0.01)
                assert time.monotonic() - begun < 300, "the cut does not strike"
        all_landed(line, project, receiver)
    proven(line, project)
    assert receiver.result().reconnects >= len(places)
    print(f"{line.name}: {size} bytes, {len(places)} cuts, {sum(line.made.values())} changes")
    tally("R11", {f"cut ({line.name})", f"reset ({line.name})"}, cuts=len(places), changes=sum(line.made.values()))


def test_bytes_one_by_one_stalls_and_late_acknowledgements_are_lived_through(line: Line, dice: random.Random) -> None:
    project, told = line.make_project(), list[ProgressEvent]()
    line.relay.ack_delay = 0.5
    stall = 0.5 if BUDGET == 1 else 5.0
    line.relay.inject(Faults(single_bytes=10_000, stall_after=dice.randint(1, 500), stall_seconds=stall))
    with line.database.connect() as session, receiving(project, told) as receiver:
        until(lambda: streams(told) or receiver.done(), "it streams")
        for number in range(10 * BUDGET):
            line.write_three(session, number)
        all_landed(line, project, receiver)
    assert receiver.result().reconnects == 0
    proven(line, project)
    tally("R11", {"stall", "single bytes", "late acknowledgement"}, stalls=1, changes=sum(line.made.values()))


def test_a_peer_that_is_silent_for_ever_is_given_up_and_connected_to_again(line: Line) -> None:
    """TCP acknowledges all the while, so only the silence tells."""
    more = {"decoding": {**test_gaussdb_receive.decoding(FAMILY), "sender-timeout": 1000}}
    project = line.make_project(silence_timeout="1 s", **(more if line.name == "mppdb_decoding" else {}))
    told: list[ProgressEvent] = []
    with line.database.admin() as admin:
        line.hasten(admin)
    numbers = itertools.count()
    with line.database.connect() as session, receiving(project, told) as receiver:
        for times in range(min(BUDGET, 3)):
            until(lambda seen=times: streams(told) > seen or receiver.done(), "it streams")
            line.write_three(session, next(numbers))
            all_landed(line, project, receiver)
            until(line.relay.hush)
            line.write_three(session, next(numbers))
            all_landed(line, project, receiver)
    proven(line, project)
    given_up = [one for one in told if one.stage == "retry" and "not even the requested reply" in one.text]
    assert len(given_up) >= min(BUDGET, 3)
    assert {one.facts["code"] for one in given_up} == {ServerUnreachable.code}
    tally("R11", {"half-open"}, silences=len(given_up), changes=sum(line.made.values()))


@pytest.mark.parametrize("line", ["pgoutput", "mppdb_decoding"], indirect=True)
def test_a_statement_may_take_long_but_not_without_a_peer(line: Line) -> None:
    """Longer than the silence: there is only TCP that could tell, and it does."""
    assert asked(line.make_project(silence_timeout="30 d"), "SELECT 'done'") == "done"  # TCP counts no so long times
    project = line.make_project(silence_timeout="2 s")
    assert asked(project, "SELECT 'done' FROM pg_sleep(4)") == "done"
    with line.database.admin() as admin, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(asked, project, "SELECT 'done' FROM pg_sleep(300)")
        others = "FROM pg_stat_activity WHERE query ~ 'pg_sleep.300' AND state = 'active' AND pid <> pg_backend_pid()"
        until(lambda: admin.execute(f"SELECT {others}".encode()).fetchall(), "it is asked")
        assert line.sql.vanish()
        began = time.monotonic()
        try:
            with pytest.raises(ServerUnreachable):
                waiting.result(60)
        finally:
            admin.execute(f"SELECT pg_terminate_backend(pid) {others}".encode())
    print(f"{line.name}: noticed after {time.monotonic() - began:.1f} s")


def asked(project: Project, statement: str) -> str:
    """What a statement answers, by the driver of the source's kind."""
    if isinstance(project.pipeline.source, FamilySource):
        with closing(wire.connect(target_of(project.family, project.root))) as wired:
            return str(wired.query(statement).rows[0][0])
    with closing(connect(project.postgres, project.root)) as session, translate_errors("asking"):
        return str((session.execute(statement.encode()).fetchone() or ("",))[0])


@pytest.mark.parametrize(
    ("line", "gone"), [("pgoutput", "hush"), ("pgoutput", "vanish"), ("mppdb_decoding", "vanish")], indirect=["line"]
)
def test_a_copy_that_the_server_does_not_answer_holds_up_no_stream(
    line: Line, gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_copy, "AGAIN", 0.5)
    more = {"decoding": {**test_gaussdb_receive.decoding(FAMILY), "sender-timeout": 1000}}
    given = {"silence_timeout": "2 s", **(more if line.name == "mppdb_decoding" else {})}
    with line.database.admin() as admin, line.database.connect() as session:
        line.hasten(admin)
        session.execute("CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (1), (2)")
        test_receive_loop.once(line.make_project(tables=["public.t"], **given))
        line.write_three(session, 0)
        project, told = line.make_project(tables=["public.t", "public.u"], **given), list[ProgressEvent]()

        def tell(one: ProgressEvent) -> None:
            told.append(one)
            if one.stage == "snapshot" and one.text.startswith("copy ") and not severed:
                if gone == "hush":  # TCP tells nothing of it, and so only a stream is given up
                    until(lambda: landed(project) == line.made, "the stream is read")
                severed.append(time.monotonic())
                for relay in {line.relay, line.sql}:
                    getattr(relay, gone)()

        severed: list[float] = []
        bronze = bronze_writer(project)
        with beside(
            lambda stop: receive(project, bronze, once=False, stop=stop, report=tell, pauses=AT_ONCE, slot_patience=60)
        ) as receiver:
            until(lambda: severed or receiver.done(), "it copies")
            line.write_three(session, 1)
            all_landed(line, project, receiver)
            if gone == "hush":  # the server has not noticed: its client has left a slot
                admin.execute(
                    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s",
                    [f"{project.slot}_new"],
                )
            until(
                lambda: any("while the stream continued" in one.text for one in told) or receiver.done(), "it is copied"
            )
    print(f"{line.name}: {[one.text for one in told if one.stage == 'retry']}")
    # of a copy that was broken off, rows are there that do not count
    assert {row["new"][0] for row in bronze_rows(project) if row["op"] == "S"} == {"1", "2"}


def test_a_recording_of_a_peer_that_is_silent_for_ever_ends(line: Line, tmp_path: Path) -> None:
    more = {"decoding": {**test_gaussdb_receive.decoding(FAMILY), "sender-timeout": 4000}}
    project = line.make_project(silence_timeout="2 s", **(more if line.name == "mppdb_decoding" else {}))
    told: list[ProgressEvent] = []
    with line.database.admin() as admin, line.database.connect() as session:
        line.hasten(admin)
        if line.name == "pgoutput":
            session.execute(f"CREATE PUBLICATION {project.publication} FOR TABLE t".encode())

    def recorded(stop: threading.Event) -> Recorded:
        return record(project, tmp_path / "a.rec", Limits(seconds=60), stop=stop, report=told.append)

    with pytest.raises(ServerUnreachable, match="not even the requested reply"), beside(recorded) as recording:  # noqa: PT012 - what it lives through
        until(lambda: line.relay.streams or recording.done(), "it records")
        time.sleep(3)
        assert not recording.done(), "a quiet server answers when it is asked"
        line.relay.hush()
        recording.result(60)


class SlowToEnd(Relay):
    """A way to a server on which the end of a copy takes its time."""

    def connection(self, client: socket.socket, server: socket.socket) -> Connection:
        return _SlowToEnd(client, server)


class _SlowToEnd(Connection):
    def changed(self, letter: bytes, body: bytes) -> bytes:
        if letter == b"C" and body.startswith(b"COPY"):
            time.sleep(0.5)
        return body


def test_a_copy_that_is_slow_to_end_holds_no_other_thread_up(database: Database, tmp_path: Path) -> None:
    """The relay is one of them: held up, it would never bring the end."""
    with database.connect() as conn, SlowToEnd(HOST, database.port) as relay:
        conn.execute("CREATE TABLE t AS SELECT generate_series(1, 10) AS id; ALTER TABLE t ADD PRIMARY KEY (id)")
        given = {"port": relay.port, "tls": {"mode": "disable"}}
        project = test_receive_loop.project_of(database, tmp_path, source=given)
        assert test_receive_loop.once(project).snapshot_rows == 10


def test_a_source_that_is_away_is_tried_once_a_second_and_read_again_when_it_is_back(line: Line) -> None:
    if BUDGET == 1 and line.name == "test_decoding":
        pytest.skip("with a greater budget: what reconnects does not see the plugin")
    """The attempt behind its return is the one that reads, so what it takes is the pause and one connection."""
    project, told = line.make_project(), list[ProgressEvent]()
    attempts, took = 0, list[float]()
    with line.database.connect() as session, receiving(project, told, SOURCE_PAUSES) as receiver:
        for times, seconds in enumerate(OUTAGES):
            until(lambda seen=times: streams(told) > seen or receiver.done(), "it streams")
            line.write_three(session, times)
            all_landed(line, project, receiver)
            seen = line.relay.streams
            with line.relay.away():
                began, gone = len(line.relay.attempts), time.monotonic()
                time.sleep(seconds)
                made = len(line.relay.attempts) - began
            back = time.monotonic()
            until(lambda seen=seen: line.relay.streams > seen or receiver.done(), "it streams again")
            took.append(time.monotonic() - back)
            print(f"{line.name}: away {seconds:g} s, {made} attempts, read {took[-1]:.2f} s after it was back")
            assert 1 <= made <= (back - gone) / SOURCE_PAUSES[0] + 1
            attempts += made
        all_landed(line, project, receiver)
    proven(line, project)
    assert receiver.result().reconnects == len(OUTAGES) + attempts, "those that failed, and one for each outage"
    tally("R11", {"away"}, outages=len(OUTAGES), attempts=attempts, **within(took))


def within(took: list[float]) -> dict[str, int]:
    """How soon it was read again, as it was measured: what asserts nothing where others work beside."""
    slow = sum(one > BACK_WITHIN for one in took)
    return {"read again in time": len(took) - slow, "milliseconds until then": round(1000 * sum(took))}
