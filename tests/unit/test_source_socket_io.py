"""Sockets of the source: connections that another thread ends, and servers that go silent."""

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
from cdc_lake.source.socket_io import BatchingReader, ConnectionRegistry, Frames, IdleTimeout
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


class Peer:
    """A reader of a socket whose clock the test turns, and the other side. `asked`: how often a sign was asked for."""

    def __init__(self) -> None:
        self.now, self.asked = 0.0, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ours = socket.create_connection(self._listener.getsockname())
        self.server, _ = self._listener.accept()
        self._ours.setblocking(False)
        silence = IdleTimeout(10, lambda: self.now)
        self._gathering = BatchingReader(self._ours.fileno(), lambda: self.now, silence, self._ask)

    def _ask(self) -> None:
        self.asked += 1

    def read(self) -> Frames:
        return self._gathering.poll(0, self._take, lambda: 1)

    def _take(self, frames: Frames, limit: int) -> int:
        try:
            data = self._ours.recv(limit)
        except BlockingIOError:
            return 0
        if data != b"keepalive":
            frames.append((0, data))
        return len(data) if frames else 0

    def close(self) -> None:
        self._gathering.close()
        for one in (self._ours, self.server, self._listener):
            one.close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.close()


def test_a_silent_server_is_asked_once_and_then_given_up(peer: Peer) -> None:
    for now in (1, 4.9, 5, 7, 9.9):
        peer.now = now
        assert peer.read() == []
    assert peer.asked == 1
    peer.now = 10
    with pytest.raises(ServerUnreachable, match="nothing for 10 s"):
        peer.read()


@pytest.mark.parametrize("says", [b"keepalive", b"a row"])
def test_any_sign_ends_the_silence(peer: Peer, says: bytes) -> None:
    peer.now = 6
    peer.read()
    peer.server.sendall(says)
    peer.now = 9
    peer.read()
    for now in (11, 13.9):
        peer.now = now
        peer.read()
    assert peer.asked == 1, "it spoke at 9"
    peer.now = 14
    peer.read()
    assert peer.asked == 2


def test_an_answer_that_nobody_read_for_long_counts(peer: Peer) -> None:
    """The reader was busy with its lake meanwhile."""
    peer.now = 5
    peer.read()
    peer.server.sendall(b"keepalive")
    peer.now = 100
    peer.read()
    assert peer.asked == 1
    peer.now = 101
    peer.read()


def test_a_reader_that_was_away_for_long_asks_first(peer: Peer) -> None:
    peer.now = 100
    peer.read()
    assert peer.asked == 1
    peer.now = 104
    peer.server.sendall(b"a row")
    peer.read()
