"""A failing network: a relay in front of a PostgreSQL, or a server of the GaussDB family, that fails on request.

At a position of the stream (`Faults`, one for each stream): cut, reset, stalled, or split into single bytes. At any
time: cut, unavailable for a while, silent while TCP still acknowledges, dead without TCP answers, or with delayed
acknowledgements.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import socket
import struct
import threading
import time
from collections.abc import Iterator

from cdc_lake_testing.gaussdb.faults import Cut, Faults, FaultySender
from cdc_lake_testing.relay import Connection, Relay

_SO_ATTACH_FILTER = 26  # socket(7); Python does not name it
_FILTER = struct.Struct("HP")  # struct sock_fprog: how many instructions, and where they are
_DROPS = struct.pack("HBBI", 0x06, 0, 0, 0)  # struct sock_filter: BPF_RET | BPF_K, take 0 bytes of the packet
_RESETS = struct.pack("ii", 1, 0)  # SO_LINGER: a close that resets


class FaultyRelay(Relay):
    """`streams`: how many were begun; `struck`: how many were cut or reset where their `Faults` said; `sent`: bytes of
    the newest one; `ack_delay`: seconds that what a client says in a stream is under way.
    """

    def __init__(self, host: str, upstream: int) -> None:
        super().__init__(host, upstream)
        self.struck = self.streams = self.sent = 0
        self.ack_delay = 0.0
        self._away = False
        self._open: list[_Faulty] = []
        self._injected: collections.deque[Faults] = collections.deque()

    def inject(self, *faults: Faults) -> None:
        """Faults of the next streams, one each."""
        self._injected.extend(faults)

    def cut(self, *, reset: bool = False) -> None:
        """Every connection is over, some hundredths of a second from now."""
        for one in self._open:
            one.cut(reset=reset)

    def stall(self, seconds: float) -> None:
        """Nothing passes for a while over the connections there are."""
        for one in self._open:
            one.stalls_until = time.monotonic() + seconds

    def hush(self) -> int:
        """Nothing passes any more, either way, over the connections there are; how many. TCP still acknowledges."""
        hushed = [one for one in self._open if one.lives and not one.silent]
        for one in hushed:
            one.silent = True
        return len(hushed)

    def vanish(self) -> int:
        """Either side of the connections there are is gone for the other, and TCP too; how many."""
        for one in self._open:
            if one.lives:
                one.vanish()
        return self.hush()

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """The server cannot be reached: its connections are over, and new ones are closed at once."""
        self._away = True
        self.cut()
        try:
            yield
        finally:
            self._away = False

    def lets_in(self) -> bool:
        """See Relay."""
        return not self._away

    def connection(self, client: socket.socket, server: socket.socket) -> Connection:
        """See Relay."""
        one = _Faulty(client, server, self)
        self._open = [other for other in self._open if other.lives] + [one]
        return one

    def next_faults(self) -> Faults:
        """Those of a stream that begins."""
        self.streams, self.sent = self.streams + 1, 0
        return self._injected.popleft() if self._injected else Faults()


class _Faulty(Connection):
    """A connection that is cut, hushed or slow."""

    def __init__(self, client: socket.socket, server: socket.socket, relay: FaultyRelay) -> None:
        super().__init__(client, server)
        self.silent = False
        self.lives = True
        self.stalls_until = 0.0
        self._relay = relay
        self._over = False
        self._sender: FaultySender | None = None
        self._late: collections.deque[tuple[float, bytes]] = collections.deque()

    def run(self, over: threading.Event) -> None:
        """See Connection."""
        try:
            super().run(over)
        finally:
            self.lives = False

    def cut(self, *, reset: bool) -> None:
        if reset:
            with contextlib.suppress(OSError):  # it is over already
                self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESETS)
        self._over = True

    def vanish(self) -> None:
        """The kernel drops what comes, before TCP sees it."""
        drops = ctypes.create_string_buffer(_DROPS)
        filters = _FILTER.pack(1, ctypes.addressof(drops))
        for one in (self.client, self.server):
            with contextlib.suppress(OSError):  # it was closed just now
                one.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filters)

    def goes_on(self) -> bool:
        """See Connection."""
        while not self._over and time.monotonic() < self.stalls_until:
            time.sleep(0.02)
        while self._late and self._late[0][0] <= time.monotonic():
            self.server.sendall(self._late.popleft()[1])
        return not self._over

    def passes(self) -> bool:
        """See Connection."""
        return not self.silent

    def ended(self, over: threading.Event) -> None:
        """Who is hushed does not even learn that the other side is gone."""
        while self.silent and not self._over and not over.wait(0.05):
            continue

    def stream_begins(self) -> None:
        """See Connection."""
        self._sender = FaultySender(_Plain(self.client), self.client, self._relay.next_faults())

    def to_client(self, data: bytes) -> None:
        """See Connection."""
        assert self._sender is not None
        self._relay.sent += len(data)
        try:
            self._sender.send(data)
        except Cut:
            self._relay.struck += 1
            raise

    def to_server(self, data: bytes) -> None:
        """See Connection."""
        if self.streams and self._relay.ack_delay:
            self._late.append((time.monotonic() + self._relay.ack_delay, data))
        else:
            self.server.sendall(data)


class _Plain:
    """Sends as it is."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def send(self, data: bytes | memoryview) -> None:
        self._socket.sendall(data)
