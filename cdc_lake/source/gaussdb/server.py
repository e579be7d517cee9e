"""A server of the GaussDB family: which one it is, how it is set up, and where it is now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from cdc_lake.errors import NoPrimary, QueryRefused, ServerSettings, SourcePermission, StreamProtocol
from cdc_lake.model.position import Csn, Lsn
from cdc_lake.source.gaussdb.version import FamilyVersion, parse_version
from cdc_lake.source.wire.session import WireSession

_CSN_WRAP = 1 << 32  # pg_export_snapshot_and_csn prints the lower 32 bits only
_MILLISECONDS = 1000
_DOING = "identifying the server"
_SETTINGS = (
    *("wal_level", "enable_thread_pool", "logical_sender_timeout", "wal_sender_timeout"),
    *("max_replication_slots", "max_wal_senders", "enable_slot_log", "max_process_memory"),
)


@dataclass(frozen=True, slots=True)
class FamilySettings:
    """What a server says of itself by SQL, as far as reading its changes depends on it.

    `encoding` is the database's, as the server names it, `compatibility` the database's A, B, C or PG.
    `sender_timeout` is in seconds, 0 = never. `slots_logged`: standbys have the slots too.
    `process_memory`: `max_process_memory` in bytes, None if it is not shown.
    """

    version: FamilyVersion
    database: str
    encoding: str
    compatibility: str
    in_recovery: bool
    wal_level: str
    thread_pool: bool
    sender_timeout: float
    slots_max: int
    senders_max: int
    slots_logged: bool
    process_memory: int | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class FamilyServerFacts(FamilySettings):
    """Who the server is as well (`IDENTIFY_SYSTEM`).

    `timeline` is 0 where only SQL was asked. `flushed` is where its log ended when asked. `known_as`: what stood for
    the system identifier in streams of version 0.2 that were read by SQL functions.
    """

    system: str
    timeline: int
    flushed: Lsn
    known_as: str = ""


@dataclass(frozen=True, slots=True)
class CsnSnapshot:
    """An exported snapshot that holds exactly the transactions with a CSN below `csn`.

    Other sessions take it over by `SET TRANSACTION SNAPSHOT` until the exporting transaction ends.
    """

    name: str
    csn: Csn


def identify(replication: WireSession) -> FamilyServerFacts:
    """Ask a replication connection who the server is; it takes plain SQL as well. Raises SourceError."""
    settings = read_settings(replication)
    rows = replication.query("IDENTIFY_SYSTEM", doing=_DOING).records()
    if len(rows) != 1:
        raise StreamProtocol(f"IDENTIFY_SYSTEM answered {len(rows)} rows", where=replication.place)
    (row,) = rows
    return FamilyServerFacts(
        **_values(settings),
        system=row.get("systemid") or "",
        timeline=int(row.get("timeline") or 0),
        flushed=Lsn.parse(row.get("xlogpos") or ""),
    )


def identify_by_sql(session: WireSession) -> FamilyServerFacts:
    """The same without a replication connection. Raises SourceError.

    The database's OID stands for the system where the server does not tell its identifier by SQL: two servers may have
    the same.
    """
    oid = f"oid{_one(session, 'SELECT oid FROM pg_database WHERE datname = current_database()', _DOING)[0]}"
    return FamilyServerFacts(
        **_values(read_settings(session)),
        system=_system_identifier(session) or oid,
        timeline=0,
        flushed=current_lsn(session),
        known_as=oid,
    )


def _system_identifier(session: WireSession) -> str | None:
    """The same number that IDENTIFY_SYSTEM gives; None where there is no such function, or not for everybody."""
    try:
        return _one(session, "SELECT system_identifier FROM pg_control_system()", _DOING)[0]
    except (QueryRefused, SourcePermission):
        return None


def read_settings(session: WireSession) -> FamilySettings:
    """What the server says of itself by SQL. Raises SourceError."""
    version = parse_version(_one(session, "SELECT version()", _DOING)[0] or "")
    names = ", ".join(f"'{name}'" for name in _SETTINGS)
    sql = f"SELECT name, setting FROM pg_settings WHERE name IN ({names})"
    settings = {row[0]: row[1] or "" for row in session.query(sql, doing="reading the server's settings").rows}
    database, encoding, compatibility = _one(
        session,
        "SELECT datname, getdatabaseencoding(), datcompatibility FROM pg_database WHERE datname = current_database()",
        "reading the database's encoding",
    )
    timeout = settings.get("logical_sender_timeout") or settings.get("wal_sender_timeout") or "0"
    return FamilySettings(
        version=version,
        database=database or session.target.database,
        encoding=encoding or "",
        compatibility=compatibility or "",
        in_recovery=in_recovery(session),
        wal_level=settings.get("wal_level", ""),
        thread_pool=settings.get("enable_thread_pool", "off") == "on",
        sender_timeout=int(timeout) / _MILLISECONDS,
        slots_max=int(settings.get("max_replication_slots") or 0),
        senders_max=int(settings.get("max_wal_senders") or 0),
        slots_logged=settings.get("enable_slot_log") == "on",
        process_memory=_bytes_of_kibibytes(settings.get("max_process_memory", "")),
    )


def _bytes_of_kibibytes(setting: str) -> int | None:
    """Bytes of a setting that pg_settings shows in kB, its unit; None if the server does not show it."""
    return int(setting) * 1024 if setting.isdigit() else None


def _values(settings: FamilySettings) -> dict[str, Any]:
    return {field.name: getattr(settings, field.name) for field in fields(settings)}


def check_server(facts: FamilyServerFacts, place: str, *, standby: bool = False) -> None:
    """Raise ServerSettings or NoPrimary where it cannot be decoded from; `standby`: decoding on one is wanted."""
    if facts.in_recovery and not standby:
        raise NoPrimary("the server is a standby", where=place)
    if facts.wal_level != "logical":
        words = f"the server runs with wal_level = {facts.wal_level}; logical decoding needs logical"
        raise ServerSettings(words, where=place, hint="set wal_level = logical (gs_guc set) and restart the server")


def in_recovery(session: WireSession) -> bool:
    """True on a standby."""
    return _one(session, "SELECT pg_is_in_recovery()", "asking for the server's role")[0] == "t"


def current_lsn(session: WireSession) -> Lsn:
    """Where the server's log ends now; of a primary. Raises SourceError."""
    row = _one(session, "SELECT pg_current_xlog_location()", "asking for the end of the log")
    return Lsn.parse(row[0] or "")


def snapshot_and_csn(session: WireSession, locked: Sequence[str] = ()) -> CsnSnapshot:
    """Begin a REPEATABLE READ transaction and export its snapshot, with its CSN; the caller ends the transaction.

    Tables named in `locked`, as SQL has them, are locked against TRUNCATE and rewrites before the snapshot is taken.
    Not for a replication connection. Raises SourceError.
    """
    doing = "exporting a snapshot"
    near = _next_csn(session)
    session.query("BEGIN ISOLATION LEVEL REPEATABLE READ", doing=doing)
    if locked:
        session.query(f"LOCK TABLE {', '.join(locked)} IN ACCESS SHARE MODE", doing="locking the tables")
    name, printed = _one(session, "SELECT * FROM pg_export_snapshot_and_csn()", doing)
    return CsnSnapshot(name or "", Csn(_whole_csn(int(printed or "", 16), near)))


def _next_csn(session: WireSession) -> int | None:
    """About the CSN that the server gives out next; None where it cannot be asked."""
    try:
        row = _one(session, "SELECT int8in(xidout(next_csn)) FROM gs_get_next_xid_csn()", "asking for the next CSN")
    except QueryRefused:
        return None  # no such function in this product: its CSN is taken as it is printed
    return int(row[0]) if row[0] else None


def _whole_csn(printed: int, near: int | None) -> int:
    """The CSN whose lower bits were printed, as the one nearest to a CSN of that time."""
    if near is None or printed >= _CSN_WRAP:
        return printed
    whole = near - near % _CSN_WRAP + printed
    candidates = (csn for csn in (whole - _CSN_WRAP, whole, whole + _CSN_WRAP) if csn >= 0)
    return min(candidates, key=lambda csn: abs(csn - near))


def _one(session: WireSession, sql: str, doing: str) -> tuple[str | None, ...]:
    rows = session.query(sql, doing=doing).rows
    if len(rows) != 1:
        raise StreamProtocol(f"{doing}: the server answered {len(rows)} rows", where=session.place)
    return rows[0]
