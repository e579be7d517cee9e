"""Classifies the errors of servers by SQLSTATE or words.

The same for every server and driver. A refused connection often has no SQLSTATE (libpq provides none), so these are
distinguished by the server's English messages.
"""

from __future__ import annotations

from cdc_lake import errors
from cdc_lake.source.sql_text import identifier

# libpq takes the family's code 10 for SASL; PostgreSQL itself always offers a mechanism known to libpq
_OF_FAMILY = ("none of the server's SASL authentication mechanisms are supported", "HA port in thread_pool")

_CONNECTING: tuple[tuple[str, type[errors.SourceError]], ...] = (
    ("password authentication failed", errors.AuthenticationRefused),
    ("no password supplied", errors.AuthenticationRefused),
    ("authentication failed", errors.AuthenticationRefused),
    ("_hba.conf entry", errors.AuthenticationRefused),  # of pg_hba.conf, of qhb_hba.conf
    ("_hba.conf rejects", errors.AuthenticationRefused),
    ("is not permitted to log in", errors.AuthenticationRefused),
    ("authentication method", errors.AuthenticationRefused),
    ("permission denied for database", errors.AuthenticationRefused),
    ("REPLICATION attribute", errors.RoleLacksReplication),
    ("must be superuser or replication role", errors.RoleLacksReplication),
    ("remaining connection slots", errors.ServerBusy),
    ("too many clients", errors.ServerBusy),
    ("too many connections", errors.ServerBusy),
    ("exceeds max_wal_senders", errors.ServerBusy),
    ('exceeds "max_wal_senders"', errors.ServerBusy),
    ("is starting up", errors.ServerBusy),
    ("is shutting down", errors.ServerBusy),
    ("in recovery mode", errors.ServerBusy),
    ("not yet accepting connections", errors.ServerBusy),
    ("unrecognized configuration parameter", errors.ServerSettings),
    ("unsupported startup parameter", errors.ServerSettings),  # of a pooler
    *((words, errors.ServerSettings) for words in _OF_FAMILY),
    ("SSL", errors.TlsRefused),
    ("certificate", errors.TlsRefused),
    ("private key file", errors.TlsRefused),
    ("channel binding", errors.TlsRefused),
    ("definition of service", errors.AuthenticationRefused),
    ("root.crt", errors.TlsRefused),
)
"""Words of the server or libpq for a refused connection, in this order."""

_WANTING: dict[str, tuple[tuple[str, type[errors.SourceError]], ...]] = {
    "42704": (("replication slot", errors.SlotMissing), ("publication", errors.PublicationMissing)),
    "55000": (
        ("wal_level", errors.ServerSettings),
        ("cannot read from logical replication slot", errors.SlotInvalidated),  # before PostgreSQL 16
        ("can no longer", errors.SlotInvalidated),
        ("cannot be advanced", errors.SlotInvalidated),  # before 18
    ),
    "58P01": (("WAL segment", errors.WalGone), ("could not access file", errors.PluginMissing)),
}
"""What is missing at the server, by SQLSTATE and words; the reason of an invalidated slot is only in the detail."""


def connection_kind(message: str, database: str) -> type[errors.SourceError]:
    """The error class of a refused connection, from the words of the server or the driver."""
    kinds = ((f'database "{database}" does not exist', errors.DatabaseUnknown), *_CONNECTING)
    return next((error for words, error in kinds if words in message), errors.ServerUnreachable)


def connection_error(message: str, *, user: str, database: str, place: str) -> errors.SourceError:
    """The error for a refused connection, with its message and remedy."""
    kind = connection_kind(message, database)
    hint = (
        f"run as a superuser: ALTER ROLE {identifier(user)} REPLICATION"
        if kind is errors.RoleLacksReplication
        else None
    )
    if "too many connections for role" in message:
        limit = f"ALTER ROLE {identifier(user)} CONNECTION LIMIT -1"
        hint = f"end other sessions of this role, or run as a superuser: {limit}"
    if "too many connections for database" in message:
        limit = f"ALTER DATABASE {identifier(database)} CONNECTION LIMIT -1"
        hint = f"end other sessions of this database, or run as a superuser: {limit}"
    if any(words in message for words in _OF_FAMILY):
        hint = "the server belongs to the GaussDB family: set `source.type: gaussdb`, `opengauss` or `mogdb`"
    words = first_line(message).removeprefix("connection failed: ")
    return kind(f"no connection as `{user}`: {words}", where=place, hint=hint)


_BY_STATE: dict[str, type[errors.SourceError]] = {
    "53300": errors.ServerBusy,
    "53400": errors.NoFreeSlot,
    "55006": errors.SlotActive,
    "55P03": errors.TableLocked,
}
"""SQLSTATEs whose meaning does not depend on the words."""


_DECODING = ("reading the stream", "reading slot")
"""Purposes of statements in which the server decodes its WAL."""


def statement_kind(sqlstate: str | None, message: str, doing: str) -> type[errors.SourceError]:
    """The error class of a refused statement (PostgreSQL docs, appendix A: error codes)."""
    kind: type[errors.SourceError]
    match sqlstate:
        case "XX000" if doing.startswith(_DECODING):
            kind = errors.LogUndecodable
        case None | "57P01" | "57P02" | "57P03" | "08006" | "08003" | "08001":
            kind = errors.ServerUnreachable
        case "42501" if "replication" in message.lower() and not message.startswith("permission denied for "):
            kind = errors.RoleLacksReplication
        case "42501" if "row-level security policy" in message:
            kind = errors.RowsHidden
        case "42501":  # also for an object with `replication` in its name
            kind = errors.SourcePermission
        case "42710" if "replication slot" in message:  # another receiver is creating it, or has died unnoticed
            kind = errors.SlotActive
        case "42704" | "55000" | "58P01":
            kind = next((error for words, error in _WANTING[sqlstate] if words in message), errors.QueryRefused)
        case _:
            kind = _BY_STATE.get(sqlstate, errors.QueryRefused)
    return kind


def statement_error(sqlstate: str | None, message: str, doing: str) -> errors.SourceError:
    """The error for a refused statement; `doing` describes its purpose."""
    return statement_kind(sqlstate, message, doing)(statement_words(sqlstate, message, doing))


def statement_words(sqlstate: str | None, message: str, doing: str) -> str:
    """The message of such an error: the purpose, the server's first line, the SQLSTATE."""
    state = f" ({sqlstate})" if sqlstate else ""
    return f"{doing}: {first_line(message)}{state}"


def first_line(message: str) -> str:
    """The first line of a message."""
    lines = message.strip().splitlines()
    return lines[0] if lines else ""
