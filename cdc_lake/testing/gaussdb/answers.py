"""Answers of a live PostgreSQL: the SQL of a family session, passed through, with what only the family has put in.

A client session has a connection of its own to PostgreSQL, so transactions, snapshots, COPY and settings are real ones.
Facts of the server (version, settings, slots) come from the stand-in, rows and catalogs from PostgreSQL. Left out:
several statements in one query where one of them needs something of the family, and COPY FROM STDIN.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cdc_lake.model.position import Lsn
from cdc_lake.source.quoting import identifier, literal
from cdc_lake.source.visible import Visible
from cdc_lake.testing.gaussdb.answers_relay import Relay
from cdc_lake.testing.gaussdb.answers_sql import Function, NotConstant, Rows, call_of, with_calls, with_views
from cdc_lake.testing.gaussdb.live import LivePostgres
from cdc_lake.testing.gaussdb.live_order import SnapshotPassed
from cdc_lake.testing.gaussdb.live_rows import SCHEMA
from cdc_lake.testing.gaussdb.slot_functions import (
    FunctionError,
    Table,
    advance_slot,
    create_slot,
    drop_slot,
    read_changes,
    slots_view,
)
from cdc_lake.testing.gaussdb.sql import Answer, Done, Exported, Failed, ResultColumn, ResultSet, SqlSession

_SHOW: Final = re.compile(r"\s*SHOW\s+([\w.]+)\s*;?\s*", re.IGNORECASE)
_SET: Final = re.compile(r"\s*SET\s+(?:SESSION\s+|LOCAL\s+)?([a-z_]+)\s*(?:=|\bTO\b)\s*(.*?)\s*;?\s*", re.IGNORECASE)
_BEGIN: Final = re.compile(r"\s*(BEGIN|START\s+TRANSACTION)\b", re.IGNORECASE)
_SECONDS: Final = re.compile(r"(\d+)s")
_OPTION: Final = re.compile(r"(?:-c\s*|--)([\w.]+)=((?:\\.|\S)*)")

_OF_THE_SESSION: Final = frozenset(
    {
        *("datestyle", "intervalstyle", "timezone", "bytea_output", "extra_float_digits", "lc_monetary"),
        *("transaction_isolation", "standard_conforming_strings", "statement_timeout"),
        *("client_encoding", "search_path", "application_name"),
    }
)
"""Settings that PostgreSQL keeps for the session, under the same names."""

_NOT_SETTINGS: Final = frozenset(["user", "database", "replication", "options", "client_encoding", "application_name"])

_TYPES: Final = {16: "bool", 19: "name", 25: "text", 26: "oid", 28: "xid", 2278: "text"}
"""SQL types by OID, of what functions and views of slots bring; void is shown as empty text."""

_TAKE: Final = "SELECT pg_export_snapshot(), pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text"
_REPEATABLE: Final = "BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"


@dataclass(slots=True)
class _Own:
    """What is kept of a session: its connection, the one that holds an exported snapshot, how its transaction began."""

    relay: Relay
    settings: dict[str, str]
    exporter: Relay | None = None
    began: str | None = None


class LiveAnswers:
    """Implements `sql.SqlAnswers` over a `LivePostgres`; `dsn` is whom the sessions are in PostgreSQL."""

    def __init__(self, live: LivePostgres, dsn: str) -> None:
        self._live = live
        self._dsn = dsn
        self._columns: list[str] = []

    def answer(self, sql: str, session: SqlSession) -> Sequence[Answer]:
        """See SqlAnswers."""
        own = self._own(session)
        if isinstance(own, Failed):
            return [own]
        self._release(own)
        if _BEGIN.match(sql):
            own.began = sql
        try:
            given = _setting_statement(sql, own, session) or self._polled(sql, session)
            return own.relay.run(self._rewritten(sql, session, own)) if given is None else [given]
        except FunctionError as refused:
            return [refused.failed]
        except NotConstant as unknown:
            return [Failed("0A000", f"the stand-in takes constants only here: {unknown}")]
        except SnapshotPassed:
            return [Failed("55000", "the snapshot of this transaction is too old to be given a CSN: begin again")]
        except RuntimeError as failed:
            return [Failed("XX000", str(failed))]

    def export(self, session: SqlSession, *, use: bool) -> Exported:
        """See SqlAnswers. The snapshot lives until the session's next statement, or its transaction's end (`use`)."""
        own = self._own(session)
        if isinstance(own, Failed):
            raise ConnectionError(own.message)
        self._release(own)
        if use:
            return self._exported(own.relay, began=own.began, aligned=True)
        own.exporter = Relay(self._dsn, replace(session, own={}))
        own.exporter.run(_REPEATABLE)
        return self._exported(own.exporter, began=_REPEATABLE, aligned=True)

    def end(self, session: SqlSession) -> None:
        """See SqlAnswers."""
        own = session.own.pop("live", None)
        if isinstance(own, _Own):
            self._release(own)
            own.relay.close()

    # ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────

    def _own(self, session: SqlSession) -> _Own | Failed:
        own = session.own.get("live")
        if isinstance(own, _Own):
            return own
        if session.database != self._live.database:
            return Failed("3D000", f'database "{session.database}" does not exist', severity="FATAL")
        own = _Own(Relay(self._dsn, session), {})
        session.own["live"] = own
        parameters = {k.lower(): v for k, v in session.parameters.items() if k.lower() not in _NOT_SETTINGS}
        for name, value in _OPTION.findall(session.parameters.get("options", "")):
            parameters[name.lower()] = re.sub(r"\\(.)", r"\1", value)
        own.relay.run("SET client_encoding = 'UTF8'")
        for name, value in parameters.items():
            if name in _OF_THE_SESSION:
                own.relay.run(f"SET {identifier(name)} = {literal(value)}")
            else:
                own.settings[name] = value
        return own

    @staticmethod
    def _release(own: _Own) -> None:
        if own.exporter is not None:
            own.exporter.run("ROLLBACK")  # the server would notice a closed connection a moment later only
            own.exporter.close()
            own.exporter = None

    # ── snapshots ────────────────────────────────────────────────────────────────────────────────────────────

    def _exported(self, relay: Relay, *, began: str | None, aligned: bool) -> Exported:
        """Export the snapshot of the relay's transaction, which may be begun again while it has read nothing."""
        name = ""

        def take() -> Visible:
            nonlocal name
            if name and began is not None:
                relay.run("ROLLBACK")
                relay.run(began)
            ((taken, snapshot, position),) = relay.rows(_TAKE)
            assert taken is not None
            assert snapshot is not None
            assert position is not None
            name = taken
            return Visible.parse(snapshot, Lsn.parse(position).value)

        point = self._live.snapshot(take, aligned=aligned and began is not None)
        return Exported(name, point.csn, point.lsn)

    # ── statements ───────────────────────────────────────────────────────────────────────────────────────────

    def _rewritten(self, sql: str, session: SqlSession, own: _Own) -> str:
        server = session.server

        def export(_: list[str | None]) -> Rows:
            exported = self._exported(own.relay, began=None, aligned=False)
            return Rows({"snapshot": "text", "csn": "text"}, [[exported.name, f"{exported.csn:X}"]])

        def setting(arguments: list[str | None]) -> Rows:
            name = str(arguments[0])
            value = _setting(name, own, session)
            if value is None:
                value = own.relay.rows(f"SELECT pg_catalog.current_setting({literal(name)}, true)")[0][0]
            return Rows({"current_setting": "text"}, [[value]])

        functions = {
            "version": lambda _: Rows({"version": "text"}, [[server.version_text]]),
            "getdatabaseencoding": lambda _: Rows({"getdatabaseencoding": "name"}, [[server.encoding]]),
            "pg_is_in_recovery": lambda _: Rows({"pg_is_in_recovery": "bool"}, [["t" if server.in_recovery else "f"]]),
            "pg_current_xlog_location": lambda _: self._location("pg_current_xlog_location"),
            "pg_current_xlog_insert_location": lambda _: self._location("pg_current_xlog_insert_location"),
            "pg_export_snapshot_and_csn": export,
            "current_setting": setting,
            **self._slot_functions(session),
        }
        return with_views(with_calls(sql, functions), self._views(session, own))

    def _slot_functions(self, session: SqlSession) -> dict[str, Function]:
        def advance(arguments: list[str | None]) -> Rows:
            self._live.settled()
            return _rows(advance_slot(arguments, session))

        def next_csn(_: list[str | None]) -> Rows:
            self._live.settled()
            columns = {"node_name": "text", "next_xid": "xid", "next_csn": "xid"}
            return Rows(columns, [["standin", "0", str(session.server.ledger.next_csn)]])

        return {
            "pg_create_logical_replication_slot": lambda given: _rows(create_slot(given, session, self)),
            "pg_drop_replication_slot": lambda given: _rows(drop_slot(given, session)),
            "pg_replication_slot_advance": advance,
            "pg_get_replication_slots": lambda _: _rows(slots_view(session)),
            "gs_get_next_xid_csn": next_csn,
        }

    def _polled(self, sql: str, session: SqlSession) -> Answer | None:
        """The answer to a statement that polls a slot; what stands around the call is ignored."""
        call = call_of(sql, [f"pg_logical_slot_{verb}_changes" for verb in ("peek", "get")])
        if call is None:
            return None
        self._live.settled()
        table = read_changes(call[1], session, consume="get" in call[0])
        return ResultSet(table.columns, table.rows)

    def _location(self, name: str) -> Rows:
        return Rows({name: "text"}, [[str(Lsn(self._live.settled()))]])

    def _views(self, session: SqlSession, own: _Own) -> Mapping[str, Callable[[], str]]:
        server = session.server
        hidden = f"(SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = {literal(SCHEMA)})"

        def settings() -> str:
            names = ("wal_level", "max_replication_slots", "max_wal_senders", "enable_thread_pool", "server_version")
            more = (
                "sql_compatibility",
                "logical_sender_timeout",
                "wal_sender_timeout",
                "enable_slot_log",
                "server_encoding",
            )
            given = Rows(
                {"name": "text", "setting": "text", "unit": "text"},
                [[name, *_in_units(_setting(name, own, session))] for name in (*names, *more)],
            )
            listed = ", ".join(map(literal, (*names, *more)))
            rest = f"SELECT name, setting, unit FROM pg_catalog.pg_settings WHERE name NOT IN ({listed})"
            return f"{given.query()} UNION ALL {rest}"

        return {
            "pg_replication_slots": lambda: _rows(slots_view(session)).query(),
            "pg_database": lambda: (
                f"SELECT d.*, {literal(server.compatibility)}::name AS datcompatibility FROM pg_catalog.pg_database d"
            ),
            "pg_settings": settings,
            "pg_namespace": lambda: f"SELECT * FROM pg_catalog.pg_namespace WHERE nspname <> {literal(SCHEMA)}",
            "pg_class": lambda: (
                f"SELECT {', '.join(self._class_columns(own))} FROM pg_catalog.pg_class AS c "
                f"WHERE NOT relispartition AND relnamespace <> ALL (ARRAY{hidden})"
            ),
        }

    def _class_columns(self, own: _Own) -> list[str]:
        """Columns of pg_class, partitioned tables shown as the family shows them, `keyless` ones without identity."""
        if not self._columns:
            found = own.relay.rows(
                "SELECT attname FROM pg_catalog.pg_attribute WHERE attrelid = 'pg_catalog.pg_class'::regclass "
                "AND attnum > 0 ORDER BY attnum"
            )
            self._columns = [f"c.{name}" for (name,) in found]
        keyless = ", ".join(literal(f"{identifier(t.schema)}.{identifier(t.name)}") for t in self._live.keyless)
        shown = {
            "c.relkind": "CASE c.relkind WHEN 'p' THEN 'r' ELSE c.relkind END::\"char\" AS relkind",
            "c.relreplident": f"CASE WHEN c.oid = ANY (ARRAY[{keyless}]::regclass[]) THEN 'n' "
            'ELSE c.relreplident END::"char" AS relreplident',
        }
        parts = "CASE c.relkind WHEN 'p' THEN 'p' ELSE 'n' END::\"char\" AS parttype"
        return [*(shown.get(name, name) for name in self._columns), parts]


def _rows(table: Table) -> Rows:
    return Rows({column.name: _TYPES[column.type_oid] for column in table.columns}, table.rows)


def _setting(name: str, own: _Own, session: SqlSession) -> str | None:
    """A setting that is not PostgreSQL's to answer."""
    if name.lower() in _OF_THE_SESSION:
        return None
    return own.settings.get(name.lower(), session.server.setting(name))


def _in_units(shown: str | None) -> tuple[str | None, str | None]:
    """A setting as pg_settings has it, with its unit, from what SHOW prints."""
    if shown is not None and (seconds := _SECONDS.fullmatch(shown)) is not None:
        return str(int(seconds[1]) * 1000), "ms"
    return shown, None


def _setting_statement(sql: str, own: _Own, session: SqlSession) -> Answer | None:
    """The answer to SHOW and SET of a setting of the family; None for any other statement."""
    if (show := _SHOW.fullmatch(sql)) is not None:
        value = _setting(show[1], own, session)
        return None if value is None else ResultSet([ResultColumn(show[1].lower())], [[value]], "SHOW")
    if (given := _SET.fullmatch(sql)) is not None:
        name = given[1].lower()
        known = name in own.settings or session.server.setting(name) is not None
        if name not in _OF_THE_SESSION and (known or name in _FAMILY_ONLY):
            own.settings[name] = given[2].strip("'")
            return Done("SET")
    return None


_FAMILY_ONLY: Final = frozenset(["session_timeout", "idle_in_transaction_session_timeout", "behavior_compat_options"])
