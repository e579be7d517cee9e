"""Remedies that work, of the GaussDB family: what its stand-in refuses is done as it is said, and every row arrives.

One database for all; each case has a server of its own before it, and so slots of its own.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdc_lake.decode.gaussdb.records import Field, Operation, Row
from cdc_lake.model.relation import TableName
from cdc_lake_testing.gaussdb import replication
from cdc_lake_testing.gaussdb.answers import LiveAnswers
from cdc_lake_testing.gaussdb.authentication import Method
from cdc_lake_testing.gaussdb.live import LivePostgres
from cdc_lake_testing.gaussdb.server import GaussServer
from cdc_lake_testing.server import EmbeddedServer
from tests.conftest import Database, drop_database, make_database
from tests.live.test_gaussdb_workload import KNOWN, PASSWORD
from tests.live.test_recipes import RECEIVE
from tests.live.test_remedies import COMMAND
from tests.shell import QuickShell

pytestmark = pytest.mark.live

PARALLEL = {"parallel-decode-num": 4, "decode-style": "b", "sending-batch": 1}
SETTING = re.compile(r"`source\.([\w.]+): (\w+)`")
IDS = itertools.count(100)


@dataclass
class Stand:
    """A server of the family, and a pipeline file that names it."""

    database: Database
    journal: LivePostgres
    server: GaussServer
    shell: QuickShell
    source: dict[str, Any]
    pipeline: str = "shop"

    def set(self, **values: Any) -> None:
        """Write the section `source` with other values; None takes one out."""
        self.source = {name: value for name, value in {**self.source, **values}.items() if value is not None}
        document = {"version": 1, "pipeline": self.pipeline, "source": self.source}
        (self.shell.folder / "shop.yaml").write_text(yaml.safe_dump(document))

    def obey(self, hint: str) -> None:
        """Do what a hint names in backquotes: settings, then commands that do something."""
        settings = SETTING.findall(hint)
        for path, value in settings:
            name, _, inner = path.partition(".")
            self.set(**{name: {inner: value} if inner else value})
        if "restart" in COMMAND.findall(hint) and (not settings or "; then `cdc-lake restart`" in hint):
            self.shell.fine("restart", "--yes")


Step = Callable[[Stand], object]


def source(**values: Any) -> Step:
    return lambda stand: stand.set(**values)


def state(**values: Any) -> Step:
    def change(stand: Stand) -> None:
        for name, value in values.items():
            setattr(stand.server.state, name, value)

    return change


def server_setting(**values: str) -> Step:
    return lambda stand: stand.server.state.settings.update(values)


def ports_right(stand: Stand) -> None:
    stand.set(port=stand.server.port, replication_port=stand.server.replication_port)


def decoders(count: int) -> Step:
    """Take so many of the server's places for parallel decoding, or give them back."""

    def change(stand: Stand) -> None:
        for _ in range(abs(count)):
            stand.server.state.dispatchers.acquire() if count > 0 else stand.server.state.dispatchers.release()

    return change


def asks_for(method: Method) -> Step:
    return lambda stand: setattr(stand.server._access, "method", method)  # the server's pg_hba.conf


def slot_dropped(stand: Stand) -> None:
    stand.server.state.slots.drop("shop")


def csn_lost(stand: Stand) -> None:
    """The server counts a transaction that it never sends."""
    stand.set(csn_gap={"bound": "500 ms"})
    stand.journal.settled()
    stand.journal.lose_csn()


def called(name: str) -> Step:
    return lambda stand: (setattr(stand, "pipeline", name), stand.set())


def both(first: Step, second: Step) -> Step:
    return lambda stand: (first(stand), second(stand))


def no_standby(stand: Stand) -> None:
    """Decoding on a standby only, and two names of one primary."""
    hosts = [f"{name}:{stand.server.port}" for name in ("127.0.0.1", "localhost")]
    stand.set(host=None, port=None, hosts=hosts, decoding={**PARALLEL, "standby-connection": True})


def of_both_orders(stand: Stand) -> None:
    """A GaussDB, whose slots have an order; this one is ordered by log."""
    stand.server.state.product = "GaussDB"
    stand.set(type="gaussdb", order=None)
    stand.shell.fine(*RECEIVE)
    stand.set(slot={"output_order": "csn"})


def on_another_timeline(stand: Stand) -> None:
    """Another server took over, was read, and the former one is back."""
    stand.server.state.timeline = 2
    stand.shell.fine(*RECEIVE)
    stand.server.state.timeline = 1


def slot_as_before(stand: Stand, changes: Callable[[], object]) -> None:
    """Something is landed, and the receiver dies before the server writes down what it confirmed."""
    slots = stand.server.state.slots
    (before, _), *_ = slots.all()
    changes()
    stand.shell.fine(*RECEIVE)
    slots.drop(before.name)
    slots.create(before)


def tables_widened(stand: Stand) -> None:
    def change() -> None:
        with stand.database.connect() as db:
            db.execute("INSERT INTO more VALUES (%s)", [next(IDS)])
            db.execute("INSERT INTO loans VALUES (%s, 'landed')", [next(IDS)])

    slot_as_before(stand, change)
    stand.set(tables=["public.loans", "public.more"])


def another_history(stand: Stand) -> None:
    """What was landed is other content at the server now."""
    number = next(IDS)

    def change() -> None:
        with stand.database.connect() as db:
            db.execute("INSERT INTO loans VALUES (%s, 'landed')", [number])

    slot_as_before(stand, change)
    transactions = stand.journal.ledger._transactions  # which nobody alters but this
    at = max(n for n, one in enumerate(transactions) if one.changes)
    other = Row(
        Operation.INSERT,
        TableName("public", "loans"),
        (
            Field("id", str(number), "integer", 23),
            Field("note", "another", "text", 25),
        ),
    )
    transactions[at] = replace(transactions[at], changes=(other,))


def inserted(stand: Stand, note: str) -> int:
    """A transaction that the server has in its log; where it is there."""
    with stand.database.connect() as db:
        db.execute("INSERT INTO loans VALUES (%s, %s)", [next(IDS), note])
    stand.journal.settled()
    transactions = stand.journal.ledger._transactions
    return max(n for n, one in enumerate(transactions) if one.changes)


def csn_of(stand: Stand, at: int, csn: int) -> None:
    transactions = stand.journal.ledger._transactions
    transactions[at] = replace(transactions[at], csn=csn)


def late(stand: Stand) -> None:
    """A CSN is recorded as a gap, and its transaction comes all the same."""
    stand.set(csn_gap={"bound": "500 ms", "policy": "record"})
    stand.journal.settled()
    gap = stand.journal.lose_csn()
    inserted(stand, "above")
    stand.shell.fine(*RECEIVE)
    csn_of(stand, inserted(stand, "late"), gap)


def one_csn_twice(stand: Stand) -> None:
    """As several nodes that commit one transaction may send it; one CSN less is sent, so that both wait for it."""
    at = inserted(stand, "twice")
    csn_of(stand, at, stand.journal.ledger[at].csn + 1)


def begun(**values: Any) -> Step:
    """A stream that was begun with other settings."""
    return lambda stand: (stand.set(**values), stand.shell.fine(*RECEIVE))


@dataclass(frozen=True)
class Case:
    """`first`: a run that goes well comes before what breaks; `mend`: what the hint says in words."""

    breaks: Step
    code: str
    mend: Step | None = None
    first: bool = False
    verb: tuple[str, ...] = RECEIVE


CASES: dict[str, Case] = {
    "the server is another product": Case(source(type="gaussdb"), "SRC208"),
    "the log is not enough": Case(server_setting(wal_level="replica"), "SRC208", server_setting(wal_level="logical")),
    "the password is wrong": Case(source(password="no"), "SRC202", source(password=PASSWORD)),
    "the database is not there": Case(
        source(database="nowhere"), "SRC203", lambda stand: stand.set(database=stand.database.name)
    ),
    "the server does not encrypt": Case(source(tls={"mode": "require"}), "SRC206", source(tls={"mode": "disable"})),
    "streams go to the service port": Case(lambda s: s.set(replication_port=s.server.port), "SRC240", ports_right),
    "statements go to the HA port": Case(lambda s: s.set(port=s.server.replication_port), "SRC241", ports_right),
    "the ports are swapped": Case(
        lambda s: s.set(port=s.server.replication_port, replication_port=s.server.port), "SRC241", ports_right
    ),
    "the server asks for SM3": Case(asks_for(Method.SM3), "SRC242", asks_for(Method.SHA256)),
    "the server does not know an option": Case(
        source(decoding={**PARALLEL, "new-option": 1}, allow_unknown_options=True),
        "SRC246",
        source(decoding=PARALLEL),
    ),
    "every decoder is taken": Case(decoders(20), "SRC249", decoders(-1)),
    "every decoder is taken, and this one goes without": Case(
        decoders(20), "SRC249", source(decoding={"parallel-decode-num": 1}, order="lsn")
    ),
    "the server is a standby": Case(state(in_recovery=True), "SRC250", state(in_recovery=False)),
    "a pattern matches nothing": Case(source(tables=["public.loan"]), "SRC222", source(tables=["public.loans"])),
    "a table has no key": Case(source(tables=["public.*"]), "SRC223"),
    "the slot has another plugin": Case(
        source(slot={"plugin": "test_decoding"}), "SRC219", source(slot={}), first=True
    ),
    "the slot has another name": Case(source(slot={"name": "other"}), "SRC216", first=True),
    "the stream has another order": Case(source(order="lsn"), "SRC216", first=True),
    "the stream is read serially": Case(
        source(decoding={"parallel-decode-num": 1}, order="auto"), "SRC216", source(decoding=PARALLEL), first=True
    ),
    "the slot was dropped": Case(slot_dropped, "SRC212", first=True),
    "the slot's name is the server's own": Case(called("gs_roach"), "SRC245", source(slot={"name": "shop"})),
    "a value of an option is out of range": Case(
        both(state(version="3.0.0"), source(decoding={**PARALLEL, "decode-style": "t", "sending-batch": 0})),
        "SRC247",
        source(decoding=PARALLEL),
    ),
    "a standby is to decode": Case(no_standby, "SRC248", source(decoding=PARALLEL)),
    "the slot has the other order": Case(of_both_orders, "SRC244", source(slot={})),
    "a transaction did not arrive": Case(
        csn_lost, "STA640", source(csn_gap={"bound": "500 ms", "policy": "record"}), first=True
    ),
    "a transaction comes after its gap was recorded": Case(late, "STA641", first=True),
    "two transactions have one CSN": Case(one_csn_twice, "STA643", first=True),
    "a copy has no place in the stream": Case(begun(order="lsn"), "STA626", verb=("resync", "public.loans")),
    "the former primary is back": Case(on_another_timeline, "SRC260", state(timeline=2), first=True),
    "tables were widened after a crash": Case(tables_widened, "SRC262", source(tables=["public.loans"]), first=True),
    "the server has another history": Case(another_history, "LAK440", first=True),
    "the log that the slot needs is gone": Case(state(wal_start=1 << 60), "SRC204", state(wal_start=0), first=True),
}


@pytest.fixture(scope="module")
def database_of_all(server: EmbeddedServer) -> Iterator[tuple[Database, LivePostgres]]:
    database = make_database(server)
    with database.connect() as db:
        db.execute("CREATE TABLE loans (id int PRIMARY KEY, note text)")
        db.execute("CREATE TABLE notes (t text)")
        db.execute("CREATE TABLE more (id int PRIMARY KEY)")
        db.execute("INSERT INTO loans SELECT n, 'x' FROM generate_series(1, 20) n")
    with LivePostgres(server.dsn(database.name)) as journal:
        yield database, journal
    drop_database(database)


@pytest.fixture
def stand(database_of_all: tuple[Database, LivePostgres], tmp_path: Path) -> Iterator[Stand]:
    database, journal = database_of_all
    answers = LiveAnswers(journal, database.dsn)
    given: dict[str, Any] = {"users": {"cdc": KNOWN}, "method": Method.SHA256, "databases": [database.name]}
    with GaussServer(journal.ledger, answers=answers, thread_pool=True, **given) as server:
        at = {"host": server.host, "port": server.port, "replication_port": server.replication_port}
        who = {"database": database.name, "user": "cdc", "password": PASSWORD, "tls": {"mode": "disable"}}
        how = {"order": "csn", "decoding": PARALLEL, "tables": ["public.loans"]}
        stand = Stand(database, journal, server, QuickShell(tmp_path), {"type": "opengauss", **at, **who, **how})
        server.state.keepalive_every = server.state.batch_seconds = 0.1
        stand.set()
        yield stand


@pytest.mark.parametrize("what", CASES)
def test_what_an_error_says_is_done_at_once_and_nothing_is_missing(stand: Stand, what: str) -> None:
    break_and_obey(stand, CASES[what])


def test_a_plugin_that_the_server_lacks_is_replaced_by_one_that_it_has(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "PLUGINS", frozenset({"mppdb_decoding"}))
    lacking = source(slot={"plugin": "test_decoding"})
    break_and_obey(stand, Case(lacking, "SRC243", source(slot={"plugin": "mppdb_decoding"})))


def test_tables_that_are_put_back_for_a_run_and_widened_again_are_copied_again(stand: Stand) -> None:
    """What their tables had before the run is in the first copy; what came in between is not."""
    break_and_obey(stand, CASES["tables were widened after a crash"])
    number = next(IDS)
    with stand.database.connect() as db:
        db.execute("INSERT INTO more VALUES (%s)", [number])
        db.execute("INSERT INTO loans VALUES (%s, 'between')", [next(IDS)])
    stand.shell.fine(*RECEIVE)
    stand.set(tables=["public.loans", "public.more"])
    stand.shell.fine(*RECEIVE)
    assert str(number) in stand.shell.fine("inspect", "row", "more", str(number))
    assert "the chain holds" in stand.shell.fine("inspect", "chain", "--against", "source")


def break_and_obey(stand: Stand, case: Case) -> None:
    shell, number = stand.shell, next(IDS)
    if case.first:
        shell.fine(*RECEIVE)
    case.breaks(stand)
    with stand.database.connect() as db:
        db.execute("INSERT INTO loans VALUES (%s, 'behind')", [number])
    said = shell(*case.verb)
    assert f"error[{case.code}]" in said.err, said.err
    hint = said.err.partition("hint:")[2]
    assert "publication" not in hint
    if case.mend is not None:
        case.mend(stand)
    if (left_out := re.search(r"`(!\S+)` in `source.tables`", hint)) is not None:
        stand.set(tables=["public.*", left_out[1]])
    stand.obey(hint)
    shell.fine(*RECEIVE)
    assert "behind" in shell.fine("inspect", "row", "loans", str(number))
    assert "the chain holds" in shell.fine("inspect", "chain")
