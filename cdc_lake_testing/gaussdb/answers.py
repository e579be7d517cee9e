"""Answers from a live PostgreSQL: passes the SQL of a session on, with additions that only the family has.

Each client session has its own connection to PostgreSQL, so transactions, snapshots, COPY and settings are real. Facts
about the server (version, settings, slots) come from the test server, rows and catalogs from PostgreSQL. Not supported:
several statements in one query if one of them needs something of the family, and COPY FROM STDIN.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from cdc_lake.model.position import Lsn
from cdc_lake.source.postgres.snapshot_visibility import SnapshotPredicate
from cdc_lake.source.sql_text import literal
from cdc_lake_testing.gaussdb.answers_catalog import ShownCatalog
from cdc_lake_testing.gaussdb.answers_relay import Relay
from cdc_lake_testing.gaussdb.answers_settings import SessionSettings
from cdc_lake_testing.gaussdb.answers_sql import Function, NotConstant, Rows, call_of, with_calls, with_views
from cdc_lake_testing.gaussdb.live import LivePostgres
from cdc_lake_testing.gaussdb.live_order import SnapshotPassed
from cdc_lake_testing.gaussdb.slot_functions import (
    FunctionError,
    Table,
    advance_slot,
    create_slot,
    drop_slot,
    read_changes,
    slots_view,
)
from cdc_lake_testing.gaussdb.sql import Answer, Exported, Failed, ResultSet, SqlSession

_BEGIN: Final = re.compile(r"\s*(BEGIN|START\s+TRANSACTION)\b", re.IGNORECASE)

_TYPES: Final = {16: "bool", 19: "name", 25: "text", 26: "oid", 28: "xid", 2278: "text"}
"""SQL types by OID, of what functions and views of slots bring; void is shown as empty text."""

_TAKE: Final = "SELECT pg_export_snapshot(), pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text"
_REPEATABLE: Final = "BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"


@dataclass(slots=True)
class _Own:
    """What is kept of a session: its connection, the one that holds an exported snapshot, how its transaction began."""

    relay: Relay
    settings: SessionSettings
    exporter: Relay | None = None
    began: str | None = None


class LiveAnswers:
    """Implements `testing.gaussdb.sql.SqlAnswers` over a `LivePostgres`; its sessions have `dsn` in PostgreSQL."""

    def __init__(self, live: LivePostgres, dsn: str) -> None:
        self._live = live
        self._dsn = dsn
        self._catalog = ShownCatalog(live.keyless)

    def answer(self, sql: str, session: SqlSession) -> Sequence[Answer]:
        """See SqlAnswers."""
        own = self._own(session)
        if isinstance(own, Failed):
            return [own]
        self._release(own)
        if _BEGIN.match(sql):
            own.began = sql
        try:
            given = own.settings.answer(sql) or self._polled(sql, session)
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
        settings = SessionSettings(session)
        own = _Own(Relay(self._dsn, session), settings)
        session.own["live"] = own
        for statement in settings.startup():
            own.relay.run(statement)
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

        def take() -> SnapshotPredicate:
            nonlocal name
            if name and began is not None:
                relay.run("ROLLBACK")
                relay.run(began)
            ((taken, snapshot, position),) = relay.rows(_TAKE)
            assert taken is not None
            assert snapshot is not None
            assert position is not None
            name = taken
            return SnapshotPredicate.parse(snapshot, Lsn.parse(position).value)

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
            value = own.settings.value(name)
            if value is None:
                value = own.relay.rows(f"SELECT pg_catalog.current_setting({literal(name)}, true)")[0][0]
            return Rows({"current_setting": "text"}, [[value]])

        functions: dict[str, Function] = {
            "version": lambda _: Rows({"version": "text"}, [[server.version_text]]),
            "getdatabaseencoding": lambda _: Rows({"getdatabaseencoding": "name"}, [[server.encoding]]),
            "pg_is_in_recovery": lambda _: Rows({"pg_is_in_recovery": "bool"}, [["t" if server.in_recovery else "f"]]),
            "pg_current_xlog_location": lambda _: self._location("pg_current_xlog_location"),
            "pg_current_xlog_insert_location": lambda _: self._location("pg_current_xlog_insert_location"),
            "txid_current": lambda _: Rows({"txid_current": "int8"}, [[str(self._live.beat())]]),
            "current_setting": setting,
            **self._slot_functions(session),
        }
        if server.csn_export:  # otherwise PostgreSQL says that there is no such function
            functions["pg_export_snapshot_and_csn"] = export
        views = {
            "pg_replication_slots": lambda: _rows(slots_view(session)).query(),
            "pg_stat_replication": lambda: _senders(session).query(),
            "pg_settings": own.settings.view,
            **self._catalog.views(server.compatibility, own.relay),
        }
        return with_views(with_calls(sql, functions), views)

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
            "pg_control_system": lambda _: Rows({"system_identifier": "text"}, [[session.server.system]]),
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


def _senders(session: SqlSession) -> Rows:
    """The stand-in's streams; PostgreSQL's own shows the stand-in itself."""
    columns = {"pid": "int8", "usename": "name", "application_name": "text", "state": "text"}
    slots = session.server.slots.all()
    return Rows(columns, [[str(pid), session.user, slot.name, "Streaming"] for slot, pid in slots if pid is not None])


def _rows(table: Table) -> Rows:
    return Rows({column.name: _TYPES[column.type_oid] for column in table.columns}, table.rows)
