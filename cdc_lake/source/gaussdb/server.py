"""Identifies a GaussDB family server: product and release, settings, current position, and known limitations.

Product and release are parsed from `version()`. The limitations (what servers withhold, repeat or break, by version and
decoding mode) were recorded from openGauss 3.0.0, 5.0.3 and 6.0.2 and checked in the sources between. GaussDB's own
kernels are closed source: every limitation of the newest open source release counts as possible for them.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from cdc_lake.config.fields import Release, pad_release, parse_release
from cdc_lake.config.gaussdb_options import Mode
from cdc_lake.config.source import FamilySource
from cdc_lake.errors import NoPrimary, QueryRefused, ServerSettings, SourcePermission, StreamProtocol
from cdc_lake.model.position import Csn, Lsn
from cdc_lake.source.gaussdb.wire.protocol import WireTarget, WireTls
from cdc_lake.source.gaussdb.wire.session import WireSession

_KNOWN = re.compile(r"(openGauss|MogDB|GaussDB)(?:[ -](?:Kernel|lite))?\s+v?(\d[\w.-]*)", re.IGNORECASE)
_BASE = re.compile(r"openGauss(?:-lite)?\s+v?(\d[\w.-]*)", re.IGNORECASE)


class Product(enum.StrEnum):
    """The vendor's product."""

    OPENGAUSS = "openGauss"
    MOGDB = "MogDB"
    GAUSSDB = "GaussDB"


@dataclass(frozen=True, slots=True)
class GaussDbVersion:
    """A product and its release. `base` is the corresponding openGauss release; None for GaussDB's own kernels.

    A release candidate counts as its release.
    """

    product: Product
    release: str
    base: tuple[int, ...] | None

    def __str__(self) -> str:
        return f"{self.product} {self.release}"


def parse_version(text: str) -> GaussDbVersion:
    """Parse the answer of `version()`. Raises ServerSettings if the server is not of the family."""
    if (match := _KNOWN.search(text)) is None:
        words = (
            "the server does not belong to the GaussDB family: its version() contains none of openGauss, MogDB, GaussDB"
        )
        raise ServerSettings(words, hint="for PostgreSQL and compatible servers: `source.type: postgres` or `qhb`")
    product = next(candidate for candidate in Product if candidate.lower() == match[1].lower())
    if product is Product.GAUSSDB:
        return GaussDbVersion(product, match[2], None)
    base = _BASE.search(text)
    # MogDB has the version numbers of the underlying openGauss, and mostly does not name it
    return GaussDbVersion(product, match[2], _numbers(base[1] if base else match[2]))


def check_product(version: GaussDbVersion, stated: str, place: str) -> None:
    """Raise ServerSettings if `source.type` states another product: their option rules differ."""
    product = version.product.lower()
    if product != stated:
        text = f"the server is {version}, but `source.type` says {stated}"
        raise ServerSettings(text, where=place, hint=f"set `source.type: {product}`, or connect to the intended server")


def release_of(version: GaussDbVersion) -> Release:
    """The release that option rules compare: the underlying openGauss, or GaussDB's own."""
    return parse_release(version.release) if version.base is None else pad_release(version.base)


def _numbers(release: str) -> tuple[int, ...]:
    head = re.match(r"\d+(?:\.\d+)*", release)
    return tuple(int(part) for part in head[0].split(".")) if head else ()


_CSN_WRAP = 1 << 32  # pg_export_snapshot_and_csn prints the lower 32 bits only
_DOING = "identifying the server"
_SETTINGS = (
    *("wal_level", "enable_thread_pool", "logical_sender_timeout", "wal_sender_timeout"),
    *("max_replication_slots", "max_wal_senders", "enable_slot_log", "max_process_memory"),
)


@dataclass(frozen=True, slots=True)
class GaussDbSettings:
    """The server settings that affect reading its changes, from SQL.

    `encoding` is the database's, as the server names it, `compatibility` the database's A, B, C or PG. `sender_timeout`
    is in seconds, 0 = never. `slots_logged`: standbys have the slots too. `process_memory`: `max_process_memory` in
    bytes, None if it is not shown.
    """

    version: GaussDbVersion
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
class GaussDbServerFacts(GaussDbSettings):
    """The settings and the server's identity (`IDENTIFY_SYSTEM`).

    `timeline` is 0 if only SQL was available. `flushed` is the end of the WAL at that time. `known_as`: replaced the
    system identifier in streams of version 0.2 that were read by SQL functions.
    """

    system: str
    timeline: int
    flushed: Lsn
    known_as: str = ""


@dataclass(frozen=True, slots=True)
class CsnSnapshot:
    """An exported snapshot that contains exactly the transactions with a CSN below `csn`.

    Other sessions import it by `SET TRANSACTION SNAPSHOT` until the exporting transaction ends.
    """

    name: str
    csn: Csn


def identify(replication: WireSession) -> GaussDbServerFacts:
    """Identify the server through a replication connection, which also accepts plain SQL. Raises SourceError."""
    settings = read_settings(replication)
    rows = replication.query("IDENTIFY_SYSTEM", doing=_DOING).records()
    if len(rows) != 1:
        raise StreamProtocol(f"IDENTIFY_SYSTEM returned {len(rows)} rows", where=replication.place)
    (row,) = rows
    return GaussDbServerFacts(
        **_values(settings),
        system=row.get("systemid") or "",
        timeline=int(row.get("timeline") or 0),
        flushed=Lsn.parse(row.get("xlogpos") or ""),
    )


def identify_by_sql(session: WireSession) -> GaussDbServerFacts:
    """The same without a replication connection. Raises SourceError.

    The database's OID replaces the system identifier if SQL does not return it: two servers may have the same OID.
    """
    (number,) = query_single_row(session, "SELECT oid FROM pg_database WHERE datname = current_database()", _DOING)
    settings, oid = read_settings(session), f"oid{number}"
    try:
        (system,) = query_single_row(session, "SELECT system_identifier FROM pg_control_system()", _DOING)
    except (QueryRefused, SourcePermission):  # there is no such function, or no permission
        system = None
    return GaussDbServerFacts(
        **_values(settings), system=system or oid, timeline=0, flushed=current_lsn(session), known_as=oid
    )


def read_settings(session: WireSession) -> GaussDbSettings:
    """Read the server's settings by SQL. Raises SourceError."""
    version = parse_version(query_single_row(session, "SELECT version()", _DOING)[0] or "")
    names = ", ".join(f"'{name}'" for name in _SETTINGS)
    sql = f"SELECT name, setting FROM pg_settings WHERE name IN ({names})"
    settings = {row[0]: row[1] or "" for row in session.query(sql, doing="reading the server's settings").rows}
    database, encoding, compatibility = query_single_row(
        session,
        "SELECT datname, getdatabaseencoding(), datcompatibility FROM pg_database WHERE datname = current_database()",
        "reading the database's encoding",
    )
    timeout = settings.get("logical_sender_timeout") or settings.get("wal_sender_timeout") or "0"
    kibibytes = settings.get("max_process_memory", "")
    return GaussDbSettings(
        version=version,
        database=database or session.target.database,
        encoding=encoding or "",
        compatibility=compatibility or "",
        in_recovery=in_recovery(session),
        wal_level=settings.get("wal_level", ""),
        thread_pool=settings.get("enable_thread_pool", "off") == "on",
        sender_timeout=int(timeout) / 1000,
        slots_max=int(settings.get("max_replication_slots") or 0),
        senders_max=int(settings.get("max_wal_senders") or 0),
        slots_logged=settings.get("enable_slot_log") == "on",
        process_memory=int(kibibytes) * 1024 if kibibytes.isdigit() else None,
    )


def _values(settings: GaussDbSettings) -> dict[str, Any]:
    return {field.name: getattr(settings, field.name) for field in fields(settings)}


def check_server(facts: GaussDbServerFacts, place: str) -> None:
    """Raise ServerSettings or NoPrimary if the server cannot be decoded from."""
    if facts.in_recovery:
        raise NoPrimary("the server is a standby", where=place)
    if facts.wal_level != "logical":
        words = f"the server runs with wal_level = {facts.wal_level}; logical decoding needs logical"
        raise ServerSettings(words, where=place, hint="set wal_level = logical (gs_guc set) and restart the server")


def in_recovery(session: WireSession) -> bool:
    """True on a standby."""
    return query_single_row(session, "SELECT pg_is_in_recovery()", "asking for the server's role")[0] == "t"


def current_lsn(session: WireSession) -> Lsn:
    """The current end of a primary's WAL. Raises SourceError."""
    row = query_single_row(session, "SELECT pg_current_xlog_location()", "asking for the end of the WAL")
    return Lsn.parse(row[0] or "")


def snapshot_and_csn(session: WireSession, locked: Sequence[str] = ()) -> CsnSnapshot:
    """Begin a REPEATABLE READ transaction and export its snapshot, with its CSN; the caller ends the transaction.

    Tables in `locked`, as SQL names, are locked against TRUNCATE and rewrites before the snapshot is taken. Not for a
    replication connection. Raises SourceError.
    """
    doing = "exporting a snapshot"
    near = _next_csn(session)
    session.query("BEGIN ISOLATION LEVEL REPEATABLE READ", doing=doing)
    if locked:
        session.query(f"LOCK TABLE {', '.join(locked)} IN ACCESS SHARE MODE", doing="locking the tables")
    name, printed = query_single_row(session, "SELECT * FROM pg_export_snapshot_and_csn()", doing)
    return CsnSnapshot(name or "", Csn(_whole_csn(int(printed or "", 16), near)))


def _next_csn(session: WireSession) -> int | None:
    """Approximately the next CSN of the server; None if unavailable."""
    sql = "SELECT int8in(xidout(next_csn)) FROM gs_get_next_xid_csn()"
    try:
        row = query_single_row(session, sql, "asking for the next CSN")
    except QueryRefused:
        return None  # this product has no such function: its CSN is used as printed
    return int(row[0]) if row[0] else None


def _whole_csn(printed: int, near: int | None) -> int:
    """The full CSN from its printed lower bits, as the one nearest to a CSN of that time."""
    if near is None or printed >= _CSN_WRAP:
        return printed
    full_csn = near - near % _CSN_WRAP + printed
    candidates = (csn for csn in (full_csn - _CSN_WRAP, full_csn, full_csn + _CSN_WRAP) if csn >= 0)
    return min(candidates, key=lambda csn: abs(csn - near))


def query_single_row(session: WireSession, sql: str, doing: str) -> tuple[str | None, ...]:
    """The row that a query returns. Raises StreamProtocol if it is not one."""
    rows = session.query(sql, doing=doing).rows
    if len(rows) != 1:
        raise StreamProtocol(f"{doing}: the server returned {len(rows)} rows", where=session.place)
    return rows[0]


_PARALLEL = frozenset({Mode.PARALLEL})
_ALL = frozenset(Mode)
_SERIAL = _ALL - _PARALLEL


class Effect(enum.StrEnum):
    """The effect of a limitation on a pipeline."""

    LOST = "changes do not arrive"
    CRASH = "the server shuts down"
    HANDLED = "handled here"


@dataclass(frozen=True, slots=True)
class KnownLimitation:
    """One limitation, in openGauss releases from `since` to before `before`; several spans are several limitations.

    `compatibility`: only in databases of these kinds, `plugin`: only of slots with this plugin; empty: all.
    """

    name: str
    effect: Effect
    modes: frozenset[Mode]
    about: str
    remedy: str
    since: tuple[int, ...] = (0,)
    before: tuple[int, ...] | None = None
    compatibility: frozenset[str] = frozenset()
    plugin: str = ""

    def concerns(self, version: GaussDbVersion, mode: Mode, *, compatibility: str, plugin: str) -> bool:
        """Whether it applies to a server that decodes a database of this compatibility in this mode."""
        if mode not in self.modes or self.plugin not in {"", plugin}:
            return False
        if self.compatibility and compatibility.upper() not in self.compatibility:
            return False
        if version.base is None:
            return self.before is None
        return self.since <= version.base and (self.before is None or version.base < self.before)


def traps(version: GaussDbVersion, mode: Mode, *, compatibility: str, plugin: str) -> list[KnownLimitation]:
    """The limitations of a server, a database and a slot, the worst first."""
    order = (Effect.CRASH, Effect.LOST, Effect.HANDLED)
    matching = (trap for trap in TRAPS if trap.concerns(version, mode, compatibility=compatibility, plugin=plugin))
    return sorted(matching, key=lambda trap: order.index(trap.effect))


_TRUNCATE = "TRUNCATE is not sent: the rows remain in silver"
_TRUNCATE_REMEDY = "use DELETE at the source, or resync the table afterwards; `compare` detects it"
_DDL = "rows that a transaction changes after DDL in it (also TRUNCATE, CREATE TABLE AS) are not sent, of any table"
_DDL_REMEDY = "run DDL in separate transactions; `compare` detects what is missing"
_NULLS = (
    "NULL columns of old rows are omitted: with REPLICA IDENTITY FULL an old row contains only the columns that "
    "were not NULL"
)
_KEYLESS = "a DELETE of a table without a key is not sent"
_KEYLESS_REMEDY = "add a primary key, or ALTER TABLE … REPLICA IDENTITY FULL"
_SPECULATIVE = "INSERT … ON DUPLICATE KEY UPDATE and REPLACE INTO send an INSERT whose row does not remain"

TRAPS: tuple[KnownLimitation, ...] = (
    KnownLimitation(
        "crash",
        Effect.CRASH,
        _PARALLEL,
        "a composite column, or an unchanged large value of a USTORE table, crashes the whole server",
        "upgrade to 3.0.3 or later, or read with `parallel-decode-num: 1`",
        since=(3, 0, 0),
        before=(3, 0, 3),
    ),
    KnownLimitation(
        "truncate", Effect.LOST, _PARALLEL, _TRUNCATE, f"{_TRUNCATE_REMEDY}; or serial decoding from 6.0 on"
    ),
    KnownLimitation("truncate", Effect.LOST, _SERIAL, _TRUNCATE, _TRUNCATE_REMEDY, before=(6,)),
    KnownLimitation("ddl-then-rows", Effect.LOST, _PARALLEL, _DDL, f"{_DDL_REMEDY}; or serial decoding from 6.0 on"),
    KnownLimitation("ddl-then-rows", Effect.LOST, _SERIAL, _DDL, _DDL_REMEDY, before=(6,)),
    KnownLimitation(
        "keyless-delete", Effect.LOST, _PARALLEL, _KEYLESS, _KEYLESS_REMEDY, since=(3, 0, 0), before=(3, 0, 3)
    ),
    KnownLimitation("keyless-delete", Effect.LOST, _PARALLEL, _KEYLESS, _KEYLESS_REMEDY, since=(3, 1), before=(5,)),
    KnownLimitation(
        "rows-without-columns",
        Effect.LOST,
        _SERIAL,
        "test_decoding prints rows of USTORE tables without their columns: the stream stops at the first one",
        "a slot with the plugin mppdb_decoding",
        since=(3, 0, 0),
        before=(5,),
        plugin="test_decoding",
    ),
    KnownLimitation("old-nulls", Effect.HANDLED, _ALL, _NULLS, "none needed", since=(3, 0, 0), before=(3, 0, 3)),
    KnownLimitation("old-nulls", Effect.HANDLED, _ALL, _NULLS, "none needed", since=(3, 1), before=(5,)),
    KnownLimitation(
        "speculative", Effect.HANDLED, _PARALLEL, _SPECULATIVE, "none needed: a later change of the row replaces it"
    ),
    KnownLimitation(
        "speculative",
        Effect.HANDLED,
        _SERIAL,
        f"{_SPECULATIVE} (from 6.0 on only for USTORE tables)",
        "none needed: a later change of the row replaces it",
    ),
    KnownLimitation(
        "neighbours",
        Effect.HANDLED,
        _PARALLEL,
        "transactions of other databases arrive empty: most of the traffic of an idle database",
        "none needed: they advance the slot and prove that no CSN is missing; skip-empty-xacts removes both benefits",
    ),
    KnownLimitation(
        "garbage-lsn",
        Effect.HANDLED,
        _PARALLEL,
        "the position in the BEGIN of an empty transaction is uninitialized memory",
        "none needed: it is not used",
        since=(3, 0, 0),
        before=(3, 0, 3),
    ),
    KnownLimitation(
        "confirm-rule",
        Effect.HANDLED,
        _PARALLEL,
        "acknowledging the end of a commit loses the next transaction on 3.0; acknowledging its start repeats it on "
        "all versions",
        "none needed: the position before the end is acknowledged, which avoids both on every version",
    ),
    KnownLimitation(
        "leading-zero",
        Effect.HANDLED,
        _ALL,
        "numbers are sent without a leading zero: `.1`, `-.5`",
        "none needed: silver and `compare` treat them as the same numbers",
    ),
    KnownLimitation(
        "compatibility-a",
        Effect.HANDLED,
        _ALL,
        "in a database of compatibility A an empty string is NULL, and `date` is a timestamp",
        "none needed: both are captured as the database stores them",
        compatibility=frozenset({"A", "ORA"}),
    ),
)
"""All known limitations."""


def target_of(source: FamilySource, root: Path) -> WireTarget:
    """The servers, database and role of the section; files of `tls` are relative to `root`."""

    def file(path: Path | None) -> Path | None:
        return None if path is None else root / path

    tls = source.tls
    return WireTarget(
        hosts=tuple((address.host, address.port) for address in source.addresses),
        database=source.database,
        user=source.user,
        password=None if source.password is None else source.password.get_secret_value(),
        replication_port=source.replication_port,
        tls=WireTls(tls.mode, file(tls.root_cert), file(tls.cert), file(tls.key)),
        alike=source.node == "coordinator",
        connect_timeout=source.connect_timeout / 1000,
        silence=source.silence_timeout / 1000,
    )
