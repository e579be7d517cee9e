"""What a server of the GaussDB family says of itself, its slots, its snapshots and the defaults of columns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr

from cdc_lake.config.gaussdb_options import Mode
from cdc_lake.config.source import FamilySource, Tls
from cdc_lake.errors import (
    NoPrimary,
    PluginMissing,
    ServerSettings,
    SlotActive,
    SlotAhead,
    SlotForeign,
    SlotInvalidated,
    SlotMissing,
    SlotNameInvalid,
    SlotOfOtherDatabase,
    SlotOfOtherPlugin,
    StreamProtocol,
    WrongOutputOrder,
)
from cdc_lake.model.position import Csn, Lsn, OrderDomain
from cdc_lake.model.relation import Missing
from cdc_lake.source.gaussdb import slot
from cdc_lake.source.gaussdb.catalog import missing_of
from cdc_lake.source.gaussdb.server import (
    TRAPS,
    Effect,
    GaussDbVersion,
    Product,
    check_server,
    identify,
    identify_by_sql,
    parse_version,
    snapshot_and_csn,
    target_of,
    traps,
)
from cdc_lake.source.gaussdb.slot import GaussDbSlotFacts
from cdc_lake.source.gaussdb.wire.session import WireSession, connect
from tests.scripted_server import Scripted, answers, complete, error, table

OPENGAUSS = (
    "(openGauss 6.0.2 build 1a2b3c4d) compiled at 2025-04-01 00:00:00 commit 0 last mr  on x86_64-unknown-linux-gnu"
)
SETTINGS = (("wal_level", "logical"), ("enable_thread_pool", "on"), ("logical_sender_timeout", "30000"))
SERVER = {
    "SELECT version()": table(("version",), (OPENGAUSS,)),
    "IDENTIFY_SYSTEM": table(
        ("systemid", "timeline", "xlogpos", "dbname"), ("215046882207038068", "1", "0/3757DC0", "og_a")
    ),
    "SELECT name, setting": table(("name", "setting"), *SETTINGS),
    "SELECT datname, getdatabaseencoding()": table(
        ("datname", "getdatabaseencoding", "datcompatibility"), ("og_a", "GBK", "A")
    ),
    "SELECT pg_is_in_recovery()": table(("pg_is_in_recovery",), ("f",)),
}
SLOT = ("slot_name", "plugin", "slot_type", "datoid", "database", "active", "xmin", "catalog_xmin", "restart_lsn")


@contextmanager
def session(replies: dict[str, bytes], *, replication: bool = False) -> Iterator[tuple[WireSession, list[bytes]]]:
    with Scripted(answers(replies)) as server:
        opened = connect(server.target(), replication=replication)
        try:
            yield opened, server.peers[0].said
        finally:
            opened.close()


# ── who it is ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OPENGAUSS, GaussDbVersion(Product.OPENGAUSS, "6.0.2", (6, 0, 2))),
        ("(openGauss-lite 5.0.3 build 0) compiled", GaussDbVersion(Product.OPENGAUSS, "5.0.3", (5, 0, 3))),
        ("(openGauss 6.0.0-RC1 build 0) compiled", GaussDbVersion(Product.OPENGAUSS, "6.0.0-RC1", (6, 0, 0))),
        ("(MogDB 3.0.4 build cc068866) compiled at", GaussDbVersion(Product.MOGDB, "3.0.4", (3, 0, 4))),
        ("(MogDB 5.2.0 build 1) (openGauss 5.0.3) compiled", GaussDbVersion(Product.MOGDB, "5.2.0", (5, 0, 3))),
        ("gaussdb (GaussDB Kernel 505.1.0 build 44f4) compiled", GaussDbVersion(Product.GAUSSDB, "505.1.0", None)),
        ("PostgreSQL 9.2.4 (GaussDB Kernel V500R002C10 build a)", GaussDbVersion(Product.GAUSSDB, "500R002C10", None)),
    ],
)
def test_products_and_releases_are_told_apart(text: str, expected: GaussDbVersion) -> None:
    assert parse_version(text) == expected


def test_a_postgresql_is_not_of_the_family() -> None:
    with pytest.raises(ServerSettings, match="does not belong to the GaussDB family") as caught:
        parse_version("PostgreSQL 16.4 on x86_64-pc-linux-gnu, compiled by gcc")
    assert "type: postgres" in caught.value.remedy


def test_a_server_says_who_it_is_and_how_it_is_set_up() -> None:
    with session(SERVER, replication=True) as (opened, _):
        facts = identify(opened)
    assert str(facts.version) == "openGauss 6.0.2"
    assert (facts.system, facts.timeline, facts.flushed) == ("215046882207038068", 1, Lsn.parse("0/3757DC0"))
    assert (facts.database, facts.encoding, facts.compatibility) == ("og_a", "GBK", "A")
    assert (facts.wal_level, facts.thread_pool, facts.sender_timeout, facts.in_recovery) == (
        "logical",
        True,
        30.0,
        False,
    )
    check_server(facts, "db1")


BY_SQL = SERVER | {
    "SELECT oid FROM pg_database": table(("oid",), ("16390",)),
    "SELECT pg_current_xlog_location()": table(("l",), ("0/3757DC0",)),
}


def test_by_sql_alone_a_server_is_known_by_the_same_identifier() -> None:
    replies = BY_SQL | {"SELECT system_identifier FROM pg_control_system()": table(("s",), ("215046882207038068",))}
    with session(replies) as (opened, _):
        facts = identify_by_sql(opened)
    assert (facts.system, facts.known_as, facts.timeline) == ("215046882207038068", "oid16390", 0)


@pytest.mark.parametrize("state", ["42883", "42501"])
def test_a_server_that_does_not_tell_its_identifier_by_sql_is_known_by_the_databases_oid(state: str) -> None:
    refused = error(state, "function pg_control_system() does not exist")
    with session(BY_SQL | {"SELECT system_identifier": refused}) as (opened, _):
        assert identify_by_sql(opened).system == "oid16390"


def test_a_server_that_cannot_be_decoded_from_says_why() -> None:
    replies = SERVER | {"SELECT name, setting": table(("name", "setting"), ("wal_level", "hot_standby"))}
    with session(replies, replication=True) as (opened, _), pytest.raises(ServerSettings, match="hot_standby"):
        check_server(identify(opened), "db1")
    replies = SERVER | {"SELECT pg_is_in_recovery()": table(("r",), ("t",))}
    with session(replies, replication=True) as (opened, _):
        facts = identify(opened)
        with pytest.raises(NoPrimary, match="standby"):
            check_server(facts, "db1")


# ── snapshots ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("printed", "next_csn", "expected"),
    [
        ("1551", "5461", 0x1551),
        ("1551", None, 0x1551),
        ("0", str(1 << 32), 1 << 32),
        ("FFFFFFFF", str((1 << 32) + 3), (1 << 32) - 1),
        ("2", str((1 << 33) - 3), (1 << 33) + 2),
        ("1", "0", 1),
        ("FFFFFFFF", "5", (1 << 32) - 1),
        ("123456789A", "5", 0x123456789A),
    ],
)
def test_a_snapshot_has_the_whole_csn_though_the_server_prints_32_bits(
    printed: str, next_csn: str | None, expected: int
) -> None:
    replies = {
        "BEGIN": complete("BEGIN"),
        "SELECT * FROM pg_export_snapshot_and_csn()": table(("snapshot_name", "CSN"), ("0000000B-1", printed)),
    }
    if next_csn is not None:
        replies["SELECT int8in"] = table(("int8in",), (next_csn,))
    with session(replies) as (opened, said):
        snapshot = snapshot_and_csn(opened)
    assert (snapshot.name, snapshot.csn) == ("0000000B-1", Csn(expected))
    # asking for the next CSN must not be the transaction's first statement: where it fails, so would the transaction
    assert [s.split()[0] for s in said] == [b"SELECT", b"BEGIN", b"SELECT"]


def test_an_empty_answer_where_one_row_belongs_is_an_error() -> None:
    with session({"SELECT": table(("x",))}, replication=True) as (opened, _), pytest.raises(StreamProtocol):
        identify(opened)


# ── slots ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_slot_is_found_with_its_lsn() -> None:
    columns = (*SLOT, "dummy_standby", "confirmed_flush")
    values = ("s", "mppdb_decoding", "logical", "16865", "og_a", "t", None, "14727", "0/289B6B0", "f", "0/289B730")
    with session({"SELECT * FROM pg_replication_slots": table(columns, values)}) as (opened, said):
        facts = slot.find_slot(opened, "it's")
    assert facts is not None
    assert (facts.kind, facts.plugin, facts.database, facts.active) == ("logical", "mppdb_decoding", "og_a", True)
    assert (facts.restart, facts.confirmed, facts.order) == (Lsn(0x289B6B0), 0x289B730, OrderDomain.LSN)
    assert b"'it''s'" in said[0]


def test_a_csn_ordered_slot_is_found_with_its_csn() -> None:
    columns = (*SLOT, "confirmed_flush", "confirmed_csn")
    row = ("s", "mppdb_decoding", "logical", "1", "db", "f", None, "1", "0/1", "0/2", "2014")
    with session({"SELECT": table(columns, row)}) as (opened, _):
        facts = slot.find_slot(opened, "s")
    assert facts is not None
    assert (facts.confirmed, facts.order) == (2014, OrderDomain.CSN)
    with session({"SELECT": table(columns, (*row[:-1], "0"))}) as (opened, _):
        facts = slot.find_slot(opened, "s")
    assert facts is not None
    assert (facts.confirmed, facts.order) == (2, OrderDomain.LSN)


def test_a_slot_that_is_not_there_is_none() -> None:
    with session({"SELECT": table(SLOT)}) as (opened, _):
        assert slot.find_slot(opened, "s") is None


def test_a_slot_is_made_with_its_consistent_point_and_snapshot() -> None:
    names = ("slot_name", "consistent_point", "snapshot_name", "output_plugin")
    reply = table(names, ("a-b", "0/3757F40", "0000000B-0000026C-1", "mppdb_decoding"))
    with session({"CREATE": reply}, replication=True) as (opened, said):
        made = slot.create_slot(opened, "a-b", "mppdb_decoding")
    assert made == slot.CreatedSlot("a-b", Lsn.parse("0/3757F40"), "0000000B-0000026C-1")
    assert said == [b'CREATE_REPLICATION_SLOT "a-b" LOGICAL "mppdb_decoding"']


@pytest.mark.parametrize(
    ("order", "tail"), [(None, b"'mppdb_decoding')"), (OrderDomain.LSN, b", 0)"), (OrderDomain.CSN, b", 1)")]
)
def test_a_slot_made_by_function_has_the_order_asked_for(order: OrderDomain | None, tail: bytes) -> None:
    with session({"SELECT": table(("slotname", "xlog_position"), ("s", "0/10"))}) as (opened, said):
        made = slot.create_slot_by_function(opened, "s", "mppdb_decoding", order)
    assert made == slot.CreatedSlot("s", Lsn(16), None)
    assert said[0].endswith(tail)


@pytest.mark.parametrize("name", ["", "Shop", "a b", ".", "..", "gs_roach_1", "x" * 64, "ü", 'a"'])
def test_a_name_that_no_server_takes_is_refused_before_it_is_asked(name: str) -> None:
    with session({}, replication=True) as (opened, said):
        with pytest.raises(SlotNameInvalid):
            slot.create_slot(opened, name, "mppdb_decoding")
        assert said == []


def test_a_missing_plugin_and_a_taken_name_are_told_apart() -> None:
    missing = error("58P01", 'could not access file "pgoutput": No such file or directory', "FATAL")
    with session({"CREATE": missing}, replication=True) as (opened, _), pytest.raises(PluginMissing):
        slot.create_slot(opened, "s", "pgoutput")
    taken = error("42710", 'replication slot "s" already exists', "FATAL")
    with session({"CREATE": taken}, replication=True) as (opened, _), pytest.raises(SlotForeign):
        slot.create_slot(opened, "s", "mppdb_decoding")


def test_dropping_and_advancing_name_slot_and_position() -> None:
    advanced = table(("slot_name", "end_lsn"), ("s", "0/1E"))
    replies = {"SELECT pg_drop": table(("x",), ("",)), "SELECT * FROM pg_replication_slot_advance": advanced}
    with session(replies) as (opened, said):
        slot.drop_slot(opened, "s")
        assert slot.advance_slot(opened, "s", Lsn(0x1F)) == Lsn(0x1E)
    assert said == [
        b"SELECT pg_drop_replication_slot('s')",
        b"SELECT * FROM pg_replication_slot_advance('s', '0/1F')",
    ]
    active = error("55006", 'replication slot "s" is already active')
    with session({"SELECT": active}) as (opened, _), pytest.raises(SlotActive):
        slot.drop_slot(opened, "s")


FACTS = GaussDbSlotFacts("s", "logical", "mppdb_decoding", "shop", False, Lsn(1), 100, OrderDomain.LSN)


def checked(facts: GaussDbSlotFacts | None, held: int = 100, order: OrderDomain = OrderDomain.LSN) -> GaussDbSlotFacts:
    return slot.check_slot(facts, "s", "mppdb_decoding", "shop", held, order)


def changed(**changes: object) -> GaussDbSlotFacts:
    given = {name: getattr(FACTS, name) for name in FACTS.__slots__}
    return GaussDbSlotFacts(**{**given, **changes})


def test_a_slot_at_or_behind_bronze_can_be_gone_on_from() -> None:
    assert checked(FACTS) is FACTS
    assert checked(FACTS, held=101) is FACTS


@pytest.mark.parametrize(
    ("facts", "held", "order", "expected", "words"),
    [
        (None, 100, OrderDomain.LSN, SlotMissing, "0/64"),
        (FACTS, 93, OrderDomain.LSN, SlotAhead, "7 bytes are missing"),
        (changed(order=OrderDomain.CSN), 93, OrderDomain.CSN, SlotAhead, "7 commit numbers are missing"),
        (FACTS, 100, OrderDomain.CSN, WrongOutputOrder, "ordered by LSN"),
        (changed(order=OrderDomain.CSN), 100, OrderDomain.LSN, WrongOutputOrder, "ordered by CSN"),
        (changed(plugin="test_decoding"), 100, OrderDomain.LSN, SlotOfOtherPlugin, "test_decoding"),
        (changed(database="other"), 100, OrderDomain.LSN, SlotOfOtherDatabase, "other"),
        (changed(kind="physical"), 100, OrderDomain.LSN, SlotForeign, "physical"),
        (changed(confirmed=None), 100, OrderDomain.LSN, SlotInvalidated, "no confirmed position"),
    ],
)
def test_a_slot_that_cannot_be_gone_on_from_says_why(
    facts: GaussDbSlotFacts | None, held: int, order: OrderDomain, expected: type[Exception], words: str
) -> None:
    with pytest.raises(expected, match=words):
        checked(facts, held, order)


# ── traps ────────────────────────────────────────────────────────────────────────────────────────────────────────


def known(text: str, mode: Mode, compatibility: str = "PG", plugin: str = "mppdb_decoding") -> dict[str, Effect]:
    found = traps(parse_version(text), mode, compatibility=compatibility, plugin=plugin)
    return {trap.name: trap.effect for trap in found}


def test_traps_follow_version_and_kind_of_decoding() -> None:
    assert "crash" in known("(openGauss 3.0.0 build 0)", Mode.PARALLEL)
    assert "crash" in known("(MogDB 3.0.2 build 0)", Mode.PARALLEL)
    assert "crash" not in known("(openGauss 3.0.3 build 0)", Mode.PARALLEL)
    assert "crash" not in known("(openGauss 3.0.0 build 0)", Mode.SERIAL)
    assert "truncate" in known("(openGauss 6.0.2 build 0)", Mode.PARALLEL)
    assert "truncate" not in known("(openGauss 6.0.2 build 0)", Mode.SERIAL)
    assert "truncate" in known("(openGauss 5.0.3 build 0)", Mode.SQL)
    assert "ddl-then-rows" in known("(openGauss 7.0.0-RC1 build 0)", Mode.PARALLEL)
    assert "keyless-delete" in known("(openGauss 3.1.1 build 0)", Mode.PARALLEL)
    assert "keyless-delete" not in known("(openGauss 3.0.5 build 0)", Mode.PARALLEL)
    assert known("gaussdb (GaussDB Kernel 505.1.0 build 0)", Mode.PARALLEL)["truncate"] is Effect.LOST


def test_traps_follow_the_database_and_the_slot() -> None:
    six, three = "(openGauss 6.0.2 build 0)", "(openGauss 3.0.0 build 0)"
    for mode in Mode:
        assert known(six, mode)["leading-zero"] is Effect.HANDLED
        assert "compatibility-a" not in known(six, mode)
        assert known(six, mode, "A")["compatibility-a"] is Effect.HANDLED
        assert known("gaussdb (GaussDB Kernel 505.1.0 build 0)", mode, "ORA")["compatibility-a"] is Effect.HANDLED
    assert known(three, Mode.PARALLEL)["confirm-rule"] is Effect.HANDLED
    assert "confirm-rule" not in known(three, Mode.SERIAL)
    assert known(three, Mode.SERIAL, plugin="test_decoding")["rows-without-columns"] is Effect.LOST
    assert "rows-without-columns" not in known(three, Mode.PARALLEL, plugin="test_decoding")  # asks no plugin
    assert "rows-without-columns" not in known(three, Mode.SERIAL)
    assert "rows-without-columns" not in known(six, Mode.SERIAL, plugin="test_decoding")


def test_the_worst_trap_comes_first_and_each_has_words() -> None:
    found = traps(parse_version("(openGauss 3.0.0 build 0)"), Mode.PARALLEL, compatibility="A", plugin="mppdb_decoding")
    assert [trap.effect for trap in found] == sorted(
        (trap.effect for trap in found), key=[Effect.CRASH, Effect.LOST, Effect.HANDLED].index
    )
    assert all(trap.about and trap.remedy for trap in TRAPS)


# ── from the file ────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_section_source_becomes_a_target() -> None:
    source = FamilySource(
        type="opengauss",
        hosts=["db1", "db2:9000"],
        port=8000,
        database="shop",
        user="cdc",
        password=SecretStr("secret"),
        tls=Tls(mode="verify-full", root_cert=Path("conf/ca.pem")),
        tables=["public.*"],
        connect_timeout=2500,
    )
    target = target_of(source, Path("/project"))
    assert target.hosts == (("db1", 8000), ("db2", 9000))
    assert target.ports(replication=True) == (("db1", 8001), ("db2", 9001))
    assert (target.database, target.user, target.password) == ("shop", "cdc", "secret")
    assert (target.tls.mode, target.tls.root_cert) == ("verify-full", Path("/project/conf/ca.pem"))
    assert target.connect_timeout == 2.5
    assert "secret" not in repr(target)


def told(type_name: str, kept: str | None, *, has_default: bool = True) -> Missing | None:
    return missing_of(
        type_name,
        kept,
        has_default=has_default,
        decode=lambda image: image.decode("gbk"),
        printed=lambda number: number.replace("0.", ".", 1),
    )


@pytest.mark.parametrize(
    ("type_name", "kept", "text"),
    [
        ("numeric", "28000000 0081 0c00 480d", "12.34"),  # the short header
        ("numeric", "20000000 3fa0 0100", "-1" + "0" * 252),  # its greatest weight
        ("numeric", "0d 0081 0c00 480d", "12.34"),  # one byte of length
        ("numeric", "20000000 7f82 0500", ".0005"),
        ("numeric", "20000000 00d0 0000", None),  # a form of columnar tables
        ("numeric", "18000000 00c0", "NaN"),
        ("text", "20000000 c3fb d7d6", "名字"),
        ("int1", "ff", "255"),
        ("smalldatetime", "0080ad77fc790200", "2022-02-02 00:00:00"),
        ("timestamp", "ffffffffffffff7f", None),
        ("timetz", "000000000000000000000000", None),
    ],
)
def test_bytes_are_read_or_nobody_can_say(type_name: str, kept: str, text: str | None) -> None:
    assert told(type_name, kept.replace(" ", "")) == Missing(text)


def test_without_bytes_old_rows_are_null_unless_there_is_a_default():
    assert told("int4", None, has_default=False) is None
    assert told("int4", None) == Missing(None)
