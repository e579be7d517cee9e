"""Reads and writes the messages of one connection, plain or TLS.

Reading buffers excess bytes; sending calls `while_waiting` at short intervals while it is blocked, so that a stream can
read its client's replies while the client does not read.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import Final

from cdc_lake_testing.gaussdb.sql import Failed, ResultColumn, Status

_I32: Final = Struct(">I")
_SEND_WAIT: Final = 0.2
"""Seconds a blocked write waits before it looks around."""

SSL_REQUEST: Final = 80877103
CANCEL_REQUEST: Final = 80877102


class Closed(ConnectionError):
    """The client has gone."""


class Channel:
    """One accepted connection. Not for several threads, except `close`."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._buffer = bytearray()
        self.while_waiting: Callable[[], None] | None = None
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start_tls(self, context: ssl.SSLContext) -> None:
        """Become the server side of TLS; raises OSError."""
        self.socket.settimeout(10)
        self.socket = context.wrap_socket(self.socket, server_side=True)

    def send(self, data: bytes | memoryview) -> None:
        """Send all of it; raises OSError where the client is gone."""
        view = memoryview(data)
        self.socket.settimeout(_SEND_WAIT)
        while view:
            try:
                sent = self.socket.send(view)
            except (TimeoutError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                if self.while_waiting is not None:
                    self.while_waiting()
                continue
            view = view[sent:]

    def start_packet(self) -> tuple[int, bytes]:
        """The next message of the start-up phase, which has no type byte: its protocol number and the rest."""
        self._fill(4)
        (size,) = _I32.unpack_from(self._buffer)
        if not 8 <= size <= 10000:
            raise Closed("not a start-up packet")
        self._fill(size)
        body = bytes(self._buffer[4:size])
        del self._buffer[:size]
        return _I32.unpack_from(body)[0], body[4:]

    def read(self) -> tuple[bytes, bytes]:
        """The next message: type and body; waits. Raises Closed."""
        while (found := self._take()) is None:
            self._fill(len(self._buffer) + 1)
        return found

    def available(self, timeout: float = 0.0) -> Iterator[tuple[bytes, bytes]]:
        """The messages that are there, waiting up to `timeout` seconds for the first. Raises Closed."""
        while (found := self._take()) is not None:
            yield found
            timeout = 0.0
        while self._readable(timeout):
            timeout = 0.0
            self._fill(len(self._buffer) + 1)
            while (found := self._take()) is not None:
                yield found

    def close(self) -> None:
        """Close, whoever is at it."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def _readable(self, timeout: float) -> bool:
        if isinstance(self.socket, ssl.SSLSocket) and self.socket.pending():
            return True
        poll = select.poll()
        try:
            poll.register(self.socket, select.POLLIN)
        except ValueError:
            raise Closed("closed") from None
        return bool(poll.poll(timeout * 1000))

    def _take(self) -> tuple[bytes, bytes] | None:
        if len(self._buffer) < 5:
            return None
        (size,) = _I32.unpack_from(self._buffer, 1)
        if size < 4:
            raise Closed(f"a message of {size} bytes")
        if len(self._buffer) < size + 1:
            return None
        kind, body = bytes(self._buffer[:1]), bytes(self._buffer[5 : size + 1])
        del self._buffer[: size + 1]
        return kind, body

    def _fill(self, size: int) -> None:
        while len(self._buffer) < size:
            self.socket.settimeout(None)
            try:
                data = self.socket.recv(65536)
            except OSError as error:
                raise Closed(str(error)) from None
            if not data:
                raise Closed("the client closed the connection")
            self._buffer += data


def packet(kind: bytes, body: bytes = b"") -> bytes:
    """A message: type, length, body."""
    return kind + _I32.pack(len(body) + 4) + body


def text(value: str) -> bytes:
    """A string with its NUL."""
    return value.encode() + b"\0"


def error(failed: Failed, *, where: str = "BACKEND", extra: Sequence[tuple[bytes, str]] = ()) -> bytes:
    """ErrorResponse with the family's own fields `c` (an inner code) and `d` (the module)."""
    fields = [(b"S", failed.severity), (b"c", "0"), (b"M", failed.message), (b"C", failed.sqlstate), (b"d", where)]
    if failed.detail is not None:
        fields.append((b"D", failed.detail))
    if failed.hint is not None:
        fields.append((b"H", failed.hint))
    fields += extra
    return packet(b"E", b"".join(letter + text(value) for letter, value in fields) + b"\0")


def ready(status: Status) -> bytes:
    """ReadyForQuery."""
    return packet(b"Z", status.encode())


def complete(tag: str) -> bytes:
    """CommandComplete."""
    return packet(b"C", text(tag))


def row_description(columns: Sequence[ResultColumn]) -> bytes:
    """RowDescription; the family writes a type modifier of -1 as PostgreSQL does."""
    body = len(columns).to_bytes(2, "big")
    for column in columns:
        body += text(column.name) + Struct(">IhIhih").pack(0, 0, column.type_oid, column.size, -1, 0)
    return packet(b"T", body)


def data_row(values: Sequence[str | None]) -> bytes:
    """DataRow of output text."""
    parts = [len(values).to_bytes(2, "big")]
    for value in values:
        if value is None:
            parts.append(b"\xff\xff\xff\xff")
        else:
            raw = value.encode()
            parts += (_I32.pack(len(raw)), raw)
    return packet(b"D", b"".join(parts))


def parameter_status(name: str, value: str) -> bytes:
    """ParameterStatus."""
    return packet(b"S", text(name) + text(value))


def copy_out(columns: int) -> bytes:
    """CopyOutResponse, text format."""
    return packet(b"H", b"\0" + columns.to_bytes(2, "big") + b"\0\0" * columns)


COPY_BOTH: Final = packet(b"W", b"\0\0\0")
"""CopyBothResponse: no columns."""
