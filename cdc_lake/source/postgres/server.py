"""Identifies a PostgreSQL server, checks whether it can be decoded from, and finds who holds locks that it waits for.

QHB is built on PostgreSQL and treated as the PostgreSQL version of its release. No manual documents QHB's `version()`
or `server_version`: both are searched for its release. If neither has it, `source.version` states it, or the number
must be one of PostgreSQL. A server is also asked for the hashes of a few values, to compare with `tables.row_hash`.

Reading a publication or the size of a table takes the weakest lock on the table, which waits for an ALTER TABLE to
commit. A prepared one may never do so: it outlives its session. So a session that reads the catalog waits for a limited
time, and then names the transactions that hold the locks.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np
import psycopg
import pyarrow as pa

from cdc_lake.config.fields import Release, parse_release, show_release
from cdc_lake.config.source import OLDEST_QHB, PostgresSource, read_as
from cdc_lake.errors import NoPrimary, QueryRefused, ServerSettings, TableLocked
from cdc_lake.model.change import OWN_MESSAGES
from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import TableName
from cdc_lake.source.base import chooses
from cdc_lake.source.postgres.connection import (
    Session,
    command,
    command_with_timeout,
    fetch,
    for_replication,
    translate_errors,
)
from cdc_lake.source.primary import Timeline, parse_history
from cdc_lake.source.sql_text import literal
from cdc_lake.tables.row_hash import Hashes


def hashes_alike(session: Session) -> bool:
    """Whether a server has the hash functions and they return our values, which depend on its byte order."""
    text, number = "größe of a text in several rounds", -4321098765
    doing = "checking how the server hashes"
    functions = (
        "SELECT count(to_regprocedure(name)) FROM unnest(ARRAY['hashint4extended(integer,bigint)', "
        "'hashint8extended(bigint,bigint)', 'hashfloat8extended(double precision,bigint)', "
        "'hashtextextended(text,bigint)']) AS name"
    )
    if fetch(session, doing, functions) != [(4,)]:
        return False
    nested = "hashfloat8extended(-1.5, hashint8extended(%s, hashint4extended(7, 1)))"
    rows = fetch(session, doing, f'SELECT hashtextextended(%s COLLATE "C", {nested})', text, number)
    first = Hashes.first(1, 1).int4(np.array([7], np.int32)).int8(np.array([number], np.int64))
    expected = first.float8(np.array([-1.5])).text(pa.array([text], pa.large_string())).numbers
    return rows == [(int(expected.view(np.int64)[0]),)]


OLDEST: Final = 14
"""First version whose pgoutput and publications are supported and tested."""
_NAMES_QHB: Final = re.compile(
    r"\bQHB\b(?:[\s-]*(?:\([^()0-9]{0,40}\)\s*)?(?:version|release|v)?\s*([0-9]{1,4}(?:\.[0-9]{1,4}){1,3}))?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Product:
    """A server for display: its name, its release, the oldest supported one.

    `major`: the PostgreSQL version as which it is treated. `says`: its `version()`.
    """

    name: str
    release: str
    oldest: str
    major: int
    says: str

    def __str__(self) -> str:
        return f"{self.name} {self.release}"

    @property
    def names_qhb(self) -> bool:
        """Whether its `version()` names QHB."""
        return _NAMES_QHB.search(self.says) is not None


def product_of(source: PostgresSource, says: str, number: int) -> Product:
    """The product of a server whose `version()` is `says` and whose version number is `number` (as in libpq).

    Raises ServerSettings if it differs from `source.type` and `source.version`, or is unknown.
    """
    named = _NAMES_QHB.search(says)
    major = number // 10000
    postgres = Product("PostgreSQL", str(major), str(OLDEST), major, says)
    if source.type != "qhb":
        if named is None:
            return postgres
        words, hint = "the server is a QHB, but `source.type` says postgres", "set `source.type: qhb`"
        raise ServerSettings(words, where=source.place, hint=hint)
    line, rest = divmod(number, 10000)
    reported: Release | None = (line, *divmod(rest, 100)) if line == 1 else None  # in libpq 1.5.3 is 10503
    if named is not None and named[1] is not None:
        reported = parse_release(named[1])
    stated = None if source.version is None else parse_release(source.version)
    if reported is not None and stated is not None and reported != stated:
        words = f"the server is QHB {show_release(reported)}, but `source.version` says {source.version}"
        raise ServerSettings(words, where=source.place, hint="correct `source.version`, or remove it")
    if (release := reported or stated) is not None:
        return Product("QHB", show_release(release), OLDEST_QHB, read_as(release), says)
    if major >= OLDEST:
        return postgres
    words = "neither version() nor server_version states the release of QHB"
    hint = 'set it in the pipeline file, for example `source.version: "1.5.3"`; for PostgreSQL: `source.type: postgres`'
    raise ServerSettings(words, where=source.place, hint=hint)


FAILOVER_SLOTS = 17
"""First version whose standbys keep copies of slots."""
LOGICAL_ON_DEMAND = 19
"""First version that enables logical decoding when a logical slot exists (`effective_wal_level`)."""
TWO_PHASE_ON_STANDBYS = 18
"""First version whose standbys keep copies of slots with two-phase decoding."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """What must be known of a server before it is decoded from. `in_recovery`: it is a standby."""

    product: Product
    wal_level: str
    in_recovery: bool


@dataclass(frozen=True, slots=True)
class ServerFacts(ServerState):
    """The server's identity (`IDENTIFY_SYSTEM`) and relevant settings; times in seconds, 0 = never."""

    system: str
    timeline: int
    flushed: Lsn
    database: str
    wal_sender_timeout: float

    @property
    def major(self) -> int:
        """The major version of PostgreSQL as which it is treated."""
        return self.product.major


def identify(replication: Session, source: PostgresSource) -> ServerFacts:
    """Identify the server: a replication connection by its command, another one by SQL functions.

    Raises ServerSettings if the product differs from `source`, and other SourceErrors.
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
    [(system, timeline, flushed, database, level, recovery, says)] = fetch(
        session,
        "identifying the server",
        "SELECT (SELECT system_identifier FROM pg_control_system())::text, "
        # the function fails on a standby, which is refused later
        "CASE WHEN pg_is_in_recovery() THEN '0' ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END, "
        "CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END::text, "
        "current_database()::text, current_setting('wal_level'), pg_is_in_recovery(), version()",
    )
    product = product_of(source, says, session.info.server_version)
    return ServerFacts(product, level, recovery, system, int(timeline, 16), Lsn.parse(flushed), database, 0)


def decodes(facts: ServerState) -> bool:
    """Whether the server's `wal_level` allows decoding.

    From PostgreSQL 19 on the first logical slot enables logical decoding if `wal_level` is `replica`.
    """
    return facts.wal_level == "logical" or (facts.wal_level == "replica" and facts.product.major >= LOGICAL_ON_DEMAND)


def check_server(facts: ServerState, place: str = "") -> None:
    """Raise ServerSettings or NoPrimary if the server cannot be decoded from."""
    if facts.product.major < OLDEST:
        words = f"the server is {facts.product}; the oldest supported version is {facts.product.oldest}"
        raise ServerSettings(words, where=place, hint="upgrade the server")
    if facts.in_recovery:
        raise NoPrimary("the server is a standby", where=place)
    if not decodes(facts):
        words = f"the server runs with wal_level = {facts.wal_level}; logical decoding needs logical"
        raise ServerSettings(words, where=place)


def check_failover(facts: ServerState, place: str = "", *, two_phase: bool = False) -> None:
    """Raise ServerSettings if standbys cannot keep copies of slots, or of those with `two_phase` decoding."""
    if facts.product.major < FAILOVER_SLOTS:
        text = (
            f"standbys keep copies of slots only from PostgreSQL {FAILOVER_SLOTS} on, and the server is {facts.product}"
        )
        raise ServerSettings(text, where=place, hint="remove `failover` from `source.slot`")
    if two_phase and facts.product.major < TWO_PHASE_ON_STANDBYS:
        raise ServerSettings(
            f"standbys keep copies of slots with two-phase decoding only from PostgreSQL {TWO_PHASE_ON_STANDBYS} on, "
            f"and the server is {facts.product}",
            where=place,
            hint="remove `failover` from `source.slot`, or `two_phase` from `source.decoding`",
        )


def timeline_of(replication: Session, number: int) -> Timeline:
    """The server's timeline `number` and its branches, read through a replication connection.

    Without the branches if the server lost its history file, or if the connection is an ordinary one. Raises
    SourceError.
    """
    if number <= 1 or not for_replication(replication):
        return Timeline(number, () if number <= 1 else None)
    try:
        row = command(replication.pgconn, f"TIMELINE_HISTORY {number}", f"reading the history of timeline {number}")[0]
    except QueryRefused:
        return Timeline(number, None)
    return parse_history(number, row["content"] or "")


def wal_position(session: Session) -> Lsn:
    """The flushed end of the server's WAL: everything committed by now is at or before it.

    Decoding goes no further. Raises SourceError.
    """
    # a number, because text arrives as bytes in an as-stored session
    sql = "SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::bigint"
    [(position,)] = fetch(session, "reading the WAL position", sql)
    return Lsn(position)


def goal(session: Session) -> int:
    """A position that everything committed by now does not exceed, and that even an idle server's stream reaches.

    A small transactional message is written: its commit is flushed, so the stream soon passes it, which the bare end of
    the WAL would not guarantee (it may be inside a record, or after asynchronous commits).
    """
    with translate_errors("fixing the goal of this run"):
        try:
            row = session.execute("SELECT pg_logical_emit_message(true, %s, 'goal')::text", [OWN_MESSAGES]).fetchone()
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction):
            row = session.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None
    return Lsn.parse(str(row[0])).value


def beat(session: Session) -> None:
    """Write a message of a few bytes in its own transaction, which the stream passes. Raises SourceError."""
    fetch(session, "writing a heartbeat", "SELECT pg_logical_emit_message(true, %s, 'heartbeat')", OWN_MESSAGES)


def setting(session: Session, name: str) -> str:
    """Return the value of a server setting as PostgreSQL prints it. Raises SourceError."""
    [(value,)] = fetch(session, f"reading the setting {name}", "SELECT current_setting(%s)", name)
    return str(value)


_STANDBY_NAME = re.compile(r'"((?:[^"]|"")*)"|([^\s,()"]+)')


def names_standby(names: str, application: str) -> bool:
    """Return True if a value of `synchronous_standby_names` lists the application name, or any (`*`).

    PostgreSQL compares case-insensitively. Whether the standby is currently waited for, or is only a candidate, is not
    checked: that requires `pg_read_all_stats`.
    """
    listed = {(quoted.replace('""', '"') or bare).lower() for quoted, bare in _STANDBY_NAME.findall(names)}
    return bool(listed & {application.lower(), "*"})


class SynchronousStandby:
    """Whether PostgreSQL's commits may wait for our replication connection, checked periodically."""

    ASKED_EVERY = 2.0

    def __init__(self, session: Session, replication: Session, longest: float) -> None:
        """`session`: any of this server; `replication`: the streaming connection, which the caller reads: a server that
        has not answered after `longest` seconds is given up.
        """
        self._session = session
        self._longest = longest
        self._application = replication.info.parameter_status("application_name") or ""
        self._asked_at = -math.inf
        self._synchronous = False

    def __call__(self) -> bool:
        """Return True if `synchronous_standby_names` lists the connection. Raises SourceError."""
        if time.monotonic() - self._asked_at >= self.ASKED_EVERY:
            self._asked_at = time.monotonic()
            query, doing = "SHOW synchronous_standby_names", "checking which standbys commits wait for"
            (row,) = command_with_timeout(self._session.pgconn, query, self._longest, doing)
            self._synchronous = names_standby(row["synchronous_standby_names"] or "", self._application)
        return self._synchronous


LOCK_WAIT: Final = "30s"
"""How long a start waits for a lock on a table: longer than most statements that alter one."""
LOOK_WAIT: Final = "5s"
"""How long a read-only command such as `check` waits, which then reports who holds what."""

_SHOWN: Final = 3
_HOLDERS = (
    "SELECT DISTINCT ON (l.mode <> 'AccessExclusiveLock', n.nspname, c.relname) n.nspname::text, c.relname::text, "
    "l.pid, a.application_name, x.gid, coalesce(x.owner, a.usename)::text, coalesce(x.prepared, a.xact_start), "
    "rn.nspname::text, r.relname::text "
    "FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation JOIN pg_namespace AS n ON n.oid = c.relnamespace "
    "JOIN pg_class AS r ON r.oid = coalesce(pg_partition_root(c.oid), c.oid) "
    "JOIN pg_namespace AS rn ON rn.oid = r.relnamespace "
    # a prepared transaction has no process, and a lock on its own number
    "LEFT JOIN pg_locks AS t ON l.pid IS NULL AND t.pid IS NULL AND t.locktype = 'transactionid' "
    "AND t.virtualtransaction = l.virtualtransaction "
    "LEFT JOIN pg_prepared_xacts AS x ON x.transaction = t.transactionid "
    "LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid "
    "WHERE l.locktype = 'relation' AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid() "
    "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND c.relkind IN ('r', 'p') AND {condition} "
    "ORDER BY l.mode <> 'AccessExclusiveLock', n.nspname, c.relname, coalesce(x.prepared, a.xact_start)"
)
"""Tables locked by others, first those that block every reader. Last the root of each partition, or the table itself.
"""
_OF_TABLES = (
    "l.mode IN ('AccessExclusiveLock', 'ExclusiveLock', 'ShareRowExclusiveLock', 'ShareLock', "
    "'ShareUpdateExclusiveLock') "
    "AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast') AND n.nspname !~ '^pg_temp_'"
)
"""Lock modes that block others."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a table's lock: a process, or the `gid` of a prepared transaction."""

    table: TableName
    pid: int | None
    application: str
    gid: str | None
    role: str
    since: datetime | None

    def __str__(self) -> str:
        who = f"prepared transaction `{self.gid}`" if self.gid is not None else f"server process {self.pid}"
        by = ", ".join(word for word in (self.application, f"of role {self.role}" if self.role else "") if word)
        since = "" if self.since is None else f", since {self.since.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
        return f"{self.table} is locked by {who}{f' ({by})' if by else ''}{since}"

    @property
    def remedy(self) -> str:
        """How to end it."""
        if self.gid is not None:
            gid = literal(self.gid)
            return f"end it in this database: COMMIT PREPARED {gid} or ROLLBACK PREPARED {gid}; then start again"
        return f"start again when it is over, or end it: SELECT pg_terminate_backend({self.pid})"


def wait_for_locks(session: Session, *, looks: bool = False) -> None:
    """Limit the session's waiting for locks; `looks`: to the limit for read-only commands. Raises SourceError."""
    with translate_errors("opening the session"):
        session.execute(f"SET lock_timeout = {literal(LOOK_WAIT if looks else LOCK_WAIT)}".encode())


@contextmanager
def holders_named(session: Session, patterns: Sequence[str]) -> Iterator[None]:
    """Add to a TableLocked raised in the block who holds which table selected by `source.tables` or, if none of them is
    locked, any table; `session` is not in a transaction then.
    """
    try:
        yield
    except TableLocked as locked:
        if session.closed or not (lock_holders := holders(session, chooses(patterns))):
            raise
        more = "" if len(lock_holders) <= _SHOWN else f"; and {len(lock_holders) - _SHOWN} more tables are locked"
        words = "; ".join(map(str, lock_holders[:_SHOWN]))
        text = f"{locked.message}: {words}{more}"
        raise TableLocked(text, where=locked.where, hint=lock_holders[0].remedy) from locked


def holders(session: Session, chosen: Callable[[TableName], bool]) -> list[Holder]:
    """Holders of blocking locks on selected tables; if there are none, on any. Raises SourceError."""
    locks = _locks(session, _OF_TABLES)
    matching = [holder for holder, root in locks if chosen(holder.table) or chosen(root)]
    return matching or [holder for holder, _ in locks]


def catalog_holders(session: Session) -> list[Holder]:
    """Holders of exclusive locks on this database's catalogs, which block decoding. Raises SourceError."""
    return [holder for holder, _ in _locks(session, "l.mode = 'AccessExclusiveLock' AND n.nspname = 'pg_catalog'")]


def _locks(session: Session, condition: str) -> list[tuple[Holder, TableName]]:
    """Holders of locks, each with the root of its table."""
    rows = fetch(session, "checking which sessions lock tables", _HOLDERS.format(condition=condition))
    return [
        (Holder(TableName(schema, name), pid, application or "", gid, role or "", since), TableName(*root))
        for schema, name, pid, application, gid, role, since, *root in rows
    ]
