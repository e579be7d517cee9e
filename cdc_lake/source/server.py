"""The server: which one it is, and whether it can be decoded from."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import psycopg

from cdc_lake.config.source import PostgresSource
from cdc_lake.errors import NoPrimary, QueryRefused, ServerSettings
from cdc_lake.model.change import OWN_MESSAGES
from cdc_lake.model.position import Lsn
from cdc_lake.source.connection import Session, answered, command, for_replication, named
from cdc_lake.source.product import OLDEST, Product, product_of
from cdc_lake.source.timeline import Timeline, parse_history

FAILOVER_SLOTS = 17
"""First version whose standbys keep copies of slots."""
LOGICAL_ON_DEMAND = 19
"""First version that logs what decoding needs as soon as a logical slot is there (`effective_wal_level`)."""
TWO_PHASE_ON_STANDBYS = 18
"""First version whose standbys keep copies of slots with two-phase decoding."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Who the server is (`IDENTIFY_SYSTEM`) and the settings that matter; times in seconds, 0 = never."""

    system: str
    timeline: int
    flushed: Lsn
    database: str
    product: Product
    wal_level: str
    in_recovery: bool
    wal_sender_timeout: float

    @property
    def major(self) -> int:
        """The major version of PostgreSQL that it is read as."""
        return self.product.major


def identify(replication: Session, source: PostgresSource) -> ServerFacts:
    """Ask a connection who the server is, one for replication by its command, another by SQL functions.

    Raises ServerSettings where it is another product than `source` says, and what else a SourceError is.
    """
    if not for_replication(replication):
        return _by_sql(replication, source)
    row = command(replication.pgconn, "IDENTIFY_SYSTEM", "identifying the server")[0]
    settings = command(
        replication.pgconn,
        "SELECT version() AS version, current_setting('wal_level') AS wal_level, pg_is_in_recovery() AS recovery, "
        "(SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout') AS timeout",
        "reading the server's settings",
    )[0]
    return ServerFacts(
        system=row["systemid"] or "",
        timeline=int(row["timeline"] or 0),
        flushed=Lsn.parse(row["xlogpos"] or ""),
        database=row["dbname"] or "",
        product=product_of(source, settings["version"] or "", replication.info.server_version),
        wal_level=settings["wal_level"] or "",
        in_recovery=settings["recovery"] == "t",
        wal_sender_timeout=int(settings["timeout"] or 0) / 1000,
    )


def _by_sql(session: Session, source: PostgresSource) -> ServerFacts:
    with named("identifying the server"):
        row = session.execute(
            "SELECT (SELECT system_identifier FROM pg_control_system())::text, "
            # a standby names no file of its log; what it is asked here for, it is refused for
            "CASE WHEN pg_is_in_recovery() THEN '0' ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END, "
            "CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END::text, "
            "current_database()::text, current_setting('wal_level'), pg_is_in_recovery(), version()"
        ).fetchone()
    assert row is not None
    system, timeline, flushed, database, level, recovery, says = row
    return ServerFacts(
        system=str(system),
        timeline=int(str(timeline), 16),
        flushed=Lsn.parse(str(flushed)),
        database=str(database),
        product=product_of(source, str(says), session.info.server_version),
        wal_level=str(level),
        in_recovery=bool(recovery),
        wal_sender_timeout=0,
    )


class Decodable(Protocol):
    """What a server must say of itself before it is decoded from."""

    @property
    def product(self) -> Product:
        """Which server it is."""
        ...

    @property
    def wal_level(self) -> str:
        """The setting of this name."""
        ...

    @property
    def in_recovery(self) -> bool:
        """True on a standby."""
        ...


def decodes(facts: Decodable) -> bool:
    """Whether the server's `wal_level` lets it decode.

    From PostgreSQL 19 on the first logical slot switches logical decoding on where `wal_level` is `replica`.
    """
    return facts.wal_level == "logical" or (facts.wal_level == "replica" and facts.product.major >= LOGICAL_ON_DEMAND)


def check_server(facts: Decodable, place: str = "") -> None:
    """Raise ServerSettings or NoPrimary where the server cannot be decoded from."""
    if facts.product.major < OLDEST:
        words = f"the server is {facts.product}; {facts.product.oldest} is the oldest that is supported"
        raise ServerSettings(words, where=place, hint="upgrade the server")
    if facts.in_recovery:
        raise NoPrimary("the server is a standby", where=place)
    if not decodes(facts):
        words = f"the server runs with wal_level = {facts.wal_level}; logical decoding needs logical"
        raise ServerSettings(words, where=place)


def check_failover(facts: Decodable, place: str = "", *, two_phase: bool = False) -> None:
    """Raise ServerSettings where standbys cannot keep copies of slots, or of those with `two_phase` decoding."""
    if facts.product.major < FAILOVER_SLOTS:
        raise ServerSettings(
            f"standbys keep copies of slots from PostgreSQL {FAILOVER_SLOTS} on, the server is {facts.product}",
            where=place,
            hint="take `failover` out of `source.slot`",
        )
    if two_phase and facts.product.major < TWO_PHASE_ON_STANDBYS:
        raise ServerSettings(
            f"standbys keep copies of slots with two-phase decoding from PostgreSQL {TWO_PHASE_ON_STANDBYS} on, "
            f"the server is {facts.product}",
            where=place,
            hint="take `failover` out of `source.slot`, or `two_phase` out of `source.decoding`",
        )


def timeline_of(replication: Session, number: int) -> Timeline:
    """The server's timeline `number` with where it branched off, asked on a replication connection.

    Without the branches where the server lost the file that has them, and where the connection is an ordinary one.
    Raises SourceError.
    """
    if number <= 1:
        return Timeline(number)
    if not for_replication(replication):
        return Timeline(number, None)
    try:
        row = command(replication.pgconn, f"TIMELINE_HISTORY {number}", f"reading the history of timeline {number}")[0]
    except QueryRefused:
        return Timeline(number, None)
    return parse_history(number, row["content"] or "")


def wal_position(session: Session) -> Lsn:
    """The end of the server's log as far as it is flushed: everything committed by now lies at or below it.

    Decoding goes no further. Raises SourceError.
    """
    with named("reading the WAL position"):  # a number, as text comes as bytes where the session has it as stored
        row = session.execute("SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::bigint").fetchone()
    assert row is not None
    return Lsn(int(str(row[0])))


def goal(session: Session) -> int:
    """A position that everything committed by now lies at or below, and that a quiet server's stream reaches.

    A small transactional message is written: its commit is flushed, so the stream soon passes it, which the bare end
    of the log would not promise (it may stand inside a record, or behind asynchronous commits).
    """
    with named("fixing the goal of this run"):
        try:
            row = session.execute("SELECT pg_logical_emit_message(true, %s, 'goal')::text", [OWN_MESSAGES]).fetchone()
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction):
            row = session.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None
    return Lsn.parse(str(row[0])).value


def beat(session: Session) -> None:
    """Write a message of a few bytes in a transaction of its own, which the stream passes. Raises SourceError."""
    with named("writing a heartbeat"):
        session.execute("SELECT pg_logical_emit_message(true, %s, 'heartbeat')", [OWN_MESSAGES])


def setting(session: Session, name: str) -> str:
    """Return the value of a server setting as PostgreSQL prints it. Raises SourceError."""
    with named(f"reading the setting {name}"):
        row = session.execute("SELECT current_setting(%s)", [name]).fetchone()
    assert row is not None
    return str(row[0])


_STANDBY_NAME = re.compile(r'"((?:[^"]|"")*)"|([^\s,()"]+)')


def names_standby(names: str, application: str) -> bool:
    """Return True if a value of `synchronous_standby_names` lists the application name, or any (`*`).

    PostgreSQL compares them without regard to case. Whether the standby is one of those waited for now, or takes over
    from one that fails, is not asked: only roles with `pg_read_all_stats` may see that.
    """
    listed = {(quoted.replace('""', '"') or bare).lower() for quoted, bare in _STANDBY_NAME.findall(names)}
    return bool(listed & {application.lower(), "*"})


class SynchronousStandby:
    """Whether PostgreSQL's commits may wait for a replication connection of ours, asked again every so many seconds."""

    ASKED_EVERY = 2.0

    def __init__(
        self, session: Session, replication: Session, longest: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`session`: any of this server; `replication`: the connection that streams, which is read by who asks:
        a server that has not answered after `longest` seconds is given up.
        """
        self._session = session
        self._longest = longest
        self._application = replication.info.parameter_status("application_name") or ""
        self._clock = clock
        self._asked_at = -math.inf
        self._synchronous = False

    def __call__(self) -> bool:
        """Return True if `synchronous_standby_names` lists the connection. Raises SourceError."""
        if self._clock() - self._asked_at >= self.ASKED_EVERY:
            self._asked_at = self._clock()
            query, doing = "SHOW synchronous_standby_names", "asking which standbys are waited for"
            (row,) = answered(self._session.pgconn, query, self._longest, doing)
            self._synchronous = names_standby(row["synchronous_standby_names"] or "", self._application)
        return self._synchronous
