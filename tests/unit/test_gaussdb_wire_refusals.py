"""The family's mistakes: each of the server's texts gives its error, with a remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import SecretStr

from cdc_lake import errors
from cdc_lake.config.source import PostgresSource, PostgresTls
from cdc_lake.errors import (
    AuthenticationRefused,
    DatabaseUnknown,
    DecodersExhausted,
    LogUndecodable,
    OptionRefused,
    OptionUnknown,
    PluginMissing,
    QueryRefused,
    ReplicationPortNeeded,
    Retry,
    RoleLacksReplication,
    ServerBusy,
    ServerSettings,
    ServerUnreachable,
    ServicePortNeeded,
    SlotActive,
    SlotForeign,
    SlotMissing,
    SlotNameInvalid,
    SlotOfOtherDatabase,
    SourceError,
    SourcePermission,
    StandbyNeeded,
    WalGone,
    WrongOutputOrder,
)
from cdc_lake.source.gaussdb.wire.auth import server_error, startup_error
from cdc_lake.source.gaussdb.wire.protocol import ServerMessage
from cdc_lake.source.postgres.connection import connect
from cdc_lake.source.refusals import statement_error
from cdc_lake_testing.gaussdb.authentication import Method
from cdc_lake_testing.gaussdb.ledger import Ledger
from cdc_lake_testing.gaussdb.server import GaussServer
from tests.mistakes import kept

RECORDED = json.loads((Path(__file__).parents[1] / "data/opengauss/refusals.json").read_text())

RECORDED_KINDS = {
    "is unknown": OptionUnknown,
    "could not parse value": OptionRefused,
    "power of two": OptionRefused,
    "logical_sender_timeout": OptionRefused,
    "does not exist": SlotMissing,
    "was not created in this database": SlotOfOtherDatabase,
    "already exists": SlotForeign,
    "is already active": SlotActive,
    "contains invalid character": SlotNameInvalid,
    "could not access file": PluginMissing,
    "must be called inside a transaction": QueryRefused,
    "command parser": QueryRefused,
    "syntax error": QueryRefused,
}


KEPT = {
    'option "no-such" = "1" is unknown': "option-unknown",
    'could not access file "pgoutput": No such file or directory': "plugin-missing",
}
"""Refusals whose error is one of the mistakes that are kept, by what the server said."""


def test_the_refusals_that_are_kept_were_recorded() -> None:
    assert set(KEPT) <= {refusal["message"] for refusal in RECORDED}


@pytest.mark.parametrize("refusal", RECORDED, ids=lambda r: r["command"].removeprefix("START_REPLICATION "))
def test_every_recorded_refusal_gives_its_error(refusal: dict[str, str]) -> None:
    expected = next(kind for words, kind in RECORDED_KINDS.items() if words in refusal["message"])
    said = ServerMessage("FATAL", refusal["sqlstate"], refusal["message"])
    error = server_error(said, "starting replication", where="db1:8001/shop")
    assert type(error) is expected
    assert refusal["message"] in error.message
    assert error.where == "db1:8001/shop"
    assert error.remedy
    if (name := KEPT.get(refusal["message"])) is not None:
        kept(name, error)


@pytest.mark.parametrize(
    ("sqlstate", "words", "expected"),
    [
        ("XX000", "replication should connect HA port in thread_pool", ReplicationPortNeeded),
        ("XX000", "logical replication should connect HA port in thread_pool", ReplicationPortNeeded),
        ("57P03", "the local listen ip and port is not for the gsql client", ServicePortNeeded),
        ("00000", "Invalid logical replication slot shop.", SlotMissing),
        ("58P01", "requested WAL segment 0000000100 has already been removed", WalGone),
        ("00000", "walsender closed because of role is primary.", StandbyNeeded),
        ("00000", "can't create logical decode dispatcher", DecodersExhausted),
        (
            "42501",
            (
                "must be system admin or replication role or a member of the gs_role_replication role "
                "to use replication slots"
            ),
            RoleLacksReplication,
        ),
        ("42501", "permission denied for relation orders", SourcePermission),
        ("42501", "permission denied for relation replication_log", SourcePermission),
        ("22023", "output-order 0 does not match the order of slot shop", WrongOutputOrder),
        ("22023", 'option "output-order" = "1" is unknown', OptionUnknown),
        ("0A000", "Standby mode doesn't support create logical slot", ServerSettings),
        ("55000", "logical decoding requires wal_level >= logical", ServerSettings),
        ("42809", "terminating Walsender process due to replication timeout", ServerUnreachable),
        ("57P01", "terminating connection due to administrator command", ServerUnreachable),
        ("22023", "invalid snapshot identifier", QueryRefused),
        ("XX000", 'could not map filenode "base/1/2" to relation OID', LogUndecodable),
    ],
)
def test_the_texts_of_the_sources_give_their_errors(sqlstate: str, words: str, expected: type[SourceError]) -> None:
    error = server_error(ServerMessage("ERROR", sqlstate, words), "reading the stream", user="cdc")
    assert type(error) is expected
    assert error.remedy


@pytest.mark.parametrize(
    ("doing", "expected"),
    [("reading the stream", LogUndecodable), ("reading slot `shop`", LogUndecodable), ("copying t", QueryRefused)],
)
def test_an_internal_error_ends_a_stream_where_the_server_decodes(doing: str, expected: type[SourceError]) -> None:
    error = statement_error("XX000", "unexpected duplicate for tablespace 0, relfilenumber 16932", doing)
    assert type(error) is expected


@pytest.mark.parametrize(
    ("sqlstate", "words", "expected"),
    [
        ("28P01", "Invalid username/password,login denied.", AuthenticationRefused),
        (
            "28000",
            'no pg_hba.conf entry for replication connection from host "10.0.0.1", SSL off',
            AuthenticationRefused,
        ),
        ("28000", "Forbid remote connection with initial user.", AuthenticationRefused),
        ("28000", "The account has been locked.", AuthenticationRefused),
        ("3D000", 'database "shop" does not exist', DatabaseUnknown),
        ("53300", "sorry, too many clients already", ServerBusy),
        ("57P03", "the database system is starting up", ServerBusy),
        ("42704", 'unrecognized configuration parameter "session_timeout"', ServerSettings),
        ("XX000", "replication should connect HA port in thread_pool", ReplicationPortNeeded),
        ("57P03", "the local listen ip and port is not for the gsql client", ServicePortNeeded),
        ("42501", "must be system admin or replication role to start walsender", RoleLacksReplication),
    ],
)
def test_a_refused_connection_gives_its_error(sqlstate: str, words: str, expected: type[SourceError]) -> None:
    said = ServerMessage("FATAL", sqlstate, words)
    error = startup_error(said, user="cdc", database="shop", where="db1:8000/shop")
    assert type(error) is expected
    assert "`cdc`" in error.message
    assert error.remedy


def test_the_option_that_was_refused_is_named() -> None:
    said = ServerMessage("FATAL", "22023", 'could not parse value "300" for parameter "sending-batch"')
    assert '"sending-batch"' in server_error(said, "reading the stream").message


def test_waiting_helps_where_it_does() -> None:
    later = {
        kind for kind in vars(errors).values() if isinstance(kind, type) and getattr(kind, "retry", 0) is Retry.LATER
    }
    assert {DecodersExhausted, SlotActive, ServerUnreachable} <= later
    assert not {ReplicationPortNeeded, OptionUnknown, PluginMissing, WrongOutputOrder} & later


@pytest.mark.parametrize("thread_pool", [True, False])
def test_who_takes_a_server_of_the_family_for_a_postgresql_is_told(thread_pool: bool, tmp_path: Path) -> None:
    with GaussServer(Ledger(), users={"cdc": "Gauss@123"}, method=Method.SHA256, thread_pool=thread_pool) as server:
        source = PostgresSource(
            type="postgres",
            host=server.host,
            port=server.port,
            database="postgres",
            user="cdc",
            password=SecretStr("Gauss@123"),
            tls=PostgresTls(mode="disable"),
            tables=["public.*"],
        )
        for replication in (True, False):
            with pytest.raises(ServerSettings) as caught:
                connect(source, tmp_path, replication=replication)
            assert "source.type: gaussdb" in caught.value.remedy
            assert caught.value.retry is Retry.NEVER
