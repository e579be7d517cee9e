"""Settings: which of them the test server answers, and which PostgreSQL keeps for the session."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from cdc_lake.source.sql_text import identifier, literal
from cdc_lake_testing.gaussdb.answers_sql import Rows
from cdc_lake_testing.gaussdb.sql import Answer, Done, ResultColumn, ResultSet, SqlSession

_SHOW: Final = re.compile(r"\s*SHOW\s+([\w.]+)\s*;?\s*", re.IGNORECASE)
_SET: Final = re.compile(r"\s*SET\s+(?:SESSION\s+|LOCAL\s+)?([a-z_]+)\s*(?:=|\bTO\b)\s*(.*?)\s*;?\s*", re.IGNORECASE)
_SECONDS: Final = re.compile(r"(\d+)s")
_GIBIBYTES: Final = re.compile(r"(\d+)GB")
_OPTION: Final = re.compile(r"(?:-c\s*|--)([\w.]+)=((?:\\.|\S)*)")

_OF_POSTGRES: Final = frozenset(
    {
        *("datestyle", "intervalstyle", "timezone", "bytea_output", "extra_float_digits", "lc_monetary"),
        *("transaction_isolation", "standard_conforming_strings", "statement_timeout"),
        *("client_encoding", "search_path", "application_name"),
    }
)
"""Settings that both have under the same name: the session's own in PostgreSQL count."""

_OF_THE_FAMILY: Final = frozenset(["session_timeout", "idle_in_transaction_session_timeout", "behavior_compat_options"])
"""Settings that a client may set, and that change nothing here."""

_NO_SETTINGS: Final = frozenset(["user", "database", "replication", "options", "client_encoding", "application_name"])
_LISTED: Final = (
    *("wal_level", "max_replication_slots", "max_wal_senders", "enable_thread_pool", "server_version"),
    *("server_encoding", "sql_compatibility", "enable_slot_log", "logical_sender_timeout", "wal_sender_timeout"),
    "max_process_memory",
)
"""What pg_settings shows of the stand-in."""


class SessionSettings:
    """The settings of one session, beside those that its connection to PostgreSQL has."""

    def __init__(self, session: SqlSession) -> None:
        self._session = session
        self._own: dict[str, str] = {}

    def startup(self) -> Iterator[str]:
        """Statements that set what the client asked for at its start."""
        asked = {name.lower(): value for name, value in self._session.parameters.items()}
        for name, value in _OPTION.findall(asked.get("options", "")):
            asked[name.lower()] = re.sub(r"\\(.)", r"\1", value)
        yield "SET client_encoding = 'UTF8'"
        for name, value in asked.items():
            if name in _NO_SETTINGS:
                continue
            if name in _OF_POSTGRES:
                yield f"SET {identifier(name)} = {literal(value)}"
            else:
                self._own[name] = value

    def value(self, name: str) -> str | None:
        """A setting that is not PostgreSQL's to answer; None where it is."""
        name = name.lower()
        return None if name in _OF_POSTGRES else self._own.get(name, self._session.server.setting(name))

    def answer(self, sql: str) -> Answer | None:
        """The answer to SHOW and SET of a setting of the family; None for any other statement."""
        if (show := _SHOW.fullmatch(sql)) is not None:
            value = self.value(show[1])
            return None if value is None else ResultSet([ResultColumn(show[1].lower())], [[value]], "SHOW")
        if (given := _SET.fullmatch(sql)) is None:
            return None
        name = given[1].lower()
        if name in _OF_POSTGRES or (name not in _OF_THE_FAMILY and self.value(name) is None):
            return None
        self._own[name] = given[2].strip("'")
        return Done("SET")

    def view(self) -> str:
        """A query with the rows of `pg_settings`."""
        given = Rows(
            {"name": "text", "setting": "text", "unit": "text"},
            [[name, *_in_units(self.value(name))] for name in _LISTED],
        )
        listed = ", ".join(map(literal, _LISTED))
        rest = f"SELECT name, setting, unit FROM pg_catalog.pg_settings WHERE name NOT IN ({listed})"
        return f"{given.query()} UNION ALL {rest}"


def _in_units(shown: str | None) -> tuple[str | None, str | None]:
    """A setting as pg_settings has it, with its unit, from what SHOW prints."""
    if shown is not None and (seconds := _SECONDS.fullmatch(shown)) is not None:
        return str(int(seconds[1]) * 1000), "ms"
    if shown is not None and (gibibytes := _GIBIBYTES.fullmatch(shown)) is not None:
        return str(int(gibibytes[1]) << 20), "kB"
    return shown, None
