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
from cdc_lake.pipeline.ports.action import TableFacts
from cdc_lake.source.gaussdb.catalog import FamilyTables, tables_in_database
from cdc_lake.source.gaussdb.connection import target_of
from cdc_lake.source.gaussdb.server import FamilySettings, read_settings
from cdc_lake.source.gaussdb.slot import FamilySlotFacts
from cdc_lake.source.quoting import literal
from cdc_lake.source.tables import select_tables
from cdc_lake.source.wire.connect import connect
from cdc_lake.source.wire.session import WireSession

_TABLE = (
    "SELECT CAST(c.reltuples AS int8), c.relpages, pg_total_relation_size(c.oid), "
    "has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'), pg_has_role(c.relowner, 'USAGE') "
    "FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
    "WHERE n.nspname = {schema} AND c.relname = {name} AND c.relkind IN ('r', 'p')"
)


@dataclass(frozen=True, slots=True)
class FamilyLimits:
    """The server's settings, and how much of what they limit is in use; `senders_used` None where it is not shown."""

    settings: FamilySettings
    slots_used: int
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
    slots = _row(session, "SELECT count(*) FROM pg_replication_slots", "counting the slots")[0]
    return FamilyLimits(read_settings(session), int(slots or 0), _senders(session))


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
    return select_tables(project.family.tables, sorted(tables_in_database(session)))


def family_tables(project: Project, session: WireSession) -> FamilyTables:
    """The catalog of the tables as the pipeline's stream has them."""
    return FamilyTables(session, skips_generated=project.family.skips_generated)


def catalog(project: Project, session: WireSession, names: Sequence[TableName]) -> dict[TableName, FamilyTableFacts]:
    """What the catalog says of these tables, without those that are gone. Raises SourceError."""
    ask = family_tables(project, session)
    return {name: facts for name in names if (facts := ask(name)) is not None}


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
