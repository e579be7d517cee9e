"""A PostgreSQL that calls itself a QHB: a proxy between client and server that changes nothing else.

No QHB can be had. What one answers to `version()` and as `server_version` is supposed here, in several forms.
"""

from __future__ import annotations

import socket
import struct
import threading
from types import TracebackType
from typing import Self

import psycopg

from cdc_lake.testing.ports import free_port
from cdc_lake.testing.server import HOST, EmbeddedServer

_ENCRYPTION = (80877103, 80877104)  # SSLRequest, GSSENCRequest: PostgreSQL's documentation, Message Formats
_HEAD = struct.Struct(">cI")


class CalledQhb:
    """Listens while it is entered. `says`: the answer of `version()`, `version`: the parameter `server_version`.

    None: the server's own.
    """

    def __init__(self, server: EmbeddedServer, says: str | None, version: str | None = None) -> None:
        with psycopg.connect(server.dsn()) as asked:
            (own,) = asked.execute("SELECT version()").fetchone() or ("",)
        self.own = str(own)
        self._server = server
        self._says = (says or self.own).encode()
        self._version = version
        self.port = free_port()
        self._listener = socket.create_server((HOST, self.port))
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in (self._listener, *self._open):
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """Pass one connection on; encryption is declined here, so that what the server says can be read."""
        with client, socket.create_connection((HOST, self._server.port)) as server:
            self._open.append(server)
            try:
                first = _exactly(client, 8)
                while struct.unpack(">II", first) in [(8, code) for code in _ENCRYPTION]:
                    client.sendall(b"N")
                    first = _exactly(client, 8)
                server.sendall(first)
                threading.Thread(target=_pass_on, args=(client, server), daemon=True).start()
                while True:
                    letter, size = _HEAD.unpack(_exactly(server, _HEAD.size))
                    body = self._changed(letter, _exactly(server, size - 4))
                    client.sendall(_HEAD.pack(letter, len(body) + 4) + body)
            except (EOFError, OSError):
                return

    def _changed(self, letter: bytes, body: bytes) -> bytes:
        if letter == b"S" and self._version is not None and body.startswith(b"server_version\0"):
            return b"server_version\0" + self._version.encode() + b"\0"
        if letter != b"D" or self.own.encode() not in body:
            return body
        values, at = [], 2
        for _ in range(int.from_bytes(body[:2], "big")):
            size = int.from_bytes(body[at : at + 4], "big", signed=True)
            value = None if size < 0 else body[at + 4 : at + 4 + size]
            values.append(self._says if value == self.own.encode() else value)
            at += 4 + max(size, 0)
        parts = [struct.pack(">i", -1) if v is None else struct.pack(">i", len(v)) + v for v in values]
        return body[:2] + b"".join(parts)


def _exactly(one: socket.socket, size: int) -> bytes:
    out = b""
    while len(out) < size:
        if not (more := one.recv(size - len(out))):
            raise EOFError
        out += more
    return out


def _pass_on(client: socket.socket, server: socket.socket) -> None:
    try:
        while more := client.recv(65536):
            server.sendall(more)
        server.shutdown(socket.SHUT_WR)
    except OSError:
        return
