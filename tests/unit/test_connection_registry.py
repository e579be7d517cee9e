"""Connections that another thread ends, on the wire of the GaussDB family: who waits at one is free, at every step."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cdc_lake.errors import ServerUnreachable
from cdc_lake.source.gaussdb.wire.protocol import WireTarget, WireTls
from cdc_lake.source.gaussdb.wire.session import connect
from cdc_lake.source.socket_io import ConnectionRegistry
from cdc_lake_testing.beside import until
from cdc_lake_testing.gaussdb.ledger import Ledger
from cdc_lake_testing.gaussdb.scripted import Rule, ScriptedAnswers
from cdc_lake_testing.gaussdb.server import GaussServer
from cdc_lake_testing.gaussdb.sql import Answer, Done
from tests.certificates import make_authority

LONG = 300.0
"""Seconds that nothing here waits for: what ends sooner was ended."""


class Hanging:
    """A server that answers one statement only when it is let go."""

    def __init__(self, tls: tuple[Path, Path] | None = None) -> None:
        self.asked, self.goes_on = threading.Event(), threading.Event()
        answers = ScriptedAnswers([Rule("count", lambda *_: self._hang())])
        self.server = GaussServer(Ledger(), answers=answers, tls=tls)

    def _hang(self) -> Sequence[Answer]:
        self.asked.set()
        self.goes_on.wait(LONG)
        return [Done("SELECT")]

    def target(self, mode: str = "disable", hosts: int = 1) -> WireTarget:
        here = (self.server.host, self.server.port)
        return WireTarget((here,) * hosts, "postgres", "u", tls=WireTls(mode), connect_timeout=LONG)  # type: ignore[arg-type]


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    made = Hanging()
    with made.server:
        yield made
        made.goes_on.set()


@pytest.fixture
def ending() -> Iterator[ConnectionRegistry]:
    made = ConnectionRegistry()
    yield made
    made.forget()


def broken_by(
    end: Callable[[], object], work: Callable[[], object], reached: Callable[[], object]
) -> ServerUnreachable:
    """What work in a thread breaks at, which waits once something is `reached`, and is ended then."""
    with ThreadPoolExecutor(1) as threads:
        began, waiting = time.monotonic(), threads.submit(work)
        until(reached, "it waits", LONG)
        assert not waiting.done()
        end()
        with pytest.raises(ServerUnreachable) as broken:
            waiting.result(LONG)
    assert time.monotonic() - began < LONG / 2
    return broken.value


def held(socket_name: str) -> int:
    """How many descriptors of this process are of one socket."""
    return sum(str(one.readlink()) == socket_name for one in Path("/proc/self/fd").iterdir() if one.is_symlink())


def test_who_waits_for_an_answer_is_free_when_his_connection_is_ended(
    hanging: Hanging, ending: ConnectionRegistry
) -> None:
    with connect(hanging.target(), on_open=ending.add) as session:
        broken = broken_by(ending.end, lambda: session.query("SELECT count(*)", doing="counting"), hanging.asked.is_set)
    assert broken.where == session.place


def test_an_encrypted_connection_is_ended_as_well(tmp_path: Path, ending: ConnectionRegistry) -> None:
    folder = make_authority(tmp_path)
    hanging = Hanging((folder / "server.pem", folder / "server.key"))
    with hanging.server, connect(hanging.target("require"), on_open=ending.add) as session:
        broken_by(ending.end, lambda: session.query("SELECT count(*)", doing="counting"), hanging.asked.is_set)
        hanging.goes_on.set()


def test_who_waits_to_be_let_in_is_free(ending: ConnectionRegistry) -> None:
    told: list[int] = []

    def add(descriptor: int) -> None:
        ending.add(descriptor)
        told.append(descriptor)

    with socket.create_server(("127.0.0.1", 0)) as deaf:  # takes connections and says nothing
        host, port = deaf.getsockname()
        target = WireTarget(((host, port),), "postgres", "u", tls=WireTls("disable"), connect_timeout=LONG)
        broken_by(ending.end, lambda: connect(target, on_open=add), lambda: told)


def test_what_is_opened_behind_the_end_is_ended_at_once_on_every_host(
    hanging: Hanging, ending: ConnectionRegistry
) -> None:
    told: list[int] = []

    def add(descriptor: int) -> None:
        told.append(descriptor)
        ending.add(descriptor)

    ending.end()
    with pytest.raises(ServerUnreachable):
        connect(hanging.target(hosts=2), on_open=add)
    assert len(told) == 2


def test_a_connection_that_is_forgotten_goes_on_and_nothing_of_it_is_kept(
    hanging: Hanging, ending: ConnectionRegistry
) -> None:
    names: list[str] = []

    def add(descriptor: int) -> None:
        names.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        ending.add(descriptor)

    with connect(hanging.target(), on_open=add) as session:
        (name,) = names
        assert held(name) == 2, "its own, and the copy"
        ending.forget()
        assert held(name) == 1
        ending.end()
        assert session.query("SELECT pg_is_in_recovery()", doing="asking").rows


def test_of_several_all_are_ended_and_one_that_is_closed_already_is_in_nobodys_way(
    hanging: Hanging, ending: ConnectionRegistry
) -> None:
    sessions = [connect(hanging.target(), on_open=ending.add) for _ in range(3)]
    sessions[0].close()
    ending.end()
    ending.end()
    for session in sessions[1:]:
        with pytest.raises(ServerUnreachable):
            session.query("SELECT pg_is_in_recovery()", doing="asking")
        session.close()
