"""A session with a GaussDB family server, without libpq: connecting, statements, copies.

It uses protocol 3.51 over a socket (`protocol`, `auth`). Of several hosts it connects to the primary. Statements use
the simple protocol, which replication connections also support; answers are UTF-8 text. Refusals of the server raise a
SourceError of the same tree as with any other driver. A session is not thread-safe.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from cdc_lake.errors import AuthenticationRefused, ServerSettings, ServerUnreachable, SourceError, StreamProtocol
from cdc_lake.source.gaussdb.wire import auth, protocol
from cdc_lake.source.gaussdb.wire.auth import negotiate_tls, server_error, startup_error
from cdc_lake.source.gaussdb.wire.protocol import Channel, ServerMessage, WireTarget
from cdc_lake.source.primary import find_primary, find_standby
from cdc_lake.source.socket_io import Opened, ignore_open, probes

_SILENT = frozenset({protocol.NOTICE, protocol.PARAMETER, protocol.BACKEND_KEY, protocol.NOTIFICATION})


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to a statement: column names and rows of text, NULL as None."""

    names: tuple[str, ...] = ()
    rows: tuple[tuple[str | None, ...], ...] = ()

    def records(self) -> list[dict[str, str | None]]:
        """The rows as name → text."""
        return [dict(zip(self.names, row, strict=True)) for row in self.rows]


class WireSession:
    """An open session, created by `connect`; `parameters` are the settings that the server reported."""

    def __init__(self, channel: Channel, target: WireTarget) -> None:
        self.channel = channel
        self.target = target
        self.parameters: dict[str, str] = {}
        self.is_closed = False
        """Whether it was closed, or the server ended it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def place(self) -> str:
        """The server's address for errors."""
        return self.channel.place

    def start(self, *, application: str, replication: bool) -> None:
        """Log in. Raises SourceError, after which the session is unusable."""
        startup_parameters = {"user": self.target.user, "database": self.target.database}
        if replication:
            startup_parameters["replication"] = "database"
        startup_parameters |= {"application_name": application, "client_encoding": "UTF8", **self.target.settings}
        self.channel.send(protocol.startup(startup_parameters))
        asked = self._authenticate()
        while True:
            letter, body = self.channel.read("starting the session")
            if letter == protocol.READY:
                break
            if letter == protocol.ERROR:
                raise self._startup_refusal(body, asked)
            self._startup_message(letter, body)
        self.channel.end_startup()

    def query(self, sql: str, *, doing: str = "running a statement") -> Result:
        """Run statements; the last one's result. Raises SourceError, with their purpose `doing`."""
        self._ask(sql)
        try:
            return self._answers(doing)
        except StreamProtocol:
            self.close()  # otherwise the rest of the answer would be read as the next one
            raise

    def copy_out(self, sql: str, *, doing: str = "copying out") -> Iterator[bytes]:
        """Run a `COPY … TO STDOUT`; one item per row as sent. If not read to the end, the session is closed."""
        self._ask(sql)
        ended = False
        try:
            while True:
                letter, body = self._next_answer(doing)
                if letter == protocol.COPY_DATA:
                    yield body
                elif letter == protocol.READY:
                    ended = True
                    return
                elif letter not in {protocol.COPY_OUT, protocol.COPY_DONE, protocol.COMMAND_COMPLETE}:
                    raise self._unexpected_message(letter, body, doing)
        except SourceError:
            ended = True  # whether the session continues is known already
            raise
        finally:
            if not ended:
                self.close()

    def start_copy_both(self, command: str, *, doing: str) -> None:
        """Begin a stream, which then uses `channel`. If it fails, the session is unusable."""
        self._ask(command)
        letter, body = self._next_answer(doing)
        if letter != protocol.COPY_BOTH:
            raise self._unexpected_message(letter, body, doing)

    def close(self) -> None:
        """End the session and close the socket; may be repeated."""
        if not self.is_closed and self.channel.is_open:
            self.channel.wait_until(time.monotonic() + 1.0)  # seconds: a server that does not read is disconnected
            self.channel.send(protocol.message(b"X"))
        self.is_closed = True
        self.channel.close()

    def error(self, body: bytes, doing: str) -> SourceError:
        """The error for an ErrorResponse."""
        return server_error(protocol.read_message(body), doing, where=self.place, user=self.target.user)

    def _ask(self, sql: str) -> None:
        if self.is_closed:
            raise ServerUnreachable("the session is closed already", where=self.place)
        self.channel.send(protocol.message(b"Q", protocol.text(sql)))

    def _answers(self, doing: str) -> Result:
        names: tuple[str, ...] = ()
        rows: list[tuple[str | None, ...]] = []
        result = Result()
        while True:
            letter, body = self._next_answer(doing)
            match letter:
                case protocol.ROW_DESCRIPTION:
                    names, rows = protocol.read_columns(body), []
                case protocol.DATA_ROW:
                    rows.append(protocol.read_row(body, len(names)))
                case protocol.COMMAND_COMPLETE | protocol.EMPTY_QUERY:
                    result = Result(names, tuple(rows))
                    names, rows = (), []
                case protocol.READY:
                    return result
                case protocol.COPY_IN:
                    self.channel.send(protocol.message(b"f", protocol.text("a query cannot send data")))
                case protocol.COPY_OUT | protocol.COPY_DATA | protocol.COPY_DONE:
                    pass  # a COPY without a reader: its rows are discarded
                case _:
                    raise self._unexpected_message(letter, body, doing)

    def _next_answer(self, doing: str) -> tuple[int, bytes]:
        """The next message of an answer. Raises the server's error once the session is ready again."""
        while True:
            try:
                letter, body = self.channel.read(doing)
            except SourceError:
                self.is_closed = True
                self.channel.close()
                raise
            if letter == protocol.ERROR:
                message = protocol.read_message(body)
                self._recover(message, doing)
                raise server_error(message, doing, where=self.place, user=self.target.user)
            if letter == protocol.PARAMETER:
                self.parameters.update([protocol.read_parameter(body)])
            if letter not in _SILENT:
                return letter, body

    def _recover(self, message: ServerMessage, doing: str) -> None:
        """After an error: read until the next statement can be sent, or close if the server ends the session.

        Every error ends a replication connection, even if ReadyForQuery follows.
        """
        try:
            while message.severity not in {"FATAL", "PANIC"}:
                if self.channel.read(doing)[0] == protocol.READY:
                    return
        except SourceError:
            pass  # the server hung up: its error message, raised now, says more
        self.is_closed = True
        self.channel.close()

    def _unexpected_message(self, letter: int, body: bytes, doing: str) -> SourceError:
        self.close()
        words = f"{doing}: an unexpected message of kind {letter} and {len(body)} bytes"
        return StreamProtocol(words, where=self.place)

    def _authenticate(self) -> auth.Request | None:
        """Answer the server's requests until it accepts; returns the last request."""
        asked: auth.Request | None = None
        while True:
            letter, body = self.channel.read("logging in")
            if letter == protocol.ERROR:
                raise self._startup_refusal(body, asked)
            if letter != protocol.AUTHENTICATION:
                self._startup_message(letter, body)
                continue
            try:
                request = auth.parse(body)
            except SourceError as wrong:
                wrong.where = self.place
                raise
            if isinstance(request, auth.Accepted):
                return asked
            asked = request
            self.channel.send(protocol.message(b"p", protocol.text(self._answer(request))))

    def _answer(self, request: auth.Request) -> str:
        if self.target.password is None:
            text = f"no connection as `{self.target.user}`: the server asks for a password, but none is configured"
            hint = "set `source.password`, by reference: ${env:NAME} or ${file:path}"
            raise AuthenticationRefused(text, where=self.place, hint=hint)
        return auth.answer(request, self.target.user, self.target.password) or ""

    def _startup_refusal(self, body: bytes, asked: auth.Request | None) -> SourceError:
        message = protocol.read_message(body)
        error = startup_error(message, user=self.target.user, database=self.target.database, where=self.place)
        if isinstance(error, AuthenticationRefused) and isinstance(asked, auth.Md5OverSha256):
            # its request lacks the iterations, so the client uses 2048 and the server the stored number
            error.remedy += "; an `md5` line rarely works with a password stored for sha256: use `sha256` there"
        return error

    def _startup_message(self, letter: int, body: bytes) -> None:
        if letter == protocol.PARAMETER:
            self.parameters.update([protocol.read_parameter(body)])
        elif letter == protocol.NEGOTIATE:
            text = f"the server does not support protocol 3.{protocol.MINOR}: it does not belong to the GaussDB family"
            hint = "for PostgreSQL and compatible servers: `source.type: postgres`"
            raise ServerSettings(text, where=self.place, hint=hint)
        elif letter not in _SILENT:
            words = f"a message of kind {letter} at the start of the session"
            raise StreamProtocol(words, where=self.place, hint="check that a database is listening there")


def connect(
    target: WireTarget, *, application: str = "cdc_lake", replication: bool = False, on_open: Opened = ignore_open
) -> WireSession:
    """Open a session; with `replication` a replication connection, at the HA port. The caller closes it. `on_open` is
    called for each connection before its first use, also for those to other hosts.

    Of several hosts the one that is not a standby, which alone is in the session's own target. Raises the SourceError
    that fits; with several hosts its message has the reason of each. SeveralPrimaries.
    """
    hosts = _hosts(target, application, replication, on_open)
    if len(hosts) == 1:
        return hosts[0][1]()
    return find_primary(hosts, _in_recovery, None if target.alike else _server_start_time)


def connect_to_standby(target: WireTarget, *, application: str) -> WireSession:
    """A replication connection to the first standby among the hosts. Raises StandbyNeeded, or what `connect` does."""
    return find_standby(_hosts(target, application, replication=True), _in_recovery)


def _hosts(
    target: WireTarget, application: str, replication: bool, on_open: Opened = ignore_open
) -> list[tuple[str, Callable[[], WireSession]]]:
    """The address of each host, and a function that opens a session there."""
    hosts: list[tuple[str, Callable[[], WireSession]]] = []
    for service, (host, port) in zip(target.hosts, target.ports(replication=replication), strict=True):
        alone = replace(target, hosts=(service,))
        dial = partial(_open, alone, host, port, application=application, replication=replication, on_open=on_open)
        hosts.append((target.place(host, port), dial))
    return hosts


def _in_recovery(session: WireSession) -> bool:
    return session.query("SELECT pg_is_in_recovery()", doing="asking for the server's role").rows != (("f",),)


def _server_start_time(session: WireSession) -> object:
    return session.query("SELECT pg_postmaster_start_time()", doing="asking when the server was started").rows


def _open(
    target: WireTarget, host: str, port: int, *, application: str, replication: bool, on_open: Opened
) -> WireSession:
    place = target.place(host, port)
    deadline = time.monotonic() + target.connect_timeout
    sock = _dial(host, port, target.connect_timeout, place)
    try:
        on_open(sock.fileno())
        if not host.startswith("/"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in probes(target.silence).items():
                if hasattr(socket, name):  # names differ between systems
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        sock = negotiate_tls(sock, target.tls, host, place)
        session = WireSession(Channel(sock, place, deadline), target)
        session.start(application=application, replication=replication)
    except BaseException:
        with contextlib.suppress(OSError):
            sock.close()
        raise
    return session


def _dial(host: str, port: int, timeout: float, place: str) -> socket.socket:
    try:
        if host.startswith("/"):
            return _dial_unix(f"{host}/.s.PGSQL.{port}", timeout)
        return socket.create_connection((host, port), timeout)
    except TimeoutError as late:
        raise ServerUnreachable(f"no connection within {timeout:g} s", where=place) from late
    except (OSError, UnicodeError) as refused:  # UnicodeError: an invalid host name
        why = getattr(refused, "strerror", None) or refused
        raise ServerUnreachable(f"no connection: {why}", where=place) from refused


def _dial_unix(path: str, timeout: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(timeout)
        sock.connect(path)
    except OSError:
        sock.close()
        raise
    return sock
