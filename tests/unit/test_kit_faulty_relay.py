"""The relay of a network that fails: what it is asked for holds whatever its connections do meanwhile."""

from __future__ import annotations

import socket

from cdc_lake_testing.beside import until
from cdc_lake_testing.faulty_relay import FaultyRelay
from cdc_lake_testing.server import HOST


def test_a_connection_that_was_over_before_is_cut_as_any_other() -> None:
    with socket.create_server((HOST, 0)) as server, FaultyRelay(HOST, server.getsockname()[1]) as relay:
        with socket.create_connection((HOST, relay.port)):
            server.accept()[0].close()
        until(lambda: relay._open and all(one.client.fileno() == -1 for one in relay._open), "it is closed")
        relay.cut(reset=True)
