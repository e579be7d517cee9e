"""The family's server: start-up, authentication, ports, commands, SQL and positions, over real sockets."""

from __future__ import annotations

import json
import random
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc_lake.decode.gaussdb.assembler import CommitPositionPolicy
from cdc_lake.decode.gaussdb.records import Begin, Commit, Field, Operation, Row, Style
from cdc_lake.errors import (
    AuthenticationRefused,
    AuthenticationUnsupported,
    DatabaseUnknown,
    DecodersExhausted,
    PluginMissing,
    ReplicationPortNeeded,
    RoleLacksReplication,
    ServicePortNeeded,
    SlotActive,
    SlotInvalidated,
    SlotNameInvalid,
    SourceError,
    StandbyNeeded,
    WrongOutputOrder,
)
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import TableName
from cdc_lake.source.gaussdb.stream import GaussDbStream
from cdc_lake.source.gaussdb.wire.protocol import WireTarget, WireTls
from cdc_lake.source.gaussdb.wire.session import WireSession, connect
from cdc_lake_testing.gaussdb.authentication import (
    Credentials,
    Method,
    Stored,
    md5_answer,
    md5_sha256_answer,
    md5_stored_answer,
    server_signature,
    sha256_answer,
)
from cdc_lake_testing.gaussdb.backlog import Backlog
from cdc_lake_testing.gaussdb.ledger import Ledger, LedgerTransaction
from cdc_lake_testing.gaussdb.live_order import EMPTY, Places
from cdc_lake_testing.gaussdb.scripted import Rule, ScriptedAnswers
from cdc_lake_testing.gaussdb.server import GaussServer
from cdc_lake_testing.gaussdb.slots import SlotOrder
from cdc_lake_testing.gaussdb.sql import CopyOut, Done, Exported, ResultColumn, ResultSet
from tests.gauss_client import Raw, fields
from tests.mistakes import kept
from tests.seeds import one_seed

DATA = Path(__file__).resolve().parents[1] / "data" / "opengauss"
PASSWORD = "Gauss@123"
SEED = one_seed()
POINT = Exported("", 0, 0)
PARALLEL = {"parallel-decode-num": "2", "decode-style": "b"}


def target(server: GaussServer, **given: object) -> WireTarget:
    known = {"database": "postgres", "user": "cdc", "password": PASSWORD, "tls": WireTls("disable")}
    return WireTarget(((server.host, server.port),), replication_port=server.replication_port, **(known | given))


def session(server: GaussServer, *, replication: bool = False, **given: object) -> WireSession:
    return connect(target(server, **given), replication=replication)


def stream(server: GaussServer, slot: str, options: dict[str, str] = PARALLEL) -> GaussDbStream:
    walsender = session(server, replication=True)
    return GaussDbStream(walsender, slot, 0, options, keepalives_confirm=False, status_interval=5)


@pytest.fixture
def server() -> Iterator[GaussServer]:
    with GaussServer(Ledger()) as running:
        yield running


def test_the_exchange_agrees_with_the_vendors_driver() -> None:
    salt, token, salt4 = "0123456789abcdef" * 4, "abcd1234", bytes([1, 2, 3, 4])
    known = "fdfd1a4779c2b9e60fa7ced561e399a16f45c1b4ae116ca796007d716e6cceec"
    assert sha256_answer(PASSWORD, salt, token, 10000) == known
    known = "aa7fbd169692ec63da7cc08ae9820edd710c3ef4fc8a522103df6180889b1090"
    assert sha256_answer(PASSWORD, salt, token, 2048) == known
    known = "sha256eece9d8816b2b791443160a7c02842b3039ceab920f0dbf4f19b3863421045c7"
    assert md5_stored_answer("cdc", PASSWORD, salt4) == known
    assert md5_sha256_answer(PASSWORD, salt, salt4, 2048) == "md52ba795c9d288d7dd9c4265e40eb7e904"
    assert md5_answer("cdc", PASSWORD, salt4) == "md51f50ae2934a8664caedf3c6eb2c031fa"


@pytest.mark.parametrize("replication", [False, True])
@pytest.mark.parametrize("stored", Stored)
@pytest.mark.parametrize("method", [Method.TRUST, Method.PASSWORD, Method.MD5, Method.SHA256])
def test_the_right_password_is_let_in_and_no_other(method: Method, stored: Stored, replication: bool) -> None:
    untold = method is Method.MD5 and stored is Stored.SHA256  # code 11 does not say the iterations
    users = {"cdc": Credentials(PASSWORD, stored, iterations=2048 if untold else 10000)}
    with GaussServer(Ledger(), users=users, method=method) as running:
        session(running, replication=replication).close()
        if method is not Method.TRUST:
            for wrong in ({"password": "Gauss@124"}, {"user": "nobody"}):
                with pytest.raises(AuthenticationRefused, match=r"Invalid username/password,login denied\."):
                    session(running, replication=replication, **wrong)


@pytest.mark.parametrize(("minor", "size"), [(51, 0x58), (50, 0x54), (0, 0x94)])
def test_what_is_asked_for_a_sha256_password_depends_on_the_protocol(minor: int, size: int) -> None:
    iterations = 10000 if minor == 51 else 2048
    users = {"cdc": Credentials(PASSWORD, iterations=iterations)}
    with GaussServer(Ledger(), users=users, method=Method.SHA256) as running:
        for given in (iterations, 99):
            with Raw(running, user="cdc", minor=minor) as raw:
                letter, body = raw.read()
                assert (letter, len(body) + 4, body[:8]) == ("R", size, struct.pack(">II", 10, 2))
                salt, token, rest = body[8:72].decode(), body[72:80].decode(), body[80:]
                if minor == 51:
                    assert rest == struct.pack(">I", 10000)
                elif minor == 0:
                    assert rest.decode() == server_signature(PASSWORD, salt, token, 2048)
                raw.say("p", sha256_answer(PASSWORD, salt, token, given).encode() + b"\0")
                letter, body = raw.read()
                if given == iterations:
                    assert (letter, body) == ("R", bytes(4))
                else:
                    assert (letter, fields(body)["C"]) == ("E", "28P01")


def test_recorded_exchanges_are_checked_as_the_real_server_checked_them() -> None:
    known = [e for e in json.loads((DATA / "authentication.json").read_text()) if e.get("password")]
    checked = 0
    for exchange in known:
        request, answer = bytes.fromhex(exchange["request"]), bytes.fromhex(exchange["answer"])
        if request[5:13] != struct.pack(">II", 10, 2):
            continue
        salt, token = request[13:77].decode(), request[77:85].decode()
        expected = sha256_answer(exchange["password"], salt, token, 10000)
        assert (answer[5:].rstrip(b"\0").decode() == expected) == (exchange["outcome"] == "accepted"), exchange["name"]
        checked += 1
    assert checked


def test_sm3_is_asked_for_and_cannot_be_answered() -> None:
    with (
        GaussServer(Ledger(), users={"cdc": PASSWORD}, method=Method.SM3) as running,
        pytest.raises(AuthenticationUnsupported) as caught,
    ):
        session(running)
    kept("authentication-unsupported", caught.value)


def test_connections_without_a_line_databases_and_roles_that_do_not_fit_are_refused() -> None:
    with GaussServer(Ledger(), replication_method=Method.REJECT, databases=["postgres"], strangers=["cdc"]) as running:
        with pytest.raises(AuthenticationRefused, match=r"no pg_hba\.conf entry for replication connection"):
            session(running, replication=True)
        with pytest.raises(DatabaseUnknown):
            session(running, database="nowhere")
        session(running).close()
    with (
        GaussServer(Ledger(), strangers=["cdc"]) as running,
        pytest.raises(RoleLacksReplication),
    ):
        session(running, replication=True)


def test_with_a_thread_pool_each_port_takes_its_own_kind_only() -> None:
    with GaussServer(Ledger(), thread_pool=True) as running:
        session(running).close()
        session(running, replication=True).close()
        with Raw(running, replication=True) as raw:
            message = raw.until("E")[-1]
            assert fields(message[1])["M"] == "replication should connect HA port in thread_pool"
        with Raw(running, ha=True) as raw:
            message = raw.until("E")[-1]
            assert fields(message[1])["M"] == "the local listen ip and port is not for the gsql client"
        swapped = {"hosts": ((running.host, running.replication_port),), "replication_port": running.port}
        known = {"database": "postgres", "user": "cdc", "tls": WireTls("disable")}
        with pytest.raises(ServicePortNeeded):
            connect(WireTarget(**swapped, **known))
        with pytest.raises(ReplicationPortNeeded):
            connect(WireTarget(**swapped, **known), replication=True)


def test_tls_carries_a_session_and_a_stream(tmp_path: Path) -> None:
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "cert")]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *files, *subject], check=True, capture_output=True
    )
    ledger = Ledger()
    with GaussServer(ledger, tls=(tmp_path / "cert", tmp_path / "key")) as running:
        running.state.create_slot("s", "mppdb_decoding", "postgres", POINT)
        encrypted = target(running, tls=WireTls("verify-full", root_cert=tmp_path / "cert"))
        sql = connect(encrypted)
        assert sql.query("SELECT version()").rows[0][0].startswith("(openGauss 6.0.2")
        sql.close()
        row = Row(Operation.INSERT, TableName("public", "t"), (Field("v", "x" * 3_000_000, "text", 25),))
        ledger.commit([row, row])
        opened = GaussDbStream(
            connect(encrypted, replication=True), "s", 0, PARALLEL, keepalives_confirm=False, status_interval=5
        )
        sizes: list[int] = []
        while len(sizes) < 4:
            sizes += [len(payload) for _, payload in opened.poll(60)]
        assert sizes[1] == sizes[2] > 3_000_000
        opened.close()


def test_a_client_without_tls_is_told_so(server: GaussServer) -> None:
    with pytest.raises(SourceError):
        session(server, tls=WireTls("require"))


REFUSALS = json.loads((DATA / "refusals.json").read_text())


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda r: r["command"][:60])
def test_the_server_refuses_what_a_real_one_refused_with_its_words(server: GaussServer, refusal: dict) -> None:
    for name in ("ser_og_a", "par_og_a", "misc1"):
        server.state.create_slot(name, "mppdb_decoding", "og_a", POINT)
    server.state.create_slot("td_og_a", "test_decoding", "og_a", POINT)
    command, _, database = refusal["command"].partition(" in ")
    if refusal["sqlstate"] == "55006":
        server.state.slots.acquire("ser_og_a", 1)
    with Raw(server, replication=True, database=database or "og_a") as raw:
        raw.until()
        raw.say("Q", command.encode() + b"\0")
        answer = raw.rest()
    if refusal["in_copy"]:
        assert answer.pop(0) == ("W", bytes(3))
    assert [letter for letter, _ in answer] == ["E", "Z"]
    said = fields(answer[0][1])
    assert (said["S"], said["C"], said["M"]) == ("FATAL", refusal["sqlstate"], refusal["message"])


def test_option_errors_carry_the_fields_of_a_real_server(server: GaussServer) -> None:
    server.state.create_slot("s", "mppdb_decoding", "postgres", POINT)
    with Raw(server, replication=True) as raw:
        raw.until()
        raw.stream("s", "\"no-such\" '1'")
        said = fields(raw.rest()[0][1])
    where = 'slot "s", output plugin "mppdb_decoding", in the startup callback'
    assert (said["d"], said["D"], said["W"]) == ("LOGICAL_DECODE", "N/A", where)


def test_a_walsender_says_who_it_is_and_takes_plain_sql(server: GaussServer) -> None:
    walsender = session(server, replication=True, database="og_a")
    (system,) = walsender.query("IDENTIFY_SYSTEM").records()
    assert list(system) == ["systemid", "timeline", "xlogpos", "dbname"]
    assert (system["timeline"], system["xlogpos"], system["dbname"]) == ("1", "0/2000000", "og_a")
    assert walsender.query("IDENTIFY_VERSION").rows == (("90204", "MPPDB", "1"),)
    assert walsender.query("IDENTIFY_MODE").rows == (("1",),)
    assert walsender.query("SELECT 1").rows == (("1",),)
    assert walsender.query("SHOW server_version").rows == (("9.2.4",),)


def test_slots_are_made_moved_and_dropped_by_commands(server: GaussServer) -> None:
    server.ledger.commit([])
    walsender = session(server, replication=True)
    (made,) = walsender.query("CREATE_REPLICATION_SLOT s LOGICAL mppdb_decoding").records()
    assert list(made) == ["slot_name", "consistent_point", "snapshot_name", "output_plugin"]
    assert made["consistent_point"] == "0/2000060"
    walsender.query("BEGIN ISOLATION LEVEL REPEATABLE READ")
    (made,) = walsender.query('CREATE_REPLICATION_SLOT "t.1" LOGICAL mppdb_decoding USE_SNAPSHOT').records()
    assert (made["snapshot_name"], made["snapshot_csn"]) == (None, "2001")
    walsender.query("COMMIT")
    server.ledger.commit([])
    moved = walsender.query("ADVANCE_REPLICATION_SLOT s LOGICAL 0/2000000 0/FFFFFFF").records()
    assert moved == [{"slot_name": "s", "confirmed_flush": "0/20000C0"}]
    with Raw(server, replication=True) as raw:
        raw.until()
        tags = [body for letter, body in raw.query("DROP_REPLICATION_SLOT s") if letter == "C"]
        assert tags == [b"DROP_REPLICATION_SLOT\0", b"SELECT\0"]
    assert [slot.name for slot, _ in server.state.slots.all()] == ["t.1"]


def test_the_familys_mistakes_reach_the_client_as_its_errors(server: GaussServer) -> None:
    state = server.state
    state.create_slot("s", "mppdb_decoding", "postgres", POINT)
    with pytest.raises(PluginMissing):
        session(server, replication=True).query("CREATE_REPLICATION_SLOT x LOGICAL nosuch")
    with pytest.raises(SlotNameInvalid):
        session(server, replication=True).query('CREATE_REPLICATION_SLOT "Up" LOGICAL mppdb_decoding')
    with pytest.raises(StandbyNeeded):
        stream(server, "s", PARALLEL | {"standby-connection": "on"})
    held = stream(server, "s")
    with pytest.raises(SlotActive):
        stream(server, "s")
    held.close()
    state.wal_start = 0x5000000
    state.create_slot("lost", "mppdb_decoding", "postgres", POINT)
    with pytest.raises(SlotInvalidated):
        stream(server, "lost")
    state.wal_start = 0
    for _ in range(20):  # all of them, also the one that a stream whose end is not seen yet gives back
        assert state.dispatchers.acquire(timeout=60)
    state.create_slot("one_too_many", "mppdb_decoding", "postgres", POINT)
    with pytest.raises(DecodersExhausted):
        stream(server, "one_too_many")


def test_the_order_of_a_slot_and_of_its_stream_must_agree() -> None:
    with GaussServer(Ledger(), product="GaussDB") as running:
        sql = session(running)
        sql.query("SELECT pg_create_logical_replication_slot('c', 'mppdb_decoding', 1)")
        sql.query("SELECT pg_create_logical_replication_slot('l', 'mppdb_decoding', 0)")
        orders = sql.query("SELECT slot_name, confirmed_csn FROM pg_replication_slots").rows
        assert orders == (("c", "1999"), ("l", None))
        with pytest.raises(WrongOutputOrder):
            stream(running, "c")
        with pytest.raises(WrongOutputOrder):
            stream(running, "l", PARALLEL | {"output-order": "1"})
        stream(running, "c", PARALLEL | {"output-order": "1"}).close()


def test_open_servers_know_neither_the_order_of_a_slot_nor_gaussdbs_options(server: GaussServer) -> None:
    with pytest.raises(SourceError, match=r"function pg_create_logical_replication_slot.* does not exist"):
        session(server).query("SELECT pg_create_logical_replication_slot('c', 'mppdb_decoding', 1)")
    server.state.create_slot("s", "mppdb_decoding", "postgres", POINT)
    with pytest.raises(SourceError, match=r'option "enable-heartbeat" = "on" is unknown'):
        stream(server, "s", PARALLEL | {"enable-heartbeat": "on"})


@pytest.mark.parametrize(("version", "origins"), [("6.0.2", True), ("5.0.3", True), ("3.0.0", False)])
def test_include_originid_is_known_from_5_on(version: str, origins: bool) -> None:
    with GaussServer(Ledger(), version=version) as running:
        running.state.create_slot("s", "mppdb_decoding", "postgres", POINT)
        asked = PARALLEL | {"include-originid": "on"}
        if origins:
            stream(running, "s", asked).close()
        else:
            with pytest.raises(SourceError, match="is unknown"):
                stream(running, "s", asked)


def test_sql_about_the_server_is_answered_without_a_script(server: GaussServer) -> None:
    sql = session(server)
    row = sql.query("SELECT pg_is_in_recovery(), current_setting('wal_level') AS level, current_database()").records()
    assert row == [{"pg_is_in_recovery": "f", "level": "logical", "current_database": "postgres"}]
    assert sql.query("SELECT * FROM pg_create_logical_replication_slot('f1', 'mppdb_decoding')").rows == (
        ("f1", "0/2000000"),
    )
    slots = sql.query("SELECT * FROM pg_replication_slots WHERE slot_name = 'f1'").records()
    assert list(slots[0]) == [
        *("slot_name", "plugin", "slot_type", "datoid", "database", "active", "xmin", "catalog_xmin", "restart_lsn"),
        *("dummy_standby", "confirmed_flush"),
    ]
    server.ledger.commit([])
    sql.query("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    (taken,) = sql.query("SELECT * FROM pg_export_snapshot_and_csn()").rows
    assert int(taken[1], 16) == server.ledger.next_csn == 2001
    sql.query("ROLLBACK")
    moved = sql.query("SELECT * FROM pg_replication_slot_advance('f1', NULL)").rows
    assert moved == (("f1", "0/2000060"),)
    sql.query("SELECT pg_drop_replication_slot('f1')")
    assert sql.query("SELECT slot_name FROM pg_replication_slots").rows == ()
    with pytest.raises(SourceError, match="no answer is scripted"):
        sql.query("SELECT relname FROM pg_class")


def test_3_0_does_not_show_what_was_confirmed() -> None:
    with GaussServer(Ledger(), version="3.0.0") as running:
        running.state.create_slot("s", "mppdb_decoding", "postgres", POINT)
        assert session(running).query("SELECT * FROM pg_replication_slots").names[-1] == "dummy_standby"


def test_declared_answers_come_first_and_copies_are_copies() -> None:
    names = (ResultColumn("relname"), ResultColumn("note"))
    rules = [
        Rule(r"from pg_class", ResultSet(names, [("t", None), ("u", "")])),
        Rule(r"^copy \(select", CopyOut([b"1\ta\n", b"2\tb\n", b"3\tc\n"])),
        Rule(r"^create table (\w+)", lambda found, _: Done(f"CREATE TABLE {found[1]}")),
    ]
    with GaussServer(Ledger(), answers=ScriptedAnswers(rules)) as running:
        sql = session(running)
        assert sql.query("SELECT relname, note FROM pg_class").rows == (("t", None), ("u", ""))
        assert b"".join(sql.copy_out("COPY (SELECT * FROM t) TO STDOUT")) == b"1\ta\n2\tb\n3\tc\n"
        sql.query("CREATE TABLE x (a int); SELECT 1")
        with Raw(running) as raw:
            raw.until()
            assert [letter for letter, _ in raw.query(" ; ")] == ["I", "Z"]


def test_polled_changes_are_whole_transactions_and_get_consumes_them(server: GaussServer) -> None:
    sql = session(server)
    sql.query("SELECT pg_create_logical_replication_slot('f', 'mppdb_decoding')")
    row = Row(Operation.INSERT, TableName("public", "t"), (Field("id", "1", "integer", 23),))
    first, second = (server.ledger.commit([row, row], time_us=0) for _ in range(2))
    peek = "SELECT * FROM pg_logical_slot_peek_changes('f', NULL, 1, 'include-xids', 'off')"
    found = sql.query(peek)
    assert found.names == ("location", "xid", "data")
    assert [line[2].partition("{")[0] for line in found.rows] == [
        "BEGIN",
        "",
        "",
        f"COMMIT (at 1970-01-01 00:00:00+00) CSN {first.csn}",
    ]
    assert found.rows[-1][0] == f"0/{first.commit_end:X}"
    assert sql.query(peek.replace("peek", "get")).rows == found.rows
    assert f"CSN {second.csn}" in sql.query(peek).rows[-1][2]
    with pytest.raises(SourceError, match="array must have even number of elements"):
        sql.query("SELECT * FROM pg_logical_slot_peek_changes('f', NULL, NULL, 'include-xids')")
    with pytest.raises(SourceError, match=r'option "decode-style" = "b" is unknown'):
        sql.query("SELECT * FROM pg_logical_slot_peek_changes('f', NULL, NULL, 'decode-style', 'b')")


def test_a_standby_makes_no_slots(server: GaussServer) -> None:
    server.state.in_recovery = True
    for place, sql in (
        (session(server), "SELECT pg_create_logical_replication_slot('f', 'mppdb_decoding')"),
        (session(server, replication=True), "CREATE_REPLICATION_SLOT f LOGICAL mppdb_decoding"),
    ):
        with pytest.raises(SourceError, match="Standby mode doesn't support create logical slot"):
            place.query(sql)


def test_a_slot_in_csn_order_is_confirmed_by_csn() -> None:
    ledger = Ledger()
    with GaussServer(ledger, product="GaussDB") as running:
        slot = running.state.create_slot("c", "mppdb_decoding", "postgres", Exported("", 7, 100), SlotOrder.CSN)
        assert (slot.confirmed, slot.restart_lsn) == (6, 100)


def test_noise_ends_its_own_connection_only(server: GaussServer) -> None:
    chance = random.Random(SEED)
    print("CDC_LAKE_SEED =", SEED)
    server.state.create_slot("s", "mppdb_decoding", "postgres", POINT)
    for number in range(60):
        if number % 3:  # after a good start, as the body of a message or of a command
            with Raw(server, replication=number % 2 == 0) as raw:
                raw.until()
                noise = chance.randbytes(chance.randrange(60))
                raw.say(chance.choice("QdcPXZ"), noise if number % 5 else b"START_REPLICATION SLOT s " + noise)
        else:
            with socket.create_connection((server.host, server.port)) as bare:
                bare.sendall(chance.randbytes(chance.randrange(200)))
    assert session(server).query("SELECT 1").rows == (("1",),)


BORDER = 0x89A3890
SHORTEST = 24
"""Bytes of the shortest record of the log."""


def told(dice: random.Random, many: int) -> Ledger:
    """A log of commit records, others between them, and as many of our own behind some as there is room for."""
    ledger = Ledger(start=BORDER)
    places, at = Places(BORDER), BORDER

    def tell(start: int, end: int) -> None:
        ledger.append(LedgerTransaction(ledger.allot_csn(), ledger.allot_xid(), start, start, end, 0))

    while len(ledger) < many:
        if dice.random() < 0.3:
            at += SHORTEST
            places.reach(at)
        for _ in range(dice.choice((0, 1, 2, 9))):
            if (own := places.own()) is None:
                break
            tell(own, own + EMPTY)
        if dice.random() < 0.7:
            start, at = at, at + dice.choice((SHORTEST, 48, 352))
            tell(places.recorded(start, at), at)
    return ledger


@pytest.mark.parametrize(
    ("style", "batch", "at_start"),
    [
        (Style.BINARY, True, False),  # the 3.0 line: only what begins strictly behind is sent
        (Style.BINARY, True, True),
        (Style.TEXT, True, False),
        (Style.JSON, False, False),
        (Style.JSON, False, True),
        (Style.SERIAL, False, True),
    ],
)
def test_what_is_confirmed_of_one_brings_the_next_one(style: Style, batch: bool, at_start: bool) -> None:
    seed = one_seed()
    print("CDC_LAKE_SEED =", seed)
    ledger = told(random.Random(seed), 300)
    bounding = CommitPositionPolicy(style=style, batch=batch, domain=OrderDomain.CSN, confirms_csn=False)
    for nth, one in enumerate(ledger.since(0)[:-1]):
        header = one.commit_end if style is Style.SERIAL else one.commit_start
        commit = Commit(lsn=one.commit_end) if batch else Commit()
        bounds = bounding.bounds(Begin(csn=one.csn), commit, header, 0, has_rows=False)
        following = Backlog(ledger, bounds.confirm, SlotOrder.LSN, lambda: 0, at_start=at_start).next()
        assert following is not None
        assert following[0] == nth + 1, (one, ledger[nth + 1])


def test_there_is_room_for_three_until_the_log_goes_on() -> None:
    places = Places(BORDER)
    assert [places.own() for _ in range(4)] == [BORDER, BORDER + 2, BORDER + 4, None]
    assert places.recorded(BORDER, BORDER + 48) == BORDER + 6
    assert places.own() == BORDER + 48
    places.reach(BORDER + 48)
    assert places.own() == BORDER + 50
    places.reach(BORDER + 72)
    assert places.own() == BORDER + 72
