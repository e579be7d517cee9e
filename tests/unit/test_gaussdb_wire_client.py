"""The wire client against the server that speaks as GaussDB: log in, slots, streams, confirming, the family's mistakes."""

from __future__ import annotations

import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cdc_lake.errors import (
    AuthenticationRefused,
    AuthenticationUnsupported,
    DatabaseUnknown,
    DecodersExhausted,
    OptionRefused,
    OptionUnknown,
    PluginMissing,
    ReplicationPortNeeded,
    RoleLacksReplication,
    ServerSettings,
    ServerUnreachable,
    ServicePortNeeded,
    SlotActive,
    SlotForeign,
    SlotMissing,
    SourceError,
    StandbyNeeded,
    StreamProtocol,
    WalGone,
    WrongOutputOrder,
)
from cdc_lake.model.position import OrderDomain
from cdc_lake.source.gaussdb import slot
from cdc_lake.source.gaussdb.server import current_lsn, identify, snapshot_and_csn
from cdc_lake.source.gaussdb.stream import GaussDbStream
from cdc_lake.source.gaussdb.wire.protocol import WireTarget, WireTls
from cdc_lake.source.gaussdb.wire.session import WireSession, connect
from cdc_lake_testing.beside import until
from cdc_lake_testing.gaussdb.authentication import Credentials, Method, Stored
from cdc_lake_testing.gaussdb.dialect import Product, Version
from cdc_lake_testing.gaussdb.faults import Faults
from cdc_lake_testing.gaussdb.ledger import Ledger, LedgerTransaction
from cdc_lake_testing.gaussdb.recorded import messages, payloads
from cdc_lake_testing.gaussdb.scripted import Rule, ScriptedAnswers
from cdc_lake_testing.gaussdb.server import GaussServer
from cdc_lake_testing.gaussdb.sql import ResultColumn, ResultSet
from tests.mistakes import kept

DATA = Path(__file__).parents[1] / "data/opengauss"
SERIAL = {"parallel-decode-num": "1"}
BINARY = {"parallel-decode-num": "4", "decode-style": "b", "sending-batch": "1"}
TEXT = {"parallel-decode-num": "2", "decode-style": "t", "sending-batch": "0"}


def catalog(encoding: str = "UTF8") -> list[Rule]:
    """What the server says of itself and of the database, whose encoding is this."""
    database = ResultSet(
        tuple(map(ResultColumn, ("datname", "encoding", "compatibility"))), [("postgres", encoding, "PG")]
    )
    settings = ResultSet(
        (ResultColumn("name"), ResultColumn("setting")),
        [("wal_level", "logical"), ("enable_thread_pool", "on"), ("logical_sender_timeout", "30000")],
    )
    return [Rule("from pg_settings", settings), Rule("datcompatibility", database)]


@contextmanager
def serving(ledger: Ledger | None = None, **given: object) -> Iterator[GaussServer]:
    settings: dict[str, object] = {"users": {"cdc": "Gauss@123"}, "answers": ScriptedAnswers(catalog()), **given}
    with GaussServer(Ledger() if ledger is None else ledger, **settings) as server:  # type: ignore[arg-type]
        yield server


def target(server: GaussServer, **changes: object) -> WireTarget:
    given = {
        "hosts": ((server.host, server.port),),
        "database": "postgres",
        "user": "cdc",
        "password": "Gauss@123",
        "replication_port": server.replication_port,
        "tls": WireTls("disable"),
    }
    return WireTarget(**{**given, **changes})  # type: ignore[arg-type]


@contextmanager
def opened(server: GaussServer, *, replication: bool = False, **changes: object) -> Iterator[WireSession]:
    session = connect(target(server, **changes), replication=replication)
    try:
        yield session
    finally:
        session.close()


def make_slot(server: GaussServer, name: str = "shop", plugin: str = "mppdb_decoding") -> slot.CreatedSlot:
    with opened(server, replication=True) as session:
        return slot.create_slot(session, name, plugin)


@contextmanager
def streaming(
    server: GaussServer, options: dict[str, str], name: str = "shop", start: int = 0, interval: float = 10.0
) -> Iterator[GaussDbStream]:
    stream = GaussDbStream(
        connect(target(server), replication=True),
        name,
        start,
        options,
        keepalives_confirm=options["parallel-decode-num"] == "1",
        status_interval=interval,
    )
    try:
        yield stream
    finally:
        stream.close()


def collect(stream: GaussDbStream, size: int, seconds: float = 60.0) -> list[tuple[int, bytes]]:
    frames: list[tuple[int, bytes]] = []
    end = time.monotonic() + seconds
    while sum(len(payload) for _, payload in frames) < size and time.monotonic() < end:
        frames += stream.poll(0.05)
    return frames


def read_on(
    server: GaussServer, options: dict[str, str], name: str = "shop", got: list[tuple[int, bytes]] | None = None
) -> None:
    """Read for five seconds."""
    with streaming(server, options, name) as stream:
        for _ in range(100):
            frames = stream.poll(0.05)
            if got is not None:
                got += frames


# ── log in ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("method", "stored", "iterations"),
    [
        (Method.TRUST, Stored.SHA256, 10000),
        (Method.PASSWORD, Stored.SHA256, 10000),
        (Method.SHA256, Stored.SHA256, 10000),
        (Method.SHA256, Stored.SHA256, 2048),
        (Method.SHA256, Stored.SHA256, 50_000),
        (Method.SHA256, Stored.MD5, 10000),
        (Method.SHA256, Stored.BOTH, 10000),
        (Method.MD5, Stored.MD5, 10000),
        (Method.MD5, Stored.SHA256, 2048),
    ],
)
@pytest.mark.parametrize("replication", [False, True])
def test_every_method_lets_the_right_password_in_and_no_other(
    method: Method, stored: Stored, iterations: int, replication: bool
) -> None:
    users = {"cdc": Credentials("Gauss@123", stored, iterations)}
    with serving(users=users, method=method) as server:
        with opened(server, replication=replication) as session:
            assert session.query("SELECT version()").rows
        if method is not Method.TRUST:
            with pytest.raises(AuthenticationRefused), opened(server, replication=replication, password="wrong"):
                pass


@pytest.mark.parametrize(
    ("changes", "server_side", "expected"),
    [
        ({}, {"method": Method.SM3}, AuthenticationUnsupported),
        ({}, {"method": Method.REJECT}, AuthenticationRefused),
        ({"user": "who"}, {"method": Method.SHA256}, AuthenticationRefused),
        ({"password": None}, {"method": Method.SHA256}, AuthenticationRefused),
        ({"database": "nope"}, {"databases": ["postgres"]}, DatabaseUnknown),
    ],
)
def test_a_connection_that_is_refused_says_why(
    changes: dict[str, object], server_side: dict[str, object], expected: type[SourceError]
) -> None:
    with serving(**server_side) as server, pytest.raises(expected) as caught, opened(server, **changes):
        pass
    assert caught.value.remedy
    assert "Gauss@123" not in str(caught.value)


def test_each_port_refuses_what_belongs_to_the_other() -> None:
    with serving(thread_pool=True) as server:
        with opened(server) as session, opened(server, replication=True):
            assert session.query("SELECT 1").rows == (("1",),)
        with pytest.raises(ReplicationPortNeeded) as stream:
            connect(target(server, replication_port=server.port), replication=True)
        with pytest.raises(ServicePortNeeded) as sql:
            connect(target(server, hosts=((server.host, server.replication_port),)))
    assert "replication_port" in stream.value.remedy
    kept("wrong-port", stream.value)
    assert "source.port" in sql.value.remedy


def test_a_role_without_the_right_is_told_which_one() -> None:
    with serving(strangers=["cdc"]) as server:
        with pytest.raises(RoleLacksReplication) as caught:
            connect(target(server), replication=True)
        assert 'ALTER ROLE "cdc" REPLICATION' in caught.value.remedy


# ── facts, snapshots, slots ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("version", "product", "expected"),
    [
        ("6.0.2", "openGauss", (6, 0, 2)),
        ("3.0.0", "MogDB", (3, 0, 0)),
        ("6.0.2", "GaussDB", None),
    ],
)
def test_a_server_is_identified(version: Version, product: Product, expected: tuple[int, ...] | None) -> None:
    with serving(version=version, product=product) as server, opened(server, replication=True) as session:
        facts = identify(session)
        assert facts.version.product.value == product
        assert facts.version.base == expected
        assert facts.system == server.state.system
        assert facts.flushed.value == server.ledger.end_lsn
        assert facts.sender_timeout == 30.0


def test_a_snapshot_has_the_csn_of_the_ledger() -> None:
    ledger = Ledger(first_csn=(1 << 33) - 1)
    with serving(ledger) as server, opened(server) as session:
        for _ in range(3):
            ledger.commit()
            assert snapshot_and_csn(session).csn.value == ledger.next_csn
            assert current_lsn(session).value == ledger.end_lsn
            session.query("COMMIT")


def test_a_slot_is_made_found_advanced_and_dropped() -> None:
    with serving() as server, opened(server) as session:
        made = make_slot(server)
        assert made.snapshot
        found = slot.find_slot(session, "shop")
        assert found is not None
        assert (found.plugin, found.kind, found.active, found.order) == (
            "mppdb_decoding", "logical", False, OrderDomain.LSN,
        )  # fmt: skip
        assert found.confirmed == made.consistent.value
        end = server.ledger.commit().commit_end
        slot.advance_slot(session, "shop", current_lsn(session))
        after = slot.find_slot(session, "shop")
        assert after is not None
        assert after.confirmed == end
        slot.drop_slot(session, "shop")
        assert slot.find_slot(session, "shop") is None
        with pytest.raises(SlotMissing):
            slot.drop_slot(session, "shop")


@pytest.mark.parametrize("order", [OrderDomain.LSN, OrderDomain.CSN])
def test_gaussdb_makes_slots_of_either_order(order: OrderDomain) -> None:
    with serving(product="GaussDB") as server, opened(server) as session:
        slot.create_slot_by_function(session, "shop", "mppdb_decoding", order)
        found = slot.find_slot(session, "shop")
        assert found is not None
        assert found.order is order
        other = OrderDomain.CSN if order is OrderDomain.LSN else OrderDomain.LSN
        with pytest.raises(WrongOutputOrder):
            slot.check_slot(found, "shop", "mppdb_decoding", "postgres", found.confirmed or 0, other)


def test_mistakes_with_slots_have_their_names() -> None:
    with serving() as server:
        make_slot(server)
        for plugin, name, expected in (
            ("pgoutput", "other", PluginMissing),
            ("mppdb_decoding", "shop", SlotForeign),
        ):
            with opened(server, replication=True) as session, pytest.raises(expected):
                slot.create_slot(session, name, plugin)
        server.state.in_recovery = True
        with opened(server, replication=True) as session, pytest.raises(ServerSettings, match="Standby"):
            slot.create_slot(session, "third", "mppdb_decoding")


# ── streams ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("options", [SERIAL, BINARY, TEXT], ids=["serial", "binary", "text"])
def test_what_is_confirmed_is_not_sent_again(options: dict[str, str]) -> None:
    ledger = Ledger()
    with serving(ledger) as server:
        server.state.keepalive_every = 0.05
        make_slot(server)
        first, second = ledger.commit(), ledger.commit()
        with streaming(server, options) as stream:
            assert collect(stream, 1)
            stream.confirm(first.commit_end if options is SERIAL else first.commit_end - 1)
            until(lambda: server.state.slots.get("shop").confirmed >= first.commit_end - 1)
        until(lambda: not server.state.slots.all()[0][1])
        with streaming(server, options) as stream:
            again = b"".join(payload for _, payload in collect(stream, 20))

    def begins(transaction: LedgerTransaction) -> bytes:
        if options is SERIAL:
            return f"BEGIN {transaction.xid}".encode()
        return f"CSN: {transaction.csn} ".encode() if options is TEXT else b"B" + transaction.csn.to_bytes(8, "big")

    assert begins(second) in again
    assert begins(first) not in again


def test_serial_keepalives_move_on_a_quiet_server_and_parallel_ones_do_not() -> None:
    ledger = Ledger()
    with serving(ledger) as server:
        server.state.keepalive_every = 0.02
        make_slot(server)
        make_slot(server, "par")
        ledger.commit(database="elsewhere")
        with streaming(server, SERIAL, interval=0.1) as stream:
            until(lambda: not stream.poll(0.05) and stream.keepalive_end >= ledger.end_lsn)
        with streaming(server, BINARY, "par") as stream:
            collect(stream, 1)
            for _ in range(10):
                stream.poll(0.05)
            assert stream.keepalive_end == 0


@pytest.mark.parametrize("options", [SERIAL, BINARY], ids=["serial", "parallel"])
def test_replies_in_time_keep_the_stream_and_none_end_it(options: dict[str, str]) -> None:
    with serving() as server:
        server.state.sender_timeout = 2.5
        server.state.keepalive_every = 0.1
        make_slot(server)
        with streaming(server, options, interval=0.15) as stream:
            end = time.monotonic() + 3.0
            while time.monotonic() < end:
                stream.tick()  # as during a long commit: nothing is read
                time.sleep(0.02)
            assert stream.poll(0.0) is not None
        until(lambda: not server.state.slots.all()[0][1])
        with streaming(server, options, interval=1000.0) as stream:
            until(lambda: not server.state.slots.all()[0][1])
            with pytest.raises(ServerUnreachable):
                collect(stream, 1)


def test_a_slot_that_is_read_is_active_and_free_again_soon_after_an_abrupt_end() -> None:
    with serving() as server:
        make_slot(server)
        with streaming(server, BINARY) as stream:
            with pytest.raises(SlotActive), streaming(server, BINARY):
                pass
            with opened(server) as session, pytest.raises(SlotActive):
                slot.drop_slot(session, "shop")
            stream._channel.close()

        def free() -> bool:
            try:
                with streaming(server, BINARY):
                    return True
            except SlotActive:
                return False

        until(free)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (SERIAL | {"decode-style": "t"}, OptionUnknown),
        (SERIAL | {"include-xids": "maybe"}, OptionRefused),
        (SERIAL | {"white-table-list": "nodot"}, OptionRefused),
        (BINARY | {"enable-heartbeat": "on"}, OptionUnknown),
        (BINARY | {"parallel-queue-size": "100"}, OptionRefused),
        (BINARY | {"decode-style": "x"}, OptionRefused),
        ({"parallel-decode-num": "21"}, OptionRefused),
        (BINARY | {"standby-connection": "on"}, StandbyNeeded),
    ],
)
def test_refused_options_end_the_stream_with_their_name(options: dict[str, str], expected: type[SourceError]) -> None:
    with serving() as server:
        make_slot(server)
        with pytest.raises(expected) as caught:
            read_on(server, options)
        assert caught.value.remedy


def test_a_missing_slot_lost_log_and_too_many_decoders_have_their_names() -> None:
    with serving() as server:
        for options in (SERIAL, BINARY):
            with pytest.raises(SlotMissing), streaming(server, options, "absent"):
                pass
        for n in range(21):
            make_slot(server, f"s{n}")
        streams = [
            GaussDbStream(
                connect(target(server), replication=True),
                f"s{n}",
                0,
                BINARY,
                keepalives_confirm=False,
                status_interval=9,
            )
            for n in range(20)
        ]
        with pytest.raises(DecodersExhausted), streaming(server, BINARY, "s20"):
            pass
        for stream in streams:
            stream.close()
        until(lambda: not any(pid for _, pid in server.state.slots.all()))
        server.state.wal_start = server.ledger.commit().commit_end
        with pytest.raises(WalGone) as caught:
            read_on(server, BINARY, "s1")
        assert "max_size_for_xlog_prune" in caught.value.remedy


@pytest.mark.parametrize("after", [0, 1, 4, 5, 6, 20, 29, 30, 47, 100])
@pytest.mark.parametrize("reset", [False, True])
def test_a_connection_cut_anywhere_is_unreachable_and_nothing_is_half(after: int, reset: bool) -> None:
    ledger = Ledger()
    faults = Faults(reset_after=after) if reset else Faults(cut_after=after)
    with serving(ledger) as server:
        make_slot(server)
        for _ in range(5):
            ledger.commit()
        with streaming(server, TEXT) as stream:
            whole = collect(stream, 200)
        until(lambda: not server.state.slots.all()[0][1])
        server.inject(faults)
        got: list[tuple[int, bytes]] = []
        with pytest.raises(ServerUnreachable):
            read_on(server, TEXT, got=got)
    assert got == whole[: len(got)]


def test_rubbish_between_messages_is_an_error() -> None:
    with serving() as server:
        make_slot(server)
        server.inject(Faults(garbage_after=0, garbage=b"\0" * 40))
        with pytest.raises(StreamProtocol):
            read_on(server, BINARY)


@pytest.mark.parametrize("version", ["6.0.2", "5.0.3", "3.0.0"])
def test_recorded_streams_arrive_payload_for_payload(version: str) -> None:
    with serving() as server, tarfile.open(DATA / version / "streams.tar.xz") as archive:
        for at, member in enumerate(m for m in archive.getmembers() if m.name.endswith(".bin")):
            file = archive.extractfile(member)
            assert file is not None
            bodies = messages(file.read())
            server.play(f"s{at}", bodies)
            expected = [payload for _, payload in payloads(bodies)]
            got: list[bytes] = []
            with streaming(server, BINARY, f"s{at}") as stream:
                end = time.monotonic() + 60
                while len(got) < len(expected) and time.monotonic() < end:
                    got += [payload for _, payload in stream.poll(0.05)]
            assert got == expected, member.name
