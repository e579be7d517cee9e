"""A session over real sockets: start-up, every authentication, TLS, hosts, statements, copies, and what goes wrong."""

from __future__ import annotations

import json
import os
import random
import ssl
import struct
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cdc_lake.errors import (
    AuthenticationRefused,
    AuthenticationUnsupported,
    DatabaseUnknown,
    NoPrimary,
    QueryRefused,
    ReplicationPortNeeded,
    ServerSettings,
    ServerUnreachable,
    SlotMissing,
    SourceError,
    StreamProtocol,
    TlsRefused,
)
from cdc_lake.source.gaussdb.stream import GaussDbStream
from cdc_lake.source.gaussdb.wire import auth, protocol
from cdc_lake.source.gaussdb.wire.auth import Md5, Md5OverSha256, Sha256, Sha256OverMd5
from cdc_lake.source.gaussdb.wire.protocol import WireTls, copy_data, message
from cdc_lake.source.gaussdb.wire.session import Result, connect
from cdc_lake_testing.ports import free_port
from tests.certificates import make_authority
from tests.scripted_server import (
    ACCEPTED,
    READY,
    Peer,
    Scripted,
    answers,
    complete,
    error,
    frame,
    keepalive,
    row,
    row_description,
    status,
    table,
)
from tests.seeds import one_seed

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
RECORDED = json.loads((Path(__file__).parents[1] / "data/opengauss/authentication.json").read_text())
SALT, TOKEN, SALT4 = "0123456789abcdef" * 4, "abcd1234", bytes.fromhex("01020304")


def asks(code: int, rest: bytes = b"") -> bytes:
    return message(b"R", struct.pack(">i", code) + rest)


# ── start-up ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_startup_asks_for_utf8_iso_dates_and_no_time_limits() -> None:
    with Scripted(answers({})) as server:
        connect(server.target(), application="cdc_lake shop", replication=True).close()
        given = server.peers[0].parameters
    assert given["user"] == "cdc"
    assert given["database"] == "shop"
    assert given["replication"] == "database"
    assert given["application_name"] == "cdc_lake shop"
    assert given["client_encoding"] == "UTF8"
    assert given["DateStyle"] == "ISO"
    assert given["bytea_output"] == "hex"
    assert given["TimeZone"] == "UTC"
    assert given["session_timeout"] == "0"


def test_an_ordinary_session_says_nothing_of_replication() -> None:
    with Scripted(answers({})) as server:
        connect(server.target()).close()
        assert "replication" not in server.peers[0].parameters


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (asks(3), "Gauss@123"),
        (asks(5, SALT4), auth.answer(Md5(SALT4), "cdc", "Gauss@123")),
        (
            asks(10, struct.pack(">i", 2) + (SALT + TOKEN).encode() + struct.pack(">i", 10000)),
            auth.answer(Sha256(SALT, TOKEN, 10000), "cdc", "Gauss@123"),
        ),
        (asks(10, struct.pack(">i", 1) + SALT4), auth.answer(Sha256OverMd5(SALT4), "cdc", "Gauss@123")),
        (asks(11, SALT.encode() + SALT4), auth.answer(Md5OverSha256(SALT, SALT4), "cdc", "Gauss@123")),
    ],
    ids=["clear", "md5", "sha256", "sha256 over md5", "md5 over sha256"],
)
@pytest.mark.parametrize("piece", [None, 1])
def test_every_authentication_is_answered(asked: bytes, expected: str, piece: int | None) -> None:
    got: list[bytes] = []

    def script(peer: Peer) -> None:
        peer.startup()
        peer.send(asked)
        letter, body = peer.read()
        got.append(letter + body)
        peer.send(ACCEPTED, status("server_version", "9.2.4"), message(b"K", bytes(8)), READY)
        peer.hang()

    with Scripted(script, piece=piece) as server:
        session = connect(server.target())
        assert session.parameters == {"server_version": "9.2.4"}
        session.close()
    assert got == [b"p" + expected.encode() + b"\0"]


@pytest.mark.parametrize(
    "exchange", [e for e in RECORDED if e["minor"] == 51 and "answer" in e], ids=lambda e: e["name"]
)
def test_recorded_servers_accept_or_refuse_as_they_did(exchange: dict[str, str]) -> None:
    def script(peer: Peer) -> None:
        peer.startup()
        peer.send(bytes.fromhex(exchange["request"]))
        peer.read()
        peer.send(bytes.fromhex(exchange["then"]))
        peer.hang()

    with Scripted(script, piece=7) as server:
        target = server.target(user=exchange["user"], password=exchange.get("password", "wrong"))
        if exchange["outcome"] == "refused":
            with pytest.raises(AuthenticationRefused, match="login denied"):
                connect(target)
            return
        session = connect(target)
        assert session.parameters["server_version"] == "9.2.4"
        session.close()


def test_an_md5_line_that_is_refused_says_what_to_write() -> None:
    def script(peer: Peer) -> None:
        peer.startup()
        peer.send(asks(11, SALT.encode() + SALT4))
        peer.read()
        peer.send(error("28P01", "Invalid username/password,login denied.", "FATAL"))

    with Scripted(script) as server, pytest.raises(AuthenticationRefused) as caught:
        connect(server.target())
    assert "use `sha256`" in caught.value.remedy
    assert "Gauss@123" not in str(caught.value)


def refuses(*messages: bytes) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        peer.startup()
        peer.send(*messages)

    return script


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (refuses(asks(13, b"anything")), AuthenticationUnsupported),
        (refuses(asks(12)), AuthenticationUnsupported),
        (refuses(asks(77)), AuthenticationUnsupported),
        (refuses(error("3D000", 'database "shop" does not exist', "FATAL")), DatabaseUnknown),
        (refuses(error("XX000", "replication should connect HA port in thread_pool", "FATAL")), ReplicationPortNeeded),
        (refuses(ACCEPTED, error("53300", "too many clients", "FATAL")), SourceError),
        (refuses(message(b"v", bytes(8))), ServerSettings),  # a PostgreSQL
        (refuses(b"HTTP/1.1 400 Bad Request\r\n\r\n"), StreamProtocol),
        (refuses(message(b"D", bytes(2))), StreamProtocol),
        (refuses(b""), ServerUnreachable),
        (refuses(asks(10)), StreamProtocol),
    ],
)
def test_a_refused_start_says_why_and_where(script: Callable[[Peer], None], expected: type[SourceError]) -> None:
    with Scripted(script) as server:
        with pytest.raises(expected) as caught:
            connect(server.target())
        assert f"127.0.0.1:{server.port}/shop" in f"{caught.value.where} {caught.value.message}"
    assert caught.value.remedy


def test_a_server_that_wants_a_password_that_is_not_given_is_told_apart() -> None:
    with (
        Scripted(refuses(asks(3))) as server,
        pytest.raises(AuthenticationRefused, match="none is configured") as caught,
    ):
        connect(server.target(password=None))
    assert "${env:" in caught.value.remedy


def test_a_server_that_is_silent_is_waited_for_only_so_long() -> None:
    with Scripted(lambda peer: peer.hang()) as server, pytest.raises(ServerUnreachable, match="in time"):
        connect(server.target(connect_timeout=0.2))


@pytest.mark.parametrize("host", ["/no/such/folder", "no.such.host.invalid", "bad..name"])
def test_an_address_that_is_none_is_unreachable(host: str) -> None:
    with Scripted(answers({})) as server, pytest.raises(ServerUnreachable):
        connect(server.target(hosts=((host, 5432),)))


def test_a_unix_socket_is_connected_to_without_tls() -> None:
    with (
        TemporaryDirectory() as folder,
        Scripted(answers({"SELECT": table(("x",), ("1",))}), unix=Path(folder)) as server,
    ):
        session = connect(server.target(tls=WireTls("require")))
        assert session.query("SELECT 1").rows == (("1",),)
        session.close()


# ── several hosts, two ports ─────────────────────────────────────────────────────────────────────────────────────

STANDBY = answers({"SELECT pg_is_in_recovery()": table(("pg_is_in_recovery",), ("t",))})
PRIMARY = answers({"SELECT pg_is_in_recovery()": table(("pg_is_in_recovery",), ("f",))})


def test_the_primary_is_found_among_hosts_that_are_down_or_standbys() -> None:
    with Scripted(STANDBY) as standby, Scripted(PRIMARY) as primary:
        hosts = (("127.0.0.1", free_port()), (standby.host, standby.port), (primary.host, primary.port))
        session = connect(primary.target(hosts=hosts))
        assert session.place == f"127.0.0.1:{primary.port}/shop"
        session.close()


def test_without_a_primary_each_host_is_named_with_its_reason() -> None:
    with Scripted(STANDBY) as standby:
        gone = free_port()
        hosts = (("127.0.0.1", gone), (standby.host, standby.port))
        with pytest.raises(NoPrimary) as caught:
            connect(standby.target(hosts=hosts))
    assert f"127.0.0.1:{gone}/shop" in caught.value.message
    assert f"127.0.0.1:{standby.port}/shop: a standby" in caught.value.message


def test_a_wrong_password_at_one_host_is_not_hidden_by_another_that_is_down() -> None:
    with Scripted(refuses(error("28P01", "Invalid username/password,login denied.", "FATAL"))) as server:
        hosts = (("127.0.0.1", free_port()), (server.host, server.port))
        with pytest.raises(AuthenticationRefused):
            connect(server.target(hosts=hosts))


def test_the_ha_port_is_the_service_port_and_one_more_unless_given() -> None:
    with Scripted(answers({})) as server:
        target = server.target(hosts=(("a", 8000), ("b", 9000)), replication_port=None)
        assert target.ports(replication=True) == (("a", 8001), ("b", 9001))
        assert target.ports(replication=False) == (("a", 8000), ("b", 9000))
        assert server.target(hosts=(("a", 8000),), replication_port=7).ports(replication=True) == (("a", 7),)


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_authority(tmp_path_factory.mktemp("tls"))


def encrypting(folder: Path, *, client: bool = False) -> Callable[[Peer], None]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    if client:
        context.load_verify_locations(folder / "ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
    serve = answers({"SELECT": table(("x",), ("1",))})

    def script(peer: Peer) -> None:
        peer.encrypt(context)
        serve(peer)

    return script


@pytest.mark.parametrize(
    ("mode", "root", "host"),
    [
        ("prefer", None, "127.0.0.1"),
        ("require", None, "127.0.0.1"),
        ("require", "ca.pem", "127.0.0.1"),
        ("verify-ca", "ca.pem", "127.0.0.1"),
        ("verify-full", "ca.pem", "localhost"),
    ],
)
def test_tls_is_used_as_asked_for(authority: Path, mode: str, root: str | None, host: str) -> None:
    with Scripted(encrypting(authority)) as server:
        tls = WireTls(mode, authority / root if root else None)  # type: ignore[arg-type]
        session = connect(server.target(tls=tls, hosts=((host, server.port),)))
        assert isinstance(session.channel.socket, ssl.SSLSocket)
        assert session.query("SELECT 1").rows == (("1",),)
        session.close()


@pytest.mark.parametrize(
    ("mode", "root", "host"),
    [
        ("verify-full", "ca.pem", "127.0.0.1"),  # the certificate is for localhost
        ("verify-full", "other.pem", "localhost"),
        ("verify-ca", "other.pem", "127.0.0.1"),
        ("verify-ca", None, "127.0.0.1"),  # the system does not know the authority
        ("require", "other.pem", "127.0.0.1"),
        ("verify-full", "absent.pem", "localhost"),
        ("verify-full", "ca.key", "localhost"),
    ],
)
def test_a_certificate_that_does_not_fit_is_refused(authority: Path, mode: str, root: str | None, host: str) -> None:
    tls = WireTls(mode, authority / root if root else None)  # type: ignore[arg-type]
    with Scripted(encrypting(authority)) as server, pytest.raises(TlsRefused) as caught:
        connect(server.target(tls=tls, hosts=((host, server.port),)))
    assert caught.value.remedy


def test_a_stream_over_tls_brings_every_frame(authority: Path) -> None:
    expected = [(n, bytes([n % 251]) * (n % 700)) for n in range(5000)] + [(9999, bytes(3 << 20))]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "server.pem", authority / "server.key")
    replied: list[bytes] = []

    def script(peer: Peer) -> None:
        peer.encrypt(context)
        peer.stream()
        peer.send(*(frame(*one) for one in expected[:2500]), keepalive(1, wanted=True))
        replied.append(peer.read()[1])
        peer.send(*(frame(*one) for one in expected[2500:]))
        peer.hang()

    with Scripted(script) as server:
        session = connect(server.target(tls=WireTls("require")), replication=True)
        stream = GaussDbStream(session, "shop", 0, {}, keepalives_confirm=False, status_interval=10)
        got: list[tuple[int, bytes]] = []
        until = time.monotonic() + 60
        while len(got) < len(expected) and time.monotonic() < until:
            got += stream.poll(0.1)
        stream.close()
    assert got == expected
    assert len(replied[0]) == 65


def test_a_client_certificate_is_shown(authority: Path) -> None:
    with Scripted(encrypting(authority, client=True)) as server:
        tls = WireTls("verify-ca", authority / "ca.pem", authority / "client.pem", authority / "client.key")
        connect(server.target(tls=tls)).close()


def test_a_key_with_a_passphrase_is_an_error_and_not_a_question(authority: Path) -> None:
    tls = WireTls("require", None, authority / "client.pem", authority / "locked.key")
    with Scripted(encrypting(authority)) as server, pytest.raises(TlsRefused, match=r"locked\.key"):
        connect(server.target(tls=tls))


def does_not_encrypt(peer: Peer) -> None:
    assert peer.take(8) == protocol.ssl_request()
    peer.socket.sendall(b"N")
    answers({})(peer)


def test_prefer_goes_on_without_tls_and_require_does_not() -> None:
    with Scripted(does_not_encrypt) as server:
        connect(server.target(tls=WireTls("prefer"))).close()
        with pytest.raises(TlsRefused, match="does not encrypt"):
            connect(server.target(tls=WireTls("require")))


def test_bytes_that_somebody_puts_before_the_handshake_are_not_believed(authority: Path) -> None:
    def script(peer: Peer) -> None:
        peer.take(8)
        peer.socket.sendall(b"S" + ACCEPTED + READY)
        peer.hang(5)

    with Scripted(script) as server, pytest.raises(TlsRefused):
        connect(server.target(tls=WireTls("require")))


# ── statements ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("piece", [None, 1, 3])
def test_rows_come_as_text_with_null_apart(piece: int | None) -> None:
    rows = (("1", "grün"), (None, ""))
    with Scripted(answers({"SELECT": table(("id", "naïve"), *rows)}), piece=piece) as server:
        session = connect(server.target())
        result = session.query("SELECT *")
        assert result == Result(("id", "naïve"), rows)
        assert result.records() == [{"id": "1", "naïve": "grün"}, {"id": None, "naïve": ""}]
        session.close()


def test_of_several_statements_the_last_result_counts_and_notices_pass() -> None:
    reply = (
        status("TimeZone", "UTC")
        + table(("a",), ("1",))
        + error("00000", "by the way", "NOTICE", b"N")
        + table(("b",), ("2",), ("3",))
        + message(b"A", bytes(6))
    )
    with Scripted(answers({"SELECT": reply, "": message(b"I")})) as server:
        session = connect(server.target())
        assert session.query("SELECT 1; SELECT 2").rows == (("2",), ("3",))
        assert session.parameters == {"TimeZone": "UTC"}
        assert session.query("").rows == ()
        session.close()


def test_two_completions_of_one_drop_are_one_answer() -> None:
    with Scripted(answers({"DROP": complete("DROP_REPLICATION_SLOT") + complete("SELECT")})) as server:
        session = connect(server.target())
        assert session.query("DROP_REPLICATION_SLOT shop") == Result()
        assert session.query("DROP_REPLICATION_SLOT shop") == Result()
        session.close()


def test_after_an_error_the_session_goes_on() -> None:
    refusal = error("42704", 'replication slot "shop" does not exist')
    with Scripted(answers({"DROP": refusal, "SELECT": table(("x",), ("1",))})) as server:
        session = connect(server.target())
        with pytest.raises(SlotMissing, match="dropping"):
            session.query("DROP_REPLICATION_SLOT shop", doing="dropping the slot")
        assert not session.is_closed
        assert session.query("SELECT 1").rows == (("1",),)
        session.close()
        assert session.is_closed


def test_after_a_fatal_error_the_session_is_over_though_the_server_says_ready() -> None:
    refusal = error("42704", 'replication slot "shop" does not exist', "FATAL")
    with Scripted(answers({"DROP": refusal})) as server:
        session = connect(server.target(), replication=True)
        with pytest.raises(SlotMissing):
            session.query("DROP_REPLICATION_SLOT shop")
        assert session.is_closed
        session.close()


def test_an_error_before_the_end_of_the_connection_is_what_is_told() -> None:
    def script(peer: Peer) -> None:
        peer.login()
        peer.sql()
        peer.send(error("57P01", "terminating connection due to administrator command", "FATAL"))

    with Scripted(script) as server:
        session = connect(server.target())
        with pytest.raises(ServerUnreachable, match="administrator"):
            session.query("SELECT 1")
        assert session.is_closed
        with pytest.raises(ServerUnreachable, match="closed already"):
            session.query("SELECT 1")
        session.close()


def test_a_connection_that_ends_without_a_word_is_unreachable() -> None:
    def script(peer: Peer) -> None:
        peer.login()
        peer.sql()
        peer.send(row_description("x"), row("1")[:-1])

    with Scripted(script) as server:
        session = connect(server.target())
        with pytest.raises(ServerUnreachable, match="counting"):
            session.query("SELECT 1", doing="counting")
        session.close()


@pytest.mark.parametrize(
    "reply",
    [
        message(b"T", b"\0\2x\0" + bytes(18)),
        message(b"T", b"\0\1x"),
        message(b"T"),
        row_description("x") + message(b"D", b"\0\1\0\0\0\xff"),
        row_description("x") + message(b"D", struct.pack(">Hi", 1, -7)),
        row_description("x") + message(b"D", struct.pack(">Hi", 1, 1) + b"\xff"),
        row("1"),
        row_description("x", "y") + row("1"),
        message(b"W", bytes(3)),
        message(b"?"),
        b"D\0\0\0\1",
        b"D\xff\xff\xff\xff",
    ],
)
def test_an_answer_that_is_none_is_an_error_and_ends_the_session(reply: bytes) -> None:
    with Scripted(answers({"SELECT": reply})) as server:
        session = connect(server.target())
        with pytest.raises(StreamProtocol):
            session.query("SELECT 1")
        assert session.is_closed
        session.close()


def test_any_bytes_are_an_answer_or_an_error() -> None:
    seed = one_seed()
    print(f"seed {seed}")
    chance = random.Random(seed)
    whole = table(("a", "b"), ("1", None), ("x" * 40, "")) + complete() + error("42601", "no") + READY
    broken = []
    for _ in range(150 * BUDGET):
        raw = bytearray(whole)
        for _ in range(chance.randrange(1, 5)):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        broken.append(bytes(raw))
    scripts = [said_once(raw) for raw in broken]
    with Scripted(*scripts) as server:
        for _ in broken:
            session = connect(server.target())
            try:
                session.query("SELECT").records()
            except SourceError:
                pass
            finally:
                session.close()


def said_once(raw: bytes) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        peer.login()
        peer.sql()
        peer.send(raw)

    return script


@pytest.mark.parametrize("words", ["SELECT '\0'", "SELECT '\udc80'"])
def test_a_statement_that_cannot_be_sent_is_not(words: str) -> None:
    with Scripted(answers({})) as server:
        session = connect(server.target())
        with pytest.raises(StreamProtocol):
            session.query(words)
        assert not session.is_closed
        session.close()


def test_a_large_answer_arrives_whole() -> None:
    big = "ü" * 3_000_000
    with Scripted(answers({"SELECT": table(("x",), (big,), ("small",))})) as server:
        session = connect(server.target())
        assert session.query("SELECT").rows == ((big,), ("small",))
        session.close()


def test_copy_out_gives_a_row_an_item() -> None:
    reply = message(b"H", bytes(3)) + copy_data(b"1\ta\n") + error("0", "n", "NOTICE", b"N") + copy_data(b"2\t\\N\n")
    with Scripted(
        answers({"COPY": reply + message(b"c") + complete("COPY 2"), "SELECT": table(("x",), ("1",))})
    ) as server:
        session = connect(server.target())
        assert list(session.copy_out("COPY t TO STDOUT")) == [b"1\ta\n", b"2\t\\N\n"]
        assert session.query("SELECT 1").rows == (("1",),)
        session.close()


def test_copy_out_that_fails_midway_is_an_error_and_the_session_goes_on() -> None:
    reply = message(b"H", bytes(3)) + copy_data(b"1\n") + error("22021", "invalid byte sequence")
    with Scripted(answers({"COPY": reply, "SELECT": table(("x",), ("1",))})) as server:
        session = connect(server.target())
        rows = session.copy_out("COPY t TO STDOUT", doing="reading table t")
        assert next(rows) == b"1\n"
        with pytest.raises(QueryRefused, match="reading table t"):
            next(rows)
        assert session.query("SELECT 1").rows == (("1",),)
        session.close()


def test_copy_out_left_early_closes_the_session() -> None:
    reply = message(b"H", bytes(3)) + copy_data(b"1\n") * 1000 + message(b"c") + complete("COPY 1000")
    with Scripted(answers({"COPY": reply})) as server:
        session = connect(server.target())
        rows = session.copy_out("COPY t TO STDOUT")
        next(rows)
        rows.close()  # type: ignore[attr-defined]
        assert session.is_closed


def test_a_copy_that_wants_data_is_refused_without_hanging() -> None:
    def script(peer: Peer) -> None:
        peer.login()
        peer.sql()
        peer.send(message(b"G", bytes(3)))
        letter, _ = peer.read()
        assert letter == b"f"
        peer.send(error("57014", "COPY from stdin failed"), READY)
        peer.hang()

    with Scripted(script) as server:
        session = connect(server.target())
        with pytest.raises(QueryRefused):
            session.query("COPY t FROM STDIN")
        session.close()


def test_closing_says_goodbye_and_closing_again_is_no_harm() -> None:
    last: list[bytes] = []

    def script(peer: Peer) -> None:
        peer.login()
        last.append(peer.read()[0])

    with Scripted(script) as server:
        session = connect(server.target())
        session.close()
        session.close()
        until = time.monotonic() + 60
        while not last and time.monotonic() < until:
            time.sleep(0.01)
    assert last == [b"X"]
