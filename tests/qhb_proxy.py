"""A PostgreSQL that calls itself a QHB: a relay between client and server that changes nothing else.

No QHB can be had. What one answers to `version()` and as `server_version` is supposed here, in several forms.
"""

from __future__ import annotations

import socket
import struct

import psycopg

from cdc_lake_testing.relay import Connection, Relay
from cdc_lake_testing.server import HOST, EmbeddedServer


class CalledQhb(Relay):
    """Listens while it is entered. `says`: the answer of `version()`, `version`: the parameter `server_version`.

    None: the server's own.
    """

    def __init__(self, server: EmbeddedServer, says: str | None, version: str | None = None) -> None:
        with psycopg.connect(server.dsn()) as asked:
            (own,) = asked.execute("SELECT version()").fetchone() or ("",)
        super().__init__(HOST, server.port)
        self.own = str(own)
        self.says = (says or self.own).encode()
        self.version = version

    def connection(self, client: socket.socket, server: socket.socket) -> Connection:
        return _Renamed(client, server, self)


class _Renamed(Connection):
    def __init__(self, client: socket.socket, server: socket.socket, called: CalledQhb) -> None:
        super().__init__(client, server)
        self._called = called

    def changed(self, letter: bytes, body: bytes) -> bytes:
        own = self._called.own.encode()
        if letter == b"S" and self._called.version is not None and body.startswith(b"server_version\0"):
            return b"server_version\0" + self._called.version.encode() + b"\0"
        if letter != b"D" or own not in body:
            return body
        values, at = [], 2
        for _ in range(int.from_bytes(body[:2], "big")):
            size = int.from_bytes(body[at : at + 4], "big", signed=True)
            value = None if size < 0 else body[at + 4 : at + 4 + size]
            values.append(self._called.says if value == own else value)
            at += 4 + max(size, 0)
        parts = [struct.pack(">i", -1) if v is None else struct.pack(">i", len(v)) + v for v in values]
        return body[:2] + b"".join(parts)
