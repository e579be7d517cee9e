"""Locks that others hold: a session that reads the catalog waits for them so long, and then says whose they are.

Reading what a publication carries, or how large a table is, takes the weakest lock on the table, and that waits for an
ALTER TABLE to commit. One that was prepared may never: it outlives its session, and nobody sees it wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from cdc_lake.errors import TableLocked
from cdc_lake.model.relation import TableName
from cdc_lake.source.connection import Session, named
from cdc_lake.source.quoting import literal
from cdc_lake.source.tables import chooses

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
        return f"{self.table} is held by {who}{f' ({by})' if by else ''}{since}"

    @property
    def remedy(self) -> str:
        """How it is ended."""
        if self.gid is not None:
            gid = literal(self.gid)
            return f"end it in this database: COMMIT PREPARED {gid} or ROLLBACK PREPARED {gid}; then start again"
        return f"start again when it is over, or end it: SELECT pg_terminate_backend({self.pid})"


def wait_for_locks(session: Session, *, looks: bool = False) -> None:
    """Have the session wait no longer than that for what others hold; `looks`: it only looks. Raises SourceError."""
    with named("opening the session"):
        session.execute(f"SET lock_timeout = {literal(LOOK_WAIT if looks else LOCK_WAIT)}".encode())


@contextmanager
def holders_named(session: Session, patterns: Sequence[str]) -> Iterator[None]:
    """Have a TableLocked that ends the block say who holds which table of those that the patterns of `source.tables`
    choose, or, where nobody holds one of them, of any; `session` is not in a transaction then.
    """
    try:
        yield
    except TableLocked as locked:
        if session.closed or not (found := holders(session, chooses(patterns))):
            raise
        more = "" if len(found) <= _SHOWN else f"; and {len(found) - _SHOWN} more tables are held"
        words = "; ".join(map(str, found[:_SHOWN]))
        raise TableLocked(f"{locked.message}: {words}{more}", where=locked.where, hint=found[0].remedy) from locked


def holders(session: Session, chosen: Callable[[TableName], bool]) -> list[Holder]:
    """Who holds chosen tables, or partitions of them, that others wait for; who holds any where nobody holds one of
    these. Raises SourceError.
    """
    rows = _rows(session, _OF_TABLES)
    found = [(_holder(row[:7]), TableName(str(row[7]), str(row[8]))) for row in rows]
    mine = [one for one, whole in found if chosen(one.table) or chosen(whole)]
    return mine or [one for one, _ in found]


def catalog_holders(session: Session) -> list[Holder]:
    """Who holds catalogs of this database exclusively, which decoding waits for. Raises SourceError."""
    return [_holder(row[:7]) for row in _rows(session, _OF_CATALOGS)]


def _rows(session: Session, condition: str) -> list[tuple[object, ...]]:
    with named("looking who holds tables"):
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
