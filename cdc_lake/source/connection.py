"""Connections to a PostgreSQL server: made from the `source` section, failures given a name and a remedy.

Two kinds: a session, for SQL, and a replication connection, whose `pgconn` carries the streaming replication
protocol. Both print values the same way, whatever the role's or the database's settings are (`SETTINGS`).
libpq gives no SQLSTATE for a refused connection, so these are told apart by the server's English messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from cdc_lake.config.model import Source
from cdc_lake.errors import (
    AuthenticationRefused,
    DatabaseUnknown,
    DriverMissing,
    NoFreeSlot,
    PublicationMissing,
    QueryRefused,
    RoleLacksReplication,
    ServerBusy,
    ServerSettings,
    ServerUnreachable,
    SlotActive,
    SlotMissing,
    SourceError,
    SourcePermission,
    TlsRefused,
)

try:
    import psycopg
    from psycopg import conninfo, pq
except ImportError as missing:
    msg = "the driver psycopg is not installed"
    raise DriverMissing(msg) from missing

Session: TypeAlias = psycopg.Connection[tuple[object, ...]]
"""An open connection in autocommit."""

SETTINGS: dict[str, str] = {
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "extra_float_digits": "3",  # the shortest text that reads back as the same float
    "bytea_output": "hex",
    "TimeZone": "UTC",
    "lc_monetary": "C",
    "statement_timeout": "0",  # a role's own time limits would cut the copy and the stream
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}
"""How values are printed, in copy and stream alike, and no time limits."""

_REFUSALS: tuple[tuple[str, type[SourceError]], ...] = (
    ("password authentication failed", AuthenticationRefused),
    ("no password supplied", AuthenticationRefused),
    ("authentication failed", AuthenticationRefused),
    ("no pg_hba.conf entry", AuthenticationRefused),
    ("pg_hba.conf rejects", AuthenticationRefused),
    ("is not permitted to log in", AuthenticationRefused),
    ("authentication method", AuthenticationRefused),
    ("permission denied for database", AuthenticationRefused),
    ("REPLICATION attribute", RoleLacksReplication),
    ("must be superuser or replication role", RoleLacksReplication),
    ("remaining connection slots", ServerBusy),
    ("too many clients", ServerBusy),
    ("too many connections", ServerBusy),
    ("exceeds max_wal_senders", ServerBusy),
    ('exceeds "max_wal_senders"', ServerBusy),
    ("is starting up", ServerBusy),
    ("is shutting down", ServerBusy),
    ("in recovery mode", ServerBusy),
    ("not yet accepting connections", ServerBusy),
    ("unrecognized configuration parameter", ServerSettings),
    ("SSL", TlsRefused),
    ("certificate", TlsRefused),
    ("root.crt", TlsRefused),
)
"""What the server or libpq says when it refuses a connection, in this order."""


def parameters(source: Source, root: Path, application: str) -> dict[str, str]:
    """Parameters of libpq for the `source` section; files are relative to `root`."""
    options = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
    given: dict[str, str] = {
        "host": source.host,
        "port": str(source.port),
        "dbname": source.database,
        "user": source.user,
        "sslmode": source.tls.mode,
        "client_encoding": "UTF8",
        "application_name": application,
        "options": options,
        # libpq counts whole seconds and takes 2 for 1
        "connect_timeout": str(max(2, round(source.connect_timeout / 1000))),
        "keepalives_idle": "30",
        "keepalives_interval": "10",
        "keepalives_count": "3",
    }
    if source.password is not None:
        given["password"] = source.password.get_secret_value()
    for name, file in (
        ("sslrootcert", source.tls.root_cert),
        ("sslcert", source.tls.cert),
        ("sslkey", source.tls.key),
    ):
        if file is not None:
            given[name] = str(root / file)
    return given


def place_of(source: Source) -> str:
    """Where the source is, as errors name it."""
    return f"{source.host}:{source.port}/{source.database}"


def connect(source: Source, root: Path, *, application: str = "cdc_lake", replication: bool = False) -> Session:
    """Open a connection in autocommit; raises the SourceError that fits. The caller closes it."""
    given = parameters(source, root, application)
    if replication:
        given["replication"] = "database"
    place = place_of(source)
    try:
        return psycopg.connect(conninfo.make_conninfo("", **given), autocommit=True)
    except psycopg.Error as refused:
        raise refusal(str(refused), source, place) from refused


def refusal(said: str, source: Source, place: str) -> SourceError:
    """The error for a refused connection, from what the server or libpq said."""
    exists = f'database "{source.database}" does not exist'
    kinds = ((exists, DatabaseUnknown), *_REFUSALS)
    kind: type[SourceError] = next((error for words, error in kinds if words in said), ServerUnreachable)
    hint = f'a superuser runs: ALTER ROLE "{source.user}" REPLICATION' if kind is RoleLacksReplication else None
    words = _first(said).removeprefix("connection failed: ")
    return kind(f"no connection as `{source.user}`: {words}", where=place, hint=hint)


def lost(pgconn: pq.abc.PGconn, doing: str) -> SourceError:
    """The error for a connection that broke off while `doing`."""
    said = pgconn.get_error_message().strip() or "the server closed the connection"
    return ServerUnreachable(f"the connection broke off while {doing}: {_first(said)}")


@contextmanager
def named(doing: str) -> Iterator[None]:
    """Give the errors of statements inside their name: `doing` says what they were for."""
    try:
        yield
    except psycopg.Error as refused:
        raise statement_error(refused.sqlstate, _primary(refused), doing) from refused


def statement_error(sqlstate: str | None, said: str, doing: str) -> SourceError:
    """The error for a statement the server refused (PostgreSQL docs, appendix A: error codes)."""
    kind: type[SourceError]
    match sqlstate:
        case None | "57P01" | "57P02" | "57P03" | "08006" | "08003" | "08001":
            kind = ServerUnreachable
        case "42501":
            kind = RoleLacksReplication if "replication" in said.lower() else SourcePermission
        case "53300":
            kind = ServerBusy
        case "53400":
            kind = NoFreeSlot
        case "55006":
            kind = SlotActive
        case "42710" if "replication slot" in said:  # another receiver is just making it, or its end goes unnoticed
            kind = SlotActive
        case "42704" if "replication slot" in said:
            kind = SlotMissing
        case "42704" if "publication" in said:
            kind = PublicationMissing
        case "55000" if "wal_level" in said:
            kind = ServerSettings
        case _:
            kind = QueryRefused
    state = f" ({sqlstate})" if sqlstate else ""
    return kind(f"{doing}: {_first(said)}{state}")


def command(pgconn: pq.abc.PGconn, text: str, doing: str) -> list[dict[str, str | None]]:
    """Run one replication command (simple protocol, no parameters); rows as name → text. Raises SourceError."""
    result = pgconn.exec_(text.encode())
    if result.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        names = [(result.fname(at) or b"").decode() for at in range(result.nfields)]
        return [
            {name: _text(result.get_value(row, at)) for at, name in enumerate(names)} for row in range(result.ntuples)
        ]
    if result.status == pq.ExecStatus.COPY_BOTH:
        return []
    raise result_error(result, pgconn, doing)


def result_error(result: pq.abc.PGresult, pgconn: pq.abc.PGconn, doing: str) -> SourceError:
    """The error that a failed result of a replication connection stands for."""
    state = _text(result.error_field(pq.DiagnosticField.SQLSTATE))
    if state is None:
        return lost(pgconn, doing)
    return statement_error(state, _text(result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)) or "", doing)


def identifier(name: str) -> str:
    """A name as an SQL identifier, always in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as an SQL string constant, for the commands that take no parameters."""
    quoted = "'" + text.replace("'", "''").replace("\\", "\\\\") + "'"
    return f" E{quoted}" if "\\" in text else quoted


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


def _primary(refused: psycopg.Error) -> str:
    """The server's primary message: its detail may hold row values."""
    return refused.diag.message_primary or str(refused)


def _first(said: str) -> str:
    lines = said.strip().splitlines()
    return lines[0] if lines else ""
