"""The PostgreSQL server: which one it is, whether it can be decoded from, and what waits for its locks.

QHB is built on PostgreSQL and read as the version its release is based on. No manual says how a QHB answers
`version()` or `server_version`: its release is looked for in both. If neither has it, `source.version` says it, or the
server has to be a PostgreSQL by its number. A server is also asked for the hash of a few values: does it hash as
`tables.row_hash`?

Reading what a publication carries, or how large a table is, takes the weakest lock on the table, which waits for an
ALTER TABLE to commit. A prepared one may never: it outlives its session. So a session that reads the catalog waits for
a limited time, and then names the transactions that hold the locks.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol

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
    for_replication,
    translate_errors,
)
from cdc_lake.source.primary import Timeline, parse_history
from cdc_lake.source.sql_text import literal
from cdc_lake.tables.row_hash import Hashes


def hashes_alike(session: Session) -> bool:
    """Whether a server has the functions, and hashes some values as we do: bytes are in words of its own machine."""
    text, number = "größe of a text in several rounds", -4321098765
    with translate_errors("checking how the server hashes"):
        functions = session.execute(
            "SELECT count(to_regprocedure(name)) FROM unnest(ARRAY['hashint4extended(integer,bigint)', "
            "'hashint8extended(bigint,bigint)', 'hashfloat8extended(double precision,bigint)', "
            "'hashtextextended(text,bigint)']) AS name"
        ).fetchone()
        if functions is None or int(str(functions[0])) < 4:
            return False
        row = session.execute(
            'SELECT hashtextextended(%s COLLATE "C", '
            "hashfloat8extended(-1.5, hashint8extended(%s, hashint4extended(7, 1))))",
            [text, number],
        ).fetchone()
    first = Hashes.first(1, 1).int4(np.array([7], np.int32)).int8(np.array([number], np.int64))
    expected = first.float8(np.array([-1.5])).text(pa.array([text], pa.large_string())).numbers
    return row is not None and int(str(row[0])) == int(expected.view(np.int64)[0])


OLDEST: Final = 14
"""First version whose pgoutput and publications we rely on and test."""
_NAMES_QHB: Final = re.compile(
    r"\bQHB\b(?:[\s-]*(?:\([^()0-9]{0,40}\)\s*)?(?:version|release|v)?\s*([0-9]{1,4}(?:\.[0-9]{1,4}){1,3}))?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Product:
    """A server as people are told: its name, its release, the oldest one that is read.

    `major`: of the PostgreSQL that it is read as. `says`: its `version()`.
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
    """The product of a server that answers `version()` with `says` and counts itself as `number` (libpq's count).

    Raises ServerSettings where it is another than `source.type` and `source.version` say, or cannot be told.
    """
    named = _NAMES_QHB.search(says)
    if source.type == "qhb":
        return _qhb(source, says, number, named[1] if named else None)
    if named is not None:
        words, hint = "the server is a QHB, but `source.type` says postgres", "set `source.type: qhb`"
        raise ServerSettings(words, where=source.place, hint=hint)
    return _postgres(says, number)


def _postgres(says: str, number: int) -> Product:
    return Product("PostgreSQL", str(number // 10000), str(OLDEST), number // 10000, says)


def _qhb(source: PostgresSource, says: str, number: int, named: str | None) -> Product:
    reported, stated = _detect_release(named, number), None if source.version is None else parse_release(source.version)
    if reported is not None and stated is not None and reported != stated:
        words = f"the server is QHB {show_release(reported)}, but `source.version` says {source.version}"
        raise ServerSettings(words, where=source.place, hint="correct `source.version`, or remove it")
    if (release := reported or stated) is not None:
        return Product("QHB", show_release(release), OLDEST_QHB, read_as(release), says)
    if number // 10000 >= OLDEST:
        return _postgres(says, number)
    words = "neither version() nor server_version states the release of QHB"
    hint = 'set it in the pipeline file, for example `source.version: "1.5.3"`; for PostgreSQL: `source.type: postgres`'
    raise ServerSettings(words, where=source.place, hint=hint)


def _detect_release(named: str | None, number: int) -> Release | None:
    """The release by `version()`, or by a number of the first line of releases: libpq counts 1.5.3 as 10503."""
    if named is not None:
        return parse_release(named)
    line, rest = divmod(number, 10000)
    return (line, *divmod(rest, 100)) if line == 1 else None


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
    with translate_errors("identifying the server"):
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

    @property
    def wal_level(self) -> str:
        """The setting of this name."""

    @property
    def in_recovery(self) -> bool:
        """True on a standby."""


def decodes(facts: Decodable) -> bool:
    """Whether the server's `wal_level` lets it decode.

    From PostgreSQL 19 on the first logical slot switches logical decoding on where `wal_level` is `replica`.
    """
    return facts.wal_level == "logical" or (facts.wal_level == "replica" and facts.product.major >= LOGICAL_ON_DEMAND)


def check_server(facts: Decodable, place: str = "") -> None:
    """Raise ServerSettings or NoPrimary where the server cannot be decoded from."""
    if facts.product.major < OLDEST:
        words = f"the server is {facts.product}; the oldest supported version is {facts.product.oldest}"
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
            f"standbys keep copies of slots only from PostgreSQL {FAILOVER_SLOTS} on, and the server is "
            f"{facts.product}",
            where=place,
            hint="remove `failover` from `source.slot`",
        )
    if two_phase and facts.product.major < TWO_PHASE_ON_STANDBYS:
        raise ServerSettings(
            f"standbys keep copies of slots with two-phase decoding only from PostgreSQL {TWO_PHASE_ON_STANDBYS} on, "
            f"and the server is {facts.product}",
            where=place,
            hint="remove `failover` from `source.slot`, or `two_phase` from `source.decoding`",
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
    with translate_errors(
        "reading the WAL position"
    ):  # a number, as text comes as bytes where the session has it as stored
        row = session.execute("SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::bigint").fetchone()
    assert row is not None
    return Lsn(int(str(row[0])))


def goal(session: Session) -> int:
    """A position that everything committed by now lies at or below, and that a quiet server's stream reaches.

    A small transactional message is written: its commit is flushed, so the stream soon passes it, which the bare end
    of the log would not promise (it may stand inside a record, or behind asynchronous commits).
    """
    with translate_errors("fixing the goal of this run"):
        try:
            row = session.execute("SELECT pg_logical_emit_message(true, %s, 'goal')::text", [OWN_MESSAGES]).fetchone()
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction):
            row = session.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None
    return Lsn.parse(str(row[0])).value


def beat(session: Session) -> None:
    """Write a message of a few bytes in a transaction of its own, which the stream passes. Raises SourceError."""
    with translate_errors("writing a heartbeat"):
        session.execute("SELECT pg_logical_emit_message(true, %s, 'heartbeat')", [OWN_MESSAGES])


def setting(session: Session, name: str) -> str:
    """Return the value of a server setting as PostgreSQL prints it. Raises SourceError."""
    with translate_errors(f"reading the setting {name}"):
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
            query, doing = "SHOW synchronous_standby_names", "checking which standbys commits wait for"
            (row,) = command_with_timeout(self._session.pgconn, query, self._longest, doing)
            self._synchronous = names_standby(row["synchronous_standby_names"] or "", self._application)
        return self._synchronous


LOCK_WAIT: Final = "30s"
"""How long a start waits for somebody's lock on a table: longer than most statements that alter one."""
LOOK_WAIT: Final = "5s"
"""How long one that only looks does, `check` for one, which says who holds what."""

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
"""Tables that somebody else holds, those first that every reader waits for. In the end the table that each is a
partition of, or itself.
"""
_OF_TABLES = (
    "l.mode IN ('AccessExclusiveLock', 'ExclusiveLock', 'ShareRowExclusiveLock', 'ShareLock', "
    "'ShareUpdateExclusiveLock') "
    "AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast') AND n.nspname !~ '^pg_temp_'"
)
"""In a way that others wait for."""
_OF_CATALOGS = "l.mode = 'AccessExclusiveLock' AND n.nspname = 'pg_catalog'"
"""In a way that decoding waits for."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a table: a process, or of a prepared transaction its `gid`."""

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
        """How it is ended."""
        if self.gid is not None:
            gid = literal(self.gid)
            return f"end it in this database: COMMIT PREPARED {gid} or ROLLBACK PREPARED {gid}; then start again"
        return f"start again when it is over, or end it: SELECT pg_terminate_backend({self.pid})"


def wait_for_locks(session: Session, *, looks: bool = False) -> None:
    """Have the session wait no longer than that for what others hold; `looks`: it only looks. Raises SourceError."""
    with translate_errors("opening the session"):
        session.execute(f"SET lock_timeout = {literal(LOOK_WAIT if looks else LOCK_WAIT)}".encode())


@contextmanager
def holders_named(session: Session, patterns: Sequence[str]) -> Iterator[None]:
    """Have a TableLocked that ends the block say who holds which table of those that the patterns of `source.tables`
    choose, or, where nobody holds one of them, of any; `session` is not in a transaction then.
    """
    try:
        yield
    except TableLocked as locked:
        if session.closed or not (lock_holders := holders(session, chooses(patterns))):
            raise
        more = "" if len(lock_holders) <= _SHOWN else f"; and {len(lock_holders) - _SHOWN} more tables are locked"
        words = "; ".join(map(str, lock_holders[:_SHOWN]))
        raise TableLocked(
            f"{locked.message}: {words}{more}", where=locked.where, hint=lock_holders[0].remedy
        ) from locked


def holders(session: Session, chosen: Callable[[TableName], bool]) -> list[Holder]:
    """Who holds locks on chosen tables that others wait for; if nobody, who holds any. Raises SourceError."""
    rows = _rows(session, _OF_TABLES)
    all_holders = [(_holder(row[:7]), TableName(str(row[7]), str(row[8]))) for row in rows]
    matching = [holder for holder, root in all_holders if chosen(holder.table) or chosen(root)]
    return matching or [holder for holder, _ in all_holders]


def catalog_holders(session: Session) -> list[Holder]:
    """Who holds catalogs of this database exclusively, which decoding waits for. Raises SourceError."""
    return [_holder(row[:7]) for row in _rows(session, _OF_CATALOGS)]


def _rows(session: Session, condition: str) -> list[tuple[object, ...]]:
    with translate_errors("checking which sessions lock tables"):
        return session.execute(_HOLDERS.format(condition=condition).encode()).fetchall()


def _holder(row: tuple[object, ...]) -> Holder:
    schema, name, pid, application, gid, role, since = row
    return Holder(
        TableName(str(schema), str(name)),
        None if pid is None else int(str(pid)),
        str(application or ""),
        None if gid is None else str(gid),
        str(role or ""),
        since if isinstance(since, datetime) else None,
    )
