"""The workload of a live PostgreSQL over the family's wire: every style, framing and slot order ends equal to its tables."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from cdc_lake.decode.mppdb.assembler import FamilyAssembler
from cdc_lake.decode.mppdb.facts import FamilyColumn, FamilyTableFacts
from cdc_lake.decode.mppdb.layouts import Layouts
from cdc_lake.decode.mppdb.plain import transaction
from cdc_lake.decode.mppdb.raw import RecordTransaction
from cdc_lake.decode.mppdb.records import Style
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import TableName
from cdc_lake.source.catalog import relation_of
from cdc_lake.source.gaussdb.stream import GaussStream
from cdc_lake.source.wire.connect import connect
from cdc_lake.source.wire.target import WireTarget, WireTls
from cdc_lake.testing.gaussdb.answers import LiveAnswers
from cdc_lake.testing.gaussdb.authentication import Method
from cdc_lake.testing.gaussdb.live import LivePostgres
from cdc_lake.testing.gaussdb.server import GaussServer
from cdc_lake.testing.oracle import Oracle
from cdc_lake.testing.workload import SHAPES, Workload
from tests.conftest import Database
from tests.live.test_gaussdb_live import read

pytestmark = pytest.mark.live

SEED = int(os.environ.get("CDC_LAKE_SEED", random.getrandbits(32)))
BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
PASSWORD = "Gauss@123"
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
        assembler = FamilyAssembler(kind.style, batch=kind.batch, domain=OrderDomain.CSN, confirms_csn=kind.by_csn)
        replication = connect(self.target(by_csn=kind.by_csn), replication=True)
        stream = GaussStream(
            replication, kind.slot, 0, kind.options, keepalives_confirm=kind.style is Style.SERIAL, status_interval=5
        )
        done: list[RecordTransaction] = []
        try:
            while len(done) < wanted:
                frames = stream.poll(10)
                assert frames, f"{len(done)} of {wanted} transactions"
                for lsn, payload in frames:
                    done.extend(assembler.feed(payload, lsn))
            stream.confirm(max(t.bounds.confirm for t in done))
        finally:
            stream.close()
        return done

    def facts(self) -> dict[TableName, FamilyTableFacts]:
        out = {}
        with self.database.connect() as session:
            for shape in SHAPES:
                table = TableName("public", shape.name)
                relation = relation_of(session, table, tuple(shape.columns))
                out[table] = FamilyTableFacts(
                    tuple(FamilyColumn(c.name, c.type_name, c.type_oid, c.modifier) for c in relation.columns),
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
    with database.connect() as conn:
        Workload(conn, 0).create_tables()
    with LivePostgres(database.server.dsn(database.name), inversions=0.3, foreign=0.2, seed=SEED) as live:
        answers = LiveAnswers(live, database.dsn)
        given = {"users": {"cdc": PASSWORD}, "method": Method.SHA256, "answers": answers, "thread_pool": True}
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
        layouts = Layouts(facts.get, tables=frozenset(facts))
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
    layouts = Layouts(stand_in.facts().get)
    raws = stand_in.received(kind, len(stand_in.sent(kind)))
    ordered = sorted(raws, key=lambda raw: raw.bounds.position)
    oracle = Oracle(KEYS, {table: {} for table in KEYS})
    assert oracle.run([transaction(raw, layouts) for raw in ordered]) == state


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
