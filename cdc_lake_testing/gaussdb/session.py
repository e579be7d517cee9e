"""A connection: start-up, authentication, and the loop that answers queries and replication commands."""

from __future__ import annotations

import secrets
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, assert_never

from cdc_lake_testing.gaussdb.authentication import DENIED, Credentials, Method, authenticate
from cdc_lake_testing.gaussdb.commands import is_command, stranger
from cdc_lake_testing.gaussdb.faults import Faults
from cdc_lake_testing.gaussdb.replication import Replication
from cdc_lake_testing.gaussdb.sql import Answer, CopyOut, Done, Failed, ResultSet, SqlAnswers, SqlSession
from cdc_lake_testing.gaussdb.state import ServerState
from cdc_lake_testing.gaussdb.wire import (
    CANCEL_REQUEST,
    SSL_REQUEST,
    Channel,
    Closed,
    complete,
    copy_out,
    data_row,
    error,
    packet,
    parameter_status,
    ready,
    row_description,
)

GSS_REQUEST: Final = 80877104
_FLUSH: Final = 1 << 20


@dataclass(slots=True)
class Access:
    """Who may connect, and how. `databases`: those that exist, None for any; `strangers` may not replicate."""

    users: Mapping[str, Credentials] = field(default_factory=dict)
    method: Method = Method.TRUST
    replication_method: Method | None = None
    databases: frozenset[str] | None = None
    strangers: frozenset[str] = frozenset()
    tls: ssl.SSLContext | None = None


class Refusal(Exception):
    """The connection is refused; `failed` says why."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.message)
        self.failed = failed


class Connection:
    """One connection, from its first byte to its end; `run` is its thread."""

    def __init__(
        self,
        state: ServerState,
        access: Access,
        answers: SqlAnswers,
        channel: Channel,
        *,
        ha_port: bool,
        faults: Callable[[], Faults],
        released: threading.Event,
        stopping: threading.Event,
        pid: int,
    ) -> None:
        self._state = state
        self._access = access
        self._answers = answers
        self.channel = channel
        self._ha_port = ha_port
        self._faults = faults
        self._released = released
        self._stopping = stopping
        self._pid = pid

    def run(self) -> None:
        """Serve the connection until it ends, in whatever way."""
        session = None
        try:
            session = self._start()
            if session is not None:
                self._serve(session)
        except Refusal as refusal:
            self._say(error(refusal.failed))
        except OSError:
            pass  # gone, or cut by a fault: there is nobody to tell
        finally:
            if session is not None:
                self._answers.end(session)
            self.channel.close()

    def _say(self, data: bytes) -> None:
        try:
            self.channel.send(data)
        except OSError:
            return

    def _start(self) -> SqlSession | None:
        protocol, body = self.channel.start_packet()
        while protocol in {SSL_REQUEST, GSS_REQUEST}:
            tls = self._access.tls if protocol == SSL_REQUEST else None
            self.channel.send(b"N" if tls is None else b"S")
            if tls is not None:
                self.channel.start_tls(tls)
            protocol, body = self.channel.start_packet()
        if protocol == CANCEL_REQUEST:
            return None
        if protocol >> 16 != 3:
            words = f"unsupported frontend protocol {protocol >> 16}.{protocol & 0xFFFF}"
            raise Refusal(Failed("0A000", words, severity="FATAL"))
        fields = body.split(b"\0")
        pairs = zip(fields[::2], fields[1::2], strict=False)
        parameters = {k.decode(errors="replace"): v.decode(errors="replace") for k, v in pairs if k}
        replication = parameters.get("replication", "").lower() in {"database", "true", "on", "yes", "1"}
        self._check_port(replication=replication)
        user = parameters.get("user", "")
        session = SqlSession(user, parameters.get("database", user), replication, parameters, self._state, self._pid)
        self._authenticate(session, protocol & 0xFFFF)
        self._greet(session)
        return session

    def _check_port(self, *, replication: bool) -> None:
        if not self._state.thread_pool:
            return
        if replication and not self._ha_port:
            raise Refusal(Failed("XX000", "replication should connect HA port in thread_pool", severity="FATAL"))
        if not replication and self._ha_port:
            words = "the local listen ip and port is not for the gsql client"
            raise Refusal(Failed("08004", words, severity="FATAL"))

    def _authenticate(self, session: SqlSession, minor: int) -> None:
        access = self._access
        method = access.method
        if session.replication and access.replication_method is not None:
            method = access.replication_method
        if method is Method.REJECT:
            raise Refusal(self._no_line(session))
        if not authenticate(self.channel, session.user, access.users.get(session.user), method, minor):
            raise Refusal(Failed("28P01", DENIED, severity="FATAL"))
        if access.databases is not None and session.database not in access.databases:
            raise Refusal(Failed("3D000", f'database "{session.database}" does not exist', severity="FATAL"))
        if session.replication and session.user in access.strangers:
            words = "must be system admin or replication role to start walsender"
            raise Refusal(Failed("42501", words, severity="FATAL"))

    def _no_line(self, session: SqlSession) -> Failed:
        file = "gs_hba.conf" if self._state.product == "GaussDB" else "pg_hba.conf"
        tls = "SSL on" if isinstance(self.channel.socket, ssl.SSLSocket) else "SSL off"
        peer = self.channel.socket.getpeername()[0]
        if session.replication:
            words = f'no {file} entry for replication connection from host "{peer}", user "{session.user}", {tls}'
        else:
            words = f'no {file} entry for host "{peer}", user "{session.user}", database "{session.database}", {tls}'
        return Failed("28000", words, severity="FATAL")

    def _greet(self, session: SqlSession) -> None:
        said = {
            "application_name": session.parameters.get("application_name", ""),
            "client_encoding": "UTF8",
            "connection_info": "",
            "DateStyle": self._state.setting("datestyle") or "",
            "integer_datetimes": "on",
            "IntervalStyle": self._state.setting("intervalstyle") or "",
            "is_sysadmin": "off",
            "server_encoding": self._state.encoding,
            "server_version": "9.2.4",
            "session_authorization": "" if session.replication else session.user,
            "standard_conforming_strings": "on",
            "TimeZone": self._state.setting("timezone") or "",
        }
        parts = [packet(b"R", b"\0\0\0\0")]
        parts += [parameter_status(name, value) for name, value in said.items()]
        if not session.replication:
            parts.append(packet(b"K", session.pid.to_bytes(4, "big") + secrets.token_bytes(4)))
        self.channel.send(b"".join(parts) + ready("I"))

    def _serve(self, session: SqlSession) -> None:
        skipping = False
        while not self._stopping.is_set():
            kind, body = self.channel.read()
            if kind == b"X":
                return
            if kind == b"Q":
                if not self._query(body.rstrip(b"\0").decode(errors="replace"), session):
                    return
            elif kind == b"S":
                skipping = False
                self.channel.send(ready(session.status))
            elif kind in {b"P", b"B", b"D", b"E", b"C", b"H"}:
                if not skipping:
                    self.channel.send(error(Failed("0A000", "the extended query protocol is not spoken here")))
                skipping = True
            elif kind not in {b"d", b"c", b"f"}:
                raise Closed(f"a message of type {kind!r}")

    def _query(self, sql: str, session: SqlSession) -> bool:
        """Answer a simple query; False where the session is over."""
        if session.replication and is_command(sql):
            replication = Replication(
                self._state, self._answers, self.channel, session, self._faults, self._released, self._stopping
            )
            return replication.execute(sql)
        if session.replication and (failed := stranger(sql)) is not None:
            self.channel.send(error(failed) + ready(session.status))
            return False
        if not sql.strip(" \t\r\n;"):
            self.channel.send(packet(b"I") + ready(session.status))
            return True
        alive = True
        for answer in self._answers.answer(sql, session):
            if isinstance(answer, Failed):
                # a walsender knows no lesser errors: each ends it
                severity = "FATAL" if session.replication else answer.severity
                answer = replace(answer, severity=severity)  # noqa: PLW2901
                alive = severity != "FATAL"
            self._answer(answer)
        self.channel.send(ready(session.status))
        return alive

    def _answer(self, answer: Answer) -> None:
        match answer:
            case ResultSet(columns, rows, tag):
                parts = [row_description(columns), *map(data_row, rows), complete(tag or f"SELECT {len(rows)}")]
                self.channel.send(b"".join(parts))
            case Done(tag):
                self.channel.send(complete(tag))
            case Failed():
                self.channel.send(error(answer))
            case CopyOut():
                self._copy(answer)
            case _:
                assert_never(answer)

    def _copy(self, answer: CopyOut) -> None:
        parts = [copy_out(answer.columns)]
        size = 0
        for data in answer.data:
            parts.append(packet(b"d", data))
            size += len(data)
            if size >= _FLUSH:
                self.channel.send(b"".join(parts))
                parts, size = [], 0
        self.channel.send(b"".join(parts) + packet(b"c") + complete(answer.tag))
