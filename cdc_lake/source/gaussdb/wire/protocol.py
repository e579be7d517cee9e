"""The frontend/backend protocol, version 3: messages as bytes, and a channel that reads them from a socket.

It follows the PostgreSQL documentation, chapter "Message Formats", as does the GaussDB family, with a protocol minor
number of its own (51) that determines how a password is requested. Parsing is pure: any bytes give a value or
StreamProtocol, and nothing reads past the end of a message. The channel receives into one buffer, which grows for a
large message only as its bytes arrive, and shrinks afterwards.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cdc_lake.errors import ServerUnreachable, StreamProtocol
from cdc_lake.source.socket_io import LONGEST
from cdc_lake.source.sql_text import PRINTING

MINOR = 51
"""The protocol minor number of the family's drivers: password requests then contain the iterations."""

HEAD = struct.Struct(">BI")
"""Header of a server message: its letter, and its length without the letter."""

AUTHENTICATION, BACKEND_KEY, PARAMETER, READY = b"RKSZ"
ERROR, NOTICE, NOTIFICATION, NEGOTIATE = b"ENAv"
ROW_DESCRIPTION, DATA_ROW, COMMAND_COMPLETE, EMPTY_QUERY = b"TDCI"
COPY_DATA, COPY_DONE, COPY_IN, COPY_OUT, COPY_BOTH = b"dcGHW"

_SIZE = struct.Struct(">I")
_COUNT = struct.Struct(">H")
_LENGTH = struct.Struct(">i")
_COLUMN_FACTS = 18  # table, attribute, type, type size, modifier, format
_MAX_FIELD = 1 << 30  # bytes of a row value: the family's limit for values


@dataclass(frozen=True, slots=True)
class ServerMessage:
    """An ErrorResponse or a notice: severity, SQLSTATE and primary message from the server."""

    severity: str
    sqlstate: str
    message: str


def startup(parameters: Mapping[str, str]) -> bytes:
    """The start-up packet, with the parameters in order."""
    body = b"".join(text(name) + text(value) for name, value in parameters.items()) + b"\0"
    return struct.pack(">IHH", 8 + len(body), 3, MINOR) + body


def ssl_request() -> bytes:
    """Asks whether the server supports encryption; the answer is the single letter S or N."""
    return struct.pack(">II", 8, (1234 << 16) | 5679)


def message(letter: bytes, body: bytes = b"") -> bytes:
    """A client message."""
    return letter + _SIZE.pack(4 + len(body)) + body


def copy_data(payload: bytes) -> bytes:
    """Data inside a copy."""
    return message(b"d", payload)


def text(value: str) -> bytes:
    """A null-terminated text. Raises StreamProtocol if it cannot be sent."""
    try:
        raw = value.encode()
    except UnicodeEncodeError as wrong:
        raise StreamProtocol("a text that is not valid Unicode cannot be sent to the server") from wrong
    if b"\0" in raw:
        raise StreamProtocol("a text with a zero byte cannot be sent to the server", hint="remove the zero byte")
    return raw + b"\0"


def read_message(body: bytes) -> ServerMessage:
    """The fields of an ErrorResponse or a NoticeResponse; the family adds letters of its own."""
    fields: dict[str, str] = {}
    for part in body.split(b"\0"):
        if part:
            # client_encoding may not be set yet: undecodable bytes are replaced
            fields[chr(part[0])] = part[1:].decode(errors="replace")
    return ServerMessage(fields.get("S", "ERROR"), fields.get("C", ""), fields.get("M", ""))


def read_parameter(body: bytes) -> tuple[str, str]:
    """Name and value of a ParameterStatus."""
    parts = body.split(b"\0")
    if len(parts) != 3 or parts[2]:
        raise StreamProtocol(f"a parameter status of {len(body)} bytes without its two texts")
    return parts[0].decode(errors="replace"), parts[1].decode(errors="replace")


def read_columns(body: bytes) -> tuple[str, ...]:
    """The column names of a RowDescription."""
    names: list[str] = []
    offset = 2
    for _ in range(_count(body)):
        end = body.find(b"\0", offset)
        if end < 0 or end + 1 + _COLUMN_FACTS > len(body):
            raise StreamProtocol(f"a row description ends after {len(names)} columns")
        names.append(decode_text(body[offset:end]))
        offset = end + 1 + _COLUMN_FACTS
    return tuple(names)


def read_row(body: bytes, columns: int) -> tuple[str | None, ...]:
    """The values of a DataRow as text, as many as described; NULL is None."""
    if (count := _count(body)) != columns:
        raise StreamProtocol(f"a row of {count} values, but {columns} columns were described")
    values: list[str | None] = []
    offset = 2
    for _ in range(count):
        if offset + 4 > len(body):
            raise StreamProtocol(f"a row ends after {len(values)} values")
        (size,) = _LENGTH.unpack_from(body, offset)
        offset += 4
        if size == -1:
            values.append(None)
            continue
        if not 0 <= size <= len(body) - offset or size > _MAX_FIELD:
            raise StreamProtocol(f"a row whose value {len(values) + 1} has {size} bytes")
        values.append(decode_text(body[offset : offset + size]))
        offset += size
    return tuple(values)


def decode_text(raw: bytes) -> str:
    """A text of an answer in UTF-8, as requested at the start."""
    try:
        return raw.decode()
    except UnicodeDecodeError as wrong:
        hint = "a database of encoding SQL_ASCII may contain such text in its catalog, and it is not converted"
        raise StreamProtocol("the server answered with text that is not UTF-8", hint=hint) from wrong


def _count(body: bytes) -> int:
    if len(body) < 2:
        raise StreamProtocol(f"a message of {len(body)} bytes where a count was expected")
    return int(_COUNT.unpack_from(body)[0])


_START_SIZE = 64 << 10

WANTS_MORE = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""What a non-blocking socket raises instead of waiting; TLS also if no complete record is available."""


class Channel:
    """Messages over a socket. Every method raises ServerUnreachable if the connection is lost."""

    def __init__(self, sock: socket.socket, place: str, deadline: float) -> None:
        """`deadline` is the time limit of the start-up, by `time.monotonic`."""
        self.socket = sock
        self.place = place
        self._deadline: float | None = deadline
        self._limit = 64 << 10  # longer than any message of the start-up: the peer is not a database server
        self._size = _START_SIZE
        self._buffer = bytearray(self._size)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._unsent: OSError | None = None

    @property
    def is_open(self) -> bool:
        """False after `close`."""
        return self.socket.fileno() >= 0

    @property
    def holds_some(self) -> bool:
        """Whether received bytes are waiting to be read."""
        return self._end > self._start

    def end_startup(self) -> None:
        """End the start-up: from now on messages of any length, without a time limit."""
        self._limit = (1 << 31) - 1  # lengths are signed in the protocol
        self.wait_until(None)

    def wait_until(self, deadline: float | None) -> None:
        """Set the time until which reading and sending wait, by `time.monotonic`; None: no limit."""
        self._deadline = deadline
        if deadline is None:
            self.socket.settimeout(None)
        self._arm()

    def enlarge(self, size: int) -> None:
        """Set the size of the buffer in bytes, for a stream."""
        self._size = size
        self._move_to(bytearray(max(size, self._end - self._start)))

    def send(self, data: bytes) -> None:
        """Send all data. If the server hung up, the reason is found when reading."""
        self._arm()
        try:
            self.socket.sendall(data)
        except OSError as broken:
            self._unsent = broken

    def send_now(self, data: bytes) -> bytes:
        """Send without waiting, on a non-blocking socket; returns what the socket did not accept."""
        try:
            while data and self._unsent is None:
                data = data[self.socket.send(data) :]
        except WANTS_MORE:
            return data
        except OSError as broken:
            self._unsent = broken
        return b"" if self._unsent else data

    def read(self, doing: str) -> tuple[int, bytes]:
        """Wait for the next message, `(letter, body)`."""
        while (length := self.pending()) is None or self._end - self._start < 1 + length:
            self._arm()
            self.receive(doing)
        offset = self._start
        self._start = offset + 1 + length
        return self._buffer[offset], bytes(self._view[offset + HEAD.size : self._start])

    def pending(self) -> int | None:
        """The length of the next message from its header. Raises StreamProtocol for an absurd one."""
        if self._end - self._start < HEAD.size:
            return None
        letter, length = HEAD.unpack_from(self._buffer, self._start)
        if not 4 <= length <= self._limit:
            words = f"a message of kind {letter} and {length} bytes"
            raise StreamProtocol(words, where=self.place, hint="check that a database is listening there")
        return int(length)

    def receive(self, doing: str) -> int:
        """Receive what is available, once, waiting by the socket's timeout; 0 if nothing is without blocking."""
        self._make_room()
        try:
            size = self.socket.recv_into(self._view[self._end :])
        except TimeoutError as late:
            raise ServerUnreachable(f"no answer in time while {doing}", where=self.place) from late
        except OSError as broken:
            if isinstance(broken, WANTS_MORE):
                return 0
            raise self.connection_lost_error(doing, broken) from broken
        if size == 0:
            raise self.connection_lost_error(doing, self._unsent) from self._unsent
        self._end += size
        return size

    def received_buffer(self) -> tuple[bytearray, memoryview, int, int]:
        """The buffer, a view of it, and begin and end of the received bytes in it. Valid until `receive`."""
        return self._buffer, self._view, self._start, self._end

    def consume(self, upto: int) -> None:
        """Mark the bytes before this offset as read."""
        self._start = upto

    def connection_lost_error(self, doing: str, cause: OSError | None = None) -> ServerUnreachable:
        """The error for a lost connection."""
        why = "the server closed the connection" if cause is None else str(cause.strerror or cause)
        return ServerUnreachable(f"the connection was lost while {doing}: {why}", where=self.place)

    def close(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError):  # the peer may be gone already
            self.socket.close()

    def _arm(self) -> None:
        if self._deadline is not None:
            # a timeout of 0 would mean not to wait at all
            self.socket.settimeout(max(0.001, self._deadline - time.monotonic()))

    def _make_room(self) -> None:
        held, capacity = self._end - self._start, len(self._buffer)
        if held == 0:
            self._start = self._end = 0
            if capacity > self._size:
                self._move_to(bytearray(self._size))
            return
        length = self.pending()
        needed = HEAD.size if length is None else 1 + length
        if held == capacity:
            self._move_to(bytearray(max(min(2 * capacity, needed), capacity + _START_SIZE)))
        elif needed > capacity - self._start or capacity - self._end < capacity // 8:
            self._view[:held] = self._view[self._start : self._end]
            self._start, self._end = 0, held

    def _move_to(self, buffer: bytearray) -> None:
        held = self._end - self._start
        view = memoryview(buffer)
        view[:held] = self._view[self._start : self._end]
        self._buffer, self._view = buffer, view
        self._start, self._end = 0, held


SETTINGS: Mapping[str, str] = {
    **PRINTING,
    "IntervalStyle": "postgres",  # the family's default, which parallel decoders always use
    "statement_timeout": "0",  # a role's time limits would interrupt the copy
    "session_timeout": "0",  # the family ends idle sessions, after ten minutes by default
}
"""Settings that every session requests at its start: output formats, and no time limits."""


@dataclass(frozen=True, slots=True)
class WireTls:
    """Encryption, in libpq's terms. Paths are absolute, or relative to the working folder.

    Without `root_cert` verify-ca and verify-full trust the system's authorities; `require` with one verifies the chain.
    `prefer` uses encryption if the server offers it; a failure is then an error.
    """

    mode: Literal["disable", "prefer", "require", "verify-ca", "verify-full"] = "prefer"
    root_cert: Path | None = None
    cert: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class WireTarget:
    """A server, or several hosts of which one is the primary, a database, and a role.

    `hosts` are `(host, port)` with the service port; a host that begins with `/` is the folder of a Unix socket.
    `replication_port` is the HA port of every host, for replication connections; None: the service port + 1.
    `connect_timeout` is in seconds for each host; so is `silence`, the TCP timeout of a silent peer
    (`source.socket_io`). `alike`: any host that is not a standby will do, as with coordinators of a distributed server;
    otherwise there must be only one.
    """

    hosts: tuple[tuple[str, int], ...]
    database: str
    user: str
    password: str | None = field(default=None, repr=False)
    replication_port: int | None = None
    tls: WireTls = WireTls()
    connect_timeout: float = 10.0
    silence: float = LONGEST
    alike: bool = False
    settings: Mapping[str, str] = field(default_factory=lambda: SETTINGS)

    def ports(self, *, replication: bool) -> tuple[tuple[str, int], ...]:
        """The addresses for ordinary sessions or for replication connections."""
        if not replication:
            return self.hosts
        return tuple(
            (host, port + 1 if self.replication_port is None else self.replication_port) for host, port in self.hosts
        )

    def place(self, host: str, port: int) -> str:
        """An address for error messages."""
        return f"{host}:{port}/{self.database}"
