"""Opens connections to a PostgreSQL server from the `source` section, and converts failures to errors with a remedy.

There are two kinds: a session, for SQL, and a replication connection, whose `pgconn` uses the streaming replication
protocol. Both print values the same way, whatever the role's or the database's settings (`SETTINGS`). `source.refusals`
classifies refusals.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from cdc_lake.config.source import PostgresSource
from cdc_lake.errors import DriverMissing, ServerUnreachable, SourceError
from cdc_lake.source.primary import find_primary
from cdc_lake.source.refusals import connection_error, first_line, statement_error
from cdc_lake.source.socket_io import Opened, ignore_open, probes
from cdc_lake.source.sql_text import PRINTING

try:
    import psycopg
    from psycopg import conninfo, pq
except ImportError as missing:
    raise DriverMissing from missing

Session: TypeAlias = psycopg.Connection[tuple[object, ...]]
"""An open connection in autocommit."""

SETTINGS: dict[str, str] = {
    **PRINTING,
    "search_path": "pg_catalog",  # no schema precedes it, and other names (of regclass) are printed with their schema
    "quote_all_identifiers": "off",
    "statement_timeout": "0",  # a role's time limits would interrupt the copy and the stream
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "lock_timeout": "0",  # creating a slot waits for running transactions as for locks
    "synchronous_commit": "local",  # flushed, but without waiting for a standby, which may be the receiver itself
    "default_transaction_read_only": "off",
    "default_transaction_isolation": "read committed",  # a serializable transaction may fail, or wait
    "row_security": "off",  # a query whose rows policies would hide is refused: the stream has all rows
}
"""Session settings independent of the role and the database: output formats for copy and stream, name resolution, no
time limits, and no hidden rows.
"""
_PROBES = {"idle": "TCP_KEEPIDLE", "interval": "TCP_KEEPINTVL", "count": "TCP_KEEPCNT"}
"""Suffixes of `keepalives_` in libpq, and of `tcp_keepalives_` on the server."""


def parameters(source: PostgresSource, root: Path, application: str, host: tuple[str, int]) -> dict[str, str]:
    """Parameters of libpq for one host of the `source` section; files are relative to `root`."""
    probing = probes(source.silence_timeout / 1000)
    settings = {
        **SETTINGS,
        # a vanished client leaves its temporary slot, which blocks the next client. Not TCP's timeout for
        # unacknowledged data: it would disconnect a client that waits for its lake and does not read
        **{f"tcp_keepalives_{word}": str(probing[name]) for word, name in _PROBES.items()},
    }
    options = " ".join("-c {}={}".format(name, value.replace(" ", r"\ ")) for name, value in settings.items())
    libpq_options: dict[str, str] = {
        "host": host[0],
        "port": str(host[1]),
        "dbname": source.database,
        "user": source.user,
        "sslmode": source.tls.mode,
        "channel_binding": source.tls.channel_binding,
        "client_encoding": "UTF8",
        "application_name": application,
        "options": options,
        # libpq uses whole seconds and treats 1 as 2
        "connect_timeout": str(max(2, round(source.connect_timeout / 1000))),
    }
    libpq_options |= {f"keepalives_{word}": str(probing[name]) for word, name in _PROBES.items()}
    libpq_options["tcp_user_timeout"] = str(probing["TCP_USER_TIMEOUT"])
    if source.service is not None:
        libpq_options["service"] = source.service
    if source.password is not None:
        libpq_options["password"] = source.password.get_secret_value()
    for name, file in (("sslrootcert", source.tls.root_cert), ("sslcert", source.tls.cert), ("sslkey", source.tls.key)):
        if file is not None:
            libpq_options[name] = str(root / file)
    return libpq_options


def connect(
    source: PostgresSource,
    root: Path,
    *,
    application: str = "cdc_lake",
    replication: bool = False,
    on_open: Opened = ignore_open,
) -> Session:
    """Open a connection in autocommit, to the primary if there are several hosts. The caller closes it. `on_open` is
    called for each connection before its first use, also for those to other hosts.

    Raises the SourceError that fits; with several hosts its message has the reason of each. SeveralPrimaries.
    """
    hosts = [
        (
            f"{host}:{port}/{source.database}",
            partial(_open, source, root, application, (host, port), replication, on_open),
        )
        for host, port in source.addresses
    ]
    return hosts[0][1]() if len(hosts) == 1 else find_primary(hosts, _in_recovery, _server_start_time)


def pin_host(source: PostgresSource, session: Session) -> PostgresSource:
    """The source reduced to the host of an open session."""
    return source.model_copy(update={"host": session.info.host, "hosts": None, "port": session.info.port})


def _open(
    source: PostgresSource, root: Path, application: str, host: tuple[str, int], replication: bool, on_open: Opened
) -> Session:
    libpq_options = parameters(source, root, application, host)
    if replication:
        libpq_options["replication"] = "database"
    place = f"{host[0]}:{host[1]}/{source.database}"
    try:
        session = psycopg.connect(conninfo.make_conninfo("", **libpq_options), autocommit=True)
    except psycopg.Error as refused:
        error = connection_error(str(refused), user=source.user, database=source.database, place=place)
        if source.type == "qhb":
            error.remedy = error.remedy.replace("pg_hba.conf", "qhb_hba.conf")
        raise error from refused
    on_open(session.pgconn.socket)
    if session.info.server_version >= 170000:  # older ones refuse a session with it
        command(session.pgconn, "SET transaction_timeout = 0", "opening the session")
    return session


def _in_recovery(session: Session) -> bool:
    doing = "asking for the server's role"
    return command(session.pgconn, "SELECT pg_is_in_recovery() AS standby", doing)[0]["standby"] != "f"


def _server_start_time(session: Session) -> str:
    doing = "asking when the server was started"
    return str(command(session.pgconn, "SELECT pg_postmaster_start_time()::text AS at", doing)[0]["at"])


def for_replication(session: Session) -> bool:
    """Whether a session is a replication connection, which accepts the protocol's commands."""
    return "replication" in session.info.get_parameters()


def send_as_stored(pgconn: pq.abc.PGconn) -> bool:
    """Make the server send text of an SQL_ASCII database as stored, for readers of bytes; returns whether it does.

    Such a database guarantees no encoding, and the server refuses to send text that is invalid in the requested one.
    """
    if pgconn.parameter_status(b"server_encoding") != b"SQL_ASCII":
        return False
    command(pgconn, "SET client_encoding TO 'SQL_ASCII'", "requesting text as it is stored")
    return True


@contextmanager
def as_stored(session: Session) -> Iterator[None]:
    """The same inside the block. Raises SourceError."""
    changed = send_as_stored(session.pgconn)
    yield
    if changed:  # after an error the session is unusable
        command(session.pgconn, "SET client_encoding TO 'UTF8'", "requesting UTF-8 again")


def encoding_of(session: Session) -> str:
    """The encoding of the session's database, as the server names it."""
    return (session.pgconn.parameter_status(b"server_encoding") or b"").decode()


def as_bytes(value: Any) -> bytes:
    """Text as bytes, which it already is in an as-stored session of an SQL_ASCII database."""
    return value.encode() if isinstance(value, str) else bytes(value)


def connection_lost_error(pgconn: pq.abc.PGconn, doing: str) -> SourceError:
    """The error for a connection lost while `doing`."""
    message = pgconn.get_error_message().strip() or "the server closed the connection"
    return ServerUnreachable(f"the connection was lost while {doing}: {first_line(message)}")


@contextmanager
def translate_errors(doing: str) -> Iterator[None]:
    """Convert errors of statements inside the block; `doing` describes their purpose."""
    try:
        yield
    except psycopg.Error as refused:
        # without the detail, which may contain row values
        raise statement_error(refused.sqlstate, refused.diag.message_primary or str(refused), doing) from refused


def fetch(session: Session, doing: str, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
    """The rows of a query; `doing` describes its purpose. Raises SourceError."""
    with translate_errors(doing):
        return session.execute(sql.encode(), parameters or None).fetchall()


def command(pgconn: pq.abc.PGconn, text: str, doing: str) -> list[dict[str, str | None]]:
    """Run one replication command (simple protocol, no parameters); rows as name → text. Raises SourceError."""
    return _rows(pgconn.exec_(text.encode()), pgconn, doing)


def command_with_timeout(pgconn: pq.abc.PGconn, text: str, seconds: float, doing: str) -> list[dict[str, str | None]]:
    """The same with a timeout. Raises ServerUnreachable if there is no answer after so many seconds."""
    pgconn.send_query(text.encode())
    until = time.monotonic() + seconds
    try:
        while pgconn.is_busy():
            if not select.select([pgconn.socket], [], [], max(0.0, until - time.monotonic()))[0]:
                raise ServerUnreachable(f"{doing}: the server has not answered for {seconds:.0f} s")
            pgconn.consume_input()
        result = _last_result(pgconn)
    except psycopg.OperationalError as broken:
        raise connection_lost_error(pgconn, doing) from broken
    if result is None:
        raise connection_lost_error(pgconn, doing)
    return _rows(result, pgconn, doing)


def _rows(result: pq.abc.PGresult, pgconn: pq.abc.PGconn, doing: str) -> list[dict[str, str | None]]:
    if result.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        names = [(result.fname(column) or b"").decode() for column in range(result.nfields)]
        return [
            {name: _text(result.get_value(row, column)) for column, name in enumerate(names)}
            for row in range(result.ntuples)
        ]
    if result.status == pq.ExecStatus.COPY_BOTH:
        return []
    raise result_error(result, pgconn, doing)


def next_result(pgconn: pq.abc.PGconn) -> pq.abc.PGresult | None:
    """Wait for the next result; None after the last. Raises psycopg.OperationalError.

    The driver's own call also waits, but blocks every thread of the process.
    """
    while pgconn.is_busy():
        select.select([pgconn.socket], [], [])
        pgconn.consume_input()
    return pgconn.get_result()


def _last_result(pgconn: pq.abc.PGconn) -> pq.abc.PGresult | None:
    """The result of one statement, read to the end of the answer. Raises psycopg.OperationalError."""
    result = next_result(pgconn)
    while next_result(pgconn) is not None:
        continue
    return result


def finished_within(pgconn: pq.abc.PGconn, text: str, seconds: float, doing: str) -> bool:
    """Run a replication command that may wait at the server; False if it was cancelled after so many seconds.

    Raises SourceError.
    """
    pgconn.send_query(text.encode())
    until = time.monotonic() + seconds
    try:
        while pgconn.is_busy():
            left = until - time.monotonic()
            if seconds and left <= 0:
                pgconn.get_cancel().cancel()
            select.select([pgconn.socket], [], [], min(max(left, 0.05), 0.2) if seconds else None)
            pgconn.consume_input()
        result = _last_result(pgconn)
    except psycopg.OperationalError as broken:
        raise connection_lost_error(pgconn, doing) from broken
    if result is None or result.status == pq.ExecStatus.COMMAND_OK:
        return True
    if _text(result.error_field(pq.DiagnosticField.SQLSTATE)) == "57014":  # query_canceled
        return False
    raise result_error(result, pgconn, doing)


def result_error(result: pq.abc.PGresult, pgconn: pq.abc.PGconn, doing: str) -> SourceError:
    """The error for a failed result of a replication connection."""
    state = _text(result.error_field(pq.DiagnosticField.SQLSTATE))
    if state is None:
        return connection_lost_error(pgconn, doing)
    return statement_error(state, _text(result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)) or "", doing)


def raise_end(pgconn: pq.abc.PGconn, doing: str) -> NoReturn:
    """Raise the SourceError with the server's reason for ending a copy while `doing`."""
    try:
        result = next_result(pgconn)
    except psycopg.OperationalError as broken:
        raise connection_lost_error(pgconn, doing) from broken
    if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
        raise result_error(result, pgconn, doing)
    raise connection_lost_error(pgconn, doing)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")
