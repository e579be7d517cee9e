"""What a server of the GaussDB family says of itself without being touched: for `check`, `plan` and `status`.

Only catalogs that PostgreSQL 9.2 had, which the family comes from; of views that products have given other columns,
whatever is there is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from cdc_lake.config.project import Project
from cdc_lake.decode.mppdb.facts import FamilyTableFacts
from cdc_lake.errors import QueryRefused, SourcePermission, StreamProtocol
from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import TableName
from cdc_lake.pipeline.action import TableFacts
from cdc_lake.source.gaussdb.catalog import facts_of, tables_in_database
from cdc_lake.source.gaussdb.connection import target_of
from cdc_lake.source.gaussdb.slot import FamilySlotFacts
from cdc_lake.source.gaussdb.version import FamilyVersion, parse_version
from cdc_lake.source.quoting import literal
from cdc_lake.source.tables import select_tables
from cdc_lake.source.wire.connect import connect
from cdc_lake.source.wire.session import WireSession

_SETTINGS = ("wal_level", "enable_thread_pool", "logical_sender_timeout", "max_replication_slots", "max_wal_senders")
_MILLISECONDS = 1000
_TABLE = (
    "SELECT CAST(c.reltuples AS int8), c.relpages, pg_total_relation_size(c.oid), "
    "has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'), pg_has_role(c.relowner, 'USAGE') "
    "FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
    "WHERE n.nspname = {schema} AND c.relname = {name} AND c.relkind IN ('r', 'p')"
)


@dataclass(frozen=True, slots=True)
class FamilyLimits:
    """Who the server is, settings that logical replication needs, and how much of them is in use.

    `sender_timeout` is in seconds, 0 = never; `senders_used` None where the role may not see it.
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
    slots_used: int
    senders_max: int
    senders_used: int | None


@dataclass(frozen=True, slots=True)
class FamilyRole:
    """The role of the session, and by what right it may replicate; None where the catalog shows none."""

    name: str
    right: str | None


@contextmanager
def session_of(project: Project) -> Iterator[WireSession]:
    """A read-only SQL session on the source. Raises SourceError."""
    with connect(target_of(project.family, project.root)) as session:
        session.query("SET default_transaction_read_only = on", doing="opening the session")
        yield session


def limits(session: WireSession) -> FamilyLimits:
    """The server's facts and limits. Raises SourceError."""
    version, recovery = _row(session, "SELECT version(), pg_is_in_recovery()", "identifying the server")
    database, encoding, compatibility = _row(
        session,
        "SELECT datname, getdatabaseencoding(), datcompatibility FROM pg_database WHERE datname = current_database()",
        "reading the database's encoding",
    )
    names = ", ".join(map(literal, _SETTINGS))
    sql = f"SELECT name, setting FROM pg_settings WHERE name IN ({names})"
    settings = {row[0]: row[1] or "" for row in session.query(sql, doing="reading the server's settings").rows}
    slots = _row(session, "SELECT count(*) FROM pg_replication_slots", "counting the slots")[0]
    return FamilyLimits(
        version=parse_version(version or ""),
        database=database or "",
        encoding=encoding or "",
        compatibility=compatibility or "",
        in_recovery=recovery == "t",
        wal_level=settings.get("wal_level", ""),
        thread_pool=settings.get("enable_thread_pool") == "on",
        sender_timeout=int(settings.get("logical_sender_timeout") or 0) / _MILLISECONDS,
        slots_max=int(settings.get("max_replication_slots") or 0),
        slots_used=int(slots or 0),
        senders_max=int(settings.get("max_wal_senders") or 0),
        senders_used=_senders(session),
    )


def role(session: WireSession) -> FamilyRole:
    """The role of the session. Raises SourceError."""
    doing = "reading the role's rights"
    name = _row(session, "SELECT current_user", doing)[0] or ""
    try:
        found = session.query("SELECT * FROM pg_roles WHERE rolname = current_user", doing=doing).records()
        return FamilyRole(name, _right(session, found[0], doing) if found else None)
    except (QueryRefused, SourcePermission):
        return FamilyRole(name, None)  # a product may hide roles, even one's own


def captured(project: Project, session: WireSession) -> list[TableName]:
    """The tables the pipeline takes. Raises SourceError."""
    return select_tables(project.family.tables, tables_in_database(session))


def catalog(session: WireSession, names: Sequence[TableName]) -> dict[TableName, FamilyTableFacts]:
    """What the catalog says of these tables, without those that are gone. Raises SourceError."""
    return {name: facts for name in names if (facts := facts_of(session, name)) is not None}


def tables(session: WireSession, names: Sequence[TableName]) -> list[TableFacts]:
    """Size and rights of these tables, in their order, without those that are gone. Raises SourceError."""
    found = []
    for name in names:
        sql = _TABLE.format(schema=literal(name.schema), name=literal(name.name))
        for rows, pages, size, readable, owned in session.query(sql, doing=f"looking at {name}").rows:
            estimate = int(rows or 0)
            never = estimate < 0 or (estimate == 0 and pages == "0")  # before 14, PostgreSQL told both by 0
            found.append(TableFacts(name, None if never else estimate, int(size or 0), readable == "t", owned == "t"))
    return found


def retained(slot: FamilySlotFacts, end: Lsn) -> int | None:
    """Bytes of WAL the server keeps for a slot while its log ends at `end`."""
    return None if slot.restart is None else max(0, end.value - slot.restart.value)


def _right(session: WireSession, row: dict[str, str | None], doing: str) -> str | None:
    for column, right in (
        ("rolreplication", "by its REPLICATION attribute"),
        ("rolsystemadmin", "as a system administrator"),
        ("rolsuper", "as a system administrator"),
    ):
        if row.get(column) == "t":
            return right
    sql = "SELECT pg_has_role(oid, 'MEMBER') FROM pg_roles WHERE rolname = 'gs_role_replication'"
    member = session.query(sql, doing=doing).rows
    return "as a member of gs_role_replication" if member and member[0][0] == "t" else None


def _senders(session: WireSession) -> int | None:
    try:
        row = _row(session, "SELECT count(*) FROM pg_stat_replication", "counting the WAL senders")
    except (QueryRefused, SourcePermission):
        return None  # for administrators only, in some products
    return int(row[0] or 0)


def _row(session: WireSession, sql: str, doing: str) -> tuple[str | None, ...]:
    rows = session.query(sql, doing=doing).rows
    if len(rows) != 1:
        raise StreamProtocol(f"{doing}: the server answered {len(rows)} rows", where=session.place)
    return rows[0]
