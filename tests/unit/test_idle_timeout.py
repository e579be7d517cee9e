"""A server that goes without a word is asked, and given up where it does not answer; one that was only not read is not."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from cdc_lake.errors import ServerUnreachable
from cdc_lake.source.socket_io import BatchingReader, Frames, IdleTimeout


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
