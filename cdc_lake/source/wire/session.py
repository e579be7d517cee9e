"""A session with a server of the GaussDB family, without libpq: start-up, statements, copies.

Speaks protocol 3.51 over a socket (`protocol`, `authentication`, `tls`). Statements go by the simple protocol, which
replication connections take as well; answers are text in UTF-8. Whatever the server refuses is a SourceError of the
same tree as with any other driver. A session is for one thread at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from cdc_lake.errors import AuthenticationRefused, ServerSettings, ServerUnreachable, SourceError, StreamProtocol
from cdc_lake.source.wire import authentication, protocol
from cdc_lake.source.wire.channel import Channel
from cdc_lake.source.wire.protocol import ServerMessage
from cdc_lake.source.wire.refusals import server_error, startup_error
from cdc_lake.source.wire.target import WireTarget

_GOODBYE = 1.0  # seconds to say it in: a server that does not read is left without
_FATAL = frozenset({"FATAL", "PANIC"})
_SILENT = frozenset({protocol.NOTICE, protocol.PARAMETER, protocol.BACKEND_KEY, protocol.NOTIFICATION})


@dataclass(frozen=True, slots=True)
class Result:
    """What a statement answered: column names and rows of text, NULL as None."""

    names: tuple[str, ...] = ()
    rows: tuple[tuple[str | None, ...], ...] = ()

    def records(self) -> list[dict[str, str | None]]:
        """The rows as name → text."""
        return [dict(zip(self.names, row, strict=True)) for row in self.rows]


class WireSession:
    """An open session. Made by `connect`; `parameters` is what the server reported of its settings."""

    def __init__(self, channel: Channel, target: WireTarget) -> None:
        self.channel = channel
        self.target = target
        self.parameters: dict[str, str] = {}
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """True after `close`, or when the server ended the session."""
        return self._closed

    @property
    def place(self) -> str:
        """Where the server is, as errors name it."""
        return self.channel.place

    def start(self, *, application: str, replication: bool) -> None:
        """Log in. Raises SourceError; the session is of no use then."""
        given = {"user": self.target.user, "database": self.target.database}
        if replication:
            given["replication"] = "database"
        given |= {"application_name": application, "client_encoding": "UTF8", **self.target.settings}
        self.channel.send(protocol.startup(given))
        asked = self._authenticate()
        while True:
            letter, body = self.channel.read("starting the session")
            if letter == protocol.READY:
                break
            if letter == protocol.ERROR:
                raise self._refused(body, asked)
            self._startup_message(letter, body)
        self.channel.settle()

    def query(self, sql: str, *, doing: str = "running a statement") -> Result:
        """Run statements; the last one's result. Raises SourceError, with `doing` as what it was for."""
        self._ask(sql)
        try:
            return self._answers(doing)
        except StreamProtocol:
            self.close()  # what is left of the answer would be taken for the next one
            raise

    def copy_out(self, sql: str, *, doing: str = "copying out") -> Iterator[bytes]:
        """Run a `COPY … TO STDOUT`; one item a row as the server sends it. Left early, the session is closed."""
        self._ask(sql)
        ended = False
        try:
            while True:
                letter, body = self._next(doing)
                if letter == protocol.COPY_DATA:
                    yield body
                elif letter == protocol.READY:
                    ended = True
                    return
                elif letter not in {protocol.COPY_OUT, protocol.COPY_DONE, protocol.COMMAND_COMPLETE}:
                    raise self._unexpected(letter, body, doing)
        except SourceError:
            ended = True  # and whether the session goes on is known already
            raise
        finally:
            if not ended:
                self.close()

    def start_copy_both(self, command: str, *, doing: str) -> None:
        """Begin a stream, for `read_message` and `send_copy_data`. Where it fails the session is used up."""
        self._ask(command)
        letter, body = self._next(doing)
        if letter != protocol.COPY_BOTH:
            raise self._unexpected(letter, body, doing)

    def read_message(self, doing: str = "reading the stream") -> bytes | None:
        """The next CopyData's content, waiting for it; None where the server ended the copy."""
        letter, body = self._next(doing)
        if letter == protocol.COPY_DATA:
            return body
        if letter in {protocol.COPY_DONE, protocol.COMMAND_COMPLETE, protocol.READY}:
            return None
        raise self._unexpected(letter, body, doing)

    def send_copy_data(self, payload: bytes) -> None:
        """Send data inside the copy."""
        self.channel.send(protocol.copy_data(payload))

    def close(self) -> None:
        """Say goodbye and close the socket; again is no harm."""
        if not self._closed and self.channel.is_open:
            self.channel.wait_until(time.monotonic() + _GOODBYE)
            self.channel.send(protocol.terminate())
        self._closed = True
        self.channel.close()

    def error(self, body: bytes, doing: str) -> SourceError:
        """The error that an ErrorResponse stands for."""
        return server_error(protocol.read_message(body), doing, where=self.place, user=self.target.user)

    def _ask(self, sql: str) -> None:
        if self._closed:
            raise ServerUnreachable("the session is closed already", where=self.place)
        self.channel.send(protocol.query(sql))

    def _answers(self, doing: str) -> Result:
        names: tuple[str, ...] = ()
        rows: list[tuple[str | None, ...]] = []
        result = Result()
        while True:
            letter, body = self._next(doing)
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
                    self.channel.send(protocol.copy_fail("no data is sent by a query"))
                case protocol.COPY_OUT | protocol.COPY_DATA | protocol.COPY_DONE:
                    pass  # a COPY without a reader: its rows go by
                case _:
                    raise self._unexpected(letter, body, doing)

    def _next(self, doing: str) -> tuple[int, bytes]:
        """The next message that is an answer. Raises the error the server sends, when the session is ready again."""
        while True:
            try:
                letter, body = self.channel.read(doing)
            except SourceError:
                self._closed = True
                self.channel.close()
                raise
            if letter == protocol.ERROR:
                said = protocol.read_message(body)
                self._recover(said, doing)
                raise server_error(said, doing, where=self.place, user=self.target.user)
            if letter == protocol.PARAMETER:
                name, value = protocol.read_parameter(body)
                self.parameters[name] = value
            if letter not in _SILENT:
                return letter, body

    def _recover(self, said: ServerMessage, doing: str) -> None:
        """After an error: read up to where the next statement can be sent, or close where the server ends the session.

        A replication connection is ended by every error, also where ReadyForQuery follows.
        """
        try:
            while said.severity not in _FATAL:
                if self.channel.read(doing)[0] == protocol.READY:
                    return
        except SourceError:
            pass  # hung up instead: the server's own words, which are raised now, say more
        self._closed = True
        self.channel.close()

    def _unexpected(self, letter: int, body: bytes, doing: str) -> SourceError:
        self.close()
        words = f"{doing}: a message of kind {letter} and {len(body)} bytes that does not belong there"
        return StreamProtocol(words, where=self.place)

    def _authenticate(self) -> authentication.Request | None:
        """Answer what the server asks, until it is content; the last thing it asked for."""
        asked: authentication.Request | None = None
        while True:
            letter, body = self.channel.read("logging in")
            if letter == protocol.ERROR:
                raise self._refused(body, asked)
            if letter != protocol.AUTHENTICATION:
                self._startup_message(letter, body)
                continue
            try:
                request = authentication.parse(body)
            except SourceError as wrong:
                wrong.where = self.place
                raise
            if isinstance(request, authentication.Accepted):
                return asked
            asked = request
            self.channel.send(protocol.password(self._answer(request)))

    def _answer(self, request: authentication.Request) -> str:
        if self.target.password is None:
            raise AuthenticationRefused(
                f"no connection as `{self.target.user}`: the server asks for a password, and none is given",
                where=self.place,
                hint="set `source.password`, by reference: ${env:NAME} or ${file:path}",
            )
        if isinstance(request, authentication.Sha256):
            authentication.check_server(request, self.target.password)
        return authentication.answer(request, self.target.user, self.target.password) or ""

    def _refused(self, body: bytes, asked: authentication.Request | None) -> SourceError:
        said = protocol.read_message(body)
        error = startup_error(said, user=self.target.user, database=self.target.database, where=self.place)
        if isinstance(error, AuthenticationRefused) and isinstance(asked, authentication.Md5OverSha256):
            # its request does not say the iterations, so the client counts 2048 and the server what it stored
            error.remedy += "; an `md5` line seldom fits a password stored for sha256: write `sha256` there"
        return error

    def _startup_message(self, letter: int, body: bytes) -> None:
        if letter == protocol.PARAMETER:
            name, value = protocol.read_parameter(body)
            self.parameters[name] = value
        elif letter == protocol.NEGOTIATE:
            raise ServerSettings(
                f"the server does not speak protocol 3.{protocol.MINOR}: it is not of the GaussDB family",
                where=self.place,
                hint="for PostgreSQL and what is like it: `source.type: postgres`",
            )
        elif letter not in _SILENT:
            words = f"a message of kind {letter} at the start of the session"
            raise StreamProtocol(words, where=self.place, hint="is a database listening there?")
