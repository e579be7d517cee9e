"""A minimal client of the family's protocol, independent of the package's own: messages in and out, nothing more."""

from __future__ import annotations

import socket
import struct
import time
from types import TracebackType
from typing import Self

from cdc_lake_testing.gaussdb.server import GaussServer

REPLY = struct.Struct("<cQQQQQiiqB3xI")


class Raw:
    """One connection. Messages are `(letter, body)`; None is the end of the connection."""

    def __init__(
        self,
        server: GaussServer,
        *,
        replication: bool = False,
        ha: bool = False,
        user: str = "u",
        database: str = "postgres",
        minor: int = 51,
    ) -> None:
        port = server.replication_port if ha else server.port
        self.socket = socket.create_connection((server.host, port), timeout=60)
        words = {"user": user, "database": database}
        if replication:
            words["replication"] = "database"
        body = b"".join(f"{k}\0{v}\0".encode() for k, v in words.items()) + b"\0"
        self.socket.sendall(struct.pack(">II", len(body) + 8, (3 << 16) | minor) + body)

    def take(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            try:
                more = self.socket.recv(size - len(data))
            except ConnectionError:
                return None
            if not more:
                return None
            data += more
        return data

    def read(self) -> tuple[str, bytes] | None:
        head = self.take(5)
        if head is None:
            return None
        body = self.take(struct.unpack(">I", head[1:])[0] - 4)
        return None if body is None else (head[:1].decode(), body)

    def until(self, letters: str = "Z") -> list[tuple[str, bytes] | None]:
        """Messages up to one of these letters, or to the end."""
        found: list[tuple[str, bytes] | None] = []
        while not found or (found[-1] is not None and found[-1][0] not in letters):
            found.append(self.read())
        return found

    def rest(self) -> list[tuple[str, bytes]]:
        """Everything up to the end of the connection."""
        return [message for message in self.until("") if message is not None]

    def say(self, letter: str, body: bytes = b"") -> None:
        self.socket.sendall(letter.encode() + struct.pack(">I", len(body) + 4) + body)

    def query(self, sql: str) -> list[tuple[str, bytes] | None]:
        self.say("Q", sql.encode() + b"\0")
        return self.until()

    def stream(self, slot: str, options: str = "", start: str = "0/0") -> tuple[str, bytes] | None:
        """Begin a stream; the first message of the answer."""
        given = f" ({options})" if options else ""
        self.say("Q", f"START_REPLICATION SLOT {slot} LOGICAL {start}{given}\0".encode())
        return self.read()

    def reply(self, flush: int = 0, *, received: int = 0, wanted: bool = False) -> None:
        self.say("d", REPLY.pack(b"r", received, received, flush, flush, flush, 0, 0, 0, wanted, 0))

    def data(self, count: int) -> list[tuple[int, bytes]]:
        """The next so many `w`: header LSN and payload, keepalives passed over."""
        found = []
        while len(found) < count:
            message = self.read()
            assert message is not None, f"the stream ended after {len(found)} of {count} messages"
            assert message[0] == "d", message
            if message[1][:1] == b"w":
                start, end, _ = struct.unpack_from(">QQq", message[1], 1)
                assert start == end
                found.append((start, message[1][25:]))
        return found

    def keepalive(self) -> tuple[int, int, int, bool, bool]:
        """The next keepalive: position, role, state, reply wanted, catching up."""
        while True:
            message = self.read()
            assert message is not None, "the stream ended"
            if message[0] == "d" and message[1][:1] == b"k":
                assert len(message[1]) == 33
                end, role, state, _, wanted, catching_up = struct.unpack_from("<QiiqBB", message[1], 1)
                return end, role, state, bool(wanted), bool(catching_up)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def fields(body: bytes) -> dict[str, str]:
    """The fields of an ErrorResponse."""
    return {part[:1].decode(): part[1:].decode() for part in body.split(b"\0") if part}


def wait_until(condition: object, seconds: float = 60.0) -> None:
    """Until `condition()` holds; the slot of a server thread moves a moment after the reply is sent."""
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to hold"
        time.sleep(0.005)
