"""What a server of the family refuses has the code that its page promises."""

from __future__ import annotations

import os
import time

import pytest

from cdc_lake.errors import (
    AuthenticationRefused,
    DatabaseUnknown,
    NoReplicaIdentity,
    OptionRefused,
    OptionUnknown,
    PluginMissing,
    ReplicationPortNeeded,
    RoleLacksReplication,
    ServerUnreachable,
    ServicePortNeeded,
    SlotActive,
    SlotForeign,
    SlotMissing,
    SlotNameInvalid,
    SourceError,
)
from cdc_lake.source.gaussdb.slot import create_slot, find_slot
from tests.live.opengauss.receiving import FAST, SERIAL, Kind, Place, once, streaming

pytestmark = pytest.mark.live


def test_a_wrong_password_and_an_unknown_database(place: Place) -> None:
    with pytest.raises(AuthenticationRefused):
        place.site.sql(password="not this one")
    with pytest.raises(DatabaseUnknown):
        place.site.sql(database="there_is_no_such_database")
    ((host, _),) = place.site.address.hosts
    with pytest.raises(ServerUnreachable):
        place.site.sql(hosts=((host, 9),))


def test_each_kind_of_connection_has_its_port(place: Place) -> None:
    if not place.site.facts().thread_pool:
        pytest.skip("needs enable_thread_pool = on")
    ((host, port),) = place.site.address.hosts
    ha_port = place.site.address.ports(replication=True)[0][1]
    with pytest.raises(ReplicationPortNeeded):
        place.site.replication(replication_port=port)
    with pytest.raises(ServicePortNeeded):
        place.site.sql(hosts=((host, ha_port),))


@pytest.mark.parametrize(
    ("kind", "options", "error"),
    [
        (FAST, {"no-such-option": "1"}, OptionUnknown),
        (SERIAL, {"no-such-option": "1"}, OptionUnknown),
        (SERIAL, {"decode-style": "b"}, OptionUnknown),
        (FAST, {"parallel-decode-num": "21"}, OptionRefused),
        (FAST, {"include-xids": "perhaps"}, OptionRefused),
        (SERIAL, {"include-xids": "perhaps"}, OptionRefused),
    ],
    ids=lambda given: given.__name__ if isinstance(given, type) else str(given),
)
def test_options_are_refused(place: Place, kind: Kind, options: dict[str, str], error: type[SourceError]) -> None:
    place.slot()
    with pytest.raises(error), streaming(place, kind, **options) as stream:
        stream.poll(5)


def test_slots_that_cannot_be_made_or_read(place: Place) -> None:
    with pytest.raises(SlotMissing), streaming(place, FAST) as stream:
        stream.poll(5)
    place.slot()
    for name, plugin, error in (
        (place.name, "mppdb_decoding", SlotForeign),
        (f"{place.name}_x", "no_such_plugin", PluginMissing),
        ("Upper", "mppdb_decoding", SlotNameInvalid),
    ):
        with place.site.replication() as session, pytest.raises(error):
            create_slot(session, name, plugin)
    with place.site.sql() as session:
        assert find_slot(session, f"{place.name}_x") is None


@pytest.mark.parametrize("kind", [FAST, SERIAL], ids=str)
def test_a_slot_is_active_until_the_server_notices_an_abrupt_end(place: Place, kind: Kind) -> None:
    place.slot()
    with streaming(place, kind) as first:
        first.poll(1)
        with pytest.raises(SlotActive), streaming(place, kind) as second:
            second.poll(5)
        first._session.channel.socket.close()  # no goodbye, as a killed receiver
    closed = time.monotonic()
    while True:
        try:
            with streaming(place, kind) as second:
                second.poll(1)
            break
        except SlotActive:
            assert time.monotonic() < closed + 75
            time.sleep(0.05)
    print(f"free after {time.monotonic() - closed:.1f} s")


def test_a_table_without_identity_is_named_before_anything_is_made(place: Place) -> None:
    with place.site.sql() as session:
        session.query(f"CREATE SCHEMA {place.name}")
        session.query(f"CREATE TABLE {place.table('bare')} (v int)")
        with pytest.raises(NoReplicaIdentity, match="bare"):
            once(place.project(FAST))
        assert find_slot(session, place.name) is None


def test_a_role_that_may_not_replicate(place: Place) -> None:
    if not place.site.real:
        pytest.skip("the stand-in knows one role")
    role, password = place.name, f"Aa1{os.urandom(8).hex()}"
    with place.site.sql() as session:
        session.query(f"CREATE ROLE {role} LOGIN PASSWORD '{password}'")
        try:
            with pytest.raises(RoleLacksReplication):
                place.site.replication(user=role, password=password)
        finally:
            session.query(f"DROP ROLE {role}")
