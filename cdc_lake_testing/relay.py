"""A relay between a client and a server that use PostgreSQL's protocol.

It declines encryption, so that messages can be read. Up to CopyBothResponse it relays single messages, afterwards bytes
as they arrive. One thread per connection: the thread that reads a socket closes it.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Self

from cdc_lake_testing.ports import free_port

HOST = "127.0.0.1"
_ENCRYPTION = (80877103, 80877104)  # SSLRequest, GSSENCRequest: PostgreSQL's documentation, Message Formats
_HEAD = struct.Struct(">cI")
_FIRST = struct.Struct(">II")
_STREAMS = b"W"  # CopyBothResponse
_LOOK = 0.02  # seconds between looks at what is asked of a connection from outside
_AT_ONCE = 1 << 16  # bytes


class Relay:
    """Listens at `port` of this machine while it is entered, before the server at `host` and `upstream`.

    `attempts`: when each connection was made, by `time.monotonic`.
    """

    def __init__(self, host: str, upstream: int) -> None:
        self.port = free_port()
        self.attempts: list[float] = []
        self._upstream = host, upstream
        self._listener = socket.create_server((HOST, self.port))
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._begin(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def _begin(self, target: Callable[..., object], *given: object) -> None:
        thread = threading.Thread(target=target, args=given, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _accept(self) -> None:
        while not self._over.is_set():
            if not select.select([self._listener], [], [], _LOOK)[0]:
                continue
            client, _ = self._listener.accept()
            self.attempts.append(time.monotonic())
            if self.lets_in():
                self._begin(self._serve, client)
            else:
                client.close()

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                server = socket.create_connection(self._upstream, 10)
            except OSError:  # it is down: the client is told as a relay can, by hanging up
                return
            with server, contextlib.suppress(OSError):
                for one in (client, server):
                    one.settimeout(None)
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.connection(client, server).run(self._over)

    # ── what kinds of relays do otherwise ──

    def lets_in(self) -> bool:
        """Whether a new connection is served."""
        return True

    def connection(self, client: socket.socket, server: socket.socket) -> Connection:
        """What passes on one connection."""
        return Connection(client, server)


class Connection:
    """One client and its server, until either hangs up."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.streams = False
        self._asked = b""  # of the client, before it says what it wants
        self._begun = False
        self._answers = b""  # a part of the server's next message

    def run(self, over: threading.Event) -> None:
        """Pass on what comes. Raises OSError where a side is gone."""
        while not over.is_set() and self.goes_on():
            ready = select.select([self.client, self.server], [], [], _LOOK)[0]
            for one, take in ((self.client, self._from_client), (self.server, self._from_server)):
                if one in ready:
                    data = one.recv(_AT_ONCE)
                    if not data:
                        return self.ended(over)
                    if self.passes():
                        take(data)
        return None

    def _from_client(self, data: bytes) -> None:
        if self._begun:
            self.to_server(data)
            return
        self._asked += data
        while len(self._asked) >= _FIRST.size:
            if _FIRST.unpack_from(self._asked) not in [(_FIRST.size, code) for code in _ENCRYPTION]:
                self._begun, data = True, self._asked
                self.to_server(data)
                return
            self.client.sendall(b"N")
            self._asked = self._asked[_FIRST.size :]

    def _from_server(self, data: bytes) -> None:
        if self.streams:
            self.to_client(data)
            return
        self._answers += data
        while len(self._answers) >= _HEAD.size:
            letter, size = _HEAD.unpack_from(self._answers)
            if len(self._answers) < 1 + size:
                return
            body, self._answers = self._answers[_HEAD.size : 1 + size], self._answers[1 + size :]
            body = self.changed(letter, body)
            self.client.sendall(_HEAD.pack(letter, len(body) + 4) + body)
            if letter == _STREAMS:
                self.streams = True
                self.stream_begins()
                self.to_client(self._answers)
                return

    # ── what kinds of relays do otherwise ──

    def goes_on(self) -> bool:
        """Asked all the while: whether the connection is to go on."""
        return True

    def passes(self) -> bool:
        """Whether what has come is passed on."""
        return True

    def ended(self, over: threading.Event) -> None:
        """A side has hung up."""

    def stream_begins(self) -> None:
        """The server has begun to stream."""

    def changed(self, letter: bytes, body: bytes) -> bytes:  # noqa: ARG002 - for who changes some
        """What the client is given in place of a message's body."""
        return body

    def to_client(self, data: bytes) -> None:
        """Pass on a piece of the stream."""
        self.client.sendall(data)

    def to_server(self, data: bytes) -> None:
        """Pass on what the client says."""
        self.server.sendall(data)
