"""A scripted server for the wire client: each connection runs a function that says what the server does.

Small on purpose: what a test is about stands in the test. `cdc_lake_testing.gaussdb` is the whole server.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from cdc_lake.source.gaussdb.wire.protocol import WireTarget, WireTls, copy_data, message

READY = message(b"Z", b"I")
ACCEPTED = message(b"R", bytes(4))
COPY_BOTH = message(b"W", bytes(3))


class Peer:
    """The server's side of one connection. `piece` cuts everything it sends into pieces of that many bytes."""

    def __init__(self, sock: socket.socket, piece: int | None) -> None:
        self.socket = sock
        self.piece = piece
        self.parameters: dict[str, str] = {}
        self.said: list[bytes] = []

    def send(self, *messages: bytes) -> None:
        whole = b"".join(messages)
        if self.piece is None:
            self.socket.sendall(whole)
            return
        for at in range(0, len(whole), self.piece):
            self.socket.sendall(whole[at : at + self.piece])
            time.sleep(0)

    def startup(self) -> None:
        (size,) = struct.unpack(">I", self.take(4))
        body = self.take(size - 4)
        assert body[:4] == b"\0\x03\0\x33"  # 3.51
        words = body[4:].rstrip(b"\0").split(b"\0")
        self.parameters = {k.decode(): v.decode() for k, v in zip(words[::2], words[1::2], strict=True)}

    def login(self) -> None:
        self.startup()
        self.send(ACCEPTED, READY)

    def stream(self, *, after: bytes = b"") -> str:
        """Up to inside the copy; the command it was begun with."""
        self.login()
        command = self.read()
        self.send(COPY_BOTH, after)
        return command[1].rstrip(b"\0").decode()

    def read(self) -> tuple[bytes, bytes]:
        """The client's next message as letter and body."""
        head = self.take(5)
        body = self.take(struct.unpack(">I", head[1:])[0] - 4)
        return head[:1], body

    def sql(self) -> str:
        letter, body = self.read()
        assert letter == b"Q"
        return body.rstrip(b"\0").decode()

    def take(self, size: int) -> bytes:
        got = b""
        while len(got) < size:
            if not (more := self.socket.recv(size - len(got))):
                raise EOFError
            got += more
        return got

    def encrypt(self, context: ssl.SSLContext) -> None:
        assert self.take(8) == struct.pack(">II", 8, 80877103)
        self.socket.sendall(b"S")
        self.socket = context.wrap_socket(self.socket, server_side=True)

    def hang(self, seconds: float = 300.0) -> None:
        """Keep the connection until the client closes it."""
        self.socket.settimeout(seconds)
        with contextlib.suppress(OSError):
            while self.socket.recv(1 << 16):
                pass


class Scripted:
    """Listens on 127.0.0.1, or on a Unix socket; the n-th connection runs the n-th script, the last one all others."""

    def __init__(self, *scripts: Callable[[Peer], object], unix: Path | None = None, piece: int | None = None) -> None:
        self.scripts = scripts
        self.piece = piece
        self.peers: list[Peer] = []
        self.failed: list[BaseException] = []
        self.path = unix
        if unix is None:
            self.listener = socket.create_server(("127.0.0.1", 0))
            self.host, self.port = self.listener.getsockname()[:2]
        else:
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind(str(unix / ".s.PGSQL.5432"))
            self.listener.listen()
            self.host, self.port = str(unix), 5432
        self.threads: list[threading.Thread] = []

    def target(self, **changes: object) -> WireTarget:
        given = {
            "hosts": ((self.host, self.port),),
            "database": "shop",
            "user": "cdc",
            "password": "Gauss@123",
            "replication_port": self.port,
            "tls": WireTls("disable"),
            "connect_timeout": 30.0,
        }
        return WireTarget(**{**given, **changes})  # type: ignore[arg-type]

    def __enter__(self) -> Self:
        self.threads.append(threading.Thread(target=self._accept, daemon=True))
        self.threads[0].start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for peer in self.peers:
            with contextlib.suppress(OSError):
                peer.socket.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join(10)
        if error is None and self.failed:
            raise self.failed[0]

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            if self.path is None:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer = Peer(sock, self.piece)
            script = self.scripts[min(len(self.peers), len(self.scripts) - 1)]
            self.peers.append(peer)
            thread = threading.Thread(target=self._run, args=(peer, script), daemon=True)
            self.threads.append(thread)
            thread.start()

    def _run(self, peer: Peer, script: Callable[[Peer], object]) -> None:
        try:
            script(peer)
        except (OSError, EOFError):
            pass  # the client hung up: the test's assertions are on its side
        except BaseException as wrong:  # noqa: BLE001
            self.failed.append(wrong)
        finally:
            peer.socket.close()


def row_description(*names: str) -> bytes:
    columns = b"".join(name.encode() + b"\0" + struct.pack(">IHIhih", 0, 0, 25, -1, -1, 0) for name in names)
    return message(b"T", struct.pack(">H", len(names)) + columns)


def row(*values: str | None) -> bytes:
    body = b"".join(
        struct.pack(">i", -1) if v is None else struct.pack(">i", len(v.encode())) + v.encode() for v in values
    )
    return message(b"D", struct.pack(">H", len(values)) + body)


def complete(tag: str = "SELECT 1") -> bytes:
    return message(b"C", tag.encode() + b"\0")


def table(names: tuple[str, ...], *rows: tuple[str | None, ...]) -> bytes:
    return row_description(*names) + b"".join(row(*values) for values in rows) + complete()


def error(sqlstate: str, words: str, severity: str = "ERROR", letter: bytes = b"E") -> bytes:
    fields = f"S{severity}\0c0\0M{words}\0C{sqlstate}\0dBACKEND\0"
    return message(letter, fields.encode() + b"\0")


def status(name: str, value: str) -> bytes:
    return message(b"S", f"{name}\0{value}\0".encode())


def data(start: int, payload: bytes) -> bytes:
    """A data message as the server sends it: letter, start, end, time."""
    return struct.pack(">cQQq", b"w", start, start, 0) + payload


def frame(start: int, payload: bytes) -> bytes:
    return copy_data(data(start, payload))


def keepalive(end: int, *, wanted: bool = False, rubbish: bytes = b"\x33\0kU\xff\x7f") -> bytes:
    return copy_data(b"k" + struct.pack("<QiiqBB", end, 1, 1, 0, wanted, 0) + rubbish)


def answers(replies: dict[str, bytes]) -> Callable[[Peer], None]:
    """A server that answers statements by their beginning, until the client says goodbye."""

    def script(peer: Peer) -> None:
        peer.login()
        while True:
            letter, body = peer.read()
            if letter == b"X":
                return
            sql = body.rstrip(b"\0").decode()
            peer.said.append(sql.encode())
            found = next((reply for start, reply in replies.items() if sql.startswith(start)), None)
            peer.send(error("42601", f'syntax error at or near "{sql[:20]}"') if found is None else found, READY)

    return script
