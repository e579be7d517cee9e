"""Refusals of the GaussDB family: which error it is that a server's ErrorResponse stands for, and what helps.

The family has texts of its own for mistakes that PostgreSQL does not know; what is not among them is judged as
everywhere (`source.refusals`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cdc_lake.errors import (
    AuthenticationRefused,
    DatabaseUnknown,
    DecodersExhausted,
    OptionRefused,
    OptionUnknown,
    PluginMissing,
    ReplicationPortNeeded,
    RoleLacksReplication,
    ServerBusy,
    ServerSettings,
    ServerUnreachable,
    ServicePortNeeded,
    SlotActive,
    SlotForeign,
    SlotMissing,
    SlotNameInvalid,
    SlotOfOtherDatabase,
    SourceError,
    StandbyNeeded,
    WalGone,
    WrongOutputOrder,
)
from cdc_lake.errors.root import ANEW
from cdc_lake.source.quoting import identifier
from cdc_lake.source.refusals import connection_kind, statement_kind, statement_words
from cdc_lake.source.wire.protocol import ServerMessage


@dataclass(frozen=True, slots=True)
class _Words:
    """An error the family has its own words for; `sqlstate` where the words alone are not enough."""

    pattern: re.Pattern[str]
    kind: type[SourceError]
    sqlstate: str = ""


def _words(pattern: str, kind: type[SourceError], sqlstate: str = "") -> _Words:
    return _Words(re.compile(pattern, re.IGNORECASE), kind, sqlstate)


_NO_USER = re.compile(r"\b(role|user)\b.* does(n't| not) exist", re.IGNORECASE)
"""With `dynamic-resolution: off` a name in `exclude-users` that does not exist ends decoding; no document prints the
words, so those of PostgreSQL are taken (undefined_object).
"""

_FAMILY: tuple[_Words, ...] = (
    _words(r"replication should connect HA port", ReplicationPortNeeded),
    _words(r"listen ip and port is not for the gsql client", ServicePortNeeded),
    _words(r"option \S+ = .* is unknown", OptionUnknown, "22023"),
    _words(r"output[-_ ]order", WrongOutputOrder),
    _words(r"could not parse value .* for parameter", OptionRefused, "22023"),
    _words(r"option \S+ should be", OptionRefused, "22023"),
    _Words(_NO_USER, OptionRefused, "42704"),
    _words(r'invalid value for parameter "logical_sender_timeout"', OptionRefused, "22023"),
    _words(r"could not access file", PluginMissing, "58P01"),
    _words(r"replication slot name .* (contains invalid character|is too (long|short)|is not)", SlotNameInvalid),
    _words(r"Invalid logical replication slot", SlotMissing),
    _words(r"replication slot .* already exists", SlotForeign),
    _words(r"replication slot .* was not created in this database", SlotOfOtherDatabase),
    _words(r"cannot use physical replication slot", SlotForeign),
    _words(r"WAL segment .* has already been removed", WalGone),
    _words(r"walsender closed because of role is primary", StandbyNeeded),
    _words(r"create logical decode dispatcher", DecodersExhausted),
    _words(r"standby mode doesn't support", ServerSettings),
    _words(r"unrecognized configuration parameter", ServerSettings),
    # before 5.0 the sender's timeout comes with this state, which means something else everywhere
    _words(r"timeout", ServerUnreachable, "42809"),
)

_STARTUP: dict[str, type[SourceError]] = {
    "28P01": AuthenticationRefused,
    "28000": AuthenticationRefused,
    "28P02": AuthenticationRefused,
    "3D000": DatabaseUnknown,
    "42501": RoleLacksReplication,
    "53300": ServerBusy,
    "57P03": ServerBusy,
}

_HINTS: dict[type[SourceError], str] = {
    SlotActive: "stop the other receiver; after a crash the server frees the slot within about a second to a minute",
    WalGone: f"raise max_size_for_xlog_prune on the server; then {ANEW}",
}

_SETTINGS_HINTS = (
    ("wal_level", "set wal_level = logical (gs_guc set) and restart the server"),
    ("standby mode", "point `source.host` at the primary: slots are made there"),
    ("unrecognized configuration parameter", "the server is of another product or version; report it with its version"),
)


def server_error(said: ServerMessage, doing: str, *, where: str = "", user: str = "") -> SourceError:
    """The error for a statement, a command or a stream that the server ended; `doing` says what it was for."""
    kind = _family_kind(said) or statement_kind(said.sqlstate or None, said.message, doing)
    words = statement_words(said.sqlstate or None, said.message, doing)
    return kind(words, where=where, hint=_hint(kind, said, user))


def startup_error(said: ServerMessage, *, user: str, database: str, where: str) -> SourceError:
    """The error for a connection that the server refused."""
    kind = _family_kind(said) or _STARTUP.get(said.sqlstate) or connection_kind(said.message, database)
    words = statement_words(said.sqlstate or None, said.message, f"no connection as `{user}`")
    return kind(words, where=where, hint=_hint(kind, said, user))


def _family_kind(said: ServerMessage) -> type[SourceError] | None:
    for known in _FAMILY:
        if known.sqlstate in {"", said.sqlstate} and known.pattern.search(said.message):
            return known.kind
    return None


def _hint(kind: type[SourceError], said: ServerMessage, user: str) -> str | None:
    if kind is RoleLacksReplication:
        role = identifier(user) if user else "<user>"
        return f"an administrator runs: ALTER ROLE {role} REPLICATION, or grants it gs_role_replication"
    if kind is OptionRefused and _NO_USER.search(said.message):
        return "take the name out of `exclude-users`, or leave `dynamic-resolution` on: then it counts once it exists"
    if kind is ServerSettings:
        return next((hint for words, hint in _SETTINGS_HINTS if words in said.message.lower()), None)
    return _HINTS.get(kind)
