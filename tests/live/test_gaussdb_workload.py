"""The workload of a live PostgreSQL over the family's wire: every style, framing and slot order ends equal to its tables."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from cdc_lake.decode.gaussdb.assembler import GaussDbAssembler
from cdc_lake.decode.gaussdb.batches import RecordTransaction
from cdc_lake.decode.gaussdb.catalog_facts import GaussDbColumn, GaussDbTableMetadata
from cdc_lake.decode.gaussdb.records import Style
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import TableName
from cdc_lake.source.gaussdb.server import current_lsn, identify, snapshot_and_csn
from cdc_lake.source.gaussdb.slot import create_slot, drop_slot, find_slot
from cdc_lake.source.gaussdb.stream import GaussDbStream
from cdc_lake.source.gaussdb.wire.protocol import WireTarget, WireTls
from cdc_lake.source.gaussdb.wire.session import connect
from cdc_lake.source.postgres.catalog import relation_of
from cdc_lake_testing.decoded import of_records as transaction
from cdc_lake_testing.gaussdb.answers import LiveAnswers
from cdc_lake_testing.gaussdb.authentication import Credentials, Method
from cdc_lake_testing.gaussdb.live import LivePostgres
from cdc_lake_testing.gaussdb.server import GaussServer
from cdc_lake_testing.oracle import Oracle
from cdc_lake_testing.workload import SHAPES, Workload
from tests.conftest import Database
from tests.live.test_kit_gaussdb_live import fold, read
from tests.seeds import one_seed

pytestmark = pytest.mark.live

SEED = one_seed()
BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
PASSWORD = "Gauss@123"
KNOWN = Credentials(PASSWORD, iterations=1)
"""A server says how often a password is hashed at each login: ten thousand times is much of what a connection costs."""
KEYS = {TableName("public", shape.name): tuple(shape.key) for shape in SHAPES}


@dataclass(frozen=True)
class Kind:
    """How a stream is read."""

    style: Style
    batch: bool = False
    by_csn: bool = False

    @property
    def slot(self) -> str:
        return f"{self.style.name.lower()}_{int(self.batch)}_{'csn' if self.by_csn else 'lsn'}"

    @property
    def options(self) -> dict[str, str]:
        order = {"output-order": "1"} if self.by_csn else {}
        if self.style is Style.SERIAL:
            return {"parallel-decode-num": "1", "include-timestamp": "on", **order}
        framing = {"decode-style": self.style.value, "sending-batch": str(int(self.batch))}
        return {"parallel-decode-num": "4", **framing, "include-timestamp": "on", **order}


KINDS = [
    Kind(style, batch, by_csn)
    for by_csn in (False, True)
    for style in Style
    for batch in ((False,) if style is Style.SERIAL else (False, True))
]


@dataclass(frozen=True)
class StandIn:
    """A live PostgreSQL behind two servers: openGauss for slots in LSN order, GaussDB for those in CSN order."""

    database: Database
    live: LivePostgres
    servers: dict[bool, GaussServer]

    def target(self, *, by_csn: bool) -> WireTarget:
        server = self.servers[by_csn]
        hosts = ((server.host, server.port),)
        tls = WireTls("disable")
        return WireTarget(hosts, self.database.name, "cdc", PASSWORD, server.replication_port, tls)

    def make_slot(self, kind: Kind) -> None:
        order = ", 1" if kind.by_csn else ""
        session = connect(self.target(by_csn=kind.by_csn))
        session.query(f"SELECT pg_create_logical_replication_slot('{kind.slot}', 'mppdb_decoding'{order})")
        session.close()

    def sent(self, kind: Kind, since: int = 0) -> list[int]:
        """The CSNs of what the ledger holds from that index on, as far as the kind is sent them; sorted."""
        self.live.settled()
        everything = kind.style is not Style.SERIAL
        ledger = self.live.ledger.since(since)
        return sorted(t.csn for t in ledger if everything or t.database == self.database.name)

    def received(self, kind: Kind, wanted: int) -> list[RecordTransaction]:
        """The next transactions of the slot, at least so many; all of them are confirmed."""
        assembler = GaussDbAssembler(kind.style, batch=kind.batch, domain=OrderDomain.CSN, confirms_csn=kind.by_csn)
        replication = connect(self.target(by_csn=kind.by_csn), replication=True)
        stream = GaussDbStream(
            replication, kind.slot, 0, kind.options, keepalives_confirm=kind.style is Style.SERIAL, status_interval=5
        )
        done: list[RecordTransaction] = []
        try:
            while len(done) < wanted:
                frames = stream.poll(60)
                assert frames, f"{len(done)} of {wanted} transactions"
                for lsn, payload in frames:
                    done.extend(assembler.feed(payload, lsn))
            stream.confirm(max(t.bounds.confirm for t in done))
        finally:
            stream.close()
        return done

    def facts(self) -> dict[TableName, GaussDbTableMetadata]:
        out = {}
        with self.database.connect() as session:
            for shape in SHAPES:
                table = TableName("public", shape.name)
                relation = relation_of(session, table, tuple(shape.columns))
                out[table] = GaussDbTableMetadata(
                    tuple(GaussDbColumn(c.name, c.type_name, c.type_oid, c.modifier) for c in relation.columns),
                    relation.primary_key,
                    relation.identity,
                    tuple(c.name for c in relation.columns if c.key),
                )
        return out


@pytest.fixture(scope="module")
def seed() -> int:
    print("CDC_LAKE_SEED =", SEED)
    return SEED


@pytest.fixture
def stand_in(database: Database) -> Iterator[StandIn]:
    print("CDC_LAKE_SEED =", SEED)
    with database.connect() as conn:
        Workload(conn, 0).create_tables()
    with LivePostgres(database.server.dsn(database.name), inversions=0.3, foreign=0.2, seed=SEED) as live:
        answers = LiveAnswers(live, database.dsn)
        given = {"users": {"cdc": KNOWN}, "method": Method.SHA256, "answers": answers, "thread_pool": True}
        with (
            GaussServer(live.ledger, databases=[database.name], **given) as by_lsn,
            GaussServer(live.ledger, product="GaussDB", databases=[database.name], **given) as by_csn,
        ):
            yield StandIn(database, live, {False: by_lsn, True: by_csn})


def test_every_way_to_read_ends_equal_to_the_tables(stand_in: StandIn, seed: int) -> None:
    """TRUNCATE is left out: parallel decoding does not send it."""
    for kind in KINDS:
        stand_in.make_slot(kind)
    with stand_in.database.connect() as conn:
        Workload(conn, seed, truncates=False).run(150 * BUDGET)
        state = {table: read(conn, table, key) for table, key in KEYS.items()}
    assert all(state.values())
    facts = stand_in.facts()
    for kind in KINDS:
        sent = stand_in.sent(kind)
        raws = stand_in.received(kind, len(sent))
        csns = [raw.bounds.position for raw in raws]
        assert (csns if kind.by_csn else sorted(csns)) == sent, kind.slot
        if kind.style is not Style.SERIAL:
            assert sent == list(range(2000, 2000 + len(csns))), kind.slot
        ordered = sorted(raws, key=lambda raw: raw.bounds.position)
        layouts = RelationResolver(facts.get, tables=frozenset(facts))
        oracle = Oracle(KEYS, {table: {} for table in KEYS})
        assert oracle.run([transaction(raw, layouts) for raw in ordered]) == state, kind.slot


def test_serial_decoding_sends_truncates(stand_in: StandIn, seed: int) -> None:
    kind = Kind(Style.SERIAL)
    stand_in.make_slot(kind)
    with stand_in.database.connect() as conn:
        workload = Workload(conn, seed)
        workload.run(150 * BUDGET)
        while not workload.done["truncate"]:
            workload.run(20)
        state = {table: read(conn, table, key) for table, key in KEYS.items()}
    layouts = RelationResolver(stand_in.facts().get)
    raws = stand_in.received(kind, len(stand_in.sent(kind)))
    ordered = sorted(raws, key=lambda raw: raw.bounds.position)
    oracle = Oracle(KEYS, {table: {} for table in KEYS})
    assert oracle.run([transaction(raw, layouts) for raw in ordered]) == state


def test_parallel_decoding_loses_what_stands_behind_ddl_and_serial_does_not(database: Database) -> None:
    with database.connect() as conn, LivePostgres(database.server.dsn(database.name), ddl_marks=True) as live:
        answers = LiveAnswers(live, database.dsn)
        with GaussServer(live.ledger, users={"cdc": KNOWN}, method=Method.SHA256, answers=answers) as server:
            stand_in = StandIn(database, live, {False: server})
            kinds = [Kind(Style.SERIAL), Kind(Style.JSON)]
            for kind in kinds:
                stand_in.make_slot(kind)
            with conn.transaction():
                conn.execute("CREATE TABLE made (id int PRIMARY KEY)")
                conn.execute("INSERT INTO made VALUES (1), (2)")
            conn.execute("INSERT INTO made VALUES (3)")
            with conn.transaction():
                conn.execute("DELETE FROM made WHERE id = 3")
                conn.execute("TRUNCATE made")
                conn.execute("INSERT INTO made VALUES (4)")
            counts = {kind.style: [raw.count for raw in stand_in.received(kind, 3)] for kind in kinds}
    assert counts == {Style.SERIAL: [2, 1, 3], Style.JSON: [0, 1, 1]}


def test_a_slot_goes_on_where_it_was_confirmed(stand_in: StandIn, seed: int) -> None:
    kinds = [Kind(Style.BINARY, batch=True), Kind(Style.JSON, batch=True, by_csn=True), Kind(Style.SERIAL)]
    for kind in kinds:
        stand_in.make_slot(kind)
    with stand_in.database.connect() as conn:
        workload = Workload(conn, seed, truncates=False)
        workload.run(30)
        for kind in kinds:
            sent = stand_in.sent(kind)
            assert sorted(raw.bounds.position for raw in stand_in.received(kind, len(sent))) == sent, kind.slot
        before = len(stand_in.live.ledger)
        workload.run(30)
    for kind in kinds:
        sent = stand_in.sent(kind, before)
        assert sorted(raw.bounds.position for raw in stand_in.received(kind, len(sent))) == sent, kind.slot


def test_the_client_asks_the_stand_in_what_it_asks_a_server(stand_in: StandIn) -> None:
    replication = connect(stand_in.target(by_csn=False), replication=True)
    session, reader = connect(stand_in.target(by_csn=False)), connect(stand_in.target(by_csn=False))
    facts = identify(replication)
    assert (facts.database, facts.encoding, facts.compatibility) == (stand_in.database.name, "UTF8", "PG")
    assert (facts.wal_level, facts.thread_pool, facts.sender_timeout, facts.in_recovery) == ("logical", True, 30, False)
    made = create_slot(replication, "asked", "mppdb_decoding")
    session.query("INSERT INTO w_items (id) VALUES (7)")
    snapshot = snapshot_and_csn(session)
    reader.query("INSERT INTO w_items (id) VALUES (8)")
    reader.query("BEGIN ISOLATION LEVEL REPEATABLE READ")
    reader.query(f"SET TRANSACTION SNAPSHOT '{snapshot.name}'")
    assert reader.query("SELECT id FROM w_items").rows == (("7",),)
    assert list(reader.copy_out("COPY (SELECT id, name FROM w_items) TO STDOUT")) == [b"7\t\\N\n"]
    reader.query("COMMIT")
    assert current_lsn(session) > made.consistent
    sent = [t.csn for t in stand_in.live.ledger.since(0) if t.changes]
    assert [csn < snapshot.csn.value for csn in sent] == [True, False]
    found = find_slot(session, "asked")
    assert found is not None
    assert (found.confirmed, found.active, found.database) == (made.consistent.value, False, stand_in.database.name)
    reader.query("SELECT * FROM pg_replication_slot_advance('asked', NULL)")
    drop_slot(reader, "asked")
    assert find_slot(reader, "asked") is None
    for each in (replication, session, reader):
        each.close()


def test_snapshots_over_the_wire_are_exact_while_others_write(stand_in: StandIn, seed: int) -> None:
    """Exported, imported by another session, and made with a slot: each is the fold of what has a lower CSN."""
    table, key = TableName("public", "w_items"), ("id",)
    stop = threading.Event()
    writers = [threading.Thread(target=write, args=(stand_in, seed + n, n, stop)) for n in range(3)]
    taken: list[tuple[int, set[str | None]]] = []
    session, reader = connect(stand_in.target(by_csn=False)), connect(stand_in.target(by_csn=False))
    for writer in writers:
        writer.start()
    try:
        for at in range(30 * BUDGET):
            if at % 3:
                exported = snapshot_and_csn(session)
                name, csn = exported.name, exported.csn.value
            else:
                replication = connect(stand_in.target(by_csn=False), replication=True)
                replication.query("BEGIN ISOLATION LEVEL REPEATABLE READ")
                row = replication.query(
                    f'CREATE_REPLICATION_SLOT "s{at}" LOGICAL "mppdb_decoding" USE_SNAPSHOT'
                ).records()[0]
                csn = int(row["snapshot_csn"] or "")
                rows = replication.query("SELECT id FROM w_items").rows
                taken.append((csn, {i for (i,) in rows}))
                ((name,),) = replication.query("SELECT pg_export_snapshot()").rows
            reader.query("BEGIN ISOLATION LEVEL REPEATABLE READ")
            reader.query(f"SET TRANSACTION SNAPSHOT '{name}'")
            taken.append((csn, {i for (i,) in reader.query("SELECT id FROM w_items").rows}))
            reader.query("COMMIT")
            if at % 3:
                session.query("COMMIT")
            else:
                replication.close()
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    session.close()
    reader.close()
    stand_in.live.settled()
    ledger = stand_in.live.ledger.since(0)
    for csn, ids in taken:
        state: dict[TableName, dict[Any, Any]] = {table: {}}
        for one in sorted(ledger, key=lambda t: t.csn):
            if one.csn < csn:
                fold(state, one, {table: key})
        assert {i for (i,) in state[table]} == ids
    assert len({csn for csn, _ in taken}) > 4


def write(stand_in: StandIn, seed: int, writer: int, stop: threading.Event) -> None:
    chance = random.Random(seed)
    with stand_in.database.connect() as conn:
        for n in itertools.count():
            if stop.is_set():
                return
            conn.execute("INSERT INTO w_items (id) VALUES (%s)", (writer * 1_000_000 + n,))
            if chance.random() < 0.3:
                conn.execute("DELETE FROM w_items WHERE id = %s", (writer * 1_000_000 + chance.randint(0, n),))
            time.sleep(chance.random() / 50)
